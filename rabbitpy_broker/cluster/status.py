"""How a cluster is, as one of its nodes sees it: nodes, replicated vhosts with their owners, and how far each replica is behind.

    View (registry, once a second) --> VHostStatus --> cluster_status, /api/cluster, health checks, metrics

All of it may be two seconds old. Nothing here asks the engine, so it is told also when that is away.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.ownership import NOBODY
from rabbitpy_broker.cluster.view import View

LAGS_S: Final = 30.0  # a replica that is further behind is one that lags


class ReplicaStatus(NamedTuple):
    """A node that has a vhost. What is not known of one that has not been seen is None; `lag` is in entries of the log."""

    node: str
    running: bool
    is_owner: bool
    position: int | None
    lag: int | None
    lag_s: float | None

    def row(self) -> dict[str, object]:
        """As the API has it."""
        lag_s = None if self.lag_s is None else round(self.lag_s, 1)
        return {**self._asdict(), "lag_s": lag_s}

    def is_level(self, seconds: float = LAGS_S) -> bool:
        """Whether it runs, and is not further behind than that."""
        return self.running and self.lag_s is not None and self.lag_s <= seconds


class VHostStatus(NamedTuple):
    """A replicated vhost. `owner` is "" where nobody who lives has it."""

    name: str
    owner: str
    term: int
    position: int
    held: bool
    replicas: list[ReplicaStatus]

    @property
    def has_quorum(self) -> bool:
        """Whether a majority of its replicas runs and is not far behind."""
        return 2 * sum(one.is_level() for one in self.replicas) > len(self.replicas)

    def is_critical(self, node: str) -> bool:
        """Whether a majority would be missing without the node, which is part of it now."""
        level = [one.node for one in self.replicas if one.is_level()]
        return node in level and 2 * (len(level) - 1) <= len(self.replicas)

    def online(self) -> list[str]:
        """The nodes of those that run."""
        return [one.node for one in self.replicas if one.running]

    def row(self) -> dict[str, object]:
        """As the API has it."""
        replicas = [one.row() for one in self.replicas]
        return {**self._asdict(), "has_quorum": self.has_quorum, "replicas": replicas}


def vhost_status(view: View, name: str) -> VHostStatus | None:
    """None for a vhost that is not replicated, or not yet."""
    record = view.vhosts.get(name)
    if record is None or not record.replicas:
        return None
    owner, key, now = view.owners.get(record.incarnation, NOBODY), record.log_name(name), time.monotonic()
    end = view.progress.end(key)
    replicas = []
    for node in record.replicas:
        told = view.last_told.get(node, NodeInfo())
        position, lag, lag_s = told.positions.get(name), None, None
        is_owner = node == owner.node and node in view.nodes
        if is_owner:
            lag, lag_s = 0, 0.0
        elif position is not None and end is not None:
            lag, lag_s = max(0, end - position), view.progress.behind_s(key, position, now)
        replicas.append(ReplicaStatus(node, node in view.nodes, is_owner, position, lag, lag_s))
    alive = owner.node if owner.node in view.nodes else ""
    held = any(name in one.held for one in view.nodes.values())
    return VHostStatus(name, alive, owner.term, end or 0, held, replicas)


def all_vhosts(view: View) -> list[VHostStatus]:
    """By name."""
    found = [vhost_status(view, name) for name in sorted(view.vhosts)]
    return [one for one in found if one is not None]


def all_nodes(view: View) -> list[str]:
    """Those that are alive, and those that have a vhost or were seen since this one began."""
    return sorted({*view.nodes, *view.last_told, *(node for record in view.vhosts.values() for node in record.replicas)})


def node_row(view: View, node: str, vhosts: list[VHostStatus]) -> dict[str, object]:
    """A node, as the API has it."""
    told = view.last_told.get(node, NodeInfo())
    return {
        "name": node,
        "running": node in view.nodes,
        "version": told.version,
        "alarms": told.alarms,
        "held": told.held,
        "maintenance": told.maintenance,
        "addresses": told.amqp,
        "link": told.link,
        "owned": sum(one.owner == node for one in vhosts),
        "slow_append_ms": told.slow_append_ms if node in view.nodes else 0,
        "replicas": sum(any(replica.node == node for replica in one.replicas) for one in vhosts),
    }
