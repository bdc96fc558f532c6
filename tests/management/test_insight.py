"""What the API says beyond lists: the graph, differences, previews, what is unusual."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from broker_process import BrokerProcess
from management.conftest import Http
from rabbitpy_broker.management.api import attention
from rabbitpy_broker.management.api.rates import QUEUE, Series
from support import eventually

pytestmark = pytest.mark.own

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def shop(http: Http) -> Http:
    """A vhost with orders, their dead letters, and an exchange behind the exchange."""
    http("PUT", "vhosts/shop", {})
    http("PUT", "queues/shop/orders", {"durable": True, "arguments": {"x-dead-letter-exchange": "dead"}})
    http("PUT", "queues/shop/late", {"durable": True})
    http("PUT", "exchanges/shop/in", {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "lost"}})
    http("PUT", "exchanges/shop/dead", {"type": "fanout", "durable": True})
    for number in range(7):
        http("POST", "bindings/shop/e/in/q/orders", {"routing_key": f"order.{number}.#"})
    http("POST", "bindings/shop/e/dead/q/late", {})
    http("POST", "bindings/shop/e/in/e/dead", {"routing_key": "dead"})
    return http


def test_the_topology_has_bindings_dead_letters_and_what_is_missing(shop: Http) -> None:
    found = shop.get("topology/shop")
    names = {node["id"]: (node["kind"], node["name"]) for node in found["nodes"]}
    assert sorted(names.values()) == [
        ("exchange", "dead"), ("exchange", "in"), ("missing_exchange", "lost"), ("queue", "late"), ("queue", "orders"),
    ]  # fmt: skip
    edges = {(names[edge["from"]][1], names[edge["to"]][1], edge["kind"]): edge for edge in found["edges"]}
    assert edges.keys() == {
        ("in", "orders", "binding"), ("in", "dead", "binding"), ("dead", "late", "binding"), ("in", "lost", "alternate"),
        ("orders", "dead", "dead_letter"),
    }  # fmt: skip
    assert edges["in", "orders", "binding"]["count"] == 7
    assert len(edges["in", "orders", "binding"]["keys"]) == 5
    assert edges["orders", "dead", "dead_letter"]["by"] == "argument"
    assert found["truncated"] is False
    near = shop.get("topology/shop?around=queue/late&depth=1")
    assert {node["name"] for node in near["nodes"]} == {"late", "dead"}
    assert shop.get("topology?limit=1")["truncated"] is True
    for query in ("around=x", "around=queue", "limit=0", "depth=x"):
        assert shop("GET", f"topology/shop?{query}").status == 400
    assert shop("GET", "topology/none").status == 404


def test_a_file_that_was_just_exported_differs_in_nothing(shop: Http) -> None:
    shop("PUT", "users/u", {"password": "u", "tags": "management"})
    shop("PUT", "policies/shop/p", {"pattern": "^o", "definition": {"max-length": 5}})
    shop("PUT", "vhost-limits/shop/max-queues", {"value": 10})
    for path in ("", "/shop"):
        file = shop.get(f"definitions{path}")
        found = shop("POST", f"definitions/diff{path}", file).json
        assert (found["add"], found["change"], found["only_here"]) == ([], [], []), path
        assert found["same"] >= 12
        assert shop("POST", f"definitions{path}?dry_run=true", file).json == found


def test_a_diff_says_what_an_import_would_do_and_what_not(shop: Http) -> None:
    shop("PUT", "policies/shop/p", {"pattern": "^o", "definition": {"max-length": 5}})
    shop("PUT", "users/u", {"password": "geheim", "tags": "management"})
    file = shop.get("definitions")
    file["queues"] = [queue for queue in file["queues"] if queue["name"] != "late"]
    file["queues"][0]["durable"] = False
    file["queues"].append({"name": EVIL, "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}})
    file["bindings"] = [binding for binding in file["bindings"] if binding["destination"] != "late"]
    file["policies"][0]["definition"] = {"max-length": 6}
    (user,) = [user for user in file["users"] if user["name"] == "u"]
    user["password_hash"] = "b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVyb3RoZXI="
    before = shop.get("definitions")
    for path in ("definitions/diff", "definitions?dry_run=true"):
        found = shop("POST", path, file).json
        assert [(one["kind"], one["key"]) for one in found["add"]] == [("queues", {"vhost": "shop", "name": EVIL})]
        changes = {one["kind"]: one for one in found["change"]}
        assert changes["queues"] == {
            "kind": "queues", "key": {"vhost": "shop", "name": "orders"}, "from": {"durable": True}, "to": {"durable": False},
            "applied": False,
        }  # fmt: skip
        assert changes["policies"]["to"] == {"definition": {"max-length": 6}}
        assert changes["policies"]["applied"] is True
        assert changes["users"]["from"] == changes["users"]["to"] == {"password_hash": "(hash)"}
        assert {one["kind"] for one in found["only_here"]} == {"queues", "bindings"}
        assert found["counts"] == {"add": 1, "change": 3, "only_here": 2}
    assert shop.get("definitions") == before
    assert shop("POST", "definitions/diff", {"queues": [{"name": "q"}]}).status == 400
    assert shop("POST", "definitions/diff", {"policies": [{"name": "p", "vhost": "shop", "pattern": "("}]}).status == 400
    assert shop("POST", "definitions/diff/none", {}).status == 404
    assert shop.get("audit")["items"][0]["path"] == "users/u"


def test_vhosts_may_be_called_like_a_question(http: Http) -> None:
    for name, path in (("diff", "definitions"), ("preview", "policies"), ("test", "permissions")):
        http("PUT", f"vhosts/{name}", {})
        found = http("GET", f"{path}/{name}" if path != "permissions" else f"{path}/{name}/guest")
        assert found.status == 200, name


def test_a_preview_says_what_a_policy_would_change(shop: Http) -> None:
    shop("PUT", "policies/shop/low", {"pattern": "^orders", "definition": {"max-length": 5}, "priority": 1})
    policy = {"vhost": "shop", "pattern": "^(orders|late|in)$", "definition": {"max-length": 7}, "priority": 2}
    found = shop("POST", "policies/preview", policy).json
    assert (found["matched"], found["unchanged"], found["truncated"]) == (3, 0, False)
    changed = {one["name"]: one for one in found["changed"]}
    assert changed["orders"] == {
        "kind": "queue", "vhost": "shop", "name": "orders", "policy": {"from": "low", "to": "(new policy)"},
        "from": {"max-length": 5}, "to": {"max-length": 7},
    }  # fmt: skip
    assert (changed["late"]["from"], changed["in"]["kind"]) == ({}, "exchange")
    lower = shop("POST", "policies/preview", {**policy, "priority": 0}).json
    assert "orders" not in {one["name"] for one in lower["changed"]}
    gone = shop("POST", "policies/preview", {"vhost": "shop", "name": "low", "delete": True}).json
    assert [(one["name"], one["to"]) for one in gone["changed"]] == [("orders", {})]
    operator = shop("POST", "policies/preview", {**policy, "operator": True, "definition": {"max-length": 3}}).json
    assert {one["name"]: one["to"] for one in operator["changed"]} == {"orders": {"max-length": 3}, "late": {"max-length": 3}}
    for wrong in ({"pattern": "("}, {"definition": {"no": 1}}, {"definition": {}}, {"priority": "x"}, {"vhost": 1}):
        assert shop("POST", "policies/preview", {**policy, **wrong}).status == 400, wrong
    assert shop("POST", "policies/preview", {**policy, "vhost": "none"}).status == 404
    shop("PUT", "users/maker", {"password": "maker", "tags": "policymaker"})
    assert shop("POST", "policies/preview", policy, user="maker").status == 401
    assert [one["name"] for one in shop.get("policies/shop")] == ["low"]


def test_permissions_are_tested_without_being_used(http: Http) -> None:
    http("PUT", "users/u", {"password": "u", "tags": ""})
    http("PUT", "permissions/%2F/u", {"configure": "^$", "write": "^in", "read": ".*"})
    http("PUT", "topic-permissions/%2F/u", {"exchange": "in.topic", "write": "^a", "read": ".*"})
    asked = {"user": "u", "vhost": "/", "name": "in.topic", "kind": "exchange", "routing_key": "b"}
    assert http("POST", "permissions/test", asked).json == {
        "user": "u", "vhost": "/", "name": "in.topic", "enter": True, "configure": False, "write": True, "read": True,
        "topic": {"write": False, "read": True}, "patterns": {"configure": "^$", "write": "^in", "read": ".*"},
    }  # fmt: skip
    http("PUT", "vhosts/v", {})
    found = http("POST", "permissions/test", {**asked, "vhost": "v", "kind": "queue"}).json
    assert (found["enter"], found["read"], found["patterns"], found["topic"]) == (False, False, None, None)
    assert http("POST", "permissions/test", {**asked, "user": "none"}).status == 400


def rows(*steps: dict[str, int], apart: float = 20.0) -> Series:
    """A queue's series of looks that far apart; what a step does not name is as it was."""
    values = dict.fromkeys(QUEUE, 0)
    made = Series(QUEUE, 0.0, tuple(values.values()))
    for number, step in enumerate(steps, 1):
        values |= step
        made.add(number * apart, tuple(values.values()))
    return made


def kinds(series: Series, *consumers: Any, dead_letters: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
    queue: Any = SimpleNamespace(
        name="q.1", vhost="/", arguments={}, consumers=SimpleNamespace(members=consumers),
        backing=SimpleNamespace(publishes_waiting=lambda: 0),
    )  # fmt: skip
    api: Any = SimpleNamespace(vhosts={}, broker=None)
    return (item.row for item in attention.of_queue(queue, series, dead_letters, api))


def consumer(held: int, connection: str) -> Any:
    return SimpleNamespace(unacked_count=held, deliveries=SimpleNamespace(host=SimpleNamespace(name=connection)))


def test_a_queue_that_grows_is_told_by_who_takes_from_it() -> None:
    growing = rows(*({"messages": 100 * number, "messages_ready": 100 * number} for number in range(1, 9)))
    assert [one["kind"] for one in kinds(growing)] == ["growing"]
    (slow,) = kinds(growing, consumer(0, "c"))
    assert (slow["kind"], slow["text"]) == ("growing_slow_consumers", "1 consumer takes less than comes")
    (slow,) = kinds(growing, consumer(0, "c"), consumer(0, "c"))
    assert slow["text"] == "2 consumers take less than comes"
    assert [one["kind"] for one in kinds(growing, dead_letters=frozenset(("q.1",)))] == ["dead_letters_growing"]
    (found,) = kinds(growing)
    assert (found["target"], found["figures"]["rate"]) == ({"kind": "queue", "vhost": "/", "name": "q.1"}, 5.0)
    steady = rows(*({"messages": 5000, "messages_ready": 5000 + number} for number in range(1, 9)))
    assert list(kinds(steady)) == []


def test_messages_that_nobody_acks_name_who_holds_them() -> None:
    held = rows({"messages": 9, "messages_unacknowledged": 9, "deliver_get": 9}, *({} for _ in range(30)))
    held.add(held.checked + 1, held.values)
    (found,) = kinds(held, consumer(2, "one"), consumer(7, "a -> b"))
    assert (found["kind"], found["text"]) == ("unacked_long", "9 messages are held, and none was acked in 5 minutes")
    assert found["action"] == {
        "title": "Close the connection that holds most", "method": "DELETE", "path": "connections/a%20-%3E%20b",
    }  # fmt: skip
    moving = rows(*({"messages": 9, "messages_unacknowledged": 9, "ack": number} for number in range(30)))
    assert list(kinds(moving, consumer(9, "c"))) == []


def test_messages_that_go_round_are_ended_by_a_limit() -> None:
    looping = rows(*({"redeliver": 100 * number, "deliver_get": 120 * number} for number in range(9)))
    (found,) = kinds(looping)
    assert found["kind"] == "redelivery_loop"
    assert (found["action"]["method"], found["action"]["path"]) == ("PUT", "policies/%2F/limit%20q.1")
    assert found["action"]["body"]["pattern"] == r"^q\.1$"
    assert found["action"]["body"]["definition"] == {"delivery-limit": 20}


def test_an_alarm_gets_attention_from_who_monitors(http: Http, api_broker: BrokerProcess) -> None:
    http("PUT", "users/u", {"password": "u", "tags": "management"})
    assert http.get("attention")["items"] == []
    api_broker.ctl("set_vm_memory_high_watermark", "0")
    (alarm,) = eventually(lambda: http.get("attention")["items"])
    assert (alarm["kind"], alarm["severity"], alarm["target"]["kind"]) == ("alarm", "critical", "node")
    assert http.get("attention", user="u")["items"] == []
