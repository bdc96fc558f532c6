"""A disk in memory: for a broker that is to touch no file, inside somebody's test suite.

`MemoryDisk` has the methods of `Disk`. It knows what a sync has made safe, and `power_cut` takes away the rest:

  content   a file's writes and sizes since its last sync are undone, newest first
  names     a folder's creations, renamings and removals since its last sync_dir are undone, newest first; a renaming from one
            folder to another is safe when either is synced, and what was done in either before it

A real disk may keep any part of what was not synced; this one keeps the least, which is what a test wants to see. (The tests
of the store itself have a disk that draws every part, `tests/storage/faulty_disk.py`.)

While `is_full`, what would take more space fails with ENOSPC: a new file, and a write or an `allocate` beyond a file's size.

What must stay true: bytes that nobody has written take no memory, since a journal asks for its space long before it needs it;
a file that was open when the power was cut stays closed. A disk belongs to one thread at a time.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from rabbitpy_broker.storage.files import Disk, DiskFile

NO_DESCRIPTOR: Final = -1
FOLDER_BYTES: Final = 4_096


class Undo(NamedTuple):
    """What a file was before a write: its size, how much of it was `written`, and what that held at `offset`."""

    size: int
    written: int
    offset: int
    data: bytes


class MemoryContent:
    """What a file holds: `data`, and zeros from its end to `size`. `undo` leads back to the last sync, oldest step first."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0
        self.undo: list[Undo] = []

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        self.undo.append(Undo(self.size, len(self.data), offset, bytes(self.data[offset:end])))
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset:end] = data
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        self.undo.append(Undo(self.size, len(self.data), size, bytes(self.data[size:])))
        del self.data[size:]
        self.size = size

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        return bytes(self.data[offset:end]).ljust(max(0, end - offset), b"\x00")

    def lose_unsynced(self) -> None:
        for size, written, offset, data in reversed(self.undo):
            self.data[offset : offset + len(data)] = data
            del self.data[written:]
            self.size = size
        self.undo.clear()


class MemoryFolder:
    """The names in a folder."""

    def __init__(self) -> None:
        self.names: dict[str, MemoryContent | MemoryFolder] = {}


class NameChange(NamedTuple):
    """One name of a folder, and what stood under it before; None: nothing did."""

    folder: MemoryFolder
    name: str
    before: MemoryContent | MemoryFolder | None


class SyncedInTurn(Disk):
    """A disk on which many syncs take no longer one after the other."""

    def sync_all(self, files: list[DiskFile], go_on: Callable[[], None] | None = None) -> None:
        for file in files:
            if go_on is not None:
                go_on()
            file.sync()

    def sync_names(self, files: list[str], folders: list[str]) -> None:
        for path in files:
            self._sync_name(path)
        for path in folders:
            self.sync_dir(path)


class MemoryDisk(SyncedInTurn):
    """See the top of this file. `power` counts the power cuts."""

    def __init__(self) -> None:
        self.is_full = False
        self.power = 0
        self._root = MemoryFolder()
        self._unsafe: list[list[NameChange]] = []  # each is undone as a whole, the newest first

    def power_cut(self) -> None:
        """Takes away what was not synced, and closes all files."""
        self.power += 1
        for steps in reversed(self._unsafe):
            for change in reversed(steps):
                _put(change.folder, change.name, change.before)
        self._unsafe.clear()
        todo: list[MemoryContent | MemoryFolder] = [self._root]
        while todo:
            node = todo.pop()
            if isinstance(node, MemoryFolder):
                todo.extend(node.names.values())
            else:
                node.lose_unsynced()

    def used_bytes(self) -> int:
        """Of all files, as far as they were written."""
        total, todo = 0, [self._root]
        while todo:
            for node in todo.pop().names.values():
                if isinstance(node, MemoryFolder):
                    todo.append(node)
                else:
                    total += len(node.data)
        return total

    # -- as Disk -------------------------------------------------------------------------------------------------------

    def open(self, path: str, create: bool = False) -> DiskFile:
        node = self._find(path)
        if node is None:
            folder, name = self._parent(path)
            if not create:
                raise os_error(errno.ENOENT, path)
            self._check_space(path)
            node = MemoryContent()
            self._change([NameChange(folder, name, None)], node)
        if isinstance(node, MemoryFolder):
            raise os_error(errno.EISDIR, path)
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        node = self._find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        return FOLDER_BYTES if isinstance(node, MemoryFolder) else node.size

    def list_dir(self, path: str) -> list[str]:
        node = self._find(path)
        if node is None:
            return []
        if not isinstance(node, MemoryFolder):
            raise os_error(errno.ENOTDIR, path)
        return sorted(node.names)

    def make_dir(self, path: str) -> None:
        parts = path_parts(path)
        for count in range(1, len(parts) + 1):
            self.add_dir("/".join(parts[:count]))
            self.sync_dir("/".join(parts[: count - 1]))

    def add_dir(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, MemoryContent):
            raise os_error(errno.EEXIST, path)
        if node is None:
            folder, name = self._parent(path)
            self._check_space(path)
            self._change([NameChange(folder, name, None)], MemoryFolder())

    def remove(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, MemoryFolder):
            raise os_error(errno.EISDIR, path)
        if node is not None:
            folder, name = self._parent(path)
            self._change([NameChange(folder, name, node)], None)

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, MemoryContent):
            raise os_error(errno.ENOTDIR, path)
        if node is not None:
            folder, name = self._parent(path)
            self._change([NameChange(folder, name, node)], None)

    def rename(self, old: str, new: str) -> None:
        node = self._find(old)
        if node is None:
            raise os_error(errno.ENOENT, old)
        folder, name = self._parent(old)
        to_folder, to_name = self._parent(new)
        steps = [NameChange(to_folder, to_name, to_folder.names.get(to_name)), NameChange(folder, name, node)]
        self._unsafe.append(steps)
        _put(folder, name, None)
        _put(to_folder, to_name, node)

    def link(self, old: str, new: str) -> None:
        node = self._find(old)
        if node is None:
            raise os_error(errno.ENOENT, old)
        folder, name = self._parent(new)
        self._change([NameChange(folder, name, folder.names.get(name))], node)

    def sync_dir(self, path: str) -> None:
        folder = self._find(path)
        if folder is None:
            raise os_error(errno.ENOENT, path)
        if not isinstance(folder, MemoryFolder):
            raise os_error(errno.ENOTDIR, path)
        if not self._unsafe:
            return
        safe = {id(folder)}  # a renaming into another folder takes that one along, as far as it had come then
        left: list[list[NameChange]] = []
        for steps in reversed(self._unsafe):
            if any(id(change.folder) in safe for change in steps):
                safe.update(id(change.folder) for change in steps)
            else:
                left.append(steps)
        self._unsafe = left[::-1]

    # -- a folder of the file system -----------------------------------------------------------------------------------

    def copy_from(self, folder: str) -> None:
        """Has what is in a folder of the file system under the same path, as if all of it had been synced."""
        for path in [Path(folder), *sorted(Path(folder).rglob("*"))]:
            if path.is_dir():
                self.make_dir(str(path))
            elif path.is_file():
                content = path.read_bytes()
                file = self.open(str(path), create=True)
                file.write_at(0, content.rstrip(b"\0"))
                file.allocate(len(content))
                file.sync()
                self.sync_dir(str(path.parent))

    def copy_to(self, folder: str) -> None:
        """Makes a folder of the file system what the one of the same path is here."""
        shutil.rmtree(folder, ignore_errors=True)
        todo = [(folder, self._find(folder))]
        while todo:
            path, node = todo.pop()
            if isinstance(node, MemoryFolder):
                Path(path).mkdir(0o700, parents=True)
                todo.extend((f"{path}/{name}", inner) for name, inner in node.names.items())
            elif node is not None:
                with Path(path).open("wb") as file:
                    file.write(node.data)
                    file.truncate(node.size)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _check_space(self, path: str) -> None:
        if self.is_full:
            raise os_error(errno.ENOSPC, path)

    def _change(self, steps: list[NameChange], node: MemoryContent | MemoryFolder | None) -> None:
        self._unsafe.append(steps)
        for change in steps:
            _put(change.folder, change.name, node)

    def _find(self, path: str) -> MemoryContent | MemoryFolder | None:
        node: MemoryContent | MemoryFolder | None = self._root
        for part in path_parts(path):
            node = node.names.get(part) if isinstance(node, MemoryFolder) else None
        return node

    def _parent(self, path: str) -> tuple[MemoryFolder, str]:
        parts = path_parts(path)
        folder = self._find("/".join(parts[:-1]))
        if not isinstance(folder, MemoryFolder):
            raise os_error(errno.ENOENT, path)
        return folder, parts[-1]


class MemoryFile(DiskFile):
    """One open file of a MemoryDisk."""

    def __init__(self, disk: MemoryDisk, path: str, content: MemoryContent) -> None:
        super().__init__(path, NO_DESCRIPTOR)
        self._disk = disk
        self._content: MemoryContent | None = content
        self._power = disk.power

    def _opened(self) -> MemoryContent:
        content = self._content
        if content is None or self._power != self._disk.power:
            raise os_error(errno.EBADF, self.path)
        return content

    def _check_space(self, size: int) -> MemoryContent:
        content = self._opened()
        if self._disk.is_full and size > content.size:
            raise os_error(errno.ENOSPC, self.path)
        return content

    def write_at(self, offset: int, data: bytes) -> None:
        if data:
            self._check_space(offset + len(data)).write(offset, data)

    def write_parts(self, offset: int, parts: list[bytes]) -> None:
        self.write_at(offset, b"".join(parts))

    def write_synced(self, offset: int, parts: list[bytes]) -> None:
        self.write_at(offset, b"".join(parts))
        self.sync()

    def read_at(self, offset: int, size: int) -> bytes:
        return self._opened().read(offset, size)

    def size(self) -> int:
        return self._opened().size

    def allocate(self, size: int) -> None:
        content = self._check_space(size)
        if size > content.size:
            content.resize(size)

    def truncate(self, size: int) -> None:
        self._check_space(size).resize(size)

    def sync(self) -> None:
        self._opened().undo.clear()

    def start_sync(self) -> None:
        pass

    def close(self) -> None:
        self._content = None


def _put(folder: MemoryFolder, name: str, node: MemoryContent | MemoryFolder | None) -> None:
    if node is None:
        folder.names.pop(name, None)
    else:
        folder.names[name] = node


def path_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
