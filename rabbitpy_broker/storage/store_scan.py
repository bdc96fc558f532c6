"""The files of a message store, read without an index. Nothing is changed: a start applies what is found, a check prints it.

Every file is read whole, and every sound record noted. The same msg_id in two files is one message: the later file's
record counts. Which messages are wanted only the indexes know, so `add_ref` is told of each reference; what nobody
refers to is garbage, and what is referred to and not there is `missed`.

Only what was synced can be referred to. So as long as nothing is missed, whatever is wrong with a file is what a crash
has left of records that nobody was promised; when something is missed, it is damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mypy_extensions import i64

from rabbitpy_broker.message import StoreEntry
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.store_file import (
    HEADER_SIZE,
    MERGING_SUFFIX,
    RECORD_HEAD,
    Hole,
    RecordScan,
    StoreFile,
    close_quietly,
    file_num_of,
    read_header,
)


class ScannedFile:
    """One file. `damaged` has the msg_ids of records of which only the head is sound."""

    def __init__(self, path: str, file: StoreFile, is_header_damaged: bool, size: i64) -> None:
        self.path = path
        self.file = file
        self.is_header_damaged = is_header_damaged
        self.size = size
        self.holes: list[Hole] = []
        self.damaged: list[bytes] = []
        self.records: i64 = 0
        self.duplicates: i64 = 0  # records of messages that an earlier file has as well

    def is_cut_off(self) -> bool:
        """True when it ends with something that is no record."""
        return self.file.total_bytes < self.size

    def is_sound(self) -> bool:
        return not (self.is_header_damaged or self.holes or self.is_cut_off())

    def places(self) -> list[Hole]:
        """Every place in the file that is wrong."""
        found = [Hole(0, HEADER_SIZE)] if self.is_header_damaged else []
        found.extend(self.holes)
        if self.is_cut_off():
            found.append(Hole(self.file.total_bytes, self.size - self.file.total_bytes))
        return found


class StoreScan:
    """One message store. `entries` and the files' `valid_bytes` are filled in by `read`, `ref_count` by `add_ref`."""

    def __init__(self, disk: Disk, path: str, entries: dict[bytes, StoreEntry]) -> None:
        self.path = path
        self.entries = entries
        self.files: dict[int, ScannedFile] = {}
        self.leftovers: list[str] = []  # of compactions that were cut short
        self.missed: dict[bytes, int] = {}  # msg_id: how often
        self._disk = disk

    def read(self, progress: Callable[[int], None] | None = None) -> None:
        """Reads every file; `progress` is told of bytes read, time and again. Raises OSError and StartError."""
        for name in self._disk.list_dir(self.path):
            file_num = file_num_of(name)
            if file_num >= 0:
                self._read_file(f"{self.path}/{name}", file_num, progress)
            elif name.endswith(MERGING_SUFFIX):
                self.leftovers.append(f"{self.path}/{name}")

    def _read_file(self, path: str, file_num: i64, progress: Callable[[int], None] | None) -> None:
        opened = self._disk.open(path)
        try:
            size: i64 = opened.size()
            file = read_header(opened.read_at(0, HEADER_SIZE), path, file_num)
            found = ScannedFile(path, StoreFile(file_num, file_num) if file is None else file, file is None, size)
            scan = RecordScan(opened, size)
            before: i64 = 0
            records = scan.read()
            while records:
                for record in records:
                    self._note(found, record.msg_id, record.offset, len(record.body))
                if progress is not None:
                    progress(int(scan.sound_end - before))
                before = scan.sound_end
                records = scan.read()
        finally:
            close_quietly(opened)
        found.file.total_bytes = scan.sound_end
        found.holes = scan.holes
        found.damaged = scan.damaged
        self.files[file_num] = found

    def _note(self, found: ScannedFile, msg_id: bytes, offset: i64, size: i64) -> None:
        file = found.file
        found.records += 1
        entry = self.entries.get(msg_id)
        if entry is None:
            entry = StoreEntry(msg_id, size)
            self.entries[msg_id] = entry
        else:
            earlier = self.files.get(entry.file_num, found)
            earlier.file.valid_bytes -= RECORD_HEAD + entry.size
            found.duplicates += 1
            entry.size = size
        entry.file_num = file.file_num
        entry.offset = offset
        file.valid_bytes += RECORD_HEAD + size

    def add_ref(self, msg_id: bytes) -> StoreEntry | None:
        """An index refers to this message; None when it is not there."""
        entry = self.entries.get(msg_id)
        if entry is not None:
            entry.ref_count += 1
        else:
            self.missed[msg_id] = self.missed.get(msg_id, 0) + 1
        return entry

    def references(self) -> dict[bytes, int]:
        """The number of references to each message, by msg_id; also to those that are missed."""
        found = {entry.msg_id: int(entry.ref_count) for entry in self.entries.values() if entry.ref_count > 0}
        found.update(self.missed)
        return found

    def is_referred_to(self, path: str) -> bool:
        """After all `add_ref`: whether the file at `path` has a message that somebody refers to."""
        files = {int(one.file_num) for one in self.entries.values() if one.ref_count > 0}
        return path in [self.files[file_num].path for file_num in files]

    def garbage(self) -> list[StoreEntry]:
        """After all `add_ref`: what nobody refers to."""
        return [entry for entry in self.entries.values() if entry.ref_count == 0]

    def findings(self) -> Iterator[tuple[str, str, str]]:
        """(file, kind, text) of all that was found.

        `damaged` is a fault. `torn tail`, `duplicate` and `leftover` are what a crash leaves and the next start clears
        away. One `count` for each file says what it holds.
        """
        for one in self.files.values():
            path = one.path
            if one.is_header_damaged and one.records > 0:
                yield path, "damaged", "the file's header"
            for hole in one.holes:
                yield path, "damaged", f"{hole.size} bytes at {hole.offset}"
            for msg_id in one.damaged:
                yield path, "damaged", f"message {msg_id.hex()}"
            if one.is_cut_off():
                end = one.file.total_bytes
                yield path, "torn tail", f"{one.size - end} bytes at {end}"
            if one.duplicates:
                yield path, "duplicate", f"{one.duplicates} messages are in an earlier file too"
            yield path, "count", f"{one.records} messages, {one.size} bytes"
        for path in self.leftovers:
            yield path, "leftover", "a compaction that was cut short"
