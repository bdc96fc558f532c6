"""What is inside: where the messages of a queue are, from alpha to delta, and what the stores of the vhosts have done."""

from __future__ import annotations

import dataclasses
from typing import Any

from rabbitpy_broker.management.api.nodes import check_node
from rabbitpy_broker.management.api.queues import _lane_status, find
from rabbitpy_broker.management.api.request import Request, Row
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.metrics import StoreStats
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.queues.priority_queue import PriorityQueue
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.stats import add_store


def internals(queue: Queue) -> Row:
    """Counts of messages by where they are; `lanes` has those of each priority, None for one that was never used."""
    figures = Figures()
    backing = queue.backing
    backing.add_figures(figures)
    row: Row = {name: int(getattr(figures, name)) for name in FIGURES}
    row["unacked"] = int(backing.unacked)
    row["publishes_waiting"] = int(backing.publishes_waiting())
    row["lanes"] = [_lane(lane) for lane in _lanes(backing)]
    return row


FIGURES = (
    "alpha", "beta", "gamma", "delta", "ready_ram", "unacked_ram", "ram_bytes", "persistent", "persistent_bytes", "paged_out",
    "paged_in", "disk_reads", "disk_writes",
)  # fmt: skip


def _lanes(backing: Any) -> list[Any]:
    if isinstance(backing, PriorityQueue):
        return [None if lane is None else lane.backing for lane in backing._lanes]
    return [backing]


def _lane(lane: Any) -> Row | None:
    if not isinstance(lane, VariableQueue):
        return None
    alpha, beta, gamma, delta = lane.state_counts()
    row = _lane_status(lane)
    return {
        **row,
        "delta_range": row["delta"],
        "alpha": alpha,
        "beta": beta,
        "gamma": gamma,
        "delta": delta,
        "unacked": int(lane.unacked),
        "ram_msg_count": int(lane.ram_msg_count),
    }


def of_queue(api: Api, request: Request) -> Row:
    return internals(find(api, request)[1])


def of_node(api: Api, request: Request) -> Row:
    """The stores of the vhosts: epochs, the seconds that syncs took, files and bytes."""
    check_node(api, request)
    return {
        "stores": [
            dataclasses.asdict(add_store(StoreStats(vhost=vhost.name), vhost.store)) for vhost in list(api.vhosts.values())
        ],
        "rests": int(api.broker.clients.moderation.rests),
    }
