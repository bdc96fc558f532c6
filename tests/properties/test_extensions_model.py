"""Any history of a vhost whose queues have times to live, limits, priorities and dead-letter exchanges, against plain lists.

The rules only draw; what each step must do is in extensions_world.py. Restarts, kills and power cuts come at any point,
policies change while messages wait, and time goes by only when a rule says so.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from extensions_world import NAMES, BrokerAndModel
from storage.faulty_disk import all_lost, at_random, nothing_lost

pytestmark = pytest.mark.timeout(600)  # a failing history is shortened for some minutes before it is shown

names = st.sampled_from(NAMES)
SIZES = (8, 8, 30, 700)
fates = st.one_of(
    st.none(),
    st.just(nothing_lost),
    st.just(all_lost),
    st.integers(0, 1 << 32).map(lambda seed: at_random(random.Random(seed))),
)
common: dict[str, st.SearchStrategy[Any]] = {
    "message-ttl": st.sampled_from((0, 50, 100, 200)),
    "max-length": st.integers(0, 4),
    "max-length-bytes": st.sampled_from((0, 20, 750)),
    "overflow": st.sampled_from(("drop-head", "drop-head", "reject-publish", "reject-publish-dlx")),
    "dead-letter-exchange": st.sampled_from(("", "", "x", "nowhere")),
    "delivery-limit": st.integers(0, 2),
    "dead-letter-strategy": st.sampled_from(("at-most-once", "at-least-once")),
    "queue-mode": st.sampled_from(("default", "lazy")),
}
routing = st.one_of(st.none(), names, names, st.just("nowhere"))


@st.composite
def definitions(draw: Any, *, arguments: bool) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for key, values in common.items():
        if draw(st.integers(0, 2)) == 0 or (key == "dead-letter-exchange" and draw(st.booleans())):
            chosen[key] = draw(values)
    if "dead-letter-exchange" in chosen:
        key = draw(routing)
        if key is not None:
            chosen["dead-letter-routing-key"] = key
    if arguments and draw(st.booleans()):
        chosen["max-priority"] = draw(st.sampled_from((1, 3, 5)))
    return chosen


class Vhost(RuleBasedStateMachine):
    world: BrokerAndModel | None = None

    @initialize(arguments=st.fixed_dictionaries({name: definitions(arguments=True) for name in NAMES}))
    def declare(self, arguments: dict[str, dict[str, Any]]) -> None:
        self.world = BrokerAndModel(arguments)

    # -- clients ------------------------------------------------------------------------------------------------------

    @rule(
        to=names,
        size=st.sampled_from(SIZES),
        persistent=st.sampled_from((True, True, True, False)),
        ttl=st.sampled_from((None, None, 0, 30, 60, 150)),
        priority=st.integers(0, 6),
        count=st.integers(1, 6),
    )
    def publish(
        self, to: str, size: int, persistent: bool, ttl: int | None, priority: int, count: int
    ) -> None:
        for at in range(count):
            self.world.publish(to, size, persistent, ttl, (priority + at) % 7)

    @rule(of=names, count=st.integers(1, 4))
    def get(self, of: str, count: int) -> None:
        for _ in range(count):
            self.world.get(of)

    @rule(of=names, limit=st.integers(0, 3), no_ack=st.booleans())
    def consume_or_cancel(self, of: str, limit: int, no_ack: bool) -> None:
        self.world.consume(of, limit, no_ack)

    @precondition(lambda self: self.world is not None and any(self.world.model.held.values()))
    @rule(
        at=st.integers(0, 5),
        which=st.integers(0, 9),
        how=st.sampled_from(("ack", "reject", "reject", "requeue", "requeue")),
        multiple=st.booleans(),
    )
    def settle(self, at: int, which: int, how: str, multiple: bool) -> None:
        channels = sorted(channel for channel, held in self.world.model.held.items() if held)
        self.world.settle(channels[at % len(channels)], which, how, multiple)

    @rule(of=names)
    def purge(self, of: str) -> None:
        self.world.purge(of)

    @rule()
    def lose_consumers(self) -> None:
        self.world.lose_consumers()

    # -- the broker ---------------------------------------------------------------------------------------------------

    @rule(of=names, definition=definitions(arguments=False))
    def set_policy(self, of: str, definition: dict[str, Any]) -> None:
        self.world.set_policy(of, definition)

    @rule(ms=st.sampled_from((1, 30, 60, 100, 250)))
    def advance(self, ms: int) -> None:
        self.world.advance(ms)

    @rule(times=st.integers(1, 3))
    def tick(self, times: int) -> None:
        for _ in range(times):
            self.world.tick()

    @rule(of=names, count=st.sampled_from((0, 1, 3)))
    def set_target(self, of: str, count: int) -> None:
        self.world.set_target(of, count)

    # -- its end ------------------------------------------------------------------------------------------------------

    @rule(down_ms=st.sampled_from((0, 0, 100)))
    def restart(self, down_ms: int) -> None:
        self.world.restart(down_ms)

    @rule(back=st.integers(0, 12), choose=fates, down_ms=st.sampled_from((0, 0, 100)))
    def crash(self, back: int, choose: Any, down_ms: int) -> None:
        self.world.crash(back, choose, down_ms)

    def teardown(self) -> None:
        if self.world is not None:
            if self.world.agrees:
                self.world.restart(0)
            self.world.broker.close()


TestVhost = Vhost.TestCase
TestVhost.settings = settings(
    max_examples=int(os.environ.get("RABBITPY_MODEL_EXAMPLES", "200")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
