"""What does a replicated vhost move, beside the engine that it stands on, and beside RabbitMQ's quorum queues on three nodes?

    python -m perf.replicated postgres --rabbitmq
    python -m perf.replicated kafka
    python -m perf.replicated postgresql://one,two,three/x       an engine that runs

Three brokers with a vhost that all of them have; the load goes to its owner, as it does to the leader of RabbitMQ's queue,
which gets as many messages:

    throughput   persistent messages published with confirms, nobody consuming, into one durable queue
    through      the same with a consumer that acks each
    paced        so many a second: how long until a confirm is there
    engine       the blocks that the owner has just appended, as they were before they were compressed, appended to another log,
                 one at a time and with four under way, and nothing else; a broker's share of the engine is what it appends a
                 second of what this does, both before compression. `as_appended` is the same with the compressed blocks, in
                 bytes before compression as well. Beside the paced run as many bytes a second as the owner appended, each
                 with what has gathered during the one before: time from a message's turn to the end of its append, so that a
                 moment in which the engine does nothing counts for all messages that come in it, as it does for those who publish

Paced runs and those of the engine take turns, several in a round: of each the median of its p99s counts, so that one moment in
which the disk does nothing does not decide. `machine_cpu_s` is the CPU time of all that runs on the machine: servers, brokers
and clients; with two cores for all of them it says more than a rate. `cpu_s_per_gb` is the same for a GB of blocks, by who has
spent it (shares.py).

All servers of the engine, three brokers, clients and disk share one machine, so that only ratios of one run count. What a run
has left to be written to the disk is written before the next one begins. With `--alone` the followers are stopped (SIGSTOP)
while the owner is measured: they then take nothing of the machine, as if they had one of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import statistics
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from perf import brokers, cluster_log, load_run, machine, replicas
from perf.brokers import Broker, StartFailed
from perf.engines import rabbitmq
from perf.kill.ledger import Violation
from perf.replicas import Replicas
from perf.shares import Shares, per_gb
from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.compression import Compression
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.engines import engine_for
from rabbitpy_broker.cluster.log import Trimmed
from rabbitpy_broker.ctl import CtlError
from rabbitpy_broker.storage.vhost_store import vhost_folder

BLOCKS: Final = 500  # of those that the owner appended last, appended again
UNDER_WAY: Final = (1, 4)


# -- the engine by itself -----------------------------------------------------------------------------------------------


async def log_of(url: str, vhost: str) -> str:
    """The name of a vhost's log."""
    async with opened(url) as engine:
        return next(name for name in await engine.logs() if name.startswith(f"{vhost_folder(vhost)}."))


async def end_of(url: str, name: str) -> int:
    async with opened(url) as engine:
        return await engine.log(name).end()


async def blocks_before(engine: Engine, name: str, end: int, begin: int) -> list[bytes]:
    """The last of the blocks between two positions of a log."""
    position = max(begin, end - BLOCKS)
    while True:
        reader = engine.log(name).reader(position)
        try:
            return [entry.block async for entry in reader.entries(end)]
        except Trimmed as error:
            position = error.first
        finally:
            await reader.close()


@contextlib.asynccontextmanager
async def opened(url: str) -> Any:
    engine = engine_for(url)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def uncompressed(engine: Engine, entries: list[bytes]) -> list[bytes]:
    """The entries that those would have been without compression."""
    found: list[bytes] = []
    parts: list[bytes] = []
    for entry in entries:
        parts.append(entry)
        if entry[0] == blocks.COMPRESSED:
            block = await Compression().decompressed(b"".join(part[1:] for part in parts))
            parts = blocks.parts(block, engine.max_block)
        if entry[0] != blocks.PART:
            found += parts
            parts = []
    return found


async def again(url: str, name: str, begin: int, end: int, seconds: float) -> dict[str, Any]:
    """Appends a vhost's last blocks to another log, over and over for some seconds, and takes the time."""
    os.sync()
    async with opened(url) as engine:
        entries = await blocks_before(engine, name, end, begin)
        whole = await uncompressed(engine, entries)
        size, compressed = sum(map(len, whole)), sum(map(len, entries))
        found: dict[str, Any] = {"block_bytes": round(size / len(entries)), "compressed_to": round(compressed / size, 3)}
        for under_way in UNDER_WAY:
            found[f"under_way_{under_way}"] = await append_all(engine, whole, under_way, seconds)
        found["as_appended"] = await append_all(engine, entries, 1, seconds, size / compressed)
        return found


async def append_all(
    engine: Engine, entries: list[bytes], under_way: int, seconds: float, factor: float = 1.0
) -> dict[str, Any]:
    """At least once; `factor`: how many bytes each of these stands for."""
    name = f"perf-{uuid.uuid4().hex}"
    await engine.create_log(name)
    log = engine.log(name)
    waiting: deque[tuple[float, int, asyncio.Future[int]]] = deque()
    times, size, expected = [], 0, 0
    shares, began = Shares({}), time.perf_counter()
    while True:
        while len(waiting) < under_way and (not expected or time.perf_counter() - began < seconds):
            block = entries[expected % len(entries)]
            waiting.append((time.perf_counter(), len(block), log.append(block, term=1, expected=expected)))
            expected += 1
        if not waiting:
            break
        asked, length, append = waiting.popleft()
        await append
        times.append(time.perf_counter() - asked)
        size += length
    took, cpu = time.perf_counter() - began, shares.so_far()
    await engine.delete_log(name)
    size = int(size * factor)
    return {"mb_s": round(size / took / 1e6, 2), "cpu_s_per_gb": per_gb(cpu, size), **percentiles(times)}


def percentiles(times: list[float]) -> dict[str, float]:
    times.sort()
    return {
        "p50_ms": round(times[len(times) // 2] * 1000, 2),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1000, 2),
    }


async def again_paced(url: str, name: str, begin: int, end: int, rate: int, seconds: float) -> dict[str, Any]:
    """Appends what a vhost's log has between two positions to another one, at the rate at which its messages came."""
    os.sync()
    async with opened(url) as engine:
        entries = await uncompressed(engine, await blocks_before(engine, name, end, begin))
        size = max(1, round(statistics.mean(map(len, entries)) * (end - begin) / (rate * seconds)))
        found = await append_paced(engine, b"".join(entries), size, rate, seconds)
        return {"block_bytes": round(statistics.mean(map(len, entries))), "paced": found}


async def append_paced(engine: Engine, data: bytes, size: int, rate: int, seconds: float) -> dict[str, float]:
    """Messages of `size` bytes, one at a time under way; those that come meanwhile are the next block."""
    name = f"perf-{uuid.uuid4().hex}"
    await engine.create_log(name)
    log = engine.log(name)
    times: list[float] = []
    sent = appends = 0
    total = max(1, int(rate * seconds))
    began = time.perf_counter()
    while sent < total:
        now = time.perf_counter() - began
        if sent > now * rate:
            await asyncio.sleep(sent / rate - now)
            now = time.perf_counter() - began
            came = [now] * (min(total, int(now * rate) + 1) - sent)  # the clock of the loop is a coarse one
        else:
            came = [number / rate for number in range(sent, min(total, int(now * rate) + 1))]
        block = (data * (len(came) * size // len(data) + 1))[: len(came) * size]
        await log.append(block, term=1, expected=appends)
        done = time.perf_counter() - began
        times.extend(done - at for at in came)
        sent += len(came)
        appends += 1
    await engine.delete_log(name)
    return {"appends": appends, **percentiles(times)}


# -- a broker -----------------------------------------------------------------------------------------------------------


def throughput(broker: Broker, options: str, messages: int) -> dict[str, Any]:
    """So many messages; with what was confirmed a second."""
    os.sync()
    busy = machine.busy_s()
    done = load_run.load(broker, f"{options} -c 1000 -n {messages}", 0.0)
    busy = machine.busy_s() - busy
    return {"messages": messages, "per_s": done["confirmed_per_s"], "seconds": done["seconds"], "machine_cpu_s": round(busy, 2)}


def paced(broker: Broker, options: str, rate: int, seconds: float) -> dict[str, Any]:
    """Confirms' latency at a rate, in ms."""
    os.sync()
    done = load_run.load(broker, f"{options} -c 1000 -r {rate}", seconds)
    latency = done["confirm_latency_us"]
    return {"per_s": done["confirmed_per_s"], "p50_ms": latency["p50"] / 1000, "p99_ms": latency["p99"] / 1000}


class Ours:
    """The owner of a replicated vhost, beside the log that it appends to."""

    def __init__(self, nodes: Replicas, url: str, seconds: float, turns: int, alone: bool) -> None:
        self.nodes = nodes
        self.url = url
        self.alone = alone
        self.seconds = seconds
        self.turns = turns
        self.log = uvloop.run(log_of(url, nodes.vhost))

    def round(self, options: str, messages: int, rate: int) -> dict[str, Any]:
        owner = self.nodes.owner()
        with self.without([node for node in self.nodes.alive() if node != owner] if self.alone else []):
            return self.measure(self.nodes.broker(owner), options, messages, rate)

    @contextlib.contextmanager
    def without(self, followers: list[str]) -> Iterator[None]:
        """They are stopped meanwhile."""
        pids = [pid for node in followers if (pid := self.nodes.broker(node).session) is not None]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def measure(self, broker: Broker, options: str, messages: int, rate: int) -> dict[str, Any]:
        publish = self.beside_engine(lambda: throughput(broker, f"-y 0 {options}", messages))
        through = self.beside_engine(lambda: throughput(broker, f"-y 1 -Q 1000 {options}", messages))
        confirms = self.paced_beside_engine(broker, f"-y 1 -Q 1000 {options}", rate)
        return {"throughput": publish, "through": through, "paced": confirms}

    def roles(self) -> dict[int, str]:
        """Of the brokers' processes, by pid."""
        owner = self.nodes.owner()
        pids = {node: self.nodes.broker(node).session for node in self.nodes.alive()}
        return {pid: "owner" if node == owner else "followers" for node, pid in pids.items() if pid is not None}

    def beside_engine(self, run: Any) -> dict[str, Any]:
        begin, cpu_before = uvloop.run(end_of(self.url, self.log)), self.nodes.cpu_s()
        os.sync()
        shares = Shares(self.roles())
        result: dict[str, Any] = run()
        times = shares.so_far()
        end = uvloop.run(end_of(self.url, self.log))
        result["brokers_cpu_s"] = round(self.nodes.cpu_s() - cpu_before, 2)
        engine = uvloop.run(again(self.url, self.log, begin, end, self.seconds))
        result["engine"] = engine
        size = (end - begin) * engine["block_bytes"]
        result["cpu_s_per_gb"] = per_gb(times, size)
        mb_s = size / result["seconds"] / 1e6
        result["blocks"] = end - begin
        result["mb_s"] = round(mb_s, 2)
        for under_way in UNDER_WAY:
            result[f"of_engine_{under_way}"] = round(mb_s / engine[f"under_way_{under_way}"]["mb_s"], 3)
        result["of_engine_as_appended"] = round(mb_s / engine["as_appended"]["mb_s"], 3)
        return result

    def paced_beside_engine(self, broker: Broker, options: str, rate: int) -> dict[str, Any]:
        turns = [self.paced_turn(broker, options, rate) for _ in range(self.turns)]
        result = medians(turns)
        result["p99s_ms"] = spread([turn["p99_ms"] for turn in turns])
        result["engine"]["p99s_ms"] = spread([turn["engine"]["paced"]["p99_ms"] for turn in turns])
        result["p99_of_engine"] = round(result["p99_ms"] / result["engine"]["paced"]["p99_ms"], 2)
        return result

    def paced_turn(self, broker: Broker, options: str, rate: int) -> dict[str, Any]:
        begin, cpu_before = uvloop.run(end_of(self.url, self.log)), self.nodes.cpu_s()
        result = paced(broker, options, rate, self.seconds)
        end = uvloop.run(end_of(self.url, self.log))
        result["brokers_cpu_s"] = round(self.nodes.cpu_s() - cpu_before, 2)
        result["blocks"] = end - begin
        result["engine"] = uvloop.run(again_paced(self.url, self.log, begin, end, rate, self.seconds))
        return result


def spread(values: list[float]) -> dict[str, float]:
    return {"least": min(values), "most": max(values)}


def theirs(leader: Broker, options: str, messages: int, rate: int, seconds: float, turns: int) -> dict[str, Any]:
    options += " --queue-arg x-queue-type=quorum"
    return {
        "throughput": throughput(leader, f"-y 0 {options}", messages),
        "through": throughput(leader, f"-y 1 -Q 1000 {options}", messages),
        "paced": medians([paced(leader, f"-y 1 -Q 1000 {options}", rate, seconds) for _ in range(turns)]),
    }


# -- all of it ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def their_cluster(wanted: bool) -> Iterator[Broker | None]:
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rabbitpy-perf-") as folder, rabbitmq.running(Path(folder)) as nodes:
        yield nodes[0]


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each number, at whatever depth."""
    found: dict[str, Any] = {}
    for name, value in rounds[0].items():
        values = [one[name] for one in rounds if name in one]
        found[name] = medians(values) if isinstance(value, dict) else round(statistics.median(values), 3)
    return found


def measure(
    command: list[str],
    url: str,
    with_rabbitmq: bool,
    alone: bool,
    reps: int,
    size: int,
    messages: int,
    rate: int,
    seconds: float,
    turns: int,
    bodies: str,
) -> dict[str, Any]:
    options = f"-x 1 -X 2 -s {size} --bodies {bodies} --persistent --durable --processes 1"
    rounds: dict[str, list[dict[str, Any]]] = {"rabbitpy": []}
    with replicas.running(command, url) as nodes, their_cluster(with_rabbitmq) as leader:
        ours = Ours(nodes, url, seconds, turns, alone)
        for _ in range(reps):
            rounds["rabbitpy"].append(ours.round(options, messages, rate))
            click.echo(f"rabbitpy {json.dumps(rounds['rabbitpy'][-1])}", err=True)
            if leader is not None:
                done = theirs(leader, options, messages, rate, seconds, turns)
                rounds.setdefault("rabbitmq", []).append(done)
                click.echo(f"rabbitmq {json.dumps(done)}", err=True)
    result: dict[str, Any] = {name: medians(each) for name, each in rounds.items()}
    if with_rabbitmq:
        result["ratios"] = {
            kind: round(result["rabbitpy"][kind]["per_s"] / result["rabbitmq"][kind]["per_s"], 2)
            for kind in ("throughput", "through")
        } | {"p99": round(result["rabbitpy"]["paced"]["p99_ms"] / result["rabbitmq"]["paced"]["p99_ms"], 3)}
    return result


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("engine")
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Starts rabbitpy-broker.")
@click.option("--rabbitmq", "with_rabbitmq", is_flag=True, help="Beside three nodes of the installed RabbitMQ.")
@click.option("--alone", is_flag=True, help="Stop the followers while the owner is measured.")
@click.option("--reps", type=click.IntRange(1), default=3, help="Rounds, of which medians are taken.")
@click.option("--size", type=click.IntRange(8), default=1000, help="Bytes of a body.")
@click.option("--bodies", type=click.Choice(["text", "random"]), default="text", help="What is in them; texts are JSON.")
@click.option("--messages", type=click.IntRange(1), default=200_000, help="For each run of the throughput.")
@click.option("--rate", type=click.IntRange(1), default=2000, help="Messages a second of the paced run.")
@click.option("--secs", "seconds", type=click.FloatRange(0.5), default=4.0, help="Of the paced run, and of each of the engine's.")
@click.option("--turns", type=click.IntRange(1), default=5, help="Of the paced run in a round, of which medians are taken.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(engine: str, command: str, with_rabbitmq: bool, alone: bool, save: bool, **sizes: Any) -> None:
    """Measure a replicated vhost on ENGINE: `postgres`, `kafka`, or a URL."""
    result: dict[str, Any] = {"engine": engine if engine in ("kafka", "postgres") else "url", "alone": alone, **sizes}
    try:
        with cluster_log.servers(engine) as url:
            result.update(measure(shlex.split(command), url, with_rabbitmq, alone, **sizes))
    except (CtlError, StartFailed, Violation, load_run.RunFailed) as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('replicated', result)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m perf.replicated")
