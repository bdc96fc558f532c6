"""Any history of a quorum queue against plain lists: who is next, how often it came back, and what the counts say.

The lists are what RabbitMQ does: what came back first, then two urgent messages for each other one, unless the urgent one was
published before. A restart puts what came back into its old place.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from browse_model import pages
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import SYNCING, BackingQueue
from rabbitpy_broker.queues.browse import READY, UNACKED, Seen
from rabbitpy_broker.queues.msg_status import MsgStatus, StatusMaker
from rabbitpy_broker.queues.priority_queue import LaneMaker
from rabbitpy_broker.queues.queue_settings import PERSIST
from rabbitpy_broker.queues.quorum_queue import QuorumQueue
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore
from rabbitpy_broker.wire.field_table import FieldTable
from rabbitpy_broker.wire.properties import decode_headers
from storage.faulty_disk import CrankedThreads, MemoryDisk
from storage.small_store import EMBED_BELOW, Log
from store_host import HostOf

pytestmark = pytest.mark.timeout(600)

ORDINARY, URGENT = 0, 1
Name = tuple[int, int]  # a message: its number, and 1 if it is urgent


def _name(seen: Seen) -> Name:
    assert seen.content is not None, seen.damaged
    return int(seen.content.body), int(seen.lane)


def message(number: int, priority: int | None) -> Message:
    """The number is the body; transient, which a quorum queue does not mind."""
    body = b"%d" % number
    properties = b"\x00\x00" if priority is None else b"\x08\x00" + bytes([priority])
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties
    content = len(header).to_bytes(4, "big") + header + b"\xce"
    end = len(content)
    content += b"\x03\x00\x00" + len(body).to_bytes(4, "big") + body + b"\xce"
    return Message(b"\x00\x01q", content, end, False)


class Store(LaneMaker):
    """A vhost's store on a disk in RAM, with one queue."""

    def __init__(self, disk: MemoryDisk) -> None:
        small = StoreSettings()
        small.queue_index_embed_msgs_below = EMBED_BELOW
        small.queue_index_max_journal_entries = 20
        small.segment_entry_count = 8
        small.journal_file_size_limit = 4 * 4096
        self.threads = CrankedThreads()
        self._due = False
        self._store = VHostStore(disk, self.threads, "/v", small, Log(True), HostOf(self._on_due))
        found = self._store.recover({1: StatusMaker(0), 2: StatusMaker(1)})
        self.queue = QuorumQueue(self, True)
        for number, one in enumerate(found.values()):
            if number == 0 or one.next_seq_id > 0:
                lane = VariableQueue(one.index, PERSIST, False, EMBED_BELOW, priority=number)
                lane.recovered(one.next_seq_id, one.delta_end, one.places)
                self.queue.add_lane(number, lane)
            else:
                self._store.forget(one.index)

    def make_lane(self, priority: int) -> BackingQueue:
        index = self._store.new_index(priority + 1, True, StatusMaker(priority))
        return VariableQueue(index, PERSIST, False, EMBED_BELOW, priority=priority)

    def _on_due(self, _: object) -> None:
        self._due = True

    def sync(self) -> None:
        self._due = False
        self._store.journal.begin_if_due()
        self.threads.crank_all()

    def tick(self, now: float) -> None:
        self._store.tick()
        self.queue.tick(now)
        self.sync()

    def stop(self) -> None:
        next_seq_ids: dict[QueueIndex, int] = {}
        self.queue.stop(next_seq_ids)
        self._store.stop_work()
        for _ in range(200):
            if self._store.push():
                break
            self.threads.crank()
        write = self._store.stop(next_seq_ids)
        write.run()


class QuorumQueues(RuleBasedStateMachine):
    """`lists` are what the queue must be."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.store = Store(self.disk)
        self.now = 0.0
        self.number = 0
        self.served = 0
        self.returned: list[Name] = []
        self.urgent: list[tuple[int, Name]] = []  # with their place in the order of publishing
        self.ordinary: list[tuple[int, Name]] = []
        self.unacked: dict[Name, MsgStatus] = {}
        self.requeues: dict[Name, int] = {}

    @property
    def queue(self) -> QuorumQueue:
        return self.store.queue

    def held(self) -> int:
        return len(self.returned) + len(self.urgent) + len(self.ordinary)

    # -- publish and fetch ---------------------------------------------------------------------------------------------

    @rule(priorities=st.lists(st.sampled_from((None, None, 0, 4, 5, 255)), min_size=1, max_size=12))
    def publish(self, priorities: list[int | None]) -> None:
        for priority in priorities:
            self.number += 1
            sent = message(self.number, priority)
            assert self.queue.publish(sent) == SYNCING
            assert not sent.persistent, "the other queues that it is routed to have it as it was published"
            is_urgent = priority is not None and priority > 4
            lane = self.urgent if is_urgent else self.ordinary
            lane.append((self.number, (self.number, URGENT if is_urgent else ORDINARY)))

    def expect(self) -> Name:
        """Takes the next one from the lists."""
        if self.returned:
            return self.returned.pop(0)
        served, self.served = self.served, 0 if self.served == 2 else self.served + 1
        if not self.urgent or not self.ordinary:
            return (self.urgent or self.ordinary).pop(0)[1]
        if served == 2 and self.urgent[0][0] > self.ordinary[0][0]:
            return self.ordinary.pop(0)[1]
        return self.urgent.pop(0)[1]

    @precondition(lambda self: self.held())
    @rule(count=st.integers(1, 12))
    def fetch(self, count: int) -> None:
        for _ in range(min(count, self.held())):
            name = self.expect()
            status = self.queue.fetch()
            found = status.message
            assert found is not None
            assert (int(found.body()), status.priority) == name
            assert status.redelivered or name not in self.requeues
            headers = decode_headers(self.queue.shown(found, status).header_payload()) or FieldTable()
            assert headers.get("x-delivery-count") == self.requeues.get(name)
            self.unacked[name] = status

    # -- settle ----------------------------------------------------------------------------------------------------------

    def some_unacked(self, every: int) -> list[Name]:
        return list(self.unacked)[::every]

    @rule(every=st.integers(1, 3), drops=st.booleans())
    def settle(self, every: int, drops: bool) -> None:
        for name in self.some_unacked(every):
            status = self.unacked.pop(name)
            self.requeues.pop(name, None)
            (self.queue.drop if drops else self.queue.ack)(status)

    @rule(every=st.integers(1, 3), limited=st.booleans(), leaves=st.booleans(), order=st.randoms(use_true_random=False))
    def come_back(self, every: int, limited: bool, leaves: bool, order: object) -> None:
        names = self.some_unacked(every)
        order.shuffle(names)  # type: ignore[attr-defined]
        self.queue.set_delivery_limit(20 if limited else -1)
        for name in names:
            self.requeues[name] = self.requeues.get(name, 0) + 1
            assert self.queue.count_requeue(self.unacked[name]) == self.requeues[name]
        statuses = [self.unacked.pop(name) for name in names]
        if leaves:
            self.queue.requeue_left(statuses)
        else:
            self.queue.requeue(statuses)
        if leaves or limited:
            self.returned.extend(names)
        else:
            self.ordinary.extend((self.number + 0.5, name) for name in names)  # type: ignore[misc]  # behind all others

    @rule(every=st.integers(1, 4), first=st.integers(0, 9))
    def take(self, every: int, first: int) -> None:
        """From anywhere, by what a browse has found."""
        ready = {*self.returned, *(name for _, name in self.urgent), *(name for _, name in self.ordinary)}
        found = pages(self.queue, 7)
        assert {_name(seen) for seen in found if seen.state == READY} == ready
        assert {_name(seen) for seen in found if seen.state == UNACKED} == set(self.unacked)
        came_back = {name for name in ready if name in self.requeues}
        assert {_name(seen) for seen in found if seen.state == READY and seen.requeues >= 0} == came_back
        for seen in found[first::every]:
            name = _name(seen)
            taken = self.queue.take(seen.lane, {int(seen.seq_id): seen.in_delta})
            assert bool(taken) == (name in ready)
            if taken:
                self.unacked[name] = taken[0]
                self.returned = [one for one in self.returned if one != name]
                self.urgent = [one for one in self.urgent if one[1] != name]
                self.ordinary = [one for one in self.ordinary if one[1] != name]

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == self.held()
        gone = [*self.returned, *(name for _, name in self.urgent), *(name for _, name in self.ordinary)]
        for name in gone:
            self.requeues.pop(name, None)
        self.returned, self.urgent, self.ordinary = [], [], []

    # -- the broker ------------------------------------------------------------------------------------------------------

    @rule(count=st.sampled_from((0, 3, 10)))
    def set_target(self, count: int) -> None:
        for lane in self.queue.lanes():
            assert isinstance(lane, VariableQueue)
            lane.set_target_ram_count(count)
            lane.reduce_memory_use()

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @rule()
    def tick(self) -> None:
        self.now += 1
        self.store.tick(self.now)

    @rule()
    def restart(self) -> None:
        if self.unacked:
            self.come_back(1, True, True, _AsTheyAre())
        self.store.stop()
        self.disk = self.disk.kill()
        self.store = Store(self.disk)
        names = sorted([*self.returned, *(name for _, name in self.urgent), *(name for _, name in self.ordinary)])
        self.returned, self.served = [], 0
        self.urgent = [(name[0], name) for name in names if name[1] == URGENT]
        self.ordinary = [(name[0], name) for name in names if name[1] == ORDINARY]

    @invariant()
    def agrees(self) -> None:
        assert self.queue.len == self.held()
        assert self.queue.unacked == len(self.unacked)
        self.queue.check()


class _AsTheyAre:
    def shuffle(self, names: list[Name]) -> None:
        pass


TestQuorumQueues = QuorumQueues.TestCase
TestQuorumQueues.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def test_urgent_message_that_is_published_after_another_was_given_back_waits_for_its_turn() -> None:
    state = QuorumQueues()
    state.publish([5, 5])
    state.fetch(2)  # the next is the turn of an ordinary one
    state.come_back(1, False, False, _AsTheyAre())
    state.publish([5])
    state.agrees()
    state.fetch(3)
