"""A disk in RAM that fails on demand and can lose its power; and threads that work when they are told to.

`MemoryDisk` has the methods of `Disk`. Every change goes through the log, one `Operation` at a time, so the disk as it
was after any number of them can be had again (`after`, `prefixes`). What a power cut may leave (`crash`):

  content   Of each 512-byte sector, what a sync has made safe, or what any write since then has put there, whichever,
            and independently of the other sectors: unsynced sectors reach the disk in any order, or never.
  length    The synced one or any that the file has had since; a file that is longer than what was written holds zeros.
  names     A folder's creations, renamings and removals happen in order; those that no sync_dir has made safe may be
            missing, the newest first. What a folder holds is reached only through the folder's own name in its parent.
  a failed sync, as on Linux: the sectors stay readable and count as clean. Later syncs succeed and do not make them
            safe; only writing them again and syncing does.

`choose(n)` decides each of these with a number below n; 0 is always what it would be without the power cut. `every`
enumerates all decisions, `at_random` draws them.

`kill` leaves what kill -9 leaves: everything is readable, and what was not synced is still not safe.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.storage.files import DiskFile
from rabbitpy_broker.storage.memory_disk import SyncedInTurn, os_error, path_parts
from rabbitpy_broker.storage.sync import Threads

SECTOR = 512
PAGE = 4096

Choose = Callable[[int], int]


class Operation(NamedTuple):
    """One change. `path` is for the reader; `node` is the file or folder that it is done to."""

    kind: str
    path: str
    node: int
    name: str = ""
    to_node: int = 0
    to_name: str = ""
    offset: int = 0
    data: bytes = b""


class File:
    """`data` is what a reader sees; `safe` what a sync has put on the disk, with the length `safe_size`."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.safe = bytearray()
        # sector -> what it has held since it was synced, oldest first
        self.unsafe: dict[int, list[bytes]] = {}
        self.unsafe_sizes: list[int] = []
        # sectors that a failed sync has dropped: they stay unsafe until written again
        self.lost: set[int] = set()

    def copy(self) -> File:
        file = File()
        file.data[:] = self.data
        file.safe[:] = self.safe
        file.unsafe = {sector: list(held) for sector, held in self.unsafe.items()}
        file.unsafe_sizes = list(self.unsafe_sizes)
        file.lost = set(self.lost)
        return file

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.data):
            self.resize(end)
        self.data[offset:end] = data
        self._touch(offset, end)

    def resize(self, size: int) -> None:
        old = len(self.data)
        if size < old:
            self.data[size:] = bytes(old - size)
            self._touch(size, old)
            del self.data[size:]
        elif size > old:
            self.data.extend(bytes(size - old))
            whole_pages = size // PAGE * PAGE
            if old < whole_pages < size:
                self.unsafe_sizes.append(whole_pages)
        if size != old:
            self.unsafe_sizes.append(size)

    def _touch(self, start: int, end: int) -> None:
        for sector in range(start // SECTOR, -(-end // SECTOR)):
            now = bytes(self.data[sector * SECTOR : (sector + 1) * SECTOR])
            self.unsafe.setdefault(sector, []).append(now.ljust(SECTOR, b"\0"))
            self.lost.discard(sector)

    def sync(self) -> None:
        safe = self._safe_sectors(len(self.data))
        for sector in [sector for sector in self.unsafe if sector not in self.lost]:
            held = self.unsafe.pop(sector)
            safe[sector * SECTOR : (sector + 1) * SECTOR] = held[-1]
        self.safe = safe[: len(self.data)]
        self.unsafe_sizes.clear()

    def sync_failed(self) -> None:
        self.lost.update(self.unsafe)

    def crashed(self, choose: Choose) -> File:
        sizes = list(dict.fromkeys([*reversed(self.unsafe_sizes), len(self.safe)]))
        size = sizes[choose(len(sizes)) if len(sizes) > 1 else 0]
        content = self._safe_sectors(size)
        for sector, held in sorted(self.unsafe.items()):
            start = sector * SECTOR
            if start < size:
                might = list(dict.fromkeys([*reversed(held), bytes(content[start : start + SECTOR])]))
                content[start : start + SECTOR] = might[choose(len(might)) if len(might) > 1 else 0]
        file = File()
        file.data[:] = file.safe[:] = content[:size]
        return file

    def _safe_sectors(self, size: int) -> bytearray:
        """The safe content in whole sectors, long enough for `size` and for every sector that is not safe."""
        sectors = max(-(-size // SECTOR), -(-len(self.safe) // SECTOR), max(self.unsafe, default=-1) + 1)
        return self.safe.ljust(sectors * SECTOR, b"\0")


class Change:
    """One step in the names of a folder, or of two at once (a renaming from one to the other)."""

    def __init__(self, steps: dict[int, dict[str, int]]) -> None:
        self.steps = steps  # folder -> name -> node, or 0: the name is gone


class Folder:
    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.safe: dict[str, int] = {}
        self.unsafe: list[Change] = []

    def copy(self) -> Folder:
        folder = Folder()
        folder.names = dict(self.names)
        folder.safe = dict(self.safe)
        folder.unsafe = list(self.unsafe)
        return folder


def _step(names: dict[str, int], step: dict[str, int]) -> None:
    for name, node in step.items():
        if node:
            names[name] = node
        else:
            names.pop(name, None)


ROOT = 1


class Content:
    """All files and folders, by number. Only `apply` changes them."""

    def __init__(self) -> None:
        self.files: dict[int, File] = {}
        self.folders: dict[int, Folder] = {ROOT: Folder()}
        self.next_node = ROOT + 1

    def copy(self) -> Content:
        content = Content()
        content.files = {node: file.copy() for node, file in self.files.items()}
        content.folders = {node: folder.copy() for node, folder in self.folders.items()}
        content.next_node = self.next_node
        return content

    def apply(self, op: Operation) -> None:
        if op.kind == "write":
            self.files[op.node].write(op.offset, op.data)
        elif op.kind == "resize":
            self.files[op.node].resize(op.offset)
        elif op.kind == "sync":
            self.files[op.node].sync()
        elif op.kind == "sync failed":
            self.files[op.node].sync_failed()
        elif op.kind == "create":
            self.files[self.next_node] = File()
            self._change({op.node: {op.name: self.next_node}})
            self.next_node += 1
        elif op.kind == "make_dir":
            self.folders[self.next_node] = Folder()
            self._change({op.node: {op.name: self.next_node}})
            self.next_node += 1
        elif op.kind == "remove":
            self._change({op.node: {op.name: 0}})
        elif op.kind == "link":
            self._change({op.to_node: {op.to_name: op.node}})
        elif op.kind == "rename":
            moved = self.folders[op.node].names[op.name]
            if op.node == op.to_node:
                self._change({op.node: {op.name: 0, op.to_name: moved}})
            else:
                self._change({op.node: {op.name: 0}, op.to_node: {op.to_name: moved}})
        else:
            assert op.kind == "sync_dir", op
            self._sync_dir(op.node)

    def _change(self, steps: dict[int, dict[str, int]]) -> None:
        change = Change(steps)
        for node, step in steps.items():
            _step(self.folders[node].names, step)
            self.folders[node].unsafe.append(change)

    def _sync_dir(self, node: int) -> None:
        """A renaming into another folder takes that one along, as far as it goes."""
        todo = {node: len(self.folders[node].unsafe)}
        while todo:
            at, count = todo.popitem()
            folder = self.folders[at]
            done, folder.unsafe = folder.unsafe[:count], folder.unsafe[count:]
            for change in done:
                _step(folder.safe, change.steps[at])
                for other in change.steps:
                    if change in self.folders[other].unsafe:
                        upto = self.folders[other].unsafe.index(change) + 1
                        todo[other] = max(todo.get(other, 0), upto)

    def crashed(self, choose: Choose) -> Content:
        kept = {
            node: folder.unsafe[: len(folder.unsafe) - choose(len(folder.unsafe) + 1)]
            for node, folder in self.folders.items()
            if folder.unsafe
        }
        cut = True
        while cut:  # a renaming between folders happens in both or in neither
            cut = False
            for node, changes in kept.items():
                for at, change in enumerate(changes):
                    if any(self._is_cut(change, other, kept) for other in change.steps):
                        kept[node] = changes[:at]
                        cut = True
                        break
        content = Content()
        content.next_node = self.next_node
        todo = [ROOT]
        while todo:
            node = todo.pop()
            if node in self.files:
                content.files[node] = self.files[node].crashed(choose)
                continue
            names = dict(self.folders[node].safe)
            for change in kept.get(node, ()):
                _step(names, change.steps[node])
            content.folders[node] = folder = Folder()
            folder.names = names
            folder.safe = dict(names)
            todo.extend(names[name] for name in sorted(names, reverse=True))
        return content

    def _is_cut(self, change: Change, node: int, kept: dict[int, list[Change]]) -> bool:
        return change in self.folders[node].unsafe and change not in kept[node]

    def has_unsafe(self) -> bool:
        """True when a power cut has anything to decide."""
        return any(file.unsafe or file.unsafe_sizes for file in self.files.values()) or any(
            folder.unsafe for folder in self.folders.values()
        )


class Fault:
    """Calls of these kinds, on paths with `path` in them, fail: the one after `skip` others, or all from then on."""

    def __init__(self, kinds: set[str], code: int, skip: int, forever: bool, path: str) -> None:
        self.kinds = kinds
        self.code = code
        self.skip = skip
        self.forever = forever
        self.path = path

    def strikes(self, kind: str, path: str) -> bool:
        if kind not in self.kinds or self.path not in path:
            return False
        self.skip -= 1
        return self.skip == -1 or (self.forever and self.skip < 0)


CALLS = frozenset({"open", "read", "write", "resize", "sync", "make_dir", "remove", "rename", "sync_dir"})


class MemoryDisk(SyncedInTurn):
    """See the top of this file. `log` has every change since this disk was made or left by `crash` or `kill`."""

    def __init__(self, content: Content | None = None) -> None:
        self._content = content if content is not None else Content()
        self._first = self._content.copy()
        self._faults: list[Fault] = []
        self.log: list[Operation] = []
        self.struck = 0
        self.open_files = 0
        self.free = 1 << 40

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def fail(
        self, kinds: str | Iterable[str], code: int, skip: int = 0, forever: bool = False, path: str = ""
    ) -> None:
        """Has calls fail with this errno (see `Fault`; kinds are those of CALLS). `struck` counts the failures.

        A write that fails has written the first half.
        """
        names = {kinds} if isinstance(kinds, str) else set(kinds)
        assert names <= CALLS, names
        self._faults.append(Fault(names, code, skip, forever, path))

    def mend(self) -> None:
        """Nothing fails any more."""
        self._faults.clear()

    def crash(self, choose: Choose) -> MemoryDisk:
        """The disk after a power cut."""
        return MemoryDisk(self._content.crashed(choose))

    def kill(self) -> MemoryDisk:
        """The disk after kill -9."""
        return MemoryDisk(self._content.copy())

    def after(self, count: int) -> MemoryDisk:
        """The disk as it was after `count` operations of the log, with everything that was not safe then."""
        content = self._first.copy()
        for op in self.log[:count]:
            content.apply(op)
        return MemoryDisk(content)

    def prefixes(self, start: int = 0) -> Iterator[MemoryDisk]:
        """`after` each number of operations, from `start` to all of them."""
        content = self._first.copy()
        for op in self.log[:start]:
            content.apply(op)
        yield MemoryDisk(content.copy())
        for op in self.log[start:]:
            content.apply(op)
            yield MemoryDisk(content.copy())

    def has_unsafe(self) -> bool:
        return self._content.has_unsafe()

    def meet(self, kind: str, path: str) -> None:
        """Raises when this call is to fail."""
        for fault in self._faults:
            if fault.strikes(kind, path):
                self.struck += 1
                raise OSError(fault.code, os.strerror(fault.code), path)

    def do(self, op: Operation) -> None:
        self._content.apply(op)
        self.log.append(op)

    # -- as Disk -------------------------------------------------------------------------------------------------------

    def open(self, path: str, create: bool = False) -> DiskFile:
        self.meet("open", path)
        node = self._find(path)
        if not node:
            folder, name = self._parent(path)
            if not create:
                raise os_error(errno.ENOENT, path)
            node = self._content.next_node
            self.do(Operation("create", path, folder, name))
        if node in self._content.folders:
            raise os_error(errno.EISDIR, path)
        self.open_files += 1
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) != 0

    def size(self, path: str) -> int:
        node = self._find(path)
        if not node:
            raise os_error(errno.ENOENT, path)
        return self.length(node)

    def list_dir(self, path: str) -> list[str]:
        node = self._find(path)
        if not node:
            return []
        if node in self._content.files:
            raise os_error(errno.ENOTDIR, path)
        return sorted(self._content.folders[node].names)

    def make_dir(self, path: str) -> None:
        self.meet("make_dir", path)
        parts = path_parts(path)
        if not parts:
            return
        parent = "/" + "/".join(parts[:-1])
        node = self._find(path)
        if node in self._content.files:
            raise os_error(errno.EEXIST, path)
        if not node:
            self.make_dir(parent)
            self.do(Operation("make_dir", path, self._find(parent), parts[-1]))
        self.sync_dir(parent)

    def add_dir(self, path: str) -> None:
        self.meet("make_dir", path)
        node = self._find(path)
        if node in self._content.files:
            raise os_error(errno.EEXIST, path)
        if not node:
            folder, name = self._parent(path)
            self.do(Operation("make_dir", path, folder, name))

    def remove(self, path: str) -> None:
        self.meet("remove", path)
        node = self._find(path)
        if node in self._content.folders:
            raise os_error(errno.EISDIR, path)
        if node:
            folder, name = self._parent(path)
            self.do(Operation("remove", path, folder, name))

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if not node:
            return
        if node in self._content.files:
            raise os_error(errno.ENOTDIR, path)
        for name in self.list_dir(path):
            inner = f"{path}/{name}"
            if self._find(inner) in self._content.folders:
                self.remove_tree(inner)
            else:
                self.remove(inner)
        self.meet("remove", path)
        folder, name = self._parent(path)
        self.do(Operation("remove", path, folder, name))

    def link(self, old: str, new: str) -> None:
        node = self._find(old)
        if not node:
            raise os_error(errno.ENOENT, old)
        folder, name = self._parent(new)
        self.do(Operation("link", f"{old} -> {new}", node, to_node=folder, to_name=name))

    def rename(self, old: str, new: str) -> None:
        self.meet("rename", old)
        if not self._find(old):
            raise os_error(errno.ENOENT, old)
        if self._find(new) in self._content.folders:
            raise os_error(errno.EISDIR, new)
        folder, name = self._parent(old)
        to_folder, to_name = self._parent(new)
        if (folder, name) != (to_folder, to_name):
            self.do(Operation("rename", f"{old} -> {new}", folder, name, to_folder, to_name))

    def sync_dir(self, path: str) -> None:
        self.meet("sync_dir", path)
        node = self._find(path)
        if not node:
            raise os_error(errno.ENOENT, path)
        if node in self._content.files:
            raise os_error(errno.ENOTDIR, path)
        self.do(Operation("sync_dir", path, node))

    # -- what MemoryFile needs -----------------------------------------------------------------------------------------

    def length(self, node: int) -> int:
        file = self._content.files.get(node)
        return len(file.data) if file is not None else PAGE

    def read(self, node: int, offset: int, size: int) -> bytes:
        return bytes(self._content.files[node].data[offset : offset + size])

    def _find(self, path: str) -> int:
        """The number of what has this path, 0 for nothing."""
        node = ROOT
        for part in path_parts(path):
            folder = self._content.folders.get(node)
            node = folder.names.get(part, 0) if folder is not None else 0
        return node

    def _parent(self, path: str) -> tuple[int, str]:
        parts = path_parts(path)
        node = self._find("/".join(parts[:-1]))
        if node not in self._content.folders:
            raise os_error(errno.ENOENT, path)
        return node, parts[-1]


class MemoryFile(DiskFile):
    def __init__(self, disk: MemoryDisk, path: str, node: int) -> None:
        super().__init__(path, -1)
        self._disk = disk
        self._node = node
        self._open = True

    def _meet(self, kind: str) -> None:
        if not self._open:
            raise os_error(errno.EBADF, self.path)
        self._disk.meet(kind, self.path)

    def write_at(self, offset: int, data: bytes) -> None:
        try:
            self._meet("write")
        except OSError:
            if self._open:
                self._write(offset, data[: len(data) // 2])
            raise
        self._write(offset, data)

    def _write(self, offset: int, data: bytes) -> None:
        if data:
            self._disk.do(Operation("write", self.path, self._node, offset=offset, data=bytes(data)))

    def write_parts(self, offset: int, parts: list[bytes]) -> None:
        self.write_at(offset, b"".join(parts))

    def write_synced(self, offset: int, parts: list[bytes]) -> None:
        self.write_at(offset, b"".join(parts))
        self.sync()

    def read_at(self, offset: int, size: int) -> bytes:
        self._meet("read")
        return self._disk.read(self._node, offset, size)

    def size(self) -> int:
        self._meet("read")
        return self._disk.length(self._node)

    def allocate(self, size: int) -> None:
        self._meet("resize")
        if size > self._disk.length(self._node):
            self._disk.do(Operation("resize", self.path, self._node, offset=size))

    def truncate(self, size: int) -> None:
        self._meet("resize")
        self._disk.do(Operation("resize", self.path, self._node, offset=size))

    def sync(self) -> None:
        try:
            self._meet("sync")
        except OSError:
            if self._open:
                self._disk.do(Operation("sync failed", self.path, self._node))
            raise
        self._disk.do(Operation("sync", self.path, self._node))

    def close(self) -> None:
        if self._open:
            self._open = False
            self._disk.open_files -= 1


# -- deciding what a power cut leaves ---------------------------------------------------------------------------------


def nothing_lost(count: int) -> int:
    """A `choose` for which all that was written is there."""
    return 0


def all_lost(count: int) -> int:
    """A `choose` for which nothing unsynced is there."""
    return count - 1


def at_random(rng: random.Random) -> Choose:
    """A `choose` that loses nearly nothing, about half, or nearly everything: all three tear blocks of any length."""
    kept = rng.choice((0.02, 0.2, 0.5, 0.8, 0.98))

    def choose(count: int) -> int:
        return 0 if rng.random() < kept else rng.randrange(1, count) if count > 1 else 0

    return choose


class _Decisions:
    """A `choose` that takes every way through the decisions, one after the other, as an odometer counts."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.counts: list[int] = []

    def __call__(self, count: int) -> int:
        at = len(self.counts)
        self.counts.append(count)
        if at == len(self.taken):
            self.taken.append(0)
        return self.taken[at]

    def advance(self) -> bool:
        """On to the next way; False when there is none."""
        while self.taken and self.taken[-1] + 1 == self.counts[len(self.taken) - 1]:
            self.taken.pop()
        if not self.taken:
            return False
        self.taken[-1] += 1
        self.counts.clear()
        return True


def every(disk: MemoryDisk, at_most: int) -> Iterator[MemoryDisk]:
    """Every state that a power cut could leave. Where there are more than `at_most`, so many that are drawn."""
    decisions = _Decisions()
    states: list[MemoryDisk] = []
    while len(states) < at_most:
        states.append(disk.crash(decisions))
        if not decisions.advance():
            yield from states
            return
    yield disk.crash(nothing_lost)
    yield disk.crash(all_lost)
    rng = random.Random(at_most)
    for _ in range(at_most - 2):
        yield disk.crash(at_random(rng))


# -- threads ----------------------------------------------------------------------------------------------------------


class Job:
    def __init__(self, job: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self.job = job
        self.done = done
        self.error: Exception | None = None


class CrankedThreads(Threads):
    """Jobs wait until the test does them. Errors that a disk or a damaged file can cause go to `done`; others are faults."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []
        self.worked: list[Job] = []

    def run(self, job: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self.waiting.append(Job(job, done))

    def work(self, index: int = 0) -> None:
        """Does one job; that it is done is not yet told."""
        job = self.waiting.pop(index)
        try:
            job.job()
        except (OSError, BrokerError) as error:
            job.error = error
        self.worked.append(job)

    def tell(self, index: int = 0) -> None:
        """Tells that a job is done."""
        job = self.worked.pop(index)
        job.done(job.error)

    def crank(self) -> bool:
        """One step: tells of a job that is done or else does one and tells of it. False when there was none."""
        if not self.worked and not self.waiting:
            return False
        if not self.worked:
            self.work()
        self.tell()
        return True

    def crank_all(self, at_most: int = 1000) -> None:
        """Until nothing is left to do, new jobs included."""
        for _ in range(at_most):
            if not self.crank():
                return
        raise AssertionError(f"still busy after {at_most} jobs")
