"""The tool that measures engines counts what it has done."""

from __future__ import annotations

from perf.cluster_log import measure
from rabbitpy_broker.cluster.memory_engine import MemoryServers


async def test_a_measurement_appends_and_reads_every_block():
    servers = MemoryServers()
    row = await measure(servers.connect(), size=1024, under_way=4, seconds=0.05)
    assert row["appends"] >= 4
    assert (row["block_kib"], row["under_way"]) == (1.0, 4)
    assert row["append_mb_s"] > 0
    assert row["p50_ms"] <= row["p99_ms"]
    assert servers.logs == {}
