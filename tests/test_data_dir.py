"""The data directory belongs to one broker at a time, and to nobody after a crash."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rabbitpy_broker.data_dir import lock_data_dir
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
        [sys.executable, "-c", HOLDER, os.fspath(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
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
