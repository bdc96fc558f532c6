"""What is said of windows with and without readers."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from perf import with_readers
from perf.with_readers import (
    SAMPLE_S,
    SETTLE,
    WINDOW,
    Sample,
    Speeds,
    Windows,
    a_cpu_second,
    a_second,
    at_full_speed,
    less,
    likely,
    told,
)


class Reading:
    """In the place of a process that reads."""

    begun = 0
    ended = 0

    def __init__(self, *_: Any) -> None:
        Reading.begun += 1

    def stop(self) -> dict[str, float]:
        Reading.ended += 1
        return {"cpu": 0.25}


STEADY = Speeds([(0.0, 100)])


def sample(rate: int, ends_at: float = 1.0) -> Sample:
    return Sample(ends_at, rate, SAMPLE_S)


def test_each_window_with_readers_is_compared_with_the_two_beside_it():
    assert less([100.0, 97.0, 100.0, 88.0, 120.0]) == pytest.approx([0.03, 0.2])


def test_the_median_of_most_drawings_lies_between_the_least_and_the_largest():
    low, high = likely([0.01, 0.02, 0.03, 0.04, 0.05] * 20)
    assert 0.01 <= low <= 0.03 <= high <= 0.05
    assert likely([0.02] * 5) == (0.02, 0.02)


def test_what_is_told_is_in_percent():
    assert told([100.0, 98.0, 100.0])["less %, median"] == 2.0


def test_rates_are_of_a_second_and_of_a_second_of_the_broker():
    assert a_second(Sample(1.0, 10, 0.05)) == pytest.approx(100)
    assert a_cpu_second(Sample(1.0, 10, 0.05)) == pytest.approx(200)


def test_a_core_has_the_speed_of_its_sums_while_a_sample_was_taken():
    quick, slow = 100, 200
    speeds = Speeds([(0.05, quick), (0.95, slow), (0.96, quick), (1.05, slow), (1.06, slow), (2.05, quick)])
    assert speeds.of(sample(0, ends_at=1.0)) == pytest.approx(0.75)
    assert speeds.of(sample(0, ends_at=1.1)) == pytest.approx(0.5)
    assert speeds.of(sample(0, ends_at=1.5)) == pytest.approx(0.5), "the last one before, where there was none"
    assert speeds.of(sample(0, ends_at=0.01)) == 1.0, "the first one, where there was none before"


def test_the_quickest_sums_are_full_speed_though_single_ones_are_quicker():
    speeds = Speeds([(1.0 + number, 100) for number in range(9)] + [(0.5, 40)])
    assert speeds.of(sample(0, ends_at=0.5)) == 1.0


def test_sums_that_the_clock_has_no_time_for_tell_nothing():
    speeds = Speeds([(0.05, 100), (0.95, 0), (1.0, 200)] + [(2.0 + number, 100) for number in range(9)])
    assert speeds.of(sample(1, 1.0)) == 0.5


def test_windows_are_told_as_if_the_core_had_been_at_full_speed_all_the_while():
    done = [(number / 10 - 0.05, 100 if number % 2 else 200) for number in range(1, 61)]  # full and half speed in turns
    speeds = Speeds(done)

    def window(first: int, *rates: int) -> list[Sample]:
        return [sample(rate, (first + number) / 10) for number, rate in enumerate(rates)]

    # A load of 100 at full speed and 60 at half, of which readers take a twentieth; theirs has more of the slow tenths.
    without, again = window(1, 100, 60, 100, 60), window(11, 100, 60, 100, 60)
    with_readers_there = [sample(57, 0.2), sample(57, 0.4), sample(95, 0.5), sample(57, 0.6)]
    found = at_full_speed([without, with_readers_there, again], (speeds, STEADY), a_second)
    assert found == pytest.approx([1_000, 950, 1_000])
    assert less(found) == pytest.approx([0.05])


def test_the_core_of_the_load_has_its_part_in_what_is_moved():
    of_broker = Speeds([(number / 10 - 0.05, 100 if number % 2 else 200) for number in range(1, 61)])
    of_load = Speeds([(number / 10 - 0.05, 100 if number % 3 else 200) for number in range(1, 61)])

    def window(first: int, part: float) -> list[Sample]:
        """Of a load of 1,000 a tenth of a second, of which half the broker's speed takes 300 and half the load's 200."""
        numbers = range(first, first + 5)
        return [sample(round(part * (1_000 - 300 * (at % 2 == 0) - 200 * (at % 3 == 0))), at / 10) for at in numbers]

    windows = [window(1, 1.0), window(6, 0.98), window(11, 1.0), window(17, 0.9), window(22, 1.0)]
    found = at_full_speed(windows, (of_broker, of_load), a_second)
    assert found == pytest.approx([10_000, 9_800, 10_000, 9_000, 10_000])
    assert at_full_speed(windows, (of_broker, of_broker), a_second) != pytest.approx(found), "one that says nothing besides"


def test_readers_are_there_in_every_other_window_and_what_is_between_two_is_in_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(with_readers, "Helper", Reading)
    broker: Any = SimpleNamespace(session=os.getpid())
    windows = Windows(broker, "http://127.0.0.1:1/api", (3, 5))
    there = []
    for _ in range(4):
        for at in range(SETTLE + WINDOW):
            windows.on_sample(1_000 if at < SETTLE else 7)
            there.append(Reading.begun - Reading.ended)
    assert [[moved.messages for moved in window] for window in windows.all] == [[7] * WINDOW] * 4
    assert there == ([0] * (SETTLE + WINDOW) + [1] * (SETTLE + WINDOW)) * 2
    assert windows.readers_cpu == [0.25]
