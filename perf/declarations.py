"""What does it cost to declare many queues, one by one, in a replicated vhost, beside a plain one?

    python -m perf.declarations --queues 5000

Durable queues are declared, each with a binding, and each when the last one is there: by one client, and by several at once. Both
in a new vhost on three nodes, and in a new vhost of one of them. Meanwhile another client does one round trip after the other in
a vhost of its own, at the node that has the vhost: its longest is as long as the longest pause of that node's loop.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import shlex
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import click
from pamqp import base, commands, frame

from perf import brokers, cluster_log, machine, replicas
from perf.brokers import StartFailed
from perf.kill.ledger import Violation
from perf.load.client import Address, Client, Refused
from perf.many_durable import probing
from perf.replicas import NODES, Replicas
from rabbitpy_broker.ctl import CtlError

TIMEOUT_S: Final = 600.0
APPENDED: Final = "rabbitpy_replication_appended_bytes_total"


def asked(client: int, queues: int) -> Iterator[tuple[base.Frame, type[base.Frame]]]:
    """What one client asks for, and how it is answered."""
    for number in range(queues):
        name = f"declared-{client}-{number}"
        yield commands.Queue.Declare(0, name, durable=True), commands.Queue.DeclareOk
        yield commands.Queue.Bind(0, name, "amq.direct", name), commands.Queue.BindOk


def declare(address: Address, clients: int, each: int) -> None:
    """Each of the clients declares and binds so many queues, one by one."""
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for number in range(clients):
            link = stack.enter_context(Client(address, "perf declarer", TIMEOUT_S))
            link.open_channel(1)
            left = asked(number, each)
            method, answer = next(left)
            selector.register(link.sock, selectors.EVENT_READ, (link, left, answer))
            link.sock.sendall(frame.marshal(method, 1))
        while selector.get_map():
            for key, _ in selector.select():
                link, left, answer = key.data
                link.receive(answer)
                following = next(left, None)
                if following is None:
                    selector.unregister(link.sock)
                else:
                    selector.modify(link.sock, selectors.EVENT_READ, (link, left, following[1]))
                    link.sock.sendall(frame.marshal(following[0], 1))


def appended_bytes(nodes: Replicas) -> int:
    """What all nodes together have written to logs."""
    total = 0
    for daemon in nodes.daemons.values():
        place = daemon.events("broker started")[0]["metrics"]
        with urllib.request.urlopen(f"http://{place}/metrics") as page:
            lines = page.read().decode().splitlines()
        total += sum(int(float(line.split()[-1])) for line in lines if line.startswith(APPENDED))
    return total


def measure(nodes: Replicas, vhost: str, clients: int, queues: int, *, replicated: bool) -> dict[str, Any]:
    first = NODES[0]
    nodes.vhost = vhost
    nodes.ask(first, "add_vhost", vhost, **({"replicas": len(NODES)} if replicated else {}))
    owner = replicas.until(nodes.owner, "an owner")
    nodes.permit(owner)
    daemon = nodes.daemons[owner]
    before, cpu = appended_bytes(nodes), {node: nodes.broker(node).cpu_s() for node in NODES}
    with probing(daemon.address) as probed:
        found = probed.during(lambda: declare(replace(daemon.address, vhost=vhost), clients, queues // clients))
    result: dict[str, Any] = {
        "queues_per_s": round(queues // clients * clients / found["seconds"]),
        "longest_ms": found["longest_ms"],
        "p99_ms": found["p99_ms"],
    }
    if replicated:
        began = time.monotonic()
        replicas.until(lambda: is_level(nodes), "the followers", TIMEOUT_S)
        result["followers_behind_s"] = round(time.monotonic() - began, 2)
        result["log_mb"] = round((appended_bytes(nodes) - before) / 1e6, 2)
    spent = {node: nodes.broker(node).cpu_s() - cpu[node] for node in NODES}
    result["owner_cpu_s"] = round(spent.pop(owner), 2)
    result["followers_cpu_s"] = round(sum(spent.values()), 2)
    nodes.ask(owner, "delete_vhost", vhost)
    return result


def is_level(nodes: Replicas) -> bool:
    rows = nodes.replicas_seen_by(nodes.owner())
    return len(rows) == len(NODES) and all(row["lag"] == 0 for row in rows)


@click.command()
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
@click.option("--engine", default="postgres", help="postgres, kafka, or the URL of one that runs.")
@click.option("--queues", type=click.IntRange(20), multiple=True, default=(2000, 5000), help="May be given again.")
@click.option("--clients", type=click.IntRange(1), multiple=True, default=(1, 20), help="May be given again.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(engine: str, command: str, save: bool, queues: tuple[int, ...], clients: tuple[int, ...]) -> None:
    """Declare queues one by one in a replicated vhost and in a plain one."""
    result: dict[str, Any] = {"engine": engine if engine in ("kafka", "postgres") else "url"}
    try:
        with cluster_log.servers(engine) as url, replicas.running(shlex.split(command), url) as nodes:
            for kind in ("plain", "replicated"):
                for count in queues:
                    for number in clients:
                        vhost = f"{kind}-{count}-{number}"
                        found = measure(nodes, vhost, number, count, replicated=kind == "replicated")
                        click.echo(f"{vhost}: {json.dumps(found)}", err=True)
                        result[vhost] = found
    except (CtlError, Refused, StartFailed, Violation) as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('declarations', result)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m perf.declarations")
