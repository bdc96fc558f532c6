"""Names that somebody chose to do harm where they are shown: each comes back as it was given, in JSON that no browser takes for a
page, from every route that reads.
"""

from __future__ import annotations

import json

import pika
import pytest

from broker_process import BrokerProcess
from management.conftest import Http, quoted
from rabbitpy_broker.management.api.routes import ROUTES
from support import eventually

pytestmark = pytest.mark.own

HOSTILE = (
    "<img src=x onerror=alert(1)>", "\"'`\\{{1}}${2}", "\u202e\u05d0\u05d1 abc\u202c", "\U0001f407\u200d\U0001f525", "..",
    "a/../%2F?b#c", "x" * 255, "\u00df" * 127,
)  # fmt: skip
ENDLESS = ("tail", "events")


def path_of(segments: tuple[str, ...], values: dict[str, str]) -> str:
    return "/".join(quoted(values[part]) if part.startswith(":") else part for part in segments)


def make_all(http: Http, name: str) -> None:
    """A vhost, a user and whatever else has a name, with this one."""
    at = quoted(name)
    policy = {"pattern": "^none$", "definition": {"max-length": 5}}
    for path, body in (
        (f"vhosts/{at}", {"description": name}),
        (f"users/{at}", {"password": name, "tags": "administrator"}),
        (f"permissions/{at}/{at}", {"configure": ".*", "write": ".*", "read": ".*"}),
        (f"permissions/{at}/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        (f"exchanges/{at}/{at}", {"type": "topic"}),
        (f"topic-permissions/{at}/{at}", {"exchange": name, "write": ".*", "read": ".*"}),
        (f"queues/{at}/{at}", {"arguments": {"x-dead-letter-exchange": name, "x-dead-letter-routing-key": name}}),
        (f"policies/{at}/{at}", policy),
        (f"operator-policies/{at}/{at}", policy),
        (f"global-parameters/{at}", {"value": {name: name}}),
    ):
        reply = http("PUT", path, body)
        assert reply.status in (201, 204), (path, reply.status, reply.body)
    reply = http("POST", f"bindings/{at}/e/{at}/q/{at}", {"routing_key": name, "arguments": {name: name}})
    assert reply.status == 201, reply.body


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_only_a_name(module_broker: BrokerProcess, name: str) -> None:
    http = Http(module_broker.management)
    make_all(http, name)
    at = quoted(name)
    parameters = module_broker.parameters()
    parameters.virtual_host = name
    parameters.client_properties = {"connection_name": name}
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.basic_publish("", name, b"x", pika.BasicProperties(message_id=name, headers={name: name}))
        channel.basic_consume(name, lambda *_: None, consumer_tag=name)
        eventually(lambda: http.get(f"consumers/{at}"))
        (shown,) = http.get(f"vhosts/{at}/connections")
        (consumer,) = http.get(f"consumers/{at}")
        (binding,) = http.get(f"bindings/{at}/e/{at}/q/{at}")
        (message,) = http.get(f"queues/{at}/{at}/messages")["items"]
        assert shown["client_properties"]["connection_name"] == shown["user_provided_name"] == name
        assert (consumer["consumer_tag"], consumer["queue"]) == (name, {"name": name, "vhost": name})
        assert (binding["routing_key"], binding["arguments"]) == (name, {name: name})
        assert (message["properties"]["message_id"], message["properties"]["headers"]) == (name, {name: name})
        for kind in ("queues", "exchanges", "policies", "operator-policies"):
            assert http.get(f"{kind}/{at}/{at}")["name"] == name, kind
        for kind in ("users", "vhosts", "global-parameters"):
            assert http.get(f"{kind}/{at}")["name"] == name, kind
        values = {
            ":connection": shown["name"], ":channel": f"{shown['name']} (1)", ":kind": "q", ":props": binding["properties_key"],
            ":position": message["cursor"],
        }  # fmt: skip
        for route in ROUTES:
            if "GET" not in route.methods or route.segments[-1] in ENDLESS:
                continue
            variables = [part for part in route.segments if part.startswith(":")]
            for known in ({}, values):
                path = path_of(tuple(route.segments), {**dict.fromkeys(variables, name), **known})
                reply = http("GET", path)
                assert reply.status < 500 or path.startswith("health"), (path, reply.status, reply.body)
                assert reply.headers["X-Content-Type-Options"] == "nosniff", path
                assert not reply.body or reply.headers["Content-Type"].startswith("application/json"), path
                assert reply.status != 200 or json.loads(reply.body) is not None, path
    module_broker.assert_clean_log()
    for path in (f"vhosts/{at}", f"users/{at}", f"global-parameters/{at}"):
        assert http("DELETE", path).status == 204
