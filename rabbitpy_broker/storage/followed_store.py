"""The store of a vhost that another node owns: the owner's epochs are copied to its journal, and moved on to its segments.

    recover_followed   a start, as of any vhost
    define             the queues and streams that there are now
    copy               an epoch of the owner's journal, as the next block of this one; then
    applying           what it says is done to the indexes
    recover, own       this node is the owner from now on: the vhost is made of what is in memory, and nothing is read

It is a recovery that never ends. Journal, indexes and scatter are those of any vhost, so a kill leaves what a kill leaves, and
directory and memory are bounded as the owner's are. But nothing is decided here, except what retention lets go of streams: what
a place means is said by the owner's epochs alone; no epoch begins by itself, and a block has nothing of this node's own but
what the journal is about to forget.

What must stay true: an epoch is applied when its block is synced, and before the next one is copied; blocks have the owner's
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from librt.strings import BytesWriter, read_i32_be
from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.followed_queue import FollowedQueue
from rabbitpy_broker.storage.journal import JournalUser
from rabbitpy_broker.storage.log_note import LogNote, LogNotes, NoteWrite, read_note
from rabbitpy_broker.storage.place import PlaceMaker
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.records import PUBLISH, REQUEUED, STREAM, FormatError, read_entries
from rabbitpy_broker.storage.stream_chunk import StreamChunk
from rabbitpy_broker.storage.stream_log import StreamSettings
from rabbitpy_broker.storage.sync import EpochLog, StoreHost, Threads
from rabbitpy_broker.storage.terms import TermsWrite
from rabbitpy_broker.storage.vhost_recovery import RecoveredQueue
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore

SLICE: Final[i64] = 1_000  # entries
LARGE_EPOCH: Final = 65_536  # bytes from which on it is not copied once more


class CopiedEpoch(JournalUser):
    """One epoch of the owner's journal on its way to this one: `done` is told whether it is there."""

    def __init__(self, payload: bytes, done: Callable[[bool], None]) -> None:
        super().__init__(0)
        self.payload = payload
        self.file_num: i64 = 0
        self.base: i64 = 0  # where in the file the payload begins
        self._at: i64 = 0
        self._done = done

    def write_section(self, out: BytesWriter) -> i64:
        self.dirty = False
        self._at = len(out)  # of large ones, too: it is the last user of its block, and nobody else has parts
        if len(self.payload) >= LARGE_EPOCH:
            self.has_parts = True
        else:
            out.write(self.payload)
        return 0

    def section_parts(self) -> list[bytes]:
        self.has_parts = False
        return [self.payload]

    def epoch_settled(self, ok: bool, file_num: i64, payload_offset: i64) -> None:
        self.file_num = file_num
        self.base = payload_offset + self._at
        self._done(ok)


class FollowedStore(VHostStore):
    """`host` is heard when the vhost is owned, but for formats of the data directory. After an error it is abandoned."""

    def __init__(
        self, disk: Disk, threads: Threads, path: str, settings: StoreSettings, log: Any, host: StoreHost
    ) -> None:
        super().__init__(disk, threads, path, settings, log, None)
        self._host = host
        self.notes = LogNotes(disk, path, self.next_seq_ids)
        self.journal.files.notes = self.notes
        self.noted = LogNote(0, {})
        self._followed: dict[int, FollowedQueue] = {}
        self._is_following = False

    # -- following ----------------------------------------------------------------------------------------------------

    def recover_followed(self, makers: dict[int, PlaceMaker], stream_ids: Iterable[int]) -> int:
        """To be called in a thread. Returns the number of the last of the owner's blocks that is here.

        Raises StartError, OSError.
        """
        self.noted = read_note(self.disk, self.path)
        for queue_id, found in VHostStore.recover(self, makers, stream_ids).items():
            self._followed[queue_id] = self._followed_queue(found)
        self._is_following = True
        self.journal.files.number = max(self.journal.files.number, self.noted.number)
        return int(self.journal.files.number)

    def define(self, makers: dict[int, PlaceMaker], stream_ids: Iterable[int]) -> None:
        """These are the queues and streams of the vhost from now on. Raises OSError."""
        for queue_id in list(self._followed):
            if queue_id not in makers:
                self._followed.pop(queue_id).delete()
        for queue_id, maker in makers.items():
            if queue_id not in self._followed:
                self._followed[queue_id] = self._followed_queue(RecoveredQueue(self.new_index(queue_id, True, maker)))
        streams = set(stream_ids)
        for queue_id in list(self.streams):
            if queue_id not in streams:
                self.streams[queue_id].delete()
        for queue_id in streams:
            if queue_id not in self.streams:
                self.new_stream(queue_id)

    def _followed_queue(self, found: RecoveredQueue) -> FollowedQueue:
        return FollowedQueue(found, self.settings.followed_max_journal_entries)

    def retain(self, streams: Mapping[int, StreamSettings]) -> None:
        """What retention lets go of each stream: here as at the owner's, each by its own segments."""
        for queue_id, settings in streams.items():
            self.streams[queue_id].settings = settings

    def copy(self, payload: bytes, number: int, done: Callable[[bool], None]) -> CopiedEpoch:
        """Has the epoch written to the journal; `done` is told when that is synced, or not. The trouble tells why."""
        epoch = CopiedEpoch(payload, done)
        self.journal.copy(epoch, number)
        return epoch

    def applying(self, epoch: CopiedEpoch) -> Iterator[None]:
        """Does what a copied epoch says, in slices. Raises OSError, FormatError."""
        data = epoch.payload
        pos: i64 = 0
        end: i64 = len(data)
        left = SLICE
        while pos < end:
            if end - pos < 12:
                raise FormatError("a section that is cut off")
            queue_id = int.from_bytes(data[pos : pos + 8], "big")
            last = pos + 12 + (i64(read_i32_be(data, pos + 8)) & 0xFFFFFFFF)
            queue = self._followed.get(queue_id)
            stream = self.streams.get(queue_id)
            for entry in read_entries(data, pos + 12, last):
                if queue is not None:
                    if entry.kind == PUBLISH:
                        queue.publish(entry, epoch.file_num, epoch.base, data)
                    elif entry.kind == REQUEUED:
                        queue.requeued(entry, epoch.file_num)
                    else:
                        queue.ack(entry.seq_id, entry.count, epoch.file_num)
                elif stream is not None and entry.kind == STREAM:
                    bits_end = entry.data + entry.filter_size
                    bits, body = data[entry.data : bits_end], data[bits_end : bits_end + entry.size]
                    chunk = StreamChunk(body, entry.seq_id, entry.count, entry.expiry, bits)
                    chunk.file_num = epoch.file_num
                    stream.copied(chunk)
                left -= 1
                if left == 0:
                    left = SLICE
                    yield
            pos = last

    def ticking_followed(self) -> Iterator[None]:
        """What is done about once a second: queues that idle leave the journal, what has failed is tried again."""
        yield from self.journal.ticking_users()
        for queue in list(self._followed.values()):
            if not queue.index.active:
                queue.idle()
        self.scatter.tick()
        self.stream_scatter.tick()
        self.persistent_messages.compact_if_due()

    def next_seq_ids(self) -> dict[int, int]:
        """By queue_id: behind every seq_id that was ever used."""
        return {queue_id: int(queue.next_seq_id) for queue_id, queue in self._followed.items()}

    def note(self, number: int) -> NoteWrite:
        """A job that notes that the log is here up to this number, all of which is synced."""
        return NoteWrite(self.disk, self.path, LogNote(number, self.notes.next_seq_ids()))

    # -- the end of following -----------------------------------------------------------------------------------------

    def recover(self, makers: dict[int, PlaceMaker], stream_ids: Iterable[int] = ()) -> dict[int, RecoveredQueue]:
        """What is followed, for whoever owns it from now on. Nothing is read."""
        self.define(makers, stream_ids)
        self._is_following = False
        found = {queue_id: queue.hand_over() for queue_id, queue in self._followed.items()}
        self._followed = {}
        self.clean = False
        return found

    def own(self, log: EpochLog, next_seq_ids: Callable[[], dict[int, int]]) -> None:
        """After `recover`: epochs begin here from now on, and are written to the log first."""
        self.notes.next_seq_ids = next_seq_ids
        self.journal.log = log
        self.journal.host = self.trouble.host = self._host
        self.journal.begin_if_due()

    def stop_following(self) -> TermsWrite:
        """After `push`: closes it as a clean stop does; the job is still to be done, in a thread."""
        next_seq_ids: dict[QueueIndex, int] = {}
        for queue in self._followed.values():
            next_seq_ids[queue.index] = int(queue.next_seq_id)
        return self.stop(next_seq_ids)
