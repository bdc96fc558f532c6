"""A stream's messages to a stream of another broker: the shovel of a log that is read and not emptied.

    source stream --from the offset behind the last that has arrived--> waiting --publish--> target stream

Nothing is taken from the source, and acks there are mere credit. So what has arrived is asked of the target: at the start of
each try the last message of the target's stream is read, and the copy goes on behind it. Nothing comes twice, then, unless a
broker appends what a connection that is gone has left it after two looks that were `SETTLED_S` apart.

Offsets at the target begin with 0, whatever the first at the source is. `places` says which is which: pairs of offsets, at the
target and at the source, each good up to the next pair; a copy has one, and one more for each gap in the source's offsets. What
looks like a gap ends the try, and is one if the source, asked anew, still begins behind it.
Without pairs from an earlier run the first is taken to be (0, 0) where that is sure: where the source still has its offset 0.

What must stay true: nobody else publishes to the target's stream until the copy is done, or it ends with an error, since the
last message there is compared with the source's; a pair is kept (`on_place`) before the message is published that it is for.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rabbitpy_broker.errors import PRECONDITION_FAILED
from rabbitpy_broker.shovel.peer import ChannelUser, Peer, PeerChannel, PeerClosed, Url
from rabbitpy_broker.shovel.shovel import LOOK_S, Run, Shovel, ShovelError, Target, consume, queue_at
from rabbitpy_broker.wire.properties import HEADERS, MESSAGE_ID, find_header, find_property, short_property

OFFSET: Final = b"x-stream-offset"
FIRST_S: Final = 30.0  # for the first message of a stream that says it has some
EMPTY_S: Final = 1.0  # of one that says it has none: RabbitMQ refreshes its count every few seconds only
QUIET_S: Final = 0.5  # nothing comes for so long: that was the last
SETTLED_S: Final = 0.5
READ_AHEAD: Final = 1_000
COMPARED: Final = 3  # messages at the start, in the middle and at the end of a stream

Places = list[list[int]]


class StreamMessage(NamedTuple):
    """A message of a stream, as far as it is compared: `digest` is of its routing key, message_id and body."""

    offset: int
    digest: bytes


def offset_of(header: bytes) -> int:
    """The offset in a delivered header payload. Raises PeerClosed where there is none: it comes from no stream."""
    table = int(find_property(header, HEADERS))
    start, end = find_header(header, table, OFFSET) if table else (0, 0)
    if int(start) == 0:
        raise PeerClosed("a message came without its offset: the source is no stream", PRECONDITION_FAILED)
    return int.from_bytes(header[int(start) + 1 : int(end)], "big")


class Reader(ChannelUser):
    """Keeps the messages that come from the offset `begin` on: the first `size`, or the last one only; gives credit for more."""

    def __init__(self, begin: int, size: int) -> None:
        self.messages: list[StreamMessage] = []
        self.channel: PeerChannel | None = None
        self.error: PeerClosed | None = None
        self.changed = asyncio.Event()
        self._begin = begin
        self._size = size

    @property
    def is_full(self) -> bool:
        """All that is wanted has come."""
        return 0 < self._size <= len(self.messages)

    def delivered(self, tag: int, redelivered: bool, address: bytes, header: bytes, body: bytes) -> None:
        if self.channel is not None:
            self.channel.ack(tag, False)
        self.changed.set()
        offset = offset_of(header)
        if offset >= self._begin and not self.is_full:
            named = address[1 + address[0] :] + b"\0" + (short_property(header, MESSAGE_ID) or b"") + b"\0" + body
            self.messages[self._size :] = [StreamMessage(offset, hashlib.blake2b(named, digest_size=16).digest())]

    def cancelled(self) -> None:
        self.lost(PeerClosed("the stream is gone", 404))

    def lost(self, error: PeerClosed) -> None:
        self.error = error
        self.changed.set()


async def read(url: Url, stream: str, offset: str | int, size: int = 0) -> list[StreamMessage]:
    """The first `size` messages from this x-stream-offset on; with 0, the last of all that there are. Fewer, or none, where the
    stream ends. Raises PeerClosed or OSError.
    """
    peer = await Peer.connect(url, f"migrate {stream}")
    try:
        reader = Reader(offset if isinstance(offset, int) else 0, size)
        reader.channel = channel = await peer.channel(reader)
        patience_s = FIRST_S if (await queue_at(channel, stream)).message_count else EMPTY_S
        await consume(channel, stream, READ_AHEAD, {OFFSET.decode(): offset})
        while not reader.is_full:
            if reader.changed.is_set():
                reader.changed.clear()
                patience_s = QUIET_S
            if reader.error is not None:
                raise reader.error
            try:
                await asyncio.wait_for(reader.changed.wait(), patience_s)
            except TimeoutError:
                await queue_at(channel, stream)
                if not reader.changed.is_set():  # a broker that only was slow would have sent some before it answers
                    break
        return reader.messages
    finally:
        await peer.close()


async def read_one(url: Url, stream: str, offset: str | int) -> StreamMessage | None:
    """The first message from an x-stream-offset on; for "last" the very last. None where the stream is empty."""
    found = await read(url, stream, offset, 0 if offset == "last" else 1)
    return found[0] if found else None


class StreamCopy(Shovel):
    """From a stream to the stream of the same name. `places` are those of earlier runs; `on_place` is told all of them when there
    is a new one. `began`: the target's first offset that this run has published.
    """

    def __init__(
        self, source: Url, stream: str, target: Url, places: Places, on_place: Callable[[Places], None], **options: Any
    ) -> None:
        super().__init__(source, stream, Target(target, queue=stream), **options)
        self.places = [list(place) for place in places]
        self.on_place = on_place
        self.began = -1

    def source_offset(self, at_target: int) -> int:
        """Of the message with this offset at the target."""
        place = next(place for place in reversed(self.places) if place[0] <= at_target)
        return at_target - place[0] + place[1]

    def add_place(self, at_target: int, at_source: int) -> None:
        """From here on the offsets are these."""
        self.places.append([at_target, at_source])
        self.on_place(self.places)

    async def _make_run(self) -> Run:
        try:
            return await self._find_place()
        except PeerClosed as error:
            if error.code == PRECONDITION_FAILED:
                raise ShovelError(f"{self.queue}: not a stream at both ends: {error}") from error
            raise

    async def _find_place(self) -> Run:
        last = await self._settled()
        end = await read_one(self.source, self.queue, "last")
        first = await read_one(self.source, self.queue, "first") if end is not None else None
        next_at_target = last.offset + 1 if last is not None else 0
        if self.began < 0:
            self.began = next_at_target
        self.tally.moved = next_at_target - self.began
        if first is None or end is None:
            if last is not None:
                raise ShovelError(f"{self.queue}: the stream has messages at the target, and none at the source")
            return StreamRun(self, 0, -1)
        if last is None:
            self.places = []
            self.add_place(0, first.offset)
            return StreamRun(self, first.offset, end.offset)
        await self._compare(last, first, end)
        self.places = [place for place in self.places if place[0] <= last.offset]
        begin = self.source_offset(last.offset) + 1
        following = await read_one(self.source, self.queue, begin) if begin <= end.offset else None
        if following is not None and following.offset > begin:
            begin = following.offset
            self.add_place(next_at_target, begin)
        return StreamRun(self, begin, end.offset)

    async def _settled(self) -> StreamMessage | None:
        """The target's last message, once two looks have found the same."""
        found = await read_one(self.target.url, self.queue, "last")
        while True:
            await asyncio.sleep(SETTLED_S)
            before, found = found, await read_one(self.target.url, self.queue, "last")
            if found == before:
                return found

    async def _compare(self, last: StreamMessage, first: StreamMessage, end: StreamMessage) -> None:
        """Raises ShovelError where the target's last message is not the source's."""
        if not self.places:
            if first.offset != 0:
                raise ShovelError(
                    f"{self.queue}: there are messages at the target, and without the state file of the run that brought them "
                    "nobody knows which; delete the stream there to begin anew"
                )
            self.add_place(0, 0)
        offset = self.source_offset(last.offset)
        if offset < first.offset:  # gone meanwhile
            return
        if offset <= end.offset:
            found = await read_one(self.source, self.queue, offset)
            if found == StreamMessage(offset, last.digest):
                return
        raise ShovelError(
            f"{self.queue}: offset {last.offset} at the target is not {offset} of the source: is the stream published to there?"
        )

    async def verify(self) -> tuple[bool, str]:
        """Whether all has arrived; compares some messages of the start, the middle and the end. Raises PeerClosed, OSError."""
        end = await read_one(self.source, self.queue, "last")
        last = await read_one(self.target.url, self.queue, "last")
        if end is None or last is None:
            return end is None and last is None, "empty" if end is None else "nothing has arrived"
        oldest = await read_one(self.source, self.queue, "first") or end
        first = await read_one(self.target.url, self.queue, "first") or last
        reached = self.source_offset(last.offset)
        if reached < end.offset:
            return False, f"the source's offsets {reached + 1} to {end.offset} have not arrived"
        compared = 0
        for begin in sorted({first.offset, (first.offset + last.offset) // 2, max(first.offset, last.offset - COMPARED + 1)}):
            at_source = self.source_offset(begin)
            if at_source < oldest.offset:
                continue
            theirs = dict(await read(self.source, self.queue, at_source, 2 * COMPARED))
            for offset, digest in await read(self.target.url, self.queue, begin, COMPARED):
                compared += 1
                if theirs.get(self.source_offset(offset), digest) != digest:
                    return False, f"offset {offset} at the target is not what the source has"
        count = last.offset - first.offset + 1
        shift = self.source_offset(last.offset) - last.offset
        shown = f", offsets {shift} less than at the source" if shift else ", offsets as at the source"
        return True, f"{count} messages{shown}, {compared} compared"


class StreamRun(Run):
    """One try, from the source's offset `begin` on. `end`: its last one when the run began."""

    def __init__(self, copy: StreamCopy, begin: int, end: int) -> None:
        super().__init__(copy)
        self._next = begin
        self._end = end
        self._taken_at = time.monotonic()

    def arguments(self) -> dict[str, object]:
        return {OFFSET.decode(): self._next}

    def take(self, tag: int, address: bytes, header: bytes, body: bytes) -> None:
        offset = offset_of(header)
        self._taken_at = time.monotonic()
        if offset < self._next:  # a chunk may begin before what was asked for
            if self._source is not None:
                self._source.ack(tag, False)
            return
        if offset > self._next:
            self.fail(PeerClosed(f"offset {self._next} of the source has not come, but {offset}"))
        if self.ended.done():
            return
        self._next = offset + 1
        super().take(tag, address, header, body)

    def doubtful(self) -> int:
        """None: the next try asks the target."""
        return 0

    async def _look(self) -> None:
        """Ends the run when all has arrived that the source had when it began, and nothing more comes."""
        while not self.ended.done():
            await asyncio.sleep(LOOK_S)
            quiet_s = time.monotonic() - self._taken_at
            if self._next <= self._end or self._on_way or self._waiting:
                if quiet_s > self.shovel.patience_s and not self._on_way:
                    self.fail(PeerClosed(f"the source has sent nothing for {self.shovel.patience_s:g} s"))
            elif quiet_s > QUIET_S:
                try:
                    await self.finish()
                except PeerClosed as error:
                    self.fail(error)
