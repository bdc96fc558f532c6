"""Class exchange (spec 1.6), with RabbitMQ's exchange-to-exchange bind and unbind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.errors import ACCESS_REFUSED, COMMAND_INVALID, ChannelClosed, ConnectionClosed
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.routing.resolve import EXCHANGE_TYPES
from rabbitpy_broker.wire import methods


def strip_cr_lf(name: str) -> str:
    """Names of exchanges and queues are declared without carriage returns and line feeds."""
    return name.replace("\r", "").replace("\n", "")


def refuse_default_exchange(name: str) -> None:
    """Raises 403: the default exchange can only be published to."""
    if not name:
        raise ChannelClosed(ACCESS_REFUSED, "operation not permitted on the default exchange")


def declare(channel: Channel, method: Any) -> None:
    """Passive asks for existence only; otherwise makes or verifies."""
    connection, vhost = channel.connection, channel.vhost
    name = strip_cr_lf(method.exchange)
    if method.passive:
        refuse_default_exchange(name)
        vhost.exchange(name)
    else:
        kind = method.exchange_type
        if kind not in EXCHANGE_TYPES:
            raise ConnectionClosed(COMMAND_INVALID, f"unknown exchange type '{kind}'")
        refuse_default_exchange(name)
        connection.check_permission("configure", "exchange", name)
        alternate = method.arguments.get("alternate-exchange")
        if isinstance(alternate, str) and name not in vhost.exchanges:
            connection.check_permission("read", "exchange", name)
            connection.check_permission("write", "exchange", alternate)
        vhost.declare_exchange(
            name, kind, method.durable, method.auto_delete, method.internal, method.arguments
        )
    if not method.nowait:
        channel.send(methods.make("Exchange.DeclareOk"))


def delete(channel: Channel, method: Any) -> None:
    """Deleting an absent exchange is ok."""
    name = strip_cr_lf(method.exchange)
    refuse_default_exchange(name)
    channel.connection.check_permission("configure", "exchange", name)
    channel.vhost.delete_exchange(name, method.if_unused)
    if not method.nowait:
        channel.send(methods.make("Exchange.DeleteOk"))


def bind(channel: Channel, method: Any) -> None:
    """Messages of `source` that match go on to `destination`."""
    vhost = channel.vhost
    _check_binding(channel, method)
    source, destination = vhost.exchange(method.source), vhost.exchange(method.destination)
    vhost.bind(source, destination, method.routing_key, method.arguments)
    if not method.nowait:
        channel.send(methods.make("Exchange.BindOk"))


def unbind(channel: Channel, method: Any) -> None:
    """Unbinding anything absent is ok."""
    vhost = channel.vhost
    _check_binding(channel, method)
    source, destination = vhost.exchanges.get(method.source), vhost.exchanges.get(method.destination)
    if source is not None and destination is not None:
        vhost.unbind(source, destination, method.routing_key, method.arguments)
    if not method.nowait:
        channel.send(methods.make("Exchange.UnbindOk"))


def _check_binding(channel: Channel, method: Any) -> None:
    refuse_default_exchange(method.destination)
    refuse_default_exchange(method.source)
    channel.connection.check_permission("write", "exchange", method.destination)
    channel.connection.check_permission("read", "exchange", method.source)
    source = channel.vhost.exchanges.get(method.source)
    if source is not None:
        channel.connection.check_topic_permission("read", source, method.routing_key)


HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    "Exchange.Declare": declare,
    "Exchange.Delete": delete,
    "Exchange.Bind": bind,
    "Exchange.Unbind": unbind,
}
