"""Nodes, an engine's servers and the network between them are killed, stopped and cut at random, under load; then all is counted.

    python -m perf.cluster_kill --rounds 20
    python -m perf.cluster_kill --rounds 5 --seed 7 --engine kafka --json result.json

Three brokers share a vhost on three servers of an engine, each in a network namespace of its own (network.py). In a round
clients publish with confirms and consume with acks while troubles come and go (troubles.py); then everything heals, the queues
are drained, and what came is compared with what was confirmed (ledger.py). A vhost that confirms nothing although all
is well again, a broker that ends by itself and one that logs a traceback are violations too.

What happens in a round follows from seed and round; how it interleaves does not, so a seed is a good way to a violation, not a
sure one. A violation prints the message's history, keeps all logs, and ends with exit code 1.
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pamqp import body, commands, header

from perf.brokers import DEFAULT_COMMAND
from perf.cluster_kill.brokers import Broker
from perf.cluster_kill.ledger import ClusterLedger
from perf.cluster_kill.network import Network, is_enclosed, run_enclosed
from perf.cluster_kill.traffic import (
    HANDSHAKE_S,
    Peer,
    PikaConsumer,
    PikaPublisher,
    Story,
    quick_consumer,
    quick_publisher,
    random_style,
)
from perf.cluster_kill.troubles import KINDS, Site, plan
from perf.engines.kafka import KafkaServers
from perf.engines.postgres import PostgresServers
from perf.engines.servers import EngineFailed, Servers
from perf.engines.servers import until as until_true
from perf.kill.ledger import Violation
from perf.kill.traffic import Consumer, Publisher, Target, Traffic, message_counts, publish_method
from perf.load.client import Address, Client, Refused
from perf.perftest import PerfTestFailed, run_perftest

ENGINES = {"postgres": PostgresServers, "kafka": KafkaServers}
BROKERS = ("one", "two", "three")
VHOST = "orders"
FANOUT = "fanout"
TARGETS = (
    Target("", "classic", ("classic",)),
    Target("", "quorum", ("quorum",)),
    Target(FANOUT, "", ("fan-classic", "fan-quorum")),
)
QUEUES = {queue: "quorum" if "quorum" in queue else "classic" for target in TARGETS for queue in target.queues}
PUBLISHERS = ((1, 0.005), (10, 0.02), (40, 0.05))  # messages without a confirm, pause between turns
PERFTEST = "perftest"  # a queue for PerfTest alone
SETTLED = "settled"  # a queue for messages whose confirm says that the log has what came before
PERFTEST_SHARE = 0.25  # of the rounds
LEASE_S = 2.0
APPEND_TIMEOUT_S = 10.0
HEALING_S = 120.0  # until confirms come again when everything is well
QUIET_S = 60.0  # without a delivery although there is more


class Rounds:
    """The rounds on one cluster."""

    def __init__(self, site: Site, seed: int, seconds: float, folder: Path) -> None:
        self.site = site
        self.seed = seed
        self.seconds = seconds
        self.ledger = ClusterLedger(QUEUES, [queue for queue, kind in QUEUES.items() if kind == "classic"])
        self.troubles: Counter[str] = Counter()
        self.history = (folder / "troubles.log").open("a")
        self.began = time.monotonic()
        self.perftests = {"rounds": 0, "rounds with confirms": 0}  # of PerfTest

    @property
    def addresses(self) -> list[Address]:
        return [Address(one.address.host, one.address.port, "guest", "guest", VHOST) for one in self.site.brokers]

    def run(self, number: int) -> dict[str, Any]:
        """One round; its figures."""
        rng = random.Random(f"{self.seed} {number}")
        ledger, site = self.ledger, self.site
        before = (ledger.published, ledger.confirmed, ledger.delivered, ledger.redelivered, site.take_overs())
        ledger.start_session()
        told: list[str] = []

        def tell(kind: str, what: str) -> None:
            self.troubles[kind] += 1
            told.append(what)
            self.history.write(f"{time.monotonic() - self.began:10.2f} s  round {number}  {what}\n")
            self.history.flush()

        story = Story(self.addresses, ledger)
        peers = self.peers(number, story, rng)
        perftest = self.perftest(rng)
        for peer in peers:
            peer.start()
        try:
            ledger.expect_confirms(True)
            self.go_through(plan(site, rng, self.seconds, tell), story)
            self.heal(story)
        finally:
            story.stopping.set()
            ledger.expect_confirms(False)
        for peer in peers:
            peer.join(HEALING_S)
        perftest.join()
        story.check()
        self.drain()
        after = (ledger.published, ledger.confirmed, ledger.delivered, ledger.redelivered, site.take_overs())
        names = ("published", "confirmed", "delivered", "redelivered", "take_overs")
        return {"round": number, "troubles": told} | {
            name: now - then for name, now, then in zip(names, after, before, strict=True)
        }

    def peers(self, number: int, story: Story, rng: random.Random) -> list[Peer]:
        peers = [
            quick_publisher(story, f"quick-{number}.{index}", TARGETS, window, pause_s, f"{rng.random()}")
            for index, (window, pause_s) in enumerate(PUBLISHERS)
        ]
        peers.append(PikaPublisher(story, f"pika-{number}", rng.choice(TARGETS), f"{rng.random()}"))
        with_pika = rng.choice(list(QUEUES))
        for queue in QUEUES:
            if queue == with_pika:
                peers.append(PikaConsumer(story, queue, f"{rng.random()}"))
            elif rng.random() < 0.7:
                prefetch = rng.choice((1, 10, 100, 0))
                peers.append(quick_consumer(story, queue, random_style(rng), prefetch, f"{rng.random()}"))
        return peers

    def perftest(self, rng: random.Random) -> threading.Thread:
        """A thread in which PerfTest runs, in some of the rounds; what becomes of its clients is not looked at."""
        address = rng.choice(self.addresses)
        url = f"amqp://guest:guest@{address.host}:{address.port}/{VHOST}"
        options = f"-x 1 -y 1 -u {PERFTEST} -ad false -f persistent -s 500 -c 50 -q 50 -r 500 -p"

        def load() -> None:
            self.perftests["rounds"] += 1
            try:
                figures = run_perftest(url, options, self.seconds)
            except PerfTestFailed as failed:
                self.history.write(f"PerfTest: {failed}\n")
            else:
                self.perftests["rounds with confirms"] += "confirm_latency_us" in figures
                self.history.write(f"PerfTest: {figures}\n")

        wanted = rng.random() < PERFTEST_SHARE
        thread = threading.Thread(target=load if wanted else lambda: None, daemon=True)
        thread.start()
        return thread

    def go_through(self, steps: list[Any], story: Story) -> None:
        began = time.monotonic()
        end = max(self.seconds, steps[-1].at)
        for step in [*steps, None]:
            at = end if step is None else step.at
            while (left := began + at - time.monotonic()) > 0:
                story.check()
                self.look_after()
                time.sleep(min(left, 0.05))
            if step is not None:
                step.what()

    def look_after(self) -> None:
        self.site.check()
        for broker in self.site.brokers:
            broker.look_after()

    def heal(self, story: Story) -> None:
        """Returns when everything is well and each publisher is confirmed again."""
        servers = self.site.servers
        servers.start_again()
        for server in servers.all:
            until_true(server.is_ready, f"{server.name} to be ready")
        if isinstance(servers, PostgresServers):
            for former in servers.former():
                former.kill()
                servers.rebuild(former)
            servers.follow()
        self.site.settle()
        healed = time.monotonic()
        confirmed = self.ledger.confirmed
        until = healed + HEALING_S
        while self.ledger.confirmed <= confirmed or not all(broker.is_up() for broker in self.site.brokers):
            story.check()
            self.look_after()
            if time.monotonic() > until:
                raise Violation(f"nothing was confirmed for {HEALING_S:.0f} s after everything had healed")
            time.sleep(0.05)
        self.history.write(f"{healed - self.began:10.2f} s  healed; confirms after {time.monotonic() - healed:.2f} s\n")
        for broker in self.site.brokers:
            broker.check_log()

    def drain(self) -> None:
        """All queues are emptied, by one consumer each."""
        self.site.without_copy = None
        until = time.monotonic() + HEALING_S
        while True:
            owner = self.find_owner(until)
            self.wait_for_holders(until)
            self.ledger.begin_draining()
            try:
                if self.drained_at(owner):
                    break
            except Refused:
                pass
            if time.monotonic() > until:
                raise Violation(f"the queues could not be drained within {HEALING_S:.0f} s, though everything was well")
        self.ledger.finish_round()

    def wait_for_holders(self, until: float) -> None:
        """Returns when no client holds a message any more: a cut may have kept the owner from hearing of their end."""
        while True:
            try:
                rows = self.site.owner().ctl("list_queues", "-q", "-p", VHOST, "messages_unacknowledged").split()
                if not any(int(row) for row in rows if row.isdecimal()):
                    return
            except subprocess.CalledProcessError:
                pass  # it owns the vhost no more
            if time.monotonic() > until:
                raise Violation(f"clients that have gone still hold messages after {HEALING_S:.0f} s")
            time.sleep(0.2)

    def find_owner(self, until: float) -> Address:
        """A node that lets clients in, and delivers: consumers that have waited for that have begun before it returns."""
        while True:
            for address in self.addresses:
                try:
                    with Client(address, "look", HANDSHAKE_S) as client:
                        client.open_channel(1)
                        queue = client.call(1, commands.Queue.Declare(exclusive=True), commands.Queue.DeclareOk).queue
                        client.call(1, commands.Basic.Get(queue=queue), commands.Basic.GetEmpty)
                        return address
                except Refused as refused:
                    why = refused
            self.look_after()
            if time.monotonic() > until:
                raise Violation(f"no node lets clients in, though everything is well: {why}")
            time.sleep(0.1)

    def drained_at(self, address: Address) -> bool:
        """False: the node has closed a connection, as it does when it is no owner any more. Raises Refused."""
        ledger, traffic = self.ledger, Traffic()
        marked = ledger.numbers.get("end", 0)
        try:
            consumers = [Consumer(address, queue, ledger, "prompt", 1000, "") for queue in QUEUES]
            publisher = Publisher(address, "end", ledger, (), 0, "")
            for peer in (*consumers, publisher):
                peer.stopping = True
                traffic.add(peer)
            self.mark_all(publisher)  # behind everything else
            if not self.consumed(traffic, consumers, publisher, marked):
                return False
            self.mark_all(publisher)  # and behind all acks
            if not self.consumed(traffic, consumers, publisher, marked):
                return False
            traffic.settle()
            left = {queue: count for queue, count in message_counts(QUEUES, address).items() if count}
            if left:
                raise Violation(f"not empty after the last message was acked: {left}")
            with Client(address, "settle", HANDSHAKE_S) as client:
                settle(client)  # behind the acks of the last marks
        finally:
            traffic.close()
        return True

    @staticmethod
    def mark_all(publisher: Publisher) -> None:
        for queue in QUEUES:
            target = Target("", queue, (queue,))
            publisher.publish(target, publish_method(target), 1, persistent=True)

    def consumed(self, traffic: Traffic, consumers: list[Consumer], publisher: Publisher, marked: int) -> bool:
        """True: each queue has delivered all marks after that number, all that came is acked, and the marks are confirmed."""
        ledger = self.ledger
        progress, seen = time.monotonic(), ledger.delivered
        while publisher.unconfirmed or any(one.held for one in consumers) or ledger.lacks("end", marked):
            if not all(peer.open for peer in traffic.peers):
                return False
            traffic.turn(0.05)
            if ledger.delivered > seen:
                progress, seen = time.monotonic(), ledger.delivered
            elif time.monotonic() - progress > QUIET_S:
                raise Violation(f"nothing was delivered for {QUIET_S:.0f} s, and there is more")
        return True


def set_up(site: Site) -> None:
    """Starts everything, makes the vhost and its queues. Raises Violation, Refused."""
    for broker in site.brokers:
        broker.start()
    until = time.monotonic() + HEALING_S
    while not all(broker.is_up() for broker in site.brokers):
        for broker in site.brokers:
            broker.look_after()
        if time.monotonic() > until:
            raise Violation(f"not all nodes start:\n{site.brokers[0].log_text()[-2000:]}")
        time.sleep(0.05)
    patiently(lambda: site.brokers[0].ctl("add_vhost", VHOST, "--replicas", str(len(BROKERS))), until)
    while not site.take_overs():
        time.sleep(0.05)
    owner = site.owner()
    patiently(lambda: owner.ctl("set_permissions", "-p", VHOST, "guest", ".*", ".*", ".*"), until)
    patiently(lambda: declare(Address(owner.address.host, owner.address.port, "guest", "guest", VHOST)), until)


def patiently(ask: Any, until: float) -> None:
    while True:
        try:
            ask()
        except (subprocess.SubprocessError, Refused):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return


def declare(address: Address) -> None:
    with Client(address, "declare", HANDSHAKE_S) as client:
        client.open_channel(1)
        client.call(1, commands.Exchange.Declare(exchange=FANOUT, exchange_type="fanout", durable=True),
                    commands.Exchange.DeclareOk)  # fmt: skip
        for queue, kind in {**QUEUES, PERFTEST: "classic"}.items():
            arguments: dict[str, Any] = {"x-queue-type": kind}
            if kind == "quorum":
                arguments["x-delivery-limit"] = 1 << 30
            client.call(1, commands.Queue.Declare(queue=queue, durable=True, arguments=arguments), commands.Queue.DeclareOk)
        for queue in TARGETS[-1].queues:
            client.call(1, commands.Queue.Bind(queue=queue, exchange=FANOUT), commands.Queue.BindOk)
        settle(client)


def settle(client: Client) -> None:
    """Returns when the log has what the broker was told before: declarations and acks go with the next confirmed message."""
    client.open_channel(2)
    client.call(2, commands.Queue.Declare(queue=SETTLED, durable=True), commands.Queue.DeclareOk)
    client.call(2, commands.Confirm.Select(), commands.Confirm.SelectOk)
    client.send(2, commands.Basic.Publish(routing_key=SETTLED))
    client.send(2, header.ContentHeader(body_size=1, properties=commands.Basic.Properties(delivery_mode=2)))
    client.send(2, body.ContentBody(b"."))
    client.receive(commands.Basic.Ack)
    client.call(2, commands.Queue.Purge(queue=SETTLED), commands.Queue.PurgeOk)


def site_in(folder: Path, engine: str, command: str, ctl: str, only: Sequence[str]) -> Site:
    network = Network()
    servers: Servers = ENGINES[engine](folder / "engine", [network.add(f"db{number}") for number in (1, 2, 3)])
    for server, name in zip(servers.all, ("db1", "db2", "db3"), strict=True):
        network.places[server.name] = network.places.pop(name)
    cluster = {"engine": servers.url, "lease": int(LEASE_S * 1000), "append_timeout": int(APPEND_TIMEOUT_S * 1000)}
    brokers = [
        Broker(name, folder, network.add(name), shlex.split(command), shlex.split(ctl), cluster) for name in BROKERS
    ]
    return Site(network, servers, brokers, LEASE_S, VHOST, only)


def line(figures: dict[str, Any]) -> str:
    return (
        f"round {figures['round']:4}  {figures['confirmed']:7,} confirmed, {figures['delivered']:7,} delivered, "
        f"{figures['redelivered']:6,} redelivered, {figures['take_overs']} take-overs  {'; '.join(figures['troubles'])}"
    )


def summary(rounds: Rounds, done: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    ledger = rounds.ledger
    return {
        "rounds": len(done), "published": ledger.published, "confirmed": ledger.confirmed, "delivered": ledger.delivered,
        "redelivered": ledger.redelivered, "acks_lost": ledger.returned, "take_overs": sum(one["take_overs"] for one in done),
        "longest_without_confirms_s": round(ledger.longest_wait, 1), "perftests": rounds.perftests["rounds"],
        "perftests_confirmed": rounds.perftests["rounds with confirms"],
        "cuts": rounds.site.network.can_cut, "seconds": round(seconds, 1), "troubles": dict(rounds.troubles.most_common()),
        "operators": dict(rounds.site.done.most_common()),
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    rows = [(key.replace("_", " "), value) for key, value in result["summary"].items() if not isinstance(value, dict)]
    for several in ("troubles", "operators"):
        rows.append((several, ""))
        rows += [(f"  {kind}", count) for kind, count in result["summary"][several].items()]
    rows.append(("verdict", "BROKEN" if "violation" in result else "kept all promises"))
    return "\n".join(f"{key:32} {value if isinstance(value, str) else f'{value:,}':>18}" for key, value in rows)


def run(place: Path, site: Site, seed: int, count: int, seconds: float) -> dict[str, Any]:
    """All rounds; their figures, and the first violation."""
    result: dict[str, Any] = {"seed": seed, "rounds": []}
    rounds = Rounds(site, seed, seconds, place)
    click.echo(f"seed {seed}, data in {place}" + ("" if site.network.can_cut else "; no namespaces: nothing is cut"))
    began, number = time.monotonic(), 0
    try:
        site.servers.start()
        set_up(site)
        for number in range(1, count + 1):
            result["rounds"].append(rounds.run(number))
            click.echo(line(result["rounds"][-1]))
    except (Violation, Refused, EngineFailed, subprocess.SubprocessError) as error:
        result["violation"] = f"{type(error).__name__}: {error}"
        click.echo(f"\nVIOLATION in round {number} of seed {seed}: {error}\n\ndata and logs are kept in {place}", err=True)
    finally:
        for broker in site.brokers:
            broker.abandon()
        site.servers.stop()
    result["refused"] = site.refused
    result["summary"] = summary(rounds, result["rounds"], time.monotonic() - began)
    return result


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--rounds", type=click.IntRange(1), default=20)
@click.option("--seed", type=int, default=None, help="For the same again; random when it is not given.")
@click.option("--seconds-per-round", "seconds", type=click.FloatRange(1), default=8.0, help="In which troubles begin.")
@click.option("--engine", type=click.Choice(list(ENGINES)), default="postgres")
@click.option("--trouble", "only", type=click.Choice(KINDS), multiple=True, help="This kind only; may be given several times.")
@click.option("--broker", "command", default=DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
@click.option(
    "--ctl", default=DEFAULT_COMMAND.replace("rabbitpy-broker", "rabbitpy-ctl"), help="Command that starts rabbitpy-ctl."
)
@click.option("--folder", type=click.Path(path_type=Path), help="For all data and logs, kept in any case; else a temporary one.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures to this file.")
def main(
    rounds: int,
    seed: int | None,
    seconds: float,
    engine: str,
    only: tuple[str, ...],
    command: str,
    ctl: str,
    folder: Path | None,
    json_file: Path | None,
) -> None:
    """Trouble a cluster under load, and see that it keeps its promises."""
    if not is_enclosed():
        code = run_enclosed([sys.executable, "-m", "perf.cluster_kill", *sys.argv[1:]])
        if code is not None:
            sys.exit(code)
    place = folder or Path(tempfile.mkdtemp(prefix="rabbitpy-cluster-kill-"))
    place.mkdir(parents=True, exist_ok=True)
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    place.chmod(0o755)
    (place / "engine").mkdir()
    site = site_in(place.resolve(), engine, command, ctl, only)
    result = {"engine": engine} | run(place.resolve(), site, seed, rounds, seconds)
    click.echo(table(result))
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    if "violation" in result:
        sys.exit(1)
    if folder is None:
        shutil.rmtree(place)


if __name__ == "__main__":
    main(prog_name="python -m perf.cluster_kill")
