"""What is said of windows with and without readers."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from perf import with_readers
from perf.with_readers import SETTLE, WINDOW, Windows, less, likely, told


class Reading:
    """In the place of a process that reads."""

    begun = 0
    ended = 0

    def __init__(self, *_: Any) -> None:
        Reading.begun += 1

    def stop(self) -> dict[str, float]:
        Reading.ended += 1
        return {"cpu": 0.25}


def test_each_window_with_readers_is_compared_with_the_two_beside_it():
    assert less([100.0, 97.0, 100.0, 88.0, 120.0]) == pytest.approx([0.03, 0.2])


def test_the_median_of_most_drawings_lies_between_the_least_and_the_largest():
    low, high = likely([0.01, 0.02, 0.03, 0.04, 0.05] * 20)
    assert 0.01 <= low <= 0.03 <= high <= 0.05
    assert likely([0.02] * 5) == (0.02, 0.02)


def test_what_is_told_is_in_percent():
    assert told([100.0, 98.0, 100.0])["less %, median"] == 2.0


def test_readers_are_there_in_every_other_window_and_what_is_between_two_is_in_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(with_readers, "Helper", Reading)
    broker: Any = SimpleNamespace(session=os.getpid())
    windows = Windows(broker, "http://127.0.0.1:1/api", (3, 5))
    there = []
    for _ in range(4):
        for second in range(SETTLE + WINDOW):
            windows.on_second(1_000 if second < SETTLE else 7)
            there.append(Reading.begun - Reading.ended)
    assert [window.messages for window in windows.all] == [7 * WINDOW] * 4
    assert all(window.seconds > 0 for window in windows.all)
    assert there == ([0] * (SETTLE + WINDOW) + [1] * (SETTLE + WINDOW)) * 2
    assert windows.readers_cpu == [0.25]
