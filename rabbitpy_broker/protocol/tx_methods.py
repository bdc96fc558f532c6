"""Class tx (spec 1.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed, ConnectionClosed
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.tx import Tx
from rabbitpy_broker.routing.routes import Route
from rabbitpy_broker.wire import methods


def select(channel: Channel, method: Any) -> None:
    """Selecting twice is ok."""
    if channel.confirms is not None:
        raise ChannelClosed(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Tx(channel.host, channel.number, channel.vhost.syncs)
    channel.send(methods.make("Tx.SelectOk"))


def commit(channel: Channel, method: Any) -> None:
    """Carries out the publishes and settles in order. Nothing that happened to queues and exchanges meanwhile stops it
    half-way.
    """
    tx = _tx(channel)
    publishes, settles = tx.take()
    syncing = False
    tx.committing = True
    try:
        for route, message, mandatory in publishes:
            if channel.publish(route if route.valid else _route_now(channel, route), message, mandatory):
                syncing = True
    except ConnectionClosed:
        tx.settles = settles  # for the rollback that comes with the end of the channel
        raise
    finally:
        tx.committing = False
    for statuses, how in settles:
        channel.settle_now(statuses, how)
    channel.settle_committed(tx)
    tx.answer(syncing)


def _route_now(channel: Channel, route: Route) -> Route:
    """The route as it is now; where the exchange is gone, its queues that still exist remain."""
    try:
        return channel.vhost.routes.find(route.address)
    except ChannelClosed:
        left = Route(route.address, route.exchange_name, route.routing_key, None, route.routed)
        left.queues = [queue for queue in route.queues if not queue.deleted]
        return left


def rollback(channel: Channel, method: Any) -> None:
    """Forgets the publishes and settles; a new transaction begins at once."""
    channel.rollback(_tx(channel))
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
