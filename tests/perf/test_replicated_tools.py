"""The tools that measure replicated vhosts, run tiny: what they print has the figures that the documentation takes from them."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker_process import broker_command
from cluster.engine_rigs import require
from perf import replicated
from perf.engines import postgres
from perf.replicated import append_all, append_paced
from rabbitpy_broker.cluster.memory_engine import MemoryServers

ROOT = Path(__file__).parents[2]


def result_of(tool: str, *options: str) -> dict[str, Any]:
    require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    done = subprocess.run(
        [sys.executable, "-m", f"perf.{tool}", *options, "--broker", shlex.join(broker_command())],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_replicated_vhost_is_compared_with_the_engine() -> None:
    sizes = ("--reps", "1", "--messages", "300", "--size", "100", "--rate", "200", "--secs", "0.5", "--turns", "2")
    found = result_of("replicated", "postgres", *sizes)["rabbitpy"]
    for kind in ("throughput", "through"):
        assert found[kind]["messages"] == 300
        assert found[kind]["per_s"] > 0
        assert found[kind]["of_engine_1"] > 0
    assert found["throughput"]["blocks"] >= 1
    assert found["throughput"]["engine"]["block_bytes"] > 100
    assert 0 < found["paced"]["p50_ms"] <= found["paced"]["p99_ms"]
    assert found["paced"]["p99_of_engine"] > 0
    assert 0 < found["paced"]["p99s_ms"]["least"] <= found["paced"]["p99_ms"] <= found["paced"]["p99s_ms"]["most"]
    assert found["throughput"]["machine_cpu_s"] > 0
    spent, alone = found["throughput"]["cpu_s_per_gb"], found["throughput"]["engine"]["under_way_1"]["cpu_s_per_gb"]
    assert {"owner", "followers", "session of owner", "startup", "client", "all"} <= set(spent)
    assert {"session of client", "startup", "client", "all"} <= set(alone)


def test_a_take_over_is_timed_and_nothing_is_missing() -> None:
    found = result_of("takeover", "--messages", "500", "--rounds", "1")
    assert len(found["rounds"]) == 1
    assert found["away_s"]["median"] > 0
    assert found["published_per_s"] > 0


async def test_a_paced_engine_gets_messages_at_their_rate() -> None:
    servers = MemoryServers()
    began = time.perf_counter()
    found = await append_paced(servers.connect(), b"abc", size=10, rate=500, seconds=0.1)
    assert time.perf_counter() - began > 0.09
    assert 1 <= found["appends"] <= 50
    assert 0 <= found["p50_ms"] <= found["p99_ms"]
    assert servers.logs == {}


@pytest.mark.parametrize("under_way", [1, 4])
async def test_an_engine_is_measured_whenever_its_time_is_over(monkeypatch: pytest.MonkeyPatch, under_way: int) -> None:
    for seconds in range(30):  # as many looks at the clock
        servers = MemoryServers()
        monkeypatch.setattr(replicated, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
        found = await append_all(servers.connect(), [bytes(1_000_000)], under_way, seconds)
        assert found["mb_s"] > 0
        assert 1_000 <= found["p50_ms"] <= found["p99_ms"]
        assert servers.logs == {}


def test_lists_of_a_whole_cluster_are_complete_and_timed() -> None:
    found = result_of("cluster_lists", "--queues", "50", "--lists", "1", "--pause", "0")
    for kind in ("list", "page", "sorted"):
        assert found[kind]["s"][0] > 0
        assert found[kind]["longest_ms"][0] > 0
