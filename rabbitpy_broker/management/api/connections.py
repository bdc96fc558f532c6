"""Connections and their channels: /connections, /channels, and those of a vhost or of a user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from rabbitpy_broker.management.api.auth import own_vhosts, sees_connections_of
from rabbitpy_broker.management.api.consumers import (
    connection_details,
    consumer_rows,
    per_queue,
    refuse_without_stats,
    user_of,
)
from rabbitpy_broker.management.api.errors import not_authorised, not_found
from rabbitpy_broker.management.api.rates import (
    CHANNEL,
    CONNECTION,
    Spans,
    channel_values,
    connection_values,
    message_stats,
    stats,
)
from rabbitpy_broker.management.api.request import (
    NO_CONTENT,
    Answer,
    Listing,
    Request,
    Row,
    vhost_or_404,
    whole,
)
from rabbitpy_broker.management.api.shapes import erlang_process, iso_time
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.definitions_json import table_object
from rabbitpy_broker.management.listing import CONNECTION_COLUMNS, _ConnectionRow, _uncommitted_acks
from rabbitpy_broker.net.transport import Client
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection

REASON: Final = "Closed via management plugin"
# Columns of rabbitpy-ctl's list that are the same here, but null where that has nothing.
COLUMNS: Final = (
    "name", "host", "port", "peer_host", "peer_port", "ssl", "ssl_protocol", "ssl_cipher", "ssl_hash", "ssl_key_exchange",
    "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity", "state", "channels", "auth_mechanism", "user", "vhost",
    "timeout", "frame_max", "channel_max", "connected_at", "send_pend",
)  # fmt: skip
OF_TLS: Final = frozenset(name for name in COLUMNS if name.startswith(("ssl_", "peer_cert")))

_Found = tuple[Connection, Client]


def _each(api: Api, keep: Callable[[Connection], bool]) -> Iterator[_Found]:
    clients = {client.connection: client for client in api.broker.clients.open}
    for connection in list(api.broker.clients.connections):
        client = clients.get(connection)
        if client is not None and keep(connection):
            yield connection, client


def _visible(api: Api, request: Request) -> Callable[[Connection], bool]:
    """Those of the user, all for who monitors; of the vhost that the header X-Vhost names."""
    only = {vhost.name for vhost in own_vhosts(api, request)} if request.headers.get("x-vhost") else None
    return lambda one: sees_connections_of(request, user_of(one)) and (only is None or _vhost_of(one) in only)


def _vhost_of(connection: Connection) -> str:
    vhost = connection.session.vhost
    return "" if vhost is None else vhost.name


def list_all(api: Api, request: Request) -> Listing:
    return _listing(api, request, _visible(api, request))


def list_of_vhost(api: Api, request: Request) -> Listing:
    name = vhost_or_404(api.vhosts, request.names["vhost"]).name
    visible = _visible(api, request)
    return _listing(api, request, lambda one: _vhost_of(one) == name and visible(one))


def _listing(api: Api, request: Request, keep: Callable[[Connection], bool]) -> Listing:
    wanted, plain = api.sampler.spans(request.query), api.is_plain(request)
    return Listing(
        _each(api, keep),
        lambda found: _plain_row(api, found) if plain else _row(api, found, wanted),
        lambda found: (_vhost_of(found[0]), found[0].name),
        lambda found: found[0].name,
        paged=True,
    )


def _plain_row(api: Api, found: _Found) -> Row:
    connection, _ = found
    return {"name": connection.name, "vhost": _vhost_of(connection), "user": user_of(connection), "node": api.node_name}


def _row(api: Api, found: _Found, wanted: Spans) -> Row:
    connection, client = found
    source = _ConnectionRow(api.admin, connection, client)
    row: Row = {name: CONNECTION_COLUMNS[name](source) for name in COLUMNS}
    if not connection.session.tls:
        row.update(dict.fromkeys(OF_TLS))
    properties = table_object(connection.session.client_properties)
    row |= {
        "node": api.node_name,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "user_who_performed_action": row["user"],
        "client_properties": properties,
        "recv_cnt": int(connection.reads),
        "send_cnt": int(connection.output.writes),
        **erlang_process(wanted.data_rates),
        **stats(CONNECTION, connection_values(connection), api.sampler.of(connection), wanted.data_rates),
    }
    if connection.session.client_name:
        row["user_provided_name"] = connection.session.client_name
    return row


def _find(api: Api, request: Request) -> _Found:
    """The connection that the path names. Raises ApiError 404."""
    name = request.names["connection"]
    for found in _each(api, lambda connection: connection.name == name):
        return found
    raise not_found()


def _check_owner(request: Request, connection: Connection, *, may_any: bool) -> None:
    if not may_any and user_of(connection) != request.user.name:
        raise not_authorised("User not authorised to access object")


def get_one(api: Api, request: Request) -> Row:
    found = _find(api, request)
    _check_owner(request, found[0], may_any=request.is_monitor)
    return _row(api, found, api.sampler.spans(request.query))


def remove(api: Api, request: Request) -> Answer:
    connection, _ = _find(api, request)
    _check_owner(request, connection, may_any=request.is_administrator)
    api.broker.close_connections([connection], request.headers.get("x-reason", REASON))
    return NO_CONTENT


def list_of_user(api: Api, request: Request) -> list[Row]:
    name = request.names["user"]
    _check_name(request, name, may_any=request.is_monitor)
    return [
        {"name": one.name, "vhost": _vhost_of(one), "user": name, "node": api.node_name}
        for one, _ in _each(api, lambda connection: user_of(connection) == name)
    ]


def remove_of_user(api: Api, request: Request) -> Answer:
    name = request.names["user"]
    _check_name(request, name, may_any=request.is_administrator)
    theirs = [one for one, _ in _each(api, lambda connection: user_of(connection) == name)]
    api.broker.close_connections(theirs, request.headers.get("x-reason", REASON))
    return NO_CONTENT


def _check_name(request: Request, name: str, *, may_any: bool) -> None:
    if not may_any and name != request.user.name:
        raise not_authorised("User not authorised to access object")


def list_sessions(api: Api, request: Request) -> list[Row]:
    """Of AMQP 1.0, which is not spoken here."""
    get_one(api, request)
    return []


# -- channels --------------------------------------------------------------------------------------------------------


def list_channels(api: Api, request: Request) -> Listing:
    return _channels(api, request, _visible(api, request))


def list_channels_of_vhost(api: Api, request: Request) -> Listing:
    name = vhost_or_404(api.vhosts, request.names["vhost"]).name
    visible = _visible(api, request)
    return _channels(api, request, lambda one: _vhost_of(one) == name and visible(one))


def list_channels_of_connection(api: Api, request: Request) -> Listing:
    connection, _ = _find(api, request)
    _check_owner(request, connection, may_any=request.is_monitor)
    return _channels(api, request, lambda one: one is connection)


def _channels(api: Api, request: Request, keep: Callable[[Connection], bool]) -> Listing:
    refuse_without_stats(api, request)
    wanted = api.sampler.spans(request.query)
    return Listing(
        (
            channel
            for connection, _ in _each(api, keep)
            for channel in list(connection.channels.values())
            if not channel.closing
        ),
        lambda channel: _channel_row(api, channel, wanted),
        lambda channel: (channel.vhost.name, channel.host.name, int(channel.number)),
        _name_of,
        paged=True,
    )


def _name_of(channel: Channel) -> str:
    return f"{channel.host.name} ({channel.number})"


def _channel_row(api: Api, channel: Channel, wanted: Spans) -> Row:
    series, values = api.sampler.of(channel), channel_values(channel.counted())
    deliveries, tx = channel.deliveries, channel.tx
    row: Row = {
        "name": _name_of(channel),
        "number": int(channel.number),
        "node": api.node_name,
        "vhost": channel.vhost.name,
        "user": channel.access.user.name,
        "user_who_performed_action": channel.access.user.name,
        "connection_details": connection_details(channel.host),
        "state": "running",
        "confirm": channel.confirms is not None,
        "transactional": tx is not None,
        "consumer_count": len(deliveries.consumers),
        "messages_unacknowledged": int(deliveries.unacked_count()),
        "messages_unconfirmed": int(channel.confirms.waiting_count()) if channel.confirms else 0,
        "messages_uncommitted": len(tx.publishes) if tx else 0,
        "acks_uncommitted": _uncommitted_acks(channel),
        "pending_raft_commands": 0,
        "prefetch_count": int(deliveries.consumer_prefetch),
        "global_prefetch_count": int(deliveries.prefetch_limit),
        **erlang_process(wanted.msg_rates),
    }
    idle_since = api.sampler.idle_since(series, values)
    if idle_since is not None:
        row["idle_since"] = iso_time(idle_since)
    return row | message_stats(CHANNEL, values, series, wanted.msg_rates)


def get_channel(api: Api, request: Request) -> Row:
    refuse_without_stats(api, request)
    name, _, text = request.names["channel"].removesuffix(")").rpartition(" (")
    number = whole(text)
    for connection, _ in _each(api, lambda connection: connection.name == name):
        channel: Any = None if number is None else connection.channels.get(number)
        if channel is not None and not channel.closing:
            _check_owner(request, connection, may_any=request.is_monitor)
            row = _channel_row(api, channel, api.sampler.spans(request.query))
            theirs = list(channel.deliveries.consumers.values())
            details = {"consumer_details": list(consumer_rows(api, theirs)), "deliveries": per_queue(api, theirs)}
            return {**row, **details, "publishes": []}
    raise not_found()
