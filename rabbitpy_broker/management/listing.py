"""The rows of rabbitpy-ctl's lists: RabbitMQ's columns, and how each is read.

A list is made row by row while the broker serves others: what is deleted meanwhile is in it or not, and each row is true
for the moment when it was made. A column that RabbitMQ has and we know nothing of is empty.

A table of arguments is a list of [key, type, value], as rabbitmqctl shows it.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from rabbitpy_broker.management.admin import UNAVAILABLE, USAGE, Admin, AdminError
from rabbitpy_broker.management.clustering import members_of
from rabbitpy_broker.management.clustering import quorum_status as members_status
from rabbitpy_broker.policies import Policy
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.protocol.publish_waits import oldest_wait_s
from rabbitpy_broker.protocol.stream_deliveries import StreamConsumer
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES, queue_type
from rabbitpy_broker.queues.stream_cursor import StreamCursor
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.routing.delayed import DelayedExchange
from rabbitpy_broker.routing.exchange import Exchange
from rabbitpy_broker.stats import queue_stats
from rabbitpy_broker.storage.stream_log import StreamLog
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.field_table import FieldTable

if TYPE_CHECKING:
    from rabbitpy_broker.net.transport import Client

Row = dict[str, object]
T = TypeVar("T")
Columns = dict[str, Callable[[T], object]]


def nothing(_: object) -> object:
    """What a column has that there is nothing for."""
    return ""


def _choose(columns: Columns[T], wanted: Sequence[str], default: Sequence[str]) -> Columns[T]:
    unknown = [name for name in wanted if name not in columns]
    if unknown:
        raise AdminError(f"Info key(s) {','.join(unknown)} are not supported", USAGE)
    return {name: columns[name] for name in wanted or default}


def _rows(columns: Columns[T], items: Iterator[T | None]) -> Iterator[Row | None]:
    """None where there is no item: a step of a walk in slices that came upon none."""
    for item in items:
        yield None if item is None else {name: read(item) for name, read in columns.items()}


def _if_running(admin: Admin, vhost: str) -> list[VHost]:
    """Lists of queues, exchanges and so on are empty for a vhost that is not there."""
    found = admin.node.vhosts.get(vhost)
    return [] if found is None else [found]


# -- tables -------------------------------------------------------------------------------------------------------


def triples(table: dict[str, object]) -> list[object]:
    """A table as [key, type, value] for each entry; nested ones too."""
    if not isinstance(table, FieldTable):
        return [[key, _guess(value), _plain(value)] for key, value in table.items()]
    return [[key, table.type_name(key), _plain(value)] for key, value in table.items()]


def _guess(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "long", float: "double", str: "longstr", dict: "table", list: "array"}.get(type(value), "void")


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return triples(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return scalar(value)


def scalar(value: object) -> object:
    """A single value of a table as JSON can have it."""
    if isinstance(value, bytes):
        return "Not UTF-8, base64 is: " + base64.b64encode(value).decode("ascii")
    return float(value) if isinstance(value, Decimal) else value


# -- queues -------------------------------------------------------------------------------------------------------


class _QueueRow:
    """A queue with its vhost; the figures are added up when a column asks for them."""

    def __init__(self, admin: Admin, vhost: VHost, queue: Queue) -> None:
        self.admin = admin
        self.vhost = vhost
        self.queue = queue
        self._stats: Any = None

    @property
    def stats(self) -> Any:
        if self._stats is None:
            self._stats = queue_stats(self.queue, self.admin.broker.clients.connections)
        return self._stats

    def oldest_publish_waiting(self) -> object:
        """Seconds; empty when none waits."""
        if self.queue.backing.publishes_waiting() == 0:
            return ""
        return int(oldest_wait_s(self.queue, self.admin.broker.clients.connections))

    def effective_policy(self) -> dict[str, object]:
        return self.vhost.policies.effective(self.queue.name, queue_type(self.queue.arguments))

    def policy(self) -> str:
        found, _ = self.vhost.policies.for_queue(self.queue.name, queue_type(self.queue.arguments))
        return found.name if found else ""

    def operator_policy(self) -> str:
        _, found = self.vhost.policies.for_queue(self.queue.name, queue_type(self.queue.arguments))
        return found.name if found else ""

    def owner_pid(self) -> str:
        owner = self.queue.owner
        return self.admin.pid.of(owner) if isinstance(owner, Connection) else ""

    def exclusive_consumer(self) -> ChannelConsumer | None:
        for consumer in self.queue.consumers.members:
            if consumer.exclusive and isinstance(consumer, ChannelConsumer):
                return consumer
        return None

    def exclusive_consumer_pid(self) -> str:
        consumer = self.exclusive_consumer()
        return "" if consumer is None else self.admin.pid.of(consumer.deliveries.host, int(consumer.deliveries.number))

    def exclusive_consumer_tag(self) -> str:
        consumer = self.exclusive_consumer()
        return "" if consumer is None else consumer.tag


QUEUE_COLUMNS: Final[Columns[_QueueRow]] = {
    "name": lambda row: row.queue.name,
    "durable": lambda row: row.queue.durable,
    "auto_delete": lambda row: row.queue.auto_delete,
    "arguments": lambda row: triples(row.queue.arguments),
    "policy": _QueueRow.policy,
    "operator_policy": _QueueRow.operator_policy,
    "effective_policy_definition": lambda row: json.dumps(row.effective_policy()),
    "pid": nothing,
    "owner_pid": _QueueRow.owner_pid,
    "exclusive": lambda row: row.queue.owner is not None,
    "exclusive_consumer_pid": _QueueRow.exclusive_consumer_pid,
    "exclusive_consumer_tag": _QueueRow.exclusive_consumer_tag,
    "messages_ready": lambda row: int(row.queue.ready_count()),
    "messages_unacknowledged": lambda row: int(row.queue.backing.unacked),
    "messages": lambda row: int(row.queue.ready_count() + row.queue.backing.unacked),
    "messages_ram": lambda row: row.stats.messages_ram,
    "messages_ready_ram": nothing,
    "messages_unacknowledged_ram": nothing,
    "messages_persistent": lambda row: row.stats.messages_persistent,
    "messages_paged_out": lambda row: row.stats.messages_paged_out,
    "message_bytes": lambda row: int(row.queue.ready_bytes() + row.queue.backing.unacked_bytes),
    "message_bytes_ready": lambda row: int(row.queue.ready_bytes()),
    "message_bytes_unacknowledged": lambda row: int(row.queue.backing.unacked_bytes),
    "message_bytes_ram": lambda row: row.stats.messages_ram_bytes,
    "message_bytes_persistent": lambda row: row.stats.messages_persistent_bytes,
    "message_bytes_paged_out": lambda row: row.stats.messages_paged_out_bytes,
    "head_message_timestamp": nothing,
    "disk_reads": lambda row: row.stats.disk_reads,
    "disk_writes": lambda row: row.stats.disk_writes,
    "consumers": lambda row: int(row.queue.consumer_count),
    "consumer_utilisation": nothing,
    "consumer_capacity": nothing,
    "memory": nothing,
    "slave_pids": nothing,
    "synchronised_slave_pids": nothing,
    "state": lambda _: "running",
    "type": lambda row: queue_type(row.queue.arguments),
    "leader": lambda row: row.admin.pid.node if row.queue.quorum or row.queue.stream else "",
    "members": lambda row: _group(row.admin, row.queue, 1),
    "online": lambda row: _group(row.admin, row.queue, 2),
    "segments": lambda row: _of_stream(row.queue, lambda log: log.segment_count()),
    "first_offset": lambda row: _of_stream(row.queue, lambda log: log.first_offset),
    "committed_offset": lambda row: _of_stream(row.queue, lambda log: log.committed - 1),
    "readers": lambda row: len(row.queue.cursors) if isinstance(row.queue, StreamQueue) else "",
    "confirm_mode": lambda row: CONFIRM_MODES[int(row.queue.settings.confirm_mode)],
    "publishes_waiting": lambda row: int(row.queue.backing.publishes_waiting()),
    "oldest_publish_waiting": _QueueRow.oldest_publish_waiting,
}


def _of_stream(queue: Queue, read: Callable[[StreamLog], int]) -> object:
    """A number of a stream's log; empty for other queues."""
    return int(read(queue.log)) if isinstance(queue, StreamQueue) else ""


def _group(admin: Admin, queue: Queue, which: Literal[1, 2]) -> str:
    """The nodes that a quorum queue or a stream is on, or those of them that run, as rabbitmqctl shows a list."""
    if not (queue.quorum or queue.stream):
        return ""
    return f"[{', '.join(members_of(admin.broker, queue.vhost)[which])}]"


def quorum_status(admin: Admin, queue: str, *, vhost: str = "/") -> Iterator[dict[str, object]]:
    """The members of a quorum queue's group."""
    found = admin.vhost(vhost).queues.get(queue)
    if found is None:
        raise AdminError(f"no queue '{queue}' in vhost '{vhost}'", UNAVAILABLE)
    if not found.quorum:
        raise AdminError("Cannot get quorum status of a queue that is no quorum queue", UNAVAILABLE)
    return iter(members_status(admin.broker, vhost))


def list_queues(admin: Admin, *columns: str, vhost: str = "/") -> Iterator[Row | None]:
    chosen = _choose(QUEUE_COLUMNS, columns, ("name", "messages"))
    return _rows(
        chosen,
        (_QueueRow(admin, each, queue) for each in _if_running(admin, vhost) for queue in each.each_queue()),
    )


# -- streams ------------------------------------------------------------------------------------------------------


class _StreamConsumerRow:
    """A consumer of a stream, and its cursor."""

    def __init__(self, admin: Admin, consumer: StreamConsumer, cursor: StreamCursor) -> None:
        self.admin = admin
        self.consumer = consumer
        self.cursor = cursor


STREAM_CONSUMER_COLUMNS: Final[Columns[_StreamConsumerRow]] = {
    "connection_pid": lambda row: row.admin.pid.of(row.consumer.deliveries.host),
    "stream": lambda row: row.consumer.stream.name,
    "subscription_id": lambda row: row.consumer.tag,
    "credits": lambda row: max(0, int(row.consumer.prefetch_limit - row.consumer.unacked_count)),
    "messages_consumed": lambda row: int(row.cursor.delivered),
    "offset": lambda row: int(row.cursor.last_offset) if row.cursor.delivered else "",
    "offset_lag": lambda row: int(row.cursor.lag()),
    "properties": lambda row: triples(row.consumer.arguments),
}


def _stream_consumers(admin: Admin, vhost: VHost) -> Iterator[_StreamConsumerRow | None]:
    for queue in vhost.each_queue():
        if isinstance(queue, StreamQueue):
            for consumer, cursor in list(queue.cursors.items()):
                if isinstance(consumer, StreamConsumer):
                    yield _StreamConsumerRow(admin, consumer, cursor)
        yield None


def list_stream_consumers(admin: Admin, *columns: str, vhost: str = "/") -> Iterator[Row | None]:
    default = ("connection_pid", "stream", "subscription_id", "messages_consumed", "offset", "offset_lag", "credits")
    chosen = _choose(STREAM_CONSUMER_COLUMNS, columns, default)
    return _rows(chosen, (found for each in _if_running(admin, vhost) for found in _stream_consumers(admin, each)))


# -- exchanges and bindings ---------------------------------------------------------------------------------------


def _exchange_policy(row: tuple[VHost, Exchange | None]) -> str:
    vhost, exchange = row
    policy = vhost.policies.for_exchange(exchange.name) if exchange is not None else None
    return policy.name if policy else ""


# The default exchange is None.
EXCHANGE_COLUMNS: Final[Columns[tuple[VHost, Exchange | None]]] = {
    "name": lambda row: row[1].name if row[1] else "",
    "type": lambda row: row[1].type if row[1] else "direct",
    "durable": lambda row: row[1].durable if row[1] else True,
    "auto_delete": lambda row: row[1].auto_delete if row[1] else False,
    "internal": lambda row: row[1].internal if row[1] else False,
    "arguments": lambda row: triples(row[1].arguments) if row[1] else [],
    "policy": _exchange_policy,
    "messages_delayed": lambda row: row[1].messages_delayed() if isinstance(row[1], DelayedExchange) else "",
}


def list_exchanges(admin: Admin, *columns: str, vhost: str = "/") -> Iterator[Row | None]:
    chosen = _choose(EXCHANGE_COLUMNS, columns, ("name", "type"))
    return _rows(
        chosen,
        ((each, exchange) for each in _if_running(admin, vhost) for exchange in chain([None], each.each_exchange())),
    )


_Ends = tuple[str, str, str, str, FieldTable]

BINDING_COLUMNS: Final[Columns[_Ends]] = {
    "source_name": lambda row: row[0],
    "source_kind": lambda _: "exchange",
    "destination_name": lambda row: row[1],
    "destination_kind": lambda row: row[2],
    "routing_key": lambda row: row[3],
    "arguments": lambda row: sorted(triples(row[4]), key=str),
}
_NO_ARGUMENTS: Final = FieldTable()


def _bindings(vhost: VHost) -> Iterator[_Ends]:
    for queue in vhost.each_queue():
        yield "", queue.name, "queue", queue.name, _NO_ARGUMENTS
    for exchange in vhost.each_exchange():
        for binding in exchange.each_binding():
            target = binding.destination
            if isinstance(target, Queue) and target.name in vhost.reply_queues:  # somebody watches the exchange
                continue
            yield exchange.name, target.name, target.kind, binding.binding_key, binding.arguments


def list_bindings(admin: Admin, *columns: str, vhost: str = "/") -> Iterator[Row | None]:
    chosen = _choose(BINDING_COLUMNS, columns, tuple(BINDING_COLUMNS))
    return _rows(chosen, (ends for each in _if_running(admin, vhost) for ends in _bindings(each)))


# -- connections, channels, consumers -----------------------------------------------------------------------------


class _ConnectionRow:
    def __init__(self, admin: Admin, connection: Connection, client: Client) -> None:
        self.admin = admin
        self.connection = connection
        self.client = client

    def state(self) -> str:
        if self.connection.blocked:
            return "blocked"
        if self.connection.blocked_by():
            return "blocking"
        return "flow" if self.client.is_held() else "running"

    def tls(self, what: str) -> object:
        tls = self.client.socket.get_extra_info("ssl_object")
        if tls is None:
            return ""
        if what == "ssl_protocol":
            return tls.version()
        if what == "ssl_cipher":
            return tls.cipher()[0]
        certificate = tls.getpeercert() or {}
        if what == "peer_cert_validity":
            return f"{certificate['notBefore']} - {certificate['notAfter']}" if certificate else ""
        name = certificate.get("subject" if what == "peer_cert_subject" else "issuer", ())
        return ",".join(f"{key}={value}" for part in name for key, value in part)


def _tls(what: str) -> Callable[[_ConnectionRow], object]:
    return lambda row: row.tls(what)


CONNECTION_COLUMNS: Final[Columns[_ConnectionRow]] = {
    "pid": lambda row: row.admin.pid.of(row.connection),
    "name": lambda row: row.connection.name,
    "port": lambda row: row.client.ours[1],
    "host": lambda row: row.client.ours[0],
    "peer_port": lambda row: row.client.peer[1],
    "peer_host": lambda row: row.client.peer[0],
    "ssl": lambda row: row.connection.session.tls,
    "ssl_protocol": _tls("ssl_protocol"),
    "ssl_key_exchange": nothing,
    "ssl_cipher": _tls("ssl_cipher"),
    "ssl_hash": nothing,
    "peer_cert_subject": _tls("peer_cert_subject"),
    "peer_cert_issuer": _tls("peer_cert_issuer"),
    "peer_cert_validity": _tls("peer_cert_validity"),
    "state": _ConnectionRow.state,
    "channels": lambda row: len(row.connection.channels),
    "protocol": lambda _: [0, 9, 1],
    "auth_mechanism": lambda row: row.connection.session.mechanism,
    "user": lambda row: row.connection.session.user.name if row.connection.session.user else "",
    "vhost": lambda row: row.connection.session.vhost.name if row.connection.session.vhost else "",
    "timeout": lambda row: int(row.connection.session.heartbeat),
    "frame_max": lambda row: int(row.connection.output.frame_max),
    "channel_max": lambda row: int(row.connection.session.channel_max),
    "client_properties": lambda row: triples(row.connection.session.client_properties),
    "connected_at": lambda row: row.client.connected_at_ms,
    "recv_oct": lambda row: int(row.connection.received_bytes),
    "recv_cnt": lambda row: int(row.connection.reads),
    "send_oct": lambda row: int(row.connection.output.sent_bytes),
    "send_cnt": lambda row: int(row.connection.output.writes),
    "send_pend": lambda row: row.client.socket.get_write_buffer_size(),
}


def _open_connections(admin: Admin) -> Iterator[_ConnectionRow]:
    clients = {client.connection: client for client in admin.broker.clients.open}
    for connection in list(admin.broker.clients.connections):
        client = clients.get(connection)
        if client is not None:
            yield _ConnectionRow(admin, connection, client)


def list_connections(admin: Admin, *columns: str) -> Iterator[Row | None]:
    chosen = _choose(CONNECTION_COLUMNS, columns, ("user", "peer_host", "peer_port", "state"))
    return _rows(chosen, _open_connections(admin))


def _uncommitted_acks(channel: Channel) -> int:
    return channel.tx.settled_count() if channel.tx else 0


_AdminChannel = tuple[Admin, Channel]

CHANNEL_COLUMNS: Final[Columns[_AdminChannel]] = {
    "pid": lambda row: row[0].pid.of(row[1].host, int(row[1].number)),
    "connection": lambda row: row[0].pid.of(row[1].host),
    "name": lambda row: f"{row[1].host.name} ({row[1].number})",
    "number": lambda row: int(row[1].number),
    "user": lambda row: row[1].access.user.name,
    "vhost": lambda row: row[1].vhost.name,
    "transactional": lambda row: row[1].tx is not None,
    "confirm": lambda row: row[1].confirms is not None,
    "consumer_count": lambda row: len(row[1].deliveries.consumers),
    "messages_unacknowledged": lambda row: int(row[1].deliveries.unacked_count()),
    "messages_uncommitted": lambda row: len(row[1].tx.publishes) if row[1].tx else 0,
    "acks_uncommitted": lambda row: _uncommitted_acks(row[1]),
    "messages_unconfirmed": lambda row: int(row[1].confirms.waiting_count()) if row[1].confirms else 0,
    "prefetch_count": lambda row: int(row[1].deliveries.consumer_prefetch),
    "global_prefetch_count": lambda row: int(row[1].deliveries.prefetch_limit),
}


def _open_channels(admin: Admin) -> Iterator[_AdminChannel | None]:
    for connection in list(admin.broker.clients.connections):
        for channel in list(connection.channels.values()):
            if not channel.closing:
                yield admin, channel
        yield None


def list_channels(admin: Admin, *columns: str) -> Iterator[Row | None]:
    chosen = _choose(CHANNEL_COLUMNS, columns, ("pid", "user", "consumer_count", "messages_unacknowledged"))
    return _rows(chosen, _open_channels(admin))


_AdminConsumer = tuple[Admin, ChannelConsumer]


def _activity_status(consumer: ChannelConsumer) -> str:
    if not consumer.queue.consumers.single_active:
        return "up"
    return "waiting" if consumer.waiting else "single_active"


CONSUMER_COLUMNS: Final[Columns[_AdminConsumer]] = {
    "queue_name": lambda row: row[1].queue.name,
    "channel_pid": lambda row: row[0].pid.of(row[1].deliveries.host, int(row[1].deliveries.number)),
    "consumer_tag": lambda row: row[1].tag,
    "ack_required": lambda row: not row[1].no_ack,
    "prefetch_count": lambda row: int(row[1].prefetch_limit),
    "active": lambda row: not row[1].waiting,
    "activity_status": lambda row: _activity_status(row[1]),
    "arguments": lambda row: triples(row[1].arguments),
}


def _consumers(admin: Admin, vhost: VHost) -> Iterator[_AdminConsumer | None]:
    for queue in vhost.each_queue():
        for consumer in list(queue.consumers.members):
            if isinstance(consumer, ChannelConsumer):
                yield admin, consumer
        yield None


def list_consumers(admin: Admin, *columns: str, vhost: str = "/") -> Iterator[Row | None]:
    default = tuple(name for name in CONSUMER_COLUMNS if name != "activity_status")
    chosen = _choose(CONSUMER_COLUMNS, columns, default)
    return _rows(chosen, (found for each in _if_running(admin, vhost) for found in _consumers(admin, each)))


# -- vhosts and users ---------------------------------------------------------------------------------------------


def _metadata(admin: Admin, vhost: str) -> dict[str, Any]:
    found = json.loads(admin.definitions.vhost_metadata(vhost))
    return found if isinstance(found, dict) else {}


_AdminVHost = tuple[Admin, VHost]

VHOST_COLUMNS: Final[Columns[_AdminVHost]] = {
    "name": lambda row: row[1].name,
    "tracing": lambda row: row[1].tracing,
    "description": lambda row: _metadata(row[0], row[1].name).get("description", ""),
    "tags": lambda row: _metadata(row[0], row[1].name).get("tags", ""),
    "default_queue_type": lambda row: _metadata(row[0], row[1].name).get("default_queue_type", "undefined"),
    "cluster_state": nothing,
    "metadata": lambda row: json.dumps(_metadata(row[0], row[1].name)),
}


def list_vhosts(admin: Admin, *columns: str) -> Iterator[Row | None]:
    chosen = _choose(VHOST_COLUMNS, columns, ("name",))
    return _rows(chosen, ((admin, vhost) for vhost in list(admin.node.vhosts.values())))


def list_workers(admin: Admin) -> Iterator[Row]:
    """The only one; what runs several has a list of its own."""
    vhosts = admin.node.vhosts.values()
    row: Row = {
        "worker": 0,
        "pid": os.getpid(),
        "state": "running",
        "vhosts": len(vhosts),
        "connections": len(admin.broker.clients.connections),
        "queues": sum(len(vhost.queues) for vhost in vhosts),
        "memory": admin.broker.alarms.memory_used,
    }
    return iter([row])


def list_users(admin: Admin) -> Iterator[Row]:
    return iter([{"user": user.name, "tags": list(user.tags)} for user in admin.users.all()])


def list_permissions(admin: Admin, *, vhost: str = "/") -> Iterator[Row]:
    admin.vhost(vhost)
    return iter([
        {"user": user.name, "configure": found.configure, "write": found.write, "read": found.read}
        for user in admin.users.all()
        if (found := user.permissions.get(vhost)) is not None
    ])


def list_user_permissions(admin: Admin, user: str) -> Iterator[Row]:
    return iter([
        {"vhost": vhost, "configure": found.configure, "write": found.write, "read": found.read}
        for vhost, found in admin.user(user).permissions.items()
    ])


def list_topic_permissions(admin: Admin, *, vhost: str = "/") -> Iterator[Row]:
    admin.vhost(vhost)
    return iter([
        {"user": user.name, "exchange": exchange, "write": found.write, "read": found.read}
        for user in admin.users.all()
        for exchange, found in user.topic_permissions.get(vhost, {}).items()
    ])


def list_user_topic_permissions(admin: Admin, user: str) -> Iterator[Row]:
    return iter([
        {"vhost": vhost, "exchange": exchange, "write": found.write, "read": found.read}
        for vhost, exchanges in admin.user(user).topic_permissions.items()
        for exchange, found in exchanges.items()
    ])


def list_vhost_limits(admin: Admin, *, vhost: str = "/", everywhere: bool = False) -> Iterator[Row]:
    """Those of one vhost, or of all that have any."""
    if not everywhere:
        return iter([{"limits": json_text(admin.vhost(vhost).limits.given)}])
    return iter([
        {"vhost": each.name, "limits": json_text(each.limits.given)}
        for each in admin.node.vhosts.values()
        if each.limits.given
    ])


def list_user_limits(admin: Admin, *, user: str = "guest", everywhere: bool = False) -> Iterator[Row]:
    """Those of one user, or of all that have any."""
    if not everywhere:
        return iter([{"limits": json_text(admin.user(user).limits)}])
    return iter([
        {"user": each.name, "limits": json_text(each.limits)} for each in admin.users.all() if each.limits
    ])


# -- policies and parameters --------------------------------------------------------------------------------------


def _policy_row(vhost: VHost, policy: Policy) -> Row:
    return {
        "vhost": vhost.name,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": json_text(policy.definition),
        "priority": policy.priority,
    }


def list_policies(admin: Admin, *, vhost: str = "/") -> Iterator[Row]:
    found = admin.vhost(vhost)
    return iter([_policy_row(found, policy) for policy in found.policies.all()])


def list_operator_policies(admin: Admin, *, vhost: str = "/") -> Iterator[Row]:
    found = admin.vhost(vhost)
    return iter([_policy_row(found, policy) for policy in found.policies.all_operator()])


def list_parameters(admin: Admin, *, vhost: str = "/") -> Iterator[Row]:
    """What is a parameter in RabbitMQ: operator policies and limits too."""
    found = admin.vhost(vhost)
    rows: list[Row] = [
        {"component": "operator_policy", "name": policy.name, "value": json_text(policy_value(policy))}
        for policy in found.policies.all_operator()
    ]
    if found.limits.given:
        rows.append({"component": "vhost-limits", "name": "limits", "value": json_text(found.limits.given)})
    rows.extend(
        {"component": component, "name": name, "value": json_text(json.loads(value))}
        for name_of_vhost, component, name, value in admin.definitions.parameters()
        if name_of_vhost == vhost
    )
    return iter(rows)


def list_global_parameters(admin: Admin) -> Iterator[Row]:
    return iter([
        {"name": name, "value": json_text(json.loads(value))} for name, value in admin.definitions.global_parameters()
    ])


def policy_value(policy: Policy) -> dict[str, object]:
    """An operator policy as the parameter that it is in RabbitMQ."""
    return {
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "pattern": policy.pattern,
        "priority": policy.priority,
    }


def json_text(value: object) -> str:
    """JSON as rabbitmqctl shows it inside a row."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
