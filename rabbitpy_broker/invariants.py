"""What must be true of a broker between two turns, compared with what there is. For tests, and for a broker that is started with
`--check-invariants`: each look walks over everything in memory.

  channels    what a channel says it holds is what its consumers and its queues say it holds
  queues      the counts of each queue are those of its messages, in order; who waits for an ack is waited for
  consumers   each is in the round, parked with a reason, or waiting for the active one to go
  routes      a route leads where a look at the bindings now leads
  stores      the message stores' counts are those of their messages
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import ChannelConsumer, Getter
from rabbitpy_broker.queues.msg_status import Holder, MsgStatus
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.vhost import VHost


def check_invariants(vhosts: Iterable[VHost], connections: Collection[Connection]) -> dict[Queue, list[MsgStatus]]:
    """Raises AssertionError. Returns the messages of each queue that are held by somebody."""
    held = _check_channels(connections)
    for vhost in vhosts:
        for name, queue in vhost.queues.items():
            assert queue.name == name, "a queue is found under its name"
            assert not queue.deleted, f"{name} is deleted, and there"
            if isinstance(queue, StreamQueue):
                queue.check()
            else:
                _check_counts(queue, held.get(queue, []))
                _check_rounds(queue)
            _check_consumers(queue, connections)
            assert queue.owner is None or queue.owner in connections, f"{name} outlived its connection"
        _check_routes(vhost)
        for log in vhost.store.streams.values():
            log.check()
        vhost.store.persistent_messages.check()
        vhost.store.transient_messages.check()
    return held


def _check_channels(connections: Iterable[Connection]) -> dict[Queue, list[MsgStatus]]:
    held: dict[Queue, list[MsgStatus]] = {}
    for connection in connections:
        for channel in connection.channels.values():
            _check_channel(channel, held)
    return held


def _check_channel(channel: Channel, held: dict[Queue, list[MsgStatus]]) -> None:
    deliveries = channel.deliveries
    statuses = deliveries.unacked.all()
    assert deliveries.unacked.count == len(statuses), "the count of what is unacked"
    waiting = [one for settled, _ in channel.tx.settles for one in settled] if channel.tx else []
    by_holder: Counter[Holder] = Counter()
    for status in statuses + waiting:
        holder = status.held_by
        assert isinstance(holder, ChannelConsumer | Getter), "what is unacked is held"
        held.setdefault(holder.queue, []).append(status)
        by_holder[holder] += 1
    delivered = sum(count for holder, count in by_holder.items() if isinstance(holder, ChannelConsumer))
    assert deliveries.prefetch_used == delivered, "prefetch_used"
    for holder, count in by_holder.items():
        assert holder.unacked_count == count, "unacked_count"
    if channel.closing:
        assert not statuses, "a closing channel holds messages"
        assert not deliveries.consumers, "a closing channel has consumers"
    of_streams = deliveries.streams.all() if deliveries.streams is not None else []
    of_streams += channel.tx.runs if channel.tx else []
    for run in of_streams:
        by_holder[run.consumer] += run.end - run.first
    for consumer in deliveries.consumers.values():
        assert consumer in consumer.queue.consumers.members, f"{consumer.tag} is not known to its queue"
        assert consumer.unacked_count == by_holder[consumer], f"unacked_count of {consumer.tag}"


def _check_counts(queue: Queue, held: list[MsgStatus]) -> None:
    backing = queue.backing
    backing.check()
    light = sum(one.light and one.owes for one in held)
    assert backing.publishes_waiting() == backing.count_owing() + light, f"{queue.name}: publishes_waiting"
    kept = [status for status in held if not status.light]
    of_dead_letters = backing.unacked - len(kept)  # they wait to be taken, and nobody holds them
    assert of_dead_letters >= 0, f"{queue.name}: unacked is {backing.unacked}, {len(kept)} are held"
    if of_dead_letters == 0:
        assert backing.unacked_bytes == sum(status.body_size for status in kept), f"{queue.name}: unacked_bytes"


def _check_consumers(queue: Queue, connections: Collection[Connection]) -> None:
    for consumer in queue.consumers.members:
        assert isinstance(consumer, ChannelConsumer), "kept by: basic_methods.consume"
        deliveries = consumer.deliveries
        connection = deliveries.host
        assert isinstance(connection, Connection), "kept by: Connection, which hands itself to its channels"
        assert connection in connections, f"{consumer.tag} outlived its connection"
        channel = connection.channels[deliveries.number]
        assert channel.deliveries is deliveries, f"{consumer.tag} outlived its channel"
        assert not channel.closing, f"{consumer.tag} outlived its channel"
        assert deliveries.consumers.get(consumer.tag) is consumer, f"{consumer.tag} is not known to its channel"


def _check_rounds(queue: Queue) -> None:
    levels = queue.consumers.levels
    assert queue.consumer_count == len(queue.consumers.members), "consumer_count"
    in_round = [consumer for level in levels for consumer in level.round]
    assert len(in_round) == len(set(in_round)), "a consumer is in the round once"
    waiting = [consumer for consumer in queue.consumers.members if consumer.waiting]
    assert sum(level.members for level in levels) + len(waiting) == len(queue.consumers.members), "members"
    for consumer in queue.consumers.members:
        assert isinstance(consumer, ChannelConsumer), "kept by: basic_methods.consume"
        if consumer.waiting:
            assert not consumer.parked, f"{consumer.tag} waits, and is parked"
            assert consumer not in in_round, f"{consumer.tag} waits, and is in the round"
            continue
        assert (consumer in in_round) != consumer.parked, f"{consumer.tag} is parked, or in the round"
        if queue.backing.len and not queue.touched and not queue.unreadable:
            assert consumer.parked, f"{consumer.tag} is forgotten: messages are ready"
            assert _has_reason_to_wait(consumer), f"{consumer.tag} is forgotten: nothing keeps it parked"


def _has_reason_to_wait(consumer: ChannelConsumer) -> bool:
    deliveries = consumer.deliveries
    return (
        not deliveries.output.writable
        or (deliveries.prefetch_limit > 0 and deliveries.prefetch_used >= deliveries.prefetch_limit)
        or (not consumer.no_ack and 0 < consumer.prefetch_limit <= consumer.unacked_count)
    )


def _check_routes(vhost: VHost) -> None:
    for exchange in vhost.exchanges.values():
        bindings = exchange.bindings()
        assert exchange.binding_count() == len(bindings), f"binding_count of {exchange.name}"
        for binding in bindings:
            target = binding.destination
            there = vhost.queues.get(target.name) if isinstance(target, Queue) else vhost.exchanges.get(target.name)
            if there is None:
                there = vhost.reply_queues.get(target.name)  # a tap's is hidden as these are
            assert there is target, f"{exchange.name} is bound to {target.name}, which is not there"
            assert binding in target.incoming, f"{target.name} does not know that {exchange.name} is bound to it"
    for route in vhost.routes.all():
        assert route.valid, "a route that is kept is valid"
        assert vhost.routes.find(route.address) is route, "a route is found under its address"
        if route.exchange is None:
            queue = vhost.routes.addressed(route.routing_key)
            assert route.queues == ([] if queue is None else [queue]), f"the route to {route.routing_key}"
        elif route.cacheable:
            assert vhost.exchanges.get(route.exchange_name) is route.exchange, f"the exchange of {route.exchange_name}"
            found = vhost.routes.resolve(route.exchange, [route.routing_key], None)
            assert set(route.queues) == set(found), f"the route by {route.exchange_name} with {route.routing_key}"
