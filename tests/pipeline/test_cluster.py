"""The same jobs where executors are other processes: all of them on a local cluster, one on a standalone master."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from broker_process import BrokerAddress
from pipeline.journals import Boot
from spark_cluster import spark_cluster

pytestmark = pytest.mark.timeout(400)

CLI = (sys.executable, "-m", "rabbitpy_broker.pipeline.cli")
MESSAGES = 300


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


def run(*command: str) -> str:
    """A job in a process of its own, which cannot have the tests' session; what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def counted(spark: Any, out: Path) -> dict[str, int]:
    rows = spark.read.parquet(str(out / "throughput")).groupBy("event").sum("n").collect()
    return {row.event: row["sum(n)"] for row in rows}


EXPECTED = {"publish": 400, "route": 400, "confirm": 400, "deliver": 400, "ack": 400, "purge": 0}


@pytest.fixture
def jobs(
    spark: Any, journal: Path, tmp_path: Path, broker: BrokerAddress, channel: Any, queue: Any, depth: Any
) -> Callable[[str], None]:
    """Runs the jobs at a master, from a broker to tables and back and from events to a page, and looks at what they made."""

    def all_of_them(master: str) -> None:
        command = (*CLI, "--master", master)
        page = tmp_path / "reported" / "report.html"
        assert run(*command, "report", str(journal), str(page.parent)).strip() == str(page)
        assert counted(spark, page.parent) == EXPECTED
        assert spark.read.parquet(str(page.parent / "audit")).count() == 0
        assert (page.parent / "latency").is_dir() and "data:image/png;base64," in page.read_text()

        orders = queue()
        for number in range(MESSAGES):
            body = json.dumps({"id": number}).encode()
            channel.basic_publish("", orders, body, pika.BasicProperties(content_type="application/json"))
        lake = tmp_path / "lake"
        schema = ("--schema", "id BIGINT")
        said = run(*command, "ingest", str(lake), "--url", broker.url, "--queue", orders, *schema)
        assert f"{MESSAGES} rows, 0 of them set aside; 1 queues" in said
        rows = spark.read.parquet(str(lake / "messages")).select("value.id").collect()
        assert sorted(row.id for row in rows) == list(range(MESSAGES)) and depth(orders) == (0, 0)
        said = run(*command, "replay", str(lake / "messages"), "--url", broker.url)
        assert said.strip() == f"{MESSAGES} messages" and depth(orders) == (MESSAGES, 0)
        bodies = [json.loads(channel.basic_get(orders, auto_ack=True)[2])["id"] for _ in range(MESSAGES)]
        assert sorted(bodies) == list(range(MESSAGES))

    return all_of_them


def test_the_jobs_on_a_local_cluster(jobs: Callable[[str], None]):
    jobs("local-cluster[2,1,1024]")


def test_a_job_is_submitted_to_a_standalone_master_with_two_workers(spark: Any, journal: Path, tmp_path: Path):
    import pyspark

    from rabbitpy_broker.pipeline import cli

    with spark_cluster(tmp_path) as url:
        submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", url]
        local = ["--conf", "spark.driver.host=127.0.0.1", "--conf", f"spark.pyspark.python={sys.executable}"]
        out = tmp_path / "submitted"
        run(*submit, *local, str(Path(cli.__file__)), "throughput", str(journal), str(out))
        assert counted(spark, out) == EXPECTED
