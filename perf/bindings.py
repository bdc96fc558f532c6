"""Do many bindings slow a broker down? Binds a topic exchange many times over while other traffic flows.

    python -m perf.bindings --count 100000

Traffic flows through amq.direct before, while the bindings are made, with all of them in place, and while they are unbound;
and through the topic exchange itself before and after, with a routing key that one more binding matches. Each figure stands
with its worst second.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import click
from pamqp import commands

from perf import brokers, machine
from perf.brokers import Broker, StartFailed
from perf.load.client import Address, Client, Refused
from perf.load_run import RunFailed, load

QUEUES = 100
# Bindings sent without waiting, up to the one whose answer is waited for.
PIPELINE = 500
# The load generator's start and warm-up are over by then.
LEAD_TIME = 1.5


def binding_key(number: int) -> str:
    """Keys as users have them: half with a word in common and a wildcard at the end, half beginning with one."""
    return f"site{number % 100}.device{number}.*" if number % 2 else f"*.device{number}.#"


class Binder:
    """Binds and unbinds `count` keys of one topic exchange, spread over some queues."""

    def __init__(self, broker: Broker, exchange: str, count: int) -> None:
        self.client = Client(Address.parse(broker.url), "perf.bindings", timeout=120)
        self.client.open_channel(1)
        self.exchange = exchange
        self.count = count
        self.queues = [f"{exchange}-{number}" for number in range(QUEUES)]
        self.seconds = 0.0
        self.failure = ""

    def declare(self) -> None:
        self.client.call(1, commands.Exchange.Declare(0, self.exchange, "topic"), commands.Exchange.DeclareOk)
        for queue in self.queues:
            self.client.call(1, commands.Queue.Declare(0, queue), commands.Queue.DeclareOk)

    def bind(self) -> None:
        start = time.monotonic()
        for number in range(self.count):
            queue, key = self.queues[number % QUEUES], binding_key(number)
            if number % PIPELINE and number != self.count - 1:
                self.client.send(1, commands.Queue.Bind(0, queue, self.exchange, key, nowait=True))
            else:
                self.client.call(1, commands.Queue.Bind(0, queue, self.exchange, key), commands.Queue.BindOk)
        self.seconds = time.monotonic() - start

    def bind_one_more(self) -> str:
        """A new queue, bound with a key of its own; the load generator deletes it."""
        queue = f"perf-{uuid.uuid4().hex[:8]}"
        self.client.call(1, commands.Queue.Declare(0, queue), commands.Queue.DeclareOk)
        self.client.call(1, commands.Queue.Bind(0, queue, self.exchange, f"{queue}.#"), commands.Queue.BindOk)
        return queue

    def unbind(self) -> None:
        start = time.monotonic()
        for number in range(self.count):  # unbinding has no "no wait"
            self.client.send(
                1, commands.Queue.Unbind(0, self.queues[number % QUEUES], self.exchange, binding_key(number))
            )
            if number % PIPELINE == PIPELINE - 1 or number == self.count - 1:
                for _ in range(number % PIPELINE + 1):
                    self.client.receive(commands.Queue.UnbindOk)
        self.seconds = time.monotonic() - start

    def delete(self) -> None:
        for queue in self.queues:
            self.client.call(1, commands.Queue.Delete(0, queue), commands.Queue.DeleteOk)
        self.client.call(1, commands.Exchange.Delete(0, self.exchange), commands.Exchange.DeleteOk)
        self.client.close()

    def in_background(self, work: Callable[[], None]) -> threading.Thread:
        def body() -> None:
            time.sleep(LEAD_TIME)
            try:
                work()
            except Refused as error:
                self.failure = str(error)

        thread = threading.Thread(target=body)
        thread.start()
        return thread


def traffic(broker: Broker, options: str, seconds: float) -> dict[str, Any]:
    result = load(broker, options, seconds)
    return {
        "received_per_s": result["received_per_s"],
        "worst_second_per_s": min(sample["received_per_s"] for sample in result["samples"]),
        "latency_us": result["latency_us"],
    }


def measure(broker: Broker, count: int, options: str, seconds: float) -> dict[str, Any]:
    exchange = f"perf-bindings-{uuid.uuid4().hex[:8]}"
    binder = Binder(broker, exchange, count)
    binder.declare()
    phases: dict[str, dict[str, Any]] = {}
    times: dict[str, float] = {}

    def other(phase: str) -> None:
        phases[phase] = traffic(broker, f"-e amq.direct {options}", seconds)

    def same(phase: str) -> None:
        # The load generator must neither declare nor delete the exchange; so its queue is bound here.
        queue = binder.bind_one_more()
        phases[phase] = traffic(
            broker, f"-u {queue} -e {exchange} -t topic -k {queue}.a.b --predeclared {options}", seconds
        )

    other("other exchange, before")
    same("same exchange, before")
    rss_before = broker.rss_kib()
    for verb, work in (("binding", binder.bind), ("unbinding", binder.unbind)):
        thread = binder.in_background(work)
        other(f"other exchange, while {verb}")
        thread.join()
        if binder.failure:
            raise StartFailed(f"{verb}: {binder.failure}")
        times[verb] = binder.seconds
        if verb == "binding":
            rss_after = broker.rss_kib()
            other("other exchange, all bound")
            same("same exchange, all bound")
    binder.delete()
    return {
        "broker": broker.build,
        "bindings": count,
        "bound_per_s": round(count / times["binding"]),
        "unbound_per_s": round(count / times["unbinding"]),
        "bytes_per_binding": round((rss_after - rss_before) * 1024 / count) if rss_after else None,
        "load": options,
        "phases": phases,
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@brokers.options
@click.option("--count", type=click.IntRange(1), default=100_000, help="Bindings.")
@click.option("--secs", type=click.FloatRange(1), default=5.0, help="Seconds of traffic in each phase.")
@click.option(
    "--load", "load_options", default="-s 100 -c 500 -Q 500", help="The traffic, as options of perf.load."
)
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(count: int, secs: float, load_options: str, save: bool, **which: Any) -> None:
    """Bind a topic exchange many times over and print what that does to the traffic."""
    try:
        with brokers.one(**which) as broker:
            result = measure(broker, count, load_options, secs)
    except (StartFailed, Refused, RunFailed) as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('bindings', result)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m perf.bindings")
