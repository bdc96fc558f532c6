"""What the servers of all engines have in common: processes on this machine that are started, killed, stopped and woken, and a
command that starts three and stops them at Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

NOBODY = 65534
PATIENCE = 120.0  # seconds for a start, a promotion or a stop, on a machine that does other things


class EngineFailed(Exception):
    """A server cannot be had, started or promoted; the text says why."""


class Place(NamedTuple):
    """Where a server is: its address, and what comes before a program's words so that it runs there (a network namespace)."""

    host: str = "127.0.0.1"
    inside: tuple[str, ...] = ()

    def command(self, *words: str) -> list[str]:
        """The words that run a program here, as root under the user 65534."""
        return [*self.inside, *_as_nobody(), *words]


HERE = Place()


def _as_nobody() -> tuple[str, ...]:
    if os.getuid() != 0:
        return ()
    if int(Path("/proc/self/uid_map").read_text().split()[2]) == 1:  # root of a namespace that has no other user
        return ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")
    return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def hand_over(folder: Path) -> None:
    """Gives a folder to the user of the servers, if it is another one."""
    if _as_nobody()[:1] == ("setpriv",):
        os.chown(folder, NOBODY, NOBODY)


def free_ports(count: int) -> list[int]:
    """Free ports below those that the system gives to clients, so that no connection takes one while its server is down."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    """Returns when it is true. Raises `EngineFailed` if that takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise EngineFailed(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.05)


class Server(ABC):
    """One server: its folder, its port and, while it runs, its process. Its output goes to `log`, beside the folder."""

    def __init__(self, name: str, folder: Path, port: int, place: Place = HERE) -> None:
        self.name = name
        self.place = place
        self.folder = folder
        self.port = port
        self.paused = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.place.host}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes connections."""

    def start(self) -> None:
        """From the main thread: the server ends when the thread that started it does, so that a killed run leaves none behind."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.place.command("setpriv", "--pdeathsig", "KILL", *self.command()),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True,
            )  # fmt: skip

    def is_ready(self) -> bool:
        """Raises `EngineFailed` when it has ended."""
        if not self.running:
            raise EngineFailed(f"{self.name} ended: {self.log.read_text()[-3000:]}")
        return self.answers()

    def kill(self) -> None:
        """Kill -9, all its processes."""
        self.paused = False
        if self.running:
            self._signal(signal.SIGKILL)
            assert self._process is not None
            self._process.wait(PATIENCE)

    def pause(self) -> None:
        """SIGSTOP: it is there and does not answer."""
        self.paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.paused = False
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """So that the next start, if there is one, has what it had."""
        self.kill()

    def _signal(self, number: int) -> None:
        """A stopped parent makes no children meanwhile; so it comes first, and last when it is woken."""
        processes = [self.pid, *children(self.pid)]
        for process in reversed(processes) if number == signal.SIGCONT else processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


class Servers(ABC):
    """An engine's three servers in one folder. `url` is what `cluster.engine` is set to."""

    folder: Path

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def all(self) -> Sequence[Server]: ...

    @abstractmethod
    def quorum(self) -> Sequence[Server]:
        """Servers without which nothing is confirmed, and none of which is missed alone."""

    @abstractmethod
    def start(self) -> None:
        """Makes the servers' folders and starts them; returns when a quorum confirms."""

    def start_again(self) -> None:
        """Starts those that do not run, all at once."""
        starting = [server for server in self.all if not server.running]
        for server in starting:
            server.start()
        for server in starting:
            until(server.is_ready, f"{server.name} to be ready")

    def stop(self) -> None:
        for server in self.all:
            server.stop()


@contextlib.contextmanager
def running(servers: Servers) -> Iterator[None]:
    try:
        servers.start()
        yield
    finally:
        servers.stop()


def command_line(kind: Callable[[Path], Servers]) -> click.Command:
    """The command that a module of an engine is."""

    @click.command()
    @click.argument("folder", type=click.Path(path_type=Path))
    def main(folder: Path) -> None:
        """Starts three servers in FOLDER, which is made, and stops them at the end."""
        folder.mkdir(parents=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        servers = kind(folder.resolve())
        with running(servers), contextlib.suppress(KeyboardInterrupt):
            click.echo(servers.url)
            signal.pause()

    return main
