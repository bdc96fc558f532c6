"""Messages moved out of the middle of a queue: once and in one place, whatever happens, and their publishers are told once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from pamqp.commands import Basic

from browse_model import everything, pages
from rabbitpy_broker.queues import moving
from rabbitpy_broker.queues.browse import READY, Seen
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.storage.sync import EpochWaiter
from rabbitpy_broker.storage.vhost_store import StoreSettings
from sans_io import METHOD, Frame, SansIOBroker, content, method
from small_client import SmallClient, raw_properties
from storage.faulty_disk import MemoryDisk, every

AT_MOST = 12  # states for each operation of the disk
LARGE = b"x" * 200


def small() -> StoreSettings:
    settings = StoreSettings()
    settings.msg_store_file_size_limit = 4096
    settings.queue_index_embed_msgs_below = 128
    settings.queue_index_max_journal_entries = 20
    settings.segment_entry_count = 8
    settings.journal_file_size_limit = 8 * 4096
    return settings


def move(broker: SansIOBroker, source: Queue, seen: Seen, *targets: Queue) -> str:
    """Without a turn of the broker."""
    assert seen.content is not None
    message = seen.content.message
    assert message is not None
    copy = moving.copy_of(message, message.header_payload(), message.address, message.persistent)
    return moving.move(source, seen.lane, seen.seq_id, seen.in_delta, copy, list(targets), broker.vhost.syncs)


class Waiter(EpochWaiter):
    """Waits for an epoch, as an answer of the API does."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def epoch_settled(self, epoch: int, ok: bool) -> None:
        self.told.append(ok)


class World:
    """Two durable queues, "from" and "to", and what their publisher was told."""

    def __init__(self) -> None:
        self.broker = SansIOBroker(settings=small())
        self.client = SmallClient(self.broker)
        for name in ("from", "to"):
            self.client.declare(name, durable=True)
        self.from_op = 0
        self.bodies: list[bytes] = []

    @property
    def disk(self) -> MemoryDisk:
        return self.broker.disk

    def queue(self, name: str) -> Queue:
        return self.broker.vhost.queues[name]

    def publish(self, *bodies: bytes) -> None:
        for body in bodies:
            assert self.client.publish("from", body)
            self.bodies.append(body)

    def idle(self) -> None:
        for _ in range(3):
            self.broker.vhost.tick(0.0)
            self.broker.run()

    def found(self, name: str = "from") -> list[Seen]:
        return pages(self.queue(name).backing, 50)

    def move(self, seen: Seen) -> str:
        return move(self.broker, self.queue("from"), seen, self.queue("to"))

    def check_cuts(self, must: set[bytes], gone: set[bytes] = frozenset()) -> int:
        """At each operation of the disk since `from_op`: every message of `must` is in one of the queues, and in one only."""
        states = 0
        for disk in self.disk.prefixes(self.from_op):
            for left in [disk.kill(), *every(disk, AT_MOST)]:
                states += 1
                again = SansIOBroker(disk=left, definitions=self.broker.definitions, settings=small())
                there: Counter[bytes] = Counter()
                for name in ("from", "to"):
                    there.update(bodies(again.vhost.queues[name]))
                assert set(there) >= must, f"lost: {must - set(there)}"
                assert max(there.values(), default=0) <= 1, f"in two places: {there}"
                assert not gone & set(there)
        return states


def bodies(queue: Queue) -> list[bytes]:
    return [seen.content.body for seen in pages(queue.backing, 50) if seen.content is not None]


def publish_bytes(body: bytes) -> bytes:
    return method(1, Basic.Publish(routing_key="from")) + content(1, body, b"\x10\x00\x02")


def told(frames: list[Frame]) -> list[tuple[type, int]]:
    """What a publisher was told."""
    commands = [one.command() for one in frames if one.type == METHOD]
    return [(type(one), one.delivery_tag) for one in commands if isinstance(one, (Basic.Ack, Basic.Nack))]


def in_the_journal(world: World) -> None:
    world.publish(*[b"%d" % number for number in range(4)], LARGE)


def in_segments(world: World) -> None:
    world.publish(*[b"%d" % number for number in range(11)], LARGE, LARGE + b"2", b"last")
    world.idle()


def on_disk_alone(world: World) -> None:
    world.publish(*[b"%02d" % number for number in range(30)], LARGE)
    world.idle()
    backing = world.queue("from").backing
    backing.set_target_ram_count(0)
    backing.reduce_memory_use()
    world.idle()
    assert backing.delta_count > 0


PLACES = [in_the_journal, in_segments, on_disk_alone]


@pytest.mark.parametrize("fill", PLACES)
def test_a_moved_message_is_in_one_place_at_every_power_cut(fill: Callable[[World], None]) -> None:
    world = World()
    fill(world)
    world.from_op = len(world.disk.log)
    chosen = [seen for seen in world.found() if seen.seq_id % 3 == 1]
    for seen in chosen:
        assert world.move(seen) == ""
    world.broker.run()
    moved = [seen.content.body for seen in chosen if seen.content is not None]
    assert bodies(world.queue("to")) == moved
    assert bodies(world.queue("from")) == [body for body in world.bodies if body not in moved]
    world.broker.audit()
    assert world.check_cuts(set(world.bodies)) > 5
    world.from_op = len(world.disk.log)
    world.idle()
    assert world.check_cuts(set(world.bodies)) > 1
    again = SansIOBroker(disk=world.disk.kill(), definitions=world.broker.definitions, settings=small())
    assert bodies(again.vhost.queues["to"]) == moved
    again.audit()


@pytest.mark.parametrize("fill", PLACES)
def test_a_deleted_message_is_gone_when_that_is_synced(fill: Callable[[World], None]) -> None:
    world = World()
    fill(world)
    world.from_op = len(world.disk.log)
    chosen = [seen for seen in world.found() if seen.seq_id % 2]
    gone = {seen.content.body for seen in chosen if seen.content is not None}
    wanted = {int(seen.seq_id): seen.in_delta for seen in chosen}
    assert moving.remove(world.queue("from"), 0, wanted) == sorted(wanted)
    assert moving.remove(world.queue("from"), 0, wanted) == []
    waiter = Waiter()
    world.broker.vhost.syncs.wait(waiter)
    world.broker.run()
    assert waiter.told == [True]
    kept = set(world.bodies) - gone
    assert set(bodies(world.queue("from"))) == kept
    world.broker.audit()
    assert world.check_cuts(kept) > 1
    world.from_op = len(world.disk.log)
    world.idle()
    assert world.check_cuts(kept, gone) > 1


def test_a_message_that_is_moved_before_it_is_synced_is_confirmed_once() -> None:
    world = World()
    peer = world.client.peer
    world.from_op = len(world.disk.log)
    for number in range(3):
        peer.connection.receive_data(publish_bytes(b"%d" % number))
    for seen in world.found():
        assert world.move(seen) == ""
    world.broker.run()
    frames = peer.output()
    assert told(frames) == [(Basic.Ack, 3)]
    assert world.check_cuts(set()) > 3
    world.from_op = len(world.disk.log)
    assert world.check_cuts({b"0", b"1", b"2"}) >= 1


def test_a_publisher_that_waits_for_an_ack_waits_for_the_one_at_the_target() -> None:
    broker = SansIOBroker(recording=True)
    client = SmallClient(broker)
    for name in ("from", "to"):
        client.declare(name, {"x-confirm-mode": "consumer-ack"}, durable=True)
    assert told(client.feed(publish_bytes(b"a"))) == told(client.feed(publish_bytes(b"b"))) == []
    source, target = broker.vhost.queues["from"], broker.vhost.queues["to"]
    for seen in pages(source.backing, 10):
        assert move(broker, source, seen, target) == ""
    broker.run()
    assert told(client.peer.output()) == []
    assert source.backing.publishes_waiting() == 0
    assert target.backing.publishes_waiting() == 2
    got = client.get("to")
    assert got is not None
    assert told(client.feed(method(1, Basic.Ack(delivery_tag=got.tag)))) == [(Basic.Ack, 1)]
    (seen,) = pages(target.backing, 10)
    assert moving.remove(target, 0, {int(seen.seq_id): None}) == [seen.seq_id]
    broker.run()
    assert told(client.peer.output()) == [(Basic.Nack, 2)]
    broker.audit()
    broker.close()


REFUSALS = {
    "is full": {"x-max-length": 1, "x-overflow": "reject-publish"},
    "has had one of the same identity": {"x-message-deduplication": True},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_its_target_would_refuse_stays_as_it_is(broker: SansIOBroker, reason: str) -> None:
    client = SmallClient(broker)
    client.declare("from", durable=True)
    client.declare("to", REFUSALS[reason], durable=True)
    headers = b"\x16x-deduplication-headerS\x00\x00\x00\x01k"
    properties = raw_properties(headers if "identity" in reason else b"")
    assert client.publish("to", b"first", properties)
    assert client.publish("from", b"second", properties)
    source, target = broker.vhost.queues["from"], broker.vhost.queues["to"]
    (seen,) = pages(source.backing, 10)
    other = broker.vhost.queues[client.declare("other")]
    before = everything(source.backing)
    assert move(broker, source, seen, target) == f"queue 'to' {reason}"
    assert move(broker, source, seen) == moving.NO_ROUTE
    assert move(broker, source, seen, source) == moving.ITS_OWN
    seen.seq_id = 99
    assert move(broker, source, seen, other) == moving.GONE
    assert everything(source.backing) == before


def test_moves_among_consumers_lose_nothing_and_double_nothing() -> None:
    """Publishes, gets, acks, requeues and moves to and fro, with restarts: each message is somewhere, once."""
    for seed in range(3):
        draw = random.Random(seed)
        world = World()
        acked: set[bytes] = set()
        for step in range(120):
            what = draw.choice(("publish", "publish", "move", "move", "get", "remove", "idle", "page"))
            name = draw.choice(("from", "to"))
            if what == "publish":
                world.publish(b"%d-%d" % (seed, step), LARGE + b"%d" % step)
            elif what == "move":
                ready = [seen for seen in world.found() if seen.state == READY]
                for seen in draw.sample(ready, min(3, len(ready))):
                    assert world.move(seen) == ""
            elif what == "get":
                got = world.client.get(name)
                if got is not None and draw.random() < 0.5:
                    world.client.ack(got)
                    acked.add(got.body)
                elif got is not None:
                    world.client.reject(got, requeue=True)
            elif what == "remove" and draw.random() < 0.3:
                found = world.found(name)[1:2]
                moving.remove(world.queue(name), 0, {int(seen.seq_id): seen.in_delta for seen in found})
                acked.update(seen.content.body for seen in found if seen.content is not None)
            elif what == "page":
                backing = world.queue(name).backing
                backing.set_target_ram_count(draw.choice((0, 2, 1_000)))
                backing.reduce_memory_use()
            else:
                world.idle()
            world.broker.run()
            world.broker.audit()
            there = Counter([*bodies(world.queue("from")), *bodies(world.queue("to"))])
            assert there == Counter(set(world.bodies) - acked)


