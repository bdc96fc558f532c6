"""Rates and samples, without a broker: what a series remembers, and what it says of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.management.api.rates import (
    EXCHANGE,
    FINE,
    KEPT_S,
    QUEUE,
    Series,
    Span,
    Spans,
    spans,
    stats,
)

NAMES = ("a", "b")


def series(*looks: tuple[float, int], full: bool = True) -> Series:
    """Looks at (time, a), with twice as many b."""
    first, *others = looks
    made = Series(NAMES, first[0], (first[1], 2 * first[1]))
    for when, count in others:
        made.add(when, (count, 2 * count), full=full)
    return made


def test_a_rate_is_the_change_between_the_last_two_looks() -> None:
    assert series((100, 0), (105, 50)).rate(0) == 10
    assert series((100, 0), (105, 50), (110, 50)).rate(0) == 0
    assert series((100, 0), (105, 50), (110, 50), (115, 60)).rate(1) == 4
    assert series((100, 7)).rate(0) == 0


def test_a_rate_does_not_need_a_history() -> None:
    looks = [(100.0 + 5 * number, number * number) for number in range(50)]
    assert series(*looks, full=False).rate(0) == series(*looks).rate(0)


def test_samples_are_what_was_there_newest_first() -> None:
    found = Span(20, 5).samples(series((100, 0), (105, 50), (110, 50), (115, 60)), 0)
    assert [one["sample"] for one in found["samples"]] == [60, 50, 50, 0, 0]
    assert [one["timestamp"] for one in found["samples"]] == [115_000, 110_000, 105_000, 100_000, 95_000]
    assert (found["avg"], found["avg_rate"]) == (32, 3)


def test_what_is_old_is_forgotten() -> None:
    made = series(*((5.0 * number, number) for number in range(1000)))
    assert made.at(made.checked - KEPT_S, 0) == 1000 - 1 - int(KEPT_S / 5)
    assert len(made._times) < KEPT_S / 5 + 20


@given(st.lists(st.tuples(st.integers(5, 400), st.integers(0, 3)), min_size=1, max_size=60))
def test_a_series_knows_each_moment_that_it_keeps(steps: list[tuple[int, int]]) -> None:
    now, count = 1000.0, 0
    made = series((now, count))
    known = {now: count}
    for wait, more in steps:
        now, count = now + wait, count + more
        made.add(now, (count, 2 * count))
        known[now] = count
    for when, was in known.items():
        if when >= now - KEPT_S:
            assert made.at(when, 0) == was
            assert made.at(when, 1) == 2 * was


def test_looks_each_second_make_rates_over_five_and_rows_for_as_many() -> None:
    made = series(*((1000.0 + number, number * number) for number in range(301)))
    assert made.latest_rate(0) == 300 * 300 - 299 * 299
    assert made.rate(0) == (300 * 300 - 295 * 295) / 5
    assert len(made._times) < 300 / 4 + FINE
    for when in range(1010, 1290, 20):
        assert abs(made.at(when, 0) - (when - 1000) ** 2) <= 12 * (when - 1000)
    made.add(1301.0, (300 * 300, 0))
    assert made.latest_rate(0) == 0
    assert made.rate(0) > 0
    for number in range(2, 8):
        made.add(1300.0 + number, (300 * 300, 0))
    assert made.rate(0) == 0


def test_a_burst_after_a_rest_is_not_spread_over_the_rest() -> None:
    made = series((1000, 0), (1001, 1), *((1001.0 + number, 1) for number in range(1, 100)), (1101, 51))
    assert made.rate(0) == pytest.approx(50 / 6)


def test_a_span_has_limits() -> None:
    assert spans({}) == Spans()
    assert spans({"lengths_age": "60", "lengths_incr": "5"}).lengths == Span(60, 5)
    assert spans({"lengths_age": "x", "lengths_incr": "5"}).lengths is None
    for age, incr in (("60", "0"), ("0", "5"), ("600", "1"), ("60", "-1")):
        with pytest.raises(ApiError):
            spans({"msg_rates_age": age, "msg_rates_incr": incr})


def test_stats_have_a_rate_for_each_count() -> None:
    found = stats(EXCHANGE, (3, 4), None, Span(10, 5), ("publish_in",))
    assert found["publish_in"] == 3
    assert found["publish_in_details"]["rate"] == 0
    assert [one["sample"] for one in found["publish_in_details"]["samples"]] == [3, 3, 3]


def test_the_disk_makes_no_queue_busy() -> None:
    made = Series(QUEUE, 100, (0,) * len(QUEUE))
    made.add(105, (*(0,) * (len(QUEUE) - 1), 7))
    assert made.changed == 100
    made.add(110, (1, *(0,) * (len(QUEUE) - 2), 7))
    assert made.changed == 110
