"""The workers of a daemon, as its gateway knows them: brokers behind Unix sockets, and which of them has which vhost.

    FOLDER/management.sock   the management API of one worker
    FOLDER/metrics.sock      its /metrics and /health
    FOLDER/control.sock      its control socket

What must stay true: a folder is for its owner alone, because a worker believes what the gateway says about who asks; each vhost
is with one worker at most.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rabbitpy_broker.management.address import SocketAddress


@dataclass(frozen=True)
class WorkerSockets:
    """Where one worker is asked; the folder must be there, with mode 0700. `number` is the worker's."""

    folder: Path
    number: int = 0

    @property
    def management(self) -> Path:
        return self.folder / "management.sock"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.sock"

    @property
    def control(self) -> Path:
        return self.folder / "control.sock"


@dataclass(frozen=True)
class Member:
    """One worker. `number` stays the same when its process is started again; `pid` is 0 while there is none."""

    number: int
    sockets: WorkerSockets
    pid: int
    ready: bool


class Fleet:
    """All workers of one daemon, and the table of their vhosts. Whoever runs the workers implements it."""

    def members(self) -> Sequence[Member]:
        """All of them, by number, whether they run or not."""
        raise NotImplementedError

    def placed(self) -> Mapping[str, int]:
        """Which worker each vhost is with, by number."""
        raise NotImplementedError

    def place(self, vhost: str) -> int:
        """The worker of a vhost, chosen now and kept if the vhost is new."""
        raise NotImplementedError

    def forget(self, vhost: str) -> None:
        """A vhost has been deleted, or could not be made."""
        raise NotImplementedError

    async def tell(self, by: int) -> None:
        """Has all workers but this one read anew what is the whole daemon's: users, permissions, global parameters. Returns when
        those that run have done it.
        """
        raise NotImplementedError

    async def move(self, vhost: str, number: int) -> None:
        """Moves a vhost to another worker. Raises AdminError."""
        raise NotImplementedError


def listen_on(path: Path) -> socket.socket:
    """A socket bound there, for its owner only; what a dead process has left there goes. Raises OSError."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with SocketAddress(path) as address:
            listening.bind(address)
        path.chmod(0o600)
    except OSError:
        listening.close()
        raise
    return listening
