"""The same jobs where executors are other processes: a local cluster, and a standalone master with two workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pipeline.journals import Boot
from spark_cluster import spark_cluster

pytestmark = pytest.mark.timeout(240)

CLI = "rabbitpy_broker.pipeline.cli"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    for boot_number in range(2):
        boot = Boot(tmp_path / "events", segment_size=20_000)
        queue = boot.queue("q")
        for at in range(200):
            boot.publish(queue, at)
            boot.deliver(queue, at)
            boot.ack(queue, at)
            if at % 40 == 0:
                boot.journal.flush()
        assert boot.files._number > boot_number
        boot.journal.flush()
        queue.purge(0, 0)
        boot.stop()
    return tmp_path / "events"


def run(*command: str) -> None:
    """A job in a process of its own, which cannot have the tests' session."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def counted(spark: Any, out: Path) -> dict[str, int]:
    rows = spark.read.parquet(str(out / "throughput")).groupBy("event").sum("n").collect()
    return {row.event: row["sum(n)"] for row in rows}


EXPECTED = {"publish": 400, "route": 400, "confirm": 400, "deliver": 400, "ack": 400, "purge": 0}


def test_a_local_cluster(spark: Any, journal: Path, tmp_path: Path):
    run(sys.executable, "-m", CLI, "--master", "local-cluster[2,1,1024]", "throughput", str(journal), str(tmp_path / "out"))
    assert counted(spark, tmp_path / "out") == EXPECTED


def test_a_standalone_master_with_two_workers(spark: Any, journal: Path, tmp_path: Path):
    """By the command line, and by spark-submit."""
    import pyspark

    from rabbitpy_broker.pipeline import cli

    with spark_cluster(tmp_path) as url:
        run(sys.executable, "-m", CLI, "--master", url, "throughput", str(journal), str(tmp_path / "out"))
        assert counted(spark, tmp_path / "out") == EXPECTED
        submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", url]
        local = ["--conf", "spark.driver.host=127.0.0.1", "--conf", f"spark.pyspark.python={sys.executable}"]
        out = tmp_path / "submitted"
        run(*submit, *local, str(Path(cli.__file__)), "throughput", str(journal), str(out))
        assert counted(spark, out) == EXPECTED
