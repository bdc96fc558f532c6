"""What `rabbitmq-diagnostics` tells and checks, with its texts: for scripts, probes of containers, and people.

Each function returns a report: what is said before it, its lines, the same for `--formatter json`, and the exit code that a
check ends with. Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypedDict

from rabbitpy_broker import process_memory
from rabbitpy_broker.alarms import DISK, MEMORY
from rabbitpy_broker.cluster.status import LAGS_S
from rabbitpy_broker.management.admin import DATA_ERROR, Admin, AdminError
from rabbitpy_broker.management.clustering import critical_vhosts, lagging, ownerless_vhosts
from rabbitpy_broker.management.managed import PROTOCOLS, PURPOSES
from rabbitpy_broker.protocol.handshake import RABBITMQ_VERSION
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.slices import in_slices

FAILED: Final = 69  # what a check ends with that has found something
ALARMS: Final = {MEMORY: "Memory alarm", DISK: "Free disk space alarm"}
# RabbitMQ's categories of memory that nothing of this broker belongs to.
NOT_HERE: Final = (
    "atom",
    "connection_channels",
    "connection_readers",
    "metrics",
    "mgmt_db",
    "mnesia",
    "msg_index",
    "other_ets",
    "other_system",
    "plugins",
    "queue_procs",
    "queue_slave_procs",
    "quorum_ets",
    "quorum_queue_procs",
    "reserved_unallocated",
    "stream_queue_procs",
)


class Report(TypedDict):
    """`lines` with code FAILED are an error when `is_error`, and what the check has found else. `json`: with that formatter."""

    banner: str
    lines: list[str]
    json: object
    code: int
    is_error: bool


def _report(banner: str, lines: list[str], json: object, code: int = 0, *, is_error: bool = False) -> Report:
    return {"banner": banner, "lines": lines, "json": json, "code": code, "is_error": is_error}


# -- is it there --------------------------------------------------------------------------------------------------


def check_running(admin: Admin) -> Report:
    text = f"RabbitMQ on node {admin.pid.node} is fully booted and running"
    return _report(f"Checking if RabbitMQ is running on node {admin.pid.node} ...", [text], {"message": text})


def is_running(admin: Admin) -> Report:
    text = f"RabbitMQ on node {admin.pid.node} is fully booted and running"
    return _report(f"Asking node {admin.pid.node} for its status ...", [text], {"message": text, "result": True})


def is_booting(admin: Admin) -> Report:
    """A broker that answers has started: the control socket is the last that it opens."""
    node = admin.pid.node
    text = f"RabbitMQ on node {node} is fully booted (check with is_running), stopped or has not started booting yet"
    return _report(f"Asking node {node} for its boot status ...", [text], {"message": text, "result": False})


def server_version(admin: Admin) -> Report:
    """The version of RabbitMQ that the broker is to clients; `status` has its own."""
    banner = f"Asking node {admin.pid.node} for its RabbitMQ version..."
    return _report(banner, [RABBITMQ_VERSION], {"result": "ok", "value": RABBITMQ_VERSION})


# -- alarms -------------------------------------------------------------------------------------------------------


def _alarms(admin: Admin) -> list[str]:
    alarms, node = admin.broker.alarms, admin.pid.node
    found = [f"{ALARMS[name]} on node {node}" for name in sorted(alarms.active, reverse=True)]
    return found + [f"Publishers of vhost '{vhost}' are held on node {node}: {reason}" for vhost, reason in alarms.held.items()]


def alarms(admin: Admin) -> Report:
    node, found = admin.pid.node, _alarms(admin)
    banner = f"Asking node {node} to report any known resource alarms ..."
    if not found:
        text = f"Node {node} reported no alarms, local or clusterwide"
        return _report(banner, [text], {"result": "ok", "node": node, "alarms": []})
    answer = {"result": "ok", "local": found, "global": [], "message": f"Node {node} reported alarms"}
    return _report(banner, found, answer)


def check_alarms(admin: Admin) -> Report:
    node, found = admin.pid.node, _alarms(admin)
    banner = f"Asking node {node} to report any local resource alarms ..."
    if not found:
        return _report(banner, [f"Node {node} reported no alarms, local or clusterwide"], {"result": "ok"})
    answer = {"result": "error", "local": found, "global": [], "message": f"Node {node} reported alarms"}
    return _report(banner, found, answer, FAILED)


def check_local_alarms(admin: Admin) -> Report:
    node, found = admin.pid.node, _alarms(admin)
    banner = f"Asking node {node} to report any local resource alarms ..."
    if not found:
        return _report(banner, [f"Node {node} reported no local alarms"], {"result": "ok"})
    answer = {"result": "error", "local": found, "message": f"Node {node} reported local alarms"}
    return _report(banner, found, answer, FAILED, is_error=True)


# -- listeners ----------------------------------------------------------------------------------------------------


class ListenerRow(TypedDict):
    """A listener as rabbitmq-diagnostics shows it."""

    node: str
    interface: str
    port: int
    protocol: str
    purpose: str


def _listeners(admin: Admin) -> list[ListenerRow]:
    return [
        {
            "node": admin.pid.node,
            "interface": f"[{one.host}]" if ":" in one.host else one.host,
            "port": one.port,
            "protocol": one.protocol,
            "purpose": PURPOSES[one.protocol],
        }
        for one in sorted(admin.broker.listeners())
    ]


def _ports(found: list[ListenerRow]) -> str:
    return ", ".join(str(port) for port in sorted({one["port"] for one in found}))


def listeners(admin: Admin) -> Report:
    found = _listeners(admin)
    lines = [
        f"Interface: {one['interface']}, port: {one['port']}, protocol: {one['protocol']}, purpose: {one['purpose']}"
        for one in found
    ]
    banner = f"Asking node {admin.pid.node} to report its protocol listeners ..."
    return _report(banner, lines, {"result": "ok", "node": admin.pid.node, "listeners": found})


def check_port_connectivity(admin: Admin) -> Report:
    """What to connect to; whoever asks does that."""
    node, found = admin.pid.node, _listeners(admin)
    banner = f"Testing TCP connections to all active listeners on node {node} ..."
    lines = [f"Successfully connected to ports {_ports(found)} on node {node}."]
    return _report(banner, lines, {"result": "ok", "node": node, "listeners": found})


def check_port_listener(admin: Admin, port: str) -> Report:
    node, found = admin.pid.node, _listeners(admin)
    banner = f"Asking node {node} if there's an active listener on port {port} ..."
    if port in [str(one["port"]) for one in found]:
        text = f"A listener for port {port} is running on node {node}."
        return _report(banner, [text], {"result": "ok", "node": node, "port": port})
    text = (
        f"No listener for port {port} is active on node {node}. "
        f"Found listeners that use the following ports: {_ports(found)}"
    )
    answer = {"result": "error", "missing": port, "ports": sorted({one["port"] for one in found}), "listeners": found}
    return _report(banner, [text], answer, FAILED)


def check_protocol_listener(admin: Admin, protocol: str) -> Report:
    node, found = admin.pid.node, _listeners(admin)
    banner = f"Asking node {node} if there's an active listener for protocol {protocol} ..."
    protocols = sorted({one["protocol"] for one in found})
    if PROTOCOLS.get(protocol.lower(), protocol) in protocols:
        text = f"A listener for protocol {protocol} is running on node {node}."
        return _report(banner, [text], {"result": "ok", "node": node, "protocol": protocol})
    text = (
        f"No listener for protocol {protocol} is active on node {node}. "
        f"Found listeners for the following protocols: {', '.join(protocols)}"
    )
    answer = {"result": "error", "missing": protocol, "protocols": protocols, "listeners": found}
    return _report(banner, [text], answer, FAILED, is_error=True)


# -- vhosts -------------------------------------------------------------------------------------------------------


def check_virtual_hosts(admin: Admin) -> Report:
    """A vhost is down while its store cannot write, or its log takes nothing."""
    node = admin.pid.node
    banner = f"Checking if all vhosts are running on node {node} ..."
    alarms = admin.broker.alarms
    down = sorted({*alarms.store_failures, *alarms.held} & set(admin.node.vhosts))
    if not down:
        return _report(banner, [f"Node {node} reported all vhosts as running"], {"result": "ok"})
    text = f"Some virtual hosts on node {node} are down:"
    return _report(banner, [text, *down], {"result": "error", "message": text, "virtual_hosts": down}, FAILED, is_error=True)


# -- the cluster --------------------------------------------------------------------------------------------------


def check_if_node_is_quorum_critical(admin: Admin) -> Report:
    """Whether a replicated vhost would be without a majority of its replicas if this node stopped."""
    node = admin.pid.node
    banner = f"Checking if node {node} is critical for quorum of any quorum queues ..."
    found = critical_vhosts(admin.broker)
    if not found:
        return _report(banner, [f"Node {node} reported no quorum queues with minimum quorum"], {"result": "ok"})
    text = f"Node {node} reported replicated vhosts with minimum online quorum"
    answer = {"result": "error", "virtual_hosts": found, "message": text}
    return _report(banner, [f"{text}:", *found], answer, FAILED, is_error=True)


def check_replica_lag(admin: Admin, seconds: str = "") -> Report:
    """Whether each replica runs, and is not further behind."""
    try:
        limit = float(seconds) if seconds else LAGS_S
    except ValueError:
        raise AdminError(f"bad number of seconds: {seconds}", DATA_ERROR) from None
    banner = f"Checking that each replica is at most {limit:g} s behind ..."
    found = lagging(admin.broker, limit)
    if not found:
        return _report(banner, [f"Each replica runs and is at most {limit:g} s behind"], {"result": "ok"})
    text = f"Some replicas do not run, or are more than {limit:g} s behind:"
    lines = [
        f"vhost '{one['vhost']}' on node {one['node']}: " + (f"{one['lag_s']} s behind" if one["running"] else "does not run")
        for one in found
    ]
    return _report(banner, [text, *lines], {"result": "error", "message": text, "replicas": found}, FAILED, is_error=True)


def check_vhost_owners(admin: Admin) -> Report:
    """Whether each replicated vhost has an owner that lives."""
    banner = "Checking that each replicated vhost has an owner ..."
    found = ownerless_vhosts(admin.broker)
    if not found:
        return _report(banner, ["Each replicated vhost has an owner"], {"result": "ok"})
    text = "Some replicated vhosts have no owner:"
    return _report(banner, [text, *found], {"result": "error", "message": text, "virtual_hosts": found}, FAILED, is_error=True)


# -- memory -------------------------------------------------------------------------------------------------------


async def memory_kinds(admin: Admin) -> dict[str, int]:
    """Resident memory by RabbitMQ's categories, in bytes; those that nothing here belongs to are 0."""
    figures = Figures()

    def add_queues() -> Iterator[None]:
        for vhost in list(admin.node.vhosts.values()):
            for queue in vhost.each_queue():
                queue.backing.add_figures(figures)
                yield

    await in_slices(add_queues())
    unsent = sum(int(connection.output.unsent) for connection in list(admin.broker.clients.connections))
    total = process_memory.used()
    found = {
        "binary": int(figures.ram_bytes),
        "code": process_memory.mapped_files(),
        "connection_writers": unsent,
        "allocated_unused": process_memory.allocated_unused(),
    }
    found["other_proc"] = max(0, total - sum(found.values()))
    return {**dict.fromkeys(NOT_HERE, 0), **found}


async def memory_breakdown(admin: Admin) -> Report:
    """The largest first; the lines are made where the unit is known."""
    kinds = await memory_kinds(admin)
    total = sum(kinds.values())
    answer = {
        name: {"bytes": size, "percentage": round(100 * size / total, 2) if total else 0.0}
        for name, size in sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    }
    return _report(f"Reporting memory breakdown on node {admin.pid.node}...", [], answer)
