"""A vhost's directory made from what `snapshot.py` told of another one.

    Unpacking      writes the files into `restoring/`, and checks them with the manifest
    switch         puts them in the place of what the directory had; what is there afterwards is what a kill leaves

What must stay true: until `restoring/manifest` is there, synced behind all others, the directory is as it was; from then on it
will be the other one, however often the broker is killed in between. The definitions are taken over before the files are, as a
start on files of queues that the definitions do not know removes them.
"""

from __future__ import annotations

import tarfile
import zlib
from typing import Final

import msgspec

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.log_note import NOTE
from rabbitpy_broker.storage.snapshot import DEFINITIONS, FORMAT, MANIFEST, Manifest
from rabbitpy_broker.storage.snapshot import FOLDER as SNAPSHOT
from rabbitpy_broker.storage.terms import TERMS

FOLDER: Final = "restoring"
FOLDERS: Final = ("journal", "queues", "msg_store_persistent")


class SnapshotError(BrokerError):
    """What should be a snapshot is none, or not all of one."""


class Unpacking:
    """`begin`, `feed` for each part, `finish`; all block. Any of them may raise OSError, SnapshotError; then it is over."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._folder = f"{path}/{FOLDER}"
        self._folders: dict[str, None] = {}
        self._rest = b""
        self._name = ""  # of the file that is being written
        self._size = 0
        self._file: DiskFile | None = None
        self._at = 0
        self._crc = 0
        self._found: dict[str, tuple[int, int]] = {}
        self._manifest = b""

    def begin(self) -> None:
        """What an earlier one has left is removed."""
        disk = self._disk
        disk.make_dir(self._path)
        disk.remove_tree(self._folder)
        disk.add_dir(self._folder)
        for name in FOLDERS:
            self._add_folder(name)

    def _add_folder(self, name: str) -> None:
        path = f"{self._folder}/{name}"
        if path not in self._folders:
            self._disk.add_dir(path)
            self._folders[path] = None

    def feed(self, part: bytes) -> None:
        data = self._rest + part if self._rest else part
        pos = 0
        while True:
            if self._name:
                pos += self._take_content(data, pos)
                if self._at < self._size:
                    break
                if len(data) - pos < -self._size % tarfile.BLOCKSIZE:
                    break
                pos += -self._size % tarfile.BLOCKSIZE
                self._end_file()
            if len(data) - pos < tarfile.BLOCKSIZE:
                break
            header = data[pos : pos + tarfile.BLOCKSIZE]
            pos += tarfile.BLOCKSIZE
            if header.strip(b"\x00"):
                self._begin_file(header)
        self._rest = data[pos:]

    def _begin_file(self, header: bytes) -> None:
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except tarfile.HeaderError as error:
            raise SnapshotError(f"not a snapshot: {error}") from None
        self._name, self._size, self._at, self._crc = info.name, info.size, 0, 0
        if self._manifest:
            raise SnapshotError(f"{info.name} stands behind the manifest")
        if info.name == MANIFEST:
            return
        if folder := checked_folder(info.name):
            self._add_folder(folder)
        self._file = self._disk.open(f"{self._folder}/{info.name}", create=True)

    def _take_content(self, data: bytes, pos: int) -> int:
        content = data[pos : pos + self._size - self._at]
        if self._file is None:
            self._manifest += content
        elif content:
            self._file.write_at(self._at, content)
            self._crc = zlib.crc32(content, self._crc)
        self._at += len(content)
        return len(content)

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._found[self._name] = (self._size, self._crc)
        self._name = ""

    def finish(self) -> Manifest:
        """Ensures: `switch` will make the directory what was fed."""
        manifest = read_manifest(self._manifest)
        if self._name or manifest.files != self._found:
            raise SnapshotError("files of the snapshot are not what its manifest says")
        disk = self._disk
        files = [f"{self._folder}/{name}" for name in self._found]
        disk.sync_names(files, [*self._folders, self._folder])
        file = disk.open(f"{self._folder}/{MANIFEST}.new", create=True)
        try:
            file.write_at(0, self._manifest)
            file.sync()
        finally:
            file.close()
        disk.rename(f"{self._folder}/{MANIFEST}.new", f"{self._folder}/{MANIFEST}")
        disk.sync_dir(self._folder)
        disk.sync_dir(self._path)
        return manifest

    def give_up(self) -> None:
        """Closes what is open."""
        if self._file is not None:
            self._file.close()
            self._file = None


def checked_folder(path: str) -> str:
    """The folder of a file of a snapshot, "" for none. Raises SnapshotError for what has no place in a vhost's directory."""
    *folders, name = path.split("/")
    if name in ("", ".", "..") or (folders and folders[0] not in FOLDERS) or ".." in folders:
        raise SnapshotError(f"{path!r} is no name of a vhost's file")
    if not folders and name not in (DEFINITIONS, NOTE):
        raise SnapshotError(f"{path!r} is no name of a vhost's file")
    return "/".join(folders)


def read_manifest(data: bytes) -> Manifest:
    """Raises SnapshotError."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError:
        raise SnapshotError("the snapshot has no manifest") from None
    if manifest.format > FORMAT:
        raise SnapshotError(f"the snapshot has format {manifest.format}, and this version knows {FORMAT}")
    return manifest


def restored_definitions(disk: Disk, path: str) -> bytes | None:
    """The definitions of a snapshot that is all there and is to be switched to; None: there is none.

    Blocks. What was left in the middle, of a snapshot too, is removed. Raises OSError.
    """
    disk.remove_tree(f"{path}/{SNAPSHOT}")
    folder = f"{path}/{FOLDER}"
    if not disk.exists(f"{folder}/{MANIFEST}"):
        disk.remove_tree(folder)
        return None
    file = disk.open(f"{folder}/{DEFINITIONS}")
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def switch(disk: Disk, path: str) -> None:
    """The directory becomes the restored one; its definitions were taken over. Blocks. Raises OSError."""
    folder = f"{path}/{FOLDER}"
    disk.remove(f"{path}/{TERMS}")
    disk.sync_dir(path)
    for name in FOLDERS:
        if disk.exists(f"{folder}/{name}"):
            disk.remove_tree(f"{path}/{name}")
            disk.rename(f"{folder}/{name}", f"{path}/{name}")
    if disk.exists(f"{folder}/{NOTE}"):
        disk.rename(f"{folder}/{NOTE}", f"{path}/{NOTE}")
    disk.sync_dir(path)
    disk.remove(f"{folder}/{MANIFEST}")
    disk.sync_dir(folder)
    disk.remove_tree(folder)
