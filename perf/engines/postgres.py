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
import shutil
import signal
import subprocess
from pathlib import Path

from perf.engines.servers import (
    NOBODY,
    PATIENCE,
    EngineFailed,
    Server,
    Servers,
    command_line,
    free_ports,
    until,
    user,
)

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


def programs() -> Path | None:
    """The folder with PostgreSQL's programs: the newest version of Debian's, or what is on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    if found:
        return found[-1].parent
    return None if on_path is None else Path(on_path).resolve().parent


def is_installed() -> bool:
    return programs() is not None


class PostgresServer(Server):
    def __init__(self, name: str, folder: Path, port: int, bin_folder: Path) -> None:
        super().__init__(name, folder, port)
        self._bin = bin_folder

    def run(self, program: str, *arguments: str) -> str:
        """Runs one of PostgreSQL's programs as the user of the servers, and returns what it prints."""
        done = subprocess.run(
            [str(self._bin / program), *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/",
            **user(),
        )
        if done.returncode:
            raise EngineFailed(f"{program}: {done.stderr.strip()}")
        return done.stdout.strip()

    def sql(self, statement: str) -> str:
        return self.run("psql", "-XAtq", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-c", statement, "postgres")

    def configure(self, settings: str) -> None:
        with (self.folder / "postgresql.conf").open("a") as file:
            file.write(settings)

    def command(self) -> list[str]:
        return [str(self._bin / "postgres"), "-D", str(self.folder)]

    def answers(self) -> bool:
        with contextlib.suppress(EngineFailed):
            self.run("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port))
            return True
        return False

    def stop(self) -> None:
        """An immediate stop: what is left is recovered by the next start, if there is one."""
        if self.running:
            self.resume()
            os.kill(self.pid, signal.SIGQUIT)
            until(lambda: not self.running, f"{self.name} to end")


class PostgresServers(Servers):
    """`primary` is the one that takes writes."""

    def __init__(self, folder: Path) -> None:
        """`folder` is empty, and can be reached by the user 65534 when this runs as root."""
        self.folder = folder
        bin_folder = programs()
        if bin_folder is None:
            raise EngineFailed("no PostgreSQL: apt-get install postgresql")
        self.servers = [
            PostgresServer(name, folder / name, port, bin_folder)
            for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True)
        ]
        self.primary = self.servers[0]

    @property
    def url(self) -> str:
        """All three, whichever is the primary."""
        return f"postgresql://postgres@{','.join(f'127.0.0.1:{one.port}' for one in self.servers)}/postgres"

    @property
    def standbys(self) -> list[PostgresServer]:
        """Those that run, and were not stopped (SIGSTOP)."""
        return [one for one in self.servers if one is not self.primary and one.running and not one.paused]

    @property
    def all(self) -> list[PostgresServer]:
        return self.servers

    def quorum(self) -> list[PostgresServer]:
        return self.standbys

    def start(self) -> None:
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
        self.start_again()
        until(lambda: self._following() == 2, "both standbys to follow")

    def promote(self) -> None:
        """Makes the standby that has the most the primary, and has the other follow it. The former primary must be gone, or
        paused.
        """
        if self.primary.running and not self.primary.paused:
            raise EngineFailed("the primary still runs")
        standbys = self.standbys
        if len(standbys) < 2:  # either may have what the other has not, of what was confirmed
            raise EngineFailed("both standbys are needed to choose")
        self.primary = max(standbys, key=received)
        until(lambda: self.primary.sql("SELECT pg_promote()") == "t", "the promotion")
        for standby in self.standbys:
            standby.sql(f"ALTER SYSTEM SET primary_conninfo = '{self._primary_of(standby)}'")
            standby.sql("SELECT pg_reload_conf()")
        until(lambda: self._following() == len(self.standbys), "the standby to follow")

    def _following(self) -> int:
        return int(self.primary.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))

    def _primary_of(self, server: PostgresServer) -> str:
        return f"host=127.0.0.1 port={self.primary.port} user=postgres application_name={server.name}"


def received(standby: PostgresServer) -> int:
    """How far a standby has written ahead, as a number."""
    return int(standby.sql("SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0')"))


main = command_line(PostgresServers)

if __name__ == "__main__":
    main()
