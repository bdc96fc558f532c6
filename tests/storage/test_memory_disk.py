"""The disk in memory: as any disk; after a power cut it holds what the disk of the store's own tests is sure to keep."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.memory_disk import MemoryDisk
from storage.faulty_disk import ROOT
from storage.faulty_disk import MemoryDisk as DrawingDisk

FOLDERS = ("/a", "/b")
FILES = tuple(f"{folder}/{name}" for folder in FOLDERS for name in ("x", "y"))
Step = Callable[[Disk], object]


def write(path: str, offset: int, data: bytes, sync: bool) -> Step:
    def step(disk: Disk) -> None:
        file = disk.open(path, create=True)
        if sync:
            file.write_synced(offset, [data])
        else:
            file.write_parts(offset, [data[:3], data[3:]])
        file.close()

    return step


def change(name: str, path: str, size: int) -> Step:
    def step(disk: Disk) -> None:
        if disk.exists(path):
            file = disk.open(path)
            if name == "sync":
                file.sync()
            else:
                getattr(file, name)(size)
            file.close()

    return step


def rename(old: str, new: str) -> Step:
    return lambda disk: disk.rename(old, new) if disk.exists(old) and old != new else None


STEPS = st.one_of(
    st.builds(
        write, st.sampled_from(FILES), st.integers(0, 5) | st.just(700), st.binary(min_size=1, max_size=9), st.booleans()
    ),
    st.builds(change, st.sampled_from(("allocate", "truncate", "sync")), st.sampled_from(FILES), st.integers(0, 20)),
    st.builds(rename, st.sampled_from(FILES), st.sampled_from(FILES)),
    st.builds(lambda path: lambda disk: disk.remove(path), st.sampled_from(FILES)),
    st.builds(lambda path: lambda disk: disk.sync_dir(path), st.sampled_from(FOLDERS)),
)


@pytest.mark.parametrize("offset", [0, 1, 9])
def test_what_is_written_into_space_that_was_only_allocated_is_lost(offset: int) -> None:
    disk = MemoryDisk()
    disk.make_dir("/a")
    write("/a/x", 0, b"\x05", True)(disk)
    change("allocate", "/a/x", 12)(disk)
    change("sync", "/a/x", 0)(disk)
    disk.sync_dir("/a")
    write("/a/x", offset, b"\x01\x02", False)(disk)
    assert content(disk) != {"/a/x": b"\x05".ljust(12, b"\0")}
    disk.power_cut()
    assert content(disk) == {"/a/x": b"\x05".ljust(12, b"\0")}


def content(disk: Disk) -> dict[str, bytes]:
    found = {}
    for path in FILES:
        if disk.exists(path):
            file = disk.open(path)
            assert file.size() == disk.size(path)
            found[path] = file.read_at(0, file.size() + 10)
    return found


def safe_content(disk: DrawingDisk) -> dict[str, bytes]:
    """What the other disk is sure to keep."""
    kept = disk._content
    root = kept.folders[ROOT].safe
    return {
        f"/{folder}/{name}": bytes(kept.files[node].safe)
        for folder, number in root.items()
        for name, node in kept.folders[number].safe.items()
    }


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=25))
def test_it_reads_and_loses_as_the_disk_of_the_stores_tests(steps: list[Step]):
    ours, theirs = MemoryDisk(), DrawingDisk()
    for folder in FOLDERS:
        ours.make_dir(folder)
        theirs.make_dir(folder)
    for step in steps:
        step(ours)
        step(theirs)
    assert content(ours) == content(theirs)
    assert [ours.list_dir(folder) for folder in FOLDERS] == [theirs.list_dir(folder) for folder in FOLDERS]
    ours.power_cut()
    assert content(ours) == safe_content(theirs)


def test_space_that_is_only_asked_for_takes_no_memory():
    disk = MemoryDisk()
    disk.make_dir("/journal")
    file = disk.open("/journal/0", create=True)
    file.allocate(1 << 40)
    file.write_at(4_096, b"x" * 100)
    assert (file.size(), disk.used_bytes()) == (1 << 40, 4_196)
    assert file.read_at(5_000, 10) == bytes(10)


def test_a_full_disk_takes_nothing_new_and_what_has_its_space():
    disk = MemoryDisk()
    disk.make_dir("/a")
    file = disk.open("/a/x", create=True)
    file.allocate(100)
    disk.is_full = True
    file.write_at(0, b"y" * 100)
    for call in (
        lambda: file.write_at(1, b"y" * 100),
        lambda: file.allocate(101),
        lambda: disk.open("/a/y", create=True),
        lambda: disk.add_dir("/a/z"),
    ):
        with pytest.raises(OSError) as full:
            call()
        assert full.value.errno == errno.ENOSPC
    disk.is_full = False
    file.write_at(1, b"y" * 100)


def test_files_are_closed_by_a_power_cut():
    disk = MemoryDisk()
    disk.make_dir("/a")
    file = disk.open("/a/x", create=True)
    disk.power_cut()
    with pytest.raises(OSError) as closed:
        file.write_at(0, b"x")
    assert closed.value.errno == errno.EBADF
    assert closed.value.filename == "/a/x"
    assert disk.list_dir("/a") == []


def test_errors_are_those_of_a_disk():
    disk = MemoryDisk()
    disk.make_dir("/a/b")
    disk.open("/a/file", create=True)
    for code, call in (
        (errno.ENOENT, lambda: disk.open("/a/none")),
        (errno.ENOENT, lambda: disk.open("/none/x", create=True)),
        (errno.ENOENT, lambda: disk.size("/none")),
        (errno.ENOENT, lambda: disk.rename("/a/none", "/a/x")),
        (errno.EISDIR, lambda: disk.open("/a/b")),
        (errno.EISDIR, lambda: disk.remove("/a/b")),
        (errno.ENOTDIR, lambda: disk.list_dir("/a/file")),
        (errno.ENOTDIR, lambda: disk.remove_tree("/a/file")),
        (errno.EEXIST, lambda: disk.add_dir("/a/file")),
        (errno.ENOENT, lambda: disk.sync_dir("/none")),
    ):
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == code
    disk.remove("/a/none")
    disk.remove_tree("/none")
    disk.remove_tree("/a")
    assert not disk.exists("/a")
