"""`rabbitpy-ctl cluster_status` as text: rabbitmqctl's headings, and those of what it has not: the engine, replicated vhosts."""

from __future__ import annotations

import datetime as dt
from typing import Any

NONE = ["(none)"]


def sections(status: dict[str, Any]) -> dict[str, list[str]]:
    """The lines under each heading; `status` is what the broker says (management/clustering.py)."""
    away = sorted(set(status["disk_nodes"]) - set(status["running_nodes"]))
    found = {
        "Basics": [f"Cluster name: {status['cluster_name']}"],
        "Disk Nodes": status["disk_nodes"],
        "Running Nodes": status["running_nodes"],
        "Nodes Away": away or NONE,
        "Versions": [
            f"{node}: {one['rabbitmq_name']} {one['product_version']} (as RabbitMQ {one['rabbitmq_version']}) on "
            f"{one['erlang_version']}"
            for node, one in status["versions"].items()
        ],
        "CPU Cores": [f"Node: {node}, available CPU cores: {count}" for node, count in status["cpu_cores"].items()],
        "Maintenance status": [f"Node: {node}, status: {text}" for node, text in status["maintenance_status"].items()],
        "Alarms": [_alarm(one) for one in status["alarms"]] or NONE,
        "Network Partitions": NONE,
        "Listeners": [
            f"Node: {node}, interface: {one['interface']}, port: {one['port']}, protocol: {one['protocol']}, "
            f"purpose: {one['purpose']}"
            for node, listeners in status["listeners"].items()
            for one in listeners
        ],
    }
    engine = status["engine"]
    if engine is not None:
        found["Engine"] = [f"Kind: {engine['kind']}", _reached(engine)]
        found["Replicated Virtual Hosts"] = [line for one in status["replicated_vhosts"] for line in _vhost(one)] or NONE
    return found


def _alarm(alarm: dict[str, Any]) -> str:
    if "vhost" in alarm:
        return f"Publishers of vhost '{alarm['vhost']}' are held on node {alarm['node']}"
    return f"{alarm['resource'].capitalize()} alarm on node {alarm['node']}"


def _reached(engine: dict[str, Any]) -> str:
    if engine["is_reachable"]:
        since = dt.datetime.fromtimestamp(engine["reachable_since"] / 1000).astimezone()
        return f"Reachable since: {since.isoformat(timespec='seconds')}"
    return f"Not reachable: it has not answered this node for {engine['silent_s']:g} s"


def _vhost(vhost: dict[str, Any]) -> list[str]:
    owner = f"owner: {vhost['owner']}" if vhost["owner"] else "no owner"
    held = ", publishers are held" if vhost["held"] else ""
    lines = [f"{vhost['name']}, {owner}, term: {vhost['term']}, position: {vhost['position']}{held}"]
    return lines + [f"  {one['node']}: {_replica(one)}" for one in vhost["replicas"]]


def _replica(replica: dict[str, Any]) -> str:
    state = "owner" if replica["is_owner"] else "follows" if replica["running"] else "away"
    if replica["is_owner"]:
        return state
    if replica["lag"] is None:
        return f"{state}, position not known"
    return f"{state}, {replica['lag']} entries and {replica['lag_s']:g} s behind"
