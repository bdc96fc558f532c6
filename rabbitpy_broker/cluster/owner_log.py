"""An owned vhost's epochs on their way to the log, and from there to its own journal.

When the log has an epoch, its waiters are told: a confirm leaves when a quorum of the engine has synced what it promises.
Behind that the journal writes the same to its own files, while the next epoch is on its way to the log. So the vhost's
directory is never ahead of the log, and a block or two behind it: an owner that was killed reads them there, as any follower.

What must stay true: an epoch is told only if the writer says that it is written; definitions are in a block before or with the
messages that need them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rabbitpy_broker.cluster.content import Rows, mark, packed
from rabbitpy_broker.cluster.log import ClusterError
from rabbitpy_broker.cluster.ownership import Deposed
from rabbitpy_broker.cluster.writer import Writer
from rabbitpy_broker.storage.journal import Journal
from rabbitpy_broker.storage.sync import EpochLog, EpochWaiter


class DefinitionsEpoch(EpochWaiter):
    """An epoch with definitions: `there` says whether the log has it. They are written again when it has not.

    Of its own: a class has one compiled base.
    """

    def __init__(self, log: OwnerLog) -> None:
        self.there: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._log = log

    def epoch_settled(self, epoch: int, ok: bool) -> None:
        if not ok:
            self._log.forget_definitions()
        if not self.there.done():
            self.there.set_result(ok)


class OwnerLog(EpochLog):
    """`definitions` gives all that the vhost has, `changes` a number that grows with each change of any definition.

    `lost` is called in the loop when the writer is deposed.
    """

    def __init__(
        self, writer: Writer, definitions: Callable[[], Rows], changes: Callable[[], int], lost: Callable[[], None]
    ) -> None:
        self.writer = writer
        self._definitions = definitions
        self._changes = changes
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._seen = -1  # of the changes: the first block of an owner has all definitions
        self._rows: Rows | None = None  # of the epoch that is being written
        self._last: Rows | None = None
        self._since = 0.0
        self._newest: DefinitionsEpoch | None = None
        self._appending: asyncio.Task[None] | None = None

    def waits_s(self) -> float:
        """How long the epoch that is on its way to the log has waited; 0: there is none."""
        since = self._since
        return time.monotonic() - since if since else 0.0

    def definitions_due(self, journal: Journal) -> None:
        """Definitions were committed: those of this vhost get into the log with the next epoch, if they have changed."""
        if self._changes() != self._seen:
            self._newest = DefinitionsEpoch(self)
            journal.wait(self._newest)

    async def settle(self) -> bool:
        """Returns when the definitions that were committed before are in the log, True, or when they may not be there, False."""
        newest = self._newest
        return newest is None or await asyncio.shield(newest.there)

    def forget_definitions(self) -> None:
        """The next block has all of them, if they have changed."""
        self._seen = -1

    def begin(self) -> None:
        changes = self._changes()
        if changes != self._seen:
            self._seen = changes
            rows = self._definitions()
            if rows != self._last:
                self._rows = self._last = rows

    def append(self, payload: list[bytes], done: Callable[[int, Exception | None], None]) -> None:
        rows, self._rows = self._rows, None
        if rows is None and not payload:
            self._loop.call_soon(done, 0, None)
            return
        self._since = time.monotonic()
        self._appending = self._loop.create_task(self._append(packed(rows, payload), done))
        self._appending.add_done_callback(_reported)

    async def _append(self, block: bytes, done: Callable[[int, Exception | None], None]) -> None:
        try:
            position = await self.writer.append(block)
        except BaseException as error:
            self._since = 0.0
            self._lost()  # before the journal hears of it
            done(0, error if isinstance(error, Exception) else Deposed())
            if not isinstance(error, ClusterError):
                raise
        else:
            self._since = 0.0
            done(mark(self.writer.term, position), None)


def _reported(task: asyncio.Task[None]) -> None:
    """Raises a fault of ours where the loop reports it."""
    if not task.cancelled():
        task.result()
