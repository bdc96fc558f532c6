"""Who may use which route: the whole table, with every kind of user."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess
from management.conftest import Http
from rabbitpy_broker.management.api import auth
from rabbitpy_broker.management.api.openapi import BODIES, document
from rabbitpy_broker.management.api.routes import ROUTES, Router

pytestmark = pytest.mark.own

ROOT = Path(__file__).parent.parent.parent
TAGS = {"none": "", "manager": "management", "maker": "policymaker", "monitor": "monitoring", "admin": "administrator"}
# Class of routes -> whom it lets pass, in a vhost that none of them may enter, and in one that all may.
OUTSIDE = {
    auth.management: {"manager", "maker", "monitor", "admin"},
    auth.monitor: {"monitor", "admin"},
    auth.administrator: {"admin"},
    auth.of_vhost: {"admin"},
    auth.of_vhost_or_monitor: {"monitor", "admin"},
    auth.inside_vhost: set(),
    auth.policymaker: {"admin"},
    auth.nobody: set(TAGS),
}
INSIDE = OUTSIDE | {
    auth.of_vhost: {"manager", "maker", "monitor", "admin"},
    auth.of_vhost_or_monitor: {"manager", "maker", "monitor", "admin"},
    auth.inside_vhost: {"manager", "maker", "monitor", "admin"},
    auth.policymaker: {"maker", "admin"},
}


def test_every_route_lets_pass_whom_it_should(own_broker: Callable[..., BrokerProcess]) -> None:
    http = Http(own_broker().management)
    for vhost in ("inside", "outside"):
        assert http("PUT", f"vhosts/{vhost}").status == 201
    for name, tag in TAGS.items():
        assert http("PUT", f"users/{name}", {"password": name, "tags": tag}).status == 201
        nothing = {"configure": "^$", "write": "^$", "read": "^$"}
        assert http("PUT", f"permissions/inside/{name}", nothing).status == 201
    for vhost, allowed in (("inside", INSIDE), ("outside", OUTSIDE)):
        for route in ROUTES:
            path = "/".join(
                vhost if part == ":vhost" else "absent" if part.startswith(":") else part for part in route.segments
            )
            has_vhost = ":vhost" in route.segments
            for method, endpoint in route.methods.items():
                if path in ("login", "session") or (method != "GET" and path in ("definitions", "all-configuration", "reset")):
                    continue
                passes = (allowed if has_vhost else INSIDE)[endpoint.check]
                for name in TAGS:
                    if (method, route.path, name) == ("DELETE", "vhosts/:vhost", "admin"):
                        continue  # it is still needed
                    reply = http(method, path, {} if method in ("PUT", "POST") else None, user=name)
                    told = f"{method} {path} as {name}: {reply.status} {reply.body!r}"
                    assert reply.status < 500 or path.startswith("health"), told
                    refused = reply.status == 401 and b"Access refused" not in reply.body and b"ACCESS_REFUSED" not in reply.body
                    if name in passes and path.startswith("connections/username"):
                        continue  # others' are refused by name
                    assert refused == (name not in passes), told
    assert http("GET", "whoami", user="").status == 401
    assert http("GET", "auth", user="").status == 200


def test_the_description_in_the_documents_is_that_of_the_table() -> None:
    """To write it anew: `python -m rabbitpy_broker.management.api.openapi > docs/management-openapi.json`."""
    assert json.loads((ROOT / "docs" / "management-openapi.json").read_text()) == document()
    writes = {(method, route.path) for route in ROUTES for method in route.methods if method != "GET"}
    assert set(BODIES) <= writes


def test_every_path_of_the_table_is_found() -> None:
    router = Router()
    for route in ROUTES:
        path = [part.removeprefix(":") for part in route.segments]
        assert all(router.find(path, method)[0] is route for method in route.methods)


MESSAGE = {"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
NEEDS: list[tuple[str, str, Any, set[str]]] = [  # in the vhost v, with its exchange x, bound to its queue q by the key old
    ("PUT", "queues/v/new", {}, {"configure"}),
    ("DELETE", "queues/v/q", None, {"configure"}),
    ("DELETE", "queues/v/q/contents", None, {"read"}),
    ("POST", "queues/v/q/get", GET, {"read"}),
    ("PUT", "exchanges/v/new", {"type": "direct"}, {"configure"}),
    ("DELETE", "exchanges/v/x", None, {"configure"}),
    ("POST", "exchanges/v/x/publish", MESSAGE, {"write"}),
    ("POST", "bindings/v/e/x/q/q", {"routing_key": "k"}, {"write", "read"}),
    ("DELETE", "bindings/v/e/x/q/q/old", None, {"write", "read"}),
    ("POST", "bindings/v/e/x/e/amq.fanout", {"routing_key": "k"}, {"write", "read"}),
    ("GET", "queues/v/q/messages", None, {"read"}),
    ("GET", "queues/v/q/messages/CURSOR", None, {"read"}),
    ("POST", "queues/v/q/messages/search", {"where": {}}, {"read"}),
    ("POST", "queues/v/q/messages/delete", {"seqs": ["CURSOR"]}, {"read"}),
    ("POST", "queues/v/q/messages/move", {"seqs": ["CURSOR"], "to": {"exchange": "x", "routing_key": "old"}}, {"write", "read"}),
    ("POST", "queues/v/q/messages/copy", {"seqs": ["CURSOR"], "to": {"queue": "q"}}, {"write", "read"}),
]  # fmt: skip


def test_what_is_changed_needs_the_permissions_that_amqp_asks_for(own_broker: Callable[..., BrokerProcess]) -> None:
    """Refused without each that it needs, though all others are there, and nothing has changed then; done with no other."""
    http = Http(own_broker().management)
    http("PUT", "vhosts/v")
    http("PUT", "users/u", {"password": "u", "tags": "management"})
    kinds = {"configure", "write", "read"}
    for method, path, body, needed in NEEDS:
        http("PUT", "queues/v/q", {})
        http("PUT", "exchanges/v/x", {"type": "topic"})
        http("POST", "bindings/v/e/x/q/q", {"routing_key": "old"})
        http("DELETE", "queues/v/q/contents")
        http("POST", "exchanges/v/amq.default/publish", {**MESSAGE, "routing_key": "q"})
        (cursor,) = cursors(http)
        text = json.dumps(body).replace("CURSOR", cursor).encode() if body is not None else None
        for given in (*(kinds - {kind} for kind in sorted(needed)), needed):
            http("PUT", "permissions/v/u", {kind: ".*" if kind in given else "^$" for kind in kinds})
            reply = http(method, path.replace("CURSOR", cursor), text, user="u")
            told = f"{method} {path} with {sorted(given)}: {reply.status} {reply.body!r}"
            assert (reply.status < 300) == (given == needed), told
            if given != needed:
                assert reply.status == 401 or b"ACCESS_REFUSED" in reply.body, told
                assert cursors(http) == [cursor], told
                assert "old" in {one["routing_key"] for one in http.get("queues/v/q/bindings")}, told


def cursors(http: Http) -> list[str]:
    return [one["cursor"] for one in http.get("queues/v/q/messages")["items"]]
