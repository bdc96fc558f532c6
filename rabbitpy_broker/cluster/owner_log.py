"""An owned vhost's epochs on their way to the log, and from there to its own journal.

When the log has an epoch, its waiters are told: a confirm leaves when a quorum of the engine has synced what it promises.
Behind that the journal writes the same to its own files, while the next epoch is on its way to the log. So the vhost's
directory is never ahead of the log, and a block or two behind it: an owner that was killed reads them there, as any follower.

Definitions go to the log with the next epoch: all of them with an owner's first one, then what has changed; all of them for as
long as there is a replica that reads no changes. Large blocks are compressed.

What must stay true: an epoch is told only if the writer says that it is written; definitions are in a block before or with the
messages that need them; a block has all that has changed since the one before. An append that fails is the last one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.compression import Compression
from rabbitpy_broker.cluster.content import mark, packed
from rabbitpy_broker.cluster.log import ClusterError
from rabbitpy_broker.cluster.ownership import Deposed
from rabbitpy_broker.cluster.writer import Writer
from rabbitpy_broker.definitions import Change, Rows
from rabbitpy_broker.storage.journal import Journal
from rabbitpy_broker.storage.sync import EpochLog, EpochWaiter

Done = Callable[[int, Exception | None], None]


class AwaitedEpoch(EpochWaiter):
    """`there` says whether the epoch is safe. A class of its own: one that is compiled may have one such base only."""

    def __init__(self) -> None:
        self.there: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def epoch_settled(self, epoch: int, ok: bool) -> None:
        if not self.there.done():
            self.there.set_result(ok)


class OwnerLog(EpochLog):
    """`definitions` gives all that the vhost has, `changes` what was changed since it was last asked: in what order the two
    are asked is known here. Both have on disk what they give.

    `reads_changes` says whether all replicas can read what has changed; if not they get all definitions instead. `compresses`
    says whether large blocks are compressed.

    `settled` is called when the log has all changes that were given, `lost` when the writer is deposed; both in the loop.
    """

    def __init__(
        self,
        writer: Writer,
        definitions: Callable[[], Rows],
        changes: Callable[[], list[Change]],
        settled: Callable[[], None],
        lost: Callable[[], None],
        reads_changes: Callable[[], bool],
        compresses: Callable[[], bool],
    ) -> None:
        self.writer = writer
        self._definitions = definitions
        self._changes = changes
        self._settled = settled
        self._lost = lost
        self._reads_changes = reads_changes
        self._compresses = compresses
        self._compression = Compression()
        self._loop = asyncio.get_running_loop()
        self._is_first = True
        self._due: list[Change] = []
        self._building: Rows | list[Change] | None = None  # of the epoch that is being built
        self._since = 0.0
        self._newest: AwaitedEpoch | None = None
        self._taken: asyncio.Future[bool] = self._loop.create_future()  # whether the log has what an epoch took last
        self._taken.set_result(True)
        self._appending: asyncio.Task[None] | None = None

    def waits_s(self) -> float:
        """How long the epoch that is on its way to the log has waited; 0: there is none."""
        since = self._since
        return time.monotonic() - since if since else 0.0

    def definitions_due(self, journal: Journal) -> None:
        """Definitions were committed: what has changed in those of this vhost gets into the log with the next epoch."""
        self._due += self._changes()
        if self._due or self._is_first:
            self._newest = AwaitedEpoch()
            journal.wait(self._newest)

    async def settle(self) -> bool:
        """Returns when the definitions that were committed before are in the log, True, or when they may not be there, False."""
        newest, taken = self._newest, self._taken  # an epoch may take what is changed before its commit is told
        return await asyncio.shield(taken) and (newest is None or await asyncio.shield(newest.there))

    def begin(self) -> None:
        self._due += self._changes()
        if not self._due and not self._is_first:
            return
        is_whole = self._is_first or not self._reads_changes()
        self._building = self._definitions() if is_whole else self._due
        self._is_first = False
        self._due = []
        self._taken = self._loop.create_future()

    def append(self, payload: list[bytes], done: Done) -> None:
        definitions, self._building = self._building, None
        if definitions is None and not payload:
            self._loop.call_soon(done, 0, None)
            return
        self._since = time.monotonic()
        last = blocks.CHANGES if isinstance(definitions, list) else blocks.LAST
        if definitions is not None:
            done = partial(_told, self._taken, done)
        self._appending = self._loop.create_task(self._append(packed(definitions, payload), last, done))
        self._appending.add_done_callback(_reported)

    async def _append(self, block: bytes, last: int, done: Done) -> None:
        try:
            frame = await self._compression.compressed(block) if self._compresses() else None
            if frame is not None:
                block, last = frame, blocks.COMPRESSED
            position = await self.writer.append(block, last)
        except BaseException as error:
            self._since = 0.0
            self.writer.is_deposed = True  # whatever it was: what comes behind this epoch stands on it
            self._lost()  # before the journal hears of it
            done(0, error if isinstance(error, Exception) else Deposed())
            if not isinstance(error, ClusterError):
                raise
        else:
            self._since = 0.0
            if not self._due and self._building is None:
                self._settled()
            done(mark(self.writer.term, position), None)


def _told(taken: asyncio.Future[bool], done: Done, number: int, error: Exception | None) -> None:
    """The log has what an epoch took, or may not."""
    taken.set_result(error is None)
    done(number, error)


def _reported(task: asyncio.Task[None]) -> None:
    """Raises a fault of ours where the loop reports it."""
    if not task.cancelled():
        task.result()
