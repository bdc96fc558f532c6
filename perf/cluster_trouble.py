"""Does PostgreSQL as an engine of the cluster keep what it has told, through trouble?

    python -m perf.cluster_trouble --rounds 6

Each round has three servers of its own, two owners that take a log from each other, term by term, with eight appends under way,
and a follower that reads along. Meanwhile connections are ended, standbys and the primary stopped (SIGSTOP) and woken. At the
end the primary is killed (-9), or stopped and woken when another has its place. Then the log is read: what an owner was told is
there, at its position, terms never fall, and nothing that the follower saw was taken back. The exit code is 1 if anything is
lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from perf.engines.postgres import PostgresServers
from rabbitpy_broker.cluster.log import ClusterError, Entry, OutcomeUnknown, Unavailable
from rabbitpy_broker.cluster.postgres.engine import PostgresEngine
from rabbitpy_broker.cluster.registry import Registry

LOG = "log"
TERM = "term"
UNDER_WAY = 8
AFTERWARDS = 50  # appends that must be told after the last trouble
PATIENCE = 60.0  # seconds for them
# Not those that wait for a standby: PostgreSQL would keep their commit on the primary alone (docs/cluster.md).
END_CONNECTIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'rabbitpy-broker' AND wait_event IS DISTINCT FROM 'SyncRep' AND random() < 0.5
"""


class Round:
    """One round: what the owners were told, what the follower saw, and how often what has happened."""

    def __init__(self, servers: PostgresServers) -> None:
        self.servers = servers
        self.told: list[tuple[int, bytes]] = []
        self.seen: list[Entry] = []
        self.events: Counter[str] = Counter()
        self.over = asyncio.Event()

    async def connected(self) -> PostgresEngine:
        engine = PostgresEngine(self.servers.url, timeout=2.0)
        while True:
            with contextlib.suppress(Unavailable):
                await engine.start()
                return engine
            await asyncio.sleep(0.1)

    async def owner(self, name: str) -> None:
        """Takes the log with a new term and appends for a while, again and again."""
        engine = await self.connected()
        log = engine.log(LOG)
        number = 0
        while not self.over.is_set():
            try:
                term = await next_term(engine.registry)
                expected = await log.append(b"fence", term=term) + 1
                self.told.append((expected - 1, b"fence"))
                until = time.monotonic() + random.uniform(0.2, 2.0)
                under_way: deque[tuple[int, bytes, asyncio.Future[int]]] = deque()
                while time.monotonic() < until:
                    while len(under_way) < UNDER_WAY:
                        block = f"{name} {number}".encode()
                        under_way.append((expected, block, log.append(block, term=term, expected=expected)))
                        number, expected = number + 1, expected + 1
                    position, block, append = under_way.popleft()
                    await append
                    self.told.append((position, block))
            except ClusterError as exc:
                self.events[type(exc).__name__] += 1
            await asyncio.sleep(random.uniform(0, 0.3))
        await engine.stop()

    async def follower(self) -> None:
        engine = await self.connected()
        reader = engine.log(LOG).reader(0)
        while not self.over.is_set():
            try:
                self.seen += await reader.next(wait=0.5)
            except Unavailable:
                self.events["follower waits"] += 1
        await engine.stop()

    async def trouble(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(random.uniform(0, 1))
            kind = random.choice((self._end_connections, self._stop_a_standby, self._stop_both_standbys, self._stop_primary))
            self.events[kind.__name__.strip("_").replace("_", " ")] += 1
            await kind()

    async def fail_over(self, *, kill: bool) -> None:
        former = self.servers.primary
        if kill:
            former.kill()
        else:
            former.pause()
        await asyncio.to_thread(self.servers.promote)
        if not kill:
            former.resume()
        told = len(self.told)
        async with asyncio.timeout(PATIENCE):
            while len(self.told) < told + AFTERWARDS:
                await asyncio.sleep(0.1)
        self.over.set()
        former.stop()

    async def _end_connections(self) -> None:
        await asyncio.to_thread(self.servers.primary.sql, END_CONNECTIONS)

    async def _stop_a_standby(self) -> None:
        await self._stop(self.servers.standbys[:1])

    async def _stop_both_standbys(self) -> None:
        await self._stop(self.servers.standbys)

    async def _stop_primary(self) -> None:
        await self._stop([self.servers.primary])

    async def _stop(self, servers: list) -> None:
        for server in servers:
            server.pause()
        await asyncio.sleep(random.uniform(0, 3))
        for server in servers:
            server.resume()


async def next_term(registry: Registry) -> int:
    """A term that nobody else gets. Raises `ClusterError`."""
    there = await registry.get(TERM)
    term = int(there.value) + 1 if there else 1
    await registry.put(TERM, b"%d" % term, there.version if there else 0)
    return term


async def whole_log(servers: PostgresServers) -> list[Entry]:
    engine = PostgresEngine(servers.url)
    await engine.start()
    reader = engine.log(LOG).reader(0)
    entries: list[Entry] = []
    while batch := await reader.next():
        entries += batch
    await engine.stop()
    return entries


def block_at(entries: list[Entry], position: int) -> bytes | None:
    return entries[position].block if position < len(entries) else None


async def patiently(ask: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await ask()
        except (Unavailable, OutcomeUnknown):
            await asyncio.sleep(0.1)


async def run(servers: PostgresServers, seconds: float, *, kill: bool) -> bool:
    """One round; returns whether nothing was lost."""
    round_ = Round(servers)
    engine = await round_.connected()
    await patiently(lambda: engine.create_log(LOG))
    await engine.stop()
    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b"):
            tasks.create_task(round_.owner(name))
        tasks.create_task(round_.follower())
        await round_.trouble(seconds)
        await round_.fail_over(kill=kill)
    entries = await whole_log(servers)
    lost = [(position, block) for position, block in round_.told if block_at(entries, position) != block]
    taken_back = [entry for entry in round_.seen if entries[entry.position : entry.position + 1] != [entry]]
    terms = [entry.term for entry in entries]
    events = ", ".join(f"{name} {count}" for name, count in sorted(round_.events.items()))
    print(
        f"{'killed' if kill else 'slept'}: {len(entries)} entries, {len(round_.told)} told, {len(lost)} of them lost, "
        f"{len(taken_back)} of {len(round_.seen)} seen taken back; {events}",
        flush=True,
    )
    return not lost and not taken_back and terms == sorted(terms)


@click.command()
@click.option("--rounds", default=4, show_default=True)
@click.option("--seconds", default=15.0, show_default=True, help="Of trouble in each round.")
@click.option("--seed", type=int, help="For the choice of trouble; another one each time without.")
def main(rounds: int, seconds: float, seed: int | None) -> None:
    """Makes trouble for PostgreSQL, round after round, and looks whether it has kept what it has told."""
    random.seed(seed)
    kept = True
    for number in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="rabbitpy-cluster-trouble-"))
        servers = PostgresServers(folder)
        try:
            servers.start()
            kept &= asyncio.run(run(servers, seconds, kill=number % 2 == 0))
        finally:
            servers.stop()
            shutil.rmtree(folder)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
