"""The cluster: /cluster, and the group that a quorum queue is on."""

from __future__ import annotations

from rabbitpy_broker.management.api.errors import not_found
from rabbitpy_broker.management.api.queues import find
from rabbitpy_broker.management.api.request import Request, Row
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.clustering import cluster_row, quorum_status


def show(api: Api, request: Request) -> Row:
    return cluster_row(api.broker)


def show_quorum(api: Api, request: Request) -> list[Row]:
    """The members of a quorum queue."""
    vhost, queue = find(api, request)
    if not queue.quorum:
        raise not_found()
    return quorum_status(api.broker, vhost.name)
