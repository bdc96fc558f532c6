"""Rests of a busy loop, with kinds of clients as arithmetic: kept up where they pay, given up at once where they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rabbitpy_broker.net.moderation import WINDOW_S, Moderation

REST_S = 0.0005
TURN_S = 0.0001  # for one read and what follows from it
Pace = Callable[["CountedLoop"], tuple[int, int]]


class CountedLoop:
    """A loop whose turns and time are counted. A client says what a turn reads: how many reads, how many bytes in all."""

    def __init__(self, rest_s: float = REST_S) -> None:
        self.now = 0.0
        self.cpu = 0.0
        self.rested = 0.0
        self.bytes = 0
        self.gathered = 0.0  # seconds since the last turn began
        self.moderation = Moderation(rest_s, lambda: self.now, lambda: self.cpu, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.rested += seconds
        self.gathered += seconds

    def run(self, seconds: float, client: Pace) -> None:
        """Turns until so much time has passed."""
        end = self.now + seconds
        while self.now < end:
            reads, size = client(self)
            for _ in range(reads):
                self.moderation.read(size // reads)
            self.bytes += size
            self.gathered = reads * TURN_S
            self.now += reads * TURN_S
            self.cpu += reads * TURN_S
            self.moderation.after_turn()

    def share(self, seconds: float, client: Pace) -> float:
        """Of that time, what was rested."""
        before = self.rested
        self.run(seconds, client)
        return (self.rested - before) / seconds


def rushes_while_we_rest(world: CountedLoop) -> tuple[int, int]:
    """It shares the processor with the loop: in a rest it makes three times as much as beside a turn."""
    return 1, 2_000 + int(60_000_000 * max(world.gathered - TURN_S, 0.0))


def waits_for_each_answer(world: CountedLoop) -> tuple[int, int]:
    return 1, 100


def keeps_its_own_pace(world: CountedLoop) -> tuple[int, int]:
    """10 MB a second, however we run."""
    return 1, int(10_000_000 * world.gathered) + 1


def sends_large_pieces(world: CountedLoop) -> tuple[int, int]:
    return 1, 65_536 + int(60_000_000 * max(world.gathered - TURN_S, 0.0))


def comes_seldom(world: CountedLoop) -> tuple[int, int]:
    world.now += 0.001
    return rushes_while_we_rest(world)


def leaves_the_loop_idle(world: CountedLoop) -> tuple[int, int]:
    """Many reads, but cheap ones."""
    world.cpu -= 0.7 * TURN_S
    return rushes_while_we_rest(world)


def test_rests_that_bring_more_are_kept_up() -> None:
    world = CountedLoop()
    world.run(1.0, rushes_while_we_rest)
    assert world.share(60.0, rushes_while_we_rest) > 0.6
    assert world.moderation.rests == round(world.rested / REST_S)
    without = CountedLoop(rest_s=0.0)
    without.run(61.0, rushes_while_we_rest)
    assert world.bytes > 1.5 * without.bytes


@pytest.mark.parametrize("client", [waits_for_each_answer, keeps_its_own_pace])
def test_rests_that_bring_nothing_are_tried_ever_more_seldom(client: Pace) -> None:
    world = CountedLoop()
    assert world.share(1.0, client) > 0
    assert 0 < world.share(120.0, client) < 0.02


@pytest.mark.parametrize("client", [sends_large_pieces, comes_seldom, leaves_the_loop_idle])
def test_without_a_busy_loop_and_many_small_reads_there_is_no_rest(client: Pace) -> None:
    world = CountedLoop()
    world.run(10.0, client)
    assert world.moderation.rests == 0


def test_when_the_clients_change_the_rests_end_with_the_window() -> None:
    world = CountedLoop()
    world.run(1.0, rushes_while_we_rest)
    while not world.moderation.resting:
        world.run(WINDOW_S, rushes_while_we_rest)
    world.run(2 * WINDOW_S, waits_for_each_answer)
    assert not world.moderation.resting
    assert world.share(60.0, waits_for_each_answer) < 0.02


def test_what_did_not_pay_is_found_to_pay_when_the_clients_change() -> None:
    world = CountedLoop()
    world.run(60.0, waits_for_each_answer)
    world.run(15.0, rushes_while_we_rest)
    assert world.share(10.0, rushes_while_we_rest) > 0.6


def test_a_rest_of_no_length_is_none() -> None:
    world = CountedLoop(rest_s=0.0)
    world.run(10.0, rushes_while_we_rest)
    assert (world.moderation.rests, world.rested) == (0, 0.0)
