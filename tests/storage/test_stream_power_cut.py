"""Short histories of streams whose every operation is followed by every power cut.

After each step of a script, for each operation of that step: kill -9 there, and a power cut there with every fate of every
unsynced sector and name (drawn ones where there are too many). Each is recovered, and each stream read from its first offset
on: no gap, no offset twice, every message where it was, nothing lost below `committed`, nothing that retention has removed for
good.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from storage.stream_world import StreamLedger, StreamWorld

AT_MOST = 16  # states for each operation


class Cut(StreamWorld):
    """A world in which the power fails after every operation, too."""

    states = 0

    def check(self) -> None:
        super().check()
        self.states += self.check_power_cuts(AT_MOST)

    def started(self) -> None:
        self.states += self.check_power_cuts(AT_MOST)

    def stopped(self, before: dict[int, StreamLedger]) -> None:
        now, self.ledgers = self.ledgers, before  # nobody was told what happened meanwhile
        self.states += self.check_power_cuts(AT_MOST)
        self.ledgers = now


def appends_and_a_move(world: StreamWorld) -> None:
    world.append()
    world.sync()
    world.append(3)
    world.append(2, to=2)
    world.sync()
    world.idle()
    assert world.store.log.segment_count() == 1
    world.append(2)
    world.sync()
    world.idle()


def many_segments(world: StreamWorld) -> None:
    for _ in range(3):
        world.append(5)
        world.sync()
        world.append(2, size=90)
        world.sync()
    world.idle()
    assert world.store.log.segment_count() > 2
    world.append(4, to=2)
    world.sync()
    world.idle()


def a_long_epoch(world: StreamWorld) -> None:
    """It is cut into several chunks, for more than one segment."""
    world.append(30)
    world.sync()
    world.append(3)
    world.sync()
    world.idle()
    assert world.store.log.segment_count() > 1


def an_epoch_that_is_handed_over_in_parts(world: StreamWorld) -> None:
    world.append(2, to=2)
    world.append(2, size=9_000)
    world.sync()
    world.append(1)
    world.sync()
    world.disk.fail("sync", errno.EIO, path="journal")
    world.append(2, size=9_000, value=b"red")
    world.append(1, to=2)
    world.sync()
    world.idle()


def appends_while_a_move_is_under_way(world: StreamWorld) -> None:
    world.append(12)
    world.sync()
    world.append(16)
    world.end_turn()
    world.work()
    world.tell()
    assert world.store.store.stream_scatter.is_busy()
    world.append(4)
    world.end_turn()
    world.work()
    world.append(2, to=2)
    world.tell()
    world.sync()
    world.idle()


def retention(world: StreamWorld) -> None:
    world.set_retention(1, 900, -1)
    for _ in range(6):
        world.append(6)
        world.sync()
        world.idle()
    assert world.store.log.first_offset > 0
    assert world.ledgers[1].first > 0
    world.append(3)
    world.sync()
    world.kill()
    world.append(6)
    world.sync()
    world.idle()
    world.restart()
    world.append(12)
    world.sync()
    world.idle()


def retention_of_what_the_journal_still_has(world: StreamWorld) -> None:
    world.set_retention(1, 0, -1)
    world.append(20)
    world.sync()
    world.append(1, to=2)
    world.sync()
    world.idle()
    assert world.store.log.first_offset > 0
    world.kill()
    world.kill()
    world.idle()
    world.append(2)
    world.sync()
    world.restart()


def restarts(world: StreamWorld) -> None:
    world.append(3)
    world.sync()
    world.restart()
    world.append(9)
    world.restart()
    world.idle()
    world.append(1)
    world.sync()
    world.restart()
    world.restart()
    world.append(9)
    world.sync()
    world.idle()


def a_stop_in_the_middle_of_a_move(world: StreamWorld) -> None:
    world.append(16)
    world.sync()
    world.append(16)
    world.end_turn()
    world.work()
    world.tell()
    assert world.store.store.stream_scatter.is_busy()
    world.work()
    world.append(2)
    world.restart()
    world.append(5)
    world.sync()
    world.idle()
    world.kill()
    world.append(1)
    world.sync()
    world.idle()


def kills(world: StreamWorld) -> None:
    world.append(6)
    world.end_turn()
    world.work()
    world.kill()
    world.append(6)
    world.sync()
    world.kill()
    world.idle()
    world.kill()
    world.append(14)
    world.sync()
    world.kill()
    world.kill()
    world.idle()


def a_failed_sync(world: StreamWorld) -> None:
    world.append()
    world.sync()
    world.disk.fail("sync", errno.EIO, path="journal")
    world.append(2)
    world.sync()
    assert world.ledgers[1].committed == 1
    world.idle()
    assert world.ledgers[1].committed == 3
    world.append()
    world.sync()


def a_kill_after_a_failed_sync(world: StreamWorld) -> None:
    """The kernel shows what it could not write, and takes it for clean: what a start has seen of it must be written anew."""
    for _ in range(2):
        world.disk.fail("sync", errno.EIO, path="journal")
        world.append(2)
        world.end_turn()
        world.work()
        world.kill()
        assert world.ledgers[1].committed == len(world.ledgers[1].sent)
        world.append()
        world.sync()
    world.idle()


def a_move_that_fails(world: StreamWorld) -> None:
    world.append(9)
    world.sync()
    world.idle()
    world.disk.fail("sync", errno.EIO, path="queues")
    world.append(14)
    world.sync()
    world.tick()
    world.append(3)
    world.sync()
    world.idle()
    world.append(1)
    world.sync()
    world.idle()


def a_move_that_fails_and_is_made_otherwise(world: StreamWorld) -> None:
    """Segments become larger, and then smaller, between two tries: files of the first are none of the second."""
    for first, second in ((150, 5000), (5000, 300)):
        world.set_segment_size(1, first)
        world.disk.fail("sync", errno.EIO, path="queues")
        world.append(24)
        world.sync()
        assert world.store.store.trouble.streams
        world.set_segment_size(1, second)
        world.idle()
        assert world.store.log.memory_bytes() == 0
        for _ in range(6):  # the journal goes on to other files
            world.append(1, to=2)
            world.sync()
        world.idle()
        world.restart()


def a_move_that_fails_for_long(world: StreamWorld) -> None:
    world.append(9)
    world.sync()
    world.disk.fail({"sync", "write"}, errno.EIO, forever=True, path="queues")
    for _ in range(4):
        world.append(7)
        world.sync()
        world.idle()
    world.kill()
    world.append(2)
    world.sync()
    world.idle()
    world.restart()


def files_of_the_journal_are_used_again(world: StreamWorld) -> None:
    for _ in range(14):
        world.append()
        world.sync()
    world.idle()
    for _ in range(5):
        world.append(1, to=2)
        world.sync()


SCRIPTS = [
    appends_and_a_move,
    many_segments,
    a_long_epoch,
    an_epoch_that_is_handed_over_in_parts,
    appends_while_a_move_is_under_way,
    retention,
    retention_of_what_the_journal_still_has,
    restarts,
    a_stop_in_the_middle_of_a_move,
    kills,
    a_failed_sync,
    a_kill_after_a_failed_sync,
    a_move_that_fails,
    a_move_that_fails_and_is_made_otherwise,
    a_move_that_fails_for_long,
    files_of_the_journal_are_used_again,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_power_cut_is_survived(script: Callable[[StreamWorld], None]):
    world = Cut()
    script(world)
    assert world.states > 20
