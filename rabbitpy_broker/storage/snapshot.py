"""A vhost's directory as it was at one moment, kept while the vhost goes on, and told as one stream of bytes.

    SnapshotJob    in a thread, while nothing writes to the directory: links and copies its files into a folder in `checkpoint/`
    parts          what was linked, as a tar archive: `definitions`, the files, and `manifest` behind all others

What is taken is what a kill would have left at that moment, so a start on it is a start after a kill. Segments and files of the
message store only grow, or go: a hard link keeps them, and each is told up to the size that it had. Files of the journal are
written over, and indexes of streams written anew: those are copied.

What must stay true: `manifest` names every file before it with size and checksum; without it there is no snapshot. Messages
that are in memory only are in none: the transient folders are left out. Whoever opens the directory anew removes `checkpoint/`,
while a snapshot may still be read: so each has a folder of its own, and ends with an error then, and has nothing of another.
"""

from __future__ import annotations

import secrets
import tarfile
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.log_note import NOTE, LogNote, write_note
from rabbitpy_broker.storage.store_file import MERGING_SUFFIX

FOLDER: Final = "checkpoint"
DEFINITIONS: Final = "definitions"
MANIFEST: Final = "manifest"
FORMAT: Final = 1
PIECE: Final = 1 << 20  # bytes


class Manifest(msgspec.Struct, frozen=True):
    """`number` is where the log was (`content.mark`); `files`: size in bytes and CRC-32 by name."""

    number: int
    files: dict[str, tuple[int, int]]
    format: int = FORMAT


class SnapshotFile(NamedTuple):
    """`size` bytes of the file at `path` are the file `name` of the directory."""

    name: str
    path: str
    size: int


class SnapshotJob:
    """The job of a thread. `note` is written first, and says where the log is; `journal` has path and end of each file.

    Assumes: nothing else writes to the directory until `run` returns.
    """

    def __init__(self, disk: Disk, path: str, note: LogNote, journal: list[tuple[str, int]], definitions: bytes) -> None:
        self.number = note.number
        self.files: list[SnapshotFile] = []
        self._disk = disk
        self._path = path
        self._folder = f"{path}/{FOLDER}/{secrets.token_hex(8)}"
        self._note = note
        self._journal = journal
        self._definitions = definitions

    def run(self) -> None:
        """Raises OSError."""
        disk, path = self._disk, self._path
        disk.add_dir(f"{path}/{FOLDER}")
        disk.add_dir(self._folder)
        write_note(disk, path, self._note)
        self._link(NOTE)
        for file, end in self._journal:
            self._copy(file.removeprefix(f"{path}/"), min(end, disk.size(file)))  # which may end before the next block begins
        for queue in disk.list_dir(f"{path}/queues"):
            for name in disk.list_dir(f"{path}/queues/{queue}"):
                if name.endswith(".index"):
                    self._copy(f"queues/{queue}/{name}", disk.size(f"{path}/queues/{queue}/{name}"))
                elif not name.endswith(".transient"):
                    self._link(f"queues/{queue}/{name}")
        for name in disk.list_dir(f"{path}/msg_store_persistent"):
            if not name.endswith(MERGING_SUFFIX):
                self._link(f"msg_store_persistent/{name}")

    def _add(self, name: str, size: int) -> str:
        kept = f"{self._folder}/{len(self.files)}"
        self.files.append(SnapshotFile(name, kept, size))
        return kept

    def _link(self, name: str) -> None:
        path = f"{self._path}/{name}"
        self._disk.link(path, self._add(name, self._disk.size(path)))

    def _copy(self, name: str, size: int) -> None:
        source = self._disk.open(f"{self._path}/{name}")
        target = self._disk.open(self._add(name, size), create=True)
        try:
            for at in range(0, size, PIECE):
                target.write_at(at, source.read_at(at, min(PIECE, size - at)))
        finally:
            source.close()
            target.close()

    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def parts(self) -> Iterator[bytes]:
        """All of it, in parts of about a MiB. Reads files: for a thread. Raises OSError."""
        told: dict[str, tuple[int, int]] = {}
        gathered = bytearray(member(DEFINITIONS, self._definitions))
        for file in self.files:
            gathered += header(file.name, file.size)
            crc = 0
            source = self._opened(file)
            try:
                for at in range(0, file.size, PIECE):
                    piece = source.read_at(at, min(PIECE, file.size - at))
                    if len(piece) < min(PIECE, file.size - at):
                        raise OSError(f"{file.path} ends before byte {file.size}")
                    crc = zlib.crc32(piece, crc)
                    gathered += piece
                    if len(gathered) >= PIECE:
                        yield bytes(gathered)
                        gathered.clear()
            finally:
                source.close()
            gathered += padding(file.size)
            told[file.name] = (file.size, crc)
        told[DEFINITIONS] = (len(self._definitions), zlib.crc32(self._definitions))
        gathered += member(MANIFEST, msgspec.json.encode(Manifest(self.number, told)))
        yield bytes(gathered) + bytes(2 * tarfile.BLOCKSIZE)

    def _opened(self, file: SnapshotFile) -> DiskFile:
        try:
            return self._disk.open(file.path)
        except FileNotFoundError:
            raise OSError("the vhost was opened anew on this node meanwhile: ask again") from None

    def remove(self) -> None:
        """What was linked and copied is needed no more. Raises OSError."""
        self._disk.remove_tree(self._folder)
        if not self._disk.list_dir(f"{self._path}/{FOLDER}"):
            self._disk.remove_tree(f"{self._path}/{FOLDER}")


def member(name: str, content: bytes) -> bytes:
    """A whole file, as it stands in the archive."""
    return header(name, len(content)) + content + padding(len(content))


def header(name: str, size: int) -> bytes:
    """What stands before a file of so many bytes."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    """What stands behind a file of so many bytes."""
    return bytes(-size % tarfile.BLOCKSIZE)
