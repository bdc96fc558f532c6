"""A log on Kafka: a topic with one partition, and a position is an offset in it.

Offsets are dense because nothing else is ever appended: no transactions, whose markers take offsets, and no compaction. A record
is an entry: its value is the block, its key holds the term and the position that was expected, so that every reader can tell what
is misplaced.

*Once and in order.* One request is under way for a handle, with all blocks that waited for it. Each carries the handle's producer
id and a sequence number, by which Kafka knows what it has already, also after a change of the leader: a request without an answer
is asked again and again until the time is over. Then its blocks have an unknown outcome, those behind it were never sent, and the
handle goes on with another producer id.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final, NamedTuple

from aiokafka.protocol.admin import DeleteRecordsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from rabbitpy_broker.cluster.kafka.connections import (
    BACKOFF,
    OFFSET_OUT_OF_RANGE,
    Address,
    Answer,
    Brokers,
    Trouble,
    check,
)
from rabbitpy_broker.cluster.log import (
    ClusterError,
    Entry,
    Misplaced,
    NoSuchLog,
    OutcomeUnknown,
    Reader,
    ReplicatedLog,
    Trimmed,
    Unavailable,
    asked_or_not,
)

KEY: Final = struct.Struct(">qq")  # term, expected position or ANYWHERE
ANYWHERE: Final = -1
GROUP_BYTES: Final = 2 << 20  # of blocks in one request; one block may be larger
FETCH_BYTES: Final = 4 << 20
ACKS_ALL: Final = -1
EARLIEST: Final = -2
LATEST: Final = -1
SEQUENCES: Final = 1 << 31
REQUEST_TIMED_OUT: Final = 7
NO_LEADERS: Final = frozenset({3, 5, 6, 9})  # errors of brokers that know, or believe, that they do not lead the topic


def offset_in(answer: Answer) -> int:
    """Of an answer to a request for one. Raises `Trouble`."""
    found = answer["topics"][0]["partitions"][0]
    check(found["error_code"])
    return int(found["offset"])


class Waiting(NamedTuple):
    """A block that is to be appended."""

    block: bytes
    key: bytes
    expected: int
    future: asyncio.Future[int]


class Producer:
    """A producer id, and the sequence number that its next record gets."""

    def __init__(self, number: int, epoch: int) -> None:
        self._number = number
        self._epoch = epoch
        self._sequence = 0

    def batch(self, group: list[Waiting]) -> bytes:
        """The records of a group as Kafka stores them. It is made once, and sent unchanged until it is answered."""
        builder = DefaultRecordBatchBuilder(2, 0, 0, self._number, self._epoch, self._sequence, 1 << 30)
        for offset, waiting in enumerate(group):
            builder.append(offset, 0, waiting.key, waiting.block, [])
        self._sequence = (self._sequence + len(group)) % SEQUENCES
        return bytes(builder.build())


class KafkaLog(ReplicatedLog):
    def __init__(self, brokers: Brokers, name: str, topic: str) -> None:
        self.name = name
        self._brokers = brokers
        self._topic = topic
        self._queue: list[Waiting] = []
        self._appending: asyncio.Task[None] | None = None
        self._producer: Producer | None = None

    def append(self, block: bytes, *, term: int, expected: int | None = None) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.add_done_callback(asked_or_not)
        position = ANYWHERE if expected is None else expected
        self._queue.append(Waiting(block, KEY.pack(term, position), position, future))
        if self._appending is None or self._appending.done():
            self._appending = self._brokers.spawn(self._append_queued())
        return future

    async def end(self) -> int:
        """A broker that was leader, and slept, takes itself for the leader for a moment when it wakes, and tells an end that has
        passed. So all are asked: whoever has answered an append takes itself for the leader, too, and is ahead.
        """

        async def ask(leader: Address) -> int:
            found = [await self._ask_offset(leader, LATEST)]
            for answer in await self._brokers.ask_all(self._offset_request(LATEST)):
                one = answer["topics"][0]["partitions"][0]
                if one["error_code"] not in NO_LEADERS:
                    found.append(offset_in(answer))
            return max(found)

        return await self._brokers.ask_leader(self._topic, ask, changes=False)

    async def first(self) -> int:
        return await self._offset(EARLIEST)

    async def leaders_end(self) -> int:
        """What the leader that is known takes for the end, which may have passed (`end`)."""
        return await self._offset(LATEST)

    async def trim(self, below: int) -> None:
        timeout = int(self._brokers.settings.answer_timeout * 500)

        async def ask(leader: Address) -> None:
            request = DeleteRecordsRequest([(self._topic, [(0, below)])], timeout)
            answer = await self._brokers.send(leader, request, "trim")
            code = answer["topics"][0]["partitions"][0]["error_code"]
            if code != REQUEST_TIMED_OUT:  # then a follower is away, and will hear of it when it is back
                check(code)

        await self._brokers.ask_leader(self._topic, ask, changes=True)

    def reader(self, position: int) -> Reader:
        return KafkaReader(self, self._brokers, self._topic, position)

    async def _offset(self, which: int) -> int:
        return await self._brokers.ask_leader(self._topic, lambda leader: self._ask_offset(leader, which), changes=False)

    async def _ask_offset(self, leader: Address, which: int) -> int:
        return offset_in(await self._brokers.send(leader, self._offset_request(which), "ask"))

    def _offset_request(self, which: int) -> Any:
        return OffsetRequest(-1, 0, [(self._topic, [(0, which)])])

    # --- appending -------------------------------------------------------------------------------------------------------

    async def _append_queued(self) -> None:
        while self._queue:
            group = self._next_group()
            try:
                base = await self._append_group(group)
            except BaseException as exc:
                self._give_up(group, exc)
                if not isinstance(exc, ClusterError):
                    raise
                continue
            for position, waiting in enumerate(group, base):
                if waiting.future.done():  # cancelled
                    continue
                if waiting.expected in (ANYWHERE, position):
                    waiting.future.set_result(position)
                else:
                    waiting.future.set_exception(Misplaced(position))

    def _next_group(self) -> list[Waiting]:
        size = count = 0
        for waiting in self._queue:
            size += len(waiting.block)
            if count and size > GROUP_BYTES:
                break
            count += 1
        group, self._queue = self._queue[:count], self._queue[count:]
        return group

    async def _append_group(self, group: list[Waiting]) -> int:
        """Appends blocks as one batch, which is in the log as a whole or not at all, and returns the position of the first."""
        if self._producer is None:
            self._producer = await self._new_producer()
        batch = self._producer.batch(group)

        async def ask(leader: Address) -> int:
            timeout = int(self._brokers.settings.answer_timeout * 1000)
            request = ProduceRequest(None, ACKS_ALL, timeout, [(self._topic, [(0, batch)])])
            answer = await self._brokers.send(leader, request, f"append {self._topic}")
            found = answer["topics"][0]["partitions"][0]
            check(found["error_code"])
            return int(found["offset"])

        base = await self._brokers.ask_leader(self._topic, ask, changes=True)
        if base < 0:  # it is there, and Kafka has forgotten where
            raise OutcomeUnknown(f"kafka: {self._topic}: appended, at a position that is not known")
        return base

    async def _new_producer(self) -> Producer:
        deadline = asyncio.get_running_loop().time() + self._brokers.settings.timeout
        while True:
            try:
                answer = await self._brokers.ask_any(InitProducerIdRequest(None, SEQUENCES - 1))
                check(answer["error_code"])
                return Producer(answer["producer_id"], answer["producer_epoch"])
            except Trouble as exc:  # an id that nobody uses does no harm, so it does not matter whether one was given
                if asyncio.get_running_loop().time() > deadline:
                    raise Unavailable(f"kafka: no producer id: {exc}") from exc
            await asyncio.sleep(BACKOFF)

    def _give_up(self, group: list[Waiting], error: BaseException) -> None:
        """The group has failed; what waits behind it was never sent, and may not count any more."""
        self._producer = None
        behind, self._queue = self._queue, []
        reason: tuple[type[Exception], str]
        if isinstance(error, (NoSuchLog, Unavailable)):
            reason = (type(error), str(error))
        else:
            reason = (OutcomeUnknown, str(error) or f"kafka: {self._topic}: the engine was stopped")
        missing = isinstance(error, NoSuchLog)
        for members, (kind, text) in (
            (group, reason),
            (behind, reason if missing else (Unavailable, f"kafka: {self._topic}: an append before it failed")),
        ):
            for waiting in members:
                if not waiting.future.done():
                    waiting.future.set_exception(kind(text))


class KafkaReader(Reader):
    def __init__(self, log: KafkaLog, brokers: Brokers, topic: str, position: int) -> None:
        self.position = position
        self._log = log
        self._brokers = brokers
        self._topic = topic
        self._purpose = f"read {id(self)}"
        self._used: set[Address] = set()

    async def next(self, wait: float = 0) -> list[Entry]:
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait
        poll = self._brokers.settings.answer_timeout / 2
        while True:
            left = max(0.0, deadline - clock())
            entries = await self._fetch(min(left, poll))
            if entries:
                self.position = entries[-1].position + 1
                return entries
            # A new leader shows less than there is until it has heard what its followers have, but does not name an end before.
            # One that wakes may name one that has passed: who must have all reads up to what `KafkaLog.end` says, or to a fence.
            if clock() >= deadline and await self._log.leaders_end() <= self.position:
                return []

    async def close(self) -> None:
        for address in self._used:
            self._brokers.drop(address, self._purpose)

    async def _fetch(self, wait: float) -> list[Entry]:
        request = FetchRequest(int(wait * 1000), 1, FETCH_BYTES, 0, [(self._topic, [(0, self.position, FETCH_BYTES)])])

        async def ask(leader: Address) -> Any:
            self._used.add(leader)
            answer = await self._brokers.send(leader, request, self._purpose)
            check(answer["error_code"])
            found = answer["topics"][0]["partitions"][0]
            if found["error_code"] == OFFSET_OUT_OF_RANGE:
                return None
            check(found["error_code"])
            return found["message_set"]

        records = await self._brokers.ask_leader(self._topic, ask, changes=False)
        if records is not None:
            return self._entries(records)
        first = await self._log.first()
        if self.position < first:
            raise Trimmed(first)
        await asyncio.sleep(BACKOFF)  # the leader does not have what there is, because it is none any more
        return []

    def _entries(self, data: bytes) -> list[Entry]:
        """The entries of what was fetched: it begins with the batch that holds the position, and its last may be cut off."""
        entries: list[Entry] = []
        batches = MemoryRecords(data)
        while batches.has_next():
            batch = batches.next_batch()
            if not batch.validate_crc():
                raise Unavailable(f"kafka: {self._topic}: a damaged batch at {batch.base_offset}")
            for record in batch:
                if record.offset >= self.position:
                    term, expected = KEY.unpack(record.key)
                    misplaced = expected not in (ANYWHERE, record.offset)
                    entries.append(Entry(record.offset, term, misplaced, bytes(record.value)))
        return entries
