"""Files that backups are written to: one at a time for a name, by whichever process, and nothing is left that is in the way."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rabbitpy_broker.cluster.backup import write_file
from rabbitpy_broker.errors import BrokerError


async def whole(body: bytes) -> AsyncIterator[bytes]:
    yield body


class Gate:
    """A backup that stops behind its first half."""

    def __init__(self, body: bytes) -> None:
        self.is_there = asyncio.Event()
        self.goes_on = asyncio.Event()
        self._body = body

    async def parts(self) -> AsyncIterator[bytes]:
        half = len(self._body) // 2
        yield self._body[:half]
        self.is_there.set()
        await self.goes_on.wait()
        yield self._body[half:]


async def test_two_backups_to_one_file(tmp_path: Path):
    """As two workers write them: a lock is of one opening of a file, also within a process."""
    path = tmp_path / "orders"
    gate = Gate(b"the first")
    first = asyncio.ensure_future(write_file(str(path), gate.parts()))
    await gate.is_there.wait()
    with pytest.raises(BrokerError, match="another backup is being written to"):
        await write_file(str(path), whole(b"the second"))
    gate.goes_on.set()
    assert await first == len(b"the first")
    assert path.read_bytes() == b"the first"
    await write_file(str(path), whole(b"the next"))
    assert path.read_bytes() == b"the next"
    assert list(tmp_path.iterdir()) == [path]


async def test_what_a_kill_has_left_is_in_nobodys_way(tmp_path: Path):
    path, left = tmp_path / "orders", tmp_path / "orders.part"
    left.write_bytes(b"half of somewhat more")
    await write_file(str(path), whole(b"all"))
    assert path.read_bytes() == b"all"
    assert not left.exists()


async def test_a_backup_that_is_given_up_leaves_nothing(tmp_path: Path):
    gate = Gate(b"the first")
    first = asyncio.ensure_future(write_file(str(tmp_path / "orders"), gate.parts()))
    await gate.is_there.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("of", ["what a kill has left", "its own"])
async def test_a_file_that_is_changed_for_another_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
):
    """Another process has taken it for what a kill had left, or renamed it: it is let go of, and not written to."""
    path, part = tmp_path / "orders", tmp_path / "orders.part"
    if of == "what a kill has left":
        part.write_bytes(b"of another")

    def late(file: int, how: int, lock: Callable[[int, int], None] = fcntl.flock) -> None:
        monkeypatch.undo()
        part.replace(path)  # by the other process
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert await write_file(str(path), whole(b"all")) == 3
    assert path.read_bytes() == b"all"
    assert list(tmp_path.iterdir()) == [path]
