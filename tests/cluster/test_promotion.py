"""Who is promoted, of the PostgreSQL servers that tests and measurements start, when the primary is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import pytest

from perf.engines import postgres
from perf.engines.postgres import PostgresServer, PostgresServers
from perf.engines.servers import Servers
from support import eventually

PATIENCE = 60.0  # seconds


@pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")
def test_a_standby_that_has_more_in_its_socket_follows_the_one_that_is_promoted(
    engine_servers: Servers, monkeypatch: pytest.MonkeyPatch
):
    """It writes that at the worst moment: when it was asked how much it has, and the other is promoted for having more."""
    servers = engine_servers
    assert isinstance(servers, PostgresServers)
    primary, fuller, slow = servers.servers
    primary.sql("CREATE TABLE numbers (number int)")
    receiver = int(slow.sql("SELECT pid FROM pg_stat_wal_receiver"))
    os.kill(receiver, signal.SIGSTOP)
    primary.sql("INSERT INTO numbers VALUES (1)")  # which the fuller one confirms
    sender = primary.sql(f"SELECT pid FROM pg_stat_replication WHERE application_name = '{fuller.name}'")
    os.kill(int(sender), signal.SIGSTOP)
    statement = "INSERT INTO numbers SELECT generate_series(1, 100)"
    program = primary.place.command(f"{postgres.programs()}/psql")
    to = ["-h", primary.place.host, "-p", str(primary.port), "-U", "postgres"]
    unconfirmed = subprocess.Popen([*program, *to, "-c", statement, "postgres"], stderr=subprocess.DEVNULL, cwd="/")
    sent = f"SELECT sent_lsn = pg_current_wal_lsn() FROM pg_stat_replication WHERE application_name = '{slow.name}'"
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    eventually(lambda: primary.sql(waits) == "1" and primary.sql(sent) == "t", PATIENCE)
    primary.kill()
    unconfirmed.wait(PATIENCE)

    ask = PostgresServer.sql

    def ask_and_wake(server: PostgresServer, statement: str) -> str:
        answer = ask(server, statement)
        if server is slow:
            with contextlib.suppress(ProcessLookupError):
                os.kill(receiver, signal.SIGCONT)
        return answer

    monkeypatch.setattr(PostgresServer, "sql", ask_and_wake)
    servers.promote()
    other = next(one for one in (fuller, slow) if one is not servers.primary)
    timeline = servers.primary.sql("SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)")
    received = "SELECT lpad(to_hex(received_tli), 8, '0') FROM pg_stat_wal_receiver WHERE status = 'streaming'"
    eventually(lambda: other.sql(received) == timeline, PATIENCE)
    servers.primary.sql("INSERT INTO numbers SELECT generate_series(1, 10000)")
    assert servers.primary.sql("SELECT count(*) FROM numbers WHERE number = 10000") == "1"
