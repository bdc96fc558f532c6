"""The message store against a plain dictionary: messages, epochs, failures, compactions, restarts and power cuts."""

from __future__ import annotations

import errno
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rabbitpy_broker.message import StoreEntry
from storage.faulty_disk import all_lost, at_random
from storage.store_rig import Rig, message

SIZES = st.sampled_from([10, 40, 120, 300, 900])


class StoreMachine(RuleBasedStateMachine):
    """`refs` is how many places refer to each message; what the disk must have is in the rig."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(limit=600, cache=300)
        self.refs: dict[bytes, int] = {}
        self.number = 0
        self.in_epoch = False
        self.is_written = False
        self.is_sound = True  # a step that failed inside a restart leaves nothing to look at

    def _entry(self, at: int) -> StoreEntry:
        msg_ids = list(self.refs)
        entry = self.rig.store.lookup(msg_ids[at % len(msg_ids)])
        assert entry is not None
        return entry

    @rule(size=SIZES, times=st.integers(1, 3), count=st.integers(1, 6))
    def publish(self, size: int, times: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            entry = self.rig.publish(self.number, size, times)
            self.refs[entry.msg_id] = times

    @precondition(lambda self: self.refs)
    @rule(at=st.integers(0, 1000))
    def publish_again(self, at: int) -> None:
        entry = self._entry(at)
        assert self.rig.store.publish(self.rig.read(entry)) is entry
        self.refs[entry.msg_id] += 1

    @precondition(lambda self: self.refs)
    @rule(at=st.integers(0, 1000), count=st.integers(1, 12))
    def release(self, at: int, count: int) -> None:
        for _ in range(count):
            if self.refs:
                entry = self._entry(at)
                self.rig.store.release(entry)
                self.refs[entry.msg_id] -= 1
                if not self.refs[entry.msg_id]:
                    del self.refs[entry.msg_id]
                    assert self.rig.store.lookup(entry.msg_id) is None

    @rule(keep_every=st.sampled_from([2, 3, 5, 8, 1000]))
    def release_most(self, keep_every: int) -> None:
        for at, msg_id in enumerate(list(self.refs)):
            if at % keep_every:
                for _ in range(self.refs.pop(msg_id)):
                    self.rig.store.release(self.rig.store.lookup(msg_id))

    @precondition(lambda self: not self.in_epoch)
    @rule(size=SIZES, keep_every=st.sampled_from([3, 5, 8]), steps=st.integers(0, 40))
    def come_and_go(self, size: int, keep_every: int, steps: int) -> None:
        """Some files' worth of messages, most of them released again: work for a compaction, of which some is done."""
        self.publish(size, 1, 16)
        self.whole_epoch()
        self.release_most(keep_every)
        self.whole_epoch()
        self.work(steps)

    @precondition(lambda self: not self.in_epoch)
    @rule()
    def begin(self) -> None:
        self.rig.begin()
        self.in_epoch = True
        self.is_written = False

    @precondition(lambda self: self.in_epoch and not self.is_written)
    @rule(fails=st.sampled_from(["", "", "", "open", "write", "sync", "sync_dir"]), skip=st.integers(0, 2))
    def write(self, fails: str, skip: int) -> None:
        if fails:
            self.rig.disk.fail(fails, errno.EIO, skip=skip)
        try:
            self.rig.write()
            self.is_written = True
        except OSError:
            self.rig.settle(False)
            self.in_epoch = False
        self.rig.disk.mend()

    @precondition(lambda self: self.in_epoch and self.is_written)
    @rule(ok=st.sampled_from([True, True, True, False]))
    def settle(self, ok: bool) -> None:
        self.rig.settle(ok)
        self.in_epoch = False

    @precondition(lambda self: not self.in_epoch)
    @rule()
    def whole_epoch(self) -> None:
        assert self.rig.epoch()

    @rule(steps=st.integers(1, 8))
    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.threads.crank()

    @precondition(lambda self: self.rig.threads.waiting)
    @rule(kind=st.sampled_from(["open", "read", "write", "sync", "rename", "sync_dir", "remove"]))
    def work_and_fail(self, kind: str) -> None:
        self.rig.disk.fail(kind, errno.EIO)
        self.rig.threads.crank()
        self.rig.disk.mend()

    @rule()
    def tick(self) -> None:
        self.rig.store.compact_if_due()

    @precondition(lambda self: self.refs)
    @rule(at=st.integers(0, 1000))
    def read(self, at: int) -> None:
        self.rig.read(self._entry(at))

    @precondition(lambda self: not self.in_epoch)
    @rule()
    def restart(self) -> None:
        self.is_sound = False
        self.rig.restart()
        self.is_sound = True

    @rule(seed=st.one_of(st.none(), st.integers(0, 1 << 30)), newer=st.booleans())
    def crash(self, seed: int | None, newer: bool) -> None:
        """kill -9 without a seed, else a power cut. With `newer` the indexes have got what nobody was told of."""
        rig = self.rig
        disk = rig.disk.kill() if seed is None else rig.disk.crash(at_random(random.Random(seed)))
        refs = rig.durable if rig.may_be_durable is None or not newer else rig.may_be_durable
        self.is_sound = False
        rig.recover(disk, refs)
        self.is_sound = True
        self.refs = dict(refs)
        self.in_epoch = False

    @invariant()
    def agrees(self) -> None:
        self.rig.store.check()
        assert {entry.msg_id: entry.ref_count for entry in self.rig.live()} == self.refs

    def teardown(self) -> None:
        """Every history ends in two power cuts: one that takes all it can, and what else it could have been."""
        if not self.is_sound:
            return
        for at in range(len(self.refs)):
            self.rig.read(self._entry(at))
        rig = self.rig
        refs = [rig.durable] if rig.may_be_durable is None else [rig.durable, rig.may_be_durable]
        disks = [rig.disk.crash(all_lost), rig.disk.crash(at_random(random.Random(self.number)))]
        for disk in disks:
            for durable in refs:
                rig.recover(disk.kill(), durable)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_a_message_is_as_large_as_it_says() -> None:
    assert [message(1, size).body_size for size in (0, 5, 900)] == [0, 5, 900]
