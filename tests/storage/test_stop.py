"""A stop is short: its syncs do not grow with the queues, whatever is under way; and the start after it is a clean one.

Each `restart` holds the messages, their order and which are redelivered against the ledger, and asserts that nothing was
scanned. What a power cut in the middle of a stop leaves is in test_power_cut.py.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import msgspec
import pytest

from rabbitpy_broker.storage.records import sealed
from rabbitpy_broker.storage.terms import QueueTerms, expanded, ranges
from storage.faulty_disk import MemoryDisk, all_lost, nothing_lost
from storage.small_store import LARGE, SMALL, StoreAndLedgers, recovered

FEW, MANY = 3, 40
SYNCS = ("sync", "sync_dir")


def journal_only(world: StoreAndLedgers) -> None:
    for at in range(len(world.ledgers)):
        world.publish(SMALL, to=(at,))
    world.sync()


def in_the_epoch_that_is_filling(world: StoreAndLedgers) -> None:
    for at in range(len(world.ledgers)):
        world.publish(SMALL, to=(at,))


def delivered_from_the_journal(world: StoreAndLedgers) -> None:
    """Of each queue a message is acked and one was delivered and came back; no disk knows of that."""
    for _ in range(3):
        journal_only(world)
    for at in range(len(world.ledgers)):
        world.ack(world.fetch(at), at)
        world.requeue([world.fetch(at)], at)


def waiting_for_its_segment(world: StoreAndLedgers) -> None:
    """The queues idle, and a scatter has begun."""
    journal_only(world)
    world.tick()
    world.tick()
    assert world.threads.waiting


def half_way_to_its_segment(world: StoreAndLedgers) -> None:
    waiting_for_its_segment(world)
    world.work()


def in_segments_with_news(world: StoreAndLedgers) -> None:
    """Of each queue a message is acked, one was delivered and came back, and one is new: the segments know of none."""
    for _ in range(4):
        journal_only(world)
    world.idle()
    for at in range(len(world.ledgers)):
        world.ack(world.fetch(at), at)
        world.requeue([world.fetch(at)], at)
        world.publish(SMALL, to=(at,))
    world.sync()


def emptied(world: StoreAndLedgers) -> None:
    """The segments are to be removed."""
    journal_only(world)
    world.idle()
    for at in range(len(world.ledgers)):
        world.ack(world.fetch(at), at)


MOMENTS = pytest.mark.parametrize(
    "moment",
    [
        journal_only,
        in_the_epoch_that_is_filling,
        delivered_from_the_journal,
        waiting_for_its_segment,
        half_way_to_its_segment,
        in_segments_with_news,
        emptied,
    ],
    ids=lambda moment: moment.__name__,
)


def syncs_of_a_stop(moment: Callable[[StoreAndLedgers], None], queues: int) -> int:
    world = StoreAndLedgers(queues)
    moment(world)
    before = len(world.disk.log)
    world.store.stop()
    return len([op for op in world.disk.log[before:] if op.kind in SYNCS])


@MOMENTS
def test_a_stop_syncs_as_often_for_many_queues_as_for_few(moment: Callable[[StoreAndLedgers], None]) -> None:
    syncs = syncs_of_a_stop(moment, FEW)
    assert syncs_of_a_stop(moment, MANY) == syncs
    assert syncs <= 4, "the journal's file and an epoch in it, the terms' file and its content"


@MOMENTS
def test_a_clean_start_has_what_there_was(moment: Callable[[StoreAndLedgers], None]) -> None:
    world = StoreAndLedgers(FEW)
    moment(world)
    world.restart()
    world.restart()
    world.idle()
    world.restart()


@MOMENTS
def test_what_a_clean_start_has_found_outlives_a_kill(moment: Callable[[StoreAndLedgers], None]) -> None:
    world = StoreAndLedgers(FEW)
    moment(world)
    world.restart()
    for at in range(FEW):
        if world.ledgers[at].ready:
            world.ack(world.fetch(at), at, wait=True)
        world.publish(LARGE, to=(at,))
    world.sync()
    world.kill()
    world.idle()
    world.kill()


def test_a_stop_leaves_the_journal_files_that_are_needed_and_the_start_no_others() -> None:
    world = StoreAndLedgers(2)
    for _ in range(20):
        world.publish(SMALL)
        world.sync()
    world.idle()
    for _ in range(4):
        world.publish(SMALL, to=(1,))
        world.sync()
    world.store.stop()
    terms = read_terms(world.disk)
    names = world.disk.list_dir("/v/journal")
    assert 0 < len(terms["journal"]) < len(names)
    started = world.disk.kill()
    recovered(started, 2, True)
    assert len(started.list_dir("/v/journal")) == len(terms["journal"])


def test_after_a_stop_with_everything_in_segments_no_journal_is_left() -> None:
    world = StoreAndLedgers(2)
    for _ in range(5):
        world.publish(SMALL)
        world.publish(LARGE, to=(1,))
        world.sync()
    world.idle()
    world.store.stop()
    assert read_terms(world.disk)["journal"] == []
    started = world.disk.kill()
    recovered(started, 2, True)
    assert started.list_dir("/v/journal") == []


def test_what_a_stopped_scatter_has_left_is_cut_before_the_journal_lets_go_of_it() -> None:
    """Acked after the start, the messages in it must not come back from the segment that the scatter had begun."""
    world = StoreAndLedgers()
    for _ in range(6):
        world.publish(SMALL)
    world.sync()
    world.tick()
    world.tick()
    world.work()
    path = "/v/queues/0000000000000001/00000000.segment"
    assert world.disk.size(path) > 0
    world.restart()
    assert world.disk.size(path) > 0
    for _ in range(6):
        world.ack(world.fetch())
    world.sync()
    world.idle()
    for _ in range(20):  # the journal goes on to other files
        world.publish_delivered(SMALL)
        world.sync()
        world.ack(max(world.ledgers[0].unacked))
    world.sync()
    assert not world.disk.exists(path)
    world.kill()


def other_traffic(world: StoreAndLedgers) -> None:
    """Queue 1 has the journal go on to other files, those that queue 0 does not need."""
    for _ in range(20):
        number = world.publish_delivered(SMALL, at=1)
        world.sync()
        world.ack(number, 1, wait=True)
        world.sync()


def test_what_a_stopped_scatter_has_left_behind_a_segment_is_cut_too() -> None:
    world = StoreAndLedgers(2)
    for _ in range(3):
        world.publish(SMALL)
    world.idle()
    for _ in range(3):
        world.publish(SMALL)
    world.sync()
    world.tick()
    world.tick()
    world.work()
    path = "/v/queues/0000000000000001/00000000.segment"
    size = world.disk.size(path)
    world.restart()
    assert world.disk.size(path) == size
    for number in [world.fetch() for _ in range(6)]:
        if number > 3:
            world.ack(number, wait=True)
    world.sync()
    world.idle()
    assert world.disk.size(path) < size
    other_traffic(world)
    world.kill()
    assert world.ledgers[0].ready == [1, 2, 3]


def test_acks_that_the_journal_alone_has_are_kept_over_a_stop() -> None:
    world = StoreAndLedgers(2)
    for _ in range(3):
        world.publish(SMALL)
    world.idle()
    world.ack(world.fetch(), wait=True)
    world.sync()
    world.restart()
    world.tick()
    other_traffic(world)
    world.kill()
    assert world.ledgers[0].ready == [2, 3]


def test_acks_of_what_a_failed_scatter_has_left_are_kept_over_a_stop() -> None:
    world = StoreAndLedgers(2)
    for _ in range(3):
        world.publish(SMALL)
    world.sync()
    world.disk.fail("sync", errno.EIO, path="/queues/")
    world.tick()
    world.tick()
    world.sync()
    assert world.store.trouble.scatter
    for number in [world.fetch() for _ in range(3)]:
        world.ack(number, wait=True)
    world.sync()
    world.restart()
    world.kill()
    assert world.ledgers[0].ready == []


class StoppedInside(StoreAndLedgers):
    """A world whose store is stopped, terms and all, by a thread's n-th call for the queues' folders, before it is made."""

    def __init__(self, queues: int) -> None:
        super().__init__(queues)
        self.calls_left = 0
        self.is_stopped = False
        self._is_working = False

    def stop_at(self, call: int) -> None:
        self.calls_left = call
        meet = self.disk.meet
        work = self.threads.work

        def stopping_meet(kind: str, path: str) -> None:
            if self._is_working and path.startswith("/v/queues"):
                self.calls_left -= 1
                if self.calls_left == 0:
                    self._is_working = False
                    assert self.store.stop()
                    self.is_stopped = True
            meet(kind, path)

        def marked_work(index: int = 0) -> None:
            self._is_working = True
            work(index)
            self._is_working = False

        self.disk.meet = stopping_meet  # type: ignore[method-assign]
        self.threads.work = marked_work  # type: ignore[method-assign]

    def go_on(self) -> None:
        """A few seconds of the broker, or as many as it has."""
        for _ in range(3):
            self.store.tick()
            for _ in range(100):
                if self.is_stopped:
                    return
                self.store.end_turn()
                if not self.threads.crank() and not self.store.is_due():
                    break


def much_to_scatter(world: StoreAndLedgers) -> None:
    """New segments and old ones, acks and deliveries for them, segments to be removed, transient messages to be paged."""
    for at in (0, 1):
        for size in (SMALL, LARGE) * 9:
            world.publish(size, to=(at,))
    world.idle()
    for at in (0, 1):
        world.ack(world.fetch(at), at)
        world.requeue([world.fetch(at)], at)
    for number in [world.fetch(1) for _ in range(9)]:
        world.ack(number, 1)
    for size in (SMALL, LARGE) * 4:
        world.publish(size, to=(0, 2))
        world.publish(size, persistent=False, to=(2,))
    world.set_target(0, 2)
    world.sync()


def test_what_a_thread_still_does_for_a_scatter_when_the_terms_are_written_changes_nothing() -> None:
    calls = 0
    while True:
        calls += 1
        world = StoppedInside(3)
        much_to_scatter(world)
        expected = [
            [number for number in ledger.ready if ledger.sent[number].persistent] for ledger in world.ledgers
        ]
        redelivered = [sorted(ledger.must_be_redelivered & set(ledger.ready)) for ledger in world.ledgers]
        world.stop_at(calls)
        world.go_on()
        if not world.is_stopped:
            break
        assert recovered(world.disk.kill(), 3, True) == list(zip(expected, redelivered, strict=True))
        world.is_sound = False
        for left in (all_lost, nothing_lost):
            assert recovered(world.disk.crash(left), 3, True) == list(zip(expected, redelivered, strict=True))
    assert calls > 20


def test_a_stop_with_segments_that_cannot_be_written_is_clean() -> None:
    world = StoreAndLedgers()
    for _ in range(6):
        world.publish(SMALL)
    world.sync()
    world.disk.fail({"write", "make_dir"}, errno.ENOSPC, forever=True, path="/queues/")
    world.idle()
    assert world.store.trouble.scatter
    world.restart()


@pytest.mark.parametrize("path", ["/journal/", "/recovery_terms"])
@pytest.mark.parametrize("kind, code", [("write", errno.ENOSPC), ("sync", errno.EIO)])
def test_a_stop_on_a_disk_that_refuses_leaves_what_was_confirmed(kind: str, code: int, path: str) -> None:
    world = StoreAndLedgers(2)
    journal_only(world)
    world.fetch()
    world.publish(LARGE)
    world.disk.fail(kind, code, forever=True, path=path)
    world.stop_cut_short(20)
    assert not world.store.is_clean()
    assert world.ledgers[0].ready[0] == 1


def test_a_stop_after_the_disk_works_again_is_clean() -> None:
    world = StoreAndLedgers()
    world.disk.fail("sync", errno.EIO)
    world.publish(SMALL)
    world.sync()
    assert world.store.trouble.epoch
    world.restart()


# -- the terms --------------------------------------------------------------------------------------------------------


def read_terms(disk: MemoryDisk) -> dict:
    file = disk.open("/v/recovery_terms")
    data = file.read_at(0, file.size())
    file.close()
    return msgspec.msgpack.decode(data[:-4])


def write_terms(disk: MemoryDisk, terms: dict) -> None:
    disk.remove("/v/recovery_terms")
    file = disk.open("/v/recovery_terms", create=True)
    file.write_at(0, sealed(msgspec.msgpack.encode(terms)))
    file.close()


@pytest.mark.parametrize(
    "seq_ids, found",
    [([], []), ([0], [0, 1]), ([3, 4, 5], [3, 3]), ([0, 1, 7, 9, 10], [0, 2, 7, 1, 9, 2])],
)
def test_ranges_are_what_they_were_made_of(seq_ids: list[int], found: list[int]) -> None:
    assert ranges(seq_ids) == found
    assert expanded(found) == seq_ids


def test_terms_of_a_broker_that_scattered_at_its_stop_are_clean() -> None:
    """Version 1: all is in segments, and they know it."""
    world = StoreAndLedgers(2)
    for _ in range(12):
        world.publish(SMALL)
        world.publish(LARGE, to=(0, 1))
    world.idle()
    first, second = world.fetch(), world.fetch()
    world.requeue([first])
    world.ack(second, wait=True)
    world.queues[0].stop({})
    world.queues[0].index.scatter()
    world.sync()
    world.idle()
    expected = [list(ledger.ready) for ledger in world.ledgers]
    world.store.stop()
    terms = read_terms(world.disk)
    terms["version"] = 1
    assert terms.pop("journal") == []
    for queue in terms["queues"].values():
        assert queue[4:] == [[], []]
        del queue[3:]
        for segment in queue[2]:
            assert segment[5:] == [[], 0, []]
            del segment[5:]
    write_terms(world.disk, terms)
    found = recovered(world.disk.kill(), 2, True)
    assert [numbers for numbers, _ in found] == expected
    assert [redelivered for _, redelivered in found] == [[1], []]


@pytest.mark.parametrize(
    "highest, in_journal, end",
    [(-1, [], 20), (9, [], 20), (-1, [10, 4], 10), (9, [10, 4], 10), (12, [10, 1, 13, 2], 13), (25, [10, 2], 20)],
)
def test_delta_ends_behind_all_that_segments_have(highest: int, in_journal: list[int], end: int) -> None:
    """Damage can leave a place in the journal alone that is older than what a segment has."""
    assert QueueTerms([20, 0, [], highest, in_journal, []]).delta_end() == end


def stopped_in_the_journal() -> tuple[MemoryDisk, list[int]]:
    world = StoreAndLedgers(2)
    for _ in range(8):
        world.publish(LARGE)
        world.publish(SMALL, to=(0, 1))
    world.sync()
    world.store.stop()
    return world.disk.kill(), list(world.ledgers[0].ready)


@pytest.mark.parametrize("fault", ["version", "place", "journal", "segment"])
def test_terms_that_do_not_fit_cost_a_scan_and_no_message(fault: str) -> None:
    disk, expected = stopped_in_the_journal()
    terms = read_terms(disk)
    queue = terms["queues"]["0000000000000001"]
    if fault == "version":
        terms["version"] = 3
    elif fault == "place":
        queue[4] += [1000, 1]
    elif fault == "journal":
        terms["journal"][-1][1] += 4096
    else:
        queue[2].append([7, 1, SMALL, 0, 100, [], 0, []])
    write_terms(disk, terms)
    (numbers, redelivered), _ = recovered(disk, 2, True)
    assert numbers == redelivered == expected
    assert not disk.exists("/v/recovery_terms")


def test_terms_with_acks_of_another_segment_cost_a_scan_and_no_message() -> None:
    world = StoreAndLedgers()
    for _ in range(10):
        world.publish(SMALL)
    world.idle()
    expected = list(world.ledgers[0].ready)
    world.store.stop()
    disk = world.disk.kill()
    terms = read_terms(disk)
    segment = terms["queues"]["0000000000000001"][2][0]
    assert segment[5] == []
    segment[5] = [1000, 2]
    write_terms(disk, terms)
    assert recovered(disk, 1, True) == [(expected, expected)]
