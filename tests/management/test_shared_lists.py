"""A long list is made once for all who ask within the statistics interval, and names what there is whenever it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from broker_process import BrokerProcess
from management.conftest import Http
from rabbitpy_broker.management.api.shared_lists import KEPT_MAX, LONG, SharedLists, Sharing

QUEUE = {"vhost": "/", "durable": False, "auto_delete": False, "arguments": {}}
MESSAGE = {"properties": {}, "routing_key": "q1", "payload": "hello", "payload_encoding": "string"}


def test_numbers_are_of_the_interval_and_names_of_now(own_broker: Callable[..., BrokerProcess]) -> None:
    http = Http(own_broker({"collect_statistics_interval": 3_600_000}).management)

    def listed(path: str = "queues") -> dict[str, dict[str, object]]:
        return {row["name"]: row for row in http.get(path)}

    def publish() -> None:
        assert http("POST", "exchanges/%2F/amq.default/publish", MESSAGE).json == {"routed": True}

    names = {f"q{number}" for number in range(LONG + 1)}
    assert http("POST", "definitions", {"queues": [{"name": name, **QUEUE} for name in names]}).status in (
        201,
        204,
    )
    assert set(listed()) == names
    publish()
    assert listed()["q1"]["messages"] == 0
    assert listed("queues/%2F?columns=name,messages")["q1"]["messages"] == 1  # another list
    assert http.get("queues?page=1&page_size=1&name=q1000")["items"][0]["messages"] == 0
    assert http.get("queues/%2F/q1")["messages"] == 1
    assert http("PUT", "queues/%2F/new", {}).status == 201
    assert set(listed()) == names | {"new"}
    assert listed()["q1"]["messages"] == 1
    assert http("DELETE", "queues/%2F/new").status == 204
    assert http("PUT", "queues/%2F/other", {}).status == 201  # as many as before
    assert set(listed()) == names | {"other"}
    assert listed()["q1"]["policy"] is None
    assert http("PUT", "policies/%2F/all", {"pattern": "^q1$", "definition": {"max-length": 7}}).status == 201
    assert listed()["q1"]["policy"] == "all"
    assert http("PUT", "users/somebody", {"password": "somebody", "tags": "management"}).status == 201
    assert http.get("queues", user="somebody") == []  # whose vhosts are others


def test_a_page_of_a_long_list_is_of_now(own_broker: Callable[..., BrokerProcess]) -> None:
    http = Http(own_broker({"collect_statistics_interval": 3_600_000}).management)
    queues = [{"name": f"q{number}", **QUEUE} for number in range(LONG + 1)]
    assert http("POST", "definitions", {"queues": queues}).status in (201, 204)
    for messages in (0, 1):
        assert http.get("queues?page=1&page_size=500&name=q1")["items"][0]["messages"] == messages
        http("POST", "exchanges/%2F/amq.default/publish", MESSAGE)


def test_a_list_is_kept_for_less_than_the_interval() -> None:
    lists, sharing = SharedLists(5.0), Sharing("key", [object()])
    lists.keep(sharing, 10.0, [b"[]"])
    assert lists.find(sharing, 14.9) == [b"[]"]
    assert lists.find(Sharing("other", sharing.state), 14.9) is None
    assert lists.find(Sharing("key", [object()]), 14.9) is None
    assert lists.find(sharing, 15.0) is None
    lists.keep(sharing, 20.0, [b"[1]"])
    lists.tidy(25.0)
    assert lists.find(sharing, 20.0) is None


def test_few_are_kept() -> None:
    lists = SharedLists(5.0)
    for number in range(KEPT_MAX + 1):
        lists.keep(Sharing(number, []), 0.0, [b"%d" % number])
    assert lists.find(Sharing(0, []), 0.0) is None
    assert lists.find(Sharing(KEPT_MAX, []), 0.0) == [b"%d" % KEPT_MAX]
