"""Daemons with several workers under test, as processes, and what tests ask of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker_process import BrokerProcess
from management.conftest import Http
from support import eventually

PLAIN = Path(__file__).with_name("plain_daemon.py")


class WorkersProcess(BrokerProcess):
    """The daemon itself. Vhosts go where the fewest are."""

    def __init__(
        self, directory: Path, config: dict[str, Any] | None = None, *, workers: int = 2, args: Sequence[str] = ()
    ) -> None:
        super().__init__(directory, {"worker_placement": "load", **(config or {}), "workers": workers}, args)

    @property
    def http(self) -> Http:
        return Http(self.management)

    def amqp_port(self, worker: int) -> int:
        """Where the clients of a worker connect."""
        return self.port

    def workers(self) -> list[dict[str, Any]]:
        node = self.http.get("nodes")[0]
        found: list[dict[str, Any]] = node["workers"]
        return found

    def worker_of(self, vhost: str) -> int:
        return next(int(worker["worker"]) for worker in self.workers() if vhost in worker["vhosts"])

    def eventually_running(self, count: int) -> None:
        """Until so many workers run."""
        eventually(lambda: sum(worker["running"] for worker in self.workers()) == count, timeout=60)


class PlainProcess(WorkersProcess):
    """Plain brokers behind a gateway (`plain_daemon.py`). A file `held-N` in its data directory has worker N stay down."""

    def __init__(
        self, directory: Path, config: dict[str, Any] | None = None, *, workers: int = 2, args: Sequence[str] = ()
    ) -> None:
        super().__init__(directory, config, args=["--workers", str(workers), *args])
        self.config = dict(config or {})

    def command(self) -> list[str]:
        command = super().command()
        return [sys.executable, str(PLAIN), *command[command.index("--data-dir") :]]

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """As above; of those that say that a broker has started only the daemon's."""
        found = super().events(name)
        return [event for event in found if event["event"] != "broker started" or event.get("gateway")]

    def amqp_port(self, worker: int) -> int:
        return int(self.started["listeners"][worker].rpartition(":")[2])
