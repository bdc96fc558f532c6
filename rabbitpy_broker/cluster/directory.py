"""What a follower has of a vhost: a directory in the format of any vhost, as a broker leaves it that was killed.

Blocks of the log that were read together become a block of the journal, synced, and are then applied to a store that is only
followed (`storage/followed_store.py`): the scatter moves them to segments, so that directory, memory and take-over do not grow
with what was ever published. Definitions go into the node's own, and are on disk before the epoch behind them is applied. Who
takes over opens the vhost on this very store.

What must stay true: the directory has a prefix of what counts in the log, and nothing else: an owner writes to it what the log
has taken, so that the directory of one that was deposed needs no repair. Only deletions of queues are ahead of the log: one that
it may not have is known (`Definitions.is_deletion_open`): the directory is not used then. Where it stands in the log is told by
the journal's newest block (`content.mark`), or by the note (`storage/log_note.py`) if that is further: it is for entries that are
no blocks.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Final

import msgspec

from rabbitpy_broker.cluster.checkpoints import Restoring, Snapshot
from rabbitpy_broker.cluster.content import mark, unmarked, unpacked
from rabbitpy_broker.cluster.follower import Sink
from rabbitpy_broker.definitions import Change, Rows
from rabbitpy_broker.durable_queues import DurableQueues
from rabbitpy_broker.net.threads import DiskJobs
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.followed_store import FollowedStore
from rabbitpy_broker.storage.log_note import LogNote
from rabbitpy_broker.storage.restoring import SnapshotError, Unpacking, restored_definitions, switch
from rabbitpy_broker.storage.snapshot import SnapshotJob
from rabbitpy_broker.storage.vhost_store import VHostStore

QUEUES_AT_ONCE: Final = 200  # of a tick
DELETION_S: Final = 10.0  # that a snapshot waits for the log to have one
LOOK_S: Final = 0.05


class DeletionUnderWay(OSError):
    """What a queue had is gone here, and perhaps not from the log."""


class OwnDefinitions(ABC):
    """What this node has of the definitions of a vhost that it follows."""

    queues: DurableQueues

    @abstractmethod
    def read(self) -> None:
        """`queues` are what stands here. Raises BrokerError, OSError."""

    @abstractmethod
    def replace(self, rows: Rows) -> None:
        """These are all of them."""

    @abstractmethod
    def change(self, changes: list[Change]) -> None:
        """The owner's have changed so."""

    @abstractmethod
    def commit(self) -> set[int] | None:
        """Has all of that on disk, and in `queues`. Returns the ids of indexes and streams that have come or gone, perhaps; None:
        any of them. Raises BrokerError, OSError.
        """


class VHostDirectory(Sink):
    """`open` comes first; `threads` are the store's own. After an error it is only closed."""

    def __init__(self, store: FollowedStore, threads: DiskJobs, definitions: OwnDefinitions) -> None:
        self.position = 0
        self.term = 0
        self.store = store
        self.threads = threads
        self._definitions = definitions
        self._is_defined = True  # definitions are on disk, and the store has them
        self._safe = 0  # the number that is told by a block or by the note
        self._epochs: list[memoryview] = []  # that were read together, and become one block of the journal
        self._gathered = 0  # the number behind the last of them
        self._is_whole = False  # what is in memory is what was copied
        self._is_over = False

    async def open(self) -> None:
        """Finds out what there is. Raises StartError, OSError."""
        definitions = await asyncio.to_thread(restored_definitions, self.store.disk, self.store.path)
        if definitions is not None:
            self._definitions.replace(msgspec.msgpack.decode(definitions, type=Rows))
            self._definitions.commit()
            await asyncio.to_thread(switch, self.store.disk, self.store.path)
        self._definitions.read()
        found = self._definitions.queues
        self._safe = await asyncio.to_thread(self.store.recover_followed, found.makers, found.streams)
        self.store.retain(found.streams)
        self.term, self.position = unmarked(self._safe)
        self._is_whole = True

    async def apply(self, block: bytes, position: int, term: int) -> None:
        """Raises OSError, BrokerError."""
        definitions, epoch = unpacked(block)
        if definitions is not None:
            if self._epochs:
                await self.flush()
            self._is_defined = False
            if isinstance(definitions, list):
                self._definitions.change(definitions)
            else:
                self._definitions.replace(definitions)
        if epoch:
            self._epochs.append(epoch)
            self._gathered = mark(term, position)
        self.position, self.term = position, term

    async def flush(self) -> None:
        if not self._is_defined:
            touched = self._definitions.commit()
            found = self._definitions.queues
            self.store.define(found.makers, found.streams, touched)
            self.store.retain(found.streams)
            self._is_defined = True
        if self._epochs:
            self._is_whole = False
            epochs, self._epochs = self._epochs, []
            await self._copy(b"".join(epochs), self._gathered)
            self._is_whole = True
            self._safe = self._gathered

    async def _copy(self, epoch: bytes, number: int) -> None:
        copied: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(ok: bool) -> None:
            if not copied.done():
                copied.set_result(ok)

        copy = self.store.copy(epoch, number, done)
        if not await copied:
            raise OSError(self.store.trouble.epoch)
        for _ in self.store.applying(copy):
            await asyncio.sleep(0)

    async def pass_over(self, position: int, term: int) -> None:
        self.position, self.term = position, term

    async def sync(self) -> int:
        """Blocks are synced as they come; what is no block needs a note."""
        await self.flush()
        number = mark(self.term, self.position)
        if number > self._safe:
            await asyncio.to_thread(self.store.note(number).run)
            self._safe = number
        return self.position

    async def tick(self) -> None:
        """About once a second: what is done when nobody asks."""
        for number, _ in enumerate(self.store.ticking_followed(), 1):
            if number % QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)

    @property
    def is_handed_over(self) -> bool:
        """The vhost was opened on it."""
        return self._is_over

    def reached(self) -> tuple[int, int]:
        """Position and term before which it has everything, synced as soon as a snapshot is taken."""
        if not self._is_over:
            return self.position, self.term
        term, position = unmarked(self._synced())
        return position, term

    def synced_position(self) -> int:
        """Before it everything is on disk; also when the vhost has been opened on the store."""
        return unmarked(self._synced())[1]

    def _synced(self) -> int:
        return max(self._safe, int(self.store.journal.files.number))

    def copied_bytes(self) -> int:
        """Bytes of blocks that were written here since `open`."""
        return int(self.store.journal.synced_bytes)

    async def snapshot(self, rows: Callable[[], Rows]) -> DirectorySnapshot:
        """What is here now; `rows` gives the definitions, or raises DeletionUnderWay. Nothing is applied meanwhile, unless the
        vhost is open: then what it writes waits. Raises OSError.
        """
        until = time.monotonic() + DELETION_S
        while True:
            if not self._is_over:
                await self.sync()
            try:
                return await take_snapshot(self.store, self.threads, self._synced, self.store.notes.next_seq_ids, rows)
            except DeletionUnderWay:
                if time.monotonic() >= until:
                    raise
                await asyncio.sleep(LOOK_S)

    def hand_over(self) -> tuple[FollowedStore, DiskJobs]:
        """For the vhost that is opened on it; this directory is over."""
        self._is_over = True
        return self.store, self.threads

    async def close(self) -> None:
        """Lets go of the directory, unless it was handed over: as a clean stop does, if nothing has failed.

        Ensures: no thread writes to it any more.
        """
        if self._is_over:
            return
        self._is_over = True
        store = self.store
        store.stop_work()
        try:
            while store.is_busy() or store.persistent_messages.is_compacting():  # noqa: ASYNC110 -- rare, and soon over
                await asyncio.sleep(0.01)
            is_whole = self._is_whole and self._is_defined and not self._epochs
            if is_whole and store.journal.is_settled() and not store.trouble.epoch:
                note, terms = store.note(max(self._safe, mark(self.term, self.position))), store.stop_following()
                await asyncio.to_thread(note.run)
                await asyncio.to_thread(terms.run)
            else:
                store.abandon()
        except OSError as error:
            store.log.warning("followed vhost not closed cleanly", error=str(error))  # the next start finds what there is
        finally:
            self.threads.stop(0.0)


class DirectorySnapshot(Snapshot):
    """`remove` it in the end."""

    def __init__(self, job: SnapshotJob) -> None:
        self.term, self.position = unmarked(job.number)
        self._job = job

    async def parts(self) -> AsyncIterator[bytes]:
        parts = self._job.parts()
        while part := await asyncio.to_thread(next, parts, b""):
            yield part

    async def remove(self) -> None:
        """Raises OSError."""
        await asyncio.to_thread(self._job.remove)


async def take_snapshot(
    store: VHostStore,
    threads: DiskJobs,
    number: Callable[[], int],
    next_seq_ids: Callable[[], dict[int, int]],
    rows: Callable[[], Rows],
) -> DirectorySnapshot:
    """Of a store whose threads these are; what they would write meanwhile waits. `number` is asked when nothing is under way:
    of the last block that is there. Raises OSError.
    """
    try:
        await threads.hold()
        trouble = store.trouble
        if reason := trouble.epoch or trouble.scatter or trouble.streams:
            raise OSError(reason)  # what a failed write has left may be written again
        note = LogNote(number(), next_seq_ids())
        job = SnapshotJob(store.disk, store.path, note, store.journal.files.paths(), msgspec.msgpack.encode(rows()))
        linking = asyncio.ensure_future(asyncio.to_thread(job.run))
        try:
            await asyncio.shield(linking)
        except asyncio.CancelledError:
            await asyncio.wait([linking])
            raise
    finally:
        threads.release()
    return DirectorySnapshot(job)


class DirectoryRestoring(Restoring):
    """Has the directory at `path`, which nobody has open, become what a snapshot had when it is opened next."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    async def load(self, parts: AsyncIterable[bytes], position: int, term: int) -> None:
        unpacking = Unpacking(self._disk, self._path)
        try:
            await asyncio.to_thread(unpacking.begin)
            async for part in parts:
                await asyncio.to_thread(unpacking.feed, part)
            manifest = await asyncio.to_thread(unpacking.finish)
        finally:
            unpacking.give_up()
        if manifest.number != mark(term, position):
            raise SnapshotError("the snapshot is of another position")
