"""The connection as its channels see it; `connection.py` implements it."""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.errors import ChannelClosed
from rabbitpy_broker.protocol.output import Output, OutputOwner
from rabbitpy_broker.queues.queue_host import HostedQueue


class ChannelHost(OutputOwner):
    """`name` is "peer -> our address". `congested` is a queue that a publish filled beyond `flow_mark`, in ready messages.

    For vhosts it is the owner of exclusive queues.
    """

    def __init__(self, id: i64, name: str, flow_mark: i64) -> None:
        self.id = id
        self.name = name
        self.flow_mark = flow_mark
        self.congested: HostedQueue | None = None
        self.output: Output

    def notify_cancelled(self, number: i64, tag: str) -> None:
        """Tells the client, if it knows basic.cancel, that a consumer's queue is gone."""
        raise NotImplementedError

    def fail_channel(self, number: i64, error: ChannelClosed) -> None:
        """Closes a channel because of a fault that no frame has caused."""
        raise NotImplementedError
