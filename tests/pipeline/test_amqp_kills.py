"""The source and the sink under kill -9 of everything that Spark is made of: nothing is missing afterwards.

How much may come twice is what docs and docstrings promise: nothing into a file table in mode `direct` and `spool`, and the
batches that were being published into another queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from spark_driver import Driver, kill
from support import eventually

pytestmark = pytest.mark.timeout(240)

NUMBER = "CAST(CAST(body AS STRING) AS INT) AS number"


@pytest.fixture
def numbers(spark: Any, tmp_path: Path) -> Callable[[], Counter[int]]:
    """What is in the table of the drivers, and how often."""

    def count() -> Counter[int]:
        table = spark.read.parquet(str(tmp_path / "out"))
        return Counter(row.number for row in table.selectExpr(NUMBER).collect())

    return count


@pytest.mark.parametrize("mode", ["spool", "direct"])
def test_the_driver_is_killed_with_everything_it_started(
    driver: Any, queue: Any, publish: Any, depth: Any, numbers: Any, mode: str
):
    """Twice, with batches under way and more messages coming in between."""
    name = queue(durable=True)
    publish(name, 0, 6000)
    running: Driver = driver(mode=mode, queue=name, slow_s=0.3)
    for first in (6000, 7000):
        before = running.commits()
        running.wait_for_commits(before + 2)
        running.kill()
        publish(name, first, first + 1000)
        eventually(lambda: depth(name)[1] == 0, 10)
        running = driver(mode=mode, queue=name, slow_s=0.3)
    running.wait_for_commits(running.commits() + 1)
    running.kill()
    eventually(lambda: depth(name)[1] == 0, 10)
    driver(mode=mode, queue=name, bounded=True).wait()
    assert numbers() == Counter(range(8000))
    assert depth(name) == (0, 0)


@pytest.mark.parametrize("mode", ["spool", "direct"])
def test_tasks_and_all_python_workers_of_executors_fail_and_are_tried_again(
    driver: Any, queue: Any, publish: Any, depth: Any, numbers: Any, tmp_path: Path, mode: str
):
    name = queue(durable=True)
    publish(name, 0, 4000)
    options = {"master": "local[2,4]", "mode": mode, "queue": name, "fail_once": str(tmp_path / "failed")}
    running: Driver = driver(**options, slow_s=0.5)
    running.wait_for_commits(1)
    assert (tmp_path / "failed").exists()
    workers = eventually(lambda: running.processes("pyspark.daemon"), 30)
    for worker in workers:
        kill(worker)
    eventually(lambda: depth(name) == (0, 0), 60, 0.1)
    eventually(lambda: len(numbers()) == 4000, 60, 0.2)
    running.kill()
    assert numbers() == Counter(range(4000))
    assert depth(name) == (0, 0)


def test_a_bridge_between_queues_is_killed(driver: Any, queue: Any, publish: Any, depth: Any, channel: Any):
    """What was published of a batch before the kill is there twice, and that is all."""
    source, target = queue(durable=True), queue(durable=True)
    publish(source, 0, 6000)
    running: Driver = driver(mode="spool", queue=source, to_queue=target, slow_s=0.3)
    running.wait_for_commits(2)
    running.kill()
    eventually(lambda: depth(source)[1] == 0, 10)
    driver(mode="spool", queue=source, to_queue=target, bounded=True).wait()
    got: Counter[int] = Counter()
    for _ in range(depth(target)[0]):
        _, properties, body = channel.basic_get(target, auto_ack=True)
        got[int(body)] += 1
        assert properties.delivery_mode == 2
    assert set(got) == set(range(6000))
    assert sum(got.values()) <= 6000 + 2 * 1000
    assert depth(source) == (0, 0)


@pytest.mark.parametrize("mode", ["spool", "direct"])
def test_executors_in_other_jvms(driver: Any, queue: Any, publish: Any, depth: Any, numbers: Any, mode: str):
    name = queue(durable=True)
    publish(name, 0, 3000)
    driver(master="local-cluster[2,1,1024]", mode=mode, queue=name, bounded=True).wait()
    assert numbers() == Counter(range(3000))
    assert depth(name) == (0, 0)
