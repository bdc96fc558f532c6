"""A daemon with several workers for tests of the gateway: plain brokers as processes, a table of vhosts, and the gateway.

Each worker has a data directory of its own, so what is shared in a real daemon is copied here when the gateway has it told: users
and global parameters. It takes rabbitpy-broker's options, and besides

    --worker N        is one of the workers
    --workers N       how many there are
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import Config, load_config
from rabbitpy_broker.definitions import CLUSTER_ID, Definitions
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.log import RecentLines, configure_log
from rabbitpy_broker.management.admin import AdminError
from rabbitpy_broker.management.api.asking import NoAnswer
from rabbitpy_broker.workers.fleet import Fleet, Member, WorkerSockets
from rabbitpy_broker.workers.gateway import start_gateway
from rabbitpy_broker.workers.gateway_client import WorkerClient


async def stopped() -> None:
    loop = asyncio.get_running_loop()
    asked = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: asked.done() or asked.set_result(None))
    await asked


def sockets(config: Config, number: int) -> WorkerSockets:
    return WorkerSockets(config.node.data_path() / "workers" / str(number), number)


async def run_worker(config: Config, number: int, recent: RecentLines) -> None:
    own = load_config(None, {}, {"data_dir": str(config.node.data_path() / f"data-{number}")})
    parts = {name: getattr(config, name) for name in config.__struct_fields__}
    node = {name: getattr(config.node, name) for name in config.node.__struct_fields__}
    node["data_dir"] = own.node.data_dir
    parts["node"] = type(config.node)(**node)
    Path(own.node.data_dir).mkdir(mode=0o700, exist_ok=True)
    shared = Definitions(Path(own.node.data_dir) / "definitions.sqlite")
    shared.put_global_parameter(CLUSTER_ID, json.dumps("rabbitmq-cluster-id-of-both"))
    shared.commit()
    shared.close()
    broker = Broker(Config(**parts), structlog.get_logger(), sockets=sockets(config, number))
    broker.recent_lines = recent
    await broker.start()
    await stopped()
    await broker.stop()


class Plain(Fleet):
    """Brokers that this process has started."""

    def __init__(self, config: Config, arguments: Sequence[str], count: int) -> None:
        self._config = config
        self._arguments = list(arguments)
        self._placed: dict[str, int] = {"/": 0}
        self._ready: set[int] = set()
        self._told = asyncio.Lock()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.clients = {number: WorkerClient(sockets(config, number)) for number in range(count)}
        for number in range(count):
            sockets(config, number).folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def start(self, number: int) -> None:
        """Starts one, and returns when it answers."""
        command = [sys.executable, __file__, *self._arguments, "--worker", str(number)]
        self.processes[number] = subprocess.Popen(command)
        while True:
            try:
                await self.clients[number].command("ping", [], {})
                break
            except NoAnswer:
                assert self.processes[number].poll() is None, "the worker has ended"
                await asyncio.sleep(0.02)
        if number and "/" in [row["name"] for row in await self.clients[number].command("list_vhosts", [], {})]:
            await self.clients[number].command("delete_vhost", ["/"], {})
        if number:
            await self._copy(0, number)
        self._ready.add(number)

    async def watch(self) -> None:
        """Starts those again that end."""
        while True:
            await asyncio.sleep(0.02)
            for number, process in list(self.processes.items()):
                if process.poll() is not None:
                    self._ready.discard(number)
                    held = self._config.node.data_path() / f"held-{number}"
                    if not held.exists():
                        await self.start(number)

    def members(self) -> list[Member]:
        return [
            Member(number, sockets(self._config, number), self.processes[number].pid, number in self._ready)
            for number in self.clients
        ]

    def placed(self) -> Mapping[str, int]:
        return self._placed

    def place(self, vhost: str) -> int:
        return self._placed.setdefault(vhost, len(self._placed) % len(self.clients))

    def forget(self, vhost: str) -> None:
        self._placed.pop(vhost, None)

    async def tell(self, by: int) -> None:
        async with self._told:
            by = max(by, 0)
            for number in self._ready - {by}:
                await self._copy(by, number)

    async def _copy(self, by: int, number: int) -> None:
        """Users and global parameters as that one has them."""
        entries: list[tuple[str, Any]] = await self.clients[by].command("export_definitions", [], {})
        whole = {name: [entry for kind, entry in entries if kind == name and entry] for name in ("users", "global_parameters")}
        theirs = await self.clients[number].command("list_users", [], {})
        for row in theirs:
            if row["user"] not in {user["name"] for user in whole["users"]}:
                await self.clients[number].command("delete_user", [row["user"]], {})
        old = await self.clients[number].command("export_definitions", [], {})
        mine = {json.dumps(entry, sort_keys=True) for kind, entry in old if kind in whole and entry}
        changed = {name: [one for one in found if json.dumps(one, sort_keys=True) not in mine] for name, found in whole.items()}
        if any(changed.values()):
            await self.clients[number].command("import_definitions", [changed], {})

    async def move(self, vhost: str, number: int) -> None:
        raise AdminError("these workers move nothing")


async def run_daemon(config: Config, count: int, arguments: Sequence[str]) -> None:
    log = structlog.get_logger()
    fleet = Plain(config, arguments, count)
    for number in range(count):
        await fleet.start(number)
    gateway = await start_gateway(fleet, config, log)
    watching = asyncio.ensure_future(fleet.watch())
    statuses = [await client.command("status", [], {}) for client in fleet.clients.values()]
    amqp = [next(one["address"] for one in status["listeners"] if one["protocol"] == "amqp") for status in statuses]
    log.info("broker started", listeners=amqp, metrics=gateway.metrics, management=gateway.management, gateway=True)
    await stopped()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await gateway.stop()
    for process in fleet.processes.values():
        process.send_signal(signal.SIGTERM)
    for process in fleet.processes.values():
        assert process.wait(60) == 0
    for client in fleet.clients.values():
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--data-dir", "--metrics-listen", "--management-listen", "--config", "--log-format"):
        parser.add_argument(name)
    parser.add_argument("--listen", action="append")
    parser.add_argument("--worker", type=int)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    overrides = {
        "data_dir": given.data_dir,
        "listeners": given.listen,
        "metrics_listen": given.metrics_listen,
        "management_listen": given.management_listen,
        "log.format": given.log_format,
    }
    file = Path(given.config) if given.config else None
    try:
        config = load_config(file, os.environ, {key: value for key, value in overrides.items() if value is not None})
    except BrokerError as error:
        sys.exit(str(error))
    recent = RecentLines()
    configure_log(config.log, None, recent)
    if given.worker is not None:
        asyncio.run(run_worker(config, given.worker, recent))
    else:
        asyncio.run(run_daemon(config, given.workers, sys.argv[1:]))


if __name__ == "__main__":
    main()
