"""What users have open at other nodes, for limits of a user, which are the whole cluster's.

Each node tells with its lease, once a second, how many connections and channels it has of users that have a limit. Who opens one
here adds what the others told last. Nobody is asked, and nobody waits: so what nodes open at the same time, before they have
heard of each other, may exceed a limit, by no more than it opens within two seconds. A client that was passed on counts where its
vhost is.
"""

from __future__ import annotations

from collections.abc import Iterable

from rabbitpy_broker.cluster.view import View
from rabbitpy_broker.protocol.node import Elsewhere
from rabbitpy_broker.protocol.session import Session
from rabbitpy_broker.users import User


class OtherNodes(Elsewhere):
    """The other nodes of a cluster, to which no client is passed on. `node` is our name."""

    def __init__(self, node: str, view: View) -> None:
        self._node = node
        self._view = view

    def ask(self, session: Session, vhost: str) -> None:
        """None of them is asked to take a client."""

    def counts(self, session: Session, user: str) -> tuple[int, int, int]:
        """The limit of all connections is each node's own."""
        told = [info.users.get(user, (0, 0)) for name, info in self._view.nodes.items() if name != self._node]
        return 0, sum(connections for connections, _ in told), sum(channels for _, channels in told)


def counted(users: Iterable[User]) -> dict[str, tuple[int, int]]:
    """Connections and channels at this node, of those of whom others may have to know."""
    return {
        user.name: (user.connections, user.channels) for user in users if user.limits and (user.connections or user.channels)
    }
