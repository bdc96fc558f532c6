"""How many replicas a vhost gets, by whichever way it is made; definitions that go with it; global parameters of all nodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from broker_process import BrokerProcess, CtlFailed
from cluster.replicated import PATIENCE, Cluster, Replicated
from cluster.test_cluster_status import asked, status_of
from rabbitpy_broker.cluster.engines import engine_for
from rabbitpy_broker.cluster.membership import VHostRecord, record_key
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.shared_parameters import SharedParameters
from rabbitpy_broker.cluster.shared_table import NotShared
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.management.replicas import rules_of
from support import eventually, unique

on_postgres = pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")


def replicas_of(node: BrokerProcess, vhost: str) -> int:
    """0 for one that is not replicated, or that the node does not know."""
    found = [one for one in status_of(node)["replicated_vhosts"] if one["name"] == vhost]
    return len(found[0]["replicas"]) if found else 0


@on_postgres
def test_replicas_are_made_by_the_api_and_by_definitions_files(cluster: Cluster, vhost: Replicated, tmp_path: Path):
    """What one node exports another imports, on as many nodes; with another number a vhost is refused."""
    one, two, _ = cluster.nodes.values()
    made = unique("made")
    assert asked(one, f"vhosts/{made}", {"replicas": 2}, "PUT")[0] == 201
    assert made in one.ctl("list_vhosts", "-q").split()
    eventually(lambda: replicas_of(two, made) == 2, timeout=PATIENCE)
    assert asked(one, f"vhosts/{made}", {"replicas": 2}, "PUT")[0] == 204
    assert asked(one, f"vhosts/{made}", {"replicas": 3}, "PUT")[0] == 400
    assert asked(one, f"vhosts/{unique('more')}", {"replicas": 5}, "PUT")[0] == 400
    row = asked(one, f"vhosts/{made}")[1]
    assert row["replication"]["owner"] == row["replication"]["replicas"][0]["node"] and len(row["cluster_state"]) == 2
    assert asked(one, f"queues/{made}/group", {"durable": True, "arguments": {"x-queue-type": "quorum"}}, "PUT")[0] == 201
    members = [replica["node"] for replica in row["replication"]["replicas"]]
    queue = asked(one, f"queues/{made}/group")[1]
    assert (queue["leader"], queue["members"], sorted(queue["online"])) == (members[0], members, sorted(members))
    group = json.loads(one.ctl("quorum_status", "-p", made, "group", "--formatter", "json"))
    assert [(member["Node Name"], member["Raft State"]) for member in group] == list(
        zip(members, ("leader", "follower"), strict=True)
    )
    assert asked(one, f"queues/quorum/{made}/group/status")[1][0]["Node Name"] == members[0]

    file = tmp_path / "definitions.json"
    one.ctl("export_definitions", str(file))
    exported: dict[str, Any] = json.loads(file.read_text())
    entry = next(entry for entry in exported["vhosts"] if entry["name"] == made)
    assert entry["metadata"]["replicas"] == 2 and "incarnation" not in entry["metadata"]
    text = json.dumps({key: [item for item in exported[key] if made in json.dumps(item)] for key in ("vhosts", "queues")})
    copy = unique("copy")
    file.write_text(text.replace(made, copy))
    two.ctl("import_definitions", str(file))
    assert "group" in two.ctl("list_queues", "-p", copy, "-q")
    assert replicas_of(two, copy) == 2
    with pytest.raises(CtlFailed, match=f"'{copy}' is owned by node 'two'"):
        one.ctl("import_definitions", str(file))


@on_postgres
def test_a_name_that_a_node_has_not_heard_of_yet_is_used(cluster: Cluster, vhost: Replicated, tmp_path: Path):
    """Nobody makes a vhost of it that is not replicated, whichever way."""
    _, two, _ = cluster.nodes.values()
    name, file = unique("kept"), tmp_path / "file"
    file.write_text(json.dumps({"vhosts": [{"name": name, "metadata": {"replicas": 0}}]}))

    async def keep(version: int | None) -> int:
        engine = engine_for(cluster.url)
        await engine.start()
        try:
            if version is not None:
                await engine.registry.delete(record_key(name), version)
                return 0
            record = VHostRecord("{}", [], "an incarnation", origin="elsewhere")
            return await engine.registry.put(record_key(name), msgspec.json.encode(record), 0)
        finally:
            await engine.stop()

    version = asyncio.run(keep(None))
    assert asked(two, f"vhosts/{name}", {"description": "another"}, "PUT")[0] == 400
    for command in (["add_vhost", name, "--replicas", "0"], ["import_definitions", str(file)]):
        with pytest.raises(CtlFailed, match=r"it is replicated, or about to be|there is a replicated one"):
            two.ctl(*command)
    two.ctl("add_vhost", name)
    assert name not in two.ctl("list_vhosts", "-q").split()
    asyncio.run(keep(version))
    eventually(lambda: asked(two, f"vhosts/{name}", {"description": "free"}, "PUT")[0] == 201, timeout=PATIENCE)
    assert name in two.ctl("list_vhosts", "-q").split()


@on_postgres
def test_replicas_follow_from_a_global_parameter_that_all_nodes_have(cluster: Cluster, vhost: Replicated):
    """The first pattern that is found in the name counts; who says a number is asked first."""
    one, two, three = cluster.nodes.values()
    prefix = unique("prod")
    rules = [{"pattern": f"^{prefix}-few", "replicas": 1}, {"pattern": f"^{prefix}", "replicas": 3}]
    with pytest.raises(CtlFailed, match="vhost_replicas"):
        one.ctl("set_global_parameter", "vhost_replicas", '[{"pattern": "("}]')
    one.ctl("set_global_parameter", "vhost_replicas", json.dumps(rules))
    eventually(lambda: prefix in two.ctl("list_global_parameters"), timeout=PATIENCE)
    two.ctl("add_vhost", f"{prefix}-orders")
    two.ctl("add_vhost", f"{prefix}-few")
    two.ctl("add_vhost", f"{prefix}-plain", "--replicas", "0")
    two.ctl("add_vhost", unique("other"))
    found = {name: replicas_of(two, f"{prefix}-{name}") for name in ("orders", "few", "plain")}
    assert found == {"orders": 3, "few": 1, "plain": 0}
    three.ctl("clear_global_parameter", "vhost_replicas")
    eventually(lambda: "vhost_replicas" not in one.ctl("list_global_parameters"), timeout=PATIENCE)
    identities = {next(line for line in node.ctl("list_global_parameters").splitlines() if "cluster_id" in line)
                  for node in cluster.nodes.values()}  # fmt: skip
    assert len(identities) == 1


@on_postgres
def test_policies_limits_and_parameters_go_with_the_vhost(cluster: Cluster, vhost: Replicated):
    """Whoever takes it over has them, in effect."""
    owner = cluster.nodes[vhost.owner]
    channel = vhost.publisher(vhost.owner)
    channel.queue_declare("orders", durable=True)
    owner.ctl("set_policy", "-p", vhost.name, "short", "^orders$", '{"max-length": 7}', "--apply-to", "queues")
    owner.ctl("set_operator_policy", "-p", vhost.name, "cap", ".*", '{"message-ttl": 60000}')
    owner.ctl("set_vhost_limits", "-p", vhost.name, '{"max-queues": 1}')
    parameter = {"component": "federation-upstream", "name": "up", "value": {"uri": "amqp://x"}, "vhost": vhost.name}
    owner.ctl("import_definitions", stdin=json.dumps({"parameters": [parameter]}))
    channel.basic_publish("", "orders", b"1")  # confirmed: so are the definitions before it
    owner.crash()
    heir = cluster.nodes[vhost.find_owner(other_than=vhost.owner)]
    assert "short" in heir.ctl("list_policies", "-p", vhost.name)
    assert "cap" in heir.ctl("list_operator_policies", "-p", vhost.name)
    assert '"max-queues":1' in heir.ctl("list_vhost_limits", "-p", vhost.name).replace(" ", "")
    assert "up" in heir.ctl("list_parameters", "-p", vhost.name)
    assert "short" in heir.ctl("list_queues", "-p", vhost.name, "name", "policy")
    cluster.start()


class Node:
    """A node's global parameters, in memory."""

    def __init__(self, servers: MemoryServers, name: str) -> None:
        self.definitions = Definitions(None)
        self.changed: list[str] = []
        registry = servers.connect(name).registry
        log = structlog.get_logger()
        self.shared = SharedParameters(registry, self.definitions, self.definitions.commit, self.changed.append, log)
        self._watch = registry.watch(SharedParameters.prefix)

    async def look(self) -> None:
        """What `run` does once."""
        for change in await self._watch.next():
            self.shared._see(change)
        await self.shared._tell()
        self.shared.is_known = True


async def test_global_parameters_are_changed_by_one_node_at_a_time():
    """Who comes later is told, and has what the other has made of it; what is deleted stays so."""
    servers = MemoryServers(conditional=True)
    one, other = Node(servers, "a"), Node(servers, "b")
    one.definitions.put_global_parameter("limit", "1")
    await one.look()
    await other.look()
    assert other.definitions.global_parameters() == [("limit", "1")] and other.changed == ["limit"]
    one.definitions.put_global_parameter("limit", "2")
    other.definitions.put_global_parameter("limit", "3")
    await one.shared.settle()
    with pytest.raises(NotShared, match="another node has changed 'limit'"):
        await other.shared.settle()
    assert other.definitions.global_parameters() == [("limit", "2")]
    other.definitions.delete_global_parameter("limit")
    await other.shared.settle()
    await one.look()
    await one.look()
    assert one.definitions.global_parameters() == []


@pytest.mark.parametrize("value", [{}, [{"pattern": "("}], [{"pattern": "x"}], [{"pattern": "x", "replicas": -1}], "3"])
def test_rules_that_cannot_be_used_are_refused(value: object):
    with pytest.raises(BrokerError, match=r"vhost_replicas|replicas"):
        rules_of(value)
