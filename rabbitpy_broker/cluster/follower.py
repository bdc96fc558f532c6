"""Whoever follows a replicated vhost: reads its log, passes over what does not count, and applies the rest to a sink.

The sink is what the follower has of the vhost: a directory in the format of any vhost (`directory.py`), or something in
memory for tests. A node that takes over does so as a follower that reads up to its own fence.

What must stay true: a sink gets each block that counts once and in order, or, after a crash, again from where it was synced;
its position is never in the middle of a block that has parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from rabbitpy_broker.cluster.blocks import Assembly, Ended, NewerBlock
from rabbitpy_broker.cluster.compression import Compression, DamagedBlock
from rabbitpy_broker.cluster.log import Counting, Entry, ReplicatedLog
from rabbitpy_broker.cluster.ownership import Deposed, Owner, OwnerRecord
from rabbitpy_broker.cluster.takeover import Pause, append_fence, short_pause
from rabbitpy_broker.cluster.writer import Writer


class Sink(ABC):
    """What a follower has. `position`: everything before it was applied; `term`: the highest that counts there."""

    position: int
    term: int

    @abstractmethod
    async def apply(self, block: bytes, position: int, term: int) -> None:
        """Applies the next block, perhaps not before `flush`, and is then at `position`, of `term`. Raises OSError."""

    @abstractmethod
    async def flush(self) -> None:
        """What was applied so far is there; called when nothing more is at hand. Raises OSError."""

    @abstractmethod
    async def pass_over(self, position: int, term: int) -> None:
        """Is at `position` from now on, of `term`: what stands before it and was not applied is no block. Raises OSError."""

    @abstractmethod
    async def sync(self) -> int:
        """Has everything before the position that it returns on disk. Raises OSError."""


class Follower:
    """Reads from where the sink is. After an error of the sink it is not used any more."""

    def __init__(self, log: ReplicatedLog, sink: Sink) -> None:
        self.sink = sink
        self.read_bytes = 0  # of the last read
        self._log = log
        self._compression = Compression()
        self.begin()

    def begin(self) -> None:
        """From where the sink is now; also when it has loaded a checkpoint."""
        self._reader = self._log.reader(self.sink.position)
        self._counting = Counting(self.sink.term)
        self._assembly = Assembly()

    @property
    def position(self) -> int:
        """Of the entry that it reads next; the sink may be behind, in front of a block of which a part is missing."""
        return self._reader.position

    @property
    def term(self) -> int:
        return self._counting.term

    @property
    def given_to(self) -> str:
        """The node that the owner hands the vhost over to, if that is the last that is in the log; or ""."""
        return self._assembly.given_to

    async def read(self, wait: float = 0.0) -> bool:
        """Applies what is there, some MiB at most, or waits up to so many seconds for something; False: there was nothing.

        Raises `Trimmed` (a checkpoint is needed: checkpoints.py), `Unavailable`, `NoSuchLog`, `NewerBlock`, `Ended`,
        `DamagedBlock`, OSError.
        """
        entries = await self._reader.next(wait)
        self.read_bytes = sum(len(entry.block) for entry in entries)
        try:
            for entry in entries:
                await self._take(entry)
        except (Ended, NewerBlock, DamagedBlock):  # what stands before it counts
            await self.sink.flush()
            raise
        await self.sink.flush()
        return bool(entries)

    async def read_to(self, end: int) -> None:
        """Applies everything before `end`, which is there already. It may be somewhat more. Raises as `read`."""
        while self.position < end:
            if not await self.read():
                await self.read(1.0)

    async def _take(self, entry: Entry) -> None:
        behind = entry.position + 1
        block = self._assembly.add(entry) if self._counting.counts(entry) else None
        if block is not None:
            if self._assembly.is_compressed:
                block = await self._decompressed(block, entry.position)
            await self.sink.apply(block, behind, self.term)
        elif not self._assembly.is_partial:
            await self.sink.pass_over(behind, self.term)

    async def _decompressed(self, frame: bytes, position: int) -> bytes:
        try:
            return await self._compression.decompressed(frame)
        except DamagedBlock as error:
            raise DamagedBlock(f"the block that ends at position {position} of its log cannot be decompressed: {error}") from None

    async def close(self) -> None:
        await self._reader.close()


async def take_over(
    log: ReplicatedLog,
    record: OwnerRecord,
    node: str,
    follower: Follower,
    after: Owner,
    *,
    max_block: int,
    pause: Pause = short_pause,
) -> Writer:
    """Makes the node the owner, behind `after`: the sink has then all that counts, and the writer stands behind the fence.

    Raises `Deposed` when another node was faster, `Trimmed` (catch up, and take over again), `Unavailable`, `NoSuchLog`, OSError.
    """
    term, fence = await append_fence(log, record, node, after, pause)
    await follower.read_to(fence + 1)
    if follower.term != term:
        raise Deposed
    # Behind the fence there may be blocks of the former owner, which the follower has passed over.
    return Writer(log, record, node, term=term, position=follower.position, max_block=max_block, pause=pause)
