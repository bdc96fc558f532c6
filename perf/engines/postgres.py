"""Three PostgreSQL servers on this machine, one primary and two standbys with quorum commit: for tests, measurements and a
first look.

    python -m perf.engines.postgres FOLDER        starts them, prints the URL for `cluster.engine`, stops them at Ctrl-C

They are Debian's (the package `postgresql`; its programs need not be on the PATH), listen on loopback ports that are free, and
keep all they have in the folder. As root they run as the user 65534, since PostgreSQL refuses root. `promote` does what an
operator or Patroni would do when the primary is gone: it takes the standby that has the most, once neither receives any more,
and has the other follow it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from perf.engines.servers import (
    HERE,
    PATIENCE,
    EngineFailed,
    Place,
    Server,
    Servers,
    command_line,
    free_ports,
    hand_over,
    until,
)

NAMES = ("a", "b", "c")
# A new file for the write-ahead log is otherwise filled with zeros and synced first, 16 MiB during which nothing is confirmed.
SETTINGS = """
unix_socket_directories = ''
max_connections = 100
shared_buffers = '64MB'
wal_keep_size = '256MB'
max_wal_size = '1GB'
wal_init_zero = off
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
    def __init__(self, name: str, folder: Path, port: int, bin_folder: Path, place: Place = HERE) -> None:
        super().__init__(name, folder, port, place)
        self._bin = bin_folder

    def run(self, program: str, *arguments: str) -> str:
        """Runs one of PostgreSQL's programs as the user of the servers, and returns what it prints."""
        done = subprocess.run(
            self.place.command(str(self._bin / program), *arguments),
            capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/",
        )  # fmt: skip
        if done.returncode:
            raise EngineFailed(f"{program}: {done.stderr.strip()}")
        return done.stdout.strip()

    def sql(self, statement: str) -> str:
        to = ("-h", self.place.host, "-p", str(self.port), "-U", "postgres")
        return self.run("psql", "-XAtq", *to, "-c", statement, "postgres")

    def configure(self, settings: str) -> None:
        with (self.folder / "postgresql.conf").open("a") as file:
            file.write(settings)

    def follow(self, primary: str) -> None:
        """As a standby: has it follow another primary than before; "": nobody."""
        self.sql(f"ALTER SYSTEM SET primary_conninfo = '{primary}'")
        self.sql("SELECT pg_reload_conf()")

    def receives_nothing(self) -> bool:
        """As a standby: whether all that it has ever received is on its disk, and no more comes."""
        return self.sql("SELECT count(*) FROM pg_stat_wal_receiver") == "0"

    def command(self) -> list[str]:
        return [str(self._bin / "postgres"), "-D", str(self.folder)]

    def answers(self) -> bool:
        with contextlib.suppress(EngineFailed):
            self.run("pg_isready", "-q", "-h", self.place.host, "-p", str(self.port))
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

    def __init__(self, folder: Path, places: Sequence[Place] = (HERE, HERE, HERE)) -> None:
        """`folder` is empty, and can be reached by the user 65534 when this runs as root."""
        self.folder = folder
        bin_folder = programs()
        if bin_folder is None:
            raise EngineFailed("no PostgreSQL: apt-get install postgresql")
        self.servers = [
            PostgresServer(name, folder / name, port, bin_folder, place)
            for name, port, place in zip(NAMES, free_ports(len(NAMES)), places, strict=True)
        ]
        self.primary = self.servers[0]

    @property
    def url(self) -> str:
        """All three, whichever is the primary."""
        return f"postgresql://postgres@{','.join(one.address for one in self.servers)}/postgres"

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
        hand_over(self.folder)
        first = self.servers[0]
        first.run("initdb", "-D", str(first.folder), "-U", "postgres", "-A", "trust", "--locale=C", "-E", "UTF8", "--no-sync")
        with (first.folder / "pg_hba.conf").open("a") as file:
            file.writelines(f"host {what} all samenet trust\n" for what in ("all", "replication"))
        for server in self.servers[1:]:  # a server that never ran may be copied as it lies there
            server.folder.mkdir(exist_ok=True)
            subprocess.run(["cp", "-a", f"{first.folder}/.", str(server.folder)], check=True)
            (server.folder / "standby.signal").touch()
        for server in self.servers:
            self._configure(server)
        self.start_again()
        self.follow()

    def promote(self, *, out_of_reach: bool = False) -> None:
        """Makes the standby that has the most the primary, and has the other follow it. The former primary must be gone, paused
        or out of reach for both.
        """
        if self.primary.running and not self.primary.paused and not out_of_reach:
            raise EngineFailed("the primary still runs")
        standbys = self.standbys
        if len(standbys) < 2:  # either may have what the other has not, of what was confirmed
            raise EngineFailed("both standbys are needed to choose")
        for standby in standbys:
            standby.follow("")
        for standby in standbys:  # what one gets behind the comparison the other would never have, nor could it follow that one
            until(standby.receives_nothing, f"{standby.name} to receive no more")
        self.primary = max(standbys, key=received)
        until(lambda: self.primary.sql("SELECT pg_promote()") == "t", "the promotion")
        for standby in standbys:
            if standby is self.primary:
                continue
            standby.follow(self._primary_of(standby))
        until(lambda: self._following() == 1, "the standby to follow")

    def former(self) -> list[PostgresServer]:
        """Former primaries: they run, and follow nobody."""
        return [one for one in self.servers if one is not self.primary and one.sql("SELECT pg_is_in_recovery()") == "f"]

    def rebuild(self, server: PostgresServer) -> None:
        """Makes a server that is gone a standby again, with nothing of what it had; returns when both standbys follow."""
        shutil.rmtree(server.folder)
        primary = self.primary
        primary.run(
            "pg_basebackup", "-D", str(server.folder), "-h", primary.place.host, "-p", str(primary.port), "-U", "postgres",
            "--checkpoint=fast", "--no-sync",
        )  # fmt: skip
        (server.folder / "standby.signal").touch()
        self._configure(server)
        (server.folder / "postgresql.auto.conf").write_text("")  # it may name the primary before
        server.start()
        until(server.is_ready, f"{server.name} to be ready")
        self.follow()

    def follow(self) -> None:
        """Returns when both standbys follow."""
        until(lambda: self._following() == len(self.servers) - 1, "both standbys to follow")

    def _configure(self, server: PostgresServer) -> None:
        others = ", ".join(one.name for one in self.servers if one is not server)
        server.configure(
            f"{SETTINGS}port = {server.port}\nsynchronous_standby_names = 'ANY 1 ({others})'\n"
            f"listen_addresses = '{server.place.host}'\nprimary_conninfo = '{self._primary_of(server)}'\n"
        )

    def _following(self) -> int:
        return int(self.primary.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))

    def _primary_of(self, server: PostgresServer) -> str:
        return f"host={self.primary.place.host} port={self.primary.port} user=postgres application_name={server.name}"


def received(standby: PostgresServer) -> int:
    """How far a standby has written ahead, as a number."""
    return int(standby.sql("SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0')"))


main = command_line(PostgresServers)

if __name__ == "__main__":
    main()
