"""The engines that the suite of the contract runs on: how a node connects to each, and how trouble is made.

Each rig stands for one engine's servers; what is made in a test has a name of its own, because the servers outlive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.produce import ProduceRequest

from cluster.breaking_proxy import BreakingProxy
from perf.engines import kafka, postgres
from perf.engines.kafka import KafkaServers, Node
from perf.engines.postgres import PostgresServers
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.kafka.connections import Address, Answer, Brokers, Trouble
from rabbitpy_broker.cluster.kafka.engine import KafkaEngine
from rabbitpy_broker.cluster.kafka.settings import parse
from rabbitpy_broker.cluster.memory_engine import MemoryServers, Outcome
from rabbitpy_broker.cluster.postgres.engine import PostgresEngine

PATIENCE = 60.0  # seconds for what an election decides
ENGINES = os.environ.get("RABBITPY_TEST_ENGINES", "postgres").split(",")  # for brokers whose test one engine is enough for
on_one_engine = pytest.mark.parametrize("engine_servers", ENGINES, indirect=True, scope="module")


class EngineRig(ABC):
    """An engine's servers. `conditional`: it refuses an append that would not count; else it appends it, and it is misplaced."""

    conditional: bool

    def __init__(self) -> None:
        self._connected: list[Engine] = []

    async def connect(self, node: str = "a") -> Engine:
        """A started engine, which is stopped at the end of the test."""
        engine = self._engine(node)
        self._connected.append(engine)
        await engine.start()
        return engine

    async def disconnect(self) -> None:
        while self._connected:
            await self._connected.pop().stop()

    @abstractmethod
    def _engine(self, node: str) -> Engine: ...

    @abstractmethod
    async def connect_breakable(self) -> Engine:
        """As `connect`, for `break_append`."""

    @abstractmethod
    def break_append(self, block: bytes) -> None:
        """The outcome of the next append of this block is unknown: it is done, and the connection is lost before the answer."""

    @abstractmethod
    def kill_leader(self) -> None:
        """Kill -9 to the server that takes writes; returns when another takes them."""

    @abstractmethod
    def close(self) -> None:
        """Stops the servers."""


class MemoryRig(EngineRig):
    def __init__(self, *, conditional: bool) -> None:
        super().__init__()
        self.conditional = conditional
        self._servers = MemoryServers(conditional=conditional)

    def _engine(self, node: str) -> Engine:
        return self._servers.connect(node)

    async def connect_breakable(self) -> Engine:
        return await self.connect()

    def break_append(self, block: bytes) -> None:
        self._servers.plan("append", Outcome.DONE_UNTOLD)

    def kill_leader(self) -> None:
        """The servers in memory are one that never dies."""

    def close(self) -> None:
        pass


def require(there: bool, what: str) -> None:
    """Skips the test, or fails it under RABBITPY_REQUIRE_CLIENTS, when a server is not installed."""
    if not there:
        missing = pytest.fail if os.environ.get("RABBITPY_REQUIRE_CLIENTS", "0") not in ("", "0") else pytest.skip
        missing(f"needs {what}, which this machine does not have")


class PostgresRig(EngineRig):
    """Three servers, each with a proxy before it for engines that can be broken."""

    conditional = True

    def __init__(self) -> None:
        super().__init__()
        require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
        self._folder = Path(tempfile.mkdtemp(prefix="rabbitpy-postgres-"))
        self.servers = PostgresServers(self._folder)
        self._proxies: list[BreakingProxy] = []
        try:
            self.servers.start()
        except BaseException:
            self.close()
            raise

    def _engine(self, node: str) -> Engine:
        return PostgresEngine(self.servers.url)

    async def connect_breakable(self) -> Engine:
        self._proxies = [BreakingProxy("127.0.0.1", server.port) for server in self.servers.servers]
        url = self.servers.url
        for proxy, server in zip(self._proxies, self.servers.servers, strict=True):
            await proxy.start()
            url = url.replace(f":{server.port}", f":{proxy.port}")
        engine = PostgresEngine(url)
        self._connected.append(engine)
        await engine.start()
        return engine

    async def disconnect(self) -> None:
        await super().disconnect()
        await asyncio.gather(*(proxy.stop() for proxy in self._proxies))
        self._proxies.clear()

    def break_append(self, block: bytes) -> None:
        for proxy in self._proxies:
            proxy.trap = block

    def kill_leader(self) -> None:
        self.servers.primary.kill()
        self.servers.promote()

    def close(self) -> None:
        self.servers.stop()
        shutil.rmtree(self._folder)


class RememberingEngine(KafkaEngine):
    """`last_topic` is that of the log that was made last, by any of these engines."""

    last_topic = ""

    async def create_log(self, name: str) -> None:
        await super().create_log(name)
        RememberingEngine.last_topic = self._topic(name)


class KafkaRig(EngineRig):
    """Three nodes, each of which leads some of the topics."""

    conditional = False

    def __init__(self) -> None:
        super().__init__()
        require(kafka.is_installable(), "Java, and Maven for Kafka's jars")
        self._folder = Path(tempfile.mkdtemp(prefix="rabbitpy-kafka-"))
        self._folder.chmod(0o755)
        self.servers = KafkaServers(self._folder)
        self._trap = b""
        try:
            self.servers.start()
        except BaseException:
            self.close()
            raise

    def _engine(self, node: str) -> KafkaEngine:
        """Without syncs, which would take most of the time: who is killed here loses nothing of the page cache."""
        return RememberingEngine(self.servers.url + "?flush=false")

    async def connect_breakable(self) -> Engine:
        """Its answers are lost on our side: a connection that is lost is made anew, and Kafka then tells what it has done."""
        engine = self._engine("a")
        send = engine._brokers.send

        async def losing(address: Address, request: Any, purpose: str) -> Answer:
            answer = await send(address, request, purpose)
            if self._trap and isinstance(request, ProduceRequest) and self._trap in request._topics[0][1][0][1]:
                self._trap = b""
                raise Trouble("the answer is lost, and the time is over", unsure=True, passing=False)
            return answer

        engine._brokers.send = losing  # type: ignore[method-assign]
        self._connected.append(engine)
        await engine.start()
        return engine

    async def disconnect(self) -> None:
        await super().disconnect()
        self.servers.start_again()  # the node that was killed, for the next test

    def break_append(self, block: bytes) -> None:
        self._trap = block

    def kill_leader(self) -> None:
        """That of the log that was made last."""
        topic = RememberingEngine.last_topic
        killed = asyncio.run(leader(self.servers, topic))
        killed.kill()
        asyncio.run(leader(self.servers, topic, before=killed))

    def close(self) -> None:
        self.servers.stop()
        shutil.rmtree(self._folder)


async def leader(servers: KafkaServers, topic: str, *, before: Node | None = None) -> Node:
    """The node that leads a topic, once that is another than the one `before`."""
    brokers = Brokers(parse(servers.url))
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(Trouble):
                    _, port = await brokers.leader(topic)
                    node = next(node for node in servers.nodes.values() if node.port == port)
                    if node is not before:
                        return node
                brokers.forget_leader(topic)
                await asyncio.sleep(0.05)
    finally:
        await brokers.stop()
