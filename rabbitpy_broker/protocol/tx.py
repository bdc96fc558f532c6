"""A transactional channel: publishes and settles since the last commit (spec 1.9, with RabbitMQ's limits).

A commit is atomic for one queue only, as in RabbitMQ. Delivery tags are checked at once, not at commit; a rollback
leaves the deliveries unacked on the channel, it does not requeue them.

A commit is done at once, but tx.commit-ok says that its persistent messages are safe: it waits for the epoch that they
fell into. The client may go on meanwhile; a commit that has nothing to wait for still waits for those before it.

What must stay true: commit-oks are sent in the order of the commits; the epochs in `unsafe` never decrease, so one
registration an epoch is enough; after `close` nothing is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed, ConnectionClosed
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.storage.sync import EpochWaiter
from rabbitpy_broker.vhost import Route
from rabbitpy_broker.wire import methods

if TYPE_CHECKING:
    from rabbitpy_broker.protocol.channel import Channel


class Tx(EpochWaiter):
    """What waits for commit or rollback, and the commits that wait for the disk."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._syncs = channel.vhost.syncs
        self.publishes: list[tuple[Route, Message, bool]] = []
        self.settles: list[tuple[list[MsgStatus], i64]] = []
        self.refused = False  # by a queue, a publish of the commit that is being done
        self._unsafe: list[int] = []  # of each commit that is not answered yet the epoch

    def commit(self) -> None:
        """Does all of it, in order; nothing that happened to queues and exchanges meanwhile stops it half-way."""
        channel = self._channel
        publishes, settles = self.publishes, self.settles
        self.publishes, self.settles = [], []
        syncing = False
        try:
            for route, message, mandatory in publishes:
                if channel.publish_now(route if route.valid else _route_now(channel, route), message, mandatory):
                    syncing = True
        except ConnectionClosed:
            self.settles = settles  # for the rollback that comes with the end of the channel
            raise
        for statuses, how in settles:
            channel.settle_now(statuses, how)
        if self.refused:
            raise ChannelClosed(PRECONDITION_FAILED, "partial tx completion")
        self.answer(syncing)

    def answer(self, syncing: bool) -> None:
        """Sends the commit-ok of what was just done, or has it wait."""
        unsafe = self._unsafe
        if syncing:
            epoch = self._syncs.epoch
            if not unsafe or unsafe[-1] != epoch:
                self._syncs.wait(self)
            unsafe.append(epoch)
        elif unsafe:
            unsafe.append(unsafe[-1])
        else:
            self._channel.send(methods.make("Tx.CommitOk"))

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        """Answers the commits of this epoch, or closes the channel when they may be lost."""
        unsafe = self._unsafe
        answered = 0
        while answered < len(unsafe) and unsafe[answered] == epoch:
            answered += 1
        if not answered:
            return
        del unsafe[:answered]
        channel = self._channel
        if ok:
            for _ in range(answered):
                channel.send(methods.make("Tx.CommitOk"))
        else:
            channel.connection.fail_channel(channel, ChannelClosed(PRECONDITION_FAILED, "partial tx completion"))

    def rollback(self) -> None:
        """Forgets the publishes, and puts the deliveries back among the unacked."""
        settles = self.settles
        self.publishes, self.settles = [], []
        for statuses, _ in settles:
            self._channel.unacked.put_back(statuses)

    def close(self) -> None:
        """The channel is gone: nothing is answered any more."""
        self.rollback()
        self._unsafe = []


def _route_now(channel: Channel, route: Route) -> Route:
    """A route that has changed is looked up anew; where the exchange is gone, its queues that still exist remain."""
    try:
        return channel.vhost.route(route.address)
    except ChannelClosed:
        left = Route(route.address, route.exchange_name, route.routing_key, None)
        left.queues = [queue for queue in route.queues if not queue.deleted]
        return left
