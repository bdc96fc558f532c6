"""The disk in RAM loses what a power cut may lose, all of that, and nothing else."""

from __future__ import annotations

import errno
import random

import pytest

from storage.faulty_disk import (
    SECTOR,
    CrankedThreads,
    MemoryDisk,
    all_lost,
    at_random,
    every,
    nothing_lost,
)

A, B, C = b"a" * SECTOR, b"b" * SECTOR, b"c" * SECTOR


def read(disk: MemoryDisk, path: str) -> bytes | None:
    if not disk.exists(path):
        return None
    return disk.open(path).read_at(0, 1 << 20)


def with_file(content: bytes) -> MemoryDisk:
    """A disk with a safe file /f."""
    disk = MemoryDisk()
    file = disk.open("/f", create=True)
    file.write_at(0, content)
    file.sync()
    disk.sync_dir("/")
    assert not disk.has_unsafe()
    return disk


def could_be(disk: MemoryDisk, path: str = "/f") -> set[bytes | None]:
    return {read(state, path) for state in every(disk, 5000)}


def test_synced_content_is_there():
    disk = with_file(A + B)
    assert could_be(disk) == {A + B}
    assert could_be(disk.kill()) == {A + B}


def test_unsynced_sectors_are_there_or_not_each_for_itself():
    disk = with_file(A + A)
    disk.open("/f").write_at(0, B + B)
    assert could_be(disk) == {A + A, A + B, B + A, B + B}


def test_a_sector_may_be_as_any_write_left_it():
    disk = with_file(A)
    file = disk.open("/f")
    file.write_at(0, B)
    file.write_at(0, C)
    assert could_be(disk) == {A, B, C}
    file.sync()
    assert could_be(disk) == {C}


def test_an_appended_file_may_be_short_or_hold_zeros():
    disk = with_file(A)
    disk.open("/f").write_at(SECTOR, b"tail")
    assert could_be(disk) == {A, A + b"tail", A + bytes(4)}


def test_a_long_append_may_be_there_in_part():
    disk = with_file(b"")
    disk.open("/f").write_at(0, b"x" * 4097)
    assert {len(content or b"") for content in could_be(disk)} == {0, 4096, 4097}


def test_truncation_is_unsafe_too():
    disk = with_file(A + B)
    file = disk.open("/f")
    file.truncate(SECTOR)
    assert could_be(disk) == {A + B, A, A + bytes(SECTOR)}
    file.sync()
    assert could_be(disk) == {A}
    file.truncate(2 * SECTOR)
    file.sync()
    assert could_be(disk) == {A + bytes(SECTOR)}


def test_a_new_file_needs_its_folder_synced():
    disk = MemoryDisk()
    file = disk.open("/f", create=True)
    file.write_at(0, A)
    file.sync()
    assert could_be(disk) == {None, A}
    disk.sync_dir("/")
    assert could_be(disk) == {A}


def test_names_change_in_order():
    disk = with_file(A)
    disk.rename("/f", "/g")
    disk.open("/h", create=True)
    disk.remove("/g")
    assert {tuple(state.list_dir("/")) for state in every(disk, 100)} == {("f",), ("g",), ("g", "h"), ("h",)}
    disk.sync_dir("/")
    assert {tuple(state.list_dir("/")) for state in every(disk, 100)} == {("h",)}


def test_a_renaming_between_folders_is_in_both_or_in_neither():
    disk = MemoryDisk()
    disk.make_dir("/x")
    disk.make_dir("/y")
    disk.open("/x/f", create=True)
    disk.rename("/x/f", "/y/f")
    found = {(*state.list_dir("/x"), "|", *state.list_dir("/y")) for state in every(disk, 100)}
    assert found == {("|",), ("f", "|"), ("|", "f")}
    disk.sync_dir("/y")
    found = {(*state.list_dir("/x"), "|", *state.list_dir("/y")) for state in every(disk, 100)}
    assert found == {("|", "f")}


def test_what_is_in_a_folder_is_lost_with_the_folder():
    disk = MemoryDisk()
    disk.make_dir("/x")
    safe = disk.crash(all_lost)
    assert safe.exists("/x")
    # A folder whose own name is not safe: make_dir never leaves one, a broker that is killed inside it does.
    before = disk.after(1)
    file = before.open("/x/f", create=True)
    file.write_at(0, A)
    file.sync()
    before.sync_dir("/x")
    assert could_be(before, "/x/f") == {None, A}
    before.make_dir("/x")
    assert could_be(before, "/x/f") == {A}


def test_a_failed_sync_loses_what_it_covered_and_says_so_once():
    disk = with_file(A + A)
    file = disk.open("/f")
    file.write_at(0, B)
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError) as caught:
        file.sync()
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "/f")
    assert read(disk, "/f") == B + A, "it is still in the page cache"
    file.sync()
    assert could_be(disk) == {A + A, B + A}, "the second sync succeeds and covers nothing"
    file.write_at(SECTOR, C)
    file.sync()
    assert could_be(disk) == {A + C, B + C}
    file.write_at(0, B)
    file.sync()
    assert could_be(disk) == {B + C}


def test_a_failed_write_may_have_written_a_part():
    disk = with_file(A + A)
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(OSError):
        disk.open("/f").write_at(0, B + B)
    assert read(disk, "/f") == B + A


def test_faults_strike_once_or_from_then_on_and_where_they_are_told_to():
    disk = with_file(b"")
    file = disk.open("/f")
    other = disk.open("/g", create=True)
    disk.fail("write", errno.EIO, skip=1)
    file.write_at(0, b"1")
    with pytest.raises(OSError):
        file.write_at(1, b"2")
    file.write_at(1, b"2")
    disk.fail({"write", "open"}, errno.EROFS, forever=True, path="/f")
    for _ in range(2):
        with pytest.raises(OSError):
            file.write_at(2, b"3")
        with pytest.raises(OSError):
            disk.open("/f")
    other.write_at(0, b"fine")
    disk.mend()
    file.write_at(2, b"3")
    assert read(disk, "/f") == b"123"
    assert disk.struck == 5


def test_kill_keeps_everything_readable_and_nothing_safe():
    disk = with_file(A)
    file = disk.open("/f")
    file.write_at(0, B)
    killed = disk.kill()
    file.write_at(0, C)
    assert read(killed, "/f") == B, "the killed broker's files are not the next one's"
    assert could_be(killed) == {A, B}
    killed.open("/f").sync()
    assert could_be(killed) == {B}


def test_prefixes_are_the_disk_after_each_operation():
    disk = with_file(A)
    file = disk.open("/f")
    file.write_at(0, B)
    file.sync()
    disk.rename("/f", "/g")
    kinds = [op.kind for op in disk.log]
    assert kinds == ["create", "write", "sync", "sync_dir", "write", "sync", "rename"]
    states = list(disk.prefixes())
    assert [read(state, "/f") for state in states] == [None, b"", A, A, A, B, B, None]
    assert [read(state, "/f") for state in disk.prefixes(start=4)] == [A, B, B, None]
    assert read(disk.after(4), "/f") == A
    assert could_be(disk.after(5)) == {A, B}
    assert could_be(disk.after(6)) == {B}


def test_every_draws_when_there_are_too_many():
    disk = with_file(b"")
    disk.open("/f").write_at(0, b"x" * SECTOR * 40)
    states = [read(state, "/f") or b"" for state in every(disk, 50)]
    assert len(states) == 50
    assert b"x" * SECTOR * 40 in states
    assert b"" in states
    assert len(set(states)) > 20


def test_drawn_power_cuts_repeat_with_their_seed():
    disk = with_file(b"")
    disk.open("/f").write_at(0, b"x" * SECTOR * 40)
    first, second = (read(disk.crash(at_random(random.Random(7))), "/f") for _ in range(2))
    assert first == second
    assert read(disk.crash(nothing_lost), "/f") == b"x" * SECTOR * 40


def test_cranked_threads_do_one_job_at_a_time():
    threads = CrankedThreads()
    seen: list[str] = []

    def job(name: str, error: Exception | None = None) -> None:
        def work() -> None:
            seen.append(name)
            if error is not None:
                raise error

        threads.run(work, lambda error: seen.append(f"{name} done {error}"))

    job("a")
    job("b", OSError(errno.EIO, "bad"))
    assert seen == []
    threads.work()
    assert seen == ["a"]
    threads.tell()
    assert seen == ["a", "a done None"]
    assert threads.crank()
    assert seen[2:] == ["b", "b done [Errno 5] bad"]
    assert not threads.crank()
    job("c", AssertionError("a fault in the store"))
    with pytest.raises(AssertionError):
        threads.crank_all()
