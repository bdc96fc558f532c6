"""Who is called when: never early, a tenth of a second late at most, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.net.deadlines import Deadlines, HasDeadline


class Handle:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when, self.call, self.cancelled = when, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """As much of an event loop as a clock needs; its timers may go off up to a millisecond early, as uvloop's do."""

    def __init__(self) -> None:
        self.now = 5.03
        self.handles: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Handle:
        self.handles.append(Handle(when, call))
        return self.handles[-1]

    def waiting(self) -> list[Handle]:
        return [handle for handle in self.handles if not handle.cancelled]

    def run_until(self, end: float) -> None:
        while self.waiting() and (first := min(self.waiting(), key=lambda handle: handle.when)).when <= end:
            self.handles.remove(first)
            self.now = max(self.now + 0.0001, first.when - 0.0009)
            first.call()
            assert len(self.handles) < 100
        self.now = end


class Caller(HasDeadline):
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.called_at: list[float] = []

    def deadline(self, now: float) -> None:
        assert now == self.loop.now
        self.called_at.append(now)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1)), min_size=1, max_size=30))
def test_everybody_is_called_once_not_early_and_hardly_late(asked: list[tuple[float, float]]) -> None:
    loop = Loop()
    deadlines = Deadlines(loop)
    wanted = []
    for seconds, pause in asked:
        caller = Caller(loop)
        deadlines.set(caller, seconds)
        wanted.append((caller, loop.now + seconds))
        loop.run_until(loop.now + pause)
    loop.run_until(loop.now + 100)
    for caller, due in wanted:
        assert len(caller.called_at) == 1
        assert due <= caller.called_at[0] <= due + 0.102
    assert not loop.waiting(), "an idle clock sets no timer"


def test_later_wish_replaces_an_earlier_one(loop: Loop) -> None:
    deadlines, caller = Deadlines(loop), Caller(loop)
    for seconds in (1, 30, 2):
        deadlines.set(caller, seconds)
    loop.run_until(60)
    assert caller.called_at == [pytest.approx(5.03 + 2, abs=0.11)]


def test_who_is_forgotten_is_not_called_and_not_kept(loop: Loop) -> None:
    deadlines, gone, other = Deadlines(loop), Caller(loop), Caller(loop)
    deadlines.set(gone, 1)
    deadlines.set(other, 1)
    deadlines.forget(gone)
    deadlines.forget(gone)
    assert gone.due == 0
    loop.run_until(10)
    assert (len(gone.called_at), len(other.called_at)) == (0, 1)


def test_caller_may_ask_again_while_it_is_called(loop: Loop) -> None:
    deadlines = Deadlines(loop)

    class Again(Caller):
        def deadline(self, now: float) -> None:
            super().deadline(now)
            deadlines.set(self, 0.5)

    caller = Again(loop)
    deadlines.set(caller, 0.5)
    loop.run_until(loop.now + 10)
    assert 16 <= len(caller.called_at) <= 20


def test_nobody_is_called_after_the_stop(loop: Loop) -> None:
    deadlines, before, after = Deadlines(loop), Caller(loop), Caller(loop)
    deadlines.set(before, 1)
    deadlines.stop()
    deadlines.set(after, 1)
    loop.run_until(10)
    deadlines.forget(before)
    assert not before.called_at + after.called_at
