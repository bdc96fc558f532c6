"""A transactional channel: publishes and settles since the last commit (spec 1.9, with RabbitMQ's limits).

A commit is atomic for one queue only, as in RabbitMQ. Delivery tags are checked at once, not at commit; a rollback
leaves the deliveries unacked on the channel, it does not requeue them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rabbitpy_broker.errors import ChannelClosed, ConnectionClosed
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.vhost import Route

if TYPE_CHECKING:
    from rabbitpy_broker.protocol.channel import Channel


class Tx:
    """What waits for commit or rollback."""

    def __init__(self) -> None:
        self.publishes: list[tuple[Route, Message, bool]] = []
        self.settles: list[tuple[list[MsgStatus], i64]] = []

    def commit(self, channel: Channel) -> None:
        """Does all of it, in order; nothing that happened to queues and exchanges meanwhile stops it half-way."""
        publishes, settles = self.publishes, self.settles
        self.publishes, self.settles = [], []
        try:
            for route, message, mandatory in publishes:
                channel.publish_now(route if route.valid else _route_now(channel, route), message, mandatory)
        except ConnectionClosed:
            self.settles = settles  # for the rollback that comes with the end of the channel
            raise
        for statuses, how in settles:
            channel.settle_now(statuses, how)

    def rollback(self, channel: Channel) -> None:
        """Forgets the publishes, and puts the deliveries back among the unacked."""
        settles = self.settles
        self.publishes, self.settles = [], []
        for statuses, _ in settles:
            channel.unacked.put_back(statuses)


def _route_now(channel: Channel, route: Route) -> Route:
    """A route that has changed is looked up anew; where the exchange is gone, its queues that still exist remain."""
    try:
        return channel.vhost.route(route.address)
    except ChannelClosed:
        left = Route(route.address, route.exchange_name, route.routing_key, None)
        left.queues = [queue for queue in route.queues if not queue.deleted]
        return left
