"""Any history of two queues of one vhost, with crashes and a failing disk, against plain lists.

The rules only draw; what each step must do is in storage/small_store.py. A failing history that hypothesis prints is a
script: its lines run as they are, as a plain test.
"""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from storage.faulty_disk import Choose, all_lost, at_random, nothing_lost
from storage.small_store import LARGE, SMALL, StoreAndLedgers

pytestmark = pytest.mark.timeout(600)  # a failing history is shortened for some minutes before it is shown

QUEUES = 2

queue = st.integers(0, QUEUES - 1)
size = st.sampled_from((SMALL, SMALL, LARGE))
fates = st.one_of(
    st.just(nothing_lost), st.just(all_lost), st.integers(0, 1 << 32).map(lambda seed: at_random(random.Random(seed)))
)


class Queues(RuleBasedStateMachine):
    """`at` is a queue; numbers out of range are taken modulo what there is, so that a history can be shortened."""

    def __init__(self) -> None:
        super().__init__()
        self.world = StoreAndLedgers(QUEUES)

    # -- publishers and consumers --------------------------------------------------------------------------------------

    @rule(at=queue, size=size, persistent=st.sampled_from((True, True, False)), count=st.integers(1, 12))
    def publish(self, at: int, size: int, persistent: bool, count: int) -> None:
        for _ in range(count):
            self.world.publish(size, persistent, (at,))

    @rule(size=size, persistent=st.booleans())
    def fanout(self, size: int, persistent: bool) -> None:
        self.world.publish(size, persistent, tuple(range(QUEUES)))

    @rule(at=queue, size=size, persistent=st.booleans())
    def publish_delivered(self, at: int, size: int, persistent: bool) -> None:
        if not self.world.ledgers[at].ready:
            self.world.publish_delivered(size, persistent, at)

    @rule(at=queue, count=st.integers(1, 12))
    def fetch(self, at: int, count: int) -> None:
        for _ in range(min(count, len(self.world.ledgers[at].ready))):
            self.world.fetch(at)

    def unacked(self, at: int) -> list[int]:
        return sorted(self.world.ledgers[at].unacked)

    @rule(at=queue, first=st.integers(0, 20), count=st.integers(1, 12), wait=st.booleans())
    def ack(self, at: int, first: int, count: int, wait: bool) -> None:
        for number in self.unacked(at)[first % 5 :][:count]:
            self.world.ack(number, at, wait)

    @rule(at=queue, which=st.integers(0, 20))
    def drop(self, at: int, which: int) -> None:
        unacked = self.unacked(at)
        if unacked:
            self.world.drop(unacked[which % len(unacked)], at)

    @rule(at=queue, every=st.integers(1, 3), order=st.randoms(use_true_random=False))
    def requeue(self, at: int, every: int, order: random.Random) -> None:
        numbers = self.unacked(at)[::every]
        if numbers:
            order.shuffle(numbers)
            self.world.requeue(numbers, at)

    @rule(at=queue, every=st.integers(1, 3), wait=st.booleans())
    def give_back(self, at: int, every: int, wait: bool) -> None:
        numbers = self.unacked(at)[::every]
        if numbers:
            self.world.give_back(numbers, at, wait)

    @rule(at=queue)
    def purge(self, at: int) -> None:
        self.world.purge(at)

    # -- the broker ----------------------------------------------------------------------------------------------------

    @rule(at=queue, count=st.sampled_from((0, 0, 1, 3, 10, None)))
    def set_target(self, at: int, count: int | None) -> None:
        self.world.set_target(count, at)

    @rule()
    def end_turn(self) -> None:
        self.world.end_turn()

    @rule()
    def tick(self) -> None:
        self.world.tick()

    @rule()
    def idle(self) -> None:
        self.world.idle()

    @rule()
    def sync(self) -> None:
        self.world.sync()

    @precondition(lambda self: self.world.threads.waiting)
    @rule(which=st.integers(0, 3))
    def work(self, which: int) -> None:
        self.world.work(which % len(self.world.threads.waiting))

    @precondition(lambda self: self.world.threads.worked)
    @rule(which=st.integers(0, 3))
    def tell(self, which: int) -> None:
        self.world.tell(which % len(self.world.threads.worked))

    # -- the disk ------------------------------------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(("write", "write", "sync", "sync", "resize", "sync_dir", "make_dir", "remove", "rename")),
        code=st.sampled_from((errno.EIO, errno.ENOSPC, errno.EROFS)),
        skip=st.integers(0, 3),
        forever=st.booleans(),
    )
    def fail(self, kind: str, code: int, skip: int, forever: bool) -> None:
        self.world.disk.fail(kind, code, skip, forever)

    @rule()
    def mend(self) -> None:
        self.world.disk.mend()

    # -- the end of the broker -----------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.world.disk.mend()
        self.world.restart()

    @rule(steps=st.integers(0, 6), back=st.integers(0, 4), choose=st.one_of(st.none(), fates))
    def stop_cut_short(self, steps: int, back: int, choose: Choose | None) -> None:
        self.world.stop_cut_short(steps, choose, back)

    def operations(self, back: int) -> int:
        """An operation of the last step, counted from its end."""
        return max(self.world.from_op, len(self.world.disk.log) - back)

    @rule(back=st.integers(0, 12))
    def kill(self, back: int) -> None:
        self.world.kill(self.operations(back))

    @rule(back=st.integers(0, 12), choose=fates)
    def power_cut(self, back: int, choose: Choose) -> None:
        self.world.power_cut(choose, self.operations(back))

    def teardown(self) -> None:
        """However it ended, the disk can be mended, the store comes to rest, and a clean stop keeps everything."""
        if self.world.agrees:
            self.world.disk.mend()
            self.world.idle()
            self.world.restart()


TestQueues = Queues.TestCase
TestQueues.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
