"""What is done with chosen messages through the management API, and how they are found."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess
from management.conftest import Http, Reply
from support import eventually

pytestmark = pytest.mark.own
Q = "queues/%2F/q/messages"
MOVED = 4_000  # so many that a move of them takes a while


@pytest.fixture
def http_api(module_broker: BrokerProcess) -> Http:
    return Http(module_broker.management)


@pytest.fixture
def channel(clean_channel: BlockingChannel) -> BlockingChannel:
    return clean_channel


def publish(channel: BlockingChannel, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def items(api: Http, queue: str = "q") -> list[Any]:
    return api.get(f"queues/%2F/{queue}/messages")["items"]


def bodies(api: Http, queue: str = "q") -> list[str]:
    return [item["payload"] for item in items(api, queue)]


def lines(reply: Reply) -> list[Any]:
    assert reply.status == 200, reply.body
    return [json.loads(line) for line in reply.body.splitlines()]


def found(reply: Reply) -> list[str]:
    return [line["item"]["payload"] for line in lines(reply) if "item" in line]


def ten(api: Http, channel: BlockingChannel) -> list[str]:
    """Ten messages in a durable queue; their cursors."""
    channel.queue_declare("q", durable=True)
    publish(channel, "q", *[b"%d" % number for number in range(10)])
    eventually(lambda: len(items(api)) == 10)
    return [item["cursor"] for item in items(api)]


def test_chosen_messages_are_deleted(http_api: Http, channel: BlockingChannel) -> None:
    cursors = ten(http_api, channel)
    channel.basic_get("q")
    chosen = {"seqs": [cursors[0], cursors[3], cursors[9]]}
    dry = http_api("POST", f"{Q}/delete", {**chosen, "dry_run": True}).json
    assert (dry["matched"], dry["done"], dry["dry_run"], len(bodies(http_api))) == (3, 2, True, 10)
    done = http_api("POST", f"{Q}/delete", chosen).json
    assert (done["matched"], done["done"], done["complete"]) == (3, 2, True)
    assert done["skipped"] == [{"cursor": cursors[0], "seq": 0, "reason": "unacked"}]
    assert bodies(http_api) == ["0", "1", "2", "4", "5", "6", "7", "8"]
    again = http_api("POST", f"{Q}/delete", chosen).json
    assert (again["done"], again["skipped_count"]) == (0, 3)
    assert http_api("DELETE", f"{Q}/{cursors[5]}").status == 200
    assert http_api("DELETE", f"{Q}/{cursors[5]}").status == 404
    assert "5" not in bodies(http_api)
    (entry,) = [one for one in http_api.get("audit")["items"] if one["path"].endswith("messages/delete")][:1]
    assert entry["user"] == "guest"


def test_a_filter_stops_where_the_queue_ended_when_it_was_looked_at(http_api: Http, channel: BlockingChannel) -> None:
    ten(http_api, channel)
    end = http_api.get(Q)["end"]
    publish(channel, "q", b"7 later")
    chosen = {"filter": {"text": "7"}, "up_to_seq": end}
    assert http_api("POST", f"{Q}/delete", {**chosen, "dry_run": True}).json["done"] == 1
    done = http_api("POST", f"{Q}/delete", chosen).json
    assert (done["matched"], done["done"], done["complete"]) == (1, 1, True)
    eventually(lambda: bodies(http_api) == ["0", "1", "2", "3", "4", "5", "6", "8", "9", "7 later"])
    for wrong in ({"filter": {}}, {}, {"seqs": ["x.y"]}, {"seqs": 1}, {"filter": {"txt": ""}, "up_to_seq": end}):
        assert http_api("POST", f"{Q}/delete", wrong).status == 400


def test_messages_are_moved_with_all_that_they_are(http_api: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    channel.queue_declare("target", durable=True)
    properties = {"headers": {"a": [1, "b"]}, "user_id": "guest", "correlation_id": "c", "priority": 3, "timestamp": 5}
    publish(channel, "q", b"small", b"x" * 10_000, **properties)
    publish(channel, "q", b"stays")
    eventually(lambda: len(items(http_api)) == 3)
    before = items(http_api)
    chosen = {"seqs": [item["cursor"] for item in before[:2]], "to": {"queue": "target"}}
    assert http_api("POST", f"{Q}/move", chosen).json["done"] == 2
    assert bodies(http_api) == ["stays"]
    for old, new in zip(before, items(http_api, "target"), strict=False):
        for key in ("exchange", "routing_key", "properties", "payload", "persistent", "redelivered"):
            assert new[key] == old[key]
    marked = {"seqs": [before[2]["cursor"]], "to": {"queue": "target"}, "mark": True}
    assert http_api("POST", f"{Q}/move", marked).json["done"] == 1
    (record,) = items(http_api, "target")[2]["properties"]["headers"]["x-moved"]
    assert (record["from"], record["to"], record["by"]) == ("q", "queue target", "guest")


def test_a_move_keeps_to_the_limits_of_its_target(http_api: Http, channel: BlockingChannel) -> None:
    cursors = ten(http_api, channel)
    channel.queue_declare("full", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    done = http_api("POST", f"{Q}/move", {"seqs": cursors[:4], "to": {"queue": "full"}}).json
    assert (done["done"], [one["reason"] for one in done["skipped"]]) == (2, ["queue 'full' is full"] * 2)
    assert bodies(http_api) == [str(number) for number in range(2, 10)]
    assert [item["redelivered"] for item in items(http_api)] == [False] * 8
    done = http_api("POST", f"{Q}/move", {"seqs": cursors[4:5], "to": {"queue": "q"}}).json
    assert done["skipped"][0]["reason"] == "it would come back to its own queue"
    done = http_api("POST", f"{Q}/move", {"seqs": cursors[4:5], "to": {"exchange": "amq.direct"}}).json
    assert done["skipped"][0]["reason"] == "no queue would get it"
    assert http_api("POST", f"{Q}/move", {"seqs": [], "to": {"queue": "absent"}}).status == 404
    assert http_api("POST", f"{Q}/move", {"seqs": [], "to": {"exchange": "absent"}}).status == 404
    assert http_api("POST", f"{Q}/move", {"seqs": [], "to": {}}).status == 400


def test_a_copy_leaves_everything_where_it_is(http_api: Http, channel: BlockingChannel) -> None:
    cursors = ten(http_api, channel)
    channel.queue_declare("target")
    channel.queue_bind("target", "amq.topic", "a.#")
    to = {"exchange": "amq.topic", "routing_key": "a.b"}
    assert http_api("POST", f"{Q}/copy", {"seqs": cursors[2:4], "to": to}).json["done"] == 2
    assert [(item["payload"], item["exchange"], item["routing_key"]) for item in items(http_api, "target")] == [
        ("2", "amq.topic", "a.b"),
        ("3", "amq.topic", "a.b"),
    ]
    assert len(bodies(http_api)) == 10


def test_what_was_moved_and_deleted_is_so_after_a_kill(own_broker: Any) -> None:
    broker = own_broker()
    api = Http(broker.management)
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.tx_select()
        for name in ("q", "target"):
            channel.queue_declare(name, durable=True)
        publish(channel, "q", *[b"%d" % number for number in range(300)], b"x" * 10_000)
        channel.tx_commit()
    end = api.get(f"{Q}?limit=1")["end"]
    chosen = {"filter": {"regex": "[05]$"}, "up_to_seq": end}
    moved = api("POST", f"{Q}/move", {**chosen, "to": {"queue": "target"}}).json
    assert moved["done"] == 60
    assert api("POST", f"{Q}/delete", {"filter": {"text": "7"}, "up_to_seq": end}).json["done"] > 10
    broker.crash()
    broker.start()
    api = Http(broker.management)
    kept = [str(number) for number in range(300) if number % 5 and "7" not in str(number)]
    assert [item["payload"] for item in api.get(f"{Q}?limit=500")["items"]] == [*kept, "x" * 10_000]
    there = api.get("queues/%2F/target/messages?limit=500")["items"]
    assert [item["payload"] for item in there] == [str(number) for number in range(0, 300, 5)]


def test_dead_letters_go_back_to_where_they_came_from(http_api: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.queue_bind("q", "amq.topic", "k.#")
    channel.basic_publish("amq.topic", "k.1", b"x", pika.BasicProperties(delivery_mode=2))
    for retries, by in ((1, "queue"), (2, "exchange")):
        eventually(lambda: items(http_api))
        taken = channel.basic_get("q")[0]
        channel.basic_reject(taken.delivery_tag, requeue=False)
        eventually(lambda: items(http_api, "dead"))
        end = http_api.get("queues/%2F/dead/messages")["end"]
        done = http_api("POST", "queues/%2F/dead/messages/retry", {"filter": {"reason": "rejected"}, "up_to_seq": end, "by": by})
        assert done.json["done"] == 1, done.json
        (item,) = items(http_api)
        assert (item["exchange"], item["routing_key"], item["payload"]) == ("amq.topic", "k.1", "x")
        assert item["properties"]["headers"]["x-retry-count"] == retries
        assert item["deaths"][0]["count"] == retries
        assert items(http_api, "dead") == []
    publish(channel, "dead", b"plain")
    publish(channel, "dead", b"lost", headers={"x-death": [{"queue": "gone", "reason": "expired", "exchange": ""}]})
    publish(channel, "dead", b"own", headers={"x-death": [{"queue": "dead", "reason": "expired", "exchange": ""}]})
    eventually(lambda: len(items(http_api, "dead")) == 3)
    cursors = [item["cursor"] for item in items(http_api, "dead")]
    done = http_api("POST", "queues/%2F/dead/messages/retry", {"seqs": cursors}).json
    assert [one["reason"] for one in done["skipped"]] == [
        "it has no record of a death", "no queue 'gone' in vhost '/'", "it would come back to its own queue",
    ]  # fmt: skip


def test_an_edited_message_takes_the_place_of_the_old_one(http_api: Http, channel: BlockingChannel) -> None:
    cursors = ten(http_api, channel)
    edited = {"properties": {"delivery_mode": 2, "headers": {"a": 1}}, "payload": "new", "payload_encoding": "string"}
    assert http_api("POST", f"{Q}/{cursors[4]}/replace", edited).json == {"routed": True, "removed": True}
    assert bodies(http_api) == ["0", "1", "2", "3", "5", "6", "7", "8", "9", "new"]
    assert items(http_api)[-1]["properties"] == edited["properties"]
    assert http_api("POST", f"{Q}/{cursors[4]}/replace", edited).status == 404
    assert http_api("POST", f"{Q}/{cursors[5]}/replace", {**edited, "remove": False}).json["removed"] is False
    assert len(bodies(http_api)) == 11
    nowhere = {**edited, "exchange": "amq.direct", "routing_key": "nowhere"}
    assert http_api("POST", f"{Q}/{cursors[5]}/replace", nowhere).status == 400
    other = {**edited, "properties": {"user_id": "somebody"}}
    assert http_api("POST", f"{Q}/{cursors[5]}/replace", other).status == 400
    assert len(bodies(http_api)) == 11


def test_who_may_delete_and_move(http_api: Http, channel: BlockingChannel) -> None:
    cursors = ten(http_api, channel)
    channel.queue_declare("target")
    channel.queue_declare("mine", exclusive=True)
    for name, read, write in (("reader", ".*", "^$"), ("writer", "^$", ".*")):
        http_api("PUT", f"users/{name}", {"password": name, "tags": "administrator"})
        http_api("PUT", f"permissions/%2F/{name}", {"configure": "^$", "write": write, "read": read})
    to = {"seqs": cursors[:1], "to": {"queue": "target"}}
    assert http_api("POST", f"{Q}/move", to, user="reader").status == 401
    assert http_api("POST", f"{Q}/move", to, user="writer").status == 401
    assert http_api("POST", f"{Q}/delete", {"seqs": cursors[:1]}, user="writer").status == 401
    assert http_api("POST", f"{Q}/search", {}, user="writer").status == 401
    assert http_api("POST", "queues/%2F/mine/messages/delete", {"seqs": []}).status == 400
    assert len(bodies(http_api)) == 10
    assert http_api("POST", f"{Q}/delete", {"seqs": cursors[:1]}, user="reader").json["done"] == 1


SEARCHES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ['{"a": {"b": [1, "x"]}}', "Grüße 4711", "other", '{"a": 10}']),
    ({"text": "4711"}, ["Grüße 4711"]),
    ({"text": "grüSSe"}, []),
    ({"text": "GRÜSSE", "case": False}, ["Grüße 4711"]),
    ({"headers": {"n": 1}}, ["Grüße 4711"]),
    ({"headers": {"n": True}}, []),
    ({"properties": {"message_id": "m2"}}, ["other"]),
    ({"json": {"a.b[1]": "x"}}, ['{"a": {"b": [1, "x"]}}']),
    ({"json": [{"path": "$.a", "op": ">", "value": 9}]}, ['{"a": 10}']),
    ({"json": [{"path": "a", "op": "exists"}]}, ['{"a": {"b": [1, "x"]}}', '{"a": 10}']),
    ({"regex": r"\d{4}$"}, ["Grüße 4711"]),
    ({"routing_key": "q", "redelivered": False, "text": "other"}, ["other"]),
    ({"exchange": "amq.direct"}, []),
]


def test_a_search_finds_what_fulfils_all_conditions(http_api: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    publish(channel, "q", b'{"a": {"b": [1, "x"]}}')
    publish(channel, "q", "Grüße 4711".encode(), headers={"n": 1})
    publish(channel, "q", b"other", message_id="m2")
    publish(channel, "q", b'{"a": 10}')
    eventually(lambda: len(items(http_api)) == 4)
    for where, expected in SEARCHES:
        assert found(http_api("POST", f"{Q}/search", {"where": where})) == expected, where
    *_, last = lines(http_api("POST", f"{Q}/search", {"where": {"text": "e"}, "limit": 1}))
    assert (last["end"]["reason"], last["end"]["matched"], last["end"]["scanned"]) == ("limit", 1, 2)
    assert found(http_api("POST", f"{Q}/search", {"where": {}, "after": last["end"]["at"]})) == ["other", '{"a": 10}']
    *_, last = lines(http_api("POST", f"{Q}/search", {"max_scan": 3}))
    assert (last["end"]["reason"], last["end"]["scanned"]) == ("max_scan", 3)
    assert found(http_api("POST", f"{Q}/search", {"order": "tail", "limit": 1})) == ['{"a": 10}']
    wrongs = ({"where": {"x": 1}}, {"limit": 0}, {"where": {"regex": "("}}, {"where": {"regex": "a" * 300}}, {"timeout_ms": 0})
    for wrong in wrongs:
        assert http_api("POST", f"{Q}/search", wrong).status == 400, wrong


def test_an_expression_that_would_never_end_is_ended(http_api: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    publish(channel, "q", b"a" * 100 + b"!")
    eventually(lambda: len(items(http_api)) == 1)
    (line,) = lines(http_api("POST", f"{Q}/search", {"where": {"regex": "(a+)+$"}}))[-1:]
    assert line["error"]["reason"] == "the expression takes too long"


def test_a_search_ends_when_its_client_goes(
    http_api: Http, channel: BlockingChannel, module_broker: BrokerProcess
) -> None:
    """It would take a minute; afterwards a browse has its turn at once."""
    channel.queue_declare("q", durable=True)
    publish(channel, "q", *[b"x"] * 2_000)
    eventually(lambda: http_api.get("queues/%2F/q")["messages_ready"] == 2_000)
    for _ in range(4):
        host, port = module_broker.management.split(":")
        connection = http.client.HTTPConnection(host, int(port))
        connection.request(
            "POST", f"/api/{Q}/search", json.dumps({"limit": 1_000}), {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        )
        assert connection.getresponse().read(10)
        connection.close()
    assert len(items(http_api)) == 50


def test_copies_of_a_message_are_found_over_queues(http_api: Http, channel: BlockingChannel) -> None:
    for name in ("one", "two", "three"):
        channel.queue_declare(name)
    publish(channel, "one", b"a", message_id="m", correlation_id="c")
    publish(channel, "two", b"b", message_id="other", correlation_id="c")
    publish(channel, "three", b"c", message_id="m")
    eventually(lambda: items(http_api, "three"))
    reply = lines(http_api("POST", "messages/%2F/copies", {"message_id": "m"}))
    assert [line["item"]["queue"] for line in reply if "item" in line] == ["one", "three"]
    assert reply[-1]["end"]["queues"] == 3
    reply = lines(http_api("POST", "messages/%2F/copies", {"correlation_id": "c"}))
    assert [line["item"]["queue"] for line in reply if "item" in line] == ["one", "two"]
    assert http_api("POST", "messages/%2F/copies", {}).status == 400


def payloads(api: Http, queue: str) -> list[int]:
    there: list[int] = []
    position = ""
    while position is not None:
        page = api.get(f"queues/%2F/{queue}/messages?limit=500{position}")
        there += [int(item["payload"]) for item in page["items"]]
        position = f"&after={page['next']}" if page["next"] else None
    return there


def test_a_kill_in_the_middle_of_a_move_leaves_each_message_in_one_place(own_broker: Any) -> None:
    """Kills after growing times, each in a move of what is left, until one has found some messages on either side."""
    broker = own_broker()
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.tx_select()
        for name in ("q", "target"):
            channel.queue_declare(name, durable=True)
        publish(channel, "q", *[b"%d" % number for number in range(MOVED)])
        channel.tx_commit()
    in_the_middle = 0
    for delay_s in (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56):
        api = Http(broker.management)
        before = len(payloads(api, "target"))
        end = api.get(f"{Q}?limit=1")["end"]
        killer = threading.Timer(delay_s, broker.crash)
        killer.start()
        with contextlib.suppress(OSError, http.client.HTTPException):  # whether it was answered or not
            api("POST", f"{Q}/move", {"filter": {}, "up_to_seq": end, "to": {"queue": "target"}})
        killer.join()
        broker.start()
        api = Http(broker.management)
        left, moved = payloads(api, "q"), payloads(api, "target")
        assert sorted(left + moved) == list(range(MOVED))
        in_the_middle += bool(left) and len(moved) > before
        if in_the_middle or not left:
            break
    assert in_the_middle
