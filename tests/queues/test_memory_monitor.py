"""The memory monitor: one duration for all queues, shorter the more memory is used, and back to life from zero."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.queues.memory_monitor import GROW_BELOW, GROWTH_S, MemoryMonitor

LIMIT = 1000
MARK = 500  # where paging begins

DURATIONS = st.one_of(st.just(math.inf), st.floats(0, 1e9))
REPORTS = st.lists(st.tuples(st.integers(0, 2**64 - 1), DURATIONS), max_size=30)


def monitor(*durations: float, paging_ratio: float = 0.5) -> MemoryMonitor:
    """One in which as many queues have reported."""
    made = MemoryMonitor(LIMIT, paging_ratio)
    for queue_id, duration in enumerate(durations):
        made.report(queue_id, duration)
    return made


def test_below_the_paging_mark_nothing_is_paged_out() -> None:
    monitored = monitor(10.0, 20.0)
    assert monitored.desired == math.inf
    assert monitored.update(MARK - 1) == math.inf


def test_above_it_the_average_is_cut_by_what_is_too_much() -> None:
    monitored = monitor(10.0, 20.0, 30.0)
    assert monitored.update(LIMIT) == pytest.approx(10)  # twice the mark: half the average
    assert monitored.desired == pytest.approx(10)
    assert monitored.update(2 * LIMIT) == pytest.approx(5)


def test_with_room_below_the_limit_queues_share_a_second_more() -> None:
    assert monitor(0.0, 0.0).update(MARK) == pytest.approx(GROWTH_S / 2)
    assert monitor(0.0, 0.0).update(round(LIMIT * GROW_BELOW)) == 0


def test_reports_are_asked_for_only_where_they_count() -> None:
    monitored = monitor(10.0, 20.0)
    assert not monitored.asks_for_reports(MARK - 1)
    assert monitored.asks_for_reports(MARK)
    assert not monitored.asks_for_reports(2 * LIMIT, disk_alarm=True)
    monitored.set_limit(0)
    assert not monitored.asks_for_reports(2 * LIMIT)


def test_idle_queues_do_not_count() -> None:
    assert monitor(10.0, math.inf).update(LIMIT) == pytest.approx(5)


def test_above_the_mark_queues_of_which_none_moves_keep_nothing() -> None:
    """Publishers may be blocked by the very memory that they hold: waiting would not free any."""
    assert monitor(math.inf, math.inf).update(LIMIT) == 0
    assert monitor().update(LIMIT) == 0
    assert monitor().update(MARK - 1) == math.inf


def test_a_queue_that_became_idle_or_was_deleted_counts_no_more() -> None:
    monitored = monitor(10.0, 20.0, 60.0)
    monitored.report(1, math.inf)
    monitored.forget(2)
    monitored.forget(3)
    assert monitored.update(LIMIT) == pytest.approx(5)


def test_the_latest_report_counts() -> None:
    monitored = monitor(10.0)
    monitored.report(0, 40.0)
    assert monitored.update(LIMIT) == pytest.approx(20)


def test_while_the_disk_alarm_is_on_nothing_is_paged_out() -> None:
    monitored = monitor(10.0)
    assert monitored.update(LIMIT, disk_alarm=True) == math.inf
    assert monitored.update(LIMIT) == pytest.approx(5)


def test_with_a_limit_of_zero_everything_goes_to_disk() -> None:
    monitored = monitor(10.0)
    monitored.set_limit(0)
    assert monitored.update(1) == 0
    for paging_ratio in (0.5, math.inf):
        assert MemoryMonitor(0, paging_ratio).update(0) == 0


def test_a_limit_changes_while_it_runs() -> None:
    monitored = monitor(10.0)
    monitored.set_limit(10 * LIMIT)
    assert monitored.update(LIMIT) == math.inf
    monitored.set_limit(LIMIT // 2)
    assert monitored.update(LIMIT) == pytest.approx(2.5)


def test_above_one_the_paging_ratio_switches_paging_off_up_to_the_limit_and_beyond() -> None:
    assert monitor(10.0, paging_ratio=2.0).update(2 * LIMIT - 1) == math.inf
    assert monitor(10.0, paging_ratio=2.0).update(4 * LIMIT) == pytest.approx(5)
    assert monitor(10.0, paging_ratio=math.inf).update(1000 * LIMIT) == math.inf


@given(REPORTS, st.integers(0, 5 * LIMIT))
def test_the_sum_is_that_of_the_latest_finite_reports(reports: list[tuple[int, float]], used: int) -> None:
    monitored = MemoryMonitor(LIMIT, 0.5)
    latest: dict[int, float] = {}
    for queue_id, duration in reports:
        monitored.report(queue_id, duration)
        latest[queue_id] = duration
    finite = [duration for duration in latest.values() if duration < math.inf]
    desired = monitored.update(used)
    if used < MARK:
        assert desired == math.inf
    elif not finite:
        assert desired == 0
    else:
        growth = GROWTH_S if used < LIMIT * GROW_BELOW else 0
        assert desired == pytest.approx((sum(finite) + growth) / len(finite) / (used / MARK))


@given(REPORTS, st.integers(0, 5 * LIMIT), st.integers(0, 5 * LIMIT))
def test_more_memory_never_gives_a_longer_duration(reports: list[tuple[int, float]], one: int, other: int) -> None:
    monitored = MemoryMonitor(LIMIT, 0.5)
    for queue_id, duration in reports:
        monitored.report(queue_id, duration)
    less, more = sorted((one, other))
    assert monitored.update(more) <= monitored.update(less)


@given(st.integers(0, 400), st.lists(st.floats(1, 10), min_size=1, max_size=20), st.floats(0, 100))
def test_queues_that_follow_it_settle_between_mark_and_limit(
    base: int, bytes_per_s: list[float], backlog_s: float
) -> None:
    """Nobody consumes: each queue holds a second's worth more at each look, unless it is told to hold less."""
    monitored = MemoryMonitor(LIMIT, 0.5)
    durations = [backlog_s] * len(bytes_per_s)
    for look in range(700):
        used = base + sum(duration * rate for duration, rate in zip(durations, bytes_per_s, strict=True))
        desired = monitored.update(round(used))
        if look >= 600:
            assert MARK * 0.95 <= used <= LIMIT
        durations = [min(duration + 1, desired) for duration in durations]
        for queue_id, duration in enumerate(durations):
            monitored.report(queue_id, duration)
