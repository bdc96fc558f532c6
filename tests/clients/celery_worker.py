"""A stock Celery worker as a process of its own, for the tests of Celery; and what it leaves behind on the broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import celery
import celery_app
import pika
import pytest
from celery.app.control import Inspect
from external import HERE

from broker_process import BrokerAddress
from support import eventually, unique

START_TIMEOUT = 40.0
RESULT_TIMEOUT = 20


class Worker:
    """`celery -A celery_app worker` on queues and exchanges of its own prefix, and an app of the same settings as client."""

    def __init__(
        self,
        broker_url: str,
        directory: Path,
        results: str = "rpc://",
        prefix: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.prefix = prefix or unique("celery")
        self.broker_url = broker_url
        self.results = results
        self.settings = settings or {}
        self.directory = directory
        self.name = f"{unique('w')}@localhost"
        self.log_file = directory / f"{self.name}.log"
        self.app = celery_app.make_app(broker_url, results, self.prefix, self.settings)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> Worker:
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--hostname", self.name,
                   "--loglevel", "INFO", "--task-events", *options]
        env = {**os.environ, "CLIENT_TEST_BROKER": self.broker_url, "CLIENT_TEST_RESULTS": self.results,
               "CLIENT_TEST_PREFIX": self.prefix, "CLIENT_TEST_SETTINGS": json.dumps(self.settings),
               "PYTHONDONTWRITEBYTECODE": "1"}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=HERE, env=env, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT)
        eventually(self._ready, START_TIMEOUT)
        return self

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log_text()
        return f"{self.name} ready." in self.log_text()

    def log_text(self) -> str:
        return self.log_file.read_text(errors="replace")

    def stop(self) -> None:
        """A warm shutdown, which must end well."""
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(signal.SIGTERM)
        try:
            exit_code = process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail(f"the worker did not stop:\n{self.log_text()[-4000:]}")
        assert exit_code == 0, self.log_text()[-4000:]

    def finish(self) -> None:
        """Waits until it has no task left. A pool of processes that is told to stop within one waits for half a minute."""
        with self.app.connection_for_write() as connection:  # a new one: the pool's may have been cut
            inspect = self.app.control.inspect(destination=[self.name], timeout=5.0, connection=connection)
            for left in (inspect.reserved, inspect.active):
                eventually(lambda left=left: (left() or {}).get(self.name) == [], RESULT_TIMEOUT)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    @property
    def queue(self) -> str:
        return f"{self.prefix}.tasks"

    def control(self) -> Inspect:
        return self.app.control.inspect(destination=[self.name], timeout=5.0)

    def task(self, name: str) -> celery.Task:
        return self.app.tasks[name]


def clean_up(broker: BrokerAddress, prefix: str) -> None:
    """Deletes what Celery leaves behind; its other queues are auto-delete or exclusive."""
    connection = pika.BlockingConnection(broker.parameters())
    channel = connection.channel()
    channel.queue_delete(f"{prefix}.tasks")
    channel.queue_delete(f"{prefix}.more")
    channel.queue_delete(f"{prefix}.dead")
    for exchange in ("tasks", "more", "control.pidbox", "events", "results"):
        channel.exchange_delete(f"{prefix}.{exchange}")
    channel.exchange_delete(f"reply.{prefix}.control.pidbox")
    connection.close()


def lines(file: Path) -> list[str]:
    """What the task `note` has written so far."""
    return file.read_text().splitlines() if file.exists() else []


def marked(marker: Path) -> int:
    """The process id that a task has left in its mark, once it has."""
    return int(eventually(lambda: marker.exists() and marker.read_text(), 20))
