"""`rabbitpy-ctl`, the commands that rabbitmq-diagnostics has: shows the report that the broker makes of itself.

management/diagnostics.py makes them; what only the one who asks can do, connecting and units, is done here.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Final

import click

from rabbitpy_broker.config import LOOPBACK

COMMANDS: Final = frozenset(
    {
        "alarms",
        "check_alarms",
        "check_if_node_is_quorum_critical",
        "check_local_alarms",
        "check_port_connectivity",
        "check_port_listener",
        "check_protocol_listener",
        "check_replica_lag",
        "check_running",
        "check_vhost_owners",
        "check_virtual_hosts",
        "is_booting",
        "is_running",
        "listeners",
        "memory_breakdown",
        "server_version",
    }
)
UNITS: Final = {"bytes": 1.0, "mb": 1e6, "gb": 1e9}
CONNECT_WITHIN_S: Final = 5.0
# An address that means "all interfaces" is no address to connect to.


class BadArgument(click.UsageError):
    """What was given is not what the command takes: exit code 65, as rabbitmq-diagnostics has it."""


def check_arguments(name: str, given: dict[str, Any]) -> None:
    """Raises BadArgument."""
    if name == "memory_breakdown" and given["unit"] not in UNITS:
        raise BadArgument(f"unit '{given['unit']}' is not supported. Please use one of: bytes, mb, gb")
    if name == "check_port_listener" and not (given["port"].isdecimal() and int(given["port"]) > 0):
        raise BadArgument("Bad argument: Argument must be a positive integer")


def show(name: str, report: dict[str, Any], unit: str, *, as_json: bool, quiet: bool) -> int:
    """Prints a report; returns the exit code."""
    if name == "check_port_connectivity":
        report = connect(report)
    if as_json:
        click.echo(json.dumps(report["json"], separators=(",", ":")))
        return int(report["code"])
    if not quiet:
        click.echo(report["banner"])
    lines = memory_lines(report["json"], unit) if name == "memory_breakdown" else report["lines"]
    text = "\n".join(lines)
    if report["is_error"] and report["code"]:
        click.echo(f"Error:\n{text}", err=True)
    elif text:
        click.echo(text)
    return int(report["code"])


def memory_lines(sizes: dict[str, dict[str, float]], unit: str) -> list[str]:
    """A line for each category, the largest first."""
    return [
        f"{name}: {round(size['bytes'] / UNITS[unit], 4):.15g} {unit} ({size['percentage']}%)" for name, size in sizes.items()
    ]


def connect(report: dict[str, Any]) -> dict[str, Any]:
    """Connects to all that the broker listens on; the report of what came of it."""
    failed = []
    for one in report["json"]["listeners"]:
        host = one["interface"].strip("[]")
        host = LOOPBACK.get(host, host)
        try:
            socket.create_connection((host, one["port"]), CONNECT_WITHIN_S).close()
        except OSError:
            failed.append(one)
    if not failed:
        return report
    lines = [f"Connection to ports of the following listeners on node {report['json']['node']} failed: "]
    lines += [
        f"Interface: {one['interface']}, port: {one['port']}, protocol: {one['protocol']}, purpose: {one['purpose']}"
        for one in failed
    ]
    answer = {"result": "error", "failures": failed}
    return {**report, "lines": lines, "json": answer, "code": os.EX_UNAVAILABLE, "is_error": True}
