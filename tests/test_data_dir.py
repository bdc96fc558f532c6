"""The data directory belongs to one broker at a time, and to nobody after a crash; no broker touches a newer format."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rabbitpy_broker.data_dir import QUORUM_FORMAT, STREAM_FORMAT, check_format, lock_data_dir, raise_format
from rabbitpy_broker.errors import StartError

HOLDER = """
import sys
from rabbitpy_broker.data_dir import lock_data_dir
lock = lock_data_dir(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


def test_the_directory_is_made_for_this_user_only(tmp_path: Path) -> None:
    lock = lock_data_dir(tmp_path / "a" / "data")
    assert stat.S_IMODE((tmp_path / "a" / "data").stat().st_mode) == 0o700
    lock.release()


def test_a_second_broker_is_told_who_has_the_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDER, os.fspath(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(StartError) as caught:
            lock_data_dir(tmp_path)
        assert str(caught.value) == f"the data directory {tmp_path} is in use by process {holder.pid}"
        holder.send_signal(signal.SIGKILL)
    lock_data_dir(tmp_path).release()


def test_two_brokers_in_one_process_are_kept_apart_too(tmp_path: Path) -> None:
    lock = lock_data_dir(tmp_path)
    with pytest.raises(StartError, match=f"in use by process {os.getpid()}"):
        lock_data_dir(tmp_path)
    lock.release()
    lock.release()
    lock_data_dir(tmp_path).release()


def test_the_owner_of_the_lock_is_always_the_latest(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789012345\n")
    lock = lock_data_dir(tmp_path)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()


@pytest.mark.parametrize("below", [False, True], ids=["is a file", "is below a file"])
def test_a_file_in_the_way_is_one_clear_line(tmp_path: Path, below: bool) -> None:
    file = tmp_path / "file"
    file.write_text("")
    path = file / "data" if below else file
    with pytest.raises(StartError) as caught:
        lock_data_dir(path)
    assert str(caught.value).startswith(f"cannot use the data directory {path}: ")
    assert "\n" not in str(caught.value)


def test_a_new_directory_gets_our_format(tmp_path: Path) -> None:
    check_format(tmp_path)
    assert (tmp_path / "format").read_bytes() == b"1\n"
    assert stat.S_IMODE((tmp_path / "format").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["format"]
    check_format(tmp_path)
    assert (tmp_path / "format").read_bytes() == b"1\n"


def test_a_directory_from_before_formats_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "definitions.sqlite").write_bytes(b"definitions")
    check_format(tmp_path, migrations=[refuse_to_migrate])
    assert (tmp_path / "format").read_bytes() == b"2\n"
    assert (tmp_path / "definitions.sqlite").read_bytes() == b"definitions"


def test_a_newer_format_is_refused_with_both_numbers_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("17\n")
    with pytest.raises(StartError) as caught:
        check_format(tmp_path)
    assert str(caught.value) == (
        f"the data directory {tmp_path} was written by a newer rabbitpy-broker: it has format 17, this one knows "
        "formats up to 3"
    )
    assert (tmp_path / "format").read_text() == "17\n"


@pytest.mark.parametrize("text", [b"", b"\n", b"0\n", b"-1\n", b"1.5", b"one", b"1\n2\n", b"\xff\x00", b" 1", b"1" * 5000])
def test_a_format_that_is_no_number_is_refused_and_left_alone(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "format").write_bytes(text)
    with pytest.raises(StartError, match=r"has an unknown format: its file format should hold a number up to 3, it holds b'"):
        check_format(tmp_path)
    assert (tmp_path / "format").read_bytes() == text


def test_a_half_written_new_format_is_nobodys(tmp_path: Path) -> None:
    """What a crash leaves behind that came before the rename."""
    (tmp_path / "format.new").write_bytes(b"")
    check_format(tmp_path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("format", b"1\n")]


def refuse_to_migrate(directory: Path) -> None:
    raise StartError(f"{directory} was to be migrated")


def test_an_older_directory_is_migrated_step_by_step(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def step(name: str, fault: OSError | None = None):
        def migrate(directory: Path) -> None:
            seen.append((name, (directory / "format").read_text()))
            if fault is not None:
                raise fault

        return migrate

    (tmp_path / "format").write_text("2\n")
    broken = [refuse_to_migrate, step("to 3"), step("to 4", OSError(28, "No space left on device"))]
    with pytest.raises(StartError, match=r"cannot use the data directory .*: No space left on device"):
        check_format(tmp_path, migrations=broken)
    assert (tmp_path / "format").read_text() == "3\n"
    check_format(tmp_path, migrations=[refuse_to_migrate, refuse_to_migrate, step("to 4"), step("to 5")])
    assert (tmp_path / "format").read_text() == "5\n"
    assert seen == [("to 3", "2\n"), ("to 4", "3\n"), ("to 4", "3\n"), ("to 5", "4\n")]


def test_a_format_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "format").mkdir()
    with pytest.raises(StartError, match=r"cannot use the data directory .*: Is a directory"):
        check_format(tmp_path)


def test_a_directory_gets_the_format_of_quorum_queues_and_of_streams_when_it_is_needed(tmp_path: Path) -> None:
    check_format(tmp_path)
    for number, text in ((QUORUM_FORMAT, b"2\n"), (QUORUM_FORMAT, b"2\n"), (STREAM_FORMAT, b"3\n"), (QUORUM_FORMAT, b"3\n")):
        raise_format(tmp_path, number)
        assert (tmp_path / "format").read_bytes() == text
        check_format(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["format"]
