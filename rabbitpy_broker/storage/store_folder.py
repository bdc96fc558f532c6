"""The folder of one message store: its files by number, and those of them that were read last, open.

What the bytes of a file are is store_file.py's. Everybody who works on a message store has its folder: the writer appends
files, garbage collection takes them away, a start finds them.

What must stay true: every number is given out once, to a file that did not exist; `files` has a file when its first
record is written, and until it is to be removed.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.store_file import OpenFiles, StoreFile, file_path

MAX_OPEN_FILES: Final[i64] = 8


class StoreFolder:
    """`transient`: nothing in it outlives the broker, so nothing is synced, and it begins empty."""

    def __init__(self, disk: Disk, path: str, transient: bool, file_size_limit_bytes: i64) -> None:
        self.disk = disk
        self.path = path
        self.transient = transient
        self.file_size_limit_bytes = file_size_limit_bytes
        self.files: dict[int, StoreFile] = {}
        self.next_file_num: i64 = 1
        self.opened = OpenFiles(disk, path, MAX_OPEN_FILES)  # for reading
        if transient:
            disk.remove_tree(path)
        disk.make_dir(path)

    def new_file(self) -> StoreFile:
        """The next file. Nothing of it is on disk, and it is not in `files` yet."""
        file = StoreFile(self.next_file_num, self.next_file_num)
        self.next_file_num += 1
        return file

    def path_of(self, file_num: i64) -> str:
        """The path of the file with this number."""
        return file_path(self.path, file_num)

    def drop(self, file: StoreFile) -> bool:
        """Nobody reads the file any more. False when it was not in `files`."""
        if self.files.pop(file.file_num, None) is None:
            return False
        self.opened.close(file.file_num)
        return True

    def forget_all(self) -> None:
        """The folder is as before anything was found in it."""
        self.files.clear()
        self.next_file_num = 1

    def summary(self) -> list[tuple[int, int, int]]:
        """(file_num, valid bytes, all bytes) of each file."""
        return [(int(f.file_num), int(f.valid_bytes), int(f.total_bytes)) for f in self.files.values()]
