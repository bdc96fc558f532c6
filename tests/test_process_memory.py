"""The memory of this process: what is used, and what it could have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rabbitpy_broker import process_memory


def test_memory_used_grows_with_what_is_held() -> None:
    before = process_memory.used()
    held = b"x" * 50_000_000
    assert 45_000_000 < process_memory.used() - before < 60_000_000
    assert len(held) == 50_000_000


BACKLOG_THAT_GOES = """
import sys
from rabbitpy_broker import process_memory

process_memory._malloc_trim = None
process_memory._CAN_BE_ASKED = False
size = int(sys.argv[1])
held = [b"x" * (size + number % 2) for number in range(60_000_000 // size)]
full = process_memory.used()
kept = held[:: 2_000_000 // size]  # so that what is free does not lie at the end of the heap alone
del held
process_memory.give_back()
print(full - process_memory.used())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel what is resident")
@pytest.mark.parametrize("size", [1500, 5000, 100_000])
def test_memory_that_is_free_inside_is_given_back_when_the_allocator_cannot_be_asked_to(size: int) -> None:
    """In a process of its own, where nothing else has left free memory."""
    done = subprocess.run([sys.executable, "-c", BACKLOG_THAT_GOES, str(size)], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 40_000_000


@pytest.mark.parametrize("can_be_asked", [True, False])
def test_giving_back_leaves_what_is_in_use_as_it_was(monkeypatch: pytest.MonkeyPatch, can_be_asked: bool) -> None:
    monkeypatch.setattr(process_memory, "_CAN_BE_ASKED", can_be_asked)
    held = [os.urandom(size) for size in (100, 600, 5000, 16_384, 70_000, 1 << 20, 3 << 20) for _ in range(20)]
    copies = [bytes(bytearray(body)) for body in held]
    del held[::2]
    process_memory.give_back()
    assert held == copies[1::2]


@pytest.mark.parametrize("can_be_asked", [True, False])
def test_giving_back_again_does_nothing_more_and_takes_no_memory(monkeypatch: pytest.MonkeyPatch, can_be_asked: bool) -> None:
    monkeypatch.setattr(process_memory, "_CAN_BE_ASKED", can_be_asked)
    process_memory.give_back()
    before = process_memory.used()
    for _ in range(5):
        process_memory.give_back()
    assert process_memory.used() < before + 2_000_000


def test_available_memory_is_the_machines_or_less() -> None:
    assert 0 < process_memory.available() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cgroup_files(root: Path, line: str, files: dict[str, str]) -> tuple[Path, Path]:
    proc, cgroup = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(line)
    for name, text in files.items():
        file = cgroup / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return proc, cgroup


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/app/broker\n", {"app/broker/memory.max": "600"}, 600),
        ("0::/app/broker\n", {"app/broker/memory.max": "max", "app/memory.max": "500"}, 500),
        ("0::/app/broker\n", {"app/broker/memory.max": "400", "app/memory.max": "500"}, 400),
        ("0::/\n", {"memory.max": "300"}, 300),
        ("0::/on/the/host\n", {"memory.max": "300"}, 300),
        ("0::/app\n", {"app/memory.max": "max"}, 1000),
        ("0::/app\n", {"app/memory.max": "5000"}, 1000),
        ("0::/app\n", {}, 1000),
        ("4:cpu:/app\n3:memory:/app\n", {"memory/app/memory.limit_in_bytes": "700"}, 700),
        ("3:cpu,memory:/app\n", {"memory/memory.limit_in_bytes": "700"}, 700),
        ("3:memory:/app\n0::/app\n", {"memory/app/memory.limit_in_bytes": "9223372036854771712"}, 1000),
    ],
)
def test_available_memory_is_cut_to_the_control_group(
    tmp_path: Path, line: str, files: dict[str, str], expected: int
) -> None:
    proc, cgroup = cgroup_files(tmp_path, line, files)
    assert process_memory.available(proc, cgroup, machine_bytes=1000) == expected


def test_available_memory_without_control_groups(tmp_path: Path) -> None:
    assert process_memory.available(tmp_path, tmp_path, machine_bytes=1000) == 1000
