"""What of a request goes into the audit, and /audit, which shows it."""

from __future__ import annotations

import dataclasses
from typing import Any, Final
from urllib.parse import quote

from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.management.api.request import Answer, Request, Row, integer
from rabbitpy_broker.management.api.state import Api

SHOWN: Final = 100
# What a body may say in the audit, by the first segment of its path. Passwords, hashes, values of parameters (which may be URIs
# with passwords) and messages are not among it.
KEYS: Final[dict[str, frozenset[str]]] = {
    "bindings": frozenset(("arguments", "routing_key")),
    "cluster-name": frozenset(("name",)),
    "exchanges": frozenset(("alternate-exchange", "arguments", "auto_delete", "durable", "internal", "routing_key", "type")),
    "operator-policies": frozenset(("apply-to", "definition", "pattern", "priority")),
    "permissions": frozenset(("configure", "read", "write")),
    "policies": frozenset(("apply-to", "definition", "pattern", "priority")),
    "queues": frozenset(("ackmode", "action", "arguments", "auto_delete", "count", "durable")),
    "topic-permissions": frozenset(("exchange", "read", "write")),
    "user-limits": frozenset(("value",)),
    "users": frozenset(("tags", "users")),
    "vhost-limits": frozenset(("value",)),
    "nodes": frozenset(("force",)),
    "vhosts": frozenset(("default_queue_type", "description", "name", "node", "replicas", "tags", "tracing", "worker")),
}


def audited(api: Api, path: list[str], request: Request, value: Any) -> None:
    """Notes a write that was done; `path` has the segments that were asked for. Messages that come are no change of the broker,
    nor are those that are looked at and stay; messages that are taken are.
    """
    status = value.status if isinstance(value, Answer) else 200
    if status >= 400 or (path[0] == "exchanges" and path[3:] == ["publish"]):
        return
    keys = KEYS.get(path[0], frozenset())
    details: Row = {}
    if keys:
        try:
            details = {key: given for key, given in request.json().items() if key in keys}
        except ApiError:  # no body that it would have needed
            details = {}
    if path[0] == "queues" and path[3:] == ["get"] and str(details.get("ackmode")).endswith("_requeue_true"):
        return
    if "if-empty" in request.query or "if-unused" in request.query:
        details |= {name: request.query[name] for name in ("if-empty", "if-unused") if name in request.query}
    via = "basic" if request.session is None else "session"
    shown = "/".join(quote(part, safe="") for part in path)
    api.broker.audit.note(
        request.user.name, request.peer, via, request.method, shown, status, {**details, **request.details}
    )


def show(api: Api, request: Request) -> Row:
    """The latest changes, the newest first: `limit` of them, before the one of the id `before`, of one `user`."""
    limit = integer(request.query.get("limit", SHOWN))
    before = integer(request.query["before"]) if "before" in request.query else None
    user = request.query.get("user")
    items: list[Row] = []
    for entry in api.broker.audit.entries(before):
        if len(items) >= limit:
            break
        if user in (None, entry.user):
            items.append(dataclasses.asdict(entry))
    return {"items": items, "total": api.broker.audit.total}
