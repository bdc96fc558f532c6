"""How the gateway has each route of the management API answered.

    a route with a vhost         its worker                      (but see the table)
    a list                       all workers, united             `LISTS`
    figures of the daemon        all workers, added up           `PLANS`
    what is the whole daemon's   the first worker that runs, and the others are told of what was changed

What must stay true: every route of `routes.py` is answered by one of these, and a write of what is the whole daemon's is answered
when all workers know of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from rabbitpy_broker.management.admin import AdminError
from rabbitpy_broker.management.api.asking import Reply, path_to
from rabbitpy_broker.management.api.attention import CRITICAL, Item
from rabbitpy_broker.management.api.errors import ApiError, bad_request, not_found
from rabbitpy_broker.management.api.forwarded import BEGUN
from rabbitpy_broker.management.api.merging import (
    LISTS,
    ListPlan,
    added_up,
    in_percent,
    one_answer,
    one_graph,
    one_history,
    one_log,
    one_table,
    page_of,
    query_for_each,
)
from rabbitpy_broker.management.api.paging import Columns
from rabbitpy_broker.management.api.request import Answer, Row, Stream, integer, whole
from rabbitpy_broker.management.api.routes import Route
from rabbitpy_broker.workers import gateway_definitions as definitions
from rabbitpy_broker.workers.fleet import Member
from rabbitpy_broker.workers.gateway_events import subscribe
from rabbitpy_broker.workers.gateway_front import Asked, Front, Made, Refused, as_answer, rows_of
from rabbitpy_broker.workers.gateway_health import HEALTH
from rabbitpy_broker.workers.gateway_node import absent_vhost, node_row, overview_row

Result = web.StreamResponse | Answer | Reply | Stream
Plan = Callable[[Front, Asked], Awaitable[Result]]

AUDIT_ALL: Final = 1_000_000
IN_LOOP_BYTES: Final = 262_144  # of lists that are put together without a thread
GRAPH_MAX: Final = 2_000
ATTENTION_MAX: Final = 500
POINTS_S: Final = 600


TOLD: Final = frozenset((  # by the first segment: what is kept for the whole daemon
    "cluster-name", "global-parameters", "permissions", "topic-permissions", "user-limits", "users", "vhosts",
))  # fmt: skip


async def answer(front: Front, asked: Asked, route: Route | None) -> Result:
    """The answer to one request. Raises ApiError, Refused and NoAnswer."""
    if route is None or asked.http.method == "OPTIONS":
        return await front.pass_on(asked, front.first())
    if asked.method not in route.methods:
        return await front.pass_on(asked, front.first())
    plan = PLANS.get((asked.method, route.path))
    if plan is not None:
        return await plan(front, asked)
    listed = LISTS.get(route.path) if asked.method == "GET" else None
    if listed is not None:
        return await _list(front, asked, listed)
    member = await _owner(front, asked)
    if asked.method != "GET" and route.segments[0] in TOLD:
        return await _written(front, asked, member)
    return await front.pass_on(asked, member)


async def _written(front: Front, asked: Asked, member: Member) -> Reply:
    """Done by one worker, and answered when all know."""
    reply = await front.ask(asked, member, asked.method, _path(asked), await asked.body())
    await front.written(member, reply)
    return reply


async def _owner(front: Front, asked: Asked) -> Member:
    """Who answers for the vhost in the path. Whoever may not use the API is told that, and not which vhost is down."""
    try:
        return front.of_vhost(asked.names["vhost"]) if "vhost" in asked.names else front.first()
    except ApiError:
        await front.check(asked)
        raise


# -- lists -----------------------------------------------------------------------------------------------------------


async def _list(front: Front, asked: Asked, plan: ListPlan) -> Made | Reply:
    request = asked.light()
    try:
        page = page_of(request, plan)
    except ApiError:  # in the worker's words, after it has looked at who asks
        return await front.ask(asked, front.first(), "GET", _path(asked))
    path = path_to(*asked.segments, query=query_for_each(request, plan, page))
    replies = await front.ask_all(asked, path, lenient=plan.distinct)

    def united() -> Made:
        return as_answer(asked, one_answer(request, plan, page, rows_of(replies)))

    is_long = sum(len(reply.body) for _, reply in replies) > IN_LOOP_BYTES
    return await asyncio.to_thread(united) if is_long else united()


def _path(asked: Asked) -> str:
    return path_to(*asked.segments, query=asked.query)


async def _vhosts(front: Front, asked: Asked) -> Result:
    """Those of workers that are down are there too, with the little that is known of them."""
    result = await _list(front, asked, ListPlan(("name",), paged=True))
    gone = sorted(name for name, number in front.fleet.placed().items() if number in asked.down)
    if not gone or isinstance(result, Reply) or "page" in asked.query:
        return result
    columns = Columns(asked.light())
    whoever = (await front.ask(asked, front.first(), "GET", "whoami")).json()
    if not {"administrator", "monitoring"} & set(whoever["tags"]):
        return result
    rows = [columns.of(absent_vhost(front.node_name, name)) for name in gone]
    return as_answer(asked, [*result.value, *rows])


# -- one of several --------------------------------------------------------------------------------------------------


async def _whichever(front: Front, asked: Asked) -> Result:
    """Of the one worker that knows the connection or channel in the path."""
    for member in front.ready():
        reply = await front.ask(asked, member, asked.method, _path(asked))
        if reply.status != 404:
            return reply
    return reply


async def _everywhere(front: Front, asked: Asked) -> Reply:
    """Done by all workers; the first one's answer is the answer."""
    body = await asked.body()
    first, *others = front.ready()
    reply = await front.ask(asked, first, asked.method, _path(asked), body)
    if reply.status < 400:
        for member in others:
            await front.ask(asked, member, asked.method, _path(asked), body)
    return reply


async def _by_body(front: Front, asked: Asked) -> Result:
    """For the vhost that the body names."""
    body = await asked.body()
    try:
        vhost = asked.light(body).json().get("vhost")
    except ApiError:
        vhost = None
    return await front.pass_on(asked, front.of_vhost(vhost) if isinstance(vhost, str) else front.first(), body)


# -- vhosts and users ------------------------------------------------------------------------------------------------


async def _put_vhost(front: Front, asked: Asked) -> Result:
    """A new one gets a worker, and keeps it when nobody can tell whether it was made; whoever may not make it leaves no trace."""
    name = asked.names["vhost"]
    is_new = name not in front.fleet.placed()
    if is_new:
        await front.check(asked)
    try:
        member = front.member(front.fleet.place(name), name)
    except ApiError:
        if is_new:
            front.fleet.forget(name)
        raise
    reply = await _written(front, asked, member)
    if 400 <= reply.status < 500 and is_new:
        front.fleet.forget(name)
    return reply


async def _delete_vhost(front: Front, asked: Asked) -> Result:
    name = asked.names["vhost"]
    member = await _owner(front, asked)
    reply = await _written(front, asked, member)
    if reply.status < 300 or reply.status == 404:  # there is none: perhaps deleted by somebody who was not told
        front.fleet.forget(name)
    return reply


async def _move_vhost(front: Front, asked: Asked) -> Result:
    """A worker says whether it may be, the fleet does it, and the new worker has it in its audit."""
    body = await asked.body()
    dry = path_to(*asked.segments, query={**asked.query, "dry_run": "true"})
    checked = await front.ask(asked, front.first(), "PUT", dry, body)
    if checked.status >= 400:
        return checked
    name, number = asked.names["vhost"], integer(asked.light(body).json()["worker"])
    if name not in front.fleet.placed():
        raise not_found()
    if number not in {member.number for member in front.fleet.members()}:
        raise bad_request(f"there is no worker {number}")
    if asked.light().is_true("dry_run"):
        return checked
    if front.config.management.read_only:
        raise ApiError(403, "read_only", "the management API is read-only")
    try:
        await front.fleet.move(name, number)
    except AdminError as error:
        raise bad_request(str(error)) from None
    return await front.ask(asked, front.member(number, name), "PUT", _path(asked), body)


async def _put_user(front: Front, asked: Asked) -> Result:
    """Permissions in vhosts of other workers are theirs to set."""
    body = await asked.body()
    member = front.first()
    reply = await _written(front, asked, member)
    if reply.status < 300:
        given = asked.light(body).json().get("permissions", {})
        for vhost, may in given.items():
            number = front.fleet.placed().get(vhost)
            if number in (None, member.number):
                continue
            permissions = {key: str(may.get(key, "")) for key in ("configure", "write", "read")}
            owner = front.of_vhost(vhost)
            path = path_to("permissions", vhost, asked.names["user"])
            done = await front.ask(asked, owner, "PUT", path, msgspec.json.encode(permissions))
            await front.written(owner, done)
    return reply


# -- the daemon ------------------------------------------------------------------------------------------------------


async def _overview(front: Front, asked: Asked) -> Answer:
    replies = await front.ask_all(asked, path_to("overview", query=_without(asked, "columns")))
    row = overview_row(front, [reply.json() for _, reply in replies])
    return as_answer(asked, Columns(asked.light()).of(row))


async def _nodes(front: Front, asked: Asked) -> Answer:
    replies = await front.ask_all(asked, path_to(*asked.segments, query=_without(asked, "columns")))
    rows = [(number, reply.json()[0]) for number, reply in replies]
    request = asked.light()
    return as_answer(asked, [Columns(request).of(node_row(front, rows))])


async def _node(front: Front, asked: Asked) -> Answer:
    replies = await front.ask_all(asked, path_to(*asked.segments, query=_without(asked, "columns")))
    row = node_row(front, [(number, reply.json()) for number, reply in replies])
    return as_answer(asked, Columns(asked.light()).of(row))


async def _memory(front: Front, asked: Asked) -> Answer:
    replies = await front.ask_all(asked, path_to(*asked.segments, query=_without(asked, "columns")))
    row = added_up([reply.json() for _, reply in replies])
    return as_answer(asked, Columns(asked.light()).of(row))


async def _memory_shares(front: Front, asked: Asked) -> Answer:
    replies = await front.ask_all(asked, path_to("nodes", asked.names["node"], "memory"))
    sizes = added_up([reply.json()["memory"] for _, reply in replies])
    shares = {**in_percent({name: size for name, size in sizes.items() if name not in ("total", "strategy")}), "total": 100}
    return as_answer(asked, Columns(asked.light()).of({"memory": shares}))


async def _node_internals(front: Front, asked: Asked) -> Answer:
    rows: Any = rows_of(await front.ask_all(asked, _whole_path(asked)))
    stores = [store for row in rows for store in row["stores"]]
    return _chosen(asked, {"stores": stores, "rests": sum(row["rests"] for row in rows)})


async def _backups(front: Front, asked: Asked) -> Answer:
    """The folder is the same for all."""
    rows: Any = rows_of(await front.ask_all(asked, _whole_path(asked)))
    jobs = sorted((job for row in rows for job in row["jobs"]), key=lambda job: int(job["began"]), reverse=True)
    return _chosen(asked, {**rows[0], "jobs": jobs})


async def _attempts(front: Front, asked: Asked) -> Answer:
    lists = rows_of(await front.ask_all(asked, _whole_path(asked)))
    return as_answer(asked, [added_up(rows) for rows in zip(*lists, strict=True)])


async def _history(front: Front, asked: Asked) -> Answer:
    """Of the same span for all workers."""
    query = _without(asked, "columns")
    query.setdefault("to", str(int(time.time())))
    until = whole(query["to"])
    if "from" not in query and until is not None:
        query["from"] = str(max(until - POINTS_S, 0))
    rows: Any = rows_of(await front.ask_all(asked, path_to(*asked.segments, query=query)))
    return _chosen(asked, one_history(rows))


# -- pages in a browser ----------------------------------------------------------------------------------------------


async def _table(front: Front, asked: Asked) -> Result:
    if asked.names["kind"] == "users":
        return await front.pass_on(asked, front.first())
    rows: Any = rows_of(await front.ask_all(asked, _path(asked)))
    return as_answer(asked, one_table(rows))


async def _topology(front: Front, asked: Asked) -> Answer:
    rows: Any = rows_of(await front.ask_all(asked, _whole_path(asked), lenient="around" in asked.query))
    limit = whole(asked.query.get("limit", ""))
    return as_answer(asked, one_graph(rows, GRAPH_MAX if limit is None else min(limit, GRAPH_MAX)))


async def _attention(front: Front, asked: Asked) -> Answer:
    rows: Any = rows_of(await front.ask_all(asked, _whole_path(asked)))
    items = [_down_item(front, number) for number in sorted(asked.down)]
    seen: set[str] = set()
    for row in rows:
        for item in row["items"]:
            told = repr((item["kind"], item["target"], item["text"]))
            if item["target"]["kind"] != "node" or told not in seen:
                items.append(item)
                seen.add(told)
    items.sort(key=lambda item: str(item["severity"]))
    return as_answer(asked, {**rows[0], "items": items[:ATTENTION_MAX]})


def _down_item(front: Front, number: int) -> Row:
    """What needs attention before anything else: a worker that does not run."""
    vhosts = sum(its == number for its in front.fleet.placed().values())
    text = f"worker {number} is not running, and nobody can use its vhosts"
    target = {"kind": "node", "name": front.node_name}
    return Item("worker_down", CRITICAL, text, target, worker=number, vhosts=vhosts).row


async def _log(front: Front, asked: Asked) -> Answer:
    replies = await front.ask_all(asked, _whole_path(asked))
    lines = one_log([(number, reply.json()["lines"]) for number, reply in replies])
    return _chosen(asked, {"lines": lines[-int(asked.query.get("limit", "1000")) :]})


async def _audit(front: Front, asked: Asked) -> Answer:
    """Ids are of the gateway's making, so it is the gateway that looks for the entries before one."""
    query = {**_without(asked, "before"), "limit": str(AUDIT_ALL)}
    query.pop("columns", None)
    checked = await front.ask(asked, front.first(), "GET", _path(asked))
    if checked.status != 200:
        raise Refused(checked)
    replies = await front.ask_all(asked, path_to("audit", query=query))
    entries = one_log([(number, reply.json()["items"]) for number, reply in replies])[::-1]
    if "before" in asked.query:
        entries = [entry for entry in entries if entry["id"] < int(asked.query["before"])]
    total = sum(reply.json()["total"] for _, reply in replies)
    return _chosen(asked, {"items": entries[: int(asked.query.get("limit", "100"))], "total": total})


def _chosen(asked: Asked, row: Row) -> Made:
    """With the columns that are asked for."""
    return as_answer(asked, Columns(asked.light()).of(row))


def _whole_path(asked: Asked) -> str:
    """Without a choice of columns, which is made when all is put together."""
    return path_to(*asked.segments, query=_without(asked, "columns"))


def _without(asked: Asked, name: str) -> dict[str, str]:
    return {key: value for key, value in asked.query.items() if key != name}


# -- sessions --------------------------------------------------------------------------------------------------------


async def _begin_session(front: Front, asked: Asked) -> Reply:
    body = await asked.body()
    reply = await front.ask(asked, front.first(), "POST", _path(asked), body)
    if reply.status == 200 and BEGUN in reply.headers:
        if asked.told.session is not None:
            front.sessions.end(asked.told.session)
        given = asked.light(body).json()
        front.sessions.begin(reply.headers[BEGUN], (str(given["username"]), str(given["password"])))
    return reply


async def _end_session(front: Front, asked: Asked) -> Result:
    """With all workers: each may have streams that belong to it."""
    result: Reply = await _everywhere(front, asked)
    if result.status == 204 and asked.told.session is not None:
        front.sessions.end(asked.told.session)
    return result


PLANS: Final[dict[tuple[str, str], Plan]] = {
    ("GET", "overview"): _overview,
    ("GET", "nodes"): _nodes,
    ("GET", "nodes/:node"): _node,
    ("GET", "nodes/:node/memory"): _memory,
    ("GET", "nodes/:node/memory/relative"): _memory_shares,
    ("GET", "nodes/:node/internals"): _node_internals,
    ("GET", "auth/attempts/:node"): _attempts,
    ("DELETE", "auth/attempts/:node"): _everywhere,
    ("DELETE", "auth/attempts/:node/:by"): _everywhere,
    ("PUT", "cluster-name"): _everywhere,
    ("DELETE", "reset"): _everywhere,
    ("DELETE", "reset/:node"): _everywhere,
    ("GET", "backups"): _backups,
    ("GET", "vhosts"): _vhosts,
    ("PUT", "vhosts/:vhost"): _put_vhost,
    ("DELETE", "vhosts/:vhost"): _delete_vhost,
    ("PUT", "vhosts/:vhost/worker"): _move_vhost,
    ("PUT", "users/:user"): _put_user,
    ("GET", "connections/:connection"): _whichever,
    ("DELETE", "connections/:connection"): _whichever,
    ("DELETE", "connections/username/:user"): _everywhere,
    ("GET", "connections/:connection/channels"): _whichever,
    ("GET", "connections/:connection/sessions"): _whichever,
    ("GET", "channels/:channel"): _whichever,
    ("POST", "route"): _by_body,
    ("POST", "policies/preview"): _by_body,
    ("POST", "permissions/test"): _by_body,
    ("GET", "definitions"): definitions.get_all,
    ("GET", "all-configuration"): definitions.get_all,
    ("POST", "definitions"): definitions.post_all,
    ("POST", "all-configuration"): definitions.post_all,
    ("POST", "definitions/diff"): definitions.diff,
    ("GET", "table/:kind"): _table,
    ("GET", "topology"): _topology,
    ("GET", "attention"): _attention,
    ("GET", "history/node"): _history,
    ("GET", "log"): _log,
    ("GET", "audit"): _audit,
    ("GET", "events"): subscribe,
    ("POST", "session"): _begin_session,
    ("DELETE", "session"): _end_session,
    **{("GET", path): plan for path, plan in HEALTH.items()},
}
