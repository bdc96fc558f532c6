"""The connections to Kafka's brokers, and which of them leads a topic.

aiokafka's connections speak the protocol; what is asked of whom, and when it is asked again, is decided here and by the users.
(Its producer and consumer are not used: the producer says that a duplicate is done without its position, and both let Kafka
make a topic that is not there, with settings of its own.)

A broker works on the requests of one connection one after the other, also those that wait. So each use has connections of its
own (`purpose`), and no append waits behind a read that waits for news.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from aiokafka.conn import AIOKafkaConnection  # an extra without types: its objects are Any here
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Array, Schema

from rabbitpy_broker.cluster.kafka.settings import Settings
from rabbitpy_broker.cluster.log import NoSuchLog, OutcomeUnknown, Unavailable

T = TypeVar("T")
Address = tuple[str, int]  # host, port
Answer = dict[str, Any]  # an answer's fields by name

ASK_TIMEOUT: Final = 2.0  # seconds for a connection, and for an answer that needs no disk
BACKOFF: Final = 0.05  # seconds until the same is asked again

UNKNOWN_TOPIC: Final = 3
OFFSET_OUT_OF_RANGE: Final = 1
# Answers after which the same may be asked again, of the next leader or of this one in a moment.
PASSING: Final = frozenset({-1, 2, 3, 5, 6, 7, 8, 9, 13, 19, 20, 41, 56, 72, 74, 75, 78})
# Of these the ones that do not say whether the request was carried out.
UNSURE: Final = frozenset({-1, 7, 20, 56})


class Trouble(Exception):
    """A broker has not answered, or has answered with an error. `unsure`: it may have done what it was asked, or may yet do it.
    `passing`: it may go well if it is asked again. `code` is Kafka's, None if there was no answer.
    """

    def __init__(self, text: str, *, unsure: bool, passing: bool = True, code: int | None = None) -> None:
        super().__init__(text)
        self.unsure = unsure
        self.passing = passing
        self.code = code


def check(code: int) -> None:
    """Raises `Trouble` for an error code in an answer."""
    if code:
        raise Trouble(for_code(code).__name__, unsure=code in UNSURE, passing=code in PASSING, code=code)


def fields(schema: Any, values: Sequence[Any]) -> Answer:
    """A structure of the protocol by names. (aiokafka's own `to_object` fails at arrays that are null.)"""
    found: Answer = {}
    for name, kind, value in zip(schema.names, schema.fields, values, strict=False):
        if isinstance(kind, Array) and isinstance(kind.array_of, Schema):
            found[name] = [fields(kind.array_of, member) for member in value or ()]
        else:
            found[name] = value
    return found


class Brokers:
    """All brokers of a Kafka, as one engine reaches them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._addresses: list[Address] = list(settings.servers)  # those that have answered before those that have not
        self._leaders: dict[str, Address] = {}
        self._connections: dict[tuple[Address, str], Any] = {}
        self._making: dict[tuple[Address, str], asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._tls = ssl.create_default_context(cafile=settings.ca) if settings.tls else None

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs work that ends with the engine."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))

    # --- asking ----------------------------------------------------------------------------------------------------------

    async def send(self, address: Address, request: Any, purpose: str) -> Answer:
        """Asks one broker. Raises `Trouble`, which is sure only if the request was not sent."""
        connection = await self._connection(address, purpose)
        try:
            answer = await connection.send(request)
        except (KafkaError, OSError, TimeoutError, RuntimeError) as exc:  # uvloop's, of a transport that was closed just now
            self.drop(address, purpose)
            raise Trouble(f"{address[0]}:{address[1]} does not answer: {exc!r}", unsure=True) from exc
        return fields(type(answer).SCHEMA, [answer.get_item(name) for name in type(answer).SCHEMA.names])

    async def ask_any(self, request: Any) -> Answer:
        """Asks one broker after the other until one answers. Raises `Trouble`."""
        trouble = Trouble("no broker is known", unsure=False)
        for address in list(self._addresses):
            try:
                return await self._ask(address, request)
            except Trouble as exc:
                trouble = exc
        raise trouble

    async def ask_all(self, request: Any) -> list[Answer]:
        """The answers of all brokers that can be reached."""
        answers = await asyncio.gather(*(self._ask(one, request) for one in list(self._addresses)), return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, dict)]

    async def ask_leader(self, topic: str, ask: Callable[[Address], Awaitable[T]], *, changes: bool) -> T:
        """Asks the leader of a topic until it answers, or the time is over.

        Raises `NoSuchLog`; `Unavailable`, or `OutcomeUnknown` if it `changes` something and may have done so.
        """
        deadline = asyncio.get_running_loop().time() + self.settings.timeout
        unsure = False
        while True:
            try:
                return await ask(await self.leader(topic))
            except NoSuchLog as exc:
                raise OutcomeUnknown(str(exc)) if unsure else exc from None
            except Trouble as exc:
                unsure = unsure or (changes and exc.unsure)
                self.forget_leader(topic)
                if not exc.passing or asyncio.get_running_loop().time() > deadline:
                    raise (OutcomeUnknown if unsure else Unavailable)(f"kafka: {topic}: {exc}") from exc
            await asyncio.sleep(BACKOFF)

    def drop(self, address: Address, purpose: str) -> None:
        """Ends a connection, if there is one."""
        connection = self._connections.pop((address, purpose), None)
        if connection is not None:
            connection.close()

    # --- who leads -------------------------------------------------------------------------------------------------------

    async def leader(self, topic: str) -> Address:
        """The broker that leads the topic, as far as is known. Raises `NoSuchLog` if no broker knows it; `Trouble`."""
        if topic in self._leaders:
            return self._leaders[topic]
        strangers = 0  # brokers that do not know the topic; one that lags does not decide
        trouble = Trouble("no broker answers", unsure=False)
        for address in list(self._addresses):
            try:
                answer = await self._ask(address, MetadataRequest([topic], False))
            except Trouble as exc:
                trouble = exc
                continue
            nodes = self._learn(answer)
            found = answer["topics"][0]
            if found["error_code"] == UNKNOWN_TOPIC:
                strangers += 1
                continue
            if found["partitions"] and (leader := nodes.get(found["partitions"][0]["leader"])) is not None:
                self._leaders[topic] = leader
                return leader
            trouble = Trouble("it has no leader", unsure=False)
        if 2 * strangers > len(self._addresses):
            raise NoSuchLog(f"kafka: there is no topic {topic}")
        raise trouble

    def forget_leader(self, topic: str) -> None:
        """The leader did not answer as one does: next time another broker is asked who it is."""
        self._leaders.pop(topic, None)
        self._addresses.append(self._addresses.pop(0))

    async def topics(self, prefix: str) -> dict[str, int]:
        """All topics with a prefix, and how many replicas they have. Raises `Trouble`."""
        answer = await self.ask_any(MetadataRequest(None, False))
        self._learn(answer)
        return {
            found["topic"]: min((len(one["replicas"]) for one in found["partitions"]), default=0)
            for found in answer["topics"]
            if found["topic"].startswith(prefix)
        }

    def _learn(self, answer: Answer) -> dict[int, Address]:
        nodes = {one["node_id"]: (one["host"], one["port"]) for one in answer["brokers"]}
        self._addresses += [address for address in nodes.values() if address not in self._addresses]
        return nodes

    # --- connections -----------------------------------------------------------------------------------------------------

    async def _ask(self, address: Address, request: Any) -> Answer:
        """Asks for something that a broker answers at once; who does not comes last from now on."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT):
                return await self.send(address, request, "ask")
        except (TimeoutError, Trouble) as exc:
            if address in self._addresses:
                self._addresses.remove(address)
                self._addresses.append(address)
            if isinstance(exc, Trouble):
                raise
            self.drop(address, "ask")
            raise Trouble(f"{address[0]}:{address[1]} does not answer", unsure=True) from exc

    async def _connection(self, address: Address, purpose: str) -> Any:
        key = (address, purpose)
        async with self._making.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is not None and connection.connected():
                return connection
            self.drop(address, purpose)
            if self._stopped:
                raise Trouble("the engine was stopped", unsure=False, passing=False)
            connection = self._new_connection(address)
            try:
                async with asyncio.timeout(ASK_TIMEOUT):
                    await connection.connect()
            except BaseException as exc:
                connection.close()
                if isinstance(exc, (KafkaError, OSError, TimeoutError)):
                    raise Trouble(f"{address[0]}:{address[1]} cannot be reached: {exc!r}", unsure=False) from exc
                raise
            self._connections[key] = connection
            return connection

    def _new_connection(self, address: Address) -> Any:
        settings = self.settings
        login: dict[str, Any] = {}
        if settings.user is not None:
            login = {
                "sasl_mechanism": settings.sasl, "sasl_plain_username": settings.user,
                "sasl_plain_password": settings.password,
            }  # fmt: skip
        return AIOKafkaConnection(
            *address, client_id="rabbitpy-broker", request_timeout_ms=int(settings.answer_timeout * 1000), ssl_context=self._tls,
            security_protocol=("SASL_" if login else "") + ("SSL" if settings.tls else "PLAINTEXT"), **login,
        )  # fmt: skip
