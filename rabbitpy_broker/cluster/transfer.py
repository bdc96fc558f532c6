"""How an owner hands a replicated vhost over to another node, without a lease that has to end.

    owner   publishers held --> what they have sent is in the log, and confirmed --> clients closed with 320 --> store closed,
            its last epoch in the log --> record: the other node (registry) --> GIVEN, the last entry (log) --> follows
    other   finds itself in the record, at once when it reads GIVEN --> takes over as ever: a term of its own, its fence

The record alone says who is to take over; GIVEN has the other node look at it at once. A crash in between leaves one of the two
in the record: the owner, who takes the vhost back when it is there again, or the other node, which takes it within a second. If
that one is gone, any follower does, as when an owner is gone.

What must stay true: the record changes when nothing of the vhost is open at the owner any more, and all of it is in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.log import ClusterError
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.ownership import Owner, OwnerRecord
from rabbitpy_broker.cluster.writer import Writer


class NotGiven(ClusterError):
    """The vhost is where it was."""


class HandOver:
    """One vhost on its way to node `to`. `done` has its result when the record names that node, or an error."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.done: asyncio.Future[Owner] = asyncio.get_running_loop().create_future()

    async def complete(self, record: OwnerRecord, writer: Writer, node: str) -> bool:
        """The vhost is closed here, and all of it in the log. False: it was not given, and `done` has the error."""
        try:
            if writer.is_deposed:
                raise NotGiven("another node has taken it over meanwhile")
            given = await record.give(Owner(node, writer.term), self.to)
        except ClusterError as error:
            self.failed(error)
            return False
        with suppress(ClusterError):  # the other node has fenced already, or looks by itself in a second
            await writer.append_last(blocks.given(self.to))
        if not self.done.done():
            self.done.set_result(given)
        return True

    def failed(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # who has asked may have gone


def able(nodes: Mapping[str, NodeInfo], replicas: Iterable[str], vhost: str, other_than: str) -> list[str]:
    """The nodes that may be given the vhost, those first that are further along in its log."""
    found = [node for node in replicas if node != other_than and node in nodes and not nodes[node].maintenance]
    return sorted(found, key=lambda node: -nodes[node].positions.get(vhost, 0))
