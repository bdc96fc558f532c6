"""Queues: /queues, and what is below it but messages and bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from rabbitpy_broker.management.api.acting import act
from rabbitpy_broker.management.api.auth import own_vhosts
from rabbitpy_broker.management.api.consumers import connection_details, consumer_rows, per_channel
from rabbitpy_broker.management.api.errors import bad_request, no_such, not_found
from rabbitpy_broker.management.api.kept_rows import Make, Marks, Sharing
from rabbitpy_broker.management.api.plain_rows import (
    PLACE_BYTES,
    STATS,
    PlainMarks,
    PlainRows,
    head_timestamp,
)
from rabbitpy_broker.management.api.rates import (
    LENGTHS,
    QUEUE,
    WITHOUT_RATES,
    Spans,
    message_stats,
    queue_values,
    stats,
)
from rabbitpy_broker.management.api.request import (
    CREATED,
    NO_CONTENT,
    Answer,
    Listing,
    Request,
    Row,
    flag,
    need,
    vhost_or_404,
)
from rabbitpy_broker.management.api.shapes import arguments, erlang_process, iso_time
from rabbitpy_broker.management.api.shared_lists import LONG, OF_PAGES
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.clustering import members_of
from rabbitpy_broker.management.definitions_json import table_object
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.protocol.publish_waits import oldest_wait_s
from rabbitpy_broker.protocol.queue_methods import declare, delete, purge
from rabbitpy_broker.queues.backing_queue import BackingQueue, Figures
from rabbitpy_broker.queues.priority_queue import PriorityQueue
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES, queue_type
from rabbitpy_broker.queues.rates import Rates
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.vhost import VHost

NO_SPANS: Final = Spans()
_encode: Final = msgspec.json.Encoder().encode


def find(api: Api, request: Request) -> tuple[VHost, Queue]:
    """The queue that the path names. Raises ApiError 404."""
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    queue = vhost.queues.get(request.names["queue"])
    if queue is None:
        raise not_found()
    return vhost, queue


def list_all(api: Api, request: Request) -> Listing:
    return _listing(api, request, own_vhosts(api, request))


def list_of_vhost(api: Api, request: Request) -> Listing:
    return _listing(api, request, [vhost_or_404(api.vhosts, request.names["vhost"])])


def _listing(api: Api, request: Request, vhosts: list[VHost]) -> Listing:
    wanted, plain = api.sampler.spans(request.query), api.is_plain(request)
    totals = request.is_true("enable_queue_totals")

    def row(item: tuple[VHost, Queue], names: frozenset[str] | None = None) -> Row | None:
        vhost, queue = item
        if queue.deleted:
            return None
        if not plain:
            return queue_row(api, vhost, queue, wanted, names)
        found = basic_row(api, vhost, queue)
        if totals:
            ready, unacked = int(queue.ready_count()), int(queue.backing.unacked)
            found |= {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}
        return found

    make = None if plain or "columns" in request.query or wanted not in (NO_SPANS, WITHOUT_RATES) else _maker(api)
    return Listing(
        ((vhost, queue) for vhost in vhosts for queue in vhost.each_queue()),
        row,
        lambda item: (item[0].name, item[1].name),
        lambda item: item[1].name,
        paged=True,
        part=row,
        sharing=_sharing(api, request, vhosts),
        order=lambda: _order(vhosts),
        make=make,
        values=_DECLARED_VALUES if plain else _VALUES,
    )


_DECLARED_VALUES: Final[dict[str, Callable[[tuple[VHost, Queue]], Any]]] = {
    "name": lambda item: item[1].name,
    "vhost": lambda item: item[0].name,
}
_VALUES: Final = _DECLARED_VALUES | {
    "messages": lambda item: int(item[1].ready_count()) + int(item[1].backing.unacked),
    "messages_ready": lambda item: int(item[1].ready_count()),
    "messages_unacknowledged": lambda item: int(item[1].backing.unacked),
    "consumers": lambda item: int(item[1].consumer_count),
    "message_bytes": lambda item: int(item[1].backing.ready_bytes) + int(item[1].backing.unacked_bytes),
}


def _order(vhosts: list[VHost]) -> object:
    """The vhosts, and of each what makes another list of its queues: one that came or went."""
    return tuple((vhost, int(vhost.queues_created), int(vhost.queues_deleted)) for vhost in vhosts)


def _sharing(api: Api, request: Request, vhosts: list[VHost]) -> Sharing | None:
    """Of a long list. A queue that came or went, and other policies, make another list."""
    if sum(len(vhost.queues) for vhost in vhosts) <= LONG:
        return None
    query = tuple(sorted((name, value) for name, value in request.query.items() if name not in OF_PAGES))
    state: list[Any] = [kept for vhost in vhosts for kept in (vhost.policies._by_priority, vhost.policies._operator_by_priority)]
    state.append(api.sampler.era)
    state.append(None if api.broker.view is None else api.broker.view.era)
    kind = query, tuple(vhost.name for vhost in vhosts)
    with_samples = api.sampler.spans(request.query) not in (NO_SPANS, WITHOUT_RATES)  # samples move on by themselves
    return Sharing((query, _order(vhosts)), kind, state, Marks() if with_samples else PlainMarks(api.sampler.queues))


def _maker(api: Api) -> Make:
    """Makes rows without samples."""

    def head(item: tuple[VHost, Queue]) -> bytes:
        return _encode(basic_row(api, *item) | _of_policies(api, *item, NO_SPANS))[:-1] + b","

    def other(item: tuple[VHost, Queue]) -> bytes:
        return _encode(queue_row(api, *item, api.sampler.spans({})))

    sampler = api.sampler
    return PlainRows(sampler.queues, sampler.started, head, other, rated=sampler.kept.rates).make


def basic_row(api: Api, vhost: VHost, queue: Queue) -> Row:
    """What was declared."""
    row: Row = {
        "name": queue.name,
        "vhost": vhost.name,
        "type": queue_type(queue.arguments),
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.owner is not None,
        "arguments": table_object(queue.arguments),
        "node": api.node_name,
        "state": "running",
    }
    if queue.quorum or queue.stream:
        leader, members, online = members_of(api.broker, vhost.name)
        row |= {"leader": leader, "members": members, "online": online}
    if isinstance(queue, StreamQueue):
        row |= {
            "readers": {api.node_name: len(queue.cursors)},
            "segments": int(queue.log.segment_count()),
            "first_offset": int(queue.log.first_offset),
            "committed_offset": int(queue.log.committed) - 1,
        }
    return row


def queue_row(api: Api, vhost: VHost, queue: Queue, wanted: Spans, names: frozenset[str] | None = None) -> Row:
    """A queue in a list; what costs something and is not among the names may be left out."""
    row = basic_row(api, vhost, queue)
    for of_part, part in PARTS:
        if names is None or not names.isdisjoint(of_part):
            row.update(part(api, vhost, queue, wanted))
    return row


def _of_policies(api: Api, vhost: VHost, queue: Queue, wanted: Spans) -> Row:
    kind = queue_type(queue.arguments)
    policy, operator_policy = vhost.policies.for_queue(queue.name, kind)
    none = policy is None and operator_policy is None
    return {
        "policy": policy.name if policy else None,
        "operator_policy": operator_policy.name if operator_policy else None,
        "effective_policy_definition": {} if none else vhost.policies.effective(queue.name, kind),
    }


def _of_consumers(api: Api, vhost: VHost, queue: Queue, wanted: Spans) -> Row:
    members = list(queue.consumers.members)
    capacity = _capacity(queue)
    row: Row = {
        "exclusive_consumer_tag": next((member.tag for member in members if member.exclusive), None),
        "single_active_consumer_tag": next((one.tag for one in members if queue.single_active and not one.waiting), None),
        "consumers": len(members),
        "consumer_capacity": capacity,
        "consumer_utilisation": capacity,
        "confirm_mode": CONFIRM_MODES[int(queue.settings.confirm_mode)],
        "publishes_waiting": int(queue.backing.publishes_waiting()),
        "recoverable_slaves": None,
        "head_message_timestamp": head_timestamp(queue),
    }
    owner = queue.owner
    if isinstance(owner, Connection):
        row["owner_pid_details"] = connection_details(owner)
    return row


def _of_counts(api: Api, vhost: VHost, queue: Queue, wanted: Spans) -> Row:
    series = api.sampler.of(queue)
    figures = Figures()
    queue.backing.add_figures(figures)
    values = queue_values(queue, figures)
    row = stats(QUEUE, values, series, wanted.lengths, LENGTHS)
    row.update(erlang_process(wanted.msg_rates))
    idle_since = api.sampler.idle_since(series, values)
    if idle_since is not None:
        row["idle_since"] = iso_time(idle_since)
    row.update(message_stats(QUEUE, values, series, wanted.msg_rates, STATS))
    row.update(_bodies(queue.backing, figures))
    return row


def _of_backing(api: Api, vhost: VHost, queue: Queue, wanted: Spans) -> Row:
    return {} if queue.quorum or queue.stream else {"backing_queue_status": _status(queue)}


def _capacity(queue: Queue) -> float:
    """Whether a delivery could go out now."""
    if queue.consumer_count == 0:
        return 0.0
    if isinstance(queue, StreamQueue):
        return 0.0 if all(consumer.parked for consumer in queue.consumers.members) else 1.0
    return 1.0 if any(level.round for level in queue.consumers.levels) else 0.0


def _bodies(backing: BackingQueue, figures: Figures) -> Row:
    ready_ram, unacked_ram = int(figures.ready_ram), int(figures.unacked_ram)
    count = int(backing.len + backing.unacked)
    size = int(backing.ready_bytes + backing.unacked_bytes)
    return {
        "messages_ram": ready_ram + unacked_ram,
        "messages_ready_ram": ready_ram,
        "messages_unacknowledged_ram": unacked_ram,
        "messages_persistent": int(figures.persistent),
        "messages_paged_out": count - ready_ram - unacked_ram,
        "message_bytes": size,
        "message_bytes_ready": int(backing.ready_bytes),
        "message_bytes_unacknowledged": int(backing.unacked_bytes),
        "message_bytes_ram": int(figures.ram_bytes),
        "message_bytes_persistent": int(figures.persistent_bytes),
        "message_bytes_paged_out": size - int(figures.ram_bytes),
        "memory": int(figures.ram_bytes) + PLACE_BYTES * (count - int(figures.delta)),
    }


def _status(queue: Queue) -> Row:
    """RabbitMQ's q1 to q4 and delta, of which ours are namesakes; summed over the lanes of priorities."""
    backing = queue.backing
    row: Row = {
        "mode": "lazy" if queue.settings.lazy else "default",
        "len": int(backing.len),
        "target_ram_count": "infinity",
        "num_pending_acks": int(backing.unacked),
        "num_unconfirmed": int(backing.publishes_waiting()),
        "version": 1,
    }
    if isinstance(backing, VariableQueue):
        row.update(_lane_status(backing))
    elif isinstance(backing, PriorityQueue):
        lanes = [None if lane is None else lane.backing for lane in backing._lanes]
        row["priority_lengths"] = {str(number): 0 if lane is None else int(lane.len) for number, lane in enumerate(lanes)}
        found = [_lane_status(lane) for lane in lanes if isinstance(lane, VariableQueue)] or [_NO_LANE]
        for name in SUMMED:
            row[name] = sum(one[name] for one in found)
        row["delta"] = ["delta", 0, sum(one["delta"][2] for one in found), 0, 0]
        for name in ("next_seq_id", "next_deliver_seq_id"):
            row[name] = max(one[name] for one in found)
    return row


RATES: Final = ("avg_ingress_rate", "avg_egress_rate", "avg_ack_ingress_rate", "avg_ack_egress_rate")
SUMMED: Final = ("q1", "q2", "q3", "q4", *RATES)
_NO_RATES: Final = dict.fromkeys(RATES, 0.0)
_NO_LANE: Final[Row] = {
    **dict.fromkeys(("q1", "q2", "q3", "q4", "next_seq_id", "next_deliver_seq_id"), 0),
    **_NO_RATES,
    "delta": ["delta", 0, 0, 0, 0],
}


def _lane_status(lane: VariableQueue) -> Row:
    next_seq_id = int(lane.next_seq_id)
    row: Row = {
        "q1": len(lane.q1),
        "q2": len(lane.q2),
        "delta": ["delta", 0, int(lane.delta_count), 0, 0],
        "q3": len(lane.q3),
        "q4": len(lane.q4),
        "next_seq_id": next_seq_id,
        "next_deliver_seq_id": next_seq_id,
    }
    row.update(_averages(lane.rates))
    return row


def _averages(rates: Rates | None) -> Row:
    if rates is None:
        return _NO_RATES
    return {
        "avg_ingress_rate": rates.ingress,
        "avg_egress_rate": rates.egress,
        "avg_ack_ingress_rate": rates.ack_ingress,
        "avg_ack_egress_rate": rates.ack_egress,
    }


# The names of fields, and what makes them.
PARTS: Final[tuple[tuple[frozenset[str], Callable[[Api, VHost, Queue, Spans], Row]], ...]] = (
    (frozenset(("policy", "operator_policy", "effective_policy_definition")), _of_policies),
    (
        frozenset(
            (
                "exclusive_consumer_tag", "single_active_consumer_tag", "consumers", "consumer_capacity", "consumer_utilisation",
                "confirm_mode", "publishes_waiting", "recoverable_slaves", "head_message_timestamp", "owner_pid_details",
            )
        ),
        _of_consumers,
    ),
    (
        frozenset(
            (
                *LENGTHS, *(f"{name}_details" for name in LENGTHS), "garbage_collection", "reductions", "reductions_details",
                "idle_since", "message_stats", "messages_ram", "messages_ready_ram", "messages_unacknowledged_ram",
                "messages_persistent", "messages_paged_out", "message_bytes", "message_bytes_ready",
                "message_bytes_unacknowledged", "message_bytes_ram", "message_bytes_persistent", "message_bytes_paged_out",
                "memory",
            )
        ),
        _of_counts,
    ),
    (frozenset(("backing_queue_status",)), _of_backing),
)


def get_one(api: Api, request: Request) -> Row:
    vhost, queue = find(api, request)
    if api.is_plain(request):
        return basic_row(api, vhost, queue)
    row = queue_row(api, vhost, queue, api.sampler.spans(request.query))
    row["consumer_details"] = list(consumer_rows(api, consumers_of(queue)))
    row["incoming"] = []
    row["deliveries"] = per_channel(api, consumers_of(queue))
    if queue.backing.publishes_waiting():
        row["oldest_publish_waiting"] = int(oldest_wait_s(queue, api.broker.clients.connections))
    return row


def consumers_of(queue: Queue) -> Iterator[ChannelConsumer]:
    for consumer in list(queue.consumers.members):
        if isinstance(consumer, ChannelConsumer):
            yield consumer


# -- writes ----------------------------------------------------------------------------------------------------------


def put(api: Api, request: Request) -> Answer:
    vhost = api.vhosts.get(request.names["vhost"])
    if vhost is None:
        raise no_such("vhost_not_found")
    body = request.json()
    name = request.names["queue"]
    is_new = name not in vhost.queues
    act(
        api, request, vhost, declare, "Queue.Declare", queue=name, passive=False, exclusive=False,
        durable=flag(body, "durable"), auto_delete=flag(body, "auto_delete"), arguments=arguments(body.get("arguments")),
    )  # fmt: skip
    return CREATED if is_new else NO_CONTENT


def remove(api: Api, request: Request) -> Answer:
    vhost, queue = find(api, request)
    act(
        api, request, vhost, delete, "Queue.Delete", queue=queue.name, if_unused=request.is_true("if-unused"),
        if_empty=request.is_true("if-empty"),
    )  # fmt: skip
    return NO_CONTENT


def remove_contents(api: Api, request: Request) -> Answer:
    vhost, queue = find(api, request)
    act(api, request, vhost, purge, "Queue.Purge", queue=queue.name)
    return NO_CONTENT


def do_action(api: Api, request: Request) -> Answer:
    """There is nothing to synchronise."""
    find(api, request)
    (action,) = need(request.json(), "action")
    if action not in ("sync", "cancel_sync"):
        raise bad_request(["unknown", action])
    return NO_CONTENT


