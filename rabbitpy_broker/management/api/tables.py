"""Tables: what lists show, by columns, as pages in a browser want it: /table/:kind, and the rows of the event stream.

    {"kind", "key", "columns": [names], "rows": [[values in this order]], "as_of": ms since 1970}

A row is a tenth of what RabbitMQ's lists say of the same thing, and takes a tenth of the time. `key` are the columns that tell a
row from all others. What must stay true: a row has a value for each column; whoever may not see a thing in RabbitMQ's list does
not see it here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from rabbitpy_broker.management.api import bindings, connections, exchanges, policies, users, vhosts
from rabbitpy_broker.management.api.auth import MANAGEMENT_TAGS, may_enter
from rabbitpy_broker.management.api.consumers import user_of
from rabbitpy_broker.management.api.errors import bad_request, not_authorised, not_found
from rabbitpy_broker.management.api.live_cells import QUEUES, Cells, Rates, live_cells, ms
from rabbitpy_broker.management.api.rates import (
    CHANNEL,
    CONNECTION,
    EXCHANGE,
    channel_values,
    connection_values,
)
from rabbitpy_broker.management.api.request import Listing, Made, Request, Row
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.definitions_json import table_object
from rabbitpy_broker.management.listing import CONNECTION_COLUMNS, _ConnectionRow
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import queue_type
from rabbitpy_broker.slices import slices
from rabbitpy_broker.vhost import VHost

Key = tuple[Any, ...]
CHUNK_BYTES: Final = 65_536

EXCHANGES: Final = (
    "vhost", "name", "type", "durable", "auto_delete", "internal", "policy", "arguments", "in_rate", "out_rate", "bindings",
    "alternate_exchange",
)  # fmt: skip
CONNECTIONS: Final = (
    "name", "vhost", "user", "state", "host", "port", "peer_host", "peer_port", "ssl", "ssl_protocol", "protocol", "channels",
    "recv_rate", "send_rate", "recv_oct", "send_oct", "connected_at", "client", "client_name", "blocked_reason",
    "publishes_waiting", "auth_mechanism", "heartbeat",
)  # fmt: skip
CHANNELS: Final = (
    "name", "connection", "number", "vhost", "user", "confirm", "transactional", "consumer_count", "prefetch_count",
    "global_prefetch_count", "messages_unacknowledged", "messages_unconfirmed", "state", "idle_since", "publish_rate",
    "deliver_rate", "ack_rate", "client_name",
)  # fmt: skip
CONSUMERS: Final = (
    "channel", "consumer_tag", "vhost", "queue", "connection", "user", "ack_required", "exclusive", "prefetch_count", "active",
    "activity_status", "arguments", "unacked", "client_name",
)  # fmt: skip

EXCHANGE_RATES: Final = Rates(EXCHANGE, "publish_in", "publish_out")
CONNECTION_RATES: Final = Rates(CONNECTION, "recv_oct", "send_oct")
CHANNEL_RATES: Final = Rates(CHANNEL, "publish", "deliver_get", "ack")


def _client_name(connection: Any) -> str:
    """The name that a connection has given itself; "" without one."""
    return connection.session.client_name if isinstance(connection, Connection) else ""


def queue_cells(api: Api, item: Any) -> Cells | None:
    """As QUEUES says, of a vhost and a queue."""
    vhost: VHost = item[0]
    queue: Queue = item[1]
    if queue.deleted:
        return None
    kind = queue_type(queue.arguments)
    policy, operator_policy = vhost.policies.for_queue(queue.name, kind)
    return [
        vhost.name, queue.name, kind, queue.durable, queue.auto_delete, queue.owner is not None, "running",
        policy.name if policy else None, operator_policy.name if operator_policy else None, table_object(queue.arguments),
        *live_cells(queue, api.sampler.of(queue), api.sampler.started),
    ]  # fmt: skip


def _exchange_cells(api: Api, item: Any) -> Cells:
    vhost: VHost = item[0]
    exchange = item[1]
    if exchange is None:
        routed = vhost.routes.routed
        return [
            vhost.name, "", "direct", True, False, False, None, {}, *EXCHANGE_RATES.of(api.sampler.of(routed)),
            len(vhost.queues), "",
        ]  # fmt: skip
    policy = vhost.policies.for_exchange(exchange.name)
    return [
        vhost.name, exchange.name, exchange.type, exchange.durable, exchange.auto_delete, exchange.internal,
        policy.name if policy else None, table_object(exchange.arguments),
        *EXCHANGE_RATES.of(api.sampler.of(exchange.routed)), len(exchange._bindings), exchange.alternate,
    ]  # fmt: skip


def _connection_cells(api: Api, item: Any) -> Cells:
    connection, client = item
    row, session = _ConnectionRow(api.admin, connection, client), connection.session
    properties = table_object(session.client_properties)
    waiting = sum(int(channel.confirms.waiting_count()) for channel in list(connection.channels.values()) if channel.confirms)
    received, sent = connection_values(connection)
    state = row.state()
    return [
        connection.name, session.vhost.name if session.vhost else "", user_of(connection), state, *client.ours, *client.peer,
        session.tls, CONNECTION_COLUMNS["ssl_protocol"](row) if session.tls else None, "AMQP 0-9-1", len(connection.channels),
        *CONNECTION_RATES.of(api.sampler.of(connection)), received, sent, client.connected_at_ms,
        f"{properties.get('product', '')} {properties.get('version', '')}".strip(), session.client_name,
        connection.blocked_by() if state == "blocked" else "", waiting, session.mechanism, int(session.heartbeat),
    ]  # fmt: skip


def _channel_cells(api: Api, channel: Channel) -> Cells:
    series, values = api.sampler.of(channel), channel_values(channel.counted())
    deliveries = channel.deliveries
    return [
        f"{channel.host.name} ({channel.number})", channel.host.name, int(channel.number), channel.vhost.name,
        channel.access.user.name, channel.confirms is not None, channel.tx is not None, len(deliveries.consumers),
        int(deliveries.consumer_prefetch), int(deliveries.prefetch_limit), int(deliveries.unacked.count),
        int(channel.confirms.waiting_count()) if channel.confirms else 0, "running",
        ms(api.sampler.idle_since(series, values)), *CHANNEL_RATES.of(series), _client_name(channel.host),
    ]  # fmt: skip


def _consumer_cells(api: Api, consumer: ChannelConsumer) -> Cells:
    connection, queue = consumer.deliveries.host, consumer.queue
    single = queue.consumers.single_active
    status = ("waiting" if consumer.waiting else "single_active") if single else "up"
    return [
        f"{connection.name} ({consumer.deliveries.number})", consumer.tag, queue.vhost, queue.name, connection.name,
        user_of(connection), not consumer.no_ack, consumer.exclusive, int(consumer.prefetch_limit), not consumer.waiting, status,
        table_object(consumer.arguments), int(consumer.unacked_count), _client_name(connection),
    ]  # fmt: skip


# -- what there is ---------------------------------------------------------------------------------------------------


def _queues(api: Api) -> Iterator[Any]:
    for vhost in list(api.vhosts.values()):
        for queue in vhost.each_queue():
            yield vhost, queue


def _exchanges(api: Api) -> Iterator[Any]:
    for vhost in list(api.vhosts.values()):
        yield from exchanges.each(vhost)


def _connections(api: Api) -> Iterator[Any]:
    return connections._each(api, lambda _: True)


def _channels(api: Api) -> Iterator[Channel]:
    for connection in list(api.broker.clients.connections):
        for channel in list(connection.channels.values()):
            if not channel.closing:
                yield channel


def _consumers(api: Api) -> Iterator[ChannelConsumer]:
    for channel in _channels(api):
        yield from list(channel.deliveries.consumers.values())


@dataclass(frozen=True)
class Table:
    """One kind of live rows. `items` gives what there is, `identity` what stays the same of an item, `cells` its row, None for
    one that has gone.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]
    items: Callable[[Api], Iterator[Any]]
    identity: Callable[[Any], object]
    cells: Callable[[Api, Any], Cells | None]

    @cached_property
    def of_key(self) -> list[int]:
        """The numbers of the columns of `key`."""
        return [self.columns.index(name) for name in self.key]

    def key_of(self, cells: Cells) -> Key:
        return tuple([cells[column] for column in self.of_key])


LIVE: Final = {
    "queues": Table(QUEUES, ("vhost", "name"), _queues, lambda item: item[1], queue_cells),
    "exchanges": Table(EXCHANGES, ("vhost", "name"), _exchanges, lambda item: item[1] or item[0], _exchange_cells),
    "connections": Table(CONNECTIONS, ("name",), _connections, lambda item: item[0], _connection_cells),
    "channels": Table(CHANNELS, ("name",), _channels, lambda item: item, _channel_cells),
    "consumers": Table(CONSUMERS, ("channel", "consumer_tag"), _consumers, lambda item: item, _consumer_cells),
}


@dataclass(frozen=True)
class View:
    """What somebody may see, and wants to see, of a kind. None is everything."""

    kind: str
    columns: tuple[int, ...] | None = None
    vhosts: frozenset[str] | None = None
    user: str | None = None

    @cached_property
    def _vhost_at(self) -> int:
        return LIVE[self.kind].columns.index("vhost")

    @cached_property
    def shown(self) -> frozenset[int]:
        """The numbers of the columns that are shown."""
        return frozenset(range(len(LIVE[self.kind].columns)) if self.columns is None else self.columns)

    def shows(self, cells: Cells) -> bool:
        if self.vhosts is not None and cells[self._vhost_at] not in self.vhosts:
            return False
        if self.user is None:
            return True
        columns = LIVE[self.kind].columns
        return "user" not in columns or cells[columns.index("user")] == self.user

    @property
    def names(self) -> list[str]:
        names = LIVE[self.kind].columns
        return list(names) if self.columns is None else [names[column] for column in self.columns]

    def of(self, cells: Cells) -> Cells:
        return cells if self.columns is None else [cells[column] for column in self.columns]


def view(api: Api, request: Request, kind: str, vhost: str | None, columns: str | None) -> View:
    """What the user of a request sees of a kind. Raises ApiError 400 and 404, and AnswerAwaited."""
    table = LIVE.get(kind)
    if table is None:
        raise not_found()
    chosen: tuple[int, ...] | None = None
    if columns is not None:
        names = [name for name in columns.split(",") if name]
        unknown = [name for name in names if name not in table.columns]
        if unknown:
            raise bad_request(f"{kind} has no column {unknown[0]}")
        chosen = tuple(table.columns.index(name) for name in names)
    user = request.user
    own = kind in ("connections", "channels", "consumers") and not request.is_monitor
    vhosts: frozenset[str] | None = None
    if kind not in ("connections", "channels"):
        vhosts = frozenset(name for name in list(api.vhosts) if may_enter(user, name))
    if vhost is not None:
        vhosts = frozenset((vhost,)) if vhosts is None or vhost in vhosts else frozenset()
    return View(kind, chosen, vhosts, user.name if own else None)


# -- /table/:kind ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plain:
    """A kind without live figures: RabbitMQ's list, as a table."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    listing: Callable[[Api, Request], Listing]
    tags: tuple[str, ...] = MANAGEMENT_TAGS


POLICY_COLUMNS: Final = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
BINDING_COLUMNS: Final = (
    "vhost", "source", "destination", "destination_type", "routing_key", "arguments", "properties_key",
)  # fmt: skip
VHOST_COLUMNS: Final = (
    "name", "description", "tags", "default_queue_type", "tracing", "messages", "messages_ready", "messages_unacknowledged",
    "recv_oct", "send_oct", "message_stats.publish_details.rate", "message_stats.deliver_get_details.rate",
)  # fmt: skip
PLAIN: Final = {
    "bindings": _Plain(
        BINDING_COLUMNS, ("vhost", "source", "destination_type", "destination", "properties_key"), bindings.list_all
    ),
    "vhosts": _Plain(VHOST_COLUMNS, ("name",), vhosts.list_all),
    "users": _Plain(("name", "tags", "limits"), ("name",), users.list_all, ("administrator",)),
    "policies": _Plain(POLICY_COLUMNS, ("vhost", "name"), policies.list_all),
    "operator_policies": _Plain(POLICY_COLUMNS, ("vhost", "name"), policies.list_operator),
}
NAMES: Final = {  # of columns that are inside an object
    "message_stats.publish_details.rate": "publish_rate",
    "message_stats.deliver_get_details.rate": "deliver_rate",
}


def show(api: Api, request: Request) -> Made:
    """`?vhost=` and `?columns=` choose."""
    kind = request.names["kind"]
    vhost, columns = request.query.get("vhost"), request.query.get("columns")
    plain = PLAIN.get(kind)
    if plain is None:
        seen = view(api, request, kind, vhost, columns)
        return _made(kind, LIVE[kind].key, seen.names, _live_rows(api, seen))
    if not request.has_tag(*plain.tags):
        raise not_authorised("Not administrator user")
    names = list(plain.columns)
    if columns is not None:
        shown = {NAMES.get(name, name): name for name in plain.columns}
        chosen = [name for name in columns.split(",") if name]
        if not set(chosen) <= shown.keys():
            raise bad_request(f"{kind} has no such column")
        names = [shown[name] for name in chosen]
    rows = _plain_rows(plain.listing(api, request), names, vhost)
    return _made(kind, plain.key, [NAMES.get(name, name) for name in names], rows)


def _live_rows(api: Api, seen: View) -> Iterator[Cells | None]:
    table = LIVE[seen.kind]
    for item in table.items(api):
        cells = table.cells(api, item)
        yield seen.of(cells) if cells is not None and seen.shows(cells) else None


def _plain_rows(listing: Listing, names: list[str], vhost: str | None) -> Iterator[Cells | None]:
    paths = [name.split(".") for name in names]
    for row in listing.rows(listing.items, None):
        yield [_at(row, path) for path in paths] if vhost in (None, row.get("vhost")) else None


def _at(row: Row, path: list[str]) -> Any:
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _made(kind: str, key: tuple[str, ...], names: list[str], rows: Iterator[Cells | None]) -> Made:
    return Made(_encoded({"kind": kind, "key": key, "columns": names}, rows))


async def _encoded(head: Row, rows: Iterator[Cells | None]) -> AsyncIterator[bytes]:
    as_of = int(time.time() * 1000)
    parts = [msgspec.json.encode({**head, "as_of": as_of})[:-1] + b',"rows":[']
    size, begun = 0, False
    async for encoded in slices(b"" if row is None else msgspec.json.encode(row) for row in rows):
        for row in encoded:
            if row:
                parts.append(b"," + row if begun else row)
                begun = True
                size += len(row)
        if size >= CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    parts.append(b"]}")
    yield b"".join(parts)
