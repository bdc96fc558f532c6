"""What a replicated vhost notes beside its journal, in the file `log_position`: where it is in its log, which seq_ids were used.

The journal's newest block tells both better, but its files are written over. A seq_id must never be used twice, not even by
different owners: a follower may have acks of the first in its journal, or in a segment, when the second comes. So each node
knows for each queue a seq_id behind the highest that was ever told, whatever became of its message.

    file   a MessagePack map and the CRC of it in the last 4 bytes
           number  of the journal's block behind which the log is noted       next   queue_id -> the next seq_id

What must stay true: everything up to `number` is in the journal's files and the segments, synced; the file is replaced as a
whole, before a file of the journal is written over or removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.records import is_sealed, sealed
from rabbitpy_broker.storage.sync import Notes

NOTE: Final = "log_position"


class LogNote(NamedTuple):
    """`next_seq_ids` by queue_id; a queue that is missing has none noted."""

    number: int
    next_seq_ids: dict[int, int]


def read_note(disk: Disk, folder: str) -> LogNote:
    """The vhost's note; one of nothing where there is none. Raises OSError."""
    path = f"{folder}/{NOTE}"
    if not disk.exists(path):
        return LogNote(0, {})
    file = disk.open(path)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    return unpacked_note(data)


def packed_note(note: LogNote) -> bytes:
    """What stands in the file."""
    return sealed(msgspec.msgpack.encode((note.number, note.next_seq_ids)))


def unpacked_note(data: bytes) -> LogNote:
    """What `packed_note` was given; a note of nothing where the file is spoilt."""
    if not is_sealed(data):
        return LogNote(0, {})
    number, next_seq_ids = msgspec.msgpack.decode(data[:-4], type=tuple[int, dict[int, int]])
    return LogNote(number, next_seq_ids)


def write_note(disk: Disk, folder: str, note: LogNote) -> None:
    """Returns when it is on disk. Raises OSError."""
    new = f"{folder}/{NOTE}.new"
    disk.remove(new)
    file = disk.open(new, create=True)
    try:
        file.write_at(0, packed_note(note))
        file.sync()
    finally:
        file.close()
    disk.rename(new, f"{folder}/{NOTE}")
    disk.sync_dir(folder)


class LogNotes(Notes):
    """Writes the notes of one vhost. `next_seq_ids` asks whoever knows them: the followed store, or the vhost that is open."""

    def __init__(self, disk: Disk, folder: str, next_seq_ids: Callable[[], dict[int, int]]) -> None:
        self.next_seq_ids = next_seq_ids
        self._disk = disk
        self._folder = folder

    def take(self, number: int) -> Callable[[], None]:
        write = NoteWrite(self._disk, self._folder, LogNote(number, self.next_seq_ids()))
        return write.run


class NoteWrite:
    """The job of a thread."""

    def __init__(self, disk: Disk, folder: str, note: LogNote) -> None:
        self.disk = disk
        self.folder = folder
        self.note = note

    def run(self) -> None:
        """Raises OSError."""
        write_note(self.disk, self.folder, self.note)
