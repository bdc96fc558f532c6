"""Who may use which route: the whole table, with every kind of user."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

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
