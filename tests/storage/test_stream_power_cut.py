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

from storage.faulty_disk import MemoryDisk, every
from storage.stream_rig import StreamStore, content, everything

AT_MOST = 16  # states for each operation


class StreamLedger:
    """What one stream must be. `sent` has the number of the message at each offset, of what the next start may have."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}
        self.committed = 0
        self.first = 0  # below: gone for good
        self.may_be_first = 0

    def copy(self) -> StreamLedger:
        other = StreamLedger()
        other.sent, other.committed = dict(self.sent), self.committed
        other.first, other.may_be_first = self.first, self.may_be_first
        return other


class World:
    """A store with two streams and their ledgers. Each method is a step, after which `check` comes."""

    states = 0
    cuts_power = True

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.ledgers = {1: StreamLedger(), 2: StreamLedger()}
        self.number = 0
        self.from_op = 0
        self.is_sound = True
        self.settings: list[Callable[[StreamStore], None]] = []
        self._start()

    def _start(self) -> None:
        self.store = StreamStore(self.disk, tuple(self.ledgers), self.is_sound)
        for change in self.settings:
            change(self.store)

    def step(self) -> None:
        self.from_op = len(self.disk.log)

    def set_all(self, change: Callable[[StreamStore], None]) -> None:
        """Settings, which are given again after each start."""
        self.settings.append(change)
        change(self.store)

    def append(self, count: int = 1, size: int = 20, to: int = 1, value: bytes | None = None) -> None:
        self.step()
        for _ in range(count):
            offset = self.store.append(self.number, size, value, to)
            assert offset not in self.ledgers[to].sent
            self.ledgers[to].sent[offset] = self.number
            self.number += 1
        self.check()

    def end_turn(self) -> None:
        self.step()
        self.store.end_turn()
        self.check()

    def work(self) -> None:
        self.step()
        self.store.threads.work()
        self.check()

    def tell(self) -> None:
        self.step()
        before = {queue_id: log.first_offset for queue_id, log in self.store.logs.items()}
        self.store.threads.tell()
        if not self.store.store.stream_scatter.is_busy():  # all that was to be removed is
            for queue_id, ledger in self.ledgers.items():
                ledger.first = max(ledger.first, int(before[queue_id]))
        self.check()

    def tick(self) -> None:
        self.step()
        self.store.now_ms += 1000
        self.store.store.tick()
        self.check()

    def sync(self) -> None:
        self.end_turn()
        for _ in range(300):
            if self.store.threads.worked:
                self.tell()
            elif self.store.threads.waiting:
                self.work()
            elif self.store.is_due():
                self.end_turn()
            else:
                return
        raise AssertionError("the store never comes to rest")

    def idle(self) -> None:
        for _ in range(3):
            self.tick()
            self.sync()

    def restart(self) -> None:
        """A clean stop, and a start."""
        self.step()
        before = {queue_id: ledger.copy() for queue_id, ledger in self.ledgers.items()}
        assert self.store.stop()
        now, self.ledgers = self.ledgers, before  # nobody was told what happened meanwhile
        self._check_power_cuts()
        self.ledgers = now
        for queue_id, ledger in self.ledgers.items():
            ledger.committed = int(self.store.logs[queue_id].next_offset)
        self._continue_on(self.disk.kill())
        assert self.store.store.clean

    def kill(self) -> None:
        self._continue_on(self.disk.kill())

    def _continue_on(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.from_op = 0
        self._start()
        for queue_id, ledger in self.ledgers.items():
            log = self.store.logs[queue_id]
            assert log.committed >= ledger.committed
            for offset in [offset for offset in ledger.sent if offset >= log.next_offset]:
                del ledger.sent[offset]
        self.check()

    def check(self) -> None:
        for queue_id, ledger in self.ledgers.items():
            log = self.store.logs[queue_id]
            assert log.committed >= ledger.committed, "what was shown is taken back"
            ledger.committed = int(log.committed)
            ledger.may_be_first = max(ledger.may_be_first, int(log.first_offset))
        self._check_power_cuts()

    def _check_power_cuts(self) -> None:
        for disk in self.disk.prefixes(self.from_op):
            self.check_recovery(disk, self.is_sound and not self.disk.struck)
            if self.cuts_power:
                for left in every(disk, AT_MOST):
                    self.check_recovery(left, False)
                    self.states += 1

    def check_recovery(self, disk: MemoryDisk, is_sound: bool) -> None:
        store = StreamStore(disk.kill(), tuple(self.ledgers), is_sound)
        for queue_id, ledger in self.ledgers.items():
            log = store.logs[queue_id]
            assert log.committed == log.next_offset
            assert log.committed >= ledger.committed, f"{log.committed} of {ledger.committed} committed ones are there"
            assert ledger.first <= log.first_offset <= ledger.may_be_first, "what was removed is back, or too much is gone"
            offsets = range(int(log.first_offset), int(log.committed))
            expected = [(offset, content(ledger.sent[offset], 20)) for offset in offsets]
            found = [(offset, body[:20]) for offset, body in everything(store, queue_id)]
            assert found == expected


def appends_and_a_move(world: World) -> None:
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


def many_segments(world: World) -> None:
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


def a_long_epoch(world: World) -> None:
    """It is cut into several chunks, for more than one segment."""
    world.append(30)
    world.sync()
    world.append(3)
    world.sync()
    world.idle()
    assert world.store.log.segment_count() > 1


def appends_while_a_move_is_under_way(world: World) -> None:
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


def retention(world: World) -> None:
    world.set_all(lambda store: setattr(store.log.settings, "max_length_bytes", 900))
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


def retention_of_what_the_journal_still_has(world: World) -> None:
    world.set_all(lambda store: setattr(store.log.settings, "max_length_bytes", 0))
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


def restarts(world: World) -> None:
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


def a_stop_in_the_middle_of_a_move(world: World) -> None:
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


def kills(world: World) -> None:
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


def a_failed_sync(world: World) -> None:
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


def a_move_that_fails(world: World) -> None:
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


def a_move_that_fails_for_long(world: World) -> None:
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


def files_of_the_journal_are_used_again(world: World) -> None:
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
    appends_while_a_move_is_under_way,
    retention,
    retention_of_what_the_journal_still_has,
    restarts,
    a_stop_in_the_middle_of_a_move,
    kills,
    a_failed_sync,
    a_move_that_fails,
    a_move_that_fails_for_long,
    files_of_the_journal_are_used_again,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_power_cut_is_survived(script: Callable[[World], None]):
    world = World()
    script(world)
    assert world.states > 20
