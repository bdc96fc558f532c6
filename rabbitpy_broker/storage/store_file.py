"""The files of a message store: their bytes, and how they are read back. All integers are big-endian.

A store file is a header and then records back to back, in the order in which they were written:

  header   0 4 "RPSF"   4 4 format version (1)   8 8 file_num   16 8 position   24 4 flags (1: transient)
           28 4 CRC-32C of 0..28
  record   0 4 "RPSR"   4 4 size of message   8 16 msg_id   24 4 CRC-32C of message   28 4 CRC-32C of 0..28
           32 message, as in records.py

`position` is where the file stands among the others: its file_num, or, for the outcome of a compaction, the position of
the first file that went into it. Messages that came one after the other so stay in files that stand next to each other.

What must stay true: a record that `RecordScan` gives out is as it was written, whatever happened to the file around it.
Behind a record whose head is damaged the scan looks for the next head that is sealed; a record with a sound head and
damaged content is skipped whole, and its msg_id is named.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from rabbitpy_broker.errors import BrokerError, StartError
from rabbitpy_broker.message import Message
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.records import (
    FormatError,
    checksum,
    is_sealed,
    read_message,
    sealed,
    write_message,
)

FORMAT_VERSION: Final[i64] = 1
TRANSIENT: Final[i64] = 1
HEADER_SIZE: Final[i64] = 32
RECORD_HEAD: Final[i64] = 32
SUFFIX: Final = ".store"
MERGING_SUFFIX: Final = ".merging"  # the outcome of a compaction until it is complete and synced
DAMAGED_FOLDER: Final = "damaged"

# What is read, written or gone through in one go: a thread that compacts and the loop beside it take turns, and each
# turn is over in a few milliseconds.
WINDOW_BYTES: Final[i64] = 1 << 20
WINDOW_RECORDS: Final[i64] = 2_000

_FILE_MAGIC: Final = b"RPSF"
_RECORD_MAGIC: Final = b"RPSR"


class DamagedError(BrokerError):
    """A record of the message store is not as it was written; this message is lost."""

    def __init__(self, path: str, offset: int, msg_id: bytes, text: str) -> None:
        super().__init__(f"{path} at {offset}: {text} (msg_id {msg_id.hex()})")
        self.path = path
        self.offset = offset
        self.msg_id = msg_id


class StoreFile:
    """One file. The bytes are those of whole records; `total_bytes` is with the header."""

    def __init__(self, file_num: i64, position: i64) -> None:
        self.file_num = file_num
        self.position = position
        self.total_bytes: i64 = HEADER_SIZE  # nothing behind is trusted, should the file be longer
        self.valid_bytes: i64 = 0  # of messages that somebody still refers to
        self.unsettled_bytes: i64 = 0  # of removed messages to which an index may still refer after a crash
        self.is_current = False  # flushes append to it
        self.is_busy = False  # a compaction reads or writes it
        self.is_stuck = False  # a compaction could not take everything out

    def garbage_bytes(self) -> i64:
        return self.total_bytes - HEADER_SIZE - self.valid_bytes


def file_path(folder: str, file_num: i64) -> str:
    return f"{folder}/{file_num:08x}{SUFFIX}"


def file_num_of(name: str) -> i64:
    """The number in a store file's name, -1 when the name is not one of a store file."""
    digits = name.removesuffix(SUFFIX)
    if len(digits) < 8 or digits == name or digits.strip("0123456789abcdef"):
        return -1
    return int(digits, 16)


def file_header(file: StoreFile, transient: bool) -> bytes:
    out = BytesWriter()
    out.write(_FILE_MAGIC)
    write_i32_be(out, i32(FORMAT_VERSION))
    write_i64_be(out, file.file_num)
    write_i64_be(out, file.position)
    write_i32_be(out, i32(TRANSIENT) if transient else i32(0))
    return sealed(out.getvalue())


def read_header(header: bytes, path: str, file_num: i64) -> StoreFile | None:
    """The file that this header begins, None for a damaged one. Raises StartError for a format of the future."""
    if len(header) < HEADER_SIZE or not header.startswith(_FILE_MAGIC) or not is_sealed(header):
        return None
    version = int.from_bytes(header[4:8], "big")
    if version != FORMAT_VERSION:
        raise StartError(f"{path} has format version {version}, this broker knows version {FORMAT_VERSION}")
    if int.from_bytes(header[8:16], "big") != file_num:
        return None
    return StoreFile(file_num, int.from_bytes(header[16:24], "big"))


def encode_record(msg_id: bytes, message: Message) -> tuple[bytes, bytes]:
    """Head and body of a record."""
    out = BytesWriter()
    write_message(out, message)
    body = out.getvalue()
    head = _RECORD_MAGIC + len(body).to_bytes(4, "big") + msg_id + checksum(body).to_bytes(4, "big")
    return sealed(head), body


def decode_record(data: bytes, path: str, offset: i64, msg_id: bytes) -> Message:
    """The message in a whole record. Raises DamagedError when it is not the sound record of this msg_id."""
    size = _body_size(data, 0)
    if size < 0:
        raise DamagedError(path, offset, msg_id, "the head of a record is damaged")
    if data[8:24] != msg_id:
        raise DamagedError(path, offset, msg_id, "the record of another message")
    if len(data) != RECORD_HEAD + size:
        raise DamagedError(path, offset, msg_id, "a record of another size, or the end of the file")
    if checksum(data[RECORD_HEAD:]) != int.from_bytes(data[24:28], "big"):
        raise DamagedError(path, offset, msg_id, "a message whose checksum is wrong")
    try:
        return read_message(data, RECORD_HEAD, RECORD_HEAD + size)
    except FormatError as error:
        raise DamagedError(path, offset, msg_id, str(error)) from error


def _body_size(data: bytes, pos: i64) -> i64:
    """The size that the record head at `pos` gives, -1 when there is no sound head."""
    if len(data) - pos < RECORD_HEAD or data[pos : pos + 4] != _RECORD_MAGIC:
        return -1
    return int.from_bytes(data[pos + 4 : pos + 8], "big") if is_sealed(data[pos : pos + RECORD_HEAD]) else -1


class Record:
    """A sound record as a scan found it."""

    def __init__(self, msg_id: bytes, offset: i64, head: bytes, body: bytes) -> None:
        self.msg_id = msg_id
        self.offset = offset
        self.head = head
        self.body = body

    def size(self) -> i64:
        return RECORD_HEAD + len(self.body)


class Hole:
    """Bytes in the middle of a file that are no sound records."""

    def __init__(self, offset: i64, size: i64) -> None:
        self.offset = offset
        self.size = size


class RecordScan:
    """Goes through the records of a file, a window at a time.

    `holes` are those found so far. When all is read, what lies between `sound_end` and `end` is the torn tail.
    """

    def __init__(self, file: DiskFile, end: i64) -> None:
        self._file = file
        self._at: i64 = HEADER_SIZE
        self._bad_from: i64 = -1
        self.end = end
        self.sound_end: i64 = HEADER_SIZE
        self.holes: list[Hole] = []
        self.damaged: list[bytes] = []  # the msg_ids of records in holes of which only the head is sound
        self._damaged_at_end: list[bytes] = []  # the same since the last sound record

    def read(self) -> list[Record]:
        """The next records, about a window of them and at least one; none at the end of the file."""
        found: list[Record] = []
        while not found and self._at < self.end:
            self._walk(found)
        return found

    def _walk(self, found: list[Record]) -> None:
        data = self._read(min(WINDOW_BYTES, self.end - self._at))
        base = self._at
        pos: i64 = 0
        while pos < len(data) and len(found) < WINDOW_RECORDS:
            is_last = base + len(data) >= self.end
            if len(data) - pos < RECORD_HEAD and not is_last:
                break
            stop = pos + RECORD_HEAD + _body_size(data, pos)
            if stop < pos + RECORD_HEAD or base + stop > self.end:
                self._bad(base + pos)
                pos = self._next_magic(data, pos + 1, is_last)
                continue
            if stop > len(data):
                if pos > 0:
                    break
                data = self._read(stop)  # one record that is larger than a window
                continue
            body = data[pos + RECORD_HEAD : stop]
            msg_id = data[pos + 8 : pos + 24]
            if checksum(body) == int.from_bytes(data[pos + 24 : pos + 28], "big"):
                self._good(base + pos, base + stop)
                found.append(Record(msg_id, base + pos, data[pos : pos + RECORD_HEAD], body))
            else:
                self._bad(base + pos)
                self._damaged_at_end.append(msg_id)
            pos = stop
        self._at = base + pos

    def _read(self, size: i64) -> bytes:
        data = self._file.read_at(self._at, size)
        if len(data) < size:
            self.end = self._at + len(data)
        return data

    def _next_magic(self, data: bytes, pos: i64, is_last: bool) -> i64:
        found: i64 = data.find(_RECORD_MAGIC, pos)
        if found >= 0:
            return found
        return i64(len(data)) if is_last else max(pos, i64(len(data)) - 3)

    def _bad(self, offset: i64) -> None:
        if self._bad_from < 0:
            self._bad_from = offset

    def _good(self, offset: i64, end: i64) -> None:
        if self._bad_from >= 0:
            self.holes.append(Hole(self._bad_from, offset - self._bad_from))
            self._bad_from = -1
            self.damaged.extend(self._damaged_at_end)
            self._damaged_at_end = []
        self.sound_end = end


class OpenFiles:
    """The files that were read last, open, `at_most` of them. Belongs to the loop."""

    def __init__(self, disk: Disk, folder: str, at_most: i64) -> None:
        self._disk = disk
        self._folder = folder
        self._at_most = at_most
        self._open: dict[int, DiskFile] = {}  # the one read last is the last

    def read_at(self, file_num: i64, offset: i64, size: i64) -> bytes:
        file = self._open.pop(file_num, None)
        if file is None:
            while len(self._open) >= self._at_most:
                self.close(next(iter(self._open)))
            file = self._disk.open(file_path(self._folder, file_num))
        self._open[file_num] = file
        return file.read_at(offset, size)

    def close(self, file_num: i64) -> None:
        file = self._open.pop(file_num, None)
        if file is not None:
            close_quietly(file)

    def close_all(self) -> None:
        for file_num in list(self._open):
            self.close(file_num)


def close_quietly(file: DiskFile | None) -> None:
    """Closes a file of which everything needed is safe already, or known to be lost."""
    if file is not None:
        try:
            file.close()
        except OSError:
            pass
