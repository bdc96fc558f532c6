"""taskiq-aio-pika, whose queues are quorum queues by default: tasks, delays, and a worker that is killed."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from external import HERE
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerAddress
from support import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::ResourceWarning")]

TIMEOUT = 40.0
QUEUES = ("taskiq", "taskiq.delay", "taskiq.dead_letter")


class Worker:
    """`taskiq worker taskiq_app:broker`, with its child in a process group of its own."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "taskiq", "worker", "taskiq_app:broker", "--workers", "1"]
        env = {**os.environ, "CLIENT_TEST_BROKER": url, "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            command, cwd=HERE, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(autouse=True)
def nothing_of_others(channel: BlockingChannel) -> Iterator[None]:
    """taskiq's default names are the same for everybody."""

    def delete() -> None:
        for name in QUEUES:
            channel.queue_delete(name)
        channel.exchange_delete("taskiq")

    delete()
    yield
    delete()


@pytest.fixture
def new_worker(broker: BrokerAddress, nothing_of_others: None) -> Iterator[Callable[[], Worker]]:
    workers: list[Worker] = []

    def start() -> Worker:
        workers.append(Worker(broker.url))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture
def app(broker: BrokerAddress, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("CLIENT_TEST_BROKER", broker.url)
    sys.modules.pop("taskiq_app", None)
    return importlib.import_module("taskiq_app")


def kick(app: ModuleType, *tasks: Any) -> None:
    """Each of the tasks is an awaitable that is made when the client is connected."""

    async def talk() -> None:
        await app.broker.startup()
        try:
            for task in tasks:
                await task()
        finally:
            await app.broker.shutdown()

    asyncio.run(asyncio.wait_for(talk(), TIMEOUT))


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_tasks_run_at_once_and_with_delays_through_quorum_queues(
    app: ModuleType, ctl: Callable[..., str], new_worker: Callable[[], Worker], tmp_path: Path
) -> None:
    file = tmp_path / "notes"
    new_worker()
    started = time.monotonic()
    kick(
        app,
        lambda: app.note.kicker().with_labels(delay=2).kiq(str(file), "later"),
        *[lambda number=number: app.note.kiq(str(file), str(number)) for number in range(20)],
    )
    eventually(lambda: "later" in lines(file), TIMEOUT)
    assert time.monotonic() - started >= 2
    eventually(lambda: len(lines(file)) == 21, TIMEOUT)
    assert sorted(lines(file)[:20], key=int) == [str(number) for number in range(20)]
    eventually(lambda: queues(ctl) == dict.fromkeys(QUEUES, ("quorum", "0")), TIMEOUT)


def queues(ctl: Callable[..., str]) -> dict[str, tuple[str, str]]:
    """The type of each queue, and how many messages are ready."""
    rows = ctl("-q", "list_queues", "name", "type", "messages_ready", "--no-table-headers").splitlines()
    return {name: (kind, ready) for name, kind, ready in (row.split("\t") for row in rows) if name in QUEUES}


def test_task_of_a_worker_that_is_killed_is_done_by_the_next(
    app: ModuleType, new_worker: Callable[[], Worker], tmp_path: Path
) -> None:
    marker, file = tmp_path / "started", tmp_path / "notes"
    worker = new_worker()
    kick(app, lambda: app.run_to_death_once.kiq(str(marker), str(file)))
    eventually(marker.exists, TIMEOUT)
    worker.kill()
    assert lines(file) == []
    new_worker()
    eventually(lambda: lines(file) == ["again"], TIMEOUT)
