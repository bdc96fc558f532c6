"""Short histories whose every operation is followed by every power cut.

After each step of a script, for each operation of that step: kill -9 there, and a power cut there with every fate of
every unsynced sector and name (drawn ones where there are too many). Each is recovered and held against the ledger.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from storage.faulty_disk import all_lost
from storage.small_store import LARGE, SMALL, Ledger, StoreAndLedgers

AT_MOST = 24  # states for each operation


class Cut(StoreAndLedgers):
    """A world in which the power fails after every operation, too."""

    states = 0

    def check(self) -> None:
        super().check()
        self.states += self.check_power_cuts(AT_MOST)

    def stopped(self, before: list[Ledger]) -> None:
        now, self.ledgers = self.ledgers, before  # nobody was told what happened meanwhile
        self.states += self.check_power_cuts(AT_MOST)
        self.ledgers = now


def publishes_of_both_sizes(world: StoreAndLedgers) -> None:
    world.publish(SMALL)
    world.sync()
    world.publish(LARGE)
    world.publish(SMALL)
    world.publish(SMALL, persistent=False)
    world.sync()
    assert len(world.ledgers[0].confirmed) == 4


def acks(world: StoreAndLedgers) -> None:
    numbers = [world.publish(size) for size in (SMALL, LARGE, SMALL, LARGE, SMALL)]
    world.sync()
    for _ in numbers:
        world.fetch()
    world.ack(numbers[1], wait=True)
    world.ack(numbers[2])
    world.sync()
    world.ack(numbers[0], wait=True)
    world.sync()
    assert world.ledgers[0].gone == set(numbers[:3])


def publish_and_ack_meet(world: StoreAndLedgers) -> None:
    """Acked before its epoch begins, while it is under way, and after it."""
    before = world.publish_delivered(LARGE)
    world.ack(before)
    during = world.publish_delivered(SMALL)
    world.end_turn()
    world.work()
    world.ack(during)
    world.tell()
    world.sync()
    after = world.publish_delivered(LARGE)
    world.sync()
    world.ack(after, wait=True)
    world.sync()


def a_scatter(world: StoreAndLedgers) -> None:
    for size in (SMALL, LARGE, SMALL) * 4:
        world.publish(size)
    world.sync()
    world.fetch()
    world.fetch()
    world.ack(1)
    world.idle()
    world.ack(2)
    world.idle()


def a_purge(world: StoreAndLedgers) -> None:
    for size in (SMALL, LARGE) * 6:
        world.publish(size)
    world.sync()
    world.fetch()
    world.idle()
    for size in (SMALL, LARGE) * 2:
        world.publish(size)
    world.sync()
    world.purge()
    world.publish(SMALL)
    world.sync()
    world.idle()


def files_of_the_journal_are_used_again(world: StoreAndLedgers) -> None:
    """Acks let go of the journal's files, which are then written over."""
    for _ in range(10):
        number = world.publish_delivered(SMALL)
        world.publish(SMALL)
        world.sync()
        world.ack(number, wait=True)
        world.sync()
        other = world.fetch()
        world.ack(other)
        world.sync()


def a_fanout_of_a_large_message(world: StoreAndLedgers) -> None:
    world.publish(LARGE, to=(0, 1))
    world.sync()
    world.fetch(0)
    world.ack(1, 0, wait=True)
    world.sync()
    world.idle()
    world.fetch(1)
    world.ack(1, 1, wait=True)
    world.sync()
    world.idle()


def compaction(world: StoreAndLedgers) -> None:
    """Files of the message store fill up, two of three messages go, what is left is merged."""
    for _ in range(24):
        world.publish(LARGE)
    world.sync()
    for _ in range(24):
        number = world.fetch()
        if number % 3:
            world.ack(number)
    world.idle()
    world.idle()


def paging(world: StoreAndLedgers) -> None:
    """A queue that may hold nothing in memory, and its way back."""
    world.set_target(0)
    for size in (SMALL, LARGE, SMALL) * 8:
        world.publish(size, persistent=size == LARGE)
    world.idle()
    world.set_target(None)
    for _ in range(24):
        world.fetch()
    world.requeue([3, 9, 20])
    world.idle()


def a_clean_stop(world: StoreAndLedgers) -> None:
    for size in (SMALL, LARGE, SMALL) * 5:
        world.publish(size)
    world.sync()
    world.fetch()
    world.idle()
    world.publish(SMALL)
    world.restart()
    world.fetch()
    world.ack(1, wait=True)
    world.sync()
    world.restart()


def a_stop_with_everything_under_way(world: StoreAndLedgers) -> None:
    """Acks and deliveries that the segments do not know, an epoch, a scatter, a compaction, and then what is behind that."""
    for _ in range(12):
        world.publish(LARGE)
        world.publish(SMALL, to=(0, 1))
    world.idle()
    for number in [world.fetch() for _ in range(14)]:
        if number % 4:
            world.ack(number)
    world.requeue([4, 8])
    world.sync()
    world.publish(SMALL, to=(0, 1))
    world.sync()
    world.tick()
    world.tick()
    world.publish(LARGE)
    world.end_turn()
    world.work()
    world.publish(SMALL)
    assert world.threads.waiting
    world.restart()
    world.fetch()
    world.ack(4, wait=True)
    world.restart()
    world.publish(SMALL)
    world.idle()


def a_stop_in_the_middle_of_a_scatter(world: StoreAndLedgers) -> None:
    """Some of its blocks are written, none is synced."""
    for _ in range(9):
        world.publish(SMALL, to=(0, 1))
    world.sync()
    world.tick()
    world.tick()
    world.work()
    world.restart()
    world.fetch()
    world.ack(1, wait=True)
    world.sync()
    world.idle()


def a_failed_sync(world: StoreAndLedgers) -> None:
    world.publish(SMALL)
    world.sync()
    world.disk.fail("sync", errno.EIO)
    world.publish(LARGE)
    world.publish(SMALL)
    world.sync()
    assert world.ledgers[0].confirmed == {1}, "nothing that the failed sync covered is confirmed"
    world.idle()
    world.publish(SMALL)
    world.sync()
    assert world.ledgers[0].confirmed == {1, 4}


def a_full_disk(world: StoreAndLedgers) -> None:
    world.publish(SMALL)
    world.sync()
    world.disk.fail({"write", "resize"}, errno.ENOSPC, forever=True)
    world.publish(LARGE)
    world.publish(SMALL)
    world.idle()
    world.fetch()
    world.ack(1)
    world.idle()
    world.disk.mend()
    world.idle()
    world.publish(SMALL)
    world.sync()
    assert {4} <= world.ledgers[0].confirmed


def a_store_file_of_which_all_is_acked(world: StoreAndLedgers) -> None:
    """The file that is full is left while the acks of all that is in it are not yet synced."""
    first = [world.publish(LARGE) for _ in range(5)]
    world.sync()
    for _ in range(5):
        world.publish(LARGE)
    for _ in first:
        world.fetch()
    world.end_turn()
    world.work()
    for number in first:
        world.ack(number, wait=True)
    world.tell()
    world.idle()
    assert world.ledgers[0].gone == set(first)


def acked_while_it_is_scattered(world: StoreAndLedgers) -> None:
    """The segment has it unacked; only the journal has the ack, and must be kept for that."""
    number = world.publish(SMALL)
    world.sync()
    world.fetch()
    world.tick()
    world.tick()
    assert len(world.threads.waiting) == 1, "the scatter"
    world.ack(number, wait=True)
    world.end_turn()
    world.work(1)
    world.tell()
    assert world.ledgers[0].gone == {number}
    world.publish(SMALL)
    world.sync()
    for _ in range(8):  # the journal goes on to other files
        world.publish(SMALL, to=(1,))
        world.sync()


def acked_after_a_failed_sync(world: StoreAndLedgers) -> None:
    """The disk may have the publish, although its sync has failed; so it must get the ack."""
    world.publish(SMALL)
    world.sync()
    world.disk.fail("sync", errno.EIO)
    number = world.publish(SMALL)
    world.sync()
    world.fetch()
    world.fetch()
    world.ack(number, wait=True)
    world.idle()
    assert number in world.ledgers[0].gone


def messages_that_come_back(world: StoreAndLedgers) -> None:
    """Their counts are in the journal alone: the journal's files are used again, and the messages go to segments."""
    for size in (SMALL, LARGE, SMALL):
        world.publish(size)
    world.sync()
    first = [world.fetch() for _ in range(3)]
    world.give_back(first, wait=True)
    world.sync()
    assert world.ledgers[0].kept_requeues == dict.fromkeys(first, 1)
    assert [world.fetch() for _ in range(3)] == first
    world.give_back(first[1:])
    world.ack(first[0], wait=True)
    world.sync()
    world.idle()
    for _ in range(12):  # the journal goes on to other files
        world.publish(SMALL, to=(1,))
        world.sync()
    world.fetch()
    world.give_back(first[1:2], wait=True)
    world.sync()
    world.restart()
    for _ in range(12):
        world.publish(SMALL, to=(1,))
        world.sync()
    world.kill()
    assert world.ledgers[0].requeues == {first[1]: 3, first[2]: 2}


def a_message_that_comes_back_and_is_acked(world: StoreAndLedgers) -> None:
    number = world.publish(SMALL)
    world.sync()
    world.fetch()
    world.give_back([number])
    world.fetch()
    world.ack(number, wait=True)
    world.sync()
    number = world.publish_delivered(SMALL)
    world.give_back([number])
    world.sync()
    world.fetch()
    world.give_back([number], wait=True)
    world.end_turn()
    world.work()
    world.fetch()
    world.ack(number, wait=True)
    world.tell()
    world.sync()
    world.purge()
    world.restart()


def what_came_back_and_a_failed_sync(world: StoreAndLedgers) -> None:
    numbers = [world.publish(SMALL) for _ in range(3)]
    world.sync()
    for _ in numbers:
        world.fetch()
    world.disk.fail("sync", errno.EIO)
    world.give_back(numbers, wait=True)
    world.sync()
    world.idle()
    world.purge()
    world.publish(SMALL)
    world.sync()


SCRIPTS = [
    publishes_of_both_sizes,
    acks,
    publish_and_ack_meet,
    a_scatter,
    a_purge,
    files_of_the_journal_are_used_again,
    a_fanout_of_a_large_message,
    compaction,
    paging,
    a_clean_stop,
    a_stop_with_everything_under_way,
    a_stop_in_the_middle_of_a_scatter,
    a_failed_sync,
    a_full_disk,
    a_store_file_of_which_all_is_acked,
    acked_while_it_is_scattered,
    acked_after_a_failed_sync,
    messages_that_come_back,
    a_message_that_comes_back_and_is_acked,
    what_came_back_and_a_failed_sync,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_power_cut_is_survived(script: Callable[[StoreAndLedgers], None]):
    world = Cut(queues=2)
    script(world)
    assert world.states > 20


def test_a_recovery_that_is_cut_short_begins_again():
    """The power fails, and fails again while the store recovers from that."""
    world = StoreAndLedgers()
    for size in (SMALL, LARGE, SMALL) * 4:
        world.publish(size)
    world.sync()
    world.fetch()
    world.ack(1)
    world.idle()
    for size in (SMALL, LARGE):
        world.publish(size)
    world.end_turn()
    world.work()
    for left in list(world.disk.prefixes(world.from_op)):
        again = StoreAndLedgers()
        again.ledgers = world.ledgers
        again.disk = left.crash(lambda count: count // 2)
        again._start()
        assert again.check_power_cuts(AT_MOST) > 0


def test_a_scatter_whose_sync_failed_is_not_believed_after_a_kill() -> None:
    """The kernel shows what it could not write, and takes it for clean: a later sync of it would write nothing."""
    world = StoreAndLedgers()
    for _ in range(8):
        world.publish()
    world.sync()
    world.disk.fail("sync", errno.EIO, forever=True)
    world.idle()
    world.kill()
    world.restart()
    world.power_cut(all_lost)
