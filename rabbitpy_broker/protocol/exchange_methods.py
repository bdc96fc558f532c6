"""Class exchange (spec 1.6), with RabbitMQ's exchange-to-exchange bind and unbind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.errors import ACCESS_REFUSED, COMMAND_INVALID, ChannelClosed, ConnectionClosed
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.routing.resolve import EXCHANGE_TYPES
from rabbitpy_broker.wire import methods


def strip_cr_lf(name: str) -> str:
    """The name without carriage returns and line feeds, with which exchanges and queues are declared."""
    return name.replace("\r", "").replace("\n", "")


def refuse_reserved(kind: str, name: str) -> None:
    """Raises 403 for a name that begins with amq.: these are the broker's."""
    if name.startswith("amq."):
        raise ChannelClosed(ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def refuse_default_exchange(name: str) -> None:
    """Raises 403 for the default exchange, to which one can only publish."""
    if not name:
        raise ChannelClosed(ACCESS_REFUSED, "operation not permitted on the default exchange")


def declare(channel: Channel, method: Any) -> None:
    """Passive: checks that the exchange exists. Otherwise makes it, or verifies it."""
    access, vhost = channel.access, channel.vhost
    name = strip_cr_lf(method.exchange)
    if method.passive:
        refuse_default_exchange(name)
        vhost.exchange(name)
    else:
        kind = method.exchange_type
        if kind not in EXCHANGE_TYPES:
            why = "unknown" if kind else "invalid"
            raise ConnectionClosed(COMMAND_INVALID, f"{why} exchange type '{kind}'")
        refuse_default_exchange(name)
        access.check("configure", "exchange", name)
        if name not in vhost.exchanges:
            refuse_reserved("exchange", name)
            alternate = method.arguments.get("alternate-exchange")
            if isinstance(alternate, str):
                access.check("read", "exchange", name)
                access.check("write", "exchange", alternate)
        vhost.declare_exchange(
            name, kind, method.durable, method.auto_delete, method.internal, method.arguments
        )
    if not method.nowait:
        channel.send(methods.make("Exchange.DeclareOk"))


def delete(channel: Channel, method: Any) -> None:
    """Deletes an exchange; an absent one is ok."""
    name = strip_cr_lf(method.exchange)
    refuse_default_exchange(name)
    if name.startswith("amq."):
        raise ChannelClosed(
            ACCESS_REFUSED, f"deletion of system exchange '{name}' in vhost '{channel.vhost.name}' not allowed"
        )
    channel.access.check("configure", "exchange", name)
    channel.vhost.delete_exchange(name, method.if_unused)
    if not method.nowait:
        channel.send(methods.make("Exchange.DeleteOk"))


def bind(channel: Channel, method: Any) -> None:
    """Binds: messages of `source` that match go on to `destination`."""
    vhost = channel.vhost
    source_name, destination_name = _binding(channel, method)
    source, destination = vhost.exchange(source_name), vhost.exchange(destination_name)
    vhost.bind(source, destination, method.routing_key, method.arguments)
    if not method.nowait:
        channel.send(methods.make("Exchange.BindOk"))


def unbind(channel: Channel, method: Any) -> None:
    """Unbinds; an absent exchange or binding is ok."""
    vhost = channel.vhost
    source_name, destination_name = _binding(channel, method)
    source, destination = vhost.exchanges.get(source_name), vhost.exchanges.get(destination_name)
    if source is not None and destination is not None:
        vhost.unbind(source, destination, method.routing_key, method.arguments)
    if not method.nowait:
        channel.send(methods.make("Exchange.UnbindOk"))


def _binding(channel: Channel, method: Any) -> tuple[str, str]:
    """Source and destination, after the check of the permissions."""
    source, destination = strip_cr_lf(method.source), strip_cr_lf(method.destination)
    refuse_default_exchange(destination)
    check_binding_of(channel, "exchange", destination, source, method.routing_key)
    return source, destination


def check_binding_of(channel: Channel, kind: str, destination: str, source: str, key: str) -> None:
    """Raises 403 when the user may not bind or unbind the two. Whether they exist is not checked."""
    access = channel.access
    access.check("write", kind, destination)
    refuse_default_exchange(source)
    access.check("read", "exchange", source)
    exchange = channel.vhost.exchanges.get(source)
    if exchange is not None:
        access.check_topic("read", exchange, key)


HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    "Exchange.Declare": declare,
    "Exchange.Delete": delete,
    "Exchange.Bind": bind,
    "Exchange.Unbind": unbind,
}
