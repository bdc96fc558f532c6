"""Three PostgreSQL servers on this machine, one primary and two standbys with quorum commit: for tests, measurements and a
first look.

    python -m perf.engines.postgres FOLDER        starts them, prints the URL for `cluster.engine`, stops them at Ctrl-C

They are Debian's (the package `postgresql`; its programs need not be on the PATH), listen on loopback ports that are free, and
keep all they have in the folder. As root they run as the user 65534, since PostgreSQL refuses root. `promote` does what an
operator or Patroni would do when the primary is gone: it takes the standby that has the most, and has the other follow it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

NOBODY = 65534
PATIENCE = 60.0  # seconds for a start, a promotion or a stop, on a machine that does other things
NAMES = ("a", "b", "c")
SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 100
shared_buffers = '64MB'
wal_keep_size = '256MB'
max_wal_size = '1GB'
wal_retrieve_retry_interval = '100ms'
wal_sender_timeout = '5s'
jit = off
synchronous_commit = on
"""


class PostgresFailed(Exception):
    """A server cannot be started or promoted; the text says why."""


def programs() -> Path | None:
    """The folder with PostgreSQL's programs: the newest version of Debian's, or what is on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    if found:
        return found[-1].parent
    return None if on_path is None else Path(on_path).resolve().parent


def is_installed() -> bool:
    return programs() is not None


def free_port() -> int:
    """A free port below those that the system gives to clients, so that no connection takes it before the server does."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Server:
    """One server: its folder, its port and, while it runs, its process."""

    def __init__(self, name: str, folder: Path, bin_folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.port = free_port()
        self._bin = bin_folder
        self.paused = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, program: str, *arguments: str) -> str:
        """Runs one of PostgreSQL's programs as the user of the servers, and returns what it prints."""
        done = subprocess.run(
            [str(self._bin / program), *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/",
            **self._user(),
        )
        if done.returncode:
            raise PostgresFailed(f"{program}: {done.stderr.strip()}")
        return done.stdout.strip()

    def sql(self, statement: str) -> str:
        return self.run("psql", "-XAtq", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-c", statement, "postgres")

    def configure(self, settings: str) -> None:
        with (self.folder / "postgresql.conf").open("a") as file:
            file.write(settings)

    def start(self) -> None:
        log = (self.folder.parent / f"{self.name}.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self.folder)], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                cwd="/", start_new_session=True, **self._user(),
            )  # fmt: skip

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_ready(self) -> bool:
        if not self.running:
            raise PostgresFailed(f"{self.name} ended: {(self.folder.parent / f'{self.name}.log').read_text()[-2000:]}")
        with contextlib.suppress(PostgresFailed):
            self.run("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port))
            return True
        return False

    def stop(self) -> None:
        """An immediate stop: what is left is recovered by the next start, if there is one."""
        if self.running:
            self.resume()
            os.kill(self.pid, signal.SIGQUIT)
            self._wait()

    def kill(self) -> None:
        """Kill -9, the server and each of its processes."""
        self.paused = False
        for process in [self.pid, *children(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._wait()

    def pause(self) -> None:
        """SIGSTOP to all its processes: it is there and does not answer."""
        self.paused = True
        for process in [self.pid, *children(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)

    def resume(self) -> None:
        self.paused = False
        for process in [*children(self.pid), self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(PATIENCE)

    @staticmethod
    def _user() -> dict[str, object]:
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


class PostgresServers:
    """The three servers in one folder. `primary` is the one that takes writes."""

    def __init__(self, folder: Path) -> None:
        """`folder` is empty, and can be reached by the user 65534 when this runs as root."""
        self.folder = folder
        bin_folder = programs()
        if bin_folder is None:
            raise PostgresFailed("no PostgreSQL: apt-get install postgresql")
        self.servers = [Server(name, folder / name, bin_folder) for name in NAMES]
        self.primary = self.servers[0]

    @property
    def url(self) -> str:
        """All three, whichever is the primary."""
        return f"postgresql://postgres@{','.join(f'127.0.0.1:{one.port}' for one in self.servers)}/postgres"

    @property
    def standbys(self) -> list[Server]:
        return [one for one in self.servers if one is not self.primary and one.running and not one.paused]

    def start(self) -> None:
        """Makes the servers' folders and starts them; returns when both standbys follow."""
        if os.getuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        first = self.servers[0]
        first.run("initdb", "-D", str(first.folder), "-U", "postgres", "-A", "trust", "--locale=C", "-E", "UTF8", "--no-sync")
        for server in self.servers[1:]:  # a server that never ran may be copied as it lies there
            subprocess.run(["cp", "-a", str(first.folder), str(server.folder)], check=True)
            (server.folder / "standby.signal").touch()
        for server in self.servers:
            others = ", ".join(one.name for one in self.servers if one is not server)
            server.configure(
                f"{SETTINGS}port = {server.port}\nsynchronous_standby_names = 'ANY 1 ({others})'\n"
                f"primary_conninfo = '{self._primary_of(server)}'\n"
            )
        for server in self.servers:
            server.start()
        for server in self.servers:
            until(server.is_ready, f"{server.name} to be ready")
        until(lambda: self._following() == 2, "both standbys to follow")

    def promote(self) -> None:
        """Makes the standby that has the most the primary, and has the other follow it. The former primary must be gone, or
        paused.
        """
        if self.primary.running and not self.primary.paused:
            raise PostgresFailed("the primary still runs")
        standbys = self.standbys
        if len(standbys) < 2:  # either may have what the other has not, of what was confirmed
            raise PostgresFailed("both standbys are needed to choose")
        self.primary = max(standbys, key=received)
        until(lambda: self.primary.sql("SELECT pg_promote()") == "t", "the promotion")
        for standby in self.standbys:
            standby.sql(f"ALTER SYSTEM SET primary_conninfo = '{self._primary_of(standby)}'")
            standby.sql("SELECT pg_reload_conf()")
        until(lambda: self._following() == len(self.standbys), "the standby to follow")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def _following(self) -> int:
        return int(self.primary.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))

    def _primary_of(self, server: Server) -> str:
        return f"host=127.0.0.1 port={self.primary.port} user=postgres application_name={server.name}"


def received(standby: Server) -> int:
    """How far a standby has written ahead, as a number."""
    return int(standby.sql("SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0')"))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise PostgresFailed(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[PostgresServers]:
    servers = PostgresServers(folder)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Starts a primary and two standbys in FOLDER, which is made, and stops them at the end."""
    folder.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with running(folder) as servers, contextlib.suppress(KeyboardInterrupt):
        print(servers.url, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
