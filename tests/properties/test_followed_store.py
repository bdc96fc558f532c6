"""Any history of an owner and a follower, against what the log says."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage.faulty_disk import at_random
from storage.followed_world import QUEUES, World, check_contents

queue_ids = st.sampled_from(QUEUES)


class FollowedStores(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(queue_id=queue_ids, count=st.integers(1, 12), size=st.sampled_from((8, 30, 900, 5_000)))
    def publish(self, queue_id: int, count: int, size: int) -> None:
        self.world.publish(queue_id, count, size)

    @rule(queue_id=queue_ids, count=st.integers(1, 20))
    def fetch(self, queue_id: int, count: int) -> None:
        self.world.fetch(queue_id, count)

    @rule(queue_id=queue_ids, numbers=st.lists(st.integers(0, 15), min_size=1))
    def ack(self, queue_id: int, numbers: list[int]) -> None:
        self.world.ack(queue_id, numbers)

    @rule(queue_id=queue_ids)
    def ack_all(self, queue_id: int) -> None:
        self.world.fetch(queue_id, 100)
        self.world.ack(queue_id, range(100))

    @rule(queue_id=queue_ids)
    def give_back(self, queue_id: int) -> None:
        self.world.give_back(queue_id)

    @rule(queue_id=queue_ids)
    def purge(self, queue_id: int) -> None:
        self.world.purge(queue_id)

    @rule(fails=st.sampled_from((0, 0, 0, 1, 2)))
    def epoch(self, fails: int) -> None:
        self.world.epoch(fails=fails)

    @rule(steps=st.lists(st.sampled_from(("begin", "log", "work", "tell", "fail", "mend")), min_size=1, max_size=8))
    def owner_steps(self, steps: list[str]) -> None:
        """Two of its epochs may be under way, whatever comes between."""
        for step in steps:
            self.world.owner_step(step)

    @rule(queue_id=queue_ids, disk=st.sampled_from(("mend", "fail")), steps=st.permutations(("work", "tell", "log", "begin")))
    def two_epochs(self, queue_id: int, disk: str, steps: list[str]) -> None:
        """The first goes to the files while the second goes to the log."""
        self.world.epoch()
        for step in ("begin", "log", disk):
            self.world.publish(queue_id, 1, 30)
            self.world.owner_step(step)
        for step in ["begin", *steps]:
            self.world.owner_step(step)
            self.world.check_disk()

    @rule()
    def owner_ticks(self) -> None:
        self.world.owner_ticks()

    @rule(count=st.integers(1, 10))
    def follow(self, count: int) -> None:
        self.world.follow(count)

    @rule()
    def follower_ticks(self) -> None:
        self.world.follower_ticks()

    @rule(count=st.integers(1, 5))
    def crank_follower(self, count: int) -> None:
        self.world.crank_follower(count)

    @rule()
    def kill_follower(self) -> None:
        self.world.kill_follower()

    @rule(rng=st.randoms(use_true_random=False))
    def power_cut_of_follower(self, rng: random.Random) -> None:
        self.world.kill_follower(at_random(rng))

    @rule()
    def stop_follower(self) -> None:
        self.world.stop_follower()

    @rule()
    def take_over(self) -> None:
        self.world.take_over()

    @rule(rng=st.randoms(use_true_random=False))
    def take_over_when_the_power_of_the_owner_is_cut(self, rng: random.Random) -> None:
        self.world.take_over(at_random(rng))

    @invariant()
    def a_kill_now_leaves_what_the_log_says(self) -> None:
        self.world.check_disk()

    def teardown(self) -> None:
        self.world.owner_step("mend")
        self.world.epoch()
        self.world.take_over()
        check_contents(self.world.owner, self.world.said(len(self.world.blocks)))


TestFollowedStores = FollowedStores.TestCase
TestFollowedStores.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_seq_ids_are_known_when_no_file_tells_them():
    """All of a queue was acked, and the journal's files were written over; then its owner is killed, follows, and owns again."""
    world = World()
    world.publish(1, 3, 8)
    world.epoch()
    world.fetch(1, 3)
    world.ack(1, range(3))
    world.epoch()
    for _ in range(20):
        world.publish(2, 1, 900)
        world.epoch()
        world.fetch(2, 1)
        world.ack(2, [0])
        world.owner_ticks()
    world.take_over()
    assert world.follower.store.journal.files.number > 0
    world.publish(1, 2, 8)
    world.epoch()
    world.take_over()
    world.publish(1, 2, 8)
    world.epoch()
    world.take_over()
    check_contents(world.owner, world.said(len(world.blocks)))
