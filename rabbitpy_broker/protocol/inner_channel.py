"""A channel that belongs to no connection: what the broker does for a user who asks by other ways than AMQP.

The methods of such a channel are those of any other, so are its checks, and the order in which they come. Its frames go to
the transport that it is given, which may read the confirms among them. What must stay true: it is in nobody's list of channels,
and whoever opens one closes it.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.errors import ChannelClosed
from rabbitpy_broker.events.journal import Origin
from rabbitpy_broker.protocol.access import Access
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.channel_host import ChannelHost
from rabbitpy_broker.protocol.confirms import Confirms
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.protocol.output import Output, Transport
from rabbitpy_broker.users import User
from rabbitpy_broker.vhost import VHost

NUMBER: Final[i64] = 1


class InnerHost(ChannelHost):
    """Stands where the connection would be; the channel's output is written to `transport` at the end of a turn."""

    def __init__(self, node: Node, name: str, transport: Transport) -> None:
        node.next_connection_id += 1
        super().__init__(node.next_connection_id, name, node.limits.flow_high_water_mark)
        self.event_id: i64 = 0  # in the event journal
        self.output = Output(node.turn, self, transport, node.limits.output_high_water_mark, 0)

    def written(self) -> None:
        pass

    def commit_failed(self) -> None:
        pass

    def notify_cancelled(self, number: i64, tag: str) -> None:
        pass

    def fail_channel(self, number: i64, error: ChannelClosed) -> None:
        pass


def open_inner_channel(node: Node, user: User, vhost: VHost, name: str, transport: Transport, *, confirms: bool) -> Channel:
    """A channel of that user in that vhost; `name` stands where a connection's would. With or without publisher confirms."""
    host = InnerHost(node, name, transport)
    origin: Origin | None = None
    events = node.events
    if events is not None:
        host.event_id = events.connection(vhost.name, name, user.name)
        origin = Origin(events, host.event_id, NUMBER, 1)
    channel = Channel(host, node, Access(user, vhost), NUMBER, origin)
    if confirms:
        channel.confirms = Confirms(channel.output, NUMBER, vhost.syncs)
        channel.confirms.origin = origin
    node.totals.channels_opened += 1
    return channel


def close_inner_channel(channel: Channel) -> None:
    """Ends it: what it has not settled goes back to its queues."""
    if not channel.closing:
        channel.close()
        host, events = channel.host, channel.node.events
        if events is not None and isinstance(host, InnerHost):
            events.connection_closed(int(host.event_id))
        channel.output.lose()
