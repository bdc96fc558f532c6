"""Rates and samples, without a broker: what a series remembers, and what it says of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.management.api.rates import (
    BASIC,
    EXCHANGE,
    FINE,
    GLOBAL,
    NO_RATES,
    QUEUE,
    Retention,
    Series,
    Span,
    Spans,
    message_stats,
    spans,
    stats,
)
from rabbitpy_broker.management.api.sampler import Sampling

NAMES = ("a", "b")
FINE_S, APART_S = BASIC[0]


def series(*looks: tuple[float, int], full: bool = True, kept: Retention = BASIC) -> Series:
    """Looks at (time, a), with twice as many b."""
    first, *others = looks
    made = Series(NAMES, first[0], (first[1], 2 * first[1]), kept)
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
    made = series(*((5.0 * number, number) for number in range(1000)), kept=((FINE_S, APART_S),))
    assert made.at(made.checked - FINE_S, 0) == 1000 - 1 - int(FINE_S / 5)
    assert len(made._times) < FINE_S / 5 + 20


@pytest.mark.parametrize("kept", [GLOBAL, BASIC, ((60.0, 10.0), (3_600.0, 300.0)), ((3_600.0, 60.0),)])
def test_the_older_samples_are_the_further_they_are_apart(kept: Retention) -> None:
    end = 100_000
    made = series(*((float(number), number) for number in range(0, end, 5)), kept=kept)
    rows, youngest = 0.0, 0.0
    for kept_s, apart_s in kept:
        for age in range(int(youngest), int(kept_s), 7):
            assert 0 <= made.checked - age - made.at(made.checked - age, 0) <= apart_s + 1
        rows += (kept_s - youngest) / apart_s
        youngest = kept_s
    assert len(made._times) < 1.3 * rows + 30


def test_what_was_before_a_rest_is_known_however_close_it_was_to_what_came_before_it() -> None:
    burst = [(1000.0, 0), (1001.0, 10), (1002.0, 20), (1003.0, 30)]
    made = series(*burst, *((5000.0 + 5 * number, 31 + number) for number in range(2000)), kept=GLOBAL)
    assert made.at(4900.0, 0) == 30


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
        if when >= now - FINE_S:
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


def test_without_rates_there_are_counts_and_no_details() -> None:
    made = Series(EXCHANGE, 100, (3, 4))
    assert stats(EXCHANGE, (3, 4), made, NO_RATES) == {"publish_in": 3, "publish_out": 4}
    assert message_stats(EXCHANGE, (3, 4), made, NO_RATES) == {}
    assert message_stats(EXCHANGE, (0, 0), made) == {}
    assert message_stats(EXCHANGE, (0, 4), made, None, ("publish_in",)) == {}
    assert message_stats(EXCHANGE, (3, 0), made)["message_stats"]["publish_in"] == 3


def test_retention_is_told_as_rabbitmq_tells_it() -> None:
    assert Sampling().row() == {"global": [600, 3_600, 28_800, 86_400], "basic": [600, 3_600], "detailed": [600]}
    given = Sampling(overall=((60.0, 5.0), (3_600.0, 60.0), (86_400.0, 1_200.0)), basic=((60.0, 5.0),))
    assert given.row() == {"global": [60, 3_600, 86_400], "basic": [60], "detailed": [600]}


def test_the_disk_makes_no_queue_busy() -> None:
    made = Series(QUEUE, 100, (0,) * len(QUEUE))
    made.add(105, (*(0,) * (len(QUEUE) - 1), 7))
    assert made.changed == 100
    made.add(110, (1, *(0,) * (len(QUEUE) - 2), 7))
    assert made.changed == 110
