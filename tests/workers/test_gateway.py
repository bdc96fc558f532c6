"""What a daemon with two workers says of itself, compared with a single broker that has the same in it."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker_process import BrokerProcess
from management.conftest import Http, quoted
from management.event_stream import EventStream
from support import eventually
from workers.conftest import QUEUES, VHOSTS
from workers.daemon_process import WorkersProcess

pytestmark = pytest.mark.own

VOLATILE = frozenset((  # ports, times, processes and what is made at random
    "as_of", "avg", "avg_rate", "backing_queue_status", "connected_at", "connection_details", "memory", "password_hash",
    "peer_port", "pid", "port", "rate", "recv_cnt", "recv_oct", "recv_oct_details", "samples", "send_cnt", "send_oct",
    "send_oct_details", "timestamp",
))  # fmt: skip


def plain(value: Any) -> Any:
    """A value of which two brokers must say the same."""
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if key != "idle_since"}  # it comes with time
        found = {key: plain(inner) for key, inner in value.items() if key not in VOLATILE}
        return found | dict.fromkeys(value.keys() & VOLATILE)
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, str) and " -> 127.0.0.1:" in value:
        return value.rpartition(" ")[2] if value.endswith(")") else "a connection"
    return value


def ask(broker: BrokerProcess, path: str, user: str = "guest") -> Any:
    return plain(Http(broker.management).get(path, user=user))


def counted(rows: list[Any]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


ORDERED = (
    "queues", "queues?columns=name,messages&sort=messages", "queues?sort=name&sort_reverse=true&columns=name",
    "queues/detailed?columns=name,vhost", "exchanges?columns=vhost,name,type", "exchanges", "bindings", "permissions",
    "topic-permissions", "parameters", "parameters/vhost-limits", "policies",
    "users?columns=name,tags,limits", "users/eve/permissions", "users/eve/topic-permissions",
    "global-parameters/colour", "vhosts?columns=name,messages,metadata", "whoami", "queues/east", "queues/west/beta",
    "vhosts/north", "exchanges/%2F/x/bindings/source", "connections?columns=vhost,user,channels,user_provided_name",
    "channels?columns=vhost,number,user,prefetch_count,consumer_count,messages_unacknowledged", "definitions/west",
    "health/checks/virtual-hosts", "health/checks/alarms", "health/checks/is-in-service", "cluster-name", "policies/east/p-1",
    "vhosts/east/connections?columns=user", "feature-flags", "auth/hash_password/x?columns=none",
)  # fmt: skip
UNORDERED = ("consumers", "vhost-limits", "connections", "channels", "connections/username/guest", "operator-policies")
TABLES = ("queues", "exchanges", "bindings", "policies", "users", "consumers", "vhosts", "connections", "channels")
PAGES = (
    "queues?page={}&page_size=3", "queues?page={}&page_size=3&sort=messages&sort_reverse=true",
    "queues?page={}&page_size=2&name=lt",
    "queues?page={}&page_size=3&name=^(al|be)&use_regex=true&columns=name,vhost", "exchanges?page={}&page_size=7&columns=name",
    "vhosts?page={}&page_size=3&columns=name", "connections?page={}&page_size=3&columns=user_provided_name",
    "channels?page={}&page_size=3&columns=vhost,number",
)  # fmt: skip


@pytest.mark.parametrize("path", ORDERED)
def test_an_answer_is_a_single_brokers(daemon: WorkersProcess, single: BrokerProcess, path: str) -> None:
    theirs = ask(single, path)
    if "queues" in path:  # a consumer's state is a matter of time
        eventually(lambda: ask(daemon, path) == theirs)
    assert ask(daemon, path) == theirs


@pytest.mark.parametrize("path", UNORDERED)
def test_a_list_has_a_single_brokers_rows(daemon: WorkersProcess, single: BrokerProcess, path: str) -> None:
    ours, theirs = ask(daemon, path), ask(single, path)
    assert len(ours) == len(theirs)
    assert counted(ours) == counted(theirs)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_has_a_single_brokers_rows(daemon: WorkersProcess, single: BrokerProcess, kind: str) -> None:
    ours, theirs = ask(daemon, f"table/{kind}"), ask(single, f"table/{kind}")
    assert (ours["columns"], ours["key"], ours.keys()) == (theirs["columns"], theirs["key"], theirs.keys())
    places = [ours["columns"].index(name) for name in ("vhost", *ours["key"]) if name in ours["columns"]]
    rows, others = ([[row[place] for place in places] for row in table["rows"]] for table in (ours, theirs))
    assert counted(rows) == counted(others)


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_a_single_brokers(daemon: WorkersProcess, single: BrokerProcess, path: str) -> None:
    for number in range(1, 8):
        replies = [Http(broker.management)("GET", path.format(number)) for broker in (daemon, single)]
        ours, theirs = (plain(reply.json) for reply in replies)
        if "sort" in path and "items" in ours:  # what has as many messages stands in any order
            assert [row["messages"] for row in ours.pop("items")] == [row["messages"] for row in theirs.pop("items")]
        assert (replies[0].status, ours) == (replies[1].status, theirs)
        if replies[0].status == 400:
            return
    assert "vhosts" not in path, "these have fewer pages"


@pytest.mark.parametrize("query", ["page=0", "page=x", "page=1&page_size=501", "page=1&name=(&use_regex=true", "page=9"])
def test_a_page_that_is_none_is_refused_alike(daemon: WorkersProcess, single: BrokerProcess, query: str) -> None:
    ours, theirs = (Http(broker.management)("GET", f"queues?{query}") for broker in (daemon, single))
    assert (ours.status, ours.json) == (400, theirs.json)
    nobody = daemon.http("GET", f"queues?{query}", user="")
    assert nobody.status == 401


def keys(value: Any) -> Any:
    """The tree of an answer's keys."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else type(value).__name__ if value is not None else None


@pytest.mark.parametrize("path", ["healthchecks/node/none?columns=x", "vhosts/none?columns=x"])
def test_a_refusal_is_whole_whatever_columns_are_asked_for(daemon: WorkersProcess, single: BrokerProcess, path: str) -> None:
    ours, theirs = (Http(broker.management)("GET", path) for broker in (daemon, single))
    assert (ours.status, ours.json) == (theirs.status, theirs.json)


def test_an_expression_that_takes_too_long_is_refused_and_nobody_waits_for_it(daemon: WorkersProcess) -> None:
    slow = quoted("^(a|b|ab|t|e|be|et|ta|eta)*(.?.?.?.?.?.?.?.?){40}$^")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(daemon.http, "GET", f"queues?page=1&name={slow}&use_regex=true")
        while not asked.done():
            assert daemon.http("GET", "whoami").status == 200
        assert (asked.result().status, asked.result().json["reason"]) == (400, "the expression takes too long")


def test_the_overview_and_the_node_have_a_single_brokers_keys_and_sums(daemon: WorkersProcess, single: BrokerProcess) -> None:
    settled = "overview?columns=object_totals,queue_totals.messages,queue_totals.messages_ready,message_stats.publish"
    assert eventually(lambda: ask(daemon, settled) == ask(single, settled))
    ours, theirs = (Http(broker.management).get("overview") for broker in (daemon, single))
    assert keys(ours) == keys(theirs)
    listeners = {(one["protocol"], one["port"]) for one in ours["listeners"]}
    assert ("http", int(daemon.management.rpartition(":")[2])) in listeners
    ours, theirs = (Http(broker.management).get("nodes")[0] for broker in (daemon, single))
    workers = ours.pop("workers")
    assert keys(ours) == keys(theirs)
    assert sorted(name for worker in workers for name in worker["vhosts"]) == sorted(VHOSTS)
    assert len(daemon.http.get("nodes/" + ours["name"] + "/internals")["stores"]) == len(VHOSTS)
    assert ours["mem_used"] > theirs["mem_used"]
    assert daemon.http.get("nodes/" + ours["name"] + "/memory")["memory"].keys() >= {"total", "binary"}


def test_who_may_see_little_sees_no_more(daemon: WorkersProcess, single: BrokerProcess) -> None:
    same = ("queues", "vhosts?columns=name", "exchanges?columns=name,vhost")
    for path in (*same, "connections", "permissions", "overview", "nodes"):
        for user in ("eve", "mona"):
            ours, theirs = (Http(broker.management)("GET", path, user=user) for broker in (daemon, single))
            assert ours.status == theirs.status, (path, user)
            if path in same:
                assert plain(ours.json) == plain(theirs.json)


def test_definitions_are_a_single_brokers(daemon: WorkersProcess, single: BrokerProcess) -> None:
    ours, theirs = (ask(broker, "definitions") for broker in (daemon, single))
    assert ours.keys() == theirs.keys()
    for section, entries in ours.items():
        if isinstance(entries, list):
            assert counted(entries) == counted(theirs[section]), section
    exported = json.loads(daemon.ctl("export_definitions", "-"))
    assert {section: len(entries) for section, entries in exported.items()} == {
        section: len(entries) for section, entries in ours.items()
    }
    found = daemon.http("POST", "definitions/diff", daemon.http.get("definitions")).json
    assert (found["counts"], found["add"]) == ({"add": 0, "change": 0, "only_here": 0}, [])


def test_a_file_that_one_worker_would_not_take_changes_nothing(daemon: WorkersProcess) -> None:
    before = ask(daemon, "definitions")
    file = {
        "vhosts": [{"name": "new-1"}, {"name": "new-2"}],
        "users": [{"name": "nina", "password": "nina", "tags": ""}],
        "queues": [
            {"vhost": "new-1", "name": "q", "durable": True, "auto_delete": False, "arguments": {}},
            {"vhost": "new-2", "name": "q", "durable": True, "auto_delete": False, "arguments": {"x-max-length": -1}},
        ],
    }
    assert daemon.http("POST", "definitions", file).status == 400
    assert ask(daemon, "definitions") == before
    assert daemon.http("POST", "definitions?dry_run=true", {"vhosts": [{"name": "new-3"}]}).json["counts"]["add"] == 1
    assert daemon.http("POST", "definitions", {"queues": [{"name": "q"}]}).status == 400
    assert daemon.http("POST", "definitions", {}, user="eve").status == 401
    assert daemon.http("POST", "definitions", {}, headers={"Origin": "https://evil.example"}).status == 403
    assert ask(daemon, "definitions") == before


def test_a_file_may_come_in_a_form(daemon: WorkersProcess) -> None:
    before = ask(daemon, "definitions")
    file = json.dumps(daemon.http.get("definitions"))
    form = f'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n{file}\r\n--x--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert daemon.http("POST", "definitions", form.encode(), headers=headers).status == 204
    assert daemon.http("POST", "definitions", b"--x--\r\n", headers=headers).status == 400
    assert ask(daemon, "definitions") == before


def test_what_is_written_through_the_gateway_is_known_to_all_workers(daemon: WorkersProcess) -> None:
    http = daemon.http
    made = [http("PUT", f"vhosts/made-{number}", {}).status for number in range(2)]
    workers = {daemon.worker_of(f"made-{number}") for number in range(2)}
    assert (made, workers) == ([201, 201], {0, 1})
    user = {"password": "una", "tags": "management", "permissions": {f"made-{number}": {"read": "r"} for number in range(2)}}
    assert http("PUT", "users/una", user).status == 201
    assert [row["vhost"] for row in http.get("users/una/permissions")] == ["made-0", "made-1"]
    for number in range(2):
        assert http("GET", f"queues/made-{number}", user="una").status == 200
        assert http("PUT", f"permissions/made-{number}/una", {"configure": ".*", "write": "", "read": ""}).status == 204
        assert http("PUT", f"queues/made-{number}/q", {}, user="una").status == 201
        assert http("PUT", f"policies/made-{number}/p", {"pattern": "", "definition": {"expires": 60_000}}).status == 201
    assert [row["name"] for row in http.get("queues?columns=name,vhost", user="una")] == ["q", "q"]
    preview = {"vhost": "made-1", "pattern": "", "apply-to": "queues", "definition": {"max-length": 1}, "priority": 9}
    assert http("POST", "policies/preview", preview).json["matched"] == 1
    assert http("DELETE", "users/una").status == 204
    assert [http("GET", f"queues/made-{number}", user="una").status for number in range(2)] == [401, 401]
    assert [http("DELETE", f"vhosts/made-{number}").status for number in range(2)] == [204, 204]
    assert {row["name"] for row in http.get("vhosts")} == set(VHOSTS)
    assert http("PUT", "vhosts/never", {}, user="mona").status == 401
    assert http("DELETE", "vhosts/never").status == 404


def test_a_browser_has_one_session_for_all_workers(daemon: WorkersProcess) -> None:
    http = daemon.http
    begun = http("POST", "session", {"username": "guest", "password": "guest"}, user="")
    headers = {"Cookie": begun.headers["set-cookie"].partition(";")[0]}
    token = headers | {"X-CSRF-Token": begun.json["csrf"]}
    assert "x-rabbitpy-session" not in begun.headers
    for vhost in VHOSTS:
        path = f"queues/{quoted(vhost)}/of-a-session"
        assert http("PUT", path, {}, user="", headers=headers).status == 403
        assert http("PUT", path, {}, user="", headers=token).status == 201
        assert http("DELETE", path, user="", headers=token).status == 204
    assert http("GET", "session", user="", headers=headers).json["name"] == "guest"
    assert http("POST", "session", {"username": "guest", "password": "wrong"}, user="").status == 401
    with EventStream(http, "table:queues?columns=vhost%2Cname", headers=headers) as stream:
        stream.until(lambda: len(stream.tables.get("table:queues?columns=vhost%2Cname", {})) == len(VHOSTS) * len(QUEUES))
        assert http("DELETE", "session", user="", headers=token).status == 204
        stream.until(lambda: stream.end)
    assert http("GET", "queues", user="", headers=headers).status == 401


def test_who_is_no_gateway_is_not_believed(daemon: WorkersProcess) -> None:
    told = {"peer": "127.0.0.1", "is_encrypted": False, "session": {"id": "x", "csrf": "y", "name": "guest"}}
    headers = {"X-Rabbitpy-Forwarded": json.dumps(told), "Cookie": "rabbitpy=x"}
    assert daemon.http("GET", "queues", user="", headers=headers).status == 401
    assert daemon.http("GET", "queues/%2F", user="", headers=headers).status == 401


def test_connections_and_channels_are_found_wherever_they_are(daemon: WorkersProcess) -> None:
    http = daemon.http
    for connection in http.get("connections"):
        name = quoted(connection["name"])
        assert http.get(f"connections/{name}")["vhost"] == connection["vhost"]
        channels = http.get(f"connections/{name}/channels")
        assert [http.get(f"channels/{quoted(channel['name'])}")["vhost"] for channel in channels] == [connection["vhost"]]
    assert http("GET", "connections/none").status == 404
    assert http("DELETE", "connections/none").status == 404


def test_messages_are_browsed_searched_and_watched_at_their_worker(daemon: WorkersProcess) -> None:
    http = daemon.http
    for vhost in VHOSTS:
        path = f"queues/{quoted(vhost)}/gamma"
        assert len(http.get(f"{path}/messages")["items"]) == len("gamma")
        found = http("POST", f"{path}/messages/search", {"where": {"properties": {"message_id": "gamma"}}, "limit": 3})
        assert found.body.count(b'"item"') == 3
        sent = {"properties": {}, "routing_key": "gamma.k", "payload": "x", "payload_encoding": "string"}
        assert http("POST", f"exchanges/{quoted(vhost)}/x/publish", sent).json == {"routed": True}
        got = http("POST", f"{path}/get", {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}).json
        assert len(got) == len("gamma") + 1
        assert http("POST", "route", {"vhost": vhost, "exchange": "x", "routing_key": "gamma.k"}).status == 200
        assert http("DELETE", f"{path}/contents").status == 204


def test_the_log_and_the_audit_are_of_all_workers_in_order(daemon: WorkersProcess) -> None:
    http = daemon.http
    for vhost in ("east", "north", "west"):
        assert http("PUT", f"queues/{vhost}/audited", {}).status == 201
        assert http("DELETE", f"queues/{vhost}/audited").status == 204
    first = http.get("audit?limit=4")["items"]
    rest = http.get(f"audit?limit=2&before={first[-1]['id']}")["items"]
    paths = [entry["path"] for entry in first + rest]
    assert paths == [f"queues/{vhost}/audited" for vhost in ("west", "west", "north", "north", "east", "east")]
    lines = http.get("log?limit=30")["lines"]
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    assert len({line["id"] for line in lines}) == 30


def test_graphs_and_histories_are_of_all_workers(daemon: WorkersProcess, single: BrokerProcess) -> None:
    ours, theirs = (Http(broker.management).get("topology") for broker in (daemon, single))
    assert {node["id"] for node in ours["nodes"]} == set(range(len(theirs["nodes"])))

    def ends(graph: dict[str, Any]) -> Counter[str]:
        nodes = {node["id"]: (node["vhost"], node["kind"], node["name"]) for node in graph["nodes"]}
        return counted([[nodes[edge["from"]], nodes[edge["to"]], edge["kind"]] for edge in graph["edges"]])

    assert ends(ours) == ends(theirs)
    history = daemon.http.get("history/node")
    assert {len(points) for points in history["series"].values()} == {len(history["times"])}
    assert eventually(lambda: [point for point in daemon.http.get("history/node")["series"]["messages"] if point])
    assert {"as_of", "items"} == daemon.http.get("attention").keys()


def test_pages_and_the_description_are_there(daemon: WorkersProcess, single: BrokerProcess) -> None:
    assert daemon.http("GET", "openapi.json").json == Http(single.management)("GET", "openapi.json").json
    for path in ("../", "../js/core/live.js", "index.html", "none", "../none"):
        ours, theirs = (Http(broker.management)("GET", path) for broker in (daemon, single))
        assert (ours.status, ours.body) == (theirs.status, theirs.body)
    assert daemon.http("OPTIONS", "queues").headers["allow"] == Http(single.management)("OPTIONS", "queues").headers["allow"]
    assert daemon.http("PUT", "queues").status == 405


def test_backups_are_those_of_all_workers(daemon: WorkersProcess, single: BrokerProcess) -> None:
    """Each vhost is backed up by its worker; a broker with one worker restores what they wrote, nothing purged among it."""
    http = daemon.http
    there = {row["name"]: row["messages"] for row in http.get("queues/east")}
    assert there["alpha"] == len("alpha")
    assert http("DELETE", "queues/east/delta/contents").status == 204
    there["delta"] = 0
    for vhost in VHOSTS:
        reply = http("POST", f"vhosts/{quoted(vhost)}/backup", {"name": f"backup-{VHOSTS.index(vhost)}"})
        assert (reply.status, reply.json["vhost"]) == (202, vhost)

    def over() -> list[Any]:
        jobs = http.get("backups")["jobs"]
        return jobs if all(job["state"] != "running" for job in jobs) else []

    jobs = eventually(over)
    assert {(job["vhost"], job["name"], job["state"]) for job in jobs} == {
        (vhost, f"backup-{number}", "done") for number, vhost in enumerate(VHOSTS)
    }
    assert [job["began"] for job in jobs] == sorted((job["began"] for job in jobs), reverse=True)
    found = http.get("backups")
    assert [file["name"] for file in found["files"]] == [f"backup-{number}" for number in range(len(VHOSTS))]
    assert http("POST", "vhosts/again/restore", {"name": "backup-1"}).json["reason"] == (
        "a daemon with several workers restores none"
    )
    assert http("POST", "vhosts/absent/backup", {"name": "b"}).status == 404
    assert http("POST", "vhosts/east/backup", {"name": "../b"}).status == 400
    single.ctl("restore_vhost", "of-workers", f"{found['folder']}/backup-{VHOSTS.index('east')}")
    rows = {row["name"]: row["messages"] for row in Http(single.management).get("queues/of-workers")}
    single.ctl("delete_vhost", "of-workers")
    assert rows == there
