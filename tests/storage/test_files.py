"""What the store relies on when it calls Disk and DiskFile; the disk in RAM must behave the same."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rabbitpy_broker.storage import files
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.memory_disk import SyncedInTurn
from storage.faulty_disk import MemoryDisk


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "real":
        return Disk()
    memory = MemoryDisk()
    memory.make_dir(str(tmp_path))
    return memory


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def test_what_is_written_at_an_offset_is_read_there(disk: Disk, folder: str):
    file = disk.open(f"{folder}/a", create=True)
    file.write_at(0, b"one")
    file.write_at(10, b"ten")
    assert file.read_at(0, 13) == b"one\0\0\0\0\0\0\0ten"
    assert file.read_at(11, 100) == b"en"
    assert file.read_at(13, 5) == b""
    assert file.read_at(50, 5) == b""
    assert file.size() == disk.size(f"{folder}/a") == 13
    file.write_at(1, b"")
    assert file.size() == 13
    file.sync()
    file.close()


def test_opening_keeps_what_is_there(disk: Disk, folder: str):
    first = disk.open(f"{folder}/a", create=True)
    first.write_at(0, b"kept")
    first.close()
    for create in (False, True):
        file = disk.open(f"{folder}/a", create)
        assert file.path == f"{folder}/a"
        assert file.read_at(0, 10) == b"kept"
        file.close()


def test_a_file_is_made_only_when_asked_to(disk: Disk, folder: str):
    with pytest.raises(FileNotFoundError) as caught:
        disk.open(f"{folder}/none")
    assert caught.value.filename == f"{folder}/none"
    assert not disk.exists(f"{folder}/none")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/no/folder", create=True)


def test_allocate_makes_longer_and_never_shorter(disk: Disk, folder: str):
    file = disk.open(f"{folder}/a", create=True)
    file.write_at(0, b"abc")
    file.allocate(8192)
    assert file.size() == 8192
    assert file.read_at(0, 5) == b"abc\0\0"
    file.allocate(100)
    assert file.size() == 8192
    file.close()


def test_truncate_cuts_and_fills_with_zeros(disk: Disk, folder: str):
    file = disk.open(f"{folder}/a", create=True)
    file.write_at(0, b"abcdef")
    file.truncate(3)
    assert file.size() == 3
    file.truncate(6)
    assert file.read_at(0, 10) == b"abc\0\0\0"
    file.close()


def test_a_closed_file_is_closed(disk: Disk, folder: str):
    file = disk.open(f"{folder}/a", create=True)
    file.close()
    file.close()
    calls: list[Callable[[], object]] = [
        lambda: file.write_at(0, b"x"),
        lambda: file.read_at(0, 1),
        file.size,
        lambda: file.allocate(10),
        lambda: file.truncate(10),
        file.sync,
    ]
    for call in calls:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF
        assert caught.value.filename == f"{folder}/a"


def test_folders_are_made_with_those_above(disk: Disk, folder: str):
    disk.make_dir(f"{folder}/a/b/c")
    disk.make_dir(f"{folder}/a/b/c")
    disk.make_dir(f"{folder}/a/d")
    assert disk.list_dir(f"{folder}/a") == ["b", "d"]
    assert disk.list_dir(f"{folder}/none") == []
    assert disk.exists(f"{folder}/a/b/c")
    disk.open(f"{folder}/a/file", create=True).close()
    with pytest.raises(FileExistsError):
        disk.make_dir(f"{folder}/a/file")


def test_a_rename_takes_the_place_of_what_was_there(disk: Disk, folder: str):
    for name, content in (("a", b"new"), ("b", b"old")):
        file = disk.open(f"{folder}/{name}", create=True)
        file.write_at(0, content)
        file.close()
    open_file = disk.open(f"{folder}/a")
    disk.rename(f"{folder}/a", f"{folder}/b")
    disk.sync_dir(folder)
    assert disk.list_dir(folder) == ["b"]
    open_file.write_at(3, b"er")
    file = disk.open(f"{folder}/b")
    assert file.read_at(0, 9) == b"newer"
    file.close()
    open_file.close()
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{folder}/a", f"{folder}/c")


def test_a_removed_file_can_be_read_while_it_is_open(disk: Disk, folder: str):
    file = disk.open(f"{folder}/a", create=True)
    file.write_at(0, b"still here")
    disk.remove(f"{folder}/a")
    disk.remove(f"{folder}/a")
    assert not disk.exists(f"{folder}/a")
    assert file.read_at(0, 20) == b"still here"
    file.close()
    with pytest.raises(FileNotFoundError):
        disk.size(f"{folder}/a")


def test_a_tree_is_removed_whole(disk: Disk, folder: str):
    disk.make_dir(f"{folder}/a/b")
    disk.open(f"{folder}/a/b/file", create=True).close()
    disk.open(f"{folder}/a/file", create=True).close()
    disk.remove_tree(f"{folder}/a")
    disk.remove_tree(f"{folder}/a")
    assert disk.list_dir(folder) == []


def test_many_files_are_synced_together(disk: Disk, folder: str):
    opened = [disk.open(f"{folder}/{num}", create=True) for num in range(17)]
    for file in opened:
        file.write_at(0, b"x" * 100)
    disk.sync_all(opened[:2])
    disk.sync_all(opened)
    opened[5].close()
    with pytest.raises(OSError) as caught:
        disk.sync_all(opened)
    assert caught.value.filename == f"{folder}/5"
    for file in opened:
        file.close()


def test_many_files_and_folders_are_synced_by_name(disk: Disk, folder: str):
    folders = [f"{folder}/{num}" for num in range(30)]
    for name in folders:
        disk.add_dir(name)
        disk.open(f"{name}/a", create=True).close()
    disk.sync_names([f"{name}/a" for name in folders], folders)
    disk.sync_names([], [])
    for files_, folders_ in (([f"{folder}/7/a", f"{folder}/none"], []), ([], [folder, f"{folder}/none"])):
        with pytest.raises(FileNotFoundError) as caught:
            disk.sync_names(files_, folders_)
        assert caught.value.filename == f"{folder}/none"


def test_every_file_and_folder_is_synced_by_name(folder: str, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []
    monkeypatch.setattr(DiskFile, "sync", lambda file: synced.append(file.path))
    monkeypatch.setattr(Disk, "sync_dir", lambda _, path: synced.append(path))
    names = [f"{folder}/{num}" for num in range(100)]
    for name in names:
        Disk().open(name, create=True).close()
    Disk().sync_names(names, [folder])
    assert sorted(synced[:-1]) == sorted(names)
    assert synced[-1] == folder, "folders come behind the files in them"


def test_a_full_disk_is_named():
    file = Disk().open("/dev/full")
    with pytest.raises(OSError) as caught:
        file.write_at(0, b"x")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == "/dev/full"
    file.close()


def test_short_writes_and_reads_are_continued(folder: str, monkeypatch: pytest.MonkeyPatch):
    file = Disk().open(f"{folder}/a", create=True)
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(files.os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3], offset))
    monkeypatch.setattr(files.os, "pread", lambda fd, size, offset: pread(fd, min(size, 2), offset))
    file.write_at(5, b"in many pieces")
    assert file.read_at(5, 14) == b"in many pieces"
    assert file.read_at(15, 14) == b"eces"

    def writing_nothing(fd: int, data: bytes, offset: int) -> int:
        return 0

    monkeypatch.setattr(files.os, "pwrite", writing_nothing)
    with pytest.raises(OSError) as caught:
        file.write_at(0, b"x")
    assert caught.value.errno == errno.EIO
    file.close()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC, None])
def test_a_file_system_that_cannot_allocate_does_without(
    folder: str, monkeypatch: pytest.MonkeyPatch, code: int | None
):
    def fallocate(fd: int, offset: int, size: int) -> None:
        assert code is not None
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "_posix_fallocate", fallocate if code is not None else None)
    file = Disk().open(f"{folder}/a", create=True)
    if code == errno.ENOSPC:
        with pytest.raises(OSError) as caught:
            file.allocate(100)
        assert caught.value.filename == f"{folder}/a"
    else:
        file.allocate(100)
        assert file.size() == 0
    file.close()


@pytest.mark.parametrize("can_begin", [True, False])
def test_each_file_is_synced_by_itself(folder: str, monkeypatch: pytest.MonkeyPatch, can_begin: bool):
    synced: list[int] = []
    if not can_begin:
        monkeypatch.setattr(files, "_sync_file_range", None)
    monkeypatch.setattr(files, "_fdatasync", synced.append)
    opened = [Disk().open(f"{folder}/{num}", create=True) for num in range(20)]
    Disk().sync_all(opened)
    assert synced == [file._fd for file in opened]
    for file in opened:
        file.close()


def test_syncing_many_files_ends_where_it_is_told_to(disk: Disk, folder: str):
    opened = [disk.open(f"{folder}/{num}", create=True) for num in range(5)]
    asked: list[int] = []

    def go_on() -> None:
        asked.append(len(asked))
        if len(asked) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        disk.sync_all(opened, go_on)
    assert asked == [0, 1, 2]
    for file in opened:
        file.close()


@pytest.mark.parametrize("at_once", [True, False, None], ids=["one call", "not supported", "not there"])
@pytest.mark.parametrize("taken", [100, 7, 0], ids=["whole", "short", "nothing"])
def test_a_synced_write_is_a_write_and_a_sync(
    folder: str, monkeypatch: pytest.MonkeyPatch, at_once: bool | None, taken: int
):
    """In one call where the system has it; what that leaves over is written and synced like anything else."""
    synced: list[int] = []
    pwritev = os.pwritev

    def partly(fd: int, parts: list[bytes], offset: int, flags: int) -> int:
        assert flags == os.RWF_DSYNC
        if not at_once:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return pwritev(fd, [b"".join(parts)[:taken]], offset)

    monkeypatch.setattr(files, "_fdatasync", synced.append)
    monkeypatch.setattr(files.os, "pwritev", partly)
    if at_once is None:
        monkeypatch.setattr(files, "_RWF_DSYNC", None)
    file = Disk().open(f"{folder}/a", create=True)
    file.write_synced(3, [b"0123", b"456789"])
    assert file.read_at(0, 20) == b"\0\0\0" + b"0123456789"
    assert synced == ([] if at_once and taken == 100 else [file._fd])
    file.close()


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="the system has no write that is a sync too")
def test_a_synced_write_that_fails_names_the_file(folder: str, monkeypatch: pytest.MonkeyPatch):
    def failing(fd: int, parts: list[bytes], offset: int, flags: int) -> int:
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(files.os, "pwritev", failing)
    file = Disk().open(f"{folder}/a", create=True)
    with pytest.raises(OSError) as caught:
        file.write_synced(0, [b"a", b"b"])
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, f"{folder}/a")
    file.close()


def test_parts_are_written_one_behind_the_other(disk: Disk, folder: str):
    file = disk.open(f"{folder}/a", create=True)
    file.write_parts(2, [b"ab", b"", b"cde"])
    file.write_synced(7, [b"f", b"gh"])
    assert file.read_at(0, 20) == b"\0\0abcdefgh"
    file.close()


def test_more_parts_than_one_call_takes_are_written(disk: Disk, folder: str):
    file = disk.open(f"{folder}/a", create=True)
    parts = [b"%04d" % number for number in range(3000)]
    file.write_parts(4, parts)
    assert file.read_at(4, 20000) == b"".join(parts)
    file.close()


def test_a_folder_is_added_where_there_is_one(disk: Disk, folder: str):
    for _ in range(2):
        disk.add_dir(f"{folder}/a")
    assert disk.list_dir(folder) == ["a"]
    with pytest.raises(FileNotFoundError):
        disk.add_dir(f"{folder}/b/c")
    disk.open(f"{folder}/file", create=True).close()
    with pytest.raises(FileExistsError):
        disk.add_dir(f"{folder}/file")


def test_a_sync_that_fails_names_the_file(folder: str, monkeypatch: pytest.MonkeyPatch):
    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(files, "_fdatasync", failing)
    file = Disk().open(f"{folder}/a", create=True)
    with pytest.raises(OSError) as caught:
        file.sync()
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, f"{folder}/a")
    file.close()
    monkeypatch.setattr(files.os, "fsync", failing)
    with pytest.raises(OSError) as caught:
        Disk().sync_dir(folder)
    assert caught.value.filename == folder


def test_a_file_system_that_cannot_sync_folders_does_without(folder: str, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def cannot(fd: int) -> None:
        asked.append(fd)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(files.os, "fsync", cannot)
    Disk().sync_dir(folder)
    assert len(asked) == 1


def test_every_method_is_in_both_disks():
    """A method that the disk in RAM does not have would reach the real one from a test."""

    def own(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    from storage.faulty_disk import MemoryFile

    assert own(Disk) <= own(MemoryDisk) | own(SyncedInTurn)
    assert own(DiskFile) - {"start_sync"} <= own(MemoryFile)
