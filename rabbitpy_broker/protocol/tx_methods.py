"""Class tx (spec 1.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.tx import Tx
from rabbitpy_broker.wire import methods


def select(channel: Channel, method: Any) -> None:
    """Selecting twice is ok."""
    if channel.confirms is not None:
        raise ChannelClosed(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Tx(channel)
    channel.send(methods.make("Tx.SelectOk"))


def commit(channel: Channel, method: Any) -> None:
    """Does what was gathered; a new transaction begins at once."""
    _tx(channel).commit()


def rollback(channel: Channel, method: Any) -> None:
    """Forgets what was gathered; a new transaction begins at once."""
    _tx(channel).rollback()
    channel.send(methods.make("Tx.RollbackOk"))


def _tx(channel: Channel) -> Tx:
    if channel.tx is None:
        raise ChannelClosed(PRECONDITION_FAILED, "channel is not transactional")
    return channel.tx


HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    "Tx.Select": select,
    "Tx.Commit": commit,
    "Tx.Rollback": rollback,
}
