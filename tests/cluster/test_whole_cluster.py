"""The management API of any node is the whole cluster's: lists, totals, what is at another node, and nodes that are away."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

import pytest

from broker_process import BrokerProcess, CtlFailed, ctl_command
from cluster.engine_rigs import on_one_engine
from cluster.replicated import Cluster, Replicated
from management.conftest import Http, Reply
from management.event_stream import EventStream
from support import eventually, unique

pytestmark = on_one_engine


class Three:
    """A replicated vhost with a queue and a client at its owner, and a node that does not own it and has a vhost of its own."""

    def __init__(self, cluster: Cluster, vhost: Replicated) -> None:
        self.cluster = cluster
        self.vhost = vhost.name
        self.owner = vhost.owner
        self.here, self.third = [name for name in cluster.nodes if name != vhost.owner]
        self.http = Http(cluster.nodes[self.here].management)
        self.of_owner = Http(cluster.nodes[self.owner].management)
        self.plain = unique("plain")
        third = Http(cluster.nodes[self.third].management)
        assert third("PUT", f"vhosts/{self.plain}", {}).status == 201
        self.channel: Any = vhost.connect(vhost.owner).channel()
        self.channel.queue_declare("orders", durable=True)
        self.channel.basic_publish("", "orders", b"1")
        self.channel.basic_consume("orders", lambda *_: None)
        assert third("PUT", f"queues/{self.plain}/local", {}).status == 201
        for name in cluster.nodes:
            http = Http(cluster.nodes[name].management)
            eventually(lambda http=http: is_whole(http("GET", "queues")))


@pytest.fixture
def three(cluster: Cluster, vhost: Replicated) -> Three:
    return Three(cluster, vhost)


def is_whole(reply: Reply) -> bool:
    return reply.status == 200 and "X-Rabbitpy-Nodes-Missing" not in reply.headers


class As(Http):
    """A user whose password is its name."""

    def __init__(self, user: str, address: str) -> None:
        super().__init__(address)
        self._user = user

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        return super().__call__(method, path, body, **{**more, "user": self._user})


def found(http: Http, path: str, vhost: str) -> list[dict[str, Any]]:
    rows = http.get(path)
    return [row for row in (rows["items"] if isinstance(rows, dict) else rows) if row["vhost"] == vhost]


def test_lists_and_totals_are_of_all_nodes(three: Three):
    for name in three.cluster.nodes:
        http = Http(three.cluster.nodes[name].management)
        eventually(lambda http=http: [row["consumers"] for row in found(http, "queues", three.vhost)] == [1])
        assert [(row["name"], row["node"]) for row in found(http, "queues", three.vhost)] == [("orders", three.owner)]
        assert [(row["name"], row["node"]) for row in found(http, "queues", three.plain)] == [("local", three.third)]
        assert [row["node"] for row in found(http, "connections", three.vhost)] == [three.owner]
        assert [row["node"] for row in found(http, "channels", three.vhost)] == [three.owner]
        assert {row["node"] for row in found(http, "exchanges", three.vhost)} == {three.owner}
        assert [row["destination"] for row in found(http, "bindings", three.vhost)] == ["orders"]
        consumers = [row for row in http.get("consumers") if row["queue"]["vhost"] == three.vhost]
        assert [row["node"] for row in consumers] == [three.owner]
        rows = {row["name"]: row for row in http.get("vhosts")}
        assert rows[three.vhost]["messages"] == 1
        assert rows[three.plain]["cluster_state"] == {three.third: "running"}
        assert rows["/"]["cluster_state"] == dict.fromkeys(three.cluster.nodes, "running")
        overview = http.get("overview")
        assert overview["node"] == name
        assert overview["object_totals"]["queues"] == len(http.get("queues"))
        assert overview["object_totals"]["connections"] == overview["object_totals"]["channels"] == 1
        assert overview["queue_totals"]["messages"] == sum(row["messages"] for row in http.get("queues"))


def test_pages_order_filters_and_columns_go_over_all(three: Three):
    for number in range(3):
        assert three.of_owner("PUT", f"queues/{three.vhost}/paged-{2 * number}", {}).status == 201
        path = f"queues/{three.plain}/paged-{2 * number + 1}"
        assert Http(three.cluster.nodes[three.third].management)("PUT", path, {}).status == 201
    page = three.http.get("queues?page=2&page_size=2&name=paged&sort=name&sort_reverse=true&columns=name,node")
    assert page["items"] == [{"name": "paged-3", "node": three.third}, {"name": "paged-2", "node": three.owner}]
    assert (page["filtered_count"], page["page_count"], page["item_count"]) == (6, 3, 2)
    assert three.http("GET", "queues?page=9&page_size=2&name=paged").status == 400
    named = three.http.get("queues?columns=name")
    assert {"name": "orders"} in named
    assert {"name": "local"} in named
    names = three.http.get(f"vhosts?page=1&page_size=500&name={three.plain}&columns=name")
    assert (names["items"], names["total_count"] > 1) == ([{"name": three.plain}], True)
    table = three.http.get("table/queues?columns=vhost,name,node")
    assert table["key"] == ["vhost", "name", "node"]
    assert [three.vhost, "orders", three.owner] in table["rows"]
    assert [three.plain, "local", three.third] in table["rows"]
    assert all(len(row) == 1 for row in three.http.get("table/queues?columns=name")["rows"])


def test_what_another_node_has_is_used_by_its_path(three: Three):
    http = three.http
    for vhost, node in ((three.vhost, three.owner), (three.plain, three.third)):
        at = f"queues/{vhost}/made"
        assert http("PUT", at, {"durable": True}).status == 201
        assert http.get(at)["node"] == node
        sent = {"routing_key": "made", "payload": "x", "payload_encoding": "string", "properties": {}}
        assert http("POST", f"exchanges/{vhost}/amq.default/publish", sent).json == {"routed": True}
        taken = http("POST", f"{at}/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}).json
        assert [one["payload"] for one in taken] == ["x"]
        assert http.get(f"{at}/messages")["items"] == []
        assert http("DELETE", at).status == 204
        assert http("GET", at).status == 404
        assert [row["name"] for row in http.get(f"vhosts/{vhost}/connections")] == (
            [http.get("connections")[0]["name"]] if vhost == three.vhost else []
        )
    assert http.get(f"vhosts/{three.vhost}")["replication"]["owner"] == three.owner
    assert {row["user"] for row in http.get(f"vhosts/{three.vhost}/permissions")} == {"guest"}
    assert http("GET", "queues/absent/q").status == 404
    name = http.get("connections")[0]["name"]
    assert http.get(f"connections/{name.replace(' ', '%20').replace('>', '%3E')}")["node"] == three.owner
    assert http("DELETE", f"connections/{name.replace(' ', '%20').replace('>', '%3E')}").status == 204
    eventually(lambda: http.get("connections") == [])
    assert http("PUT", f"nodes/{three.third}/maintenance", {}).status == 204
    assert http.get(f"nodes/{three.third}/maintenance") == {"maintenance": True}
    assert http("DELETE", f"nodes/{three.third}/maintenance").status == 204
    assert http("DELETE", f"vhosts/{three.plain}").status == 204
    assert three.plain not in [row["name"] for row in http.get("vhosts")]


def test_a_user_sees_at_other_nodes_what_it_may_see_there(three: Three):
    admin = three.http
    name = unique("reader")
    assert admin("PUT", f"users/{name}", {"password": name, "tags": "management"}).status == 201
    reader = As(name, three.cluster.nodes[three.here].management)
    eventually(lambda: is_whole(reader("GET", "queues")))
    assert reader.get("queues") == []
    assert reader.get("connections") == []
    claimed = {"X-Rabbitpy-Forwarded": json.dumps({"peer": "127.0.0.1", "is_encrypted": False, "user": "guest"})}
    assert reader("GET", "queues", headers=claimed).json == []
    assert reader("GET", f"queues/{three.vhost}/orders", headers=claimed).status == 401
    assert reader.get("overview")["object_totals"]["queues"] == 0
    assert reader("GET", f"queues/{three.vhost}/orders").status == 401
    wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert reader("POST", f"queues/{three.vhost}/orders/get", wanted).status == 401
    assert reader("PUT", f"nodes/{three.third}/maintenance", {}).status == 401
    assert admin("PUT", f"permissions/{three.vhost}/{name}", {"configure": "", "write": "", "read": ".*"}).status == 201
    eventually(lambda: [row["name"] for row in reader.get("queues")] == ["orders"])
    assert reader("PUT", f"queues/{three.vhost}/other", {}).status == 401
    assert reader("GET", f"queues/{three.plain}/local").status == 401
    assert [row["name"] for row in reader.get("vhosts")] == [three.vhost]


def test_pages_are_told_of_what_changes_at_all_nodes(three: Three):
    queue = f"queue:{three.vhost}/orders"
    local = f"queue:{three.plain}/local"
    third = three.cluster.nodes[three.third]
    with EventStream(three.http, "overview", "table:queues", "nodes", queue, local) as page:
        of_owner, of_third = (three.vhost, "orders", three.owner), (three.plain, "local", three.third)
        page.until(lambda: {of_owner, of_third} <= set(page.tables.get("table:queues", {})))
        page.until(lambda: page.objects.get(queue) and page.objects.get(local))
        page.until(lambda: page.objects.get("overview") and page.objects["overview"]["totals"]["connections"] == 1)
        assert page.objects["nodes"]["name"] == page.objects["overview"]["node"]["name"] == three.here
        assert three.of_owner("PUT", f"queues/{three.vhost}/new", {}).status == 201
        page.until(lambda: (three.vhost, "new", three.owner) in page.tables["table:queues"])
        three.channel.basic_publish("", "new", b"1")
        page.until(lambda: page.tables["table:queues"][three.vhost, "new", three.owner]["messages"] == 1)
        third.signal(signal.SIGSTOP)
        try:
            page.until(lambda: of_third not in page.tables["table:queues"])
            assert of_owner in page.tables["table:queues"]
        finally:
            third.signal(signal.SIGCONT)
        page.until(lambda: of_third in page.tables["table:queues"])
        assert page.end == ""


def test_a_node_that_hangs_is_left_out_and_named(three: Three):
    http, third = three.http, three.cluster.nodes[three.third]
    third.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        replies = [http("GET", path) for path in ("queues", "overview", "vhosts", "connections?page=1", "table/queues")]
        assert time.monotonic() - began < 4.0  # the first waits for two seconds, and the others do not
        assert {(reply.status, reply.headers["X-Rabbitpy-Nodes-Missing"]) for reply in replies} == {(200, three.third)}
        assert [row["name"] for row in found(http, "queues", three.vhost)] == ["orders"]
        assert found(http, "queues", three.plain) == []
    finally:
        third.signal(signal.SIGCONT)
    eventually(lambda: [row["name"] for row in found(http, "queues", three.plain)] == ["local"], timeout=30)
    assert is_whole(http("GET", "queues"))


def test_a_page_that_was_opened_at_the_first_node_is_told_of_the_others(three: Three):
    third = three.cluster.nodes[three.third]
    assert Http(third.management)("PUT", f"queues/{three.plain}/kept", {"durable": True}).status == 201
    for name in (three.third, three.owner):
        three.cluster.nodes[name].stop()
    eventually(lambda: [row["name"] for row in three.http.get("nodes") if row["running"]] == [three.here], timeout=30)
    with EventStream(three.http, "table:queues") as page:
        page.until(lambda: "table:queues" in page.tables)
        assert (three.plain, "kept", three.third) not in page.tables["table:queues"]
        three.cluster.start()
        page.until(lambda: (three.plain, "kept", three.third) in page.tables["table:queues"])


def test_a_request_for_a_vhost_whose_owner_hangs_is_answered(three: Three):
    http, owner = three.http, three.cluster.nodes[three.owner]
    owner.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        first = http("GET", f"queues/{three.vhost}/orders")
        assert (first.status, time.monotonic() - began < 10.0) in ((503, True), (200, True))  # its lease is 3 s
        eventually(lambda: http("GET", f"queues/{three.vhost}/orders").status == 200, timeout=60)
    finally:
        owner.signal(signal.SIGCONT)
    assert http.get(f"queues/{three.vhost}/orders")["node"] != three.owner


def listed(node: BrokerProcess, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """What rabbitpy-ctl lists, and what it says besides."""
    command = [*ctl_command(), "--data-dir", str(node.data_dir), *arguments, "--formatter", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout), done.stderr


def test_the_lists_of_ctl_are_of_all_nodes(three: Three):
    names = three.cluster.nodes
    for node in names.values():
        assert listed(node, "list_queues", "-p", three.vhost) == ([{"name": "orders", "messages": 1}], "")
        assert listed(node, "list_queues", "-p", three.plain, "name") == ([{"name": "local"}], "")
        assert len(listed(node, "list_connections")[0]) == len(listed(node, "list_channels")[0]) == 1
        assert listed(node, "list_consumers", "-p", three.vhost, "queue_name") == ([{"queue_name": "orders"}], "")
        assert listed(node, "list_bindings", "-p", three.vhost, "destination_name")[0] == [{"destination_name": "orders"}]
        assert {"name": "amq.topic", "type": "topic"} in listed(node, "list_exchanges", "-p", three.plain)[0]
        assert listed(node, "list_stream_consumers", "-p", three.vhost) == ([], "")
    here = names[three.here]
    for command in ("list_queues", "list_exchanges", "list_bindings", "list_consumers"):
        assert listed(here, command, "-p", three.vhost, "--local") == ([], "")
    assert listed(here, "list_connections", "--local") == listed(here, "list_channels", "--local") == ([], "")
    assert listed(names[three.third], "list_queues", "-p", three.plain, "--local")[0] == [{"name": "local", "messages": 0}]
    for number, name in enumerate(sorted(names)):  # a vhost that each has for itself: the rows of each, this one's first
        assert Http(names[name].management)("PUT", f"queues/%2F/{three.plain}-{number}", {}).status in (201, 204)
    rows = [row["name"] for row in listed(here, "list_queues", "name")[0] if row["name"].startswith(three.plain)]
    assert sorted(rows) == [f"{three.plain}-{number}" for number in range(3)]
    assert rows[0] == f"{three.plain}-{sorted(names).index(three.here)}"
    with pytest.raises(CtlFailed, match="weight"):
        here.ctl("list_queues", "weight")


def test_definitions_of_the_cluster_are_one_file(three: Three):
    for number, name in enumerate(three.cluster.nodes):
        http = Http(three.cluster.nodes[name].management)
        http("PUT", f"queues/%2F/kept-{number}", {"durable": True})
        http("PUT", f"policies/{three.plain}/short", {"pattern": "local", "definition": {"max-length": 5}})
    here = three.cluster.nodes[three.here]
    mine, file = (json.loads(here.ctl("export_definitions", "-", *options)) for options in ((), ("--cluster",)))
    names = [vhost["name"] for vhost in file["vhosts"]]
    assert len(names) == len(set(names))
    assert {three.vhost, three.plain} <= set(names) - {vhost["name"] for vhost in mine["vhosts"]}
    own = [queue for queue in file["queues"] if queue["vhost"] == "/"]
    assert own == [queue for queue in mine["queues"] if queue["vhost"] == "/"]
    found = {queue["name"] for queue in file["queues"] if queue["vhost"] in (three.vhost, three.plain)}
    assert found == {"local", "orders"}
    assert [one["name"] for one in file["policies"] if one["vhost"] == three.plain] == ["short"]
    assert {"guest"} == {one["user"] for one in file["permissions"] if one["vhost"] == three.vhost}
    assert (file["users"], file["global_parameters"]) == (mine["users"], mine["global_parameters"])
    assert file.keys() == mine.keys()
    with pytest.raises(CtlFailed, match="is owned by node"):
        here.ctl("import_definitions", "-", stdin=json.dumps(file))


def test_the_audit_is_of_all_nodes(three: Three):
    for name, node in three.cluster.nodes.items():
        assert Http(node.management)("PUT", f"queues/%2F/audited-{name}", {}).status in (201, 204)
    items = page = three.http.get("audit?limit=2")["items"]
    while len(page) == 2:
        page = three.http.get(f"audit?limit=2&before={items[-1]['id']}")["items"]
        items = items + page
    assert [item["id"] for item in items] == sorted({item["id"] for item in items}, reverse=True)
    made = [(item["node"], item["path"]) for item in items if "audited" in item["path"]]
    assert sorted(made) == sorted((name, f"queues/%2F/audited-{name}") for name in three.cluster.nodes)
    assert three.http.get("audit?columns=total") == {"total": len(items)}


def test_ctl_leaves_out_a_node_that_hangs_and_names_it(three: Three):
    here, third = (three.cluster.nodes[name] for name in (three.here, three.third))
    third.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        rows, said = listed(here, "list_queues", "-p", three.vhost, "name")
        assert (rows, time.monotonic() - began < 6.0) == ([{"name": "orders"}], True)
        assert said == f"Node {three.third} does not answer, and what it has is not listed\n"
        assert listed(here, "list_queues", "-p", three.plain, "name")[0] == []
        assert listed(here, "list_queues", "--local")[1] == ""
    finally:
        third.signal(signal.SIGCONT)
    eventually(lambda: listed(here, "list_queues", "-p", three.plain, "name") == ([{"name": "local"}], ""), timeout=30)


def test_ctl_of_nodes_without_a_management_api_lists_what_they_have(three: Three):
    here, third = (three.cluster.nodes[name] for name in (three.here, three.third))
    third.stop()
    third.management_listen = ""
    third.start()
    try:
        eventually(lambda: listed(third, "list_queues", "-p", three.vhost)[1].count("does not answer") == 2)
        assert listed(third, "list_queues", "-p", three.vhost)[0] == []
        eventually(lambda: listed(here, "list_queues", "-p", three.vhost, "name")[0] == [{"name": "orders"}])
        assert listed(here, "list_queues")[1] == f"Node {three.third} does not answer, and what it has is not listed\n"
    finally:
        third.stop()
        third.management_listen = "127.0.0.1:0"
        third.start()
    eventually(lambda: listed(here, "list_queues")[1] == "", timeout=30)
