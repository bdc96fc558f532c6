"""The source and the sink under kill -9 of everything that Spark is made of: nothing is missing afterwards.

What may come twice, with each kill: in mode `direct` the batch that Spark had committed and the source had not yet acked; in
mode `spool` the segment that was written and not yet acked; and whatever was published of a batch into another queue. From a
stream nothing comes twice, for Spark's table takes a repeated batch once.
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


MODES = ("spool", "direct")
STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def numbers(spark: Any, tmp_path: Path) -> Callable[[str], Counter[int]]:
    """What is in the table of a mode's query, and how often."""

    def count(mode: str) -> Counter[int]:
        table = spark.read.parquet(str(tmp_path / mode / "out"))
        return Counter(row.number for row in table.selectExpr(NUMBER).collect())

    return count


@pytest.fixture
def queries(queue: Any) -> list[dict[str, Any]]:
    """One in each mode, with a queue of its own."""
    return [{"mode": mode, "queue": queue(durable=True)} for mode in MODES]


def test_the_driver_is_killed_with_everything_it_started(
    driver: Any, queries: Any, publish: Any, depth: Any, numbers: Any
):
    """Twice, with batches under way and more messages coming in between: two batches, for one query may be done with all that
    there was when the other has begun.
    """
    for query in queries:
        publish(query["queue"], 0, 5000)
    for first in (5000, 7000):
        running: Driver = driver(queries=[{**query, "slow_s": 0.2} for query in queries])
        running.wait_for_commits(2)
        running.kill()
        for query in queries:
            publish(query["queue"], first, first + 2000)
            eventually(lambda name=query["queue"]: depth(name)[1] == 0, 10)
    driver(queries=queries, bounded=True).wait()
    for query in queries:
        mode = query["mode"]
        got = numbers(mode)
        assert set(got) == set(range(9000))
        assert sum(got.values()) <= 9000 + 2 * {"direct": 1000, "spool": 500}[mode]
        assert depth(query["queue"]) == (0, 0)


def test_the_driver_of_a_query_that_reads_a_stream_is_killed(driver: Any, publish: Any, numbers: Any, queue: Any):
    """Nothing comes twice: a batch that was under way has the same rows again, and the table has them once."""
    query = {"mode": "stream", "queue": queue(durable=True, arguments=STREAM)}
    publish(query["queue"], 0, 5000)
    running: Driver = driver(queries=[{**query, "slow_s": 0.2}])
    running.wait_for_commits(2)
    running.kill()
    publish(query["queue"], 5000, 7000)
    driver(queries=[query], bounded=True).wait()
    assert numbers("stream") == Counter(range(7000))


def test_tasks_and_all_python_workers_of_executors_fail_and_are_tried_again(
    driver: Any, queries: Any, publish: Any, depth: Any, numbers: Any, tmp_path: Path
):
    for query in queries:
        publish(query["queue"], 0, 4000)
    marked = [{**query, "slow_s": 0.5, "fail_once": str(tmp_path / query["mode"] / "failed")} for query in queries]
    running: Driver = driver(master="local[2,4]", queries=marked)
    running.wait_for_commits(2)
    assert all(Path(query["fail_once"]).exists() for query in marked)
    for worker in eventually(lambda: running.processes("pyspark.daemon"), 30):
        kill(worker)
    for query in queries:
        eventually(lambda mode=query["mode"]: len(numbers(mode)) == 4000, 150, 0.2)
        eventually(lambda name=query["queue"]: depth(name) == (0, 0), 10, 0.1)
    running.kill()
    for query in queries:
        assert numbers(query["mode"]) == Counter(range(4000))
        assert depth(query["queue"]) == (0, 0)


def test_executors_in_other_jvms(driver: Any, queries: Any, publish: Any, depth: Any, numbers: Any):
    """In mode `direct` partitions travel to them, and in mode `spool` they read the driver's files."""
    for query in queries:
        publish(query["queue"], 0, 3000)
    driver(master="local-cluster[2,1,1024]", queries=queries, bounded=True).wait()
    for query in queries:
        assert numbers(query["mode"]) == Counter(range(3000))
        assert depth(query["queue"]) == (0, 0)


def test_a_bridge_between_queues_is_killed(driver: Any, queue: Any, publish: Any, depth: Any, channel: Any):
    """What was published of a batch before the kill is there twice, and that is all."""
    source, target = queue(durable=True), queue(durable=True)
    bridge = {"mode": "spool", "queue": source, "to_queue": target}
    publish(source, 0, 5000)
    running: Driver = driver(queries=[{**bridge, "slow_s": 0.3}])
    running.wait_for_commits(2)
    running.kill()
    eventually(lambda: depth(source)[1] == 0, 10)
    driver(queries=[bridge], bounded=True).wait()
    got: Counter[int] = Counter()
    for _ in range(depth(target)[0]):
        _, properties, body = channel.basic_get(target, auto_ack=True)
        got[int(body)] += 1
        assert properties.delivery_mode == 2
    assert set(got) == set(range(5000))
    assert sum(got.values()) <= 5000 + 2 * 1000
    assert depth(source) == (0, 0)
