"""Class confirm: RabbitMQ's publisher confirms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.confirms import Confirms
from rabbitpy_broker.wire import methods


def select(channel: Channel, method: Any) -> None:
    """From now on every publish on the channel is confirmed; selecting twice is ok."""
    if channel.tx is not None:
        raise ChannelClosed(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.output, channel.number, channel.vhost.syncs)
        channel.confirms.origin = channel.origin
    if not method.nowait:
        channel.send(methods.make("Confirm.SelectOk"))


HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {"Confirm.Select": select}
