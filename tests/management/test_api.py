"""What clients of the management API rely on, promise by promise."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import socket
from collections.abc import Callable
from typing import Any

import pika
import pytest

from broker_process import BrokerProcess
from management.conftest import Http, quoted
from support import eventually

pytestmark = pytest.mark.own

MESSAGE = {"properties": {}, "routing_key": "q", "payload": "hello", "payload_encoding": "string"}
LOOK = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}
PUBLISH = "exchanges/%2F/amq.default/publish"


@pytest.mark.parametrize(
    "name",
    ["a/b", "a%b", "a{b}", ".", "..", "é", "a b", "a+b", "ü" * 127, "amq.default", "q?x=1", "a#b"],
)
def test_a_queue_may_have_any_name(http: Http, name: str) -> None:
    if name.startswith("amq."):
        assert http("PUT", f"queues/%2F/{quoted(name)}", {}).status == 401
        return
    path = f"queues/%2F/{quoted(name).replace('.', '%2E')}"
    assert http("PUT", path, {}).status == 201
    assert http.get(path)["name"] == name
    assert http.get(f"{path}/bindings")[0]["routing_key"] == name
    assert http("DELETE", path).status == 204


def test_a_published_message_is_got_and_stays(http: Http) -> None:
    assert http("PUT", "queues/%2F/q", {"durable": True}).status == 201
    headers = {"a": 1, "b": [True, 2.5, {"c": "d"}]}
    properties = {"delivery_mode": 2, "headers": headers, "timestamp": 1_700_000_000, "priority": 0}
    assert http("POST", PUBLISH, {**MESSAGE, "properties": properties}).json == {"routed": True}
    assert http("POST", PUBLISH, {**MESSAGE, "routing_key": "nowhere"}).json == {"routed": False}
    for redelivered in (False, True):
        (found,) = http("POST", "queues/%2F/q/get", LOOK).json
        assert (found["payload"], found["redelivered"], found["properties"]) == ("hello", redelivered, properties)
    assert len(http("POST", "queues/%2F/q/get", {**LOOK, "ackmode": "ack_requeue_false"}).json) == 1
    assert http("POST", "queues/%2F/q/get", LOOK).json == []


def test_a_message_that_is_published_persistently_survives_a_crash(http: Http, api_broker: BrokerProcess) -> None:
    http("PUT", "queues/%2F/q", {"durable": True})
    assert http("POST", PUBLISH, {**MESSAGE, "properties": {"delivery_mode": 2}}).json == {"routed": True}
    api_broker.crash()
    api_broker.start()
    (found,) = Http(api_broker.management)("POST", "queues/%2F/q/get", LOOK).json
    assert found["payload"] == "hello"


def test_a_large_message_is_published_and_got(http: Http) -> None:
    http("PUT", "queues/%2F/q", {})
    payload = base64.b64encode(bytes(range(256)) * 65_536).decode()
    assert http("POST", PUBLISH, {**MESSAGE, "payload": payload, "payload_encoding": "base64"}).json == {"routed": True}
    (found,) = http("POST", "queues/%2F/q/get", {**LOOK, "truncate": 300}).json
    assert found["payload_bytes"] == 256 * 65_536
    assert base64.b64decode(found["payload"])[:256] == bytes(range(256))


def test_rejected_messages_go_to_the_dead_letter_exchange(http: Http) -> None:
    http("PUT", "queues/%2F/dead", {})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    http("PUT", "queues/%2F/q", {"arguments": arguments})
    http("POST", PUBLISH, MESSAGE)
    assert len(http("POST", "queues/%2F/q/get", {**LOOK, "ackmode": "reject_requeue_false"}).json) == 1
    eventually(lambda: http("POST", "queues/%2F/dead/get", LOOK).json)


def test_figures_of_a_queue_are_there_at_once_and_rates_follow(http: Http, api_broker: BrokerProcess) -> None:
    http("PUT", "queues/%2F/q", {})
    queue = http.get("queues/%2F/q")
    assert (queue["messages"], queue["effective_policy_definition"], queue["consumers"]) == (0, {}, 0)
    assert "message_stats" not in queue
    with pika.BlockingConnection(api_broker.parameters()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()

        def published() -> bool:
            channel.basic_publish("", "q", b"x")
            stats = http.get("queues/%2F/q").get("message_stats", {})
            return bool(stats) and stats["publish_details"]["rate"] > 0

        eventually(published)
        eventually(lambda: http.get("overview")["message_stats"]["publish_details"]["rate"] > 0 or published())
        queue = http.get("queues/%2F/q?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5")
        assert queue["messages"] == queue["messages_ready"] == queue["message_stats"]["publish"]
        samples = queue["messages_details"]["samples"]
        assert len(samples) == 13
        assert samples[0]["timestamp"] - samples[1]["timestamp"] == 5_000
        assert samples[-1]["sample"] <= samples[0]["sample"] <= queue["messages"]
        for method, _, _ in channel.consume("q", inactivity_timeout=1):
            assert method is not None
            channel.basic_ack(method.delivery_tag)
            break
        stats = http.get("queues/%2F/q")["message_stats"]
        assert stats["ack"] == 1
        assert stats["deliver"] == stats["deliver_get"] >= 1
        (exchange,) = [one for one in http.get("exchanges/%2F") if one["name"] == ""]
        assert exchange["message_stats"]["publish_in"] == exchange["message_stats"]["publish_out"] == stats["publish"]
        (vhost,) = http.get("vhosts")
        assert vhost["message_stats"]["publish"] == stats["publish"]
    eventually(lambda: http.get("queues/%2F/q")["message_stats"]["publish_details"]["rate"] == 0)


def test_counts_of_a_vhost_outlive_its_channels(http: Http, api_broker: BrokerProcess) -> None:
    http("PUT", "queues/%2F/q", {})
    with pika.BlockingConnection(api_broker.parameters()) as connection:
        for _ in range(3):
            connection.channel().basic_publish("", "q", b"x")
    eventually(lambda: http.get("vhosts/%2F")["message_stats"]["publish"] == 3)
    vhost = http.get("vhosts/%2F")
    assert vhost["recv_oct"] > 0
    assert vhost["messages"] == 3


def test_reads_and_writes_of_a_socket_are_counted(http: Http, api_broker: BrokerProcess) -> None:
    """Some for the handshake, and at least one each for a question and its answer."""
    with pika.BlockingConnection(api_broker.parameters()) as connection:

        def counts() -> tuple[int, int]:
            one = eventually(lambda: http.get("connections"))[0]
            return one["recv_cnt"], one["send_cnt"]

        reads, writes = counts()
        assert 3 <= reads <= 6
        assert 3 <= writes <= 6
        for _ in range(10):
            connection.channel()
        now = counts()
        assert now[0] >= reads + 10
        assert now[1] >= writes + 10
        assert api_broker.ctl("list_connections", "-s", "recv_cnt", "send_cnt").split() == [str(count) for count in now]


def test_a_connection_is_closed_with_a_reason(http: Http, api_broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(api_broker.parameters())
    (found,) = http.get("connections")
    assert found["user"] == "guest"
    assert http("DELETE", f"connections/{quoted(found['name'])}", headers={"X-Reason": "enough"}).status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=5)
    assert "enough" in closed.value.reply_text
    assert http("GET", f"connections/{quoted(found['name'])}").status == 404


def test_pages_have_what_is_asked_for(http: Http) -> None:
    for number in range(12):
        http("PUT", f"queues/%2F/page-{number:02}", {})
    http("PUT", "queues/%2F/other", {})
    page = http.get("queues?page=2&page_size=5&name=PAGE&columns=name")
    assert [one["name"] for one in page["items"]] == [f"page-{number:02}" for number in range(5, 10)]
    counts = {key: page[key] for key in ("total_count", "filtered_count", "item_count", "page", "page_count", "page_size")}
    assert counts == {
        "total_count": 13, "filtered_count": 12, "item_count": 5, "page": 2, "page_count": 3, "page_size": 5,
    }  # fmt: skip
    page = http.get("queues?page=1&name=^(?=^page-0)&use_regex=true&sort=name&sort_reverse=true&columns=name")
    assert [one["name"] for one in page["items"]][:2] == ["page-09", "page-08"]
    http("POST", PUBLISH, {**MESSAGE, "routing_key": "page-07"})
    longest = http.get("queues?sort=messages&sort_reverse=true&page=1&page_size=1&columns=name")
    assert longest["items"] == [{"name": "page-07"}]


def test_definitions_make_another_broker_the_same(http: Http, own_broker: Callable[..., BrokerProcess]) -> None:
    http("PUT", "vhosts/v", {"description": "d"})
    http("PUT", "queues/v/q", {"durable": True, "arguments": {"x-max-length": 5}})
    http("PUT", "exchanges/v/x", {"type": "topic", "durable": True})
    http("POST", "bindings/v/e/x/q/q", {"routing_key": "a.#", "arguments": {"n": 1}})
    http("PUT", "policies/v/p", {"pattern": "^q", "definition": {"message-ttl": 1000}})
    http("PUT", "users/u", {"password": "u", "tags": "management"})
    sent = http("GET", "definitions?download=file.json")
    assert sent.headers["content-disposition"] == 'attachment; filename="file.json"'
    other = Http(own_broker().management)
    boundary = "part"
    form = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f.json"\r\n'
        "Content-Type: application/json\r\n\r\n"
    ).encode()
    form += sent.body + f"\r\n--{boundary}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    assert other("POST", "definitions", form, headers=kind).status == 204
    assert other.get("bindings/v/e/x/q/q")[0]["arguments"] == {"n": 1}
    assert other.get("whoami", user="u") == {"name": "u", "tags": ["management"]}

    def content(of: Http) -> dict[str, Any]:
        found = of.get("definitions")
        return {key: value for key, value in found.items() if key not in ("global_parameters", "users")}

    assert content(other) == content(http)


def test_other_sites_scripts_are_refused(http: Http) -> None:
    assert http("PUT", "queues/%2F/q", {}, headers={"Origin": "https://evil.example"}).status == 403
    assert http("PUT", "queues/%2F/q", {}, headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    assert http("PUT", "queues/%2F/q", {}, headers={"Origin": f"http://{http.address}"}).status == 201
    reply = http("GET", "overview", headers={"Origin": "https://evil.example"})
    assert reply.status == 200
    assert "access-control-allow-origin" not in reply.headers


def test_a_head_is_a_get_without_a_body(http: Http) -> None:
    reply = http("HEAD", "overview")
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 100


@pytest.mark.parametrize(
    ("taken", "given"),
    [("gzip", "gzip"), ("deflate, gzip", "gzip"), ("deflate", "deflate"), ("identity", None)],
)
def test_long_answers_are_compressed(http: Http, taken: str, given: str | None) -> None:
    reply = http("GET", "overview", headers={"Accept-Encoding": taken})
    assert reply.headers["content-encoding"] == given
    assert reply.json["management_version"]


def test_a_list_of_many_queues_comes_whole(http: Http) -> None:
    queues = [{"name": f"q{number}", "vhost": "/", "durable": False} for number in range(3000)]
    assert http("POST", "definitions", {"queues": queues}).status == 204
    assert {one["name"] for one in http.get("queues")} == {queue["name"] for queue in queues}
    assert len(http.get("bindings")) == 3000


def test_a_client_may_leave_in_the_middle_of_a_list(http: Http, api_broker: BrokerProcess) -> None:
    queues = [{"name": f"q{number}", "vhost": "/", "durable": False} for number in range(3000)]
    assert http("POST", "definitions", {"queues": queues}).status == 204
    host, port = api_broker.management.rsplit(":", 1)
    for _ in range(3):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"GET /api/queues HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
    assert len(http.get("queues")) == 3000
    api_broker.assert_clean_log()


def test_changes_are_there_after_a_restart(http: Http, api_broker: BrokerProcess) -> None:
    http("PUT", "queues/%2F/kept", {"durable": True})
    http("PUT", "global-parameters/g", {"value": {"a": 1}})
    http("PUT", "cluster-name", {"name": "colony"})
    api_broker.crash()
    api_broker.start()
    again = Http(api_broker.management)
    assert again.get("queues/%2F/kept")["durable"] is True
    assert again.get("global-parameters/g")["value"] == {"a": 1}
    assert again.get("overview")["cluster_name"] == "colony"


def test_nothing_is_taken_while_the_broker_stops(http: Http, api_broker: BrokerProcess) -> None:
    with contextlib.closing(api_broker.wire().open()):  # does not answer connection.close, which the stop waits for
        api_broker.signal(signal.SIGTERM)
        eventually(lambda: http("GET", "auth", user="").status == 503)
        reply = http("PUT", "queues/%2F/late", {"durable": True})
        assert (reply.status, reply.json["error"]) == (503, "service_unavailable")
        assert api_broker.wait() == 0
    api_broker.start()
    assert Http(api_broker.management)("GET", "queues/%2F/late").status == 404


def test_an_alarm_is_a_failed_check(own_broker: Callable[..., BrokerProcess]) -> None:
    http = Http(own_broker({"vm_memory_high_watermark": 0}).management)
    reply = http("GET", "health/checks/alarms")
    assert reply.status == 503
    assert reply.json["alarms"][0]["resource"] == "memory"
    (node,) = http.get("nodes")
    assert node["mem_alarm"] is True


def test_without_a_place_there_is_no_api(own_broker: Callable[..., BrokerProcess]) -> None:
    assert own_broker(args=["--management-listen", ""]).management == ""


def test_a_default_port_that_is_taken_is_no_reason_not_to_start(own_broker: Callable[..., BrokerProcess]) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def is_taken() -> bool:
            try:
                taken.bind(("127.0.0.1", 15672))
            except OSError:
                return False
            return True

        with contextlib.suppress(pytest.fail.Exception):  # who has it for so long keeps it: as good
            eventually(is_taken, timeout=10)
            taken.listen()
        broker = own_broker(args=["--management-listen", "auto"])
        assert broker.management == ""
        assert broker.events("no management API")


def test_a_protected_vhost_is_not_deleted(http: Http) -> None:
    http("PUT", "vhosts/v", {"description": "d"})
    assert http("POST", "vhosts/v/deletion/protection").status == 204
    assert http("DELETE", "vhosts/v").status == 412
    http("PUT", "vhosts/v", {"description": "another"})
    metadata = http.get("vhosts/v")["metadata"]
    assert (metadata["description"], metadata["protected_from_deletion"]) == ("another", True)
    assert http("DELETE", "vhosts/v/deletion/protection").status == 204
    assert http("DELETE", "vhosts/v").status == 204


def test_what_is_no_json_is_told(http: Http) -> None:
    assert http("PUT", "queues/%2F/q", b"{").json == {"error": "bad_request", "reason": "not_json"}
    assert json.loads(http("PUT", "users/x", {}).body)["reason"] == "tags_not_present"


def test_a_quorum_queue_says_so_and_names_its_one_member(http: Http) -> None:
    assert http("PUT", "queues/%2F/q", {"durable": True, "arguments": {"x-queue-type": "quorum"}}).status == 201
    assert http("PUT", "queues/%2F/classic", {"durable": True}).status == 201
    node = http.get("overview")["node"]
    found = http.get("queues/%2F/q")
    assert (found["type"], found["arguments"]) == ("quorum", {"x-queue-type": "quorum"})
    assert (found["leader"], found["members"], found["online"]) == (node, [node], [node])
    assert "backing_queue_status" not in found
    other = http.get("queues/%2F/classic")
    assert other["type"] == "classic"
    assert not {"leader", "members", "online"} & other.keys()
    assert {each["name"]: each["type"] for each in http.get("definitions")["queues"]} == {"q": "quorum", "classic": "classic"}


def test_a_stream_says_how_far_it_is(http: Http) -> None:
    arguments = {"x-queue-type": "stream", "x-max-age": "1h"}
    assert http("PUT", "queues/%2F/s", {"durable": True, "arguments": arguments}).status == 201
    message = {"properties": {}, "routing_key": "s", "payload": "x", "payload_encoding": "string"}
    for _ in range(3):
        assert http("POST", "exchanges/%2F/amq.default/publish", message).json == {"routed": True}
    node = http.get("overview")["node"]

    def whole() -> Any:
        found = http.get("queues/%2F/s")
        return found if found["messages"] == 3 else None

    found = eventually(whole)
    assert (found["type"], found["arguments"], found["state"]) == ("stream", arguments, "running")
    assert (found["leader"], found["members"], found["online"], found["readers"]) == (node, [node], [node], {node: 0})
    assert (found["first_offset"], found["committed_offset"], found["messages_unacknowledged"]) == (0, 2, 0)
    assert "backing_queue_status" not in found
    assert http.get("overview")["queue_totals"]["messages_ready"] == 3
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    refused = http("POST", "queues/%2F/s/get", get)
    assert (refused.status, "basic.get not supported by stream queues" in refused.json["reason"]) == (400, True)
    assert http("DELETE", "queues/%2F/s/contents").status == 400
    shown = http.get("queues/%2F/s/messages")["items"]
    assert [(item["seq_id"], item["payload"]) for item in shown] == [(0, "x"), (1, "x"), (2, "x")]
    assert http("POST", "queues/%2F/s/messages/search", {}).body.count(b'{"item"') == 3
    for what in ("delete", "move", "retry"):
        assert "is a stream" in http("POST", f"queues/%2F/s/messages/{what}", {}).json["reason"]
    for path in ("internals", "bindings"):
        assert http("GET", f"queues/%2F/s/{path}").status == 200
    assert http("DELETE", "queues/%2F/s").status == 204


def test_what_a_quorum_queue_cannot_be_is_refused(http: Http) -> None:
    reply = http("PUT", "queues/%2F/q", {"durable": False, "arguments": {"x-queue-type": "quorum"}})
    assert (reply.status, reply.json["error"]) == (400, "bad_request")
    assert "invalid property 'non-durable'" in reply.json["reason"]
    http("PUT", "queues/%2F/q", {"durable": True, "arguments": {"x-queue-type": "quorum"}})
    assert "if-unused" in http("DELETE", "queues/%2F/q?if-unused=true").json["reason"]
    assert http("DELETE", "queues/%2F/q").status == 204


def test_queues_get_the_default_type_of_their_vhost(http: Http) -> None:
    assert http("PUT", "vhosts/v", {"default_queue_type": "quorum"}).status == 201
    assert http.get("vhosts/v")["default_queue_type"] == "quorum"
    http("PUT", "queues/v/durable", {"durable": True})
    http("PUT", "queues/v/passing", {"durable": False})
    assert {each["name"]: each["type"] for each in http.get("queues/v")} == {"durable": "quorum", "passing": "classic"}
    assert http("PUT", "vhosts/w", {"default_queue_type": "tape"}).status == 400


def test_a_policy_may_be_for_one_type_of_queues(http: Http) -> None:
    for name, arguments in (("classic", {}), ("quorum", {"x-queue-type": "quorum"})):
        http("PUT", f"queues/%2F/{name}", {"durable": True, "arguments": arguments})
        policy = {"pattern": "", "definition": {"max-length": 7}, "apply-to": f"{name}_queues"}
        assert http("PUT", f"policies/%2F/{name}", policy).status == 201
    for name in ("classic", "quorum"):
        found = http.get(f"queues/%2F/{name}")
        assert (found["policy"], found["effective_policy_definition"]) == (name, {"max-length": 7})
