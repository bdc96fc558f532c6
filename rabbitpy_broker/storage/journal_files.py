"""The files of a journal: the one that is written to, those that are still needed, and those that are written over next.

A file; all integers are big-endian, blocks begin at multiples of 4,096 so that a torn write spoils no older block:

  header  0 4 "RPJF"   4 4 format version   8 8 file_num   16 8 nonce   24 8 file_num before (0: none)
         32 8 where that file ended   40 4 CRC-32C                                                     zeros to 4,096
  block   0 4 "RPJB"   4 4 payload length   8 8 epoch   16 8 nonce   24 4 CRC-32C of the payload
         28 4 CRC-32C of bytes 0..28   32 payload: sections of  queue_id(8)  length(4)  entries (records.py)

A file that nobody needs is written over as the next one: overwriting a file's own blocks costs half the sync of making
new ones. Its old blocks carry another nonce, which is random, so that no message can imitate one.

What must stay true: files are taken from the oldest end only, so that a crash leaves the journal's last part, never one
with a hole; a file is taken for reuse only when nobody needs it or any before it, and when all that was acked until then
is on disk.
"""

from __future__ import annotations

import os
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.records import checksum, sealed
from rabbitpy_broker.storage.sync import Notes

VERSION: Final = 1
ALIGNMENT: Final[i64] = 4_096
BLOCK_HEAD: Final[i64] = 32
SPARE_MAX: Final = 2


def file_header(file_num: int, nonce: bytes, previous: int, previous_end: int) -> bytes:
    """The first block of a file."""
    head = b"RPJF" + VERSION.to_bytes(4, "big") + file_num.to_bytes(8, "big") + nonce
    head = sealed(head + previous.to_bytes(8, "big") + previous_end.to_bytes(8, "big"))
    return head.ljust(int(ALIGNMENT), b"\x00")


def block_head(epoch: int, nonce: bytes, payload: list[bytes]) -> bytes:
    """The head of a block, which stands before its payload."""
    size: i64 = 0
    crc = 0
    for part in payload:
        size += len(part)
        crc = checksum(part, crc)
    head = b"RPJB" + int(size).to_bytes(4, "big") + epoch.to_bytes(8, "big") + nonce
    return sealed(head + crc.to_bytes(4, "big"))


def aligned(size: i64) -> i64:
    """The next multiple of ALIGNMENT."""
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


class JournalFile:
    """`end` is where the next block begins; `file` is None until it is first written to. `path` is a slot, reused."""

    def __init__(self, path: str, num: i64, nonce: bytes) -> None:
        self.path = path
        self.num = num
        self.nonce = nonce
        self.end: i64 = ALIGNMENT
        self.header = b""  # to be written with the first block
        self.file: DiskFile | None = None
        self.is_new = True  # the slot does not exist on disk
        self.spare_from: i64 = 0  # the epoch that was filling when nobody needed it any more


class JournalFiles:
    """`num` is the number of the newest file, `size_limit` the bytes at which the next one begins.

    Epochs are told by their numbers: what was acked while one of a number below `settled` was filling is on disk.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self.disk = disk
        self.folder = folder
        self.size_limit: i64 = 33_554_432
        self.num: i64 = 0
        self.number: i64 = 0  # of the newest block that is settled
        self.notes: Notes | None = None  # beside the files, of a vhost with followers
        self._needed: list[JournalFile] = []  # oldest first; the last is written to
        self._spare: list[JournalFile] = []
        self._unwanted: list[JournalFile] = []  # to be removed
        self._is_over = True  # the newest is not written to any more
        self._slots: i64 = 0

    def add(self, path: str, num: i64, nonce: bytes, end: i64, file: DiskFile) -> None:
        """A file that an earlier run has left and whose entries are still needed; recovery adds them oldest first."""
        found = JournalFile(path, num, nonce)
        found.end = end
        found.file = file
        found.is_new = False
        self._needed.append(found)
        self.num = num

    def use_slots_from(self, slot: i64) -> None:
        """Slots below are taken."""
        self._slots = slot

    def count(self) -> i64:
        """Files with entries that are needed."""
        return len(self._needed)

    def size(self) -> i64:
        """Bytes of entries in those files."""
        total: i64 = 0
        for file in self._needed:
            total += file.end
        return total

    def oldest(self) -> i64:
        """The number of the oldest of them; there must be one."""
        return self._needed[0].num

    def ends_from(self, num: i64) -> list[list[int]]:
        """Number and end of each file that is not older."""
        return [[int(file.num), int(file.end)] for file in self._needed if file.num >= num]

    def paths(self) -> list[tuple[str, int]]:
        """Path and end of each file with blocks that are needed."""
        return [(file.path, int(file.end)) for file in self._needed if file.end > ALIGNMENT]

    def read(self, num: i64, offset: int, size: int) -> bytes:
        """Raises OSError."""
        for file in self._needed:
            if file.num == num and file.file is not None:
                data: bytes = file.file.read_at(offset, size)
                if len(data) == size:
                    return data
        raise OSError(f"the journal file {num} does not have bytes {offset} to {offset + size}")

    def path_of(self, num: i64) -> str:
        """Where the file with this number is. Raises OSError when there is none any more: its slot may have another one."""
        for file in self._needed + self._spare:
            if file.num == num and not file.is_new:
                return file.path
        raise OSError(f"there is no journal file {num} any more")

    # -- the file of the next block -------------------------------------------------------------------------------

    def with_room(self, payload: i64) -> JournalFile | None:
        """The newest file, if the next block goes there; every file takes one block, however large it is."""
        if self._is_over:
            return None
        file = self._needed[-1]
        if file.end == ALIGNMENT or file.end + BLOCK_HEAD + payload <= self.size_limit:
            return file
        return None

    def begin(self, settled: i64) -> JournalFile:
        """The next file, in the place of one that nobody needs, or new."""
        previous, previous_end = 0, 0
        if self._needed:
            previous, previous_end = int(self._needed[-1].num), int(self._needed[-1].end)
        self.num += 1
        nonce = os.urandom(8)
        if self._spare and self._spare[0].spare_from < settled:
            old = self._spare.pop(0)
            file = JournalFile(old.path, self.num, nonce)
            file.file = old.file
            file.is_new = False
        else:
            file = JournalFile(f"{self.folder}/{int(self._slots):04d}.journal", self.num, nonce)
            self._slots += 1
        file.header = file_header(int(self.num), nonce, previous, previous_end)
        self._needed.append(file)
        self._is_over = False
        return file

    def failed(self, file: JournalFile) -> None:
        """A write to it has: nothing more is written to it. Its earlier blocks still count; without any it is removed."""
        self._is_over = True
        if file.end == ALIGNMENT:
            self._needed.remove(file)
            _close(file)
            self._unwanted.append(file)

    # -- what is needed no more -----------------------------------------------------------------------------------

    def set_aside(self, needed: i64, filling: i64, settled: i64) -> None:
        """Files before number `needed` are not needed any more (0: none is, but the newest is never set aside)."""
        oldest = self.num
        if 0 < needed < oldest:
            oldest = needed
        while len(self._needed) > 1 and self._needed[0].num < oldest:
            spare = self._needed.pop(0)
            spare.spare_from = filling
            self._spare.append(spare)
        while len(self._spare) > SPARE_MAX and self._spare[0].spare_from < settled:
            unwanted = self._spare.pop(0)
            _close(unwanted)
            self._unwanted.append(unwanted)

    def settle_later(self, filling: i64) -> None:
        """An epoch has failed: what it was to settle comes with the one that is filling."""
        for spare in self._spare:
            spare.spare_from = filling

    def take_unwanted(self) -> list[JournalFile]:
        """The files that are to be removed, oldest first."""
        unwanted = self._unwanted
        self._unwanted = []
        return unwanted

    def not_removed(self, unwanted: list[JournalFile]) -> None:
        """The files that `take_unwanted` gave are still there."""
        self._unwanted = unwanted + self._unwanted

    def close(self) -> None:
        """Nothing is written."""
        for file in self._needed + self._spare:
            _close(file)


def _close(file: JournalFile) -> None:
    if file.file is not None:
        file.file.close()
        file.file = None
