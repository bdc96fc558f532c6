"""Walks in slices: how much is in one, that others have their turns between two, and that a walk over queues misses none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from rabbitpy_broker import slices
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.slices import SLICE_STEPS, in_slices, next_slice
from rabbitpy_broker.vhost import MESSAGES_TOGETHER, TICKED_TOGETHER, VHost
from rabbitpy_broker.wire.field_table import FieldTable
from sans_io import SansIOBroker
from small_client import SmallClient


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still: slices end by their steps alone."""
    monkeypatch.setattr(slices.time, "perf_counter", lambda: 0.0)


def declare(vhost: VHost, name: str) -> None:
    vhost.declare_queue(name, False, False, False, FieldTable(), None)


@pytest.mark.usefixtures("still")
def test_a_slice_has_no_more_steps_than_it_may() -> None:
    walk = iter(range(2 * SLICE_STEPS + 1))
    assert next_slice(walk) == (list(range(SLICE_STEPS)), True)
    assert next_slice(walk) == (list(range(SLICE_STEPS, 2 * SLICE_STEPS)), True)
    assert next_slice(walk) == ([2 * SLICE_STEPS], False)


def test_a_slice_begins_no_step_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def steps() -> Iterator[int]:
        nonlocal now
        for number in range(10):
            now += slices.SLICE_S / 4
            yield number

    monkeypatch.setattr(slices.time, "perf_counter", lambda: now)
    walk = steps()
    assert next_slice(walk) == ([0, 1, 2, 3], True)
    assert next_slice(walk) == ([4, 5, 6, 7], True)
    assert next_slice(walk) == ([8, 9], False)


@pytest.mark.usefixtures("still")
async def test_others_have_their_turn_between_two_slices() -> None:
    done = 0
    seen: list[int] = []

    def steps() -> Iterator[None]:
        nonlocal done
        for _ in range(3 * SLICE_STEPS):
            done += 1
            yield

    walk = asyncio.create_task(in_slices(steps()))
    while not walk.done():
        await asyncio.sleep(0)
        seen.append(done)
    assert {SLICE_STEPS, 2 * SLICE_STEPS, 3 * SLICE_STEPS} <= set(seen)


async def test_an_empty_walk_is_one_slice() -> None:
    assert [part async for part in slices.slices(iter(()))] == [[]]


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_has_each_queue_that_is_there_all_the_while_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_STEPS", 7)
    chance = random.Random(seed)
    vhost = SansIOBroker().vhost
    for number in range(200):
        declare(vhost, f"q{number}")
    stays = set(vhost.queues)
    gone: set[str] = set()
    came: set[str] = set()
    walk = vhost.each_queue()
    found: list[str] = []
    more = True
    while more:
        taken, more = next_slice(walk)
        assert len(taken) <= 7
        assert all(vhost.queues[queue.name] is queue for queue in taken)
        found += [queue.name for queue in taken]
        for name in chance.sample(sorted(vhost.queues), 3):
            vhost.delete_queue(vhost.queues[name])
            stays.discard(name)
            gone.add(name)
        came.add(f"new{len(came)}")
        declare(vhost, f"new{len(came) - 1}")
        again = chance.choice(sorted(gone))  # of the same name as one that has gone
        if again not in vhost.queues:
            declare(vhost, again)
    assert len(found) == len(set(found))
    assert stays <= set(found)
    assert set(found) <= stays | gone


def ticked(queues: list[Queue]) -> set[str]:
    """The names of those that were looked after once at least: since then they have rates."""
    return {queue.name for queue in queues if isinstance(queue.backing, VariableQueue) and queue.backing.rates is not None}


def test_ticks_go_over_all_that_holds_messages_while_queues_come_and_go() -> None:
    vhost = SansIOBroker().vhost
    for number in range(3 * TICKED_TOGETHER):
        declare(vhost, f"q{number}")
    there = [*vhost.queues.values(), vhost.make_reply_queue()]
    ticks = vhost.ticking(1.0)
    while not ticked(there):
        next(ticks)
    assert ticked(there) == {f"q{number}" for number in range(TICKED_TOGETHER)}
    for number in range(10, 20 + TICKED_TOGETHER):
        vhost.delete_queue(vhost.queues[f"q{number}"])
    declare(vhost, "new")
    steps = len(list(ticks))
    gone = {f"q{number}" for number in range(TICKED_TOGETHER, 20 + TICKED_TOGETHER)}
    assert ticked(there) == {queue.name for queue in there} - gone
    assert steps == 3


def test_a_tick_takes_a_step_of_its_own_for_a_queue_with_many_messages() -> None:
    broker = SansIOBroker()
    client = SmallClient(broker)
    for name in ("large", "small"):
        client.declare(name)
    for _ in range(MESSAGES_TOGETHER):
        client.publish("large", b"m")
    queues = list(broker.vhost.queues.values())
    ticks = broker.vhost.ticking(1.0)
    while not ticked(queues):
        next(ticks)
    assert ticked(queues) == {"large"}
    next(ticks)
    assert ticked(queues) == {"large", "small"}
