"""Class channel (spec 1.5): flow; the connection itself handles open, close and close-ok."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.errors import CHANNEL_ERROR, NOT_IMPLEMENTED, ConnectionClosed
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.wire import methods


def channel_open(channel: Channel, method: Any) -> None:
    """A second open of the same number is a hard error."""
    raise ConnectionClosed(CHANNEL_ERROR, "second 'channel.open' seen")


def flow(channel: Channel, method: Any) -> None:
    """Answers channel.flow. As in RabbitMQ, flow cannot stop deliveries (540); prefetch can."""
    if not method.active:
        raise ConnectionClosed(NOT_IMPLEMENTED, "active=false")
    channel.send(methods.make("Channel.FlowOk", active=True))


HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    "Channel.Open": channel_open,
    "Channel.Flow": flow,
}
