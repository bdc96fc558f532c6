"""The management API of a node, as that of its whole cluster.

    a list, a table, totals         of all nodes, united           `LISTS`, `PLANS`
    of a vhost that is not here     the node that has it
    a connection, a channel         the node that knows it
    a node's own, by its name       that node                      `OF_NODE`
    all else                        this node: what all have alike, and what is its own

A vhost that is not replicated is its node's own. Several nodes may have one of the same name, and a path means the one that is
here. What must stay true: what a user may see or do at another node is that node's to say; a list is answered within
`FOR_ALL_S` and names the nodes that it lacks.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

from rabbitpy_broker.management.api.asking import NoAnswer, Reply, path_to
from rabbitpy_broker.management.api.audit import SHOWN
from rabbitpy_broker.management.api.auth import check_origin, check_token
from rabbitpy_broker.management.api.cluster_events import Nodes, subscribe
from rabbitpy_broker.management.api.errors import ApiError, not_found
from rabbitpy_broker.management.api.forwarded import FORWARDED, Told, header_value
from rabbitpy_broker.management.api.merging import (
    LISTS,
    ListPlan,
    added_up,
    one_behind_the_other,
    one_graph,
    one_log,
    page_of,
    query_for_each,
)
from rabbitpy_broker.management.api.node_links import NodeLinks
from rabbitpy_broker.management.api.paging import Columns, made
from rabbitpy_broker.management.api.request import Answer, Listing, Made, Request, Row, Stream, integer
from rabbitpy_broker.management.api.routes import Endpoint, Route
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.api.tables import LIVE
from rabbitpy_broker.management.api.united_lists import united, united_table

MISSING: Final = "X-Rabbitpy-Nodes-Missing"  # of an answer that lacks what these nodes have
AUDIT_MAX: Final = 1_000_000
GRAPH_MAX: Final = 2_000
ATTENTION_MAX: Final = 500
MISDIRECTED: Final = 421  # the node that is asked does not have the vhost
JSON: Final = "application/json"
NOT_PASSED_ON: Final = frozenset((  # headers that are about the connection, or that have been looked at here
    "accept-encoding", "authorization", "connection", "content-length", "cookie", "expect", "host", "keep-alive", "origin",
    "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "x-csrf-token", FORWARDED.lower(),
))  # fmt: skip
KEPT: Final = ("Allow", "Content-Disposition", "Location", "Retry-After", "WWW-Authenticate")
ANYWHERE: Final = frozenset((  # (method, path) of what any node does to a vhost
    ("PUT", "vhosts/:vhost/owner"), ("POST", "vhosts/:vhost/replicas/add"), ("DELETE", "vhosts/:vhost/replicas/delete"),
    ("POST", "vhosts/:vhost/backup"), ("POST", "vhosts/:vhost/restore"), ("PUT", "vhosts/:vhost/worker"),
))  # fmt: skip
OF_ALL: Final = ("permissions", "topic-permissions")  # first segments of what all nodes have alike
OF_NODE: Final = ("nodes/:node/maintenance", "nodes/:node/internals", "auth/attempts/:node", "reset/:node")


@dataclass
class Asked:
    """A request that has come to this node. `here` answers one as this node alone would; `body` reads what it says."""

    request: Request
    route: Route
    endpoint: Endpoint
    here: Callable[[Request], Awaitable[Answer | Stream]]
    body: Callable[[], Awaitable[bytes]]

    @property
    def segments(self) -> list[str]:
        names = self.request.names
        return [names[part[1:]] if part.startswith(":") else part for part in self.route.segments]


Plan = Callable[["WholeCluster", Asked], Awaitable[Answer | Stream | None]]


class WholeCluster:
    """What a node answers with others."""

    def __init__(self, api: Api, links: NodeLinks) -> None:
        self.api = api
        self.links = links

    async def answer(self, asked: Asked) -> Answer | Stream | None:
        """None for what is this node's alone. Raises ApiError, and whatever `here` does."""
        request, path = asked.request, asked.route.path
        if not self.links.others() and path != "events":  # a stream goes on when there are others
            return None
        listed = LISTS.get(path) if request.method == "GET" else None
        if listed is not None and not listed.distinct:
            return await self._list(asked, listed)
        plan = PLANS.get((request.method, path))
        if plan is not None:
            return await plan(self, asked)
        vhost, node = request.names.get("vhost"), request.names.get("node")
        if vhost is not None and vhost not in self.api.vhosts and not _is_anywhere(asked):
            return await self.of_vhost(asked, vhost)
        if node in self.links.others() and path in OF_NODE:
            return await self._pass_on(asked, str(node))
        return None

    # -- asking ------------------------------------------------------------------------------------------------------

    def _headers(self, request: Request, *, is_for_all: bool = False, vhost: str | None = None) -> dict[str, str]:
        """Who asks, as another node is told."""
        headers = {
            key: value for key, value in request.headers.items() if key not in NOT_PASSED_ON and not key.startswith("sec-")
        }
        user, session = request.user, request.session
        if not user.is_ours:  # a back end outside knows it, and is asked again
            given = request.headers.get("authorization") or ("" if session is None else session.given)
            headers["authorization"] = given
        name = user.name if user.is_ours else ""
        told = Told(request.peer, request.is_encrypted, is_for_all=is_for_all, user=name, vhost=vhost)
        return {**headers, FORWARDED: header_value(told)}

    async def told(
        self, asked: Asked, query: Mapping[str, str], *, method: str = "GET"
    ) -> tuple[list[tuple[str, list[bytes]]], list[str]]:
        """What this node and the others answer, with names, this one first; and the nodes of which nothing is there.

        What this one refuses is raised.
        """
        request = dataclasses.replace(
            asked.request, query=query, is_for_all=True,
            headers={key: value for key, value in asked.request.headers.items() if key != "accept-encoding"},
        )  # fmt: skip
        headers, path = self._headers(request, is_for_all=True), f"/api/{path_to(*asked.segments, query=query)}"
        nodes = self.links.others()
        asking = [asyncio.ensure_future(self.links.ask(node, method, path, headers)) for node in nodes]
        try:
            mine = await asked.here(request)
            replies: Sequence[Reply | None] = await asyncio.gather(*asking)
        finally:
            for one in asking:
                one.cancel()
        assert isinstance(mine, Answer), "kept by: LISTS and PLANS, which have no streams"
        found = [(self.api.node_name, mine.parts())]
        for node, reply in zip(nodes, replies, strict=True):
            if reply is not None and reply.status < 300:
                found.append((node, reply.parts))
        return found, sorted(self.links.known() - {node for node, _ in found})

    async def each(
        self, asked: Asked, query: Mapping[str, str], *, method: str = "GET"
    ) -> tuple[list[tuple[str, Any]], list[str]]:
        """The values of what this node and the others answer, None for nothing. Otherwise as `told`."""
        found, missing = await self.told(asked, query, method=method)
        return [(node, msgspec.json.decode(b"".join(parts)) if parts else None) for node, parts in found], missing

    async def of_vhost(self, asked: Asked, vhost: str) -> Answer | Stream | None:
        """The answer of the node that has a vhost; None if nobody has. Raises ApiError 503 when its owner cannot be asked."""
        owner = self.links.owner_of(vhost)
        if owner == self.api.node_name:
            return None
        if owner == "":
            raise ApiError(503, "service_unavailable", f"vhost '{vhost}' has no owner now", {"Retry-After": "1"})
        for node in self.links.others() if owner is None else [owner]:
            found = await self._pass_on(asked, node, vhost)
            if not isinstance(found, Answer) or found.status != MISDIRECTED:
                return found
        return None

    async def _pass_on(self, asked: Asked, node: str, vhost: str | None = None) -> Answer | Stream:
        """The whole request, and the answer. Raises ApiError 503."""
        request = asked.request
        check_write(self.api, request, asked.endpoint)
        body = await asked.body() if request.method != "GET" else None
        path = f"/api/{path_to(*asked.segments, query=request.query)}"
        try:
            response = await self.links.open(node, request.method, path, self._headers(request, vhost=vhost), body)
            kept = {name: response.headers[name] for name in KEPT if name in response.headers}
            kind = response.headers.get("Content-Type", "")
            if response.status == 200 and not kind.startswith(JSON):
                return Stream(kind, _parts(response), kept)
            async with response:
                given = await response.read()
        except (NoAnswer, aiohttp.ClientError) as error:
            text = f"node '{node}' does not answer: {error}"
            raise ApiError(503, "service_unavailable", text, {"Retry-After": "1"}) from None
        return Answer(response.status, [given] if given else None, kept)

    # -- lists -------------------------------------------------------------------------------------------------------

    async def _list(self, asked: Asked, plan: ListPlan) -> Answer:
        """A whole list that nobody wants in another order is each node's, one behind the other, of which nothing is read."""
        request = asked.request
        asked.endpoint.check(self.api, request)
        page = page_of(request, plan)
        if page is None and not {"sort", "sort_reverse"} & {*request.query}:
            told, missing = await self.told(asked, request.query)
            return Answer(200, one_behind_the_other([parts for _, parts in told]), _missing(missing))
        told, missing = await self.told(asked, query_for_each(request, plan, page))
        return Answer(200, await united(request, plan, page, [parts for _, parts in told]), _missing(missing))


def check_write(api: Api, request: Request, endpoint: Endpoint) -> bool:
    """Whether a request changes something. Raises ApiError 403 for one that another site's page may have asked for, and for a
    change of what is read-only here.
    """
    if request.method == "GET":
        return False
    changes = endpoint.changes and not (endpoint.may_run_dry and request.is_true("dry_run"))
    check_origin(api, request.method, request.headers)
    check_token(request)
    if changes and api.config.read_only:
        raise ApiError(403, "read_only", "the management API is read-only")
    return changes


def _is_anywhere(asked: Asked) -> bool:
    return (asked.request.method, asked.route.path) in ANYWHERE or asked.route.segments[0] in OF_ALL


async def _parts(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes | None, None]:
    try:
        async for part in response.content.iter_any():
            yield part
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ConnectionResetError(str(error)) from None
    finally:
        response.close()


def _missing(nodes: Sequence[str]) -> dict[str, str]:
    return {MISSING: ", ".join(nodes)} if nodes else {}


def _without(request: Request, *names: str) -> dict[str, str]:
    return {key: value for key, value in request.query.items() if key not in names}


def _row(asked: Asked, row: Row, missing: Sequence[str]) -> Answer:
    """With the columns that are asked for."""
    return Answer(200, [msgspec.json.encode(Columns(asked.request).of(row))], _missing(missing))


# -- totals ----------------------------------------------------------------------------------------------------------


async def _overview(cluster: WholeCluster, asked: Asked) -> Answer:
    """Listeners and contexts this node knows of all."""
    found, missing = await cluster.each(asked, _without(asked.request, "columns"))
    return _row(asked, added_up([row for _, row in found]), missing)


async def _vhosts(cluster: WholeCluster, asked: Asked) -> Answer:
    """One row for each name, with the figures of all nodes that have such a vhost."""
    request = asked.request
    found, missing = await cluster.each(asked, _without(request, "columns", "sort", "sort_reverse", "page", "page_size", "name"))
    by_name: dict[str, list[Row]] = {}
    for _, rows in found:
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
    listing = Listing(
        iter([added_up(rows) for rows in by_name.values()]),
        lambda row: row,
        lambda row: row["name"],
        lambda row: row["name"],
        paged=True,
    )
    value = made(request, listing, cluster.api.lists)
    assert isinstance(value, Made), "kept by: a listing that is not shared"
    return Answer(200, [part async for part in value.parts], _missing(missing))


async def _table(cluster: WholeCluster, asked: Asked) -> Answer | None:
    """With a column more, which says whose row it is, where it is not left out."""
    request = asked.request
    if request.names["kind"] not in LIVE:
        return None
    columns = request.query.get("columns")
    names = None if columns is None else columns.split(",")
    query = dict(request.query)
    if names is not None:
        query["columns"] = ",".join(name for name in names if name != "node")
    told, missing = await cluster.told(asked, query)
    return Answer(200, await united_table(told, with_node=names is None or "node" in names), _missing(missing))


async def _topology(cluster: WholeCluster, asked: Asked) -> Answer:
    found, missing = await cluster.each(asked, _without(asked.request, "columns"))
    limit = int(asked.request.query.get("limit", GRAPH_MAX))
    return _row(asked, one_graph([graph for _, graph in found], min(limit, GRAPH_MAX)), missing)


async def _attention(cluster: WholeCluster, asked: Asked) -> Answer:
    """What several nodes say alike is said once."""
    found, missing = await cluster.each(asked, _without(asked.request, "columns"))
    items = {repr((item["kind"], item["target"], item["text"])): item for _, row in found[::-1] for item in row["items"]}
    ranked = sorted(items.values(), key=lambda item: str(item["severity"]))
    return _row(asked, {**found[0][1], "items": ranked[:ATTENTION_MAX]}, missing)


async def _audit(cluster: WholeCluster, asked: Asked) -> Answer:
    """With the node of each entry, and ids that say when it was: so this node looks for the entries before one."""
    query = asked.request.query
    limit = integer(query.get("limit", SHOWN))
    of_each = _without(asked.request, "columns", "before") | ({"limit": str(AUDIT_MAX)} if "before" in query else {})
    found, missing = await cluster.each(asked, of_each)
    numbers = {node: number for number, node in enumerate(sorted({cluster.api.node_name, *cluster.links.known()}))}
    entries = one_log([(numbers[node], [{**entry, "node": node} for entry in row["items"]]) for node, row in found])[::-1]
    if "before" in query:
        before = integer(query["before"])
        entries = [entry for entry in entries if entry["id"] < before]
    return _row(asked, {"items": entries[:limit], "total": sum(row["total"] for _, row in found)}, missing)


async def _events(cluster: WholeCluster, asked: Asked) -> Stream:
    request = asked.request
    asked.endpoint.check(cluster.api, request)
    return await subscribe(Nodes(cluster.api, cluster.links, request, lambda vhost: cluster._headers(request, vhost=vhost)))


# -- one of several --------------------------------------------------------------------------------------------------


async def _whichever(cluster: WholeCluster, asked: Asked) -> Answer | Stream:
    """Of the node that knows the connection or channel in the path."""
    try:
        return await asked.here(asked.request)
    except ApiError as error:
        if error.status != 404:
            raise
    request = asked.request
    path, headers = f"/api/{path_to(*asked.segments, query=request.query)}", cluster._headers(request)
    nodes = cluster.links.others()
    replies = await asyncio.gather(*(cluster.links.ask(node, request.method, path, headers) for node in nodes))
    for reply in replies:
        if reply is not None and reply.status != 404:
            return Answer(reply.status, [reply.body] if reply.body else None)
    raise not_found()


async def _everywhere(cluster: WholeCluster, asked: Asked) -> Answer:
    """Done by all nodes; this one's answer is the answer."""
    found, missing = await cluster.each(asked, asked.request.query, method=asked.request.method)
    return Answer(204, None, _missing(missing)) if found[0][1] is None else Answer(200, found[0][1], _missing(missing))


async def _by_body(cluster: WholeCluster, asked: Asked) -> Answer | Stream | None:
    """For the vhost that the body names."""
    request = dataclasses.replace(asked.request, body=await asked.body())
    vhost = request.json().get("vhost")
    if not isinstance(vhost, str) or vhost in cluster.api.vhosts:
        return None
    return await cluster.of_vhost(asked, vhost)


async def _put_vhost(cluster: WholeCluster, asked: Asked) -> Answer | Stream | None:
    """A new one is this node's to make; a replicated one is changed where it is."""
    name = asked.request.names["vhost"]
    if name in cluster.api.vhosts or name not in cluster.api.broker.node.owned_elsewhere:
        return None
    return await cluster.of_vhost(asked, name)


async def _delete_vhost(cluster: WholeCluster, asked: Asked) -> Answer | Stream | None:
    """A replicated one is deleted by any node."""
    name = asked.request.names["vhost"]
    if name in cluster.api.vhosts or name in cluster.api.broker.node.owned_elsewhere:
        return None
    return await cluster.of_vhost(asked, name)


PLANS: Final[dict[tuple[str, str], Plan]] = {
    ("GET", "overview"): _overview,
    ("GET", "vhosts"): _vhosts,
    ("PUT", "vhosts/:vhost"): _put_vhost,
    ("DELETE", "vhosts/:vhost"): _delete_vhost,
    ("GET", "table/:kind"): _table,
    ("GET", "events"): _events,
    ("GET", "topology"): _topology,
    ("GET", "attention"): _attention,
    ("GET", "audit"): _audit,
    ("GET", "connections/:connection"): _whichever,
    ("DELETE", "connections/:connection"): _whichever,
    ("DELETE", "connections/username/:user"): _everywhere,
    ("GET", "connections/:connection/channels"): _whichever,
    ("GET", "connections/:connection/sessions"): _whichever,
    ("GET", "channels/:channel"): _whichever,
    ("DELETE", "reset"): _everywhere,
    ("POST", "route"): _by_body,
    ("POST", "policies/preview"): _by_body,
    ("POST", "permissions/test"): _by_body,
}
