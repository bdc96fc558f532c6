"""What a follower has of a vhost: a directory in the format of any vhost, as a broker leaves it that was killed.

Each block of the log becomes a block of the journal, synced; definitions go into the node's own. Who takes over starts the
vhost on the directory, which is the start after a kill, and goes on writing to it as its owner.

What must stay true: the journal has a prefix of what counts in the log, and nothing else: an owner writes to it what the log
has taken, so that the directory of one that was deposed needs no repair. Where it stands in the log is told by its newest
block's number (`content.mark`), or by the file `log_position` if that is further: it is for entries that are no blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rabbitpy_broker.cluster.content import Rows, mark, unmarked, unpacked
from rabbitpy_broker.cluster.follower import Sink
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.journal import EpochWrite
from rabbitpy_broker.storage.journal_files import BLOCK_HEAD, JournalFiles, aligned
from rabbitpy_broker.storage.journal_scan import replay
from rabbitpy_broker.storage.terms import TERMS

POSITION: Final = "log_position"
NOTHING_SPARE: Final = 0


class VHostDirectory(Sink):
    """`open` comes first. `define` takes the vhost's definitions, and has them on disk when it returns."""

    def __init__(self, disk: Disk, path: str, file_size_limit: int, define: Callable[[Rows], None]) -> None:
        self.position = 0
        self.term = 0
        self._disk = disk
        self._path = path
        self._define = define
        self._file_size_limit = file_size_limit
        self._files = JournalFiles(disk, f"{path}/journal")
        self._noted = 0  # what stands in the position's file

    async def open(self) -> None:
        """Finds out where it stands. Raises OSError."""
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        disk = self._disk
        for folder in ("journal", "queues"):
            disk.make_dir(f"{self._path}/{folder}")
        disk.remove(f"{self._path}/{TERMS}")  # of a clean stop: the journal goes on from here
        disk.sync_dir(self._path)
        self._files = JournalFiles(disk, f"{self._path}/journal")
        self._files.size_limit = self._file_size_limit
        found = replay(disk, f"{self._path}/journal")
        number = self._noted = self._read_position()
        for path in found.headless:
            disk.remove(path)
        for one in found.files:
            file = disk.open(one.path)
            if one.torn:
                file.truncate(int(one.end))
            file.sync()
            self._files.add(one.path, one.num, one.nonce, one.end, file)
            number = max(number, int(one.epoch))
        self._files.use_slots_from(found.slots)
        self.term, self.position = unmarked(number)

    def _read_position(self) -> int:
        path = f"{self._path}/{POSITION}"
        if not self._disk.exists(path):
            return 0
        file = self._disk.open(path)
        try:
            return int.from_bytes(file.read_at(0, 8), "big")
        finally:
            file.close()

    async def apply(self, block: bytes, position: int, term: int) -> None:
        definitions, epoch = unpacked(block)
        if definitions is not None:
            self._define(definitions)
        if epoch:
            await asyncio.to_thread(self._write, epoch, mark(term, position))
        self.position, self.term = position, term

    def _write(self, epoch: bytes, number: int) -> None:
        file = self._files.with_room(len(epoch)) or self._files.begin(NOTHING_SPARE)
        write = EpochWrite(self._disk, self._files.folder, self._file_size_limit)
        write.set_payload(file, number, [epoch])
        write.run()
        file.end = aligned(file.end + BLOCK_HEAD + write.payload_size)

    async def pass_over(self, position: int, term: int) -> None:
        self.position, self.term = position, term

    async def sync(self) -> int:
        position, number = self.position, mark(self.term, self.position)
        if number > self._noted:
            await asyncio.to_thread(self._note, number)
            self._noted = number
        return position

    def _note(self, number: int) -> None:
        path = f"{self._path}/{POSITION}"
        file = self._disk.open(f"{path}.new", create=True)
        try:
            file.write_at(0, number.to_bytes(8, "big"))
            file.sync()
        finally:
            file.close()
        self._disk.rename(f"{path}.new", path)
        self._disk.sync_dir(self._path)

    def close(self) -> None:
        """Closes the files, for whoever goes on in the directory."""
        self._files.close()
