"""Queues: /queues, and what is below it but messages and bindings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rabbitpy_broker.management.api.acting import act
from rabbitpy_broker.management.api.auth import own_vhosts
from rabbitpy_broker.management.api.consumers import consumer_rows
from rabbitpy_broker.management.api.errors import bad_request, no_such, not_found
from rabbitpy_broker.management.api.rates import DELIVERED, LENGTHS, QUEUE, Spans, queue_values, spans, stats
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
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.definitions_json import table_object
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.protocol.publish_waits import oldest_wait_s
from rabbitpy_broker.protocol.queue_methods import declare, delete, purge
from rabbitpy_broker.queues.backing_queue import BackingQueue, Figures
from rabbitpy_broker.queues.priority_queue import PriorityQueue
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.vhost import VHost

STATS = ("publish", *DELIVERED)
PLACE_BYTES = 200  # of memory, about, for what is known of one message in a queue


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
    wanted = spans(request.query)
    plain = request.is_true("disable_stats") or api.config.disable_stats
    totals = request.is_true("enable_queue_totals")

    def row(item: tuple[VHost, Queue]) -> Row | None:
        vhost, queue = item
        if queue.deleted:
            return None
        if not plain:
            return queue_row(api, vhost, queue, wanted)
        found = basic_row(api, vhost, queue)
        if totals:
            ready, unacked = int(queue.backing.len), int(queue.backing.unacked)
            found |= {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}
        return found

    return Listing(
        ((vhost, queue) for vhost in vhosts for queue in vhost.each_queue()),
        row,
        lambda item: (item[0].name, item[1].name),
        lambda item: item[1].name,
        paged=True,
    )


def basic_row(api: Api, vhost: VHost, queue: Queue) -> Row:
    """What was declared."""
    return {
        "name": queue.name,
        "vhost": vhost.name,
        "type": "classic",
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.owner is not None,
        "arguments": table_object(queue.arguments),
        "node": api.node_name,
        "state": "running",
    }


def queue_row(api: Api, vhost: VHost, queue: Queue, wanted: Spans) -> Row:
    """A queue in a list."""
    series = api.sampler.of(queue)
    values = queue_values(queue)
    policy, operator_policy = vhost.policies.for_queue(queue.name)
    members = list(queue.consumers.members)
    row = basic_row(api, vhost, queue)
    row |= {
        "policy": policy.name if policy else None,
        "operator_policy": operator_policy.name if operator_policy else None,
        "effective_policy_definition": vhost.policies.effective(queue.name),
        "exclusive_consumer_tag": next((member.tag for member in members if member.exclusive), None),
        "single_active_consumer_tag": next((one.tag for one in members if queue.single_active and not one.waiting), None),
        "consumers": len(members),
        "consumer_capacity": _capacity(queue),
        "consumer_utilisation": _capacity(queue),
        "recoverable_slaves": None,
        "head_message_timestamp": None,
        "confirm_mode": CONFIRM_MODES[int(queue.settings.confirm_mode)],
        "publishes_waiting": int(queue.backing.publishes_waiting()),
        **erlang_process(wanted.msg_rates),
        **_bodies(queue.backing),
        **stats(QUEUE, values, series, wanted.lengths, LENGTHS),
    }
    idle_since = api.sampler.idle_since(series, values)
    if idle_since is not None:
        row["idle_since"] = iso_time(idle_since)
    row["backing_queue_status"] = _status(queue)
    if any(values[3:12]):
        row["message_stats"] = stats(QUEUE, values, series, wanted.msg_rates, STATS)
    owner = queue.owner
    if isinstance(owner, Connection):
        row["owner_pid_details"] = connection_details(owner)
    return row


def connection_details(connection: Any) -> Row:
    """`connection` is the host of a channel, or None."""
    name = connection.name if connection is not None else ""
    host, _, port = name.partition(" -> ")[0].rpartition(":")
    return {"name": name, "peer_host": host, "peer_port": int(port) if port.isdigit() else 0}


def _capacity(queue: Queue) -> float:
    """Whether a delivery could go out now."""
    if not queue.consumers.members:
        return 0.0
    return 1.0 if any(level.round for level in queue.consumers.levels) else 0.0


def _bodies(backing: BackingQueue) -> Row:
    figures = Figures()
    backing.add_figures(figures)
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
    by_priority: list[BackingQueue | None] = [backing]
    if isinstance(backing, PriorityQueue):
        by_priority = [None if lane is None else lane.backing for lane in backing._lanes]
    lanes = [lane for lane in by_priority if isinstance(lane, VariableQueue)]
    rates = [lane.rates for lane in lanes if lane.rates is not None]
    next_seq_id = max((int(lane.next_seq_id) for lane in lanes), default=0)
    row: Row = {
        "mode": "lazy" if queue.settings.lazy else "default",
        "q1": sum(len(lane.q1) for lane in lanes),
        "q2": sum(len(lane.q2) for lane in lanes),
        "delta": ["delta", 0, sum(int(lane.delta_count) for lane in lanes), 0, 0],
        "q3": sum(len(lane.q3) for lane in lanes),
        "q4": sum(len(lane.q4) for lane in lanes),
        "len": int(backing.len),
        "target_ram_count": "infinity",
        "next_seq_id": next_seq_id,
        "next_deliver_seq_id": next_seq_id,
        "num_pending_acks": int(backing.unacked),
        "num_unconfirmed": int(backing.publishes_waiting()),
        "avg_ingress_rate": sum((one.ingress for one in rates), 0.0),
        "avg_egress_rate": sum((one.egress for one in rates), 0.0),
        "avg_ack_ingress_rate": sum((one.ack_ingress for one in rates), 0.0),
        "avg_ack_egress_rate": sum((one.ack_egress for one in rates), 0.0),
        "version": 1,
    }
    if len(by_priority) > 1:
        row["priority_lengths"] = {str(number): 0 if one is None else int(one.len) for number, one in enumerate(by_priority)}
    return row


def get_one(api: Api, request: Request) -> Row:
    vhost, queue = find(api, request)
    if request.is_true("disable_stats") or api.config.disable_stats:
        return basic_row(api, vhost, queue)
    row = queue_row(api, vhost, queue, spans(request.query))
    row["consumer_details"] = list(consumer_rows(api, consumers_of(queue)))
    row["incoming"] = []
    row["deliveries"] = []
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


