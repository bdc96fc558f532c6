"""The broker itself, standing on what a test suite wants: memory or a directory, a clock that can be set, clients that are
watched, and no thread.

`Ground` is what is left when a broker is killed: its disk, its definitions, its clock, its port, and the plans and the history
of whoever tests with it. Each start makes a new `WatchedBroker` on it.

What must stay true: in memory no file is touched; after `kill` nothing is written and nothing is committed that was not
before; the port stays the same over restarts, so that clients find the broker again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rabbitpy_broker import alarms, process_memory
from rabbitpy_broker.alarms import Alarms
from rabbitpy_broker.broker import Broker, memory_limit
from rabbitpy_broker.config import Config, load_config, split_address
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.errors import CONNECTION_FORCED, ConnectionClosed
from rabbitpy_broker.events.journal import EventJournal
from rabbitpy_broker.net.flow import Flow
from rabbitpy_broker.net.moderation import Moderation
from rabbitpy_broker.net.threads import DiskJobs
from rabbitpy_broker.net.transport import Clients
from rabbitpy_broker.protocol.ack_timeout import tick_ms
from rabbitpy_broker.protocol.turn import Turn
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.timers import Timers
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.memory_disk import MemoryDisk
from rabbitpy_broker.storage.vhost_store import StoreSettings
from rabbitpy_broker.testing.clock import SettableClock, Waiting
from rabbitpy_broker.testing.disks import JobsInLoop, KeptDisk
from rabbitpy_broker.testing.history import DeathRecords, History
from rabbitpy_broker.testing.plans import Plans
from rabbitpy_broker.testing.watched_client import WatchedClient, WatchedClients
from rabbitpy_broker.upkeep import Upkeep

IN_MEMORY: Final = "in-memory"
GOOD_BYE_S: Final = 0.05  # for clients to answer connection.close
ABORT_S: Final = 0.5
SETTLE_MAX: Final = 100_000  # turns
SMALL_FILE_BYTES: Final = 1_048_576
MEMORY_DISK_BYTES: Final = 1 << 40


class KeptDefinitions(Definitions):
    """Definitions in memory that live as long as their ground, over any number of brokers."""

    def __init__(self) -> None:
        super().__init__(None)

    def close(self) -> None:
        self.commit()

    def forget_uncommitted(self) -> None:
        """What a broker that was killed had not committed."""
        self._pending.clear()
        self.dirty = False

    def end(self) -> None:
        self._db.close()


class Ground:
    """See the top of this file. `settings` are those of rabbitpy.toml, dotted where they stand in a table."""

    def __init__(self, directory: Path | None, port: int, settings: Mapping[str, object], log: Any) -> None:
        self.directory = directory
        self.port = port
        self.settings = dict(settings)
        self.log = log
        self.disk: MemoryDisk | KeptDisk = MemoryDisk() if directory is None else KeptDisk()
        self.definitions: KeptDefinitions | None = None
        self.clock = SettableClock()
        self.plans = Plans()
        self.history = History()
        self.alarm_is_wanted = False  # of memory

    def config(self) -> Config:
        """Raises ConfigError."""
        ours: dict[str, object] = {
            "data_dir": IN_MEMORY if self.directory is None else str(self.directory),
            "listeners": (f"127.0.0.1:{self.port}",),
            "metrics_listen": "",
            "management_listen": "",
        }
        return load_config(overrides={**ours, **self.settings})

    def end(self) -> None:
        """Lets go of what it keeps."""
        if self.definitions is not None:
            self.definitions.end()
            self.definitions = None


class WatchedUpkeep(Upkeep):
    """Measures consumer timeouts by the clock of the test."""

    clock: SettableClock

    def _now_ms(self) -> int:
        return super()._now_ms() + self.clock.ahead_ns // 1_000_000


class TimersWait(Waiting):
    """The timers of queues, delays and expiries."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def next_ms(self) -> int:
        return int(self._timers.next_ms())

    def pass_time(self, now_ms: int) -> None:
        self._timers.run()


class AcksWait(Waiting):
    """The looks for deliveries that wait too long for their ack, at the broker's own intervals."""

    def __init__(self, upkeep: Upkeep, clients: Clients, timeout_ms: int, now_ms: int) -> None:
        self._upkeep = upkeep
        self._clients = clients
        self._timeout_ms = timeout_ms
        self._next_ms = now_ms

    def next_ms(self) -> int:
        if not self._timeout_ms or not self._is_anything_unacked():
            return 0
        return self._next_ms

    def pass_time(self, now_ms: int) -> None:
        if self._timeout_ms:
            for _ in self._upkeep._closing_overdue(self._timeout_ms):
                pass
            self._next_ms = now_ms + tick_ms(self._timeout_ms)

    def _is_anything_unacked(self) -> bool:
        connections = self._clients.connections
        return any(channel.deliveries.unacked.count for each in connections for channel in each.channels.values())


class WatchedBroker(Broker):
    """One start of the broker on its ground."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground.config(), ground.log)
        self.ground = ground
        self.is_killed = False

    # -- what it stands on -----------------------------------------------------------------------------------------------

    def _take_data_dir(self, path: Path) -> None:
        if self.ground.directory is not None:
            super()._take_data_dir(path)
        if isinstance(self.ground.disk, KeptDisk):
            self.ground.disk.begin(str(path / "vhosts"))

    def raise_data_format(self, number: int) -> None:
        if self.ground.directory is not None:
            super().raise_data_format(number)

    def _open_definitions(self, path: Path) -> Definitions:
        if self.ground.directory is not None:
            return super()._open_definitions(path)
        if self.ground.definitions is None:
            self.ground.definitions = KeptDefinitions()
        return self.ground.definitions

    def make_disk(self) -> Disk:
        return self.ground.disk

    def _make_threads(self, loop: asyncio.AbstractEventLoop) -> DiskJobs:
        return JobsInLoop(loop, self.report)

    def make_clock(self) -> Clock:
        return self.ground.clock

    def _make_clients(self, flow: Flow, moderation: Moderation, loop: asyncio.AbstractEventLoop) -> Clients:
        ground, share = self.ground, self.config.net.read_share_bytes
        return WatchedClients(
            self.node, flow, moderation, loop, share, self.log, plans=ground.plans, history=ground.history, clock=ground.clock
        )

    def _make_upkeep(self, clients: Clients) -> Upkeep:
        upkeep = WatchedUpkeep(self.config, self.node, self.definitions, clients, self.alarms, self.log)
        upkeep.clock = self.ground.clock
        return upkeep

    def _make_alarms(self, path: Path) -> Alarms:
        """The memory is the test's own, and no reason for an alarm."""
        limit = memory_limit(self.memory_threshold)
        disk_limit = self.config.alarms.disk_limit_bytes(process_memory.available())
        return Alarms(limit, disk_limit, self._read_memory, self._read_disk_free, _nothing)

    def _read_memory(self) -> int:
        return self.alarms.memory_limit_bytes + 1 if self.ground.alarm_is_wanted else 0

    def _read_disk_free(self) -> int:
        if self.ground.disk.is_full:
            return 0
        return MEMORY_DISK_BYTES if self.ground.directory is None else alarms.disk_free(self.ground.directory)

    def store_settings(self) -> StoreSettings:
        settings = super().store_settings()
        if self.ground.directory is None:
            settings.msg_store_file_size_limit = min(settings.msg_store_file_size_limit, SMALL_FILE_BYTES)
            settings.journal_file_size_limit = SMALL_FILE_BYTES
        return settings

    def _start_events(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self.node.events = self.node.turn.events = EventJournal(DeathRecords(self.ground.history))

    async def _start_control(self, path: Path) -> None:
        if self.ground.directory is not None:
            await super()._start_control(path)

    async def remove_folder(self, path: str) -> None:
        self.ground.disk.remove_tree(path)

    # -- start and stop --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await super().start()
        self.ground.port = split_address(self.addresses[0])[1]
        if self.ground.alarm_is_wanted or self.ground.disk.is_full:
            self.check_alarms()

    async def stop(self, asked_at: float | None = None) -> None:
        """As any stop, but that clients have only a moment to say good-bye: they may be objects that a test has left."""
        self.heal()
        self._listeners.stop()
        error = ConnectionClosed(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")
        for client in list(self.clients.open):
            client.connection.force_close(error)
        await self._wait_for_clients(GOOD_BYE_S)
        for client in list(self.clients.open):
            client.socket.abort()
        await super().stop(asked_at)

    async def kill(self, *, power_cut: bool = True) -> None:
        """As kill -9: connections end without a word; with a power cut, what was not synced is gone."""
        self.is_killed = True
        self.ready = False
        self.threads.stop(0)
        if power_cut:
            self.ground.disk.power_cut()
        self._forget_uncommitted()
        self._listeners.stop()
        self.heal()
        self.clients.abort_all()
        await self._wait_for_clients(ABORT_S)
        await self._cleanup.aclose()
        self._forget_uncommitted()

    def heal(self, clients: Iterable[WatchedClient] | None = None) -> None:
        """Half-open connections are whole again, or end where the broker has given them up; by default all of them."""
        self._watched().heal(clients)

    async def _wait_for_clients(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.clients.wait_until_none(), seconds)

    def _forget_uncommitted(self) -> None:
        if isinstance(self.definitions, KeptDefinitions):
            self.definitions.forget_uncommitted()
        else:
            self.definitions._pending.clear()

    async def _stop_stores(self) -> None:
        if not self.is_killed:
            await super()._stop_stores()
            return
        self._disarm_timers()
        for vhost in self.node.vhosts.values():
            vhost.store.abandon()
        self.abandon_starting()

    def _close_definitions(self) -> None:
        if self.is_killed:
            self._forget_uncommitted()
        super()._close_definitions()

    def try_commit(self) -> bool:
        return True if self.is_killed else super().try_commit()

    # -- time ------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Runs turns and disk work until nothing is left to do."""
        turn: Turn = self.node.turn
        for _ in range(SETTLE_MAX):
            if turn._scheduled:
                turn.run()
            elif turn._pausing:
                turn.tick()
            elif not isinstance(self.threads, JobsInLoop) or not self.threads.crank():
                return
        raise RuntimeError("the broker does not come to rest")

    def waiting(self) -> Iterable[Waiting]:
        """Everybody for whom an advance of the clock lets time pass."""
        timeout_ms, now_ms = self.config.protocol.consumer_timeout, int(self.ground.clock.now_ms())
        return [TimersWait(self.timers), AcksWait(self._upkeep, self.clients, timeout_ms, now_ms), *self.watched()]

    def after_time(self) -> None:
        """What stores and queues do about once a second."""
        for _ in self._upkeep._ticking():
            pass
        self.settle()

    # -- seen by whoever tests ------------------------------------------------------------------------------------------

    def watched(self) -> list[WatchedClient]:
        """The clients that are connected."""
        return self._watched().watched()

    def _watched(self) -> WatchedClients:
        clients = self.clients
        assert isinstance(clients, WatchedClients), "made by: _make_clients"
        return clients

    def flush_history(self) -> None:
        """Has the history know all that has happened."""
        events = self.node.events
        if events is not None:
            events.flush()


def _nothing() -> None:
    """Memory is not given back: it is the test's."""
