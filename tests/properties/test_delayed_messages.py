"""Any history of a delayed message exchange and the queue behind it, with restarts, kills and power cuts, against sets.

A message that is due goes to the queue and out of what is delayed in one step, as `DelayQueue` does it. So whatever the
disk is left with, a confirmed message is in one of both and never in two, and never in the queue before it was due.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cranked_clock import CrankedClock
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import CONFIRMED, SYNCING
from rabbitpy_broker.queues.delayed_messages import DelayedMessages, PlainMaker
from rabbitpy_broker.queues.msg_status import StatusMaker
from rabbitpy_broker.queues.queue_settings import PERSIST
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.storage.place import Place
from rabbitpy_broker.storage.sync import SyncGroup
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore
from storage.faulty_disk import Choose, CrankedThreads, MemoryDisk, all_lost, at_random, nothing_lost
from storage.small_store import EMBED_BELOW, LARGE, SMALL, Epochs, Log, message, number_of
from store_host import HostOf

pytestmark = pytest.mark.timeout(600)  # a failing history is shortened for some minutes before it is shown

DELAYED, QUEUE = 1, 2

fates = st.one_of(
    st.just(nothing_lost), st.just(all_lost), st.integers(0, 1 << 32).map(lambda seed: at_random(random.Random(seed)))
)


class Life:
    """One life of the broker on a disk."""

    def __init__(self, disk: MemoryDisk, clock: CrankedClock, is_sound: bool) -> None:
        limits = StoreSettings()
        limits.msg_store_file_size_limit = 4096
        limits.queue_index_embed_msgs_below = EMBED_BELOW
        limits.queue_index_max_journal_entries = 20
        limits.segment_entry_count = 8
        limits.journal_file_size_limit = 4 * 4096
        self.threads = CrankedThreads()
        self.due = False
        self.store = VHostStore(disk, self.threads, "/v", limits, Log(is_sound), HostOf(self._on_due))
        self.journal = self.store.journal
        found = self.store.recover({DELAYED: PlainMaker(), QUEUE: StatusMaker()})
        self.delayed = DelayedMessages(found[DELAYED].index, EMBED_BELOW, clock)
        self.delayed.recovered(found[DELAYED].next_seq_id, found[DELAYED].places)
        self.queue = VariableQueue(found[QUEUE].index, PERSIST, False, EMBED_BELOW)
        self.queue.recovered(found[QUEUE].next_seq_id, found[QUEUE].delta_end, found[QUEUE].places)

    def _on_due(self, group: SyncGroup) -> None:
        assert group is self.journal
        self.due = True

    def end_turn(self) -> None:
        if self.due:
            self.due = False
            self.journal.begin_if_due()

    def tick(self) -> None:
        self.store.tick()
        self.delayed.tick(0.0)
        self.queue.tick(0.0)

    def stop(self) -> None:
        self.store.stop_work()
        for _ in range(200):
            if self.store.push():
                break
            self.threads.crank()
        else:
            raise AssertionError("the store never comes to rest")
        self.store.stop({self.delayed.index: self.delayed.next_seq_id, self.queue.index: self.queue.next_seq_id}).run()

    def contents(self) -> tuple[dict[int, int], list[int]]:
        """What is delayed, with when it is due, and what the queue has; takes all of it out."""
        delayed: dict[int, int] = {}
        while places := self.delayed.take(1 << 60, 7):
            for place in places:
                number = self._number(place.message)
                assert number not in delayed, "delayed twice"
                delayed[number] = int(place.expiry)
        queued: list[int] = []
        while self.queue.len:
            queued.append(self._number(self.queue.fetch().message))
        return delayed, queued

    @staticmethod
    def _number(found: Message | None) -> int:
        assert found is not None
        number, body = number_of(found), found.body()
        assert body == message(number, len(body), True).body(), f"the content of message {number}"
        return number


class DelayedLife:
    """A life, and what must be in it."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.clock = CrankedClock(1_000_000)
        self.is_sound = True
        self.sent: dict[int, int] = {}  # number -> when it is due
        self.transient: set[int] = set()
        self.delayed: set[int] = set()
        self.queued: list[int] = []
        self.confirmed: set[int] = set()
        self.settled: set[int] = set()  # in the queue, and the disk knows
        self.from_op = 0
        self._begin()

    def _begin(self) -> None:
        self.life = Life(self.disk, self.clock, self.is_sound)
        self.publishing: dict[int, list[int]] = {}  # by epoch
        self.releasing: dict[int, list[int]] = {}
        self.waiting: set[int] = set()

    def _epoch(self) -> int:
        epoch = int(self.life.journal.epoch)
        if epoch not in self.waiting:
            self.waiting.add(epoch)
            self.life.journal.wait(Epochs(self._epoch_settled))
        return epoch

    def _epoch_settled(self, epoch: int, ok: bool) -> None:
        self.waiting.remove(epoch)
        assert ok
        self.confirmed.update(self.publishing.pop(epoch, []))
        self.settled.update(self.releasing.pop(epoch, []))

    def publish(self, delay: int, size: int, persistent: bool) -> None:
        number = len(self.sent) + 1
        self.sent[number] = self.clock.now + delay
        self.delayed.add(number)
        outcome = self.life.delayed.keep(message(number, size, persistent), self.sent[number])
        if persistent:
            assert outcome == SYNCING
            self.publishing.setdefault(self._epoch(), []).append(number)
        else:
            assert outcome == CONFIRMED
            self.transient.add(number)

    def release(self, limit: int, faulty: int) -> None:
        """Takes what is due; all but the last `faulty` go to the queue."""
        expected = sorted((self.sent[number], number) for number in self.delayed if self.sent[number] <= self.clock.now)
        places = self.life.delayed.take(self.clock.now, limit)
        found = [self._check_place(place) for place in places]
        assert found == [number for _, number in expected[:limit]], "what is due, by time and order of publishing"
        keep = places[: max(0, len(places) - faulty)]
        for place in keep:
            sent = place.message
            assert sent is not None
            number = number_of(sent)
            self.life.queue.publish(sent.with_header(sent.header_payload()))
            self.life.delayed.done(place)
            self.delayed.remove(number)
            self.queued.append(number)
            if number not in self.transient:
                self.releasing.setdefault(self._epoch(), []).append(number)
        self.life.delayed.put_back(places[len(keep) :])

    def _check_place(self, place: Place) -> int:
        assert place.message is not None
        number = number_of(place.message)
        assert place.expiry == self.sent[number] <= self.clock.now
        return number

    def check(self) -> None:
        delayed = self.life.delayed
        delayed.check_with([])
        assert delayed.unacked == len(self.delayed)
        assert delayed.schedule.next_ms() == min((self.sent[number] for number in self.delayed), default=0)
        self.life.queue.check()
        assert self.life.queue.len == len(self.queued)

    def restart(self) -> None:
        """A clean stop and a start: what is persistent is there, once, the rest is gone."""
        self.life.stop()
        self.delayed -= self.transient
        self.queued = [number for number in self.queued if number not in self.transient]
        self.confirmed = {*self.delayed, *self.queued}
        self.settled |= set(self.queued)
        self._continue_on(self.disk.kill(), exact=True)

    def kill(self) -> None:
        self._continue_on(self.disk.kill(), exact=False)

    def power_cut(self, choose: Choose) -> None:
        self.is_sound = False
        self._continue_on(self.disk.crash(choose), exact=False)

    def _continue_on(self, disk: MemoryDisk, exact: bool) -> None:
        delayed, queued = Life(disk.kill(), self.clock, self.is_sound).contents()
        assert not set(delayed) & set(queued), "both delayed and let out"
        assert len(queued) == len(set(queued)), "let out twice"
        there = {*delayed, *queued}
        assert there <= set(self.sent) - self.transient
        missing = self.confirmed - there
        assert not missing, f"confirmed and lost: {sorted(missing)}"
        assert self.settled <= set(queued), "let out, and the disk knew"
        assert delayed == {number: self.sent[number] for number in delayed}, "when it is due outlives the broker"
        if exact:
            assert set(delayed) == self.delayed
            assert queued == self.queued
        self.delayed = set(delayed)
        self.queued = queued
        self.confirmed = there
        self.settled = set(queued)
        self.disk = disk
        self._begin()
        self.check()


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = DelayedLife()

    @rule(
        delay=st.one_of(st.integers(1, 5), st.sampled_from((50, 1_000, 1_024, 5_000, 100_000))),
        size=st.sampled_from((SMALL, SMALL, LARGE)),
        persistent=st.sampled_from((True, True, True, False)),
        count=st.integers(1, 12),
    )
    def publish(self, delay: int, size: int, persistent: bool, count: int) -> None:
        for number in range(count):
            self.world.publish(delay + number % 3, size, persistent)

    @rule(ms=st.sampled_from((0, 1, 2, 3, 60, 1_030, 6_000)))
    def wait(self, ms: int) -> None:
        self.world.clock.now += ms

    @rule(limit=st.sampled_from((1, 3, 20)), faulty=st.sampled_from((0, 0, 1, 5)))
    def release(self, limit: int, faulty: int) -> None:
        self.world.release(limit, faulty)

    @rule(limit=st.sampled_from((0, 1_000, 5_000, 1 << 40)), stays=st.sampled_from((0, 5_000)))
    def set_ram_limit(self, limit: int, stays: int) -> None:
        self.world.life.delayed.set_ram_limit(limit, stays)

    @rule()
    def end_turn(self) -> None:
        self.world.life.end_turn()

    @rule()
    def tick(self) -> None:
        self.world.life.tick()

    @rule()
    def sync(self) -> None:
        for _ in range(200):
            self.world.life.end_turn()
            if not self.world.life.threads.crank() and not self.world.life.due:
                return

    @precondition(lambda self: self.world.life.threads.waiting)
    @rule(which=st.integers(0, 3))
    def work(self, which: int) -> None:
        self.world.life.threads.work(which % len(self.world.life.threads.waiting))

    @precondition(lambda self: self.world.life.threads.worked)
    @rule(which=st.integers(0, 3))
    def tell(self, which: int) -> None:
        self.world.life.threads.tell(which % len(self.world.life.threads.worked))

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule()
    def kill(self) -> None:
        self.world.kill()

    @rule(choose=fates)
    def power_cut(self, choose: Choose) -> None:
        self.world.power_cut(choose)

    def teardown(self) -> None:
        self.world.check()
        self.world.kill()


Histories.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestHistories = Histories.TestCase


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_a_segment_stays_until_what_took_its_messages_over_is_on_disk(restarts: int) -> None:
    """The last message of a segment goes to another queue, and the broker is killed before the epoch with both is written."""
    histories = Histories()
    world = histories.world
    histories.publish(count=1, delay=1, persistent=True, size=SMALL)
    for _ in range(restarts):
        histories.restart()
    histories.wait(ms=1)
    world.release(limit=1, faulty=0)
    histories.tick()
    while world.life.threads.waiting:
        histories.work(which=0)
    histories.teardown()
