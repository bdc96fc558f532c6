"""The store of one vhost: its journal, its two message stores and the indexes of its queues, started and stopped.

    <path>/journal/<slot>.journal               what was published and acked lately, of all queues
           queues/<queue_id>/<num>.segment      the rest of each queue's index, and its small messages
                             <num>.transient    paged transient messages; removed at each start
           msg_store_persistent/<num>.store     large messages
           msg_store_transient/                 paged large transient messages; removed at each start
           recovery_terms                       what is in everything above; only after a clean stop
           damaged/                             copies of files in which damage was found

A stop has the last epoch synced and writes `recovery_terms` (terms.py), nothing else: it does not scatter, so that it takes
the same few syncs for one queue and for fifty thousand. What the start after it does is vhost_recovery.py's.

What must stay true: no index is made for a queue_id that was used before; files of a queue_id that the definitions do
not have are removed; whenever a stop is cut short, the journal has all that was promised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from mypy_extensions import i64

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.storage.damage import DamageLog
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.journal import Journal
from rabbitpy_broker.storage.large_messages import LargeMessages
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.place import PlaceMaker
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.queue_scatter import QueueScatter
from rabbitpy_broker.storage.queue_segments import QueueSegments
from rabbitpy_broker.storage.scatter import Scatter
from rabbitpy_broker.storage.stream_log import StreamLog
from rabbitpy_broker.storage.stream_scatter import StreamScatter
from rabbitpy_broker.storage.stream_segments import StreamSegments, StreamSizes
from rabbitpy_broker.storage.sync import StoreHost, Threads
from rabbitpy_broker.storage.terms import TERMS_VERSION, TermsWrite
from rabbitpy_broker.storage.trouble import Trouble
from rabbitpy_broker.storage.vhost_recovery import RecoverableStore, RecoveredQueue, VHostRecovery


def vhost_folder(name: str) -> str:
    """The name of a vhost's folder: readable, unless that would be too long for a file system."""
    quoted = quote(name, safe="")
    if len(quoted) <= 100 and quoted not in (".", ".."):
        return quoted
    return "vhost-" + hashlib.sha256(name.encode("utf-8")).hexdigest()[:32]


class StoreSettings:
    """Sizes in bytes; the names are the configuration's where it has them."""

    def __init__(self) -> None:
        self.msg_store_file_size_limit: i64 = 16_777_216
        self.queue_index_embed_msgs_below: i64 = 4_096
        self.queue_index_max_journal_entries: i64 = 32_768
        self.followed_max_journal_entries: i64 = 262_144  # or the former, if that is more: of a queue that is only followed
        self.segment_entry_count: i64 = 16_384
        self.journal_file_size_limit: i64 = 33_554_432
        self.streams = StreamSizes()


class VHostStore(RecoverableStore):
    """`recover` comes first and once. `log` is a structlog logger. Without a host nothing is synced but at a tick."""

    def __init__(
        self,
        disk: Disk,
        threads: Threads,
        path: str,
        settings: StoreSettings,
        log: Any,
        host: StoreHost | None = None,
    ) -> None:
        self.disk = disk
        self.path = path
        self.settings = settings
        self.log = log
        self.clean = True
        self._host = host
        limit = settings.msg_store_file_size_limit
        try:
            for folder in ("journal", "queues"):
                disk.make_dir(f"{path}/{folder}")
            self.persistent_messages = MessageStore(
                disk, threads, f"{path}/msg_store_persistent", limit, False, log
            )
            self.transient_messages = MessageStore(disk, threads, f"{path}/msg_store_transient", limit, True, log)
        except OSError as error:
            raise StartError(f"cannot use {path}: {error}") from None
        self.damage = DamageLog(disk, path, log)
        self.large = LargeMessages(self.persistent_messages, self.transient_messages)
        folder = f"{path}/journal"
        self.trouble = Trouble(folder, host, log)
        self.journal = Journal(disk, threads, folder, self.persistent_messages, self.trouble, host)
        self.journal.files.size_limit = settings.journal_file_size_limit
        self.scatter = Scatter(disk, threads, self.journal, self.transient_messages, self.trouble, log)
        self.stream_scatter = StreamScatter(disk, threads, self.journal, self.trouble, settings.streams)
        self.streams = self.stream_scatter.streams
        self._threads = threads

    def new_index(self, queue_id: int, durable: bool, maker: PlaceMaker) -> QueueIndex:
        path = f"{self.path}/queues/{queue_id:016x}"
        entry_count = self.settings.segment_entry_count
        segments = QueueSegments(self.disk, path, queue_id, entry_count, self.large, self.damage, maker)
        max_entries = self.settings.queue_index_max_journal_entries
        index = QueueIndex(self.journal, segments, self.large, queue_id, durable, max_entries)
        QueueScatter(index, self.scatter)
        if durable:
            self.journal.users[queue_id] = index
        return index

    def new_stream(self, queue_id: int) -> StreamLog:
        """A new stream. Makes nothing on disk, but sees to it that no older broker uses what it will write: raises OSError."""
        if self._host is not None:
            self._host.stream_due()
        return self.empty_stream(queue_id)

    def empty_stream(self, queue_id: int) -> StreamLog:
        path = f"{self.path}/queues/{queue_id:016x}"
        segments = StreamSegments(self.disk, self._threads, path, queue_id, self.damage, self.settings.streams)
        log = StreamLog(self.journal, segments, self.stream_scatter, queue_id)
        self.streams[queue_id] = log
        self.journal.users[queue_id] = log
        return log

    def quorum_queue_due(self) -> None:
        """To be called before an index of a new quorum queue is made. Raises OSError."""
        if self._host is not None:
            self._host.quorum_queue_due()

    # -- start ----------------------------------------------------------------------------------------------------

    def forget(self, index: QueueIndex) -> None:
        """A queue that was asked for in `recover`, and of which nothing was found, is not to be."""
        self.journal.users.pop(index.queue_id, None)

    def recover(self, makers: dict[int, PlaceMaker], stream_ids: Iterable[int] = ()) -> dict[int, RecoveredQueue]:
        """Brings back the durable queues, by queue_id; each with the maker of its places. Streams come to `streams`.

        Raises StartError when the disk cannot be read.
        """
        recovery = VHostRecovery(self, self.settings.segment_entry_count, makers, stream_ids)
        found = recovery.run()
        self.clean = recovery.clean
        return found

    def tick(self) -> None:
        """About once a second."""
        for _ in self.ticking():
            pass

    def ticking(self) -> Iterator[None]:
        """The same, in steps that are small however many queues there are."""
        self.journal.tick()
        yield from self.journal.ticking_users()
        self.scatter.tick()
        self.stream_scatter.tick()
        self.persistent_messages.compact_if_due()
        self.transient_messages.compact_if_due()

    def is_busy(self) -> bool:
        """True while a thread writes for it."""
        return self.journal.is_writing() or self.scatter.is_busy() or self.stream_scatter.is_busy()

    # -- stop -----------------------------------------------------------------------------------------------------

    def stop_work(self) -> None:
        """From now on nothing is scattered or compacted; what is under way ends soon."""
        self.scatter.stop()
        self.stream_scatter.stop()
        self.persistent_messages.stop_compacting()
        self.transient_messages.stop_compacting()

    def push(self) -> bool:
        """After `stop_work`: has the last epoch written; True when nothing is under way any more. Call it until then."""
        self.journal.flush()
        return self.journal.is_settled() and not (
            self.persistent_messages.is_compacting() or self.transient_messages.is_compacting()
        )

    def stop(self, next_seq_ids: dict[QueueIndex, int]) -> TermsWrite:
        """After `push`: closes the store. Returns a job that is still to be done, in a thread. `next_seq_ids` has every durable
        queue's.
        """
        terms = {
            "version": TERMS_VERSION,
            "queues": {
                f"{index.queue_id:016x}": index.terms(next_seq_id) for index, next_seq_id in next_seq_ids.items()
            },
            "streams": {f"{queue_id:016x}": log.terms() for queue_id, log in self.streams.items()},
            "messages": self.persistent_messages.save_terms(),
            "journal_file": int(self.journal.files.num),
            "epoch": int(self.journal.epoch),
            "journal": self.journal.needed_files(),
        }
        self.journal.close()
        self.transient_messages.close()
        return TermsWrite(self.disk, self.path, terms)

    def abandon(self) -> None:
        """Closes files without a word: the next start recovers by scanning."""
        self.journal.close()
        self.persistent_messages.close()
        self.transient_messages.close()
