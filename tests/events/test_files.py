"""The files of the event journal: which are kept, and a disk that does not take them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from event_records import segments
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.events import files as module
from rabbitpy_broker.events import layout
from rabbitpy_broker.events.files import EventFiles, note_off

RECORD = bytes(range(48))


class Log:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def info(self, event: str, **_: Any) -> None:
        self.said.append(("info", event))

    def warning(self, event: str, **_: Any) -> None:
        self.said.append(("warning", event))

    def error(self, event: str, **_: Any) -> None:
        self.said.append(("error", event))


@pytest.fixture
def log() -> Log:
    return Log()


def opened(folder: Path, log: Log, segment_size: int = 4896, max_size: int = 0, max_age_s: float = 0) -> EventFiles:
    made = EventFiles(folder, segment_size, max_size, max_age_s, log)
    made.open()
    return made


def numbers(folder: Path) -> list[int]:
    return [segment.header.segment for segment in segments(folder)]


def test_segments_go_when_they_are_too_old(tmp_path: Path, log: Log):
    """Only when one is full; never the one that is written, and each with its names."""
    made = opened(tmp_path, log, max_age_s=3600)
    for _ in range(3):
        made.write(RECORD * 100)
    assert numbers(tmp_path) == [1, 2, 3, 4]
    for number in (1, 2, 4):
        os.utime(tmp_path / layout.segment_name(number), (1, 1))
    made.write(RECORD * 100)
    made.close()
    assert numbers(tmp_path) == [3, 4, 5], "4 was written just now"
    assert sorted(path.name for path in tmp_path.glob("*.names")) == [layout.names_name(one) for one in (3, 4, 5)]


def test_what_is_alive_has_its_name_in_each_segment(tmp_path: Path, log: Log):
    made = opened(tmp_path, log)
    made.name(1, "queue", "/", "gone", {})
    made.name(2, "queue", "/", "there, größer", {"durable": True})
    made.write(RECORD)
    made.forget(1)
    made.write(RECORD * 100)
    made.name(3, "exchange", "/", "new", {})
    made.write(RECORD)
    made.close()
    first, second = segments(tmp_path)
    assert set(first.names) == {1, 2} and set(second.names) == {2, 3}
    assert second.names[2] == {"id": 2, "kind": "queue", "vhost": "/", "name": "there, größer", "durable": True}


@pytest.mark.parametrize("taken", [0, 48 * 3 + 7])
def test_a_disk_that_is_full_costs_events_and_nothing_else(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, taken: int
):
    """What was written whole stays; what comes after the trouble is in a segment that tells of the gap."""
    made = opened(tmp_path, log)
    made.write(RECORD * 2)
    real = os.write
    left = [taken]

    def full(fd: int, data: Any) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        size, left[0] = left[0], 0
        return real(fd, bytes(data)[:size])

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", full)
        for _ in range(3):
            made.write(RECORD * 10)
    made.write(RECORD * 5)
    made.close()
    first, second = segments(tmp_path)
    assert (len(first.records), len(second.records)) == (2 + taken // 48, 5)
    assert (tmp_path / layout.segment_name(1)).stat().st_size == layout.HEADER_SIZE + 48 * len(first.records)
    assert first.header.flags == 0
    assert second.header.flags == layout.AFTER_GAP | layout.CLOSED | layout.CLEAN
    assert second.header.boot == 1
    assert log.said == [("error", "events lost"), ("info", "event journal goes on")]


def test_a_header_that_is_damaged_is_told(tmp_path: Path, log: Log):
    opened(tmp_path, log).close()
    data = (tmp_path / layout.segment_name(1)).read_bytes()
    assert layout.unpack_header(data).segment == 1
    damaged = data[:20] + b"x" + data[21:]
    for bad, text in ((data[:95], "too short"), (b"x" + data[1:], "no segment"), (damaged, "a damaged header")):
        with pytest.raises(ValueError, match=text):
            layout.unpack_header(bad)


def test_a_broker_without_a_journal_leaves_no_trace_but_where_there_is_one(tmp_path: Path, log: Log):
    note_off(tmp_path)
    note_off(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []
    opened(tmp_path, log).close()
    note_off(tmp_path)
    opened(tmp_path, log).close()
    opened(tmp_path, log).close()
    assert [one.header.flags & layout.AFTER_GAP for one in segments(tmp_path)] == [0, layout.AFTER_GAP, 0]


def test_a_folder_that_cannot_be_made_ends_the_start(tmp_path: Path, log: Log):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"event journal: .*Not a directory"):
        opened(tmp_path / "file" / "events", log)
