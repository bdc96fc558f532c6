"""How fast an engine of the cluster takes blocks: latency of appends one at a time, throughput with several under way, reading
back.

    python -m perf.cluster_log postgres                   three servers of its own, in a folder that is removed
    python -m perf.cluster_log kafka
    python -m perf.cluster_log postgresql://one,two/x     those that run; leaves a log behind only while it measures

On one machine servers, client and disk share the cores: only comparisons count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import uvloop

from perf.engines.kafka import KafkaServers
from perf.engines.postgres import PostgresServers
from perf.machine import command, describe
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.engines import engine_for

KIB = 1024
SIZES = ((KIB, 1), (4 * KIB, 1), (64 * KIB, 1), (256 * KIB, 1), (64 * KIB, 8), (1024 * KIB, 8))  # bytes, under way


@contextlib.contextmanager
def servers(engine: str) -> Iterator[str]:
    """The URL of an engine, of which servers are started if it is only named."""
    kinds: dict[str, type[KafkaServers | PostgresServers]] = {"kafka": KafkaServers, "postgres": PostgresServers}
    if engine not in kinds:
        yield engine
        return
    folder = Path(tempfile.mkdtemp(prefix="rabbitpy-cluster-log-"))
    folder.chmod(0o755)
    started = kinds[engine](folder)
    try:
        started.start()
        yield started.url
    finally:
        started.stop()
        shutil.rmtree(folder)


async def measure(engine: Engine, size: int, under_way: int, seconds: float) -> dict[str, Any]:
    """Appends blocks of one size for some seconds, then reads them back."""
    name = f"perf-{uuid.uuid4().hex}"
    await engine.create_log(name)
    log = engine.log(name)
    block = os.urandom(size)
    waiting: deque[tuple[float, asyncio.Future[int]]] = deque()
    times: list[float] = []
    expected = 0
    start = time.perf_counter()
    while waiting or time.perf_counter() - start < seconds:
        while len(waiting) < under_way and time.perf_counter() - start < seconds:
            waiting.append((time.perf_counter(), log.append(block, term=1, expected=expected)))
            expected += 1
        begun, append = waiting.popleft()
        await append
        times.append(time.perf_counter() - begun)
    appended = time.perf_counter() - start
    start = time.perf_counter()
    reader = log.reader(0)
    count = 0
    async for _ in reader.entries(expected):
        count += 1
    await reader.close()
    read = time.perf_counter() - start
    await engine.delete_log(name)
    assert count == expected
    times.sort()
    return {
        "block_kib": size / KIB,
        "under_way": under_way,
        "appends": len(times),
        "p50_ms": round(1000 * times[len(times) // 2], 2),
        "p99_ms": round(1000 * times[int(len(times) * 0.99)], 2),
        "append_mb_s": round(len(times) * size / appended / 1e6, 1),
        "read_mb_s": round(count * size / read / 1e6, 1),
    }


async def measure_all(url: str, seconds: float) -> list[dict[str, Any]]:
    engine = engine_for(url)
    await engine.start()
    try:
        await measure(engine, KIB, 1, min(seconds, 1.0))  # warm
        rows = []
        for size, under_way in SIZES:
            row = await measure(engine, size, under_way, seconds)
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            rows.append(row)
        return rows
    finally:
        await engine.stop()


@click.command()
@click.argument("engine")
@click.option("--seconds", default=5.0, show_default=True, help="For each size.")
@click.option("--output", type=click.Path(path_type=Path), help="Writes the result as JSON.")
def main(engine: str, seconds: float, output: Path | None) -> None:
    """Measures ENGINE: `postgres`, `kafka`, or a URL."""
    with servers(engine) as url:
        rows = uvloop.run(measure_all(url, seconds))
    if output is not None:
        result = {"command": command("cluster_log"), **describe(), "rows": rows}
        output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
