"""The store of one vhost, as the next start reads it. Nothing is changed: a start applies what is found, a check prints it.

    read           the recovery terms, if there are any, and the journal's files that they name; when these do not fit, or
                   without terms, all of the journal
    queue_by_terms, queue_by_scan    what there is of one queue (queue_scan.py), with terms and without
    stream         what there is of one stream (stream_scan.py)

The message store is read by itself (store_scan.py).

What must stay true: terms that were told to fit name nothing in the journal that is not there.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.finding import Finding
from rabbitpy_broker.storage.journal_scan import Replay, ReplayedQueue, replay
from rabbitpy_broker.storage.log_note import LogNote, read_note
from rabbitpy_broker.storage.queue_scan import QueueByTerms, QueueFiles, QueueScan, read_file
from rabbitpy_broker.storage.stream_scan import StreamFiles, StreamScan
from rabbitpy_broker.storage.terms import TERMS, Terms, read_terms


class VHostScan:
    """`terms` are there after a clean stop, as long as they fit; `faults` tells why they do not.

    `progress` is told of bytes that were read, time and again. Reading raises OSError.
    """

    def __init__(self, disk: Disk, path: str, entry_count: i64, progress: Callable[[int], None]) -> None:
        self.disk = disk
        self.path = path
        self.entry_count = entry_count
        self.terms_path = f"{path}/{TERMS}"
        self.journal_path = f"{path}/journal"
        self.terms: Terms | None = None
        self.terms_version = -1  # of what is there: 0 when it is not whole, -1 without terms
        self.journal = Replay()
        self.note = LogNote(0, {})
        self.faults: list[Finding] = []
        self.folders: dict[str, None] = {}  # of queues, those that the definitions do not know among them
        self.progress = progress

    def read(self) -> None:
        """See above."""
        self.folders = dict.fromkeys(self.disk.list_dir(f"{self.path}/queues"))
        self._read_terms()
        terms = self.terms
        if terms is not None:
            if terms.journal:
                self.journal = replay(self.disk, self.journal_path, terms.journal)
                self.progress(int(self.journal.bytes))
            if self._has_journal(terms, self.journal):
                return
        self.read_without_terms()

    def read_without_terms(self) -> None:
        """Reads all of the journal: the terms do not fit, or are not there."""
        self.terms = None
        self.note = read_note(self.disk, self.path)
        self.journal = replay(self.disk, self.journal_path)
        self.progress(int(self.journal.bytes))

    def _read_terms(self) -> None:
        if not self.disk.exists(self.terms_path):
            return
        data = read_file(self.disk, self.terms_path)
        self.progress(len(data))
        self.terms_version, self.terms = read_terms(data)
        if self.terms_version == 0:
            self.faults.append(Finding(self.terms_path, 0, "its checksum is wrong", True))

    def _has_journal(self, terms: Terms, found: Replay) -> bool:
        """Whether the journal files are what the terms say."""
        files = {int(one.num): one for one in found.files}
        fits = not found.damage  # which is in the journal without terms as well
        for num, end in terms.journal.items():
            file = files.get(num)
            if file is None:
                text = f"file number {num} is missing; the recovery terms name it"
                self.faults.append(Finding(self.journal_path, -1, text, True))
                fits = False
            elif file.end < end:
                text = f"it ends here, and had {end} bytes when the broker stopped"
                self.faults.append(Finding(file.path, file.end, text, True))
                fits = False
        return fits

    # -- queues -----------------------------------------------------------------------------------------------------------

    def queue_by_terms(self, queue_id: int) -> QueueByTerms:
        """After a clean stop."""
        assert self.terms is not None, "kept by: the caller"
        replayed = self.journal.queues.get(queue_id, _NOTHING)
        terms = self.terms.queue(queue_id)
        files = self._files(queue_id)
        return QueueByTerms(self.disk, queue_id, files, self.entry_count, terms, replayed, self.journal_path)

    def queue_by_scan(self, queue_id: int) -> QueueScan:
        """After a crash."""
        replayed = self.journal.queues.get(queue_id, _NOTHING)
        files = self._files(queue_id)
        found = QueueScan(self.disk, queue_id, files, self.entry_count, replayed, self.progress)
        found.top = max(found.top, self.note.next_seq_ids.get(queue_id, 0) - 1)
        return found

    def stream(self, queue_id: int) -> StreamScan:
        """With terms or without."""
        replayed = self.journal.queues.get(queue_id, _NOTHING)
        terms = self.terms.stream(queue_id) if self.terms is not None else None
        name = f"{queue_id:016x}"
        path = f"{self.path}/queues/{name}"
        files = StreamFiles(path, self.disk.list_dir(path) if name in self.folders else [])
        return StreamScan(self.disk, queue_id, files, replayed.chunks, terms)

    def _files(self, queue_id: int) -> QueueFiles:
        name = f"{queue_id:016x}"
        path = f"{self.path}/queues/{name}"
        return QueueFiles(path, self.disk.list_dir(path) if name in self.folders else [])


_NOTHING = ReplayedQueue()  # nobody writes to it
