"""The management API of a cluster, asked at the wrong node, twice, with odd values, or for what is gone."""

from __future__ import annotations

import pytest

from cluster.replicated import Replicated, drained, publish
from management.conftest import Http, quoted
from support import eventually

pytestmark = [pytest.mark.own, pytest.mark.timeout(300)]

ODD_USERS = ("a/b", "é {} %", "..", "<img src=x>", "x" * 255, "tab\tand\nline", "\U0001f600")

on_postgres = pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True)


def api(vhost: Replicated, node: str) -> Http:
    return Http(vhost.cluster.nodes[node].management)


def other_node(vhost: Replicated) -> str:
    """One that does not own the vhost, and knows who does."""
    other = next(name for name in vhost.cluster.nodes if name != vhost.owner)
    http = api(vhost, other)
    eventually(lambda: any(one["name"] == vhost.name and one["owner"] for one in http.get("cluster")["vhosts"]), timeout=60)
    return other


@on_postgres
def test_nobody_makes_a_second_vhost_of_the_name_at_another_node(vhost: Replicated) -> None:
    publisher = vhost.publisher(vhost.owner)
    publisher.queue_declare("q", durable=True)
    publish(publisher, "q", range(3))
    http = api(vhost, other_node(vhost))
    assert http("PUT", f"vhosts/{vhost.name}", {"description": "mine"}).status == 204  # its owner does it
    assert api(vhost, vhost.owner).get(f"vhosts/{vhost.name}")["description"] == "mine"
    assert http("PUT", f"vhosts/{vhost.name}", {}).status == 204  # it is there, as whoever asks wants it
    exported = api(vhost, vhost.owner).get("definitions")
    assert http("POST", "definitions", exported).status == 400
    assert [one["replication"]["owner"] for one in http.get("vhosts") if one["name"] == vhost.name] == [vhost.owner]
    with vhost.connect(other_node(vhost)) as through:
        assert [number for number, _ in drained(through, "q")] == [0, 1, 2]


@on_postgres
def test_users_of_any_name_are_changed_at_any_node(vhost: Replicated) -> None:
    here, there = api(vhost, vhost.owner), api(vhost, other_node(vhost))
    for name in ODD_USERS:
        path = f"users/{quoted(name)}"
        assert here("PUT", path, {"password": "p", "tags": "management"}).status == 201
        eventually(lambda path=path: there("GET", path).status == 200, timeout=30)
        assert there("DELETE", path).status == 204
        eventually(lambda path=path: here("GET", path).status == 404, timeout=30)


@on_postgres
def test_what_makes_no_sense_is_refused_by_any_node(vhost: Replicated) -> None:
    http = api(vhost, other_node(vhost))
    name = vhost.name
    for method, path, body in (
        ("PUT", "queues/nowhere/q", {}),
        ("GET", "queues/nowhere", None),
        ("GET", f"queues/{name}/absent", None),
        ("GET", f"queues/{name}/absent/messages", None),
        ("PUT", f"policies/{name}/p", {"pattern": "(", "definition": {"max-length": 1}}),
        ("PUT", f"vhost-limits/{name}/max-queues", {"value": "many"}),
        ("PUT", "permissions/nowhere/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("PUT", f"vhosts/{name}/worker", {"worker": 1}),
        ("GET", "health/checks/replica-lag/nan", None),
        ("GET", "health/checks/replica-lag/-1", None),
        ("GET", "health/checks/replica-lag/1e999", None),
        ("GET", "queues/quorum/nowhere/q/status", None),
    ):
        reply = http(method, path, body)
        assert 400 <= reply.status < 500, (method, path, reply.status, reply.body)
    permission = {"configure": ".*", "write": ".*", "read": ".*"}
    assert http("PUT", f"permissions/{name}/guest", permission).status == 204
    for node in vhost.cluster.nodes.values():
        node.assert_clean_log()
