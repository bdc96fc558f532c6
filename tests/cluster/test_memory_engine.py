"""The engine in memory as a model checker takes it: step by step, with every outcome that a step may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from rabbitpy_broker.cluster.log import Counting, Misplaced, OutcomeUnknown, Refused, Unavailable
from rabbitpy_broker.cluster.memory_engine import MemoryServers, Outcome, Step

UNSURE = (OutcomeUnknown, Unavailable, Refused, Misplaced)


async def rest() -> None:
    """Lets every coroutine run until it waits for a step."""
    for _ in range(20):
        await asyncio.sleep(0)


def choices(servers: MemoryServers) -> list[tuple[Step[Any], Outcome]]:
    return [(step, outcome) for step in servers.pending for outcome in step.choices()]


async def run(servers: MemoryServers, programs: list[Coroutine[Any, Any, None]], chosen: list[int]) -> list[int]:
    """One run of the programs: the n-th choice is `chosen[n]`, and 0 beyond. Returns how many choices there were each time."""
    tasks = [asyncio.ensure_future(program) for program in programs]
    widths: list[int] = []
    await rest()
    while there := choices(servers):
        number = chosen[len(widths)] if len(widths) < len(chosen) else 0
        widths.append(len(there))
        step, outcome = there[number]
        step.take(outcome)
        await rest()
    await asyncio.gather(*tasks)
    return widths


def all_runs(once: Callable[[list[int]], list[int]]) -> Iterator[list[int]]:
    """Runs `once` with every sequence of choices there is, depth first."""
    chosen: list[int] = []
    while True:
        widths = once(chosen)
        chosen += [0] * (len(widths) - len(chosen))
        yield chosen
        while chosen and chosen[-1] + 1 >= widths[len(chosen) - 1]:
            chosen.pop()
        if not chosen:
            return
        chosen[-1] += 1


@pytest.mark.parametrize("conditional", [True, False])
def test_in_every_run_what_an_owner_was_told_counts_before_the_fence(conditional: bool):
    """An owner with two appends under way, and one who takes over: all runs with all faults."""
    outcomes: set[tuple[bytes, ...]] = set()

    def once(chosen: list[int]) -> list[int]:
        servers = MemoryServers(conditional=conditional, manual=True, faults=[Outcome.LATE, Outcome.REFUSED])
        told: list[bytes] = []

        async def owner() -> None:
            log = servers.connect("owner").log("log")
            appends = [log.append(block, term=1, expected=number) for number, block in enumerate((b"a", b"b"))]
            for block, append in zip((b"a", b"b"), appends, strict=True):
                try:
                    await append
                except UNSURE:
                    return  # what was under way behind it may not count, whatever becomes of it
                told.append(block)

        fences: list[int] = []

        async def successor() -> None:
            try:
                fences.append(await servers.connect("successor").log("log").append(b"fence", term=2))
            except UNSURE:
                return

        async def both() -> list[int]:
            setting_up = asyncio.ensure_future(servers.connect().create_log("log"))
            await rest()
            servers.pending[0].take(Outcome.DONE)
            await setting_up
            return await run(servers, [owner(), successor()], chosen)

        widths = asyncio.run(both())
        counting = Counting()
        counted = [entry.block for entry in servers.logs["log"].entries if counting.counts(entry)]
        assert [block for block in counted if block in told] == told
        if fences:
            assert set(counted[counted.index(b"fence") :]) == {b"fence"}
            assert set(told) <= set(counted[: counted.index(b"fence")])
        outcomes.add(tuple(counted))
        return widths

    runs = sum(1 for _ in all_runs(once))
    assert runs > 100
    assert outcomes == {(), (b"a",), (b"a", b"b"), (b"fence",), (b"a", b"fence"), (b"a", b"b", b"fence")}


async def test_the_same_choices_lead_to_the_same_state():
    async def once() -> object:
        servers = MemoryServers(manual=True)
        engine = servers.connect("a")
        append = engine.log("log").append(b"x", term=1)
        creating = asyncio.ensure_future(engine.create_log("log"))
        await rest()
        servers.pending[1].take(Outcome.DONE)
        await creating
        servers.pending[0].take(Outcome.LATE)
        with pytest.raises(OutcomeUnknown):
            await append
        return servers.state()

    first = await once()
    assert first == await once()
    assert hash(first) == hash(await once())


async def test_a_manual_read_at_the_end_waits_for_an_entry():
    servers = MemoryServers(manual=True)
    engine = servers.connect("a")
    creating = asyncio.ensure_future(engine.create_log("log"))
    await rest()
    servers.pending[0].take(Outcome.DONE)
    await creating
    reading = asyncio.ensure_future(engine.log("log").reader(0).next(wait=1))
    await rest()
    assert servers.pending[0].choices() == [Outcome.REFUSED]
    appending = engine.log("log").append(b"x", term=1)
    servers.pending[1].take(Outcome.DONE)
    assert await appending == 0
    servers.pending[0].take(Outcome.DONE)
    assert [entry.block for entry in await reading] == [b"x"]


async def test_a_node_that_is_cut_off_is_refused_until_it_is_healed():
    servers = MemoryServers()
    engine = servers.connect("a")
    await engine.create_log("log")
    reading = asyncio.ensure_future(engine.log("log").reader(0).next(wait=60))
    await rest()
    servers.cut("a")
    for call in (reading, engine.log("log").append(b"x", term=1), engine.registry.alive()):
        with pytest.raises(Unavailable):
            await call
    assert await servers.connect("b").log("log").append(b"y", term=1) == 0
    servers.heal("a")
    assert await engine.log("log").append(b"x", term=1) == 1


async def test_what_a_crashed_node_had_under_way_may_still_happen():
    servers = MemoryServers(manual=True)
    creating = asyncio.ensure_future(servers.connect("a").create_log("log"))
    await rest()
    servers.crash("a")
    assert choices(servers) == [(servers.pending[0], Outcome.DONE), (servers.pending[0], Outcome.DROPPED)]
    servers.pending[0].take(Outcome.DONE)
    assert list(servers.logs) == ["log"]
    with pytest.raises(asyncio.CancelledError):
        await creating


async def test_planned_outcomes_meet_the_next_step_of_their_kind():
    servers = MemoryServers()
    engine = servers.connect("a")
    await engine.create_log("log")
    log = engine.log("log")
    servers.plan("append", Outcome.DROPPED)
    servers.plan("append", Outcome.LATE, node="a")
    for block in (b"dropped", b"late"):
        with pytest.raises(OutcomeUnknown):
            await log.append(block, term=1)
    assert await log.append(b"x", term=1) == 0
    servers.pending[0].take(Outcome.DONE)
    assert [entry.block for entry in await log.reader(0).next()] == [b"x", b"late"]
