"""Rates: a steady one is reached, a stopped one fades, and how often they are updated makes no difference."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.queues.rates import HALF_LIFE_S, IDLE_BELOW, Rates

START = 1_000_000.0

# (seconds since the last update, messages in it), a few times
STEPS = st.lists(st.tuples(st.floats(0.01, 60), st.integers(0, 1_000_000)), min_size=1, max_size=30)


def run(steps: list[tuple[float, int]]) -> tuple[Rates, float, int]:
    """Rates of whose counters only the first moved; with the time and the count at the end."""
    rates, now, count = Rates(START), START, 0
    for elapsed, messages in steps:
        now += elapsed
        count += messages
        rates.update(now, count, 0, 0, 0)
    return rates, now, count


def test_a_queue_begins_idle() -> None:
    rates = Rates(START)
    assert rates.total() == 0
    assert rates.ram_duration(1000) == math.inf


def test_after_a_half_life_half_of_a_new_rate_is_reached() -> None:
    rates = Rates(START)
    rates.update(START + HALF_LIFE_S, 100, 200, 300, 400)
    averages = [rates.ingress, rates.egress, rates.ack_ingress, rates.ack_egress]
    assert averages == pytest.approx([10, 20, 30, 40])
    assert rates.total() == pytest.approx(100)
    assert rates.ram_duration(1000) == pytest.approx(10)


def test_a_steady_rate_is_reached() -> None:
    rates, _, _ = run([(1.0, 1000)] * 60)
    assert rates.ingress == pytest.approx(1000, rel=0.001)


@pytest.mark.parametrize("interval", [0.1, 1.0, 5.0])
def test_a_sudden_stop_fades_to_idle(interval: float) -> None:
    rates, now, count = run([(1.0, 1_000_000)] * 60)
    before = rates.ingress
    for _ in range(round(HALF_LIFE_S / interval)):
        now += interval
        rates.update(now, count, 0, 0, 0)
    assert rates.ingress == pytest.approx(before / 2)
    while rates.ram_duration(1) < math.inf:
        now += interval
        rates.update(now, count, 0, 0, 0)
    assert now < START + 60 + 30 * HALF_LIFE_S
    rates.update(now + 1_000_000, count, 0, 0, 0)
    assert rates.total() == 0


def test_no_time_is_no_update_and_nothing_is_lost() -> None:
    rates, again = Rates(START), Rates(START)
    rates.update(START, 100, 0, 0, 0)
    rates.update(START - 1, 100, 0, 0, 0)
    assert rates.total() == 0
    rates.update(START + 1, 100, 0, 0, 0)
    again.update(START + 1, 100, 0, 0, 0)
    assert rates.ingress == again.ingress > 0


def test_one_moving_rate_is_enough_for_a_duration() -> None:
    for moving in range(4):
        rates = Rates(START)
        counters = [0, 0, 0, 0]
        counters[moving] = 100
        rates.update(START + HALF_LIFE_S, *counters)
        assert rates.ram_duration(0) == 0
        assert rates.ram_duration(50) == pytest.approx(5)


@given(STEPS)
def test_the_average_is_never_outside_of_what_was_measured(steps: list[tuple[float, int]]) -> None:
    rates, _, _ = run(steps)
    assert 0 <= rates.ingress <= max(messages / elapsed for elapsed, messages in steps) * (1 + 1e-9)


@given(STEPS, st.floats(1, 1000), st.integers(1, 20))
def test_how_often_it_is_updated_makes_no_difference(steps: list[tuple[float, int]], elapsed: float, times: int) -> None:
    seldom, now, count = run(steps)
    seldom.update(now + elapsed, count + 60 * times, 0, 0, 0)
    often, now, count = run(steps)
    for step in range(1, times + 1):
        often.update(now + elapsed * step / times, count + 60 * step, 0, 0, 0)
    assert often.ingress == pytest.approx(seldom.ingress, rel=1e-6)


@given(STEPS, st.integers(0, 10_000_000))
def test_a_duration_lasts_as_long_as_it_says(steps: list[tuple[float, int]], ram_count: int) -> None:
    rates, _, _ = run(steps)
    duration = rates.ram_duration(ram_count)
    if rates.ingress < IDLE_BELOW:
        assert duration == math.inf
    else:
        assert duration * rates.total() == pytest.approx(ram_count)
