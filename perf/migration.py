"""Does a move from RabbitMQ, and back, lose or disorder anything while both sides are killed?

    python -m perf.migration --messages 1000000 --queues 50 --kills 6
    python -m perf.migration --messages 200000 --queues 50 --kills 0 --back

Debian's RabbitMQ gets queues of every kind (plain, lazy, priorities, time to live, length limits, quorum, single active consumer,
streams) with numbered messages, and a publisher goes on all the while. `rabbitpy-ctl migrate` moves definitions and messages,
again and again until the source is empty; at random points RabbitMQ, our broker, or the command itself is killed (-9) and
started again.

At the end the target is drained by a client that has nothing to do with ours, and the ledger compared: every message that
RabbitMQ had confirmed is there, in order for each queue and priority, and those that came twice are no more than the command has
counted, where it was not killed itself. `--back` moves everything back afterwards and compares again. Exit code 1 if not so.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pika
import pika.exceptions

from perf import brokers

CTL = str(Path(sys.executable).with_name("rabbitpy-ctl"))
BODY = 100  # bytes
START_S = 180.0
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("lazy", {"x-queue-mode": "lazy"}),
    ("priority", {"x-max-priority": 4}),
    ("ttl", {"x-message-ttl": 86_400_000, "x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "k"}),
    ("limited", {"x-max-length": 10_000_000, "x-overflow": "reject-publish"}),
    ("quorum", {"x-queue-type": "quorum"}),
    ("single", {"x-single-active-consumer": True, "x-expires": 86_400_000}),
    ("stream", {"x-queue-type": "stream"}),
]
PRIORITIES = 5


class Failed(Exception):
    """A promise was not kept."""


class Node:
    """A broker that can be killed and started again on its data; `port` and `api` stay."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir()
        self.port, self.api, *self.more_ports = brokers.free_ports(4)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def command(self) -> tuple[list[str], dict[str, str]]:
        raise NotImplementedError

    def start(self) -> None:
        command, env = self.command()
        with (self.folder / "log").open("ab") as log:
            quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.process = subprocess.Popen(command, env=env, start_new_session=True, **quiet)
        end = time.monotonic() + START_S
        while True:
            try:
                pika.BlockingConnection(pika.URLParameters(self.url)).close()
            except (pika.exceptions.AMQPError, OSError):
                if time.monotonic() > end:
                    raise Failed(f"{self.name} does not start, see {self.folder}") from None
                time.sleep(0.2)
            else:
                return

    def kill(self) -> None:
        """Kill -9 of all of it."""
        assert self.process is not None
        brokers.signal_all(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            brokers.signal_all(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


class Ours(Node):
    def command(self) -> tuple[list[str], dict[str, str]]:
        options = ["--data-dir", str(self.folder / "data"), "--listen", f"127.0.0.1:{self.port}", "--log-level", "warning"]
        options += ["--management-listen", f"127.0.0.1:{self.api}", "--metrics-listen", "127.0.0.1:0"]
        return [brokers.DEFAULT_COMMAND, *options], dict(os.environ)


class RabbitMQ(Node):
    """Its epmd is a process of its own, which outlives kills."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        (folder / "rabbitmq.conf").write_text(
            f"log.console = true\nlog.console.level = warning\nmanagement.tcp.port = {self.api}\nmanagement.tcp.ip = 127.0.0.1\n"
            "collect_statistics_interval = 1000\nvm_memory_high_watermark.relative = 0.6\n"
        )
        (folder / "plugins").write_text("[rabbitmq_management].\n")
        epmd = shutil.which("epmd") or next(map(str, Path("/usr/lib/erlang").glob("erts-*/bin/epmd")), "epmd")
        env = {**os.environ, "ERL_EPMD_ADDRESS": "127.0.0.1"}
        self.epmd = subprocess.Popen([epmd, "-port", str(self.more_ports[0])], env=env, start_new_session=True)

    def command(self) -> tuple[list[str], dict[str, str]]:
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        return [str(brokers.RABBITMQ_SERVER)], plain | {
            "HOME": str(self.folder),
            "RUNNING_UNDER_SYSTEMD": "1",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.more_ports[0]),
            "RABBITMQ_NODENAME": f"move{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.more_ports[1]),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log.d"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def stop(self) -> None:
        super().stop()
        self.epmd.kill()
        self.epmd.wait()


class Ledger:
    """What RabbitMQ has confirmed, by queue: how many messages, numbered from 0."""

    def __init__(self, queues: list[tuple[str, str]]) -> None:
        self.queues = queues  # name and kind
        self.confirmed = dict.fromkeys((name for name, _ in queues), 0)

    def properties(self, kind: str, number: int) -> pika.BasicProperties:
        priority = number % PRIORITIES if kind == "priority" else None
        return pika.BasicProperties(delivery_mode=2, priority=priority, headers={"n": number}, message_id=str(number))

    def publish(self, channel: Any, name: str, kind: str, count: int) -> None:
        """So many more, each confirmed before it counts."""
        for _ in range(count):
            number = self.confirmed[name]
            body = f"{name} {number} ".encode().ljust(BODY, b".")
            channel.basic_publish("move", name, body, self.properties(kind, number))
            self.confirmed[name] = number + 1

    def fill(self, node: Node, messages: int) -> None:
        """Publishes in blocks, each by a transaction's worth of confirms."""
        connection = pika.BlockingConnection(pika.URLParameters(node.url))
        channel = connection.channel()
        channel.exchange_declare("move", "topic", durable=True)
        channel.exchange_declare("dead", "fanout", durable=True)
        for name, kind in self.queues:
            channel.queue_declare(name, durable=True, arguments=dict(KINDS)[kind])
            channel.queue_bind(name, "move", name)
        channel.tx_select()
        share = messages // len(self.queues)
        for name, kind in self.queues:
            for at in range(0, share, 2_000):
                self.publish(channel, name, kind, min(2_000, share - at))
                channel.tx_commit()
        connection.close()


def publishing(ledger: Ledger, node: Node, stop: threading.Event) -> None:
    """Goes on publishing, a message confirmed at a time, while the node is there."""
    names = ledger.queues
    turn = 0
    while not stop.is_set():
        with contextlib.suppress(pika.exceptions.AMQPError, OSError):
            connection = pika.BlockingConnection(pika.URLParameters(node.url))
            channel = connection.channel()
            channel.confirm_delivery()
            while not stop.is_set():
                name, kind = names[turn % len(names)]
                number = ledger.confirmed[name]
                try:
                    ledger.publish(channel, name, kind, 1)
                except (pika.exceptions.AMQPError, OSError):
                    # It may be there or not: that number is used up, and is not missed.
                    ledger.confirmed[name] = number + 1
                    MAYBE.setdefault(name, set()).add(number)
                    raise
                turn += 1
                stop.wait(0.002)
            connection.close()
        stop.wait(0.2)


MAYBE: dict[str, set[int]] = {}


@contextlib.contextmanager
def background(ledger: Ledger, node: Node) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=publishing, args=(ledger, node, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def migrate(source: Node, target: Node, state: Path, *more: str) -> subprocess.Popen[str]:
    command = [CTL, "migrate", source.url, "--management", f"http://127.0.0.1:{source.api}", "--to", target.url]
    command += ["--to-management", f"http://127.0.0.1:{target.api}", "--state", str(state), "--skip-refused", "--patience", "120"]
    return subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def left(node: Node, ledger: Ledger) -> int:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    queues = [name for name, kind in ledger.queues if kind != "stream"]  # a stream is never empty
    count = sum(channel.queue_declare(name, passive=True).method.message_count for name in queues)
    connection.close()
    return int(count)


def compare(node: Node, ledger: Ledger) -> tuple[int, int]:
    """Drains the node; how many messages there were, and how many of them twice. Raises Failed."""
    total = twice = 0
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2_000)
    for name, kind in ledger.queues:
        found: dict[int, int] = {}
        last: dict[int, int] = {}
        arguments = {"x-stream-offset": "first"} if kind == "stream" else None
        looks = 0
        for method, properties, body in channel.consume(name, arguments=arguments, inactivity_timeout=1.0):
            if method is None:
                looks += 1
                if len(found) >= ledger.confirmed[name] - len(MAYBE.get(name, ())) or looks > 20:
                    break
                continue
            number = int(properties.headers["n"])
            if body != f"{name} {number} ".encode().ljust(BODY, b".") or method.routing_key != name:
                raise Failed(f"{name}: message {number} is not what was published")
            if number not in found:
                lane = number % PRIORITIES if kind == "priority" else 0
                if number < last.get(lane, -1):
                    raise Failed(f"{name}: {number} comes after {last[lane]}")
                last[lane] = number
            found[number] = found.get(number, 0) + 1
            if method.delivery_tag % 1_000 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
        channel.basic_ack(0, multiple=True)
        channel.cancel()
        if kind == "stream" and sum(found.values()) > len(found):
            raise Failed(f"{name}: {sum(found.values()) - len(found)} messages came twice, which a stream's never do")
        missing = set(range(ledger.confirmed[name])) - set(found) - MAYBE.get(name, set())
        if missing:
            raise Failed(f"{name}: {len(missing)} confirmed messages are missing, {min(missing)} first")
        total += len(found)
        twice += sum(found.values()) - len(found)
    connection.close()
    return total, twice


def moved(source: Node, target: Node, ledger: Ledger, state: Path, kills: int, dice: random.Random) -> float:
    """Until the source is empty; returns the seconds in which the command ran."""
    pending = [dice.choice((source, target, None)) for _ in range(kills)]
    seconds = 0.0
    with background(ledger, source) if kills else contextlib.nullcontext():
        while pending:
            began = time.monotonic()
            command = migrate(source, target, state)
            try:
                command.communicate(timeout=dice.uniform(2.0, 8.0))
                pending.pop()  # it was done before
                continue
            except subprocess.TimeoutExpired:
                victim = pending.pop()
            if victim is None:
                command.kill()
            else:
                victim.kill()
                victim.start()
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.communicate(timeout=dice.uniform(1.0, 5.0))
            if command.poll() is None:
                command.kill()
            command.wait()
            seconds += time.monotonic() - began
            click.echo(f"  killed {victim.name if victim else 'the command'}; {left(source, ledger)} messages left", err=True)
    while True:  # once at least, for the streams
        began = time.monotonic()
        command = migrate(source, target, state)
        said, _ = command.communicate()
        seconds += time.monotonic() - began
        if command.returncode:
            raise Failed(f"migrate ends with {command.returncode}:\n{said}")
        if not left(source, ledger):
            return seconds


def forget_streams(node: Node, ledger: Ledger) -> None:
    """A stream that was copied is still there, and would be copied back by no message."""
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        for name, kind in ledger.queues:
            if kind == "stream":
                channel.queue_delete(name)


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", default=1_000_000)
@click.option("--queues", default=50)
@click.option("--kills", default=6)
@click.option("--seed", default=1)
@click.option("--back", is_flag=True, help="Then move everything back.")
def main(messages: int, queues: int, kills: int, seed: int, back: bool) -> None:
    dice = random.Random(seed)
    names = [(f"{KINDS[number % len(KINDS)][0]}.{number}", KINDS[number % len(KINDS)][0]) for number in range(queues)]
    ledger = Ledger(names)
    with tempfile.TemporaryDirectory(prefix="rabbitpy-move-") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        rabbitmq, ours = RabbitMQ("RabbitMQ", folder / "rabbitmq"), Ours("rabbitpy", folder / "rabbitpy")
        for node in (rabbitmq, ours):
            stack.callback(node.stop)
            node.start()
        began = time.monotonic()
        ledger.fill(rabbitmq, messages)
        click.echo(f"{messages} messages in {queues} queues, made in {time.monotonic() - began:.0f} s", err=True)
        result: dict[str, Any] = {}
        for source, target in ((rabbitmq, ours), (ours, rabbitmq))[: 2 if back else 1]:
            if source is ours:
                forget_streams(target, ledger)
            state = folder / f"{source.name}.json"
            seconds = moved(source, target, ledger, state, kills, dice)
            counted = json.loads(state.read_text())
            went = sum(entry["moved"] for entry in counted.values())
            result[f"{source.name} to {target.name}"] = {
                "moved": went,
                "seconds": round(seconds, 1),
                "messages_per_second": round(went / seconds),
                "perhaps_twice": sum(entry["doubtful"] for entry in counted.values()),
            }
        total, twice = compare(rabbitmq if back else ours, ledger)
        unknown = sum(map(len, MAYBE.values()))  # neither confirmed nor refused when RabbitMQ was killed: there, or not
        confirmed = sum(ledger.confirmed.values()) - unknown
        result |= {"kills": kills, "confirmed": confirmed, "unknown": unknown, "found": total, "twice": twice}
    click.echo(json.dumps(result, indent=2))


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(str(failed))
