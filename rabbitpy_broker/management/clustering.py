"""What is told of the cluster that a broker belongs to: `cluster_status` in RabbitMQ's shape, the checks, the quorum's members.

A broker that is in no cluster is one of a single node, as in RabbitMQ.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from rabbitpy_broker.cluster.backup import read_backup
from rabbitpy_broker.cluster.joining import told
from rabbitpy_broker.cluster.member import SILENT_S
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.status import VHostStatus, all_nodes, all_vhosts, node_row, vhost_status
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.management.admin import DATA_ERROR, UNAVAILABLE, Admin, AdminError, check_name
from rabbitpy_broker.management.managed import PURPOSES, ManagedBroker
from rabbitpy_broker.management.replicas import checked

AWAIT_S: Final = 300.0
ENGINES: Final = {"postgres": "postgresql"}  # schemes of URLs that mean the same as another


def replicated(broker: ManagedBroker) -> list[VHostStatus]:
    """The replicated vhosts of all nodes."""
    return [] if broker.view is None else all_vhosts(broker.view)


def replication_of(broker: ManagedBroker, vhost: str) -> VHostStatus | None:
    """None for a vhost that is not replicated."""
    return None if broker.view is None else vhost_status(broker.view, vhost)


def engine_row(broker: ManagedBroker) -> dict[str, object] | None:
    """The engine, as this node finds it; None without one. `append_ms` is the mean of half a minute, None without appends."""
    member = broker.member
    if member is None:
        return None
    scheme = broker.config.cluster.engine.partition(":")[0]
    silent_s, since = member.silent_s(), member.reachable_since
    append_s = member.numbers.whole.pace.mean_s()
    is_reachable = silent_s < SILENT_S and since is not None
    return {
        "kind": ENGINES.get(scheme, scheme),
        "is_reachable": is_reachable,
        "reachable_since": None if since is None or not is_reachable else int(since * 1000),
        "silent_s": round(silent_s, 1),
        "append_ms": None if append_s is None else round(1000 * append_s, 1),
    }


def slow_appends(broker: ManagedBroker) -> list[tuple[str, int]]:
    """The nodes that run whose appends take long, each with the ms of one."""
    return [] if broker.view is None else [
        (node, info.slow_append_ms) for node, info in sorted(broker.view.nodes.items()) if info.slow_append_ms
    ]


def cluster_row(broker: ManagedBroker) -> dict[str, object]:
    """What /api/cluster shows."""
    view, node = broker.view, broker.config.node_name()
    vhosts = replicated(broker)
    if view is None:
        info = told(broker, "")
        nodes: list[dict[str, object]] = [
            {"name": node, "running": True, "version": info.version, "alarms": info.alarms, "held": [], "maintenance": False,
             "addresses": info.amqp, "link": "", "owned": 0, "slow_append_ms": 0, "replicas": 0}
        ]  # fmt: skip
    else:
        nodes = [node_row(view, one, vhosts) for one in all_nodes(view)]
    return {
        "name": cluster_name(broker),
        "node": node,
        "is_clustered": view is not None,
        "engine": engine_row(broker),
        "nodes": nodes,
        "vhosts": [one.row() for one in vhosts],
    }


def cluster_name(broker: ManagedBroker) -> str:
    return str(broker.node.server_properties["cluster_name"])


async def add_member(admin: Admin, vhost: str, node: str) -> None:
    """Gives a replica of a replicated vhost to a node."""
    await _change_members(admin, vhost, node, is_added=True)


async def delete_member(admin: Admin, vhost: str, node: str) -> None:
    """Takes the replica of a replicated vhost from a node that does not own it."""
    await _change_members(admin, vhost, node, is_added=False)


async def _change_members(admin: Admin, vhost: str, node: str, *, is_added: bool) -> None:
    try:
        await admin.broker.change_members(vhost, node, is_added=is_added)
    except BrokerError as error:
        raise AdminError(str(error)) from None


async def backup_vhost(admin: Admin, vhost: str, file: str) -> str:
    """Writes a file of what is in a vhost, on this node."""
    if vhost not in admin.node.owned_elsewhere:
        admin.vhost(vhost)
    if not file.startswith("/"):
        raise AdminError(f"the file needs its whole path: {file}", DATA_ERROR)
    try:
        written = await admin.broker.backup_vhost(vhost, file)
    except (BrokerError, OSError) as error:
        raise AdminError(f"vhost '{vhost}' is not backed up: {error}") from None
    return f"position {written.position}, {written.size} bytes"


async def restore_vhost(admin: Admin, vhost: str, file: str, *, replicas: int | None = None) -> None:
    """Makes a vhost with what a backup has; by default on as many nodes as the one that was backed up."""
    check_name("vhost", vhost)
    try:
        backup = await asyncio.to_thread(read_backup, file)
        count = backup.metadata().get("replicas", 0) if replicas is None else replicas
        await admin.broker.restore_vhost(vhost, backup, checked(count))
    except (BrokerError, OSError) as error:
        raise AdminError(f"vhost '{vhost}' is not restored: {error}") from None


def cluster_status(admin: Admin) -> dict[str, Any]:
    """As `rabbitmqctl cluster_status --formatter json`, with the engine and the replicated vhosts besides."""
    broker, view, here = admin.broker, admin.broker.view, admin.pid.node
    nodes = [here] if view is None else all_nodes(view)
    infos: dict[str, NodeInfo] = {here: told(broker, "")} if view is None else {**view.nodes}
    infos.setdefault(here, told(broker, ""))
    running = sorted(infos)
    return {
        "cluster_name": cluster_name(broker),
        "disk_nodes": sorted({*nodes, here}),
        "ram_nodes": [],
        "running_nodes": running,
        "versions": {
            node: {"rabbitmq_name": "rabbitpy-broker", "rabbitmq_version": infos[node].rabbitmq_version,
                   "erlang_version": infos[node].python, "product_version": infos[node].version}
            for node in running
        },
        "cpu_cores": {node: infos[node].cores for node in running},
        "maintenance_status": {
            node: "marked for maintenance" if infos[node].maintenance else "not under maintenance" for node in running
        },
        "alarms": [{"node": node, "resource": alarm} for node in running for alarm in infos[node].alarms]
        + [{"node": node, "resource": "log", "vhost": vhost} for node in running for vhost in infos[node].held],
        "partitions": {},
        "listeners": {node: _listeners(node, infos[node]) for node in running},
        "feature_flags": [],
        "engine": engine_row(broker),
        "links": {node: infos[node].link for node in running if infos[node].link},
        "replicated_vhosts": [one.row() for one in replicated(broker)],
    }  # fmt: skip


async def await_online_nodes(admin: Admin, count: str) -> None:
    """Returns when so many nodes run."""
    if not count.isdecimal():
        raise AdminError(f"bad number of nodes: {count}", DATA_ERROR)
    began = time.monotonic()
    while len(cluster_status(admin)["running_nodes"]) < int(count):
        if time.monotonic() - began > AWAIT_S:
            raise AdminError(f"there are not so many after {AWAIT_S:g} s", UNAVAILABLE)
        await asyncio.sleep(0.2)


def _listeners(node: str, info: NodeInfo) -> list[dict[str, object]]:
    return [
        {
            "node": node,
            "interface": f"[{one.host}]" if ":" in one.host else one.host,
            "port": one.port,
            "protocol": one.protocol,
            "purpose": PURPOSES.get(one.protocol, one.protocol),
        }
        for one in info.listeners
    ]


def members_of(broker: ManagedBroker, vhost: str) -> tuple[str, list[str], list[str]]:
    """Leader, members and online members of a group on this vhost, which this node has open; a group of one without replicas."""
    here, found = broker.config.node_name(), replication_of(broker, vhost)
    if found is None:
        return here, [here], [here]
    return here, [one.node for one in found.replicas], sorted({here, *found.online()})


def quorum_status(broker: ManagedBroker, vhost: str) -> list[dict[str, object]]:
    """A row for each member of a quorum queue's group, under RabbitMQ's headings. A Raft log has what stands there; ours is the
    vhost's, of which an entry is committed when the engine has it.
    """
    here, found = broker.config.node_name(), replication_of(broker, vhost)
    if found is None:
        return [_member(here, "leader", 0, None, 0)]
    return [
        _member(
            one.node,
            "leader" if one.node == here else "follower" if one.running else "noproc",
            found.position,
            found.position if one.node == here else one.position,
            found.term,
        )
        for one in found.replicas
    ]


def _member(node: str, state: str, committed: int, applied: int | None, term: int) -> dict[str, object]:
    return {
        "Node Name": node,
        "Raft State": state,
        "Log Index": committed if applied is None else applied,
        "Commit Index": committed,
        "Snapshot Index": 0,
        "Term": term,
        "Machine Version": 0,
    }


def critical_vhosts(broker: ManagedBroker) -> list[str]:
    """The vhosts of which a majority of replicas would be missing without this node."""
    here = broker.config.node_name()
    return [one.name for one in replicated(broker) if one.is_critical(here)]


def ownerless_vhosts(broker: ManagedBroker) -> list[str]:
    """The replicated vhosts that nobody who lives owns."""
    return [one.name for one in replicated(broker) if not one.owner]


def lagging(broker: ManagedBroker, seconds: float) -> list[dict[str, object]]:
    """The replicas that are further behind than that, and those that do not run."""
    return [
        {"vhost": vhost.name, **replica.row()}
        for vhost in replicated(broker)
        for replica in vhost.replicas
        if not replica.is_level(seconds)
    ]
