"""kill -9 under load, again and again on one data directory: what was confirmed must be there, in order, unchanged.

    python -m perf.kill --rounds 200
    python -m perf.kill --rounds 20 --seed 7 --config small.toml --json result.json
    python -m perf.kill --rounds 20 --broker "rabbitpy-broker --check-invariants"

Each round starts the broker, compares what it came up with to the ledger, publishes and consumes for about
--seconds-per-round, and ends it at a random moment: mostly by SIGKILL, sometimes by SIGTERM, sometimes by SIGKILL once more while
it is still recovering. Then `COMMAND check DIR` must be content. At the end all queues are drained. What is held against the
broker stands in ledger.py; a broker that ends by itself, as it does when it finds an invariant broken, is a violation too.

What happens in a round follows from seed and round; how it interleaves with the broker does not, so a seed is a good way
to a violation, not a sure one. A violation prints the message's history, keeps the data directory, and ends with exit code 1.
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from perf.brokers import DEFAULT_COMMAND
from perf.kill.daemon import Daemon
from perf.kill.ledger import Ledger, Violation
from perf.kill.streams import ARGUMENTS, STREAMS, StreamConsumer, starts
from perf.kill.traffic import (
    STYLES,
    Consumer,
    Publisher,
    Target,
    Traffic,
    message_counts,
    publish_method,
    topology,
)
from perf.load.client import Refused

FANOUT = "kill"
TARGETS = (
    Target(FANOUT, "", ("fan-1", "fan-2", "fan-3", "stream")),
    Target("", "direct-1", ("direct-1",)),
    Target("", "direct-2", ("direct-2",)),
    Target("", "lazy", ("lazy",)),
    Target("", "backlog", ("backlog",)),
    Target("", "stream-short", ("stream-short",)),
)
LAZY = ("lazy",)
# A queue is left alone until its backlog is long, then it is drained: so both paging out and reading back happen.
RARELY_CONSUMED = frozenset({"backlog", "fan-3"})
QUEUES = tuple(queue for target in TARGETS for queue in target.queues if queue not in STREAMS)
TRANSIENT = 0.05  # of the messages, where a queue may forget such
WINDOWS = (1, 20, 200, 1000)
PREFETCHES = (1, 10, 100, 1000, 0)
DRAIN_TIMEOUT = 60.0  # without any delivery


class Rounds:
    """The rounds on one data directory."""

    def __init__(self, daemon: Daemon, seed: int, seconds: float, max_backlog: int, checked: bool, kind: str) -> None:
        self.daemon = daemon
        self.kind = kind
        self.seed = seed
        self.seconds = seconds
        self.max_backlog = max_backlog
        self.checked = checked
        self.ledger = Ledger(QUEUES, STREAMS)
        self.counts = dict.fromkeys(QUEUES, 0)
        self.start_ms = 1000.0

    def run(self, number: int) -> dict[str, Any]:
        """One round; its figures."""
        rng = random.Random(f"{self.seed} {number}")
        ledger = self.ledger
        before = (
            ledger.published,
            ledger.confirmed,
            ledger.nacked,
            ledger.delivered,
            ledger.acked,
            ledger.returned,
        )
        figures = self.start(first=number == 1)
        end = rng.choices(("kill", "kill twice", "stop", "settle and stop"), (70, 12, 9, 9))[0]
        load_seconds = rng.uniform(0, 0.3) if rng.random() < 0.2 else self.seconds * rng.uniform(0.3, 1.9)
        traffic = Traffic()
        try:
            self.connect(traffic, rng)
            traffic.run(load_seconds)
            self.daemon.check_alive()
            self.end(end, traffic)
        finally:
            traffic.close()
        if end == "kill twice":
            self.kill_in_recovery(rng)
        self.check()
        after = (
            ledger.published,
            ledger.confirmed,
            ledger.nacked,
            ledger.delivered,
            ledger.acked,
            ledger.returned,
        )
        names = ("published", "confirmed", "nacked", "delivered", "acked", "acks_lost")
        figures |= {"round": number, "end": end, "load_seconds": round(load_seconds, 3)}
        figures |= {name: now - then for name, now, then in zip(names, after, before, strict=True)}
        return figures

    def start(self, first: bool = False) -> dict[str, Any]:
        """Starts the broker, and compares the lengths of its queues with the ledger."""
        self.start_ms = self.daemon.start()
        if first:
            topology(TARGETS, LAZY, self.kind, FANOUT, ARGUMENTS, self.daemon.address)
        self.ledger.start_session()
        self.counts = message_counts(QUEUES, self.daemon.address)
        for queue, count in self.counts.items():
            self.ledger.recovered(queue, count)
        for stream, count in message_counts(("stream",), self.daemon.address).items():  # of which nothing goes
            top = self.ledger.streams[stream].top()
            if count < top:
                raise Violation(f"{stream} came up with {count} messages, and offset {top - 1} was shown")
        return {
            "recovered": sum(self.counts.values()),
            "start_ms": round(self.start_ms),
            "recovery_ms": self.daemon.recovery_ms(),
        }

    def connect(self, traffic: Traffic, rng: random.Random) -> None:
        address, ledger, counts = self.daemon.address, self.ledger, self.counts
        shared = rng.choice(QUEUES) if rng.random() < 0.3 else None
        ledger.shared = frozenset(() if shared is None else (shared,))
        for queue in QUEUES:
            full = counts[queue] > self.max_backlog
            if not full and rng.random() < (0.85 if queue in RARELY_CONSUMED else 0.15):
                continue
            for _ in range(2 if queue == shared else 1):
                style = "prompt" if full else rng.choice(list(STYLES))
                prefetch = 1000 if full else rng.choice(PREFETCHES)
                traffic.add(Consumer(address, queue, ledger, style, prefetch, f"{rng.random()}"))
        targets = [
            target
            for target in TARGETS
            if all(counts.get(queue, 0) <= 2 * self.max_backlog for queue in target.queues)
        ]
        for stream in STREAMS:
            track = ledger.streams[stream]
            for start in (track.frontier, starts(rng, track.top()), starts(rng, track.top())):
                traffic.add(StreamConsumer(address, stream, ledger, start, rng.choice((1, 10, 500))))
        for index, window in enumerate(WINDOWS if targets else ()):
            name = f"publisher-{index + 1}"
            transient = 0.0 if self.kind == "quorum" else TRANSIENT
            traffic.add(Publisher(address, name, ledger, targets, window, f"{rng.random()}", transient))

    def end(self, how: str, traffic: Traffic) -> None:
        if how in {"kill", "kill twice"}:
            self.daemon.kill()
        else:
            if how == "settle and stop":
                traffic.settle()
            traffic.stopping()
            self.ledger.stopping = True
            self.daemon.terminate()
        traffic.read_to_the_end()
        if how in {"stop", "settle and stop"}:
            self.daemon.wait()
        self.ledger.end_session(how, acks_settled=how == "settle and stop")

    def kill_in_recovery(self, rng: random.Random) -> None:
        self.daemon.launch()
        time.sleep(rng.uniform(0, 1.1 * self.start_ms / 1000))
        self.daemon.check_alive()
        self.daemon.kill()
        self.check()

    def check(self) -> None:
        if self.checked:
            self.daemon.check()

    def drain(self) -> dict[str, Any]:
        """A last session: all queues are emptied, and must be empty after a last restart."""
        figures = self.start()
        ledger, traffic, address = self.ledger, Traffic(), self.daemon.address
        try:
            marks = [Target("", queue, (queue,)) for queue in QUEUES]
            marks += [Target("", stream, (stream,)) for stream in STREAMS]
            consumers = [Consumer(address, queue, ledger, "prompt", 1000, "") for queue in QUEUES]
            readers = [StreamConsumer(address, stream, ledger, "first", 500) for stream in STREAMS]
            publisher = Publisher(address, "end", ledger, (), 0, "")
            for peer in (*consumers, *readers, publisher):
                traffic.add(peer)
            for mark in marks:  # behind everything else
                publisher.publish(mark, publish_method(mark), 1, persistent=True)
            self._consume_until_marked(traffic, consumers)
            traffic.settle()
            ledger.finish()
            left = {queue: count for queue, count in message_counts(QUEUES, address).items() if count}
            if left:
                raise Violation(f"not empty after the last message was acked: {left}")
            self.end("stop", traffic)
        finally:
            traffic.close()
        self.check()
        self.daemon.start()
        left = {queue: count for queue, count in message_counts(QUEUES, self.daemon.address).items() if count}
        if left:
            raise Violation(f"acked before a clean stop, and back after it: {left}")
        self.daemon.terminate()
        self.daemon.wait()
        return figures

    def _consume_until_marked(self, traffic: Traffic, consumers: list[Consumer]) -> None:
        """Returns when each queue has delivered its mark, and all that came is acked."""
        ledger = self.ledger
        progress, seen = time.monotonic(), ledger.delivered
        while (
            any(tracks["end"].ahead for tracks in ledger.tracks.values())
            or any(track.ahead["end"] for track in ledger.streams.values())
            or any(one.held for one in consumers)
        ):
            traffic.turn(0.05)
            if ledger.delivered > seen:
                progress, seen = time.monotonic(), ledger.delivered
            elif time.monotonic() - progress > DRAIN_TIMEOUT:
                raise Violation(f"nothing was delivered for {DRAIN_TIMEOUT:.0f} s, and there is more")


def line(figures: dict[str, Any]) -> str:
    recovery = figures["recovery_ms"]
    took = "" if recovery is None else f" (recovery {recovery:,.0f} ms)"
    return (
        f"round {figures['round']:4}  {figures['recovered']:7,} recovered, started in {figures['start_ms']:,} ms{took};"
        f"  {figures['end']} after {figures['load_seconds']:.2f} s:  {figures['published']:,} published,"
        f" {figures['confirmed']:,} confirmed, {figures['delivered']:,} delivered, {figures['acked']:,} acked,"
        f" {figures['acks_lost']:,} acks lost"
    )


def summary(rounds: list[dict[str, Any]], ledger: Ledger, seconds: float) -> dict[str, Any]:
    starts = [figures["start_ms"] for figures in rounds]
    return {
        "rounds": len(rounds),
        "kills": sum(figures["end"].startswith("kill") for figures in rounds),
        "published": ledger.published,
        "confirmed": ledger.confirmed,
        "nacked": ledger.nacked,
        "delivered": ledger.delivered,
        "acked": ledger.acked,
        "acks_lost": ledger.returned,
        "offsets": sum(track.frontier for track in ledger.streams.values()),
        "recovered": sum(figures["recovered"] for figures in rounds),
        "start_ms_median": statistics.median(starts) if starts else None,
        "start_ms_max": max(starts, default=None),
        "seconds": round(seconds, 1),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--rounds", type=click.IntRange(1), default=200, help="How often the broker is ended.")
@click.option("--seed", type=int, default=None, help="For the same again; random when it is not given.")
@click.option(
    "--seconds-per-round", type=click.FloatRange(0.1), default=1.0, help="Load before the end, on average."
)
@click.option("--broker", "command", default=DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    help="TOML file for it.",
)
@click.option(
    "--check/--no-check", "checked", default=True, help="Verify the stopped data directory after each round."
)
@click.option(
    "--max-backlog", type=click.IntRange(1), default=20_000, help="Messages in a queue before it is drained."
)
@click.option("--queue-type", "kind", type=click.Choice(["classic", "quorum"]), default="classic", help="Of all queues.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="For data and log, kept in any case; else a temporary one, kept after a violation.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures to this file.")
def main(
    rounds: int,
    seed: int | None,
    seconds_per_round: float,
    command: str,
    config: Path | None,
    checked: bool,
    max_backlog: int,
    kind: str,
    folder: Path | None,
    json_file: Path | None,
) -> None:
    """End the broker under load again and again, and see that it keeps its promises."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    place = folder or Path(tempfile.mkdtemp(prefix="rabbitpy-kill-"))
    place.mkdir(parents=True, exist_ok=True)
    daemon = Daemon(shlex.split(command), place.resolve(), config)
    runner = Rounds(daemon, seed, seconds_per_round, max_backlog, checked, kind)
    result: dict[str, Any] = {"seed": seed, "seconds_per_round": seconds_per_round, "rounds": []}
    click.echo(f"seed {seed}, data in {place}")
    started, number = time.monotonic(), 0
    try:
        for number in range(1, rounds + 1):
            result["rounds"].append(runner.run(number))
            click.echo(line(result["rounds"][-1]))
        number = rounds + 1
        result["drain"] = runner.drain()
    except (Violation, Refused) as error:
        ended = daemon.end_by_itself()
        result["violation"] = violation = f"{error}\n\n{ended}" if ended else str(error)
        where = f"round {number}" if number <= rounds else "the last drain"
        click.echo(
            f"\nVIOLATION in {where} of seed {seed}: {violation}\n\ndata and log are kept in {place}", err=True
        )
    finally:
        daemon.abandon()
    result["summary"] = summary(result["rounds"], runner.ledger, time.monotonic() - started)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    if "violation" in result:
        sys.exit(1)
    click.echo(
        "kept all promises: " + ", ".join(f"{key} {value}" for key, value in result["summary"].items())
    )
    if folder is None:
        shutil.rmtree(place)


if __name__ == "__main__":
    main(prog_name="python -m perf.kill")
