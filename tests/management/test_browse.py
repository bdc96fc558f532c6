"""Messages as the browser of the management API shows them, with real clients at work: everything in place, nothing changed."""

from __future__ import annotations

import base64
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess
from management.conftest import Http, quoted
from support import eventually

pytestmark = pytest.mark.own


@pytest.fixture
def http(module_broker: BrokerProcess) -> Http:
    return Http(module_broker.management)


@pytest.fixture
def channel(clean_channel: BlockingChannel) -> BlockingChannel:
    return clean_channel


def publish(channel: BlockingChannel, queue: str, *bodies: bytes, persistent: bool = True, **properties: Any) -> None:
    if persistent:
        properties["delivery_mode"] = 2
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def ready(http: Http, queue: str) -> int:
    return http.get(f"queues/%2F/{quoted(queue)}")["messages_ready"]


def bodies(page: Any) -> list[str]:
    return [item["payload"] for item in page["items"]]


def all_pages(http: Http, path: str, query: str, way: str = "after", follow: str = "next") -> list[Any]:
    items: list[Any] = []
    position = ""
    while True:
        page = http.get(f"{path}?{query}{position}")
        items += page["items"]
        if page[follow] is None:
            return items
        position = f"&{way}={page[follow]}"


def test_ready_and_unacked_messages_are_shown_in_place(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    publish(channel, "q", b"one", b"two", headers={"a": 1}, message_id="m", content_type="text/plain")
    publish(channel, "q", b"\xff\x00", persistent=False)
    eventually(lambda: ready(http, "q") == 3)
    channel.basic_qos(prefetch_count=1)
    taken: list[Any] = []
    tag = channel.basic_consume("q", lambda *given: taken.append(given))
    eventually(lambda: channel.connection.process_data_events(0) or taken)
    page = http.get("queues/%2F/q/messages")
    assert (page["ready"], page["unacknowledged"], page["next"], page["previous"]) == (2, 1, None, None)
    first, second, third = page["items"]
    assert (first["state"], second["state"], third["state"]) == ("unacked", "ready", "ready")
    assert (first["position"], second["position"], third["position"]) == (None, 0, 1)
    holder = first["holder"]
    assert (holder["kind"], holder["consumer_tag"], holder["delivery_tag"], holder["user"]) == ("consumer", tag, 1, "guest")
    assert holder["channel"] == f"{holder['connection']} (1)"
    assert holder["channel"] in [one["name"] for one in http.get("channels")]
    assert holder["held_at_least_s"] == 0
    assert (second["payload"], second["payload_encoding"]) == ("two", "string")
    assert (second["exchange"], second["routing_key"]) == ("", "q")
    assert second["properties"] == {
        "content_type": "text/plain", "headers": {"a": 1}, "delivery_mode": 2, "message_id": "m",
    }  # fmt: skip
    assert (second["persistent"], third["persistent"], third["properties"]) == (True, False, {})
    assert (third["payload_encoding"], base64.b64decode(third["payload"])) == ("base64", b"\xff\x00")
    assert bodies(http.get("queues/%2F/q/messages?state=ready&encoding=base64"))[0] == base64.b64encode(b"two").decode()
    assert bodies(http.get("queues/%2F/q/messages?state=unacked")) == ["one"]
    one = http.get(f"queues/%2F/q/messages/{second['cursor']}")
    assert one == second
    saved = http("GET", f"queues/%2F/q/messages/{third['cursor']}?raw=1")
    assert (saved.status, saved.body, saved.headers["content-type"]) == (200, b"\xff\x00", "application/octet-stream")
    assert saved.headers["content-disposition"].startswith("attachment")
    channel.basic_ack(1)
    eventually(lambda: http("GET", f"queues/%2F/q/messages/{first['cursor']}").status == 404)


def test_a_browse_leaves_no_mark(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})
    publish(channel, "q", b"one", b"two")
    eventually(lambda: ready(http, "q") == 2)
    figures = ("messages", "messages_ready", "consumers", "message_stats", "idle_since")
    before = {name: http.get("queues/%2F/q").get(name) for name in figures}
    for _ in range(5):
        page = http.get("queues/%2F/q/messages")
        assert [item["redelivered"] for item in page["items"]] == [False, False]
        assert [item["delivery_count"] for item in page["items"]] == [None, None]
    after = http.get("queues/%2F/q")
    assert after["messages_ready"] == before["messages_ready"]
    assert after.get("message_stats", {}).get("deliver_get", 0) == 0
    method, _, body = channel.basic_get("q")
    assert (method.redelivered, body) == (False, b"one")
    channel.basic_nack(1)
    eventually(lambda: ready(http, "q") == 2)
    (returned,) = [item for item in http.get("queues/%2F/q/messages")["items"] if item["returned"]]
    assert (returned["payload"], returned["delivery_count"], returned["state"]) == ("one", 1, "ready")


def test_a_long_queue_is_paged_in_both_directions(http: Http, channel: BlockingChannel) -> None:
    """With messages in memory, in the journal, in segments, wholly on disk, large ones, and some that are unacked."""
    channel.queue_declare("q", durable=True, arguments={"x-queue-mode": "lazy"})
    sent = [b"%05d" % number + (b"x" * 5_000 if number % 500 == 0 else b"") for number in range(18_000)]
    publish(channel, "q", *sent[:17_500])
    eventually(lambda: http.get("queues/%2F/q")["backing_queue_status"]["delta"][2] > 500, 30)
    publish(channel, "q", *sent[17_500:])
    eventually(lambda: ready(http, "q") == 18_000, 30)
    for _ in range(20):
        channel.basic_get("q")
    path = "queues/%2F/q/messages"
    expected = [body.decode() for body in sent]
    items = all_pages(http, path, "limit=500")
    assert [item["payload"] for item in items] == expected
    assert [item["state"] for item in items] == ["unacked"] * 20 + ["ready"] * 17_980
    assert [item["position"] for item in items] == [None] * 20 + list(range(17_980))
    assert "delta" in {item["stage"] for item in items}
    page = http.get(f"{path}?limit=500&state=ready&order=tail")
    items = page["items"] + http.get(f"{path}?limit=500&order=tail&after={page['next']}")["items"]
    assert [item["payload"] for item in items] == expected[:-1001:-1]
    page = http.get(f"{path}?limit=3&before={items[900]['cursor']}&truncate=3")
    assert bodies(page) == [body[:3] for body in expected[-904:-901]]
    assert all(item["truncated"] for item in page["items"])
    assert ready(http, "q") == 17_980


def test_a_page_goes_on_where_it_was_though_messages_are_consumed(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q")
    publish(channel, "q", *[b"%d" % number for number in range(10)], persistent=False)
    eventually(lambda: ready(http, "q") == 10)
    page = http.get("queues/%2F/q/messages?limit=4")
    for _ in range(6):
        channel.basic_get("q", auto_ack=True)
    assert bodies(http.get(f"queues/%2F/q/messages?after={page['next']}")) == ["6", "7", "8", "9"]


def test_priorities_are_shown_in_the_order_of_delivery(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q", arguments={"x-max-priority": 5})
    for priority in (0, 5, 3, 5):
        publish(channel, "q", b"%d" % priority, persistent=False, priority=priority)
    eventually(lambda: ready(http, "q") == 4)
    page = http.get("queues/%2F/q/messages?limit=3")
    assert bodies(page) == ["5", "5", "3"]
    assert [item["position"] for item in page["items"]] == [0, 1, 2]
    assert bodies(http.get(f"queues/%2F/q/messages?after={page['next']}")) == ["0"]
    assert bodies(http.get("queues/%2F/q/messages?order=tail")) == ["0", "3", "5", "5"]


def test_positions_of_another_queue_and_of_before_a_restart_are_gone(http: Http, channel: BlockingChannel) -> None:
    for name in ("q", "other"):
        channel.queue_declare(name)
        publish(channel, name, b"x", persistent=False)
    eventually(lambda: ready(http, "q") == ready(http, "other") == 1)
    (item,) = http.get("queues/%2F/q/messages")["items"]
    for path in (f"other/messages/{item['cursor']}", f"other/messages?after={item['cursor']}"):
        assert http("GET", f"queues/%2F/{path}").status == 410
    channel.queue_delete("q")
    channel.queue_declare("q")
    assert http("GET", f"queues/%2F/q/messages/{item['cursor']}").status == 410
    for wrong in ("x", "1.2", "1.2.x", "..", "-1.0.0", "9" * 40):
        assert http("GET", f"queues/%2F/q/messages/{wrong}").status in (400, 410)


def test_what_makes_no_sense_is_refused(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q")
    queries = ("limit=0", "limit=501", "limit=x", "state=dead", "order=up", "encoding=x", "truncate=-1", "after=a.0.1&before=b")
    for query in queries:
        assert http("GET", f"queues/%2F/q/messages?{query}").status == 400, query
    assert http("GET", "queues/%2F/absent/messages").status == 404


def test_what_has_expired_is_shown_until_it_is_dropped(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q")
    publish(channel, "q", b"stays", persistent=False)
    publish(channel, "q", b"goes", persistent=False, expiration="1")
    eventually(lambda: ready(http, "q") == 2)
    found = eventually(lambda: [item for item in http.get("queues/%2F/q/messages")["items"] if item["expired"]])
    assert [item["payload"] for item in found] == ["goes"]
    assert found[0]["expires_at"] > 0
    assert ready(http, "q") == 2


def test_an_answer_has_a_bounded_size(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q")
    publish(channel, "q", *[b"x" * 3_000_000] * 4, persistent=False)
    eventually(lambda: ready(http, "q") == 4)
    reply = http("GET", "queues/%2F/q/messages?truncate=100000000")
    assert len(reply.body) < 10_000_000
    assert 1 <= len(reply.json["items"]) < 4
    assert reply.json["next"]
    assert len(http.get("queues/%2F/q/messages")["items"]) == 4


def test_who_may_look(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("q")
    channel.queue_declare("mine", exclusive=True)
    publish(channel, "mine", b"secret", persistent=False)
    for name, tag, read in (("reader", "management", ".*"), ("writer", "administrator", "^$")):
        http("PUT", f"users/{name}", {"password": name, "tags": tag})
        http("PUT", f"permissions/%2F/{name}", {"configure": "^$", "write": ".*", "read": read})
    assert http("GET", "queues/%2F/q/messages", user="reader").status == 200
    assert http("GET", "queues/%2F/q/messages", user="writer").status == 401
    assert http("GET", "queues/%2F/mine/messages", user="reader").status == 400
    eventually(lambda: bodies(http.get("queues/%2F/mine/messages")) == ["secret"])


ODD_NAMES = ("<img src=x onerror=alert(1)>", "a/b", "a%b", '"', "é", "messages", "search")


def test_odd_names_are_shown_as_they_are(http: Http, channel: BlockingChannel) -> None:
    for name in ODD_NAMES:
        channel.queue_declare(name)
        channel.exchange_declare(name, "fanout")
        channel.queue_bind(name, name)
        channel.basic_publish(name, name, name.encode(), pika.BasicProperties(headers={name: name}, app_id=name))
        path = f"queues/%2F/{quoted(name)}/messages"
        (item,) = eventually(lambda: http.get(path)["items"])  # noqa: B023 -- called at once
        assert (item["exchange"], item["routing_key"], item["payload"]) == (name, name, name)
        assert item["properties"] == {"headers": {name: name}, "app_id": name}
        reply = http("GET", path)
        assert reply.headers["content-type"].startswith("application/json")
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_record_of_deaths_is_read_out_of_the_headers(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("dead")
    channel.queue_declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    publish(channel, "q", b"x", persistent=False)
    eventually(lambda: ready(http, "q") == 1)
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    eventually(lambda: ready(http, "dead") == 1)
    (item,) = http.get("queues/%2F/dead/messages")["items"]
    (death,) = item["deaths"]
    assert (death["queue"], death["reason"], death["exchange"], death["routing_keys"], death["count"]) == (
        "q", "rejected", "", ["q"], 1,
    )  # fmt: skip
    assert death["time"] > 1_700_000_000
    channel.basic_publish("", "dead", b"y", pika.BasicProperties(headers={"x-death": ["nonsense", {"queue": 1}]}))
    eventually(lambda: ready(http, "dead") == 2)
    assert http.get("queues/%2F/dead/messages")["items"][1]["deaths"][0]["queue"] == ""


def test_what_a_delayed_exchange_keeps_is_listed_in_the_order_in_which_it_is_due(http: Http, channel: BlockingChannel) -> None:
    channel.exchange_declare("late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
    for delay in (90_000, 30_000, 60_000, 30_000):
        properties = pika.BasicProperties(headers={"x-delay": delay}, delivery_mode=2)
        channel.basic_publish("late", "k", b"%d" % delay, properties)
    path = "exchanges/%2F/late/delayed"
    eventually(lambda: http.get(path)["delayed"] == 4)
    page = http.get(f"{path}?limit=2")
    assert bodies(page) == ["30000", "30000"]
    assert {item["state"] for item in page["items"]} == {"delayed"}
    assert bodies(http.get(f"{path}?after={page['next']}")) == ["60000", "90000"]
    assert http("GET", "exchanges/%2F/amq.direct/delayed").status == 400


def test_a_stream_is_browsed_by_offset(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("copy")
    channel.confirm_delivery()
    publish(channel, "s", *[b"%d" % number for number in range(20)])
    path = "queues/%2F/s/messages"
    assert [item["payload"] for item in all_pages(http, path, "limit=7")] == [str(number) for number in range(20)]
    page = http.get(f"{path}?order=tail&limit=3")
    assert (bodies(page), page["ready"], page["unacknowledged"]) == (["19", "18", "17"], 20, 0)
    item = page["items"][0]
    assert (item["seq_id"], item["position"], item["properties"]["headers"]["x-stream-offset"]) == (19, 19, 19)
    assert item["stored_at"] > 1_700_000_000_000
    assert http.get(f"{path}/{item['cursor']}")["payload"] == "19"
    assert bodies(http.get(f"{path}?state=unacked")) == []
    assert http("POST", f"{path}/delete", {"seqs": [item["cursor"]]}).status == 400
    copied = http("POST", f"{path}/copy", {"filter": {"text": "1"}, "up_to_seq": page["end"], "to": {"queue": "copy"}})
    assert copied.json["done"] == 11
