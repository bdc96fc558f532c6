"""Three brokers on one engine, with a replicated vhost, for tools that measure one.

The brokers are processes of this machine, as are the engine's servers: all share its cores and its disk.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from perf import brokers
from perf.brokers import Broker
from perf.kill.daemon import Daemon
from perf.kill.ledger import Violation
from rabbitpy_broker.ctl import CtlError, ask

T = TypeVar("T")
NODES: Final = ("a", "b", "c")
PATIENCE_S: Final = 120.0
LOOK_S: Final = 0.02


def until(look: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """What `look` returns once it is true. Raises Violation."""
    end = time.monotonic() + patience_s
    while not (found := look()):
        if time.monotonic() > end:
            raise Violation(f"waited {patience_s:.0f} s for {what}")
        time.sleep(LOOK_S)
    return found


class Replicas:
    """The three daemons, by the name of their node, and one vhost that all of them have."""

    def __init__(self, command: Sequence[str], folder: Path, engine: str, vhost: str, lease_ms: int) -> None:
        self.vhost = vhost
        self.daemons: dict[str, Daemon] = {}
        for node in NODES:
            (folder / node).mkdir()
            config = folder / node / "broker.toml"
            config.write_text(f"[cluster]\nengine = {json.dumps(engine)}\nnode = {json.dumps(node)}\nlease = {lease_ms}\n")
            self.daemons[node] = Daemon(command, folder / node, config)

    def start(self) -> None:
        """Starts them, and makes the vhost; the user `guest` may do anything there."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(Daemon.start, self.daemons.values()))
        for node in NODES:
            until(lambda node=node: len(self.nodes_seen_by(node)) == len(NODES), "the nodes to see each other")  # type: ignore[misc]
        self.ask(NODES[0], "add_vhost", self.vhost, replicas=len(NODES))
        self.permit(until(self.owner, "an owner of the vhost"))

    def permit(self, node: str) -> None:
        self.ask(node, "set_permissions", "guest", ".*", ".*", ".*", vhost=self.vhost)

    def ask(self, node: str, command: str, *arguments: object, **options: object) -> Any:
        """As rabbitpy-ctl does there. Raises CtlError."""
        return ask(self.daemons[node].data_dir, command, list(arguments), options)

    def nodes_seen_by(self, node: str) -> list[str]:
        return list(self.ask(node, "cluster_status")["running_nodes"])

    def replicas_seen_by(self, node: str) -> list[dict[str, Any]]:
        """The vhost's, with how far each is."""
        vhosts = self.ask(node, "cluster_status")["replicated_vhosts"]
        return [row for one in vhosts if one["name"] == self.vhost for row in one["replicas"]]

    def alive(self) -> list[str]:
        """The nodes that run."""
        return [
            node for node, daemon in self.daemons.items() if daemon.process is not None and daemon.process.poll() is None
        ]

    def owner(self) -> str:
        """The node that has the vhost open; "" while none has."""
        for node in self.alive():
            with contextlib.suppress(CtlError):
                if self.vhost in {row["name"] for row in self.ask(node, "list_vhosts", "name")}:
                    return node
        return ""

    def broker(self, node: str) -> Broker:
        """A node, as tools know brokers."""
        daemon = self.daemons[node]
        assert daemon.process is not None
        url = f"amqp://guest:guest@{daemon.address.host}:{daemon.address.port}/{self.vhost}"
        return Broker(node, url, session=daemon.process.pid, build="rabbitpy")

    def cpu_s(self) -> float:
        return sum(self.broker(node).cpu_s() for node in self.alive())

    def stop(self) -> None:
        """Of those that still run; nothing of theirs is kept."""
        for daemon in self.daemons.values():
            daemon.abandon()


@contextlib.contextmanager
def running(command: Sequence[str], engine: str, vhost: str = "perf", lease_ms: int = 5000) -> Iterator[Replicas]:
    """Three brokers and their vhost, from its making to their end."""
    with brokers.scratch() as folder:
        replicas = Replicas(command, folder, engine, vhost, lease_ms)
        try:
            replicas.start()
            yield replicas
        finally:
            replicas.stop()
