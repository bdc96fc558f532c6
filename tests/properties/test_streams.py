"""Any history of two streams of one vhost, with readers, retention, restarts, kills, power cuts and a failing disk, against plain
dicts.

The rules only draw; what each step must do is in storage/stream_world.py.
"""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage.faulty_disk import Choose, all_lost, at_random, nothing_lost
from storage.stream_world import StreamWorld

pytestmark = pytest.mark.timeout(600)  # a failing history is shortened for some minutes before it is shown

stream = st.sampled_from((1, 2))
value = st.sampled_from((None, None, b"red", b"blue"))
fates = st.one_of(
    st.just(nothing_lost), st.just(all_lost), st.integers(0, 1 << 32).map(lambda seed: at_random(random.Random(seed)))
)


class Streams(RuleBasedStateMachine):
    """`to` is a stream; numbers out of range are taken modulo what there is, so that a history can be shortened."""

    def __init__(self) -> None:
        super().__init__()
        self.world = StreamWorld()

    # -- publishers and consumers ---------------------------------------------------------------------------------

    @rule(to=stream, count=st.integers(1, 30), size=st.sampled_from((20, 20, 90, 450)), value=value)
    def append(self, to: int, count: int, size: int, value: bytes | None) -> None:
        self.world.append(count, size, to, value)

    @rule(to=stream, part=st.floats(0, 1), values=st.sampled_from(((), (), (b"red",), (b"red", b"green"))), without=st.booleans())
    def subscribe(self, to: int, part: float, values: tuple[bytes, ...], without: bool) -> None:
        self.world.subscribe(to, part, list(values), without)

    @rule(number=st.integers(0, 7))
    def take(self, number: int) -> None:
        self.world.take(number)

    @rule(number=st.integers(0, 7))
    def cancel(self, number: int) -> None:
        self.world.cancel(number)

    @rule(to=stream, part=st.floats(0, 1))
    def look_for_a_time(self, to: int, part: float) -> None:
        self.world.check_offset_at(to, part)

    # -- policies -------------------------------------------------------------------------------------------------

    @rule(to=stream, size=st.sampled_from((-1, -1, 0, 1000)), age=st.sampled_from((-1, -1, 0, 5000)))
    def retain(self, to: int, size: int, age: int) -> None:
        self.world.set_retention(to, size, age)

    @rule(to=stream, size=st.sampled_from((1, 200, 400, 5000)))
    def set_segment_size(self, to: int, size: int) -> None:
        self.world.set_segment_size(to, size)

    # -- what the broker does -------------------------------------------------------------------------------------

    @rule()
    def end_turn(self) -> None:
        self.world.end_turn()

    @rule(index=st.integers(0, 7))
    def work(self, index: int) -> None:
        threads = self.world.store.threads
        if threads.waiting:
            self.world.work(index % len(threads.waiting))

    @rule(index=st.integers(0, 7))
    def tell(self, index: int) -> None:
        threads = self.world.store.threads
        if threads.worked:
            self.world.tell(index % len(threads.worked))

    @rule()
    def tick(self) -> None:
        self.world.tick()

    @rule()
    def sync(self) -> None:
        self.world.sync()

    # -- what goes wrong ------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(("write", "sync", "open", "remove", "sync_dir")), path=st.sampled_from(("journal", "queues")))
    def fail_once(self, kind: str, path: str) -> None:
        self.world.disk.fail(kind, errno.EIO, path=path)

    @rule()
    def mend(self) -> None:
        self.world.disk.mend()

    @rule()
    def restart(self) -> None:
        self.world.disk.mend()
        self.world.sync()
        self.world.idle()
        self.world.restart()

    @rule()
    def restart_at_once(self) -> None:
        self.world.disk.mend()
        if not self.world.store.store.trouble.epoch:
            self.world.restart()

    @rule()
    def kill(self) -> None:
        self.world.kill()

    @rule(choose=fates)
    def power_cut(self, choose: Choose) -> None:
        self.world.power_cut(choose)

    @invariant()
    def agrees(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """However a history ends: what is on the disk is what was promised, and when it rests everything can be read."""
        self.world.disk.mend()
        self.world.power_cut(all_lost)
        self.world.idle()
        self.world.check_everything()
        super().teardown()


TestStreams = Streams.TestCase
TestStreams.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
