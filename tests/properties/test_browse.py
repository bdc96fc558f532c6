"""Browsing is harmless, and true: any history of two queues with browses in between, against the same plain lists.

A browse sees each message once, in its place, as it is; and the store, the queues and the disk are, to the last attribute,
what they were before it.
"""

from __future__ import annotations

import inspect
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from browse_model import everything, pages, run
from properties.test_variable_queue_model import Queues, queue
from rabbitpy_broker.queues.browse import READY, UNACKED, Browse, Peeks, Seen
from storage.small_store import LARGE, SMALL

pytestmark = pytest.mark.timeout(600)


def number_of(seen: Seen) -> int:
    assert seen.content is not None, seen.damaged
    return int(seen.content.body[:8])


class BrowsedQueues(Queues):
    """`open` is a browse that has been begun, with what has been there all the while."""

    def __init__(self) -> None:
        super().__init__()
        self.peeks = Peeks()
        self.taken_from: set[str] = set()

    @rule(at=queue, limit=st.integers(1, 9), forward=st.booleans(), cut=st.sampled_from((-1, 8, 100)))
    def browse(self, at: int, limit: int, forward: bool, cut: int) -> None:
        world = self.world
        backing, ledger = world.queues[at], world.ledgers[at]
        before = everything(world.store)
        found = pages(backing, limit, forward=forward, peeks=self.peeks, cut=cut)
        assert everything(world.store) == before, "a browse leaves everything as it was"
        if not forward:
            found.reverse()
        assert [number_of(seen) for seen in found] == sorted([*ledger.ready, *ledger.unacked])
        for seen in found:
            number = number_of(seen)
            sent = ledger.sent[number]
            assert seen.state == (READY if number in ledger.ready else UNACKED)
            assert (seen.size, seen.content.body_size) == (sent.body_size, sent.body_size)
            assert seen.content.body == (sent.body() if cut < 0 else sent.body()[:cut])
            assert (seen.content.header, seen.content.address) == (sent.header_payload(), sent.address)
            assert seen.content.persistent == sent.persistent
            assert seen.position == (ledger.ready.index(number) if seen.state == READY else -1)
            if seen.state == READY and number in ledger.must_be_redelivered:
                assert seen.redelivered
            elif number not in ledger.may_be_redelivered | ledger.must_be_redelivered:
                assert not seen.redelivered
        backing.check()

    @rule(at=queue, limit=st.integers(1, 9), start=st.integers(0, 60), forward=st.booleans())
    def browse_some(self, at: int, limit: int, start: int, forward: bool) -> None:
        """From the middle, ready ones alone: a page is what the lists say."""
        backing, ledger = self.world.queues[at], self.world.ledgers[at]
        browse = Browse(backing, self.peeks, (0, start), forward, limit, unacked=False)
        found = run(browse)
        assert [int(seen.seq_id) for seen in found] == sorted(
            [int(seen.seq_id) for seen in found], reverse=not forward
        )
        all_of = [
            (int(seen.seq_id), number_of(seen)) for seen in pages(backing, 500, peeks=self.peeks, unacked=False)
        ]
        assert [number for _, number in all_of] == ledger.ready
        behind = [one for one in all_of if (one[0] > start if forward else one[0] < start)]
        if not forward:
            behind.reverse()
        assert [(int(seen.seq_id), number_of(seen)) for seen in found] == behind[:limit]
        assert browse.more == (len(behind) > limit)

    @precondition(lambda self: self.world.threads.waiting or self.world.threads.worked)
    @rule(at=queue, forward=st.booleans(), acked=st.integers(0, 3))
    def browse_while_things_move(self, at: int, forward: bool, acked: int) -> None:
        """Threads come back, messages are taken and acked, between the steps: what stays all the while is seen, once."""
        world = self.world
        ledger = world.ledgers[at]
        left = [acked]

        def between() -> None:
            if not world.crank() and left[0] and ledger.ready:
                left[0] -= 1
                world.ack(world.fetch(at), at)

        browse = Browse(world.queues[at], self.peeks, None, forward, 500)
        there = {*ledger.ready, *ledger.unacked}
        numbers = [number_of(seen) for seen in run(browse, between)]
        stayed = there & {*ledger.ready, *ledger.unacked}
        assert stayed <= set(numbers) <= there
        assert len(set(numbers)) == len(numbers)


    @rule(at=queue, every=st.integers(1, 5), first=st.integers(0, 7), count=st.integers(1, 12), stale=st.booleans())
    def take(self, at: int, every: int, first: int, count: int, stale: bool) -> None:
        """From the middle, by what a browse has found, which may be older: `stale`. What has gone to delta since then may be
        left where it is: its place there is not known.
        """
        world = self.world
        backing, ledger = world.queues[at], world.ledgers[at]
        found = pages(backing, 500, peeks=self.peeks, cut=8)[first::every][:count]
        if stale and ledger.ready:
            world.fetch(at)
        if stale:
            world.sync()
        world._step()
        in_delta = range(int(backing.delta_start), int(backing.delta_end))
        paged_out = {number_of(seen) for seen in found if seen.in_delta is None and int(seen.seq_id) in in_delta}
        statuses = backing.take(0, {int(seen.seq_id): seen.in_delta for seen in found})
        still = set(ledger.ready)
        self.taken_from |= {seen.stage for seen in found if number_of(seen) in still}
        expected = [number_of(seen) for seen in found if number_of(seen) in still]
        by_seq_id = {int(seen.seq_id): number_of(seen) for seen in found}
        taken = {by_seq_id[int(status.seq_id)] for status in statuses}
        expected = [number for number in expected if number in taken or number not in paged_out]
        assert [by_seq_id[int(status.seq_id)] for status in statuses] == expected
        for status, number in zip(statuses, expected, strict=True):
            if number in ledger.must_be_redelivered:
                assert status.redelivered
            ledger.ready.remove(number)
            ledger.unacked[number] = status
            ledger.delivered.add(number)
        world.check()


TestBrowsedQueues = BrowsedQueues.TestCase
TestBrowsedQueues.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


LIKELY = {  # steps of a long history, in which queues are mostly long and memory mostly short
    "publish": 14, "fetch": 5, "ack": 4, "requeue": 2, "set_target": 2, "idle": 2, "sync": 4, "tick": 2, "work": 3, "tell": 3,
    "browse": 8, "browse_some": 4, "browse_while_things_move": 3, "restart": 0.15, "drop": 1, "take": 4, "kill": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_long_queues_are_seen_as_they_are(seed: int) -> None:
    """The same steps, drawn so that all parts of a queue come to have messages at once."""
    machine, draw = BrowsedQueues(), random.Random(seed)
    arguments = {
        "at": lambda: 0 if draw.random() < 0.8 else 1,
        "size": lambda: draw.choice((SMALL, SMALL, SMALL, LARGE)),
        "persistent": lambda: draw.random() < 0.8,
        "count": lambda: draw.randint(1, 14),
        "first": lambda: draw.randint(0, 20),
        "which": lambda: draw.randint(0, 3),
        "every": lambda: draw.randint(1, 3),
        "order": lambda: draw,
        "wait": lambda: draw.random() < 0.5,
        "limit": lambda: draw.randint(1, 9),
        "start": lambda: draw.randint(0, 300),
        "forward": lambda: draw.random() < 0.5,
        "cut": lambda: draw.choice((-1, 8, 100)),
        "acked": lambda: draw.randint(0, 3),
        "back": lambda: 0,
        "stale": lambda: draw.random() < 0.3,
    }
    parts: set[str] = set()
    for _ in range(300):
        (step,) = draw.choices(list(LIKELY), list(LIKELY.values()))
        if (step == "work" and not machine.world.threads.waiting) or (step == "tell" and not machine.world.threads.worked):
            continue
        method = getattr(machine, step)
        given = {name: arguments[name]() for name in inspect.signature(method).parameters}
        if step == "set_target":
            given["count"] = draw.choice((0, 1, 3, 10))
        if step == "take":
            given["first"] = draw.randint(0, 150)
        if step in ("fetch", "ack"):
            given["count"] = draw.randint(1, 6)
        method(**given)
        now = machine.world.queues[0]
        parts |= {name for name in ("q1", "q2", "q3", "q4") if getattr(now, name).count()}
        parts |= {"delta"} if now.delta_count else set()
        parts |= {"extras"} if now._extras else set()
    machine.teardown()
    assert machine.taken_from >= {"alpha", "delta"}
    assert parts >= {"q1", "q2", "q3", "q4", "delta"} | ({"extras"} if seed == 0 else set())
