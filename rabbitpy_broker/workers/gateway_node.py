"""The daemon as the one node that it is to its users: /overview and /nodes, of what its workers say of themselves.

Figures are added up (`gateway_merging.py` says which are not); the pages and metrics listen here, AMQP at each worker, in the
same place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

from rabbitpy_broker.management.api.merging import added_up
from rabbitpy_broker.management.api.nodes import WEB, listener_context
from rabbitpy_broker.management.api.request import Row
from rabbitpy_broker.stats import STARTED
from rabbitpy_broker.workers.gateway_front import Front

KEPT: Final = ("fd_used", "sockets_used", "mem_used", "mem_limit", "mem_alarm", "uptime", "os_pid")


def overview_row(front: Front, rows: Sequence[Row]) -> Row:
    """Totals and rates added up."""
    row = added_up(rows)
    if "listeners" in row:
        row["listeners"] = listener_rows(front, rows)
        row["contexts"] = [
            {"node": front.node_name, "ssl_opts": [], **listener_context(one)} for one in front.listeners if one.protocol in WEB
        ]
    return row


def listener_rows(front: Front, rows: Sequence[Row]) -> list[Row]:
    """All workers listen in the same place for AMQP."""
    found = [{**one} for row in rows for one in row["listeners"]]
    ours = [
        {"node": front.node_name, "protocol": one.protocol, "ip_address": one.host, "port": one.port, "socket_opts": {}}
        for one in front.listeners
    ]
    return list({(one["protocol"], one["ip_address"], one["port"]): one for one in [*found, *ours]}.values())


def node_row(front: Front, rows: Sequence[tuple[int, Row]]) -> Row:
    """One node; `workers` says which process has what part in it."""
    row = added_up([each for _, each in rows])
    if "os_pid" not in row:  # without statistics
        return row
    row["os_pid"] = str(os.getpid())
    row["uptime"] = int((time.monotonic() - STARTED) * 1000)
    row["contexts"] = [listener_context(one) for one in front.listeners if one.protocol in WEB]
    figures = dict(rows)
    placed = front.fleet.placed()
    row["workers"] = [
        {
            "worker": member.number,
            "running": member.ready,
            "vhosts": sorted(name for name, number in placed.items() if number == member.number),
            **{name: figures[member.number].get(name) if member.number in figures else None for name in KEPT},
        }
        for member in front.fleet.members()
    ]
    return row


def absent_vhost(node: str, name: str) -> Row:
    """A vhost whose worker does not run."""
    return {
        "name": name,
        "description": "",
        "tags": [],
        "default_queue_type": "undefined",
        "metadata": {"description": "", "tags": []},
        "tracing": False,
        "cluster_state": {node: "nodedown"},
    }
