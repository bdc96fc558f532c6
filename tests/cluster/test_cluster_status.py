"""What is told of a cluster: cluster_status, the API, health checks, attention and metrics, with all nodes and without one."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

import pytest

from broker_process import BrokerProcess, CtlFailed
from cluster.replicated import PATIENCE, Cluster, Replicated, publish
from perf.engines.postgres import PostgresServers
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.numbers import BOUNDS_S, SLOT_S, SLOTS, SLOW_S, CountedLog, Numbers, Pace
from rabbitpy_broker.cluster.progress import Progress
from rabbitpy_broker.cluster.status import ReplicaStatus, VHostStatus
from support import eventually

on_postgres = pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")
GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"}


def asked(node: BrokerProcess, path: str, body: object = None, method: str = "") -> tuple[int, Any]:
    """Status and answer of the API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{node.management}/api/{path}", data, GUEST, method=method or None)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
            return response.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def status_of(node: BrokerProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.ctl("cluster_status", "--formatter", "json"))
    return found


def row_of(node: BrokerProcess, vhost: Replicated) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in status_of(node)["replicated_vhosts"] if one["name"] == vhost.name)
    return found


def metric(broker: BrokerProcess, name: str, *, path: str = "/metrics", **labels: str) -> float:
    """The value of one series."""
    with urllib.request.urlopen(f"http://{broker.metrics}{path}", timeout=30) as response:
        text = response.read().decode()
    for line in text.splitlines():
        found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if found is not None and found[1] == name and dict(re.findall(r'(\w+)="([^"]*)"', found[2] or "")) == labels:
            return float(found[3])
    raise AssertionError(f"{name}{labels} is not in {path}")


def is_level(node: BrokerProcess, vhost: Replicated) -> bool:
    row = row_of(node, vhost)
    return bool(row["owner"]) and row["position"] > 0 and all(one["running"] and one["lag"] == 0 for one in row["replicas"])


@on_postgres
def test_a_cluster_is_shown_by_each_of_its_nodes(cluster: Cluster, vhost: Replicated):
    """By rabbitpy-ctl, as rabbitmqctl shows it, by the API, and by /metrics."""
    channel = vhost.publisher(vhost.owner)
    channel.queue_declare("orders", durable=True)
    publish(channel, "orders", range(20))
    for name, node in cluster.nodes.items():
        eventually(lambda node=node: is_level(node, vhost), timeout=PATIENCE)
        status = status_of(node)
        assert status["running_nodes"] == status["disk_nodes"] == sorted(cluster.nodes)
        assert set(status["versions"]) == set(status["listeners"]) == set(status["maintenance_status"]) == set(cluster.nodes)
        assert status["engine"]["is_reachable"] and status["engine"]["kind"] == "postgresql"
        text = node.ctl("cluster_status")
        for heading in ("Basics", "Disk Nodes", "Running Nodes", "Versions", "Alarms", "Listeners", "Engine"):
            assert f"{heading}\n\n" in text
        assert f"{vhost.name}, owner: {vhost.owner}, term: " in text
        code, shown = asked(node, "cluster")
        assert code == 200 and shown["node"] == name and shown["is_clustered"]
        assert [one["name"] for one in shown["nodes"] if one["running"]] == sorted(cluster.nodes)
        assert next(one for one in shown["vhosts"] if one["name"] == vhost.name)["owner"] == vhost.owner
        assert metric(node, "rabbitpy_cluster_nodes") == 3
        assert metric(node, "rabbitpy_cluster_engine_reachable") == 1
    owner = cluster.nodes[vhost.owner]
    assert metric(owner, "rabbitpy_replication_append_seconds_count") == metric(
        owner, "rabbitpy_replication_appended_blocks_total"
    )
    assert metric(owner, "rabbitpy_replication_appended_blocks_total", path="/metrics/per-object", vhost=vhost.name) >= 20
    assert metric(owner, "rabbitpy_replication_owned", path="/metrics/per-object", vhost=vhost.name) == 1
    follower = next(name for name in cluster.nodes if name != vhost.owner)
    lag = "rabbitpy_replication_follower_lag_entries"
    assert metric(owner, lag, path="/metrics/per-object", vhost=vhost.name, node=follower) == 0


@on_postgres
def test_a_node_that_is_away_is_seen_and_makes_another_critical(cluster: Cluster, vhost: Replicated):
    """Each check names what is wrong, and passes when the node is back."""
    checks = (("check_replica_lag",), ("check_vhost_owners",), ("check_if_node_is_quorum_critical",))
    paths = ("health/checks/replica-lag", "health/checks/vhost-owners", "health/checks/node-is-quorum-critical")
    owner = cluster.nodes[vhost.owner]
    away = next(name for name in cluster.nodes if name != vhost.owner)
    eventually(lambda: is_level(owner, vhost), timeout=PATIENCE)
    for check, path in zip(checks, paths, strict=True):
        owner.ctl(*check)
        assert asked(owner, path)[0] == 200, path
    cluster.nodes[away].crash()
    eventually(lambda: away not in status_of(owner)["running_nodes"], timeout=PATIENCE)
    assert status_of(owner)["disk_nodes"] == sorted(cluster.nodes)
    assert f"Nodes Away\n\n{away}\n" in owner.ctl("cluster_status")
    owner.ctl("check_vhost_owners")
    with pytest.raises(CtlFailed, match=f"vhost '{vhost.name}' on node {away}: does not run"):
        owner.ctl("check_replica_lag", "30")
    with pytest.raises(CtlFailed, match=vhost.name):
        owner.ctl("check_if_node_is_quorum_critical")
    code, failure = asked(owner, "health/checks/node-is-quorum-critical")
    assert code == 503 and vhost.name in failure["virtual-hosts"]
    code, failure = asked(owner, "health/checks/replica-lag/60")
    assert code == 503 and {(one["vhost"], one["node"]) for one in failure["replicas"]} >= {(vhost.name, away)}
    items = asked(owner, "attention")[1]["items"]
    assert any(one["kind"] == "replica_away" and one["target"]["name"] == away for one in items)
    assert metric(owner, "rabbitpy_cluster_nodes_away") == 1
    cluster.start()
    eventually(lambda: is_level(owner, vhost), timeout=PATIENCE)
    for check in checks:
        owner.ctl(*check)


@on_postgres
def test_each_node_lists_all_nodes_with_what_they_use(cluster: Cluster, vhost: Replicated):
    """/nodes, a node by its name, its memory, and what /overview says of where the cluster listens."""
    names, there = sorted(cluster.nodes), cluster.nodes[vhost.owner]
    away = next(name for name in names if name != vhost.owner)
    vhost.connect(vhost.owner)
    for name, node in cluster.nodes.items():
        rows = eventually(lambda node=node: with_figures(asked(node, "nodes")[1]), timeout=PATIENCE)
        assert [row["name"] for row in rows] == names
        assert len({frozenset(row) for row in rows}) == 1
        own = asked(node, "nodes?columns=os_pid,name,fd_total,mem_limit")[1]
        for row in own:
            assert node.process is not None and cluster.nodes[row["name"]].process is not None
            assert row["os_pid"] == str(cluster.nodes[row["name"]].process.pid)
            assert row["fd_total"] > 1 and row["mem_limit"] > 1
        other = next(one for one in names if one != name)
        assert asked(node, f"nodes/{other}")[1]["name"] == other
        assert asked(node, f"nodes/{other}/memory")[1]["memory"]["total"]["rss"] > 0
        assert asked(node, f"nodes/{other}/memory/relative")[1]["memory"]["total"] == 100
        assert asked(node, f"healthchecks/node/{other}")[1] == {"status": "ok"}
        assert asked(node, "nodes?disable_stats=true")[1] == [{"name": one, "type": "disc", "running": True} for one in names]
        overview = asked(node, "overview")[1]
        ports = {(one["node"], one["port"]) for one in overview["listeners"] if one["protocol"] == "amqp"}
        assert ports == {(one, cluster.nodes[one].port) for one in names}
        assert {one["node"] for one in overview["contexts"]} == set(names)
    assert asked(there, "nodes/nobody")[0] == asked(there, "nodes/nobody/memory")[0] == 404
    other = next(cluster.nodes[name] for name in names if name not in (vhost.owner, away))
    assert eventually(lambda: next(row for row in asked(other, "nodes")[1] if row["name"] == vhost.owner)["sockets_used"]) >= 1
    cluster.nodes[away].ctl("set_disk_free_limit", "1000TB")
    alarm = eventually(lambda: asked(there, "health/checks/alarms")[1].get("alarms"), timeout=PATIENCE)
    assert alarm == [{"node": away, "resource": "disk"}]
    assert asked(there, "health/checks/local-alarms")[0] == 200
    assert asked(there, f"nodes/{away}")[1]["disk_free_alarm"]
    assert asked(there, f"healthchecks/node/{away}")[1]["status"] == "failed"
    cluster.nodes[away].crash()
    gone = {"name": away, "type": "disc", "running": False, "being_drained": False}
    eventually(lambda: gone in asked(there, "nodes")[1], timeout=PATIENCE)
    assert asked(there, f"nodes/{away}") == (200, gone)
    assert asked(there, f"nodes/{away}/memory") == (200, {"memory": "not_available"})
    assert asked(there, f"healthchecks/node/{away}")[1]["status"] == "failed"
    assert away not in {one["node"] for one in asked(there, "overview")[1]["listeners"]}


def with_figures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, once all nodes have told what they use."""
    return rows if all(row.get("mem_used") and row.get("uptime") for row in rows) else []


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END $$;
CREATE TRIGGER slow BEFORE INSERT ON rabbitpy.block FOR EACH STATEMENT EXECUTE FUNCTION slow();
"""


@on_postgres
def test_a_slow_engine_needs_attention(cluster: Cluster, vhost: Replicated):
    """Every node says whose appends are slow, until they are not."""
    assert isinstance(cluster.servers, PostgresServers)
    channel = vhost.publisher(vhost.owner)
    channel.queue_declare("q", durable=True)
    cluster.servers.primary.sql(SLOW)

    def items() -> list[Any]:
        publish(channel, "q", [1])
        every = [asked(node, "attention")[1]["items"] for node in cluster.nodes.values()]
        return [one for found in every for one in found if one["kind"] == "engine_slow"]

    try:
        found = eventually(lambda: all_of(items(), len(cluster.nodes)), timeout=PATIENCE)
        shown = asked(cluster.nodes[vhost.owner], "cluster")[1]["engine"]
    finally:
        cluster.servers.primary.sql("DROP TRIGGER slow ON rabbitpy.block; DROP FUNCTION slow()")
    assert [one["target"] for one in found] == [{"kind": "node", "name": vhost.owner}] * len(cluster.nodes)
    assert all(one["severity"] == "warning" and one["figures"]["append_ms"] >= 1000 * SLOW_S for one in found)
    assert shown["is_reachable"] and shown["append_ms"] >= 1000 * SLOW_S
    eventually(lambda: not items(), timeout=PATIENCE)


def all_of(items: list[Any], count: int) -> list[Any]:
    return items if len(items) == count else []


def test_appends_are_slow_when_they_are_for_some_time():
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.mean_s() is None and pace.slow_s() == 0
    pace.appended(2.0)
    assert pace.mean_s() == 2.0
    assert pace.slow_s() == 0  # it may have been one hiccup
    now = SLOT_S
    pace.appended(1.0)
    assert pace.slow_s() == 1.5
    pace.appended(0.001)
    assert pace.slow_s() > SLOW_S
    for _ in range(100):
        pace.appended(0.001)
    assert pace.slow_s() == 0
    now = 2 * SLOT_S * SLOTS
    assert pace.mean_s() is None and pace.slow_s() == 0


def test_a_replica_is_behind_for_as_long_as_the_log_is_known_to_be_further():
    progress = Progress()
    for second in range(10):
        progress.note("log", 100 + second, needed=104, now=float(second))
    assert progress.end("log") == 109
    assert progress.behind_s("log", 109, now=9.0) == 0
    assert progress.behind_s("log", 105, now=9.0) == 3.0
    assert progress.behind_s("log", 104, now=9.0) == 4.0
    progress.note("log", 109, needed=109, now=20.0)
    assert progress.behind_s("log", 109, now=21.0) == 0
    progress.keep([])
    assert progress.end("log") is None


def replicas(*lags_s: float | None) -> VHostStatus:
    """Nodes 0, 1, ...; None for one that does not run."""
    found = [
        ReplicaStatus(str(number), lag_s is not None, number == 0, 5, 0, lag_s or 0.0) for number, lag_s in enumerate(lags_s)
    ]
    return VHostStatus("vhost", "0", 1, 5, False, found)


@pytest.mark.parametrize(
    ("vhost", "critical"),
    [
        (replicas(0, 0, 0), []),
        (replicas(0, 0, None), ["0", "1"]),
        (replicas(0, 0, 60), ["0", "1"]),
        (replicas(0, None, None), ["0"]),
        (replicas(0, 0, 0, 0, None), []),
        (replicas(0, 0), ["0", "1"]),
    ],
)
def test_a_node_is_critical_if_a_majority_needs_it(vhost: VHostStatus, critical: list[str]):
    """One that is far behind is no part of a majority."""
    assert [one.node for one in vhost.replicas if vhost.is_critical(one.node)] == critical


async def test_appends_are_counted_for_a_vhost_and_for_all():
    engine = MemoryServers(conditional=True).connect("a")
    await engine.create_log("log")
    numbers = Numbers()
    log = CountedLog(engine.log("log"), numbers.of("vhost"))
    assert await log.append(b"12345", term=2, expected=0) == 0
    with pytest.raises(Exception, match="term"):
        await log.append(b"1", term=1, expected=1)
    for one in (numbers.of("vhost"), numbers.whole):
        assert (one.appends, one.appended_bytes, one.append_failures) == (1, 5, 1)
        assert sum(one.buckets) == 1 and len(one.buckets) == len(BOUNDS_S) + 1
