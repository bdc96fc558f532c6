"""Large pages: memory that stays is put into them, and is the same; memory in use does not grow by it."""

from __future__ import annotations

import ctypes
import json
import mmap
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker_process import BrokerProcess
from rabbitpy_broker import alarms, large_pages
from rabbitpy_broker.upkeep import Upkeep
from support import eventually

MIB = 1 << 20
SIZE = 2 * MIB

MEMORY_THAT_STAYS = """
import re
from pathlib import Path
from rabbitpy_broker import large_pages, process_memory

def in_large_pages():
    return int(re.search(r"AnonHugePages: +([0-9]+) kB", Path("/proc/self/smaps_rollup").read_text())[1]) * 1024

held = [b"%d" % number * 20 for number in range(500_000)]
size, used = large_pages.page_size(), process_memory.used()
found = large_pages.stretches(size)
done = sum(large_pages.put_into_one(address, size) for address in found)
assert held == [b"%d" % number * 20 for number in range(500_000)]
print(size, len(found), done, in_large_pages(), used, process_memory.used())
"""


def _system(folder: Path, enabled: str, size: int) -> Path:
    (folder / "enabled").write_text(f"{enabled}\n")
    (folder / "hpage_pmd_size").write_text(f"{size}\n")
    return folder


@pytest.mark.parametrize(
    "enabled, size, expected",
    [
        ("always [madvise] never", SIZE, SIZE),
        ("[always] madvise never", SIZE, SIZE),
        ("always madvise [never]", SIZE, 0),
        ("[always] madvise never", 512 * MIB, 0),
    ],
)
def test_what_the_administrator_says_counts(tmp_path: Path, enabled: str, size: int, expected: int) -> None:
    assert large_pages.page_size(_system(tmp_path, enabled, size)) == expected


def test_there_are_none_where_the_system_does_not_know_them(tmp_path: Path) -> None:
    assert large_pages.page_size(tmp_path / "transparent_hugepage") == 0


def test_memory_that_is_hardly_used_is_left_alone() -> None:
    with mmap.mmap(-1, 8 * SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as sparse:
        sparse.madvise(mmap.MADV_NOHUGEPAGE)  # whatever the system does by itself
        for at in range(0, len(sparse), SIZE // 4):
            sparse[at] = 1
        before = set(large_pages.stretches(SIZE))
        for at in range(0, len(sparse), mmap.PAGESIZE):
            sparse[at] = 1
        found = set(large_pages.stretches(SIZE)) - before
    assert len(found) >= 7, "what is full is found, and only then"


def test_files_and_what_may_not_be_written_are_not_ours(tmp_path: Path) -> None:
    full = mmap.mmap(-1, 4 * SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    full.write(b"x" * len(full))
    (one,) = [own for own in large_pages._OWN.finditer(Path("/proc/self/maps").read_text()) if _is_in(own, full)]
    place = f"{one[1]}-{one[2]}"
    maps = tmp_path / "maps"
    for line, is_ours in (
        (f"{place} rw-p 00000000 00:00 0 \n", True),
        (f"{place} rw-p 00000000 00:00 0                          [heap]\n", True),
        (f"{place} rw-p 00000000 00:00 0                          [anon:arena]\n", True),
        (f"{place} rw-p 00000000 00:00 0                          [stack]\n", False),
        (f"{place} r--p 00000000 00:00 0 \n", False),
        (f"{place} rw-s 00000000 00:01 8                          /dev/zero (deleted)\n", False),
        (f"{place} rw-p 00000000 fe:00 4711                       /usr/lib/libc.so.6\n", False),
    ):
        maps.write_text(line)
        assert bool(large_pages.stretches(SIZE, maps)) is is_ours, line
    full.close()


@pytest.mark.parametrize(
    "resident, expected",
    [
        ([127, 127, 127], []),
        ([200, 200, 200], [1]),
        ([200, 260, 330, 420], []),
        ([200, 200, 250, 250, 250], [1]),
        ([200, 200, 252, 252, 252], [1, 3]),
        ([1000, 1000, 200, 200, 220, 300, 300], [1, 6]),
    ],
    ids=["little", "at once", "growing", "grown by less than a quarter", "grown by more", "come again"],
)
def test_memory_that_has_grown_and_stays_has_settled(resident: list[int], expected: list[int]) -> None:
    growth = large_pages.Growth()
    assert [look for look, used in enumerate(resident) if growth.has_settled(used * MIB)] == expected


def _is_in(own: re.Match[str], memory: mmap.mmap) -> bool:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return int(own[1], 16) <= address < int(own[2], 16)


def _are_to_be_had() -> bool:
    """Whether this system gives them when it is asked."""
    size = large_pages.page_size()
    if size == 0:
        return False
    with mmap.mmap(-1, 2 * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as full:
        full.write(b"x" * len(full))
        return any(large_pages.put_into_one(address, size) for address in _within(full, size))


def _within(memory: mmap.mmap, size: int) -> list[int]:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return list(range(-(-address // size) * size, address + len(memory) - size + 1, size))


needs_large_pages = pytest.mark.skipif(not _are_to_be_had(), reason="this system has no large pages")


@needs_large_pages
def test_memory_is_the_same_in_large_pages() -> None:
    """In a process of its own, whose memory is known."""
    done = subprocess.run([sys.executable, "-P", "-c", MEMORY_THAT_STAYS], capture_output=True, text=True, check=True)
    size, found, put, is_in, before, used = map(int, done.stdout.split())
    assert found * size >= 16 * MIB, "what is held is found"
    assert is_in >= put * size > found * size // 2
    assert used < before + found * size // 8, "memory does not grow"


@needs_large_pages
def test_memory_that_was_given_back_meanwhile_stays_so() -> None:
    size = large_pages.page_size()
    with mmap.mmap(-1, 4 * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * len(memory))
        found = _within(memory, size)
        memory.madvise(mmap.MADV_DONTNEED, 0, len(memory) - len(memory) % size)
        memory[0] = 1
        assert not any(large_pages.put_into_one(address, size) for address in found)
    assert not any(large_pages.put_into_one(address, size) for address in found), "it is nobody's"


async def test_no_page_is_made_while_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    active: set[str] = set()

    def put_into_one(address: int, size: int) -> bool:
        made.append(address)
        active.add(alarms.MEMORY)
        return True

    monkeypatch.setattr(large_pages, "stretches", lambda size: [size, 2 * size, 3 * size])
    monkeypatch.setattr(large_pages, "put_into_one", put_into_one)
    upkeep = Upkeep.__new__(Upkeep)
    upkeep.alarms = SimpleNamespace(active=active)  # type: ignore[assignment]
    await upkeep._enlarge_pages(SIZE)
    assert made == [SIZE]


@needs_large_pages
def test_a_broker_with_many_queues_is_in_large_pages(tmp_path: Path) -> None:
    shape = {"vhost": "/", "durable": False, "auto_delete": False, "arguments": {}}
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"queues": [{"name": f"q{number}", **shape} for number in range(20_000)]}))
    broker = BrokerProcess(tmp_path, {"memory_monitor_interval": 50}).start()
    try:
        broker.ctl("import_definitions", str(file))
        assert broker.process is not None
        rollup = Path(f"/proc/{broker.process.pid}/smaps_rollup")
        eventually(lambda: _in_large_pages(rollup) > 32 * MIB)
    finally:
        broker.stop()


def _in_large_pages(rollup: Path) -> int:
    found = re.search(r"AnonHugePages: +(\d+) kB", rollup.read_text())
    return int(found[1]) * 1024 if found else 0
