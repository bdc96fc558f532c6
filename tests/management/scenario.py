"""Several hundred requests to a management API, and what of each answer is compared: a broker's fingerprint.

Sent to RabbitMQ 3.10.8 they gave `rabbitmq-3.10.8.json`; `test_recorded.py` sends the same to this broker. Compared are the
status, the headers that clients look at, the `error` of a refusal, and the shape of the body: which keys, and of which types
their values are. To record anew: `python tests/management/scenario.py http://HOST:PORT amqp://HOST:PORT FILE`, on a broker that
has nothing but its defaults.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pika

SAMPLES = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5&data_rates_age=60&data_rates_incr=5"
NODE = "%NODE%"  # stands for the node's name, in paths and in answers
HEADERS = ("www-authenticate", "content-type", "location", "access-control-allow-origin")


class Call(NamedTuple):
    """One request. `user` is also its password, guest's too; "" sends none."""

    method: str
    path: str
    body: Any = None
    user: str = "guest"
    headers: Mapping[str, str] = MappingProxyType({})

    def name(self) -> str:
        body = "" if self.body is None else " " + (self.body if isinstance(self.body, str) else json.dumps(self.body))
        headers = "".join(f" [{key}: {value}]" for key, value in sorted(self.headers.items()))
        who = "" if self.user == "guest" else f" as {self.user or 'nobody'}"
        return f"{self.method} {self.path}{body[:200]}{headers}{who}"


def get(*paths: str, user: str = "guest") -> Iterator[Call]:
    for path in paths:
        yield Call("GET", path, user=user)


LISTS = (
    "/vhosts", "/users", "/permissions", "/topic-permissions", "/exchanges", "/queues", "/bindings", "/connections", "/channels",
    "/consumers", "/nodes", "/policies", "/operator-policies", "/parameters", "/global-parameters", "/vhost-limits",
    "/user-limits", "/overview", "/whoami", "/cluster-name", "/extensions", "/feature-flags", "/definitions",
    "/users/without-permissions", "/health/checks/alarms", "/health/checks/local-alarms", "/health/checks/virtual-hosts",
    "/health/checks/node-is-mirror-sync-critical", "/health/checks/node-is-quorum-critical", "/healthchecks/node",
    f"/auth/attempts/{NODE}", f"/nodes/{NODE}", f"/nodes/{NODE}/memory", "/auth",
)
OF_VHOST = (
    "/vhosts/{v}", "/vhosts/{v}/permissions", "/vhosts/{v}/topic-permissions", "/vhosts/{v}/connections", "/vhosts/{v}/channels",
    "/exchanges/{v}", "/queues/{v}", "/bindings/{v}", "/consumers/{v}", "/policies/{v}", "/operator-policies/{v}",
    "/vhost-limits/{v}", "/parameters/shovel/{v}", "/parameters/operator_policy/{v}", "/aliveness-test/{v}", "/definitions/{v}",
)  # fmt: skip
ROLES = ("nobody", "manager", "maker", "monitor", "admin", "stranger")


def set_up() -> Iterator[Call]:
    """Users of every kind, a vhost, and something in it."""
    yield Call("PUT", "/vhosts/one", {"description": "first", "tags": "a,b", "tracing": False})
    yield Call("PUT", "/vhosts/one", {"description": "again"})
    yield Call("PUT", "/vhosts/two")
    yield Call("PUT", "/vhosts/empty", "")
    for name, tags in (("nobody", ""), ("manager", "management"), ("maker", "policymaker"), ("monitor", "monitoring"),
                       ("admin", "administrator"), ("stranger", "management")):  # fmt: skip
        yield Call("PUT", f"/users/{name}", {"password": name, "tags": tags})
    yield Call("PUT", "/users/manager", {"password": "manager", "tags": ["management"]})
    for name in ("nobody", "manager", "maker", "monitor", "admin"):
        yield Call("PUT", f"/permissions/one/{name}", {"configure": "^(?!secret)", "write": "^(?!secret)", "read": "^(?!secret)"})
    yield Call("PUT", "/permissions/one/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    yield Call("PUT", "/permissions/one/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    yield Call("PUT", "/topic-permissions/one/manager", {"exchange": "amq.topic", "write": "^a", "read": "^a"})


def bad_users() -> Iterator[Call]:
    put = "PUT"
    yield Call(put, "/users/bad", {"password": "x"})
    yield Call(put, "/users/bad", {"tags": "management"})
    yield Call(put, "/users/bad2", {"tags": "management", "password_hash": ""})
    yield Call(put, "/users/bad3", {"tags": "", "password": "a", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"})
    yield Call(put, "/users/bad4", {"tags": "", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"})
    yield Call(put, "/users/bad5", {"tags": "", "password_hash": "///not base64"})
    yield Call(put, "/users/bad6", {"tags": "a, b ,c", "password": "x"})
    yield Call("GET", "/users/bad6")
    yield Call(put, "/users/bad7", {"tags": ["x", "y"], "password": "x", "hashing_algorithm": "rabbit_password_hashing_sha512"})
    yield Call("GET", "/users/bad7")
    yield Call(put, "/users/bad8", {"administrator": "true", "password": "x"})
    yield Call(put, "/users/bad9", {"tags": "", "password": "x", "permissions": {"one": {"configure": "", "write": "", "read": ".*"}}})
    yield Call("GET", "/users/bad9/permissions")
    yield Call("GET", "/users/bad9/topic-permissions")
    yield Call("GET", "/users/none")
    yield Call("GET", "/users/none/permissions")
    yield Call("GET", "/users/none/topic-permissions")
    yield Call("DELETE", "/users/none")
    yield Call("DELETE", "/users/bad6")
    yield Call("DELETE", "/users/bad6")
    yield Call("POST", "/users/bulk-delete", {"users": ["bad2", "bad7"]})
    yield Call("POST", "/users/bulk-delete", {})
    yield Call("POST", "/users/bulk-delete", {"users": ["no such user"]})
    yield Call("DELETE", "/users/bad2")
    for name in ("bad", "bad4", "bad8", "bad9"):
        yield Call("DELETE", f"/users/{name}")


def permissions() -> Iterator[Call]:
    put, may = "PUT", {"configure": ".*", "write": ".*", "read": ".*"}
    yield Call(put, "/permissions/none/guest", may)
    yield Call(put, "/permissions/one/nouser", may)
    yield Call(put, "/permissions/one/guest", {"configure": ".*", "write": ".*"})
    yield Call(put, "/permissions/one/guest", {**may, "read": "*(bad"})
    yield Call(put, "/permissions/one/guest", {"username": "guest", "vhost": "one", **may})
    yield from get("/permissions/one/guest", "/permissions/one/stranger", "/permissions/none/guest", "/permissions/one/nouser")
    yield Call(put, "/permissions/two/manager", may)
    yield Call("DELETE", "/permissions/two/manager")
    yield Call("DELETE", "/permissions/two/manager")
    yield Call("DELETE", "/permissions/none/manager")
    topic = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
    yield Call(put, "/topic-permissions/one/guest", topic)
    yield Call(put, "/topic-permissions/one/guest", topic)
    yield Call(put, "/topic-permissions/one/guest", {"write": "", "read": ""})
    yield Call(put, "/topic-permissions/one/guest", {**topic, "exchange": "other"})
    yield Call(put, "/topic-permissions/one/guest", {**topic, "write": "*("})
    yield Call(put, "/topic-permissions/one/nouser", topic)
    yield Call(put, "/topic-permissions/none/guest", topic)
    yield from get("/topic-permissions", "/topic-permissions/one/guest", "/topic-permissions/one/stranger", "/topic-permissions/none/guest")
    yield Call("GET", "/topic-permissions/one/guest/amq.topic")
    yield Call("DELETE", "/topic-permissions/one/guest/amq.topic")
    yield Call("DELETE", "/topic-permissions/one/guest")
    yield Call("DELETE", "/topic-permissions/one/guest")
    yield from get("/users/guest/permissions", "/users/guest/topic-permissions", "/users/manager/topic-permissions")


def queues() -> Iterator[Call]:
    put, delete = "PUT", "DELETE"
    yield Call(put, "/queues/one/q", {"durable": True})
    yield Call(put, "/queues/one/q", {"durable": "true", "auto_delete": "false", "arguments": {}})
    yield Call(put, "/queues/one/q", {"durable": False})
    yield Call(put, "/queues/one/q2", {"auto_delete": False, "arguments": {"x-max-length": 5, "x-message-ttl": 60000}})
    yield Call(put, "/queues/one/q2", {"auto_delete": False, "arguments": {"x-max-length": 6, "x-message-ttl": 60000}})
    yield Call(put, "/queues/one/q3", {"durable": "troo"})
    yield Call(put, "/queues/one/q3", {"arguments": {"x-max-length": "five"}})
    yield Call(put, "/queues/one/q3", {"arguments": {"x-expires": -5}})
    yield Call(put, "/queues/one/q3", {"arguments": []})
    yield Call(put, "/queues/one/q3", {"arguments": "x"})
    yield Call(put, "/queues/one/q3", {"arguments": {"list": [1, "a", None, {"b": True, "c": 1.5}]}})
    yield Call("GET", "/queues/one/q3?columns=name,arguments")
    yield Call(put, "/queues/one/q4", "{not json")
    yield Call(put, "/queues/one/q4", '"{}"')
    yield Call(put, "/queues/one/q4", "[]")
    yield Call(put, "/queues/one/q4", "null")
    yield Call(put, "/queues/one/q5", "")
    yield Call(put, "/queues/one/q6", "{}", headers={"Content-Type": "text/plain"})
    yield Call(put, "/queues/one/q7", "{}", headers={"Content-Type": "application/x-www-form-urlencoded"})
    yield Call(put, "/queues/one/amq.mine", {})
    yield Call(put, "/queues/none/q", {})
    yield Call(put, "/queues/one/trailing/", {})
    yield Call(put, "/queues/%2F/slash%2Fin%20it", {})
    yield Call(put, "/queues/%2F/%C3%A9%7B%7D+%25", {})
    yield from get("/queues/%2F/slash%2Fin%20it", "/queues/%2F/%C3%A9%7B%7D+%25", "/queues//x", "/queues/%2f/slash%2fin%20it")
    yield from get("/queues/one/q", "/queues/one/none", "/queues/none/q", "/queues/none", "/queues/one/q/bindings", "/queues/one/none/bindings")
    yield from get("/queues/one/q?columns=name,messages_details.rate,arguments.x", "/queues/one/q/", f"/queues/one/q?{SAMPLES}")
    yield Call("POST", "/queues/one/q", {})
    yield Call("POST", "/queues/one", {})
    yield Call("PUT", "/queues", {})
    yield Call("DELETE", "/queues/one")
    yield Call("POST", "/queues/one/q/actions", {"action": "sync"})
    yield Call("POST", "/queues/one/q/actions", {"action": "cancel_sync"})
    yield Call("POST", "/queues/one/q/actions", {"action": "change_colour"})
    yield Call("POST", "/queues/one/q/actions", {})
    yield Call("POST", "/queues/one/none/actions", {"action": "sync"})
    yield Call("POST", "/queues/one/q/actions", {"action": "sync"}, user="manager")
    yield Call(delete, "/queues/one/none")
    yield Call(delete, "/queues/none/q")
    yield Call(delete, "/queues/one/q3")
    yield Call(delete, "/queues/one/q3")
    yield Call(delete, "/queues/one/none/contents")
    yield Call(delete, "/queues/one/q/contents")
    yield Call("GET", "/queues/one/q/contents")
    # as others
    yield Call(put, "/queues/one/secret", {}, user="manager")
    yield Call(put, "/queues/one/secret", {}, user="stranger")
    yield Call(put, "/queues/one/secret", {}, user="nobody")
    yield Call(put, "/queues/one/theirs", {"durable": True}, user="manager")
    yield Call(put, "/queues/one/letters", {"arguments": {"x-dead-letter-exchange": "secret"}}, user="manager")
    yield Call("GET", "/queues/one/q", user="stranger")
    yield Call(delete, "/queues/one/theirs", user="stranger")
    yield Call(delete, "/queues/one/theirs?if-empty=true&if-unused=true", user="manager")


def exchanges() -> Iterator[Call]:
    put, delete = "PUT", "DELETE"
    yield Call(put, "/exchanges/one/x", {"type": "topic"})
    yield Call(put, "/exchanges/one/x", {"type": "topic"})
    yield Call(put, "/exchanges/one/x", {"type": "direct"})
    yield Call(put, "/exchanges/one/x2", {"type": "fanout", "auto_delete": "false", "durable": "true", "internal": "true", "arguments": {}})
    yield Call(put, "/exchanges/one/x3", {"type": "fanout", "arguments": {"alternate-exchange": "x2"}})
    yield Call(put, "/exchanges/one/x4", {})
    yield Call(put, "/exchanges/one/x4", {"type": "no such type"})
    yield Call(put, "/exchanges/one/x4", {"type": "fanout", "durable": "maybe"})
    yield Call(put, "/exchanges/one/amq.mine", {"type": "fanout"})
    yield Call(put, "/exchanges/one/amq.default", {"type": "direct"})
    yield Call(put, "/exchanges/one/amq.direct", {"type": "direct", "durable": True})
    yield Call(put, "/exchanges/none/x", {"type": "fanout"})
    yield from get("/exchanges/one/x", "/exchanges/one/amq.default", "/exchanges/one/none", "/exchanges/none/x", "/exchanges/none")
    yield from get("/exchanges/one/amq.default/bindings/source", "/exchanges/one/amq.default/bindings/destination")
    yield from get("/exchanges/one/x/bindings/source", "/exchanges/one/x/bindings/destination", "/exchanges/one/none/bindings/source")
    yield from get("/exchanges/one/x/bindings/elsewhere", f"/exchanges/one/x?{SAMPLES}", f"/exchanges?{SAMPLES}")
    yield Call(delete, "/exchanges/one/amq.direct")
    yield Call(delete, "/exchanges/one/amq.default")
    yield Call(delete, "/exchanges/one/none")
    yield Call(put, "/exchanges/one/secret", {"type": "fanout"}, user="manager")
    yield Call(put, "/exchanges/one/mine", {"type": "fanout"}, user="manager")
    yield Call(delete, "/exchanges/one/mine", user="stranger")
    yield Call(delete, "/exchanges/one/mine?if-unused=true", user="manager")
    yield Call(put, "/exchanges/one/odd", {"type": "fanout", "durable": 1})


def bindings() -> Iterator[Call]:
    q, e = "/bindings/one/e/x/q/q", "/bindings/one/e/x/e/x2"
    yield Call("GET", q)
    yield Call("POST", q, {"routing_key": "a.b", "arguments": {}})
    yield Call("POST", q, {"routing_key": "a.b"})
    yield Call("POST", q, {})
    yield Call("POST", q, {"routing_key": "a/b c", "arguments": {}})
    yield Call("POST", q, {"routing_key": "with", "arguments": {"x": 1}})
    yield Call("POST", q, "")
    yield Call("POST", q, {"routing_key": 5})
    yield Call("POST", q, {"routing_key": "with", "arguments": "text"})
    yield Call("POST", e, {"routing_key": "k", "arguments": {}})
    yield Call("GET", e)
    yield Call("GET", q)
    yield Call("POST", "/bindings/one/e/none/q/q", {"routing_key": "k"})
    yield Call("POST", "/bindings/one/e/x/q/none", {"routing_key": "k"})
    yield Call("POST", "/bindings/none/e/x/q/q", {"routing_key": "k"})
    yield Call("POST", "/bindings/one/e/amq.default/q/q", {"routing_key": "k"})
    yield Call("POST", "/bindings/one/e/secret/q/q", {"routing_key": "k"}, user="manager")
    yield Call("POST", q, {"routing_key": "k"}, user="stranger")
    yield Call("POST", "/bindings/one/e/amq.topic/q/q", {"routing_key": "bad.topic"}, user="manager")
    yield from get("/bindings/one/e/x/q/none", "/bindings/one/e/none/q/q", "/bindings/none/e/x/q/q", "/bindings/one/x/x/q/q", "/bindings/none")
    yield from get(q + "/a.b", q + "/~", q + "/none", q + "/a%252Fb%2520c", q + "/a%2Fb%20c", e + "/k", "/bindings/one/e/x/q/none/k")
    yield from get("/bindings/one/e/amq.default/q/q", "/bindings/one/e/amq.default/q/q/q", "/queues/one/q/bindings", "/exchanges/one/x/bindings/source")
    yield from get("/exchanges/one/x2/bindings/destination", "/bindings?columns=properties_key,source", "/bindings/one?sort=routing_key")
    yield Call("DELETE", q + "/none")
    yield Call("DELETE", q + "/a.b", user="stranger")
    yield Call("DELETE", q + "/a.b")
    yield Call("DELETE", q + "/a.b")
    yield Call("DELETE", q + "/~")
    yield Call("DELETE", e + "/k")
    yield Call("DELETE", "/bindings/one/e/amq.default/q/q/q")
    yield Call("PUT", q + "/k", {})


def messages() -> Iterator[Call]:
    publish, take = "/exchanges/one/amq.default/publish", "/queues/one/m/get"
    whole = {"properties": {}, "routing_key": "m", "payload": "hello", "payload_encoding": "string"}
    get_it = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    yield Call("PUT", "/queues/one/m", {"durable": True})
    yield Call("POST", publish, whole)
    yield Call("POST", publish, {**whole, "routing_key": "nowhere"})
    yield Call("POST", publish, {**whole, "payload": "aGVsbG8=", "payload_encoding": "base64"})
    yield Call("POST", publish, {**whole, "payload": "/w==", "payload_encoding": "base64"})
    yield Call("POST", publish, {**whole, "payload": "!", "payload_encoding": "base64"})
    yield Call("POST", publish, {**whole, "payload_encoding": "klingon"})
    yield Call("POST", publish, {**whole, "payload": 7})
    for missing in whole:
        yield Call("POST", publish, {key: value for key, value in whole.items() if key != missing})
    yield Call("POST", publish, {**whole, "properties": []})
    yield Call("POST", publish, {**whole, "properties": "x"})
    all_properties = {
        "content_type": "text/plain", "content_encoding": "identity", "headers": {"a": 1, "b": "x", "c": [1, "y"], "d": {"e": True}, "f": 1.5},
        "delivery_mode": 2, "priority": 3, "correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": "i",
        "timestamp": 1700000000, "type": "t", "user_id": "guest", "app_id": "a", "cluster_id": "cl",
    }  # fmt: skip
    yield Call("POST", publish, {**whole, "properties": all_properties})
    yield Call("POST", publish, {**whole, "properties": {"no_such_property": 1}})
    for bad in ({"priority": "high"}, {"timestamp": "now"}, {"delivery_mode": "2"}, {"expiration": 60000}, {"user_id": "other"},
                {"headers": "x"}, {"expiration": "never"}, {"content_type": 5}, {"delivery_mode": 3}, {"delivery_mode": "persistent"}):  # fmt: skip
        yield Call("POST", publish, {**whole, "properties": bad})
    yield Call("POST", "/exchanges/one/none/publish", whole)
    yield Call("POST", "/exchanges/none/amq.default/publish", whole)
    yield Call("POST", "/exchanges/one/x2/publish", whole)
    yield Call("POST", publish, whole, user="stranger")
    yield Call("POST", "/exchanges/one/secret/publish", whole, user="manager")
    yield Call("POST", "/exchanges/one/amq.topic/publish", {**whole, "routing_key": "b.bad"}, user="manager")
    yield Call("GET", publish)
    yield Call("PUT", "/queues/one/full", {"arguments": {"x-max-length": 0, "x-overflow": "reject-publish"}})
    yield Call("POST", publish, {**whole, "routing_key": "full"})
    for changes in ({}, {"count": 5}, {"count": 2, "ackmode": "reject_requeue_true"}, {"encoding": "base64"}, {"truncate": 2},
                    {"count": "2"}, {"count": 0}, {"count": -1}, {"count": "many"}, {"ackmode": "none"}, {"encoding": "rot13"},
                    {"truncate": "x"}, {"ackmode": "ack_requeue_false"}, {"ackmode": "reject_requeue_false"}, {"count": 50}):  # fmt: skip
        yield Call("POST", take, {**get_it, **changes})
    for missing in get_it:
        yield Call("POST", take, {key: value for key, value in get_it.items() if key != missing})
    yield Call("POST", take, {**get_it, "requeue": True})
    yield Call("POST", take, {"count": 1, "requeue": "true", "encoding": "auto"})
    yield Call("POST", "/queues/one/none/get", get_it)
    yield Call("POST", "/queues/none/m/get", get_it)
    yield Call("POST", take, get_it, user="stranger")
    yield Call("PUT", "/queues/one/secret", {})
    yield Call("POST", "/queues/one/secret/get", get_it, user="manager")
    yield Call("DELETE", "/queues/one/secret/contents", user="manager")
    yield Call("DELETE", "/queues/one/secret", user="manager")
    yield Call("GET", take)
    yield Call("DELETE", "/queues/one/m?if-empty=true")
    yield Call("DELETE", "/queues/one/m/contents")
    yield Call("DELETE", "/queues/one/m?if-empty=true")


def policies() -> Iterator[Call]:
    put, policy = "PUT", {"pattern": "^p", "definition": {"max-length": 10}, "priority": 1, "apply-to": "queues"}
    for kind in ("policies", "operator-policies"):
        one = f"/{kind}/one/p"
        yield Call(put, one, policy)
        yield Call(put, one, policy)
        yield Call(put, one, {"pattern": "^p", "definition": {"max-length": 10}})
        yield Call(put, f"/{kind}/one/bad", {"definition": {"max-length": 10}})
        yield Call(put, f"/{kind}/one/bad", {"pattern": "^p"})
        yield Call(put, f"/{kind}/one/bad", {"pattern": "*(", "definition": {"max-length": 10}})
        yield Call(put, f"/{kind}/one/bad", {"pattern": "^p", "definition": {"no-such": 10}})
        yield Call(put, f"/{kind}/one/bad", {"pattern": "^p", "definition": {}})
        yield Call(put, f"/{kind}/one/bad", {"pattern": "^p", "definition": {"max-length": "x"}})
        yield Call(put, f"/{kind}/one/bad", {**policy, "priority": "high"})
        yield Call(put, f"/{kind}/one/bad", {**policy, "apply-to": "people"})
        yield Call(put, f"/{kind}/one/bad", {**policy, "definition": [1]})
        yield Call(put, f"/{kind}/none/p", policy)
        yield from get(one, f"/{kind}/one/none", f"/{kind}/none/p", f"/{kind}/none", f"/{kind}/one", f"/{kind}")
        for user in ROLES:
            yield Call("GET", one, user=user)
            yield Call(put, f"/{kind}/one/of-{user}", policy, user=user)
            yield Call("DELETE", f"/{kind}/one/of-{user}", user=user)
    yield Call(put, "/queues/one/pq", {})
    yield Call("GET", "/queues/one/pq?columns=name,policy,operator_policy,effective_policy_definition")
    for kind in ("policies", "operator-policies"):
        yield Call("DELETE", f"/{kind}/one/none")
        yield Call("DELETE", f"/{kind}/one/p/")
        yield Call("DELETE", f"/{kind}/one/p")


def limits() -> Iterator[Call]:
    put = "PUT"
    for kind, of, name in (("vhost-limits", "one", "max-queues"), ("user-limits", "manager", "max-channels")):
        one = f"/{kind}/{of}/{name}"
        yield Call(put, one, {"value": 500})
        yield Call(put, one, {"value": 501})
        yield Call(put, f"/{kind}/{of}/max-connections", {"value": -1})
        yield Call(put, one, {"value": "many"})
        yield Call(put, one, {"value": 1.5})
        yield Call(put, one, {})
        yield Call(put, f"/{kind}/{of}/max-people", {"value": 1})
        yield Call(put, f"/{kind}/none/{name}", {"value": 1})
        yield from get(f"/{kind}", f"/{kind}/{of}", f"/{kind}/none", one)
        yield Call(put, one, {"value": 1}, user="monitor")
        yield Call("DELETE", one)
        yield Call("DELETE", one)
        yield Call("DELETE", f"/{kind}/none/{name}")
        yield Call("DELETE", f"/{kind}/{of}/max-connections")


def parameters() -> Iterator[Call]:
    put = "PUT"
    yield from get("/parameters", "/parameters/shovel", "/parameters/federation-upstream/one", "/parameters/shovel/none", "/parameters/none")
    yield from get("/parameters/operator_policy/one/none", "/parameters/shovel/one/none", "/parameters/none/one/none", "/parameters/vhost-limits")
    yield Call(put, "/parameters/shovel/one/s", {"value": {"src-uri": "amqp://"}})
    yield Call(put, "/parameters/none/one/s", {"value": {"a": 1}})
    yield Call("DELETE", "/parameters/none/one/s")
    yield Call(put, "/parameters/none/nowhere/s", {"value": {"a": 1}})
    yield Call(put, "/parameters/vhost-limits/one/limits", {"value": {"max-queues": 1000}})
    yield Call("GET", "/parameters/vhost-limits/one/limits")
    yield Call("DELETE", "/parameters/vhost-limits/one/limits")
    yield Call(put, "/global-parameters/g", {"value": {"a": [1, "b"]}})
    yield Call(put, "/global-parameters/g", {"value": "text"})
    yield Call(put, "/global-parameters/g", {})
    yield from get("/global-parameters/g", "/global-parameters/none", "/global-parameters/internal_cluster_id")
    yield Call(put, "/global-parameters/g", {"value": 1}, user="manager")
    yield Call(put, "/global-parameters/g", {"value": 1}, user="maker")
    yield Call("DELETE", "/global-parameters/g")
    yield Call("DELETE", "/global-parameters/g")
    yield Call(put, "/cluster-name", {"name": "colony"})
    yield Call("GET", "/cluster-name")
    yield Call(put, "/cluster-name", {})
    yield Call(put, "/cluster-name", {"name": "colony"}, user="monitor")


def vhosts() -> Iterator[Call]:
    put = "PUT"
    yield Call(put, "/vhosts/three", {"tracing": True})
    yield Call("GET", "/vhosts/three")
    yield Call(put, "/vhosts/three", {"tracing": "false", "description": "d", "tags": ["x"]})
    yield Call(put, "/vhosts/three", {"tracing": "perhaps"})
    yield Call("GET", "/vhosts/none")
    yield Call("DELETE", "/vhosts/none")
    yield Call("DELETE", "/vhosts/three")
    yield Call("DELETE", "/vhosts/three")
    yield Call("GET", "/vhosts/three")
    yield Call("POST", f"/vhosts/one/start/{NODE}")
    yield Call("POST", "/vhosts/one/start/other@host")
    yield Call("POST", f"/vhosts/none/start/{NODE}")
    yield from get("/vhosts/none/permissions", "/vhosts/none/topic-permissions", "/vhosts/none/connections", "/vhosts/none/channels")
    yield from get(f"/vhosts?{SAMPLES}", "/vhosts?page=1", "/vhosts?columns=name&sort=name&sort_reverse=true")
    yield Call(put, "/vhosts/theirs", {}, user="manager")
    yield Call("DELETE", "/vhosts/one", user="monitor")


def paging() -> Iterator[Call]:
    for number in range(5):
        yield Call("PUT", f"/queues/two/reg-{number}", {"durable": True})
    yield Call("PUT", "/queues/two/other", {})
    for kind in ("queues", "exchanges", "connections", "channels", "vhosts"):
        yield from get(f"/{kind}?page=1", f"/{kind}?page=1&page_size=2", f"/{kind}?page=9999")
    one = "/queues/two"
    for query in (
        "page=1&page_size=500", "page=1&page_size=501", "page=0", "page=-1", "page=x", "page=1&page_size=0", "page=1&page_size=x",
        "page=1&page_size=-1", "page_size=10", "page=1&name=reg", "page=1&name=REG&use_regex=true", "page=1&name=%5E(%3F%3D%5Ereg)&use_regex=true",
        "page=1&name=%5B&use_regex=true", "page=1&name=none", "page=2&page_size=2", "page=3&page_size=2", "page=4&page_size=2", "page=1&pagination=true",
        "name=reg", "pagination=false", "sort=name&sort_reverse=true&page=1", "sort=messages&page=1", "sort=no_such&page=1",
        "sort=messages_details.rate&page=1&page_size=3", "columns=name", "columns=name&page=1", "columns=", "sort=", "columns=a.b.c", "page=",
        "disable_stats=true", "disable_stats=true&enable_queue_totals=true", "disable_stats=true&enable_queue_totals=true&page=1",
        "lengths_age=60&lengths_incr=0", "lengths_age=600&lengths_incr=1", "lengths_age=x&lengths_incr=5",
    ):  # fmt: skip
        yield Call("GET", f"{one}?{query}")
    yield from get("/overview?disable_stats=true", "/overview?disable_stats=true&enable_queue_totals=true", "/channels?disable_stats=true",
                   "/consumers?disable_stats=true", "/connections?disable_stats=true", "/nodes?disable_stats=true", "/exchanges?disable_stats=true",
                   "/vhosts?disable_stats=true", "/queues/two/other?disable_stats=true", "/queues/two/other?disable_stats=true&enable_queue_totals=true")  # fmt: skip
    yield from get(f"/overview?{SAMPLES}", f"/queues?{SAMPLES}", f"/nodes/{NODE}?node_stats_age=60&node_stats_incr=5", f"/connections?{SAMPLES}")
    yield Call("GET", "/queues", headers={"X-Vhost": "two"})
    yield Call("GET", "/queues", headers={"X-Vhost": "none"})
    yield Call("GET", "/exchanges", headers={"X-Vhost": "two"})


def health() -> Iterator[Call]:
    yield from get(f"/healthchecks/node/{NODE}", "/healthchecks/node/other@host", "/aliveness-test/one", "/aliveness-test/none")
    for period in ("1/weeks", "1/days", "2/months", "1/years", "1/lightyears", "x/days", "0/days"):
        yield Call("GET", f"/health/checks/certificate-expiration/{period}")
    yield from get("/health/checks/port-listener/1", "/health/checks/port-listener/x", "/health/checks/port-listener/99999999")
    for protocol in ("amqp", "amqp091", "amqps", "http", "mqtt", "klingon", "amqp10", "stomp", "https", "prometheus"):
        yield Call("GET", f"/health/checks/protocol-listener/{protocol}")
    yield from get("/health/checks/none", "/health/checks", "/nodes/other@host", "/nodes/other@host/memory", f"/nodes/{NODE}/memory/relative")
    yield from get(f"/nodes/{NODE}?memory=true", f"/nodes/{NODE}?binary=true", "/auth/attempts/other@host", f"/auth/attempts/{NODE}/source")
    yield Call("DELETE", f"/auth/attempts/{NODE}")
    yield Call("DELETE", f"/auth/attempts/{NODE}/source")
    yield Call("PUT", "/feature-flags/stream_queue/enable", {})
    yield Call("PUT", "/feature-flags/no_such_flag/enable", {})
    yield Call("POST", "/rebalance/queues")
    yield Call("DELETE", "/reset")
    yield Call("DELETE", f"/reset/{NODE}")
    yield Call("DELETE", "/reset/other@host")


def definitions() -> Iterator[Call]:
    whole = {
        "users": [{"name": "imported", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "tags": "management"}],
        "vhosts": [{"name": "imported"}],
        "permissions": [{"user": "imported", "vhost": "imported", "configure": "", "write": "", "read": ".*"}],
        "policies": [{"vhost": "imported", "name": "p", "pattern": "^p", "definition": {"max-length": 3}}],
        "queues": [{"name": "iq", "vhost": "imported", "durable": True, "auto_delete": False, "arguments": {}}],
        "exchanges": [{"name": "ix", "vhost": "imported", "type": "fanout", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}],
        "bindings": [{"source": "ix", "vhost": "imported", "destination": "iq", "destination_type": "queue", "routing_key": "", "arguments": {}}],
    }  # fmt: skip
    yield Call("POST", "/definitions", whole)
    yield Call("POST", "/definitions", whole)
    yield Call("POST", "/all-configuration", {})
    yield from get("/queues/imported/iq/bindings", "/permissions/imported/imported", "/policies/imported", "/all-configuration")
    yield Call("POST", "/definitions", "")
    yield Call("POST", "/definitions", "[]")
    yield Call("POST", "/definitions", {"queues": [{"name": "x"}]})
    yield Call("POST", "/definitions", {"users": [{"name": "x"}], "vhosts": "x"})
    yield Call("POST", "/definitions", {"permissions": [{"user": "none", "vhost": "imported", "configure": "", "write": "", "read": ""}]})
    yield Call("POST", "/definitions/imported", {"queues": [{"name": "iq2", "durable": True, "auto_delete": False, "arguments": {}}]})
    yield Call("POST", "/definitions/none", {"queues": [{"name": "iq2", "durable": True, "auto_delete": False, "arguments": {}}]})
    yield from get("/definitions/imported", "/definitions/none", "/definitions?download=broker.json")
    token = base64.b64encode(b"guest:guest").decode()
    yield Call("GET", f"/definitions?auth={token}&download=x.json", user="")
    yield Call("POST", "/definitions", whole, user="monitor")
    yield Call("POST", "/definitions/one", {}, user="manager")
    yield Call("DELETE", "/vhosts/imported")
    yield Call("DELETE", "/users/imported")


def authentication() -> Iterator[Call]:
    yield Call("GET", "/whoami", user="")
    yield Call("GET", "/auth", user="")
    yield Call("GET", "/no/such/path", user="")
    yield Call("GET", "/no/such/path")
    yield Call("GET", "/whoami", user="", headers={"Authorization": "Basic " + base64.b64encode(b"guest:wrong").decode()})
    yield Call("GET", "/whoami", user="", headers={"Authorization": "Basic !!!"})
    yield Call("GET", "/whoami", user="", headers={"Authorization": "Bearer abc"})
    yield Call("GET", "/whoami", user="", headers={"Cookie": "auth=" + base64.b64encode(b"guest:guest").decode().replace("=", "%3D")})
    yield Call("GET", "/whoami", user="", headers={"Authorization": "Basic " + base64.b64encode(b"guest").decode()})
    yield Call("POST", "/login", "username=guest&password=guest", user="", headers={"Content-Type": "application/x-www-form-urlencoded"})
    yield Call("POST", "/login", "username=guest&password=no", user="", headers={"Content-Type": "application/x-www-form-urlencoded"})
    yield Call("POST", "/login", "x", user="")
    yield Call("GET", "/login", user="")
    yield Call("OPTIONS", "/queues", user="")
    yield Call("OPTIONS", "/queues/one/q", user="", headers={"Origin": "https://allowed.example", "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "x-a"})
    yield Call("OPTIONS", "/queues/one/q", user="", headers={"Origin": "https://evil.example"})
    yield Call("GET", "/overview", headers={"Origin": "https://allowed.example"})
    yield Call("GET", "/overview", headers={"Origin": "https://evil.example"})
    yield Call("GET", "/overview", headers={"Accept": "application/json"})
    yield Call("GET", "/overview", headers={"Accept": "text/html"})
    yield Call("HEAD", "/overview")
    yield Call("HEAD", "/queues/one/none")
    yield Call("PATCH", "/queues/one/q", {})
    yield Call("PUT", "/overview", {})
    yield Call("DELETE", "/whoami")
    yield Call("POST", "/whoami", {})


def roles() -> Iterator[Call]:
    """Every list, as each kind of user."""
    for user in ROLES:
        yield from get(*LISTS, user=user)
        yield from get(*(path.format(v="one") for path in OF_VHOST), user=user)
        yield from get(*(path.format(v="two") for path in OF_VHOST), user=user)
        yield from get("/users/guest", f"/users/{user}", "/users/guest/permissions", "/permissions/one/guest", "/queues/one/live",
                       "/exchanges/one/x", "/topic-permissions/one/manager", "/parameters/shovel", "/global-parameters/none", user=user)  # fmt: skip
        yield Call("PUT", "/users/by-role", {"password": "x", "tags": ""}, user=user)
        yield Call("PUT", "/vhosts/by-role", {}, user=user)
        yield Call("PUT", "/permissions/one/nobody", {"configure": "", "write": "", "read": ""}, user=user)
        yield Call("PUT", "/parameters/shovel/one/x", {"value": 1}, user=user)
        yield Call("DELETE", "/connections/no such connection", user=user)


def live(connection: str) -> Iterator[Call]:
    """With a connection that has a channel with a consumer, another that publishes with confirms, and unacked messages."""
    name = urllib.parse.quote(connection, safe="")
    yield from get("/connections", f"/connections/{name}", f"/connections/{name}/channels", "/channels", f"/channels/{name}%20(1)", f"/channels/{name}%20(2)",
                   "/consumers", "/consumers/one", "/queues/one/live", "/queues/one", "/exchanges/one/live", "/exchanges/one", "/overview", "/nodes", "/vhosts",
                   "/vhosts/one", "/vhosts/one/connections", "/vhosts/one/channels", "/connections/username/guest", "/connections/username/none",
                   "/connections/none", "/connections/none/channels", "/channels/none", "/queues/one/exclusive", "/bindings/one", f"/nodes/{NODE}")  # fmt: skip
    yield from get(f"/queues/one/live?{SAMPLES}", f"/channels/{name}%20(2)?{SAMPLES}", f"/connections/{name}?{SAMPLES}", f"/exchanges/one/live?{SAMPLES}", f"/overview?{SAMPLES}")
    yield Call("PUT", "/queues/one/exclusive", {})
    yield Call("DELETE", "/queues/one/exclusive")
    yield Call("DELETE", "/queues/one/live?if-unused=true")
    yield Call("DELETE", "/exchanges/one/live?if-unused=true")
    yield Call("POST", "/queues/one/exclusive/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"})
    for user in ROLES:
        yield from get(f"/connections/{name}", f"/connections/{name}/channels", f"/channels/{name}%20(1)", user=user)
        yield Call("DELETE", f"/connections/{name}", user=user if user != "admin" else "manager", headers={"X-Reason": "because"})


def last(connection: str) -> Iterator[Call]:
    name = urllib.parse.quote(connection, safe="")
    yield Call("DELETE", f"/connections/{name}", headers={"X-Reason": "enough"})
    yield Call("DELETE", "/connections/username/none")
    yield Call("DELETE", "/connections/username/guest")


def calls() -> Iterator[Call]:
    """All but those that need a live connection."""
    for part in (set_up, bad_users, permissions, queues, exchanges, bindings, messages, policies, limits, parameters, vhosts,
                 paging, health, definitions, authentication):  # fmt: skip
        yield from part()


class Scene:
    """A connection in the vhost `one`, on `amqp` (HOST:PORT), with something of everything."""

    def __init__(self, amqp: str) -> None:
        host, port = amqp.rsplit(":", 1)
        credentials = pika.PlainCredentials("guest", "guest")
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters(host, int(port), "one", credentials, client_properties={"connection_name": "scene"})
        )
        socket = self.connection._impl._transport._sock
        (peer_host, peer_port), (our_host, our_port) = socket.getsockname()[:2], socket.getpeername()[:2]
        self.name = f"{peer_host}:{peer_port} -> {our_host}:{our_port}"
        consumer, publisher = self.connection.channel(), self.connection.channel()
        publisher.queue_declare("live", durable=True, arguments={"x-max-priority": 3})
        publisher.queue_declare("exclusive", exclusive=True)
        publisher.exchange_declare("live", "topic", durable=True)
        publisher.queue_bind("live", "live", "#")
        consumer.basic_qos(prefetch_count=2)
        consumer.basic_consume("live", lambda *_: None, arguments={"x-priority": 1})
        publisher.confirm_delivery()
        for _ in range(5):
            publisher.basic_publish("live", "a.b", b"body", pika.BasicProperties(delivery_mode=2))
        publisher.basic_get("live")


def shape(value: Any, node: str) -> Any:
    """The types in a JSON value: a list is the merged shape of its items."""
    if isinstance(value, dict):
        return {key.replace(node, NODE): shape(inner, node) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        merged: Any = None
        for item in value:
            merged = merge(merged, shape(item, node))
        return [] if merged is None else [merged]
    if isinstance(value, bool):
        return "bool"
    return {int: "number", float: "number", str: "text", type(None): "null"}[type(value)]


def merge(one: Any, other: Any) -> Any:
    """Both shapes in one; a key that not all have is marked by "?"."""
    if one is None or one == other:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        merged = {}
        for key in sorted({name.rstrip("?") for name in (*one, *other)}):
            both = [found for found in (one.get(key, one.get(key + "?")), other.get(key, other.get(key + "?"))) if found is not None]
            everywhere = key in one and key in other
            merged[key if everywhere else key + "?"] = merge(both[0], both[-1])
        return merged
    if isinstance(one, list) and isinstance(other, list):
        return [merge(one[0], other[0])] if one and other else one or other
    kinds = {kind for shown in (one, other) for kind in (shown.split("|") if isinstance(shown, str) else ["object" if isinstance(shown, dict) else "list"])}
    return "|".join(sorted(kinds))


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Api:
    """A management API at `url`, http://HOST:PORT."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.node = json.loads(self.send(Call("GET", "/overview")).body)["node"]

    def send(self, call: Call) -> Answer:
        path = call.path if NODE not in call.path else call.path.replace(NODE, self.node)
        headers = dict(call.headers)
        if call.user:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{call.user}:{call.user}".encode()).decode()
        data = None if call.body is None else (call.body if isinstance(call.body, str) else json.dumps(call.body)).encode()
        url = self.url + "/api" + urllib.parse.quote(path, safe="/%?&=:@~+(),*!$;'")
        request = urllib.request.Request(url, data, headers, method=call.method)
        if data is not None and "Content-Type" not in headers:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, {key.lower(): value for key, value in answer.headers.items()}, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, {key.lower(): value for key, value in error.headers.items()}, error.read())

    def fingerprint(self, call: Call) -> dict[str, Any]:
        """What is compared of the answer to a request."""
        answer = self.send(call)
        print_: dict[str, Any] = {"request": call.name(), "status": answer.status}
        for header in HEADERS:
            if header in answer.headers and not (header == "content-type" and not answer.body):
                print_[header] = answer.headers[header].split(";")[0]
        if answer.body:
            try:
                value = json.loads(answer.body)
            except ValueError:
                print_["body"] = "no JSON"
            else:
                print_["body"] = shape(value, self.node)
                if isinstance(value, dict) and answer.status >= 400:
                    print_["error"] = value.get("error")
        return print_


def run(url: str, amqp: str, settled: Any) -> list[dict[str, Any]]:
    """Sends everything; `settled` is called before what is to be seen must have come into the statistics."""
    api = Api(url)
    prints = [api.fingerprint(call) for call in calls()]
    scene = Scene(amqp)
    settled()
    prints += [api.fingerprint(call) for call in live(scene.name)]
    prints += [api.fingerprint(call) for call in roles()]
    prints += [api.fingerprint(call) for call in last(scene.name)]
    for one in prints:  # the port of the connection is another one each time
        for name in (scene.name, urllib.parse.quote(scene.name, safe="")):
            one["request"] = one["request"].replace(name, "CONNECTION")
    return prints


if __name__ == "__main__":
    found = run(sys.argv[1], sys.argv[2], lambda: time.sleep(8))
    Path(sys.argv[3]).write_text("[\n" + ",\n".join(json.dumps(one, sort_keys=True) for one in found) + "\n]\n")
    print(len(found), "answers")
