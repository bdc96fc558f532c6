"""What Terraform's provider cyrilgdn/rabbitmq sends for each of its resources: create, read, update, delete, read what is gone.

It speaks through the Go client rabbit-hole: a body has the fields of a Go structure, also those that are empty. What it reads
back must be what it wrote, or each plan has a difference.
"""

from __future__ import annotations

import urllib.parse
from typing import Any

import pytest

from broker_process import BrokerProcess
from management.conftest import Http

pytestmark = pytest.mark.own

VHOST = "a/b"


def quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


class Terraform:
    """The provider's requests. Each write must be answered with a 2xx."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def write(self, method: str, *path: str, body: Any = None) -> Any:
        reply = self._http(method, "/".join(map(quoted, path)), body)
        assert 200 <= reply.status < 300, (method, path, reply.status, reply.body)
        return reply

    def read(self, *path: str) -> Any:
        return self._http.get("/".join(map(quoted, path)))

    def is_gone(self, *path: str) -> bool:
        """As `checkDeleted` finds out: by the status and the text. A second DELETE has to be a 404, too."""
        target = "/".join(map(quoted, path))
        reply = self._http("GET", target)
        assert (reply.status, reply.json) == (404, {"error": "Object Not Found", "reason": "Not Found"})
        return self._http("DELETE", target).status == 404


@pytest.fixture
def terraform(module_broker: BrokerProcess) -> Any:
    terraform = Terraform(Http(module_broker.management))
    terraform.write("PUT", "vhosts", VHOST, body={"description": "", "tags": [], "default_queue_type": "", "tracing": False})
    yield terraform
    terraform.write("DELETE", "vhosts", VHOST)


def test_a_vhost_and_its_limits(terraform: Terraform) -> None:
    settings = {"description": "of one team", "tags": None, "default_queue_type": "quorum", "tracing": True}
    terraform.write("PUT", "vhosts", "made here", body=settings)
    found = terraform.read("vhosts", "made here")
    assert {name: found[name] for name in ("description", "default_queue_type", "tracing")} == {
        name: settings[name] for name in ("description", "default_queue_type", "tracing")
    }
    assert terraform.read("vhost-limits", "made here") == []
    for name, limit in (("max-connections", 10), ("max-queues", 20)):
        terraform.write("PUT", "vhost-limits", "made here", name, body={"value": limit})
    (limits,) = terraform.read("vhost-limits", "made here")
    assert limits == {"vhost": "made here", "value": {"max-connections": 10, "max-queues": 20}}
    for name in ("max-connections", "max-queues"):  # an update takes both away first
        terraform.write("DELETE", "vhost-limits", "made here", name)
    terraform.write("PUT", "vhost-limits", "made here", "max-queues", body={"value": -1})
    terraform.write("PUT", "vhosts", "made here", body={**settings, "description": "", "tracing": False})
    found = terraform.read("vhosts", "made here")
    assert (found["description"], found["tracing"]) == ("", False)
    terraform.write("DELETE", "vhosts", "made here")
    assert terraform.is_gone("vhosts", "made here")


def test_a_user_and_what_it_may_do(terraform: Terraform) -> None:
    for tags in ("management,policymaker", ["management", "policymaker"]):  # of older and of newer clients
        terraform.write("PUT", "users", "u@x y", body={"name": "", "tags": tags, "password": "p"})
        assert terraform.read("users", "u@x y")["tags"] == ["management", "policymaker"]
    terraform.write("PUT", "users", "u@x y", body={"name": "", "tags": [], "password": "p"})
    assert terraform.read("users", "u@x y")["tags"] == []
    permission = {"configure": "^a", "write": ".*", "read": ""}
    terraform.write("PUT", "permissions", VHOST, "u@x y", body=permission)
    assert terraform.read("permissions", VHOST, "u@x y") == {"user": "u@x y", "vhost": VHOST, **permission}
    for exchange in ("amq.topic", "none such"):
        terraform.write("PUT", "topic-permissions", VHOST, "u@x y", body={"exchange": exchange, "write": "a", "read": "b"})
    assert {one["exchange"] for one in terraform.read("topic-permissions", VHOST, "u@x y")} == {"amq.topic", "none such"}
    terraform.write("DELETE", "topic-permissions", VHOST, "u@x y")
    assert terraform.is_gone("topic-permissions", VHOST, "u@x y")
    terraform.write("DELETE", "permissions", VHOST, "u@x y")
    assert terraform.is_gone("permissions", VHOST, "u@x y")
    terraform.write("DELETE", "users", "u@x y")
    assert terraform.is_gone("users", "u@x y")


def test_an_exchange_and_a_queue(terraform: Terraform) -> None:
    exchange = {"type": "topic", "durable": True, "auto_delete": False, "arguments": {"alternate-exchange": "amq.fanout"}}
    queue = {"type": "", "durable": True, "arguments": {"x-message-ttl": 5000, "x-queue-type": "quorum"}}
    for kind, body in (("exchanges", exchange), ("queues", queue)):
        terraform.write("PUT", kind, VHOST, "of this", body=body)
        found = terraform.read(kind, VHOST, "of this")
        assert (found["durable"], found["auto_delete"], found["arguments"]) == (True, False, body["arguments"])
        terraform.write("DELETE", kind, VHOST, "of this")
        assert terraform.is_gone(kind, VHOST, "of this")
    terraform.write("PUT", "queues", VHOST, "plain", body={"type": "", "durable": False, "arguments": None})
    assert terraform.read("queues", VHOST, "plain")["arguments"] == {}


@pytest.mark.parametrize("kind", ["queue", "exchange"])
@pytest.mark.parametrize("arguments", [{}, {"x-match": "all", "tenant": 7}], ids=["plain", "headers"])
@pytest.mark.parametrize("routing_key", ["", "a.b", "#", "a/b c+d"])
def test_a_binding_is_found_again(terraform: Terraform, kind: str, arguments: dict[str, Any], routing_key: str) -> None:
    source = "amq.headers" if arguments else "amq.topic"
    terraform.write("PUT", "queues", VHOST, "to", body={"type": "", "durable": True, "arguments": {}})
    terraform.write("PUT", "exchanges", VHOST, "to", body={"type": "fanout", "durable": True})
    between = ("bindings", VHOST, "e", source, kind[0], "to")
    body = {
        "source": source, "vhost": "", "destination": "to", "destination_type": kind, "routing_key": routing_key,
        "arguments": arguments, "properties_key": "",
    }  # fmt: skip
    reply = terraform.write("POST", *between, body=body)
    key = urllib.parse.unquote(reply.headers["Location"].rpartition("/")[2])
    (found,) = (one for one in terraform.read(*between) if one["properties_key"] == key)
    assert {name: found[name] for name in ("source", "destination", "destination_type", "routing_key", "arguments")} == {
        name: body[name] for name in ("source", "destination", "destination_type", "routing_key", "arguments")
    }
    terraform.write("DELETE", *between, key)
    assert [one for one in terraform.read(*between) if one["source"]] == []
    assert terraform.is_gone(*between, key)


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_a_policy(terraform: Terraform, kind: str) -> None:
    body = {
        "vhost": "", "pattern": "^of", "apply-to": "queues", "name": "", "priority": 3,
        "definition": {"max-length": 10, "expires": 60000},
    }  # fmt: skip
    for pattern in ("^of", "^from"):  # an update is a PUT of everything
        terraform.write("PUT", kind, VHOST, "mine & yours", body={**body, "pattern": pattern})
        found = terraform.read(kind, VHOST, "mine & yours")
        assert found == {**body, "name": "mine & yours", "vhost": VHOST, "pattern": pattern}
    terraform.write("DELETE", kind, VHOST, "mine & yours")
    assert terraform.is_gone(kind, VHOST, "mine & yours")


@pytest.mark.parametrize("component", ["shovel", "federation-upstream"])
def test_a_plugin_that_is_not_here_is_refused(terraform: Terraform, module_broker: BrokerProcess, component: str) -> None:
    body = {"value": {"src-uri": "amqp://", "dest-uri": "amqp://"}}
    reply = Http(module_broker.management)("PUT", f"parameters/{component}/{quoted(VHOST)}/s", body)
    assert (reply.status, reply.json["error"]) == (400, "bad_request")
    assert component in str(reply.json["reason"])
