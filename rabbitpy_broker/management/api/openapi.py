"""The API described in OpenAPI 3.1, made from the table of routes; `docs/management-openapi.json` is a copy."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from rabbitpy_broker.management.api import auth
from rabbitpy_broker.management.api.routes import ROUTES, Endpoint, Route
from rabbitpy_broker.protocol.handshake import RABBITMQ_VERSION

WHO: Final[dict[auth.Check, str]] = {
    auth.nobody: "anybody, without a login",
    auth.management: "users with any of the four tags",
    auth.monitor: "users with the tag monitoring or administrator",
    auth.administrator: "users with the tag administrator",
    auth.of_vhost: "users that may enter the vhost, and administrators",
    auth.of_vhost_or_monitor: "users that may enter the vhost, and who monitors",
    auth.inside_vhost: "users that may enter the vhost",
    auth.policymaker: "policymakers in their vhosts, and administrators",
}
TEXT: Final = {"type": "string"}
WHOLE: Final = {"type": "integer"}
FLAG: Final = {"type": ["boolean", "string"]}
TABLE: Final = {"type": "object"}
ANY: Final[dict[str, Any]] = {}
LIST: Final = {"type": "array"}
PATTERNS: Final = {"configure": TEXT, "write": TEXT, "read": TEXT}
POLICY: Final = {
    "pattern": TEXT,
    "definition": TABLE,
    "priority": WHOLE,
    "apply-to": {"enum": ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"]},
}
CHOSEN: Final[dict[str, Any]] = {  # either seqs, or filter and up_to_seq
    "seqs": LIST, "filter": TABLE, "up_to_seq": TEXT, "after": TEXT, "timeout_ms": WHOLE, "dry_run": FLAG,
}  # fmt: skip
ACK_MODES: Final = ["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]

# (method, path) -> the keys of its body, and which of them must be there.
BODIES: Final[dict[tuple[str, str], tuple[dict[str, Any], tuple[str, ...]]]] = {
    ("PUT", "cluster-name"): ({"name": TEXT}, ("name",)),
    ("POST", "definitions"): ({}, ()),
    ("POST", "all-configuration"): ({}, ()),
    ("POST", "definitions/:vhost"): ({}, ()),
    ("POST", "definitions/diff"): ({}, ()),
    ("POST", "definitions/diff/:vhost"): ({}, ()),
    ("POST", "policies/preview"): (
        {"vhost": TEXT, "name": TEXT, **POLICY, "operator": FLAG, "delete": FLAG},
        ("vhost",),
    ),
    ("POST", "permissions/test"): (
        {"user": TEXT, "vhost": TEXT, "name": TEXT, "kind": {"enum": ["queue", "exchange"]}, "routing_key": TEXT},
        ("user", "vhost", "name"),
    ),
    ("PUT", "parameters/:component/:vhost/:name"): ({"value": TABLE}, ("value",)),
    ("PUT", "global-parameters/:name"): ({"value": ANY}, ("value",)),
    ("PUT", "policies/:vhost/:name"): (POLICY, ("pattern", "definition")),
    ("PUT", "operator-policies/:vhost/:name"): (POLICY, ("pattern", "definition")),
    ("PUT", "vhost-limits/:vhost/:name"): ({"value": WHOLE}, ("value",)),
    ("PUT", "user-limits/:user/:name"): ({"value": WHOLE}, ("value",)),
    ("PUT", "exchanges/:vhost/:exchange"): (
        {"type": TEXT, "durable": FLAG, "auto_delete": FLAG, "internal": FLAG, "arguments": TABLE},
        (),
    ),
    ("POST", "exchanges/:vhost/:exchange/publish"): (
        {"properties": TABLE, "routing_key": TEXT, "payload": TEXT, "payload_encoding": {"enum": ["string", "base64"]}},
        ("properties", "routing_key", "payload", "payload_encoding"),
    ),
    ("PUT", "queues/:vhost/:queue"): ({"durable": FLAG, "auto_delete": FLAG, "arguments": TABLE}, ()),
    ("POST", "queues/:vhost/:queue/get"): (
        {"count": WHOLE, "ackmode": {"enum": ACK_MODES}, "encoding": {"enum": ["auto", "base64"]}, "truncate": WHOLE},
        ("count", "ackmode", "encoding"),
    ),
    ("POST", "queues/:vhost/:queue/messages/search"): (
        {
            "where": TABLE, "limit": WHOLE, "max_scan": WHOLE, "timeout_ms": WHOLE, "after": TEXT,
            "state": {"enum": ["ready", "unacked", "all"]}, "order": {"enum": ["head", "tail"]},
        },
        (),
    ),
    ("POST", "queues/:vhost/:queue/messages/delete"): (CHOSEN, ()),
    ("POST", "queues/:vhost/:queue/messages/move"): ({**CHOSEN, "to": TABLE, "mark": FLAG}, ("to",)),
    ("POST", "queues/:vhost/:queue/messages/copy"): ({**CHOSEN, "to": TABLE, "mark": FLAG}, ("to",)),
    ("POST", "queues/:vhost/:queue/messages/retry"): (
        {**CHOSEN, "by": {"enum": ["queue", "exchange"]}, "death": {"enum": ["last", "first"]}},
        (),
    ),
    ("POST", "queues/:vhost/:queue/messages/:position/replace"): (
        {
            "properties": TABLE, "payload": TEXT, "payload_encoding": {"enum": ["string", "base64"]}, "exchange": TEXT,
            "routing_key": TEXT, "remove": FLAG,
        },
        ("properties", "payload", "payload_encoding"),
    ),
    ("POST", "route"): (
        {
            "vhost": TEXT, "exchange": TEXT, "routing_key": TEXT, "properties": TABLE, "headers": TABLE, "payload_bytes": WHOLE,
            "mandatory": FLAG,
        },
        (),
    ),
    ("POST", "messages/:vhost/copies"): (
        {"message_id": TEXT, "correlation_id": TEXT, "limit": WHOLE, "max_scan_per_queue": WHOLE, "timeout_ms": WHOLE},
        (),
    ),
    ("POST", "queues/:vhost/:queue/actions"): ({"action": {"enum": ["sync", "cancel_sync"]}}, ("action",)),
    ("POST", "bindings/:vhost/e/:source/:kind/:destination"): ({"routing_key": TEXT, "arguments": TABLE}, ()),
    ("PUT", "vhosts/:vhost"): (
        {"description": TEXT, "tags": {"type": ["string", "array"]}, "tracing": FLAG, "default_queue_type": TEXT},
        (),
    ),
    ("PUT", "vhosts/:vhost/worker"): ({"worker": WHOLE}, ("worker",)),
    ("PUT", "vhosts/:vhost/owner"): ({"node": TEXT}, ()),
    ("POST", "vhosts/:vhost/replicas/add"): ({"node": TEXT}, ("node",)),
    ("DELETE", "vhosts/:vhost/replicas/delete"): ({"node": TEXT}, ("node",)),
    ("POST", "vhosts/:vhost/backup"): ({"name": TEXT}, ("name",)),
    ("POST", "vhosts/:vhost/restore"): ({"name": TEXT, "replicas": WHOLE}, ("name",)),
    ("PUT", "nodes/:node/maintenance"): ({"force": FLAG}, ()),
    ("POST", "session"): ({"username": TEXT, "password": TEXT}, ("username", "password")),
    ("POST", "users/bulk-delete"): ({"users": LIST}, ("users",)),
    ("PUT", "users/:user"): (
        {
            "password": TEXT,
            "password_hash": TEXT,
            "hashing_algorithm": TEXT,
            "tags": {"type": ["string", "array"]},
            "permissions": TABLE,
        },
        ("tags",),
    ),
    ("PUT", "permissions/:vhost/:user"): (PATTERNS, tuple(PATTERNS)),
    ("PUT", "topic-permissions/:vhost/:user"): (
        {"exchange": TEXT, "write": TEXT, "read": TEXT},
        ("exchange", "write", "read"),
    ),
}
QUERIES: Final = ("columns", "sort", "sort_reverse", "page", "page_size", "name", "use_regex", "disable_stats")


def document() -> dict[str, Any]:
    """The whole document."""
    refusal = {"type": "object", "properties": {"error": TEXT, "reason": ANY}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rabbitpy-broker's management API",
            "version": RABBITMQ_VERSION,
            "description": "RabbitMQ's management HTTP API. Bodies are JSON, whatever the content type says.",
        },
        "servers": [{"url": "/api"}],
        "security": [{"basic": []}, {"token": []}],
        "paths": {_path(route): _operations(route) for route in ROUTES},
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
            "parameters": {name: {"name": name, "in": "query", "schema": TEXT} for name in QUERIES},
            "responses": {
                "Done": {"description": "done, or what was asked for"},
                "Refused": {"description": "refused", "content": {"application/json": {"schema": refusal}}},
                "Bare": {"description": "refused, perhaps without a body"},
                "NotNow": {"description": "a failed check, or what cannot be done now"},
            },
        },
    }


def _path(route: Route) -> str:
    return "/" + "/".join(f"{{{part[1:]}}}" if part.startswith(":") else part for part in route.segments)


def _operations(route: Route) -> dict[str, Any]:
    variables = [part[1:] for part in route.segments if part.startswith(":")]
    found: dict[str, Any] = {method.lower(): _operation(route, method, route.methods[method]) for method in route.methods}
    if variables:
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in variables]
    return found


def _operation(route: Route, method: str, endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "description": f"For {WHO[endpoint.check]}.",
        "tags": [route.segments[0]],
        "responses": {
            "2XX": {"$ref": "#/components/responses/Done"},
            **{status: {"$ref": "#/components/responses/Bare"} for status in ("400", "401", "405", "406")},
            "4XX": {"$ref": "#/components/responses/Refused"},
            "503": {"$ref": "#/components/responses/NotNow"},
        },
    }
    if endpoint.check is auth.nobody:
        operation["security"] = []
    if method == "GET":
        operation["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in QUERIES]
    body = BODIES.get((method, route.path))
    if body is not None:
        properties, required = body
        schema = {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}
        operation["requestBody"] = {"required": bool(required), "content": {"application/json": {"schema": schema}}}
    return operation


def text() -> str:
    """The document with a line for each path."""
    found = document()
    paths = ",\n".join(f"{json.dumps(path)}: {json.dumps(operations)}" for path, operations in found["paths"].items())
    rest = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items() if key != "paths")
    return f'{{{rest},\n"paths": {{\n{paths}\n}}}}\n'


if __name__ == "__main__":
    sys.stdout.write(text())
