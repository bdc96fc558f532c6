"""How long is a replicated vhost away when its owner is killed? Three brokers, a queue with many messages, and kill -9.

    python -m perf.takeover --messages 10000000 --rounds 20
    python -m perf.takeover --by transfer --rounds 20         # or: stop

Asked for, the vhost goes to another node, or its owner is stopped (SIGTERM): the time is then the longest between two confirms of
clients that publish one message each, one after the other.

The time goes from the kill to the confirm of a publish, by a client that connects to another node again and again. Then the
killed node is started, and has all that the owner has before the next round. Exit code 1 when a confirmed message is missing.

Leases are of two seconds, and of those the owner has up to one behind it when it is killed: that much is waited in any case.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import statistics
import threading
import time
from dataclasses import replace
from typing import Any, Final

import click
from pamqp import commands, frame
from pamqp.header import ContentHeader

from perf import backlog, brokers, cluster_log, machine, numbered, replicas
from perf.brokers import StartFailed
from perf.kill.ledger import Violation
from perf.load.client import Address, Client, Refused
from perf.numbered import Backlog
from perf.replicas import Replicas
from rabbitpy_broker.ctl import CtlError

AWAY_S: Final = 120.0
ANSWER_S: Final = 2.0  # for one try
CONFIRMS: Final = 100  # at least, of a vhost that moves
CAUGHT_UP_S: Final = 600.0


def publish_one(address: Address, load: Backlog) -> None:
    """Publishes one message, and has its confirm. Raises Refused."""
    client = Client(address, "perf.takeover", ANSWER_S)
    try:
        client.open_channel(1)
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        body = (0).to_bytes(load.size, "big")
        client.send(1, commands.Basic.Publish(0, "", load.queue_names[0]))
        header = ContentHeader(0, len(body), commands.Basic.Properties(delivery_mode=2))
        client.sock.sendall(frame.marshal(header, 1) + b"\x03\x00\x01" + len(body).to_bytes(4, "big") + body + b"\xce")
        client.receive(commands.Basic.Ack)
    except OSError as error:
        raise Refused(str(error)) from None
    finally:
        client.sock.close()


def kill_owner(nodes: Replicas, load: Backlog, kept: int) -> dict[str, float]:
    """Returns how long it took, in seconds, until a client had a confirm and until the killed node had caught up again."""
    owner = nodes.owner()
    other = next(node for node in nodes.alive() if node != owner)
    address = replace(nodes.daemons[other].address, vhost=nodes.vhost)
    began = time.monotonic()
    nodes.daemons[owner].kill()
    tries = 0
    while True:
        tries += 1
        with contextlib.suppress(Refused):
            publish_one(address, load)
            break
        if time.monotonic() - began > AWAY_S:
            raise Violation(f"nobody has taken the vhost over within {AWAY_S:.0f} s")
        time.sleep(replicas.LOOK_S)
    away_s = time.monotonic() - began
    found = numbered.ready(nodes.broker(other).url, load.queue_names)
    if found < kept:
        raise Violation(f"{found} of {kept} confirmed messages are there")
    began = time.monotonic()
    nodes.daemons[owner].start()
    replicas.until(lambda: is_level(nodes), "the nodes to be level", CAUGHT_UP_S)
    return {"away_s": round(away_s, 2), "tries": tries, "back_s": round(time.monotonic() - began, 2)}


def move_owner(nodes: Replicas, load: Backlog, by: str) -> dict[str, float]:
    """The same, of an owner that is stopped, or hands over while it runs: `away_s` is the longest time between two confirms."""
    owner = nodes.owner()
    other = next(node for node in nodes.alive() if node != owner)
    address = replace(nodes.daemons[other].address, vhost=nodes.vhost)
    move = nodes.daemons[owner].terminate if by == "stop" else lambda: nodes.ask(owner, "transfer_vhost", nodes.vhost, other)
    moving = threading.Thread(target=move)
    away_s, tries, confirmed, last = 0.0, 0, 0, time.monotonic()
    ends_at = last + AWAY_S
    moving.start()
    while moving.is_alive() or confirmed < CONFIRMS or time.monotonic() - last > away_s:
        tries += 1
        with contextlib.suppress(Refused):
            publish_one(address, load)
            confirmed += 1
            now = time.monotonic()
            away_s, last = max(away_s, now - last), now
        if time.monotonic() > ends_at:
            raise Violation(f"the vhost has not moved within {AWAY_S:.0f} s")
    if nodes.owner() == owner:
        raise Violation("the vhost is where it was")
    if by == "stop":
        nodes.daemons[owner].start()
    began = time.monotonic()
    replicas.until(lambda: is_level(nodes), "the nodes to be level", CAUGHT_UP_S)
    return {"away_s": round(away_s, 3), "tries": tries, "back_s": round(time.monotonic() - began, 2), "published": confirmed}


def is_level(nodes: Replicas) -> bool:
    """Whether all nodes are at one position of the log, as each of them sees it."""
    found = [row for node in nodes.alive() for row in nodes.replicas_seen_by(node)]
    return len(nodes.alive()) == len(replicas.NODES) and all(row["running"] and row["lag"] == 0 for row in found)


def measure(command: list[str], url: str, by: str, messages: int, size: int, rounds: int, lease_ms: int) -> dict[str, Any]:
    load = Backlog(backlog.new_name(), 1, messages, size)
    times: list[dict[str, float]] = []
    with replicas.running(command, url, lease_ms=lease_ms) as nodes:
        owner = nodes.broker(nodes.owner())
        numbered.declare(owner.url, load, durable=True)
        published = backlog.publish(owner, load)
        click.echo(f"published: {backlog.summary(published)}", err=True)
        began = time.monotonic()
        replicas.until(lambda: is_level(nodes), "the followers to have all", CAUGHT_UP_S)
        behind_s = time.monotonic() - began
        for number in range(rounds):
            kept = published["confirmed"] + number
            times.append(kill_owner(nodes, load, kept) if by == "kill" else move_owner(nodes, load, by))
            click.echo(f"{by}: {json.dumps(times[-1])}", err=True)
    away = [one["away_s"] for one in times]
    return {
        "published_per_s": published["per_s"],
        "followers_behind_s": round(behind_s, 2),
        "away_s": {"median": round(statistics.median(away), 2), "shortest": min(away), "longest": max(away)},
        "rounds": times,
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--engine", default="postgres", help="`postgres`, `kafka`, or a URL.")
@click.option("--by", type=click.Choice(["kill", "stop", "transfer"]), default="kill", help="What becomes of the owner.")
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Starts rabbitpy-broker.")
@click.option("--messages", type=click.IntRange(1), default=1_000_000, help="In the queue.")
@click.option("--size", type=click.IntRange(numbered.NUMBER_BYTES, numbered.LARGEST), default=12, help="Bytes of a body.")
@click.option("--rounds", type=click.IntRange(1), default=20, help="Kills.")
@click.option("--lease", "lease_ms", type=click.IntRange(1000), default=2000, help="`cluster.lease`, in milliseconds.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(engine: str, by: str, command: str, save: bool, **sizes: int) -> None:
    """Kill, stop or move the owner of a replicated vhost, and take the time until another node confirms."""
    result: dict[str, Any] = {"engine": engine if engine in ("kafka", "postgres") else "url", "by": by, **sizes}
    try:
        with cluster_log.servers(engine) as url:
            result.update(measure(shlex.split(command), url, by, **sizes))
    except (CtlError, Refused, StartFailed, Violation) as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('takeover', result)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m perf.takeover")
