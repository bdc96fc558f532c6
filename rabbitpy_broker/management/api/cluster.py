"""The cluster: /cluster, replicas of vhosts, a node's maintenance, and the group that a quorum queue is on."""

from __future__ import annotations

from rabbitpy_broker.management.api.errors import bad_request, not_found
from rabbitpy_broker.management.api.nodes import check_node
from rabbitpy_broker.management.api.queues import find
from rabbitpy_broker.management.api.request import NO_CONTENT, Answer, Request, Row, flag, text, vhost_or_404
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.clustering import add_member, cluster_row, delete_member, quorum_status


def show(api: Api, request: Request) -> Row:
    return cluster_row(api.broker)


def show_quorum(api: Api, request: Request) -> list[Row]:
    """The members of a quorum queue."""
    vhost, queue = find(api, request)
    if not queue.quorum:
        raise not_found()
    return quorum_status(api.broker, vhost.name)


async def add_replica(api: Api, request: Request) -> Answer:
    vhost = _replicated(api, request)
    await add_member(api.admin, vhost, text(request.json(), "node"))
    return NO_CONTENT


async def delete_replica(api: Api, request: Request) -> Answer:
    vhost = _replicated(api, request)
    await delete_member(api.admin, vhost, text(request.json(), "node"))
    return NO_CONTENT


def _replicated(api: Api, request: Request) -> str:
    vhost = request.names["vhost"]
    if vhost not in api.broker.node.owned_elsewhere:
        vhost_or_404(api.vhosts, vhost)
    return vhost


def show_maintenance(api: Api, request: Request) -> Row:
    check_node(api, request)
    return {"maintenance": api.broker.is_in_maintenance()}


async def drain(api: Api, request: Request) -> Answer | Row:
    """This node; each is asked by itself. With `force`, what stays here is told."""
    check_node(api, request)
    if api.broker.sockets is not None:
        raise bad_request("a daemon with several workers has no maintenance")
    left = await api.admin.drain(force=flag(request.json(), "force"))
    return {"left": left} if left else NO_CONTENT


async def revive(api: Api, request: Request) -> Answer:
    check_node(api, request)
    await api.admin.revive()
    return NO_CONTENT
