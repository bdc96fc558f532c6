"""The broker: everything put together, started and stopped inside a running event loop.

    config -> data directory -> definitions -> users, vhosts, each with its store -> node (what connections share)
           -> listeners, HTTP, control socket, alarms

Nothing here is global: two brokers may run in one process, on two data directories. `start` either has everything up
or raises and leaves nothing behind; `stop` closes in the opposite order, and what was promised is on disk when it
returns.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from rabbitpy_broker import __version__, alarms, build_info, process_memory
from rabbitpy_broker.auth.chain import make_chain
from rabbitpy_broker.cluster.cluster_stats import cluster_stats
from rabbitpy_broker.cluster.joining import join_cluster
from rabbitpy_broker.cluster.member import BECOMING
from rabbitpy_broker.config import Config, ManagementConfig, split_address
from rabbitpy_broker.data_dir import (
    DataDirLock,
    check_format,
    lock_data_dir,
    raise_format,
)
from rabbitpy_broker.definitions import CLUSTER_ID, Definitions, DefinitionsError
from rabbitpy_broker.errors import CONNECTION_FORCED, ConnectionClosed, StartError
from rabbitpy_broker.events.files import EventFiles, note_off
from rabbitpy_broker.events.journal import EventJournal
from rabbitpy_broker.hosted_vhosts import VHostBroker
from rabbitpy_broker.invariants import check_invariants
from rabbitpy_broker.management.admin import Admin, AdminError
from rabbitpy_broker.management.control import Control
from rabbitpy_broker.management.definitions_json import load_file
from rabbitpy_broker.management.managed import PlainBackups
from rabbitpy_broker.metrics import BrokerStats
from rabbitpy_broker.net.certificates import certificate_name
from rabbitpy_broker.net.flow import Flow
from rabbitpy_broker.net.listener import Listeners, ServerTls
from rabbitpy_broker.net.moderation import Moderation
from rabbitpy_broker.net.threads import DiskJobs, DiskThreads
from rabbitpy_broker.net.transport import Clients
from rabbitpy_broker.plain_backups import BrokerBackups
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.handshake import EXTERNAL, server_properties
from rabbitpy_broker.protocol.node import Limits, Node
from rabbitpy_broker.protocol.turn import Turn, TurnHost
from rabbitpy_broker.queues.timers import Timers
from rabbitpy_broker.replicated_vhosts import ReplicatedVHosts
from rabbitpy_broker.slices import in_slices
from rabbitpy_broker.stats import Look
from rabbitpy_broker.stopping import ABORT_S, Grace, stop_stores
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.vhost_store import vhost_folder
from rabbitpy_broker.thresholds import Threshold
from rabbitpy_broker.upkeep import Upkeep
from rabbitpy_broker.users import Users
from rabbitpy_broker.workers.fleet import WorkerSockets

EVENTS_FLUSH_S: Final = 0.1
THREADS_END_S: Final = 0.2  # that have nothing to do
CONFIRM_TICK_S: Final = 0.002  # `confirms.py` says what it is for
BROKEN_EXIT_CODE: Final = 70  # EX_SOFTWARE


class TurnsInLoop(TurnHost):
    """Has a broker's turns run by its loop. `clients` are there once it listens."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self.clients: Clients | None = None

    def schedule(self, turn: Turn) -> None:
        self._loop.call_soon(turn.run)

    def schedule_tick(self, turn: Turn) -> bool:
        self._loop.call_later(CONFIRM_TICK_S, turn.tick)
        return True

    def commit(self) -> bool:
        return self._broker.try_commit()

    def after_turn(self) -> None:
        clients = self.clients
        if clients is not None:
            if self._broker.config.node.check_invariants:
                self._broker.check_invariants(clients.connections)
            clients.after_turn()

    def fault(self, fault: Exception) -> None:
        self._broker.report(fault)


class Broker(VHostBroker):
    """`log` is a structlog logger. After `start`: `addresses`, `tls_addresses` and `metrics_address` are the bound ones.

    `loop_is_ours` says that nothing else runs on the loop, so that it may rest (`moderation.py`).
    """

    def __init__(
        self, config: Config, log: Any, *, loop_is_ours: bool = False, sockets: WorkerSockets | None = None
    ) -> None:
        super().__init__(config, log, sockets)
        self.log = log
        self._cleanup = AsyncExitStack()
        self._management_tls: ServerTls | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop_is_ours = loop_is_ours
        self._grace = self._new_grace()  # of the stop, from when that begins
        self._is_writing_left = False
        self._replicated = ReplicatedVHosts(self)

    async def start(self) -> None:
        """Raises ConfigError or StartError."""
        try:
            await self._start()
        except BaseException:
            self._grace = self._new_grace()
            await self._cleanup.aclose()
            raise

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        config = self.config
        path = config.node.data_path()
        self._take_data_dir(path)
        self.definitions = self._open_definitions(path)
        self._cleanup.callback(self._close_definitions)
        self.alarms = self._make_alarms(path)
        self.threads = self._make_threads(loop)
        self._cleanup.callback(self._stop_threads)
        self.timers = Timers(self.make_clock(), partial(self._arm_timers, loop), self.report)
        self._cleanup.callback(self._disarm_timers)
        try:
            turns = TurnsInLoop(self, loop)
            self.node = self._make_node(Turn(turns))
            self._start_events(loop, path)
            self._cleanup.push_async_callback(self._stop_stores)
            self._load_vhosts(path)
            self._load_definitions(config.node.load_definitions)
            self.cluster_id = make_cluster_id(self.definitions)
        except (DefinitionsError, KeyError, ValueError) as error:
            raise StartError(f"the definitions in {path} cannot be used: {error}") from error
        flow = Flow(loop, int(self.node.limits.flow_high_water_mark))
        moderation = Moderation(config.net.turn_rest_us / 1e6 if self._loop_is_ours else 0.0)
        clients = self._make_clients(flow, moderation, loop)
        turns.clients = clients
        clients.handshake_timeout_s = config.protocol.handshake_timeout / 1000
        if EXTERNAL in config.auth.auth_mechanisms:
            clients.certificate_name = self._certificate_name
        self.clients = clients
        self._cleanup.callback(clients.abort_all)
        self._upkeep = self._make_upkeep(clients)
        self._listeners = Listeners(clients)
        self._cleanup.callback(self._listeners.stop)
        await self._listen(self._listeners)
        self.addresses = self._listeners.addresses
        self.tls_addresses = self._listeners.tls_addresses
        await _start_metrics(self, self._cleanup)
        await self._start_management()
        await self._start_control(path)
        await join_cluster(self, self._replicated, self._cleanup)
        for task in self._upkeep.start(loop):
            self._cleanup.push_async_callback(_cancel, task)
        self.ready = True
        self._say_started()

    # -- what it stands on; a broker inside a test suite (testing/) stands on something else -----------------------------

    async def _listen(self, listeners: Listeners) -> None:
        """Raises ConfigError or StartError."""
        await listeners.start(self.config.net)

    def _say_started(self) -> None:
        management = [one.address for one in self.http_listeners]
        say_started(self.log, self.config, self.addresses, self.tls_addresses, self.metrics_address, management)

    def _take_data_dir(self, path: Path) -> None:
        """Makes the data directory ours until the end. Raises StartError."""
        lock = lock_data_dir(path)
        self._cleanup.callback(self._unlock, lock)
        check_format(path)

    def raise_data_format(self, number: int) -> None:
        """Keeps brokers out of the data directory that do not know this format. Raises OSError."""
        raise_format(self.config.node.data_path(), number)

    def _open_definitions(self, path: Path) -> Definitions:
        return Definitions(path / "definitions.sqlite")

    def _make_threads(self, loop: asyncio.AbstractEventLoop) -> DiskJobs:
        return DiskThreads(loop, self.report)

    def _make_clients(self, flow: Flow, moderation: Moderation, loop: asyncio.AbstractEventLoop) -> Clients:
        return Clients(self.node, flow, moderation, loop, self.config.net.read_share_bytes, self.log)

    def _make_upkeep(self, clients: Clients) -> Upkeep:
        return Upkeep(self.config, self.node, self.definitions, clients, self.alarms, self.log)

    async def _start_control(self, path: Path) -> None:
        control = Control(Admin(self), self.log)
        sockets = self.sockets
        await (control.start(path, self.config.node.control_socket) if sockets is None else control.start_on(sockets.control))
        self._cleanup.push_async_callback(control.stop)

    # -- starting ---------------------------------------------------------------------------------------------------

    async def _start_management(self) -> None:
        """The management API. A place that nobody has asked for, and that is taken, is no reason not to start."""
        config = self.config
        if not config.net.management_listen:
            return
        from rabbitpy_broker.management.api.server import (
            start_management,  # it takes a while, and some memory
        )

        try:
            management = await start_management(self, Admin(self), config, self.log)
        except StartError as error:
            if config.net.management_listen != "auto" or config.management != ManagementConfig():
                raise
            self.log.warning("no management API", reason=str(error))
            return
        self._cleanup.push_async_callback(management.stop)
        self.http_listeners = management.listeners
        self._management_tls = management.tls

    def _make_node(self, turn: Turn) -> Node:
        config = self.config
        users = Users(self.definitions, config.users.loopback_users, self.log)
        create_defaults(users, config)
        limits = Limits()
        limits.max_message_size = config.protocol.max_message_size
        limits.initial_frame_max = config.protocol.initial_frame_max
        limits.output_high_water_mark = config.net.output_high_watermark_bytes
        limits.channel_max = config.protocol.channel_max
        limits.frame_max = config.protocol.frame_max
        limits.heartbeat = config.protocol.heartbeat
        limits.connection_max = config.net.connection_max
        limits.send_timeout_s = config.net.tcp_listen_options.send_timeout / 1000

        node = Node(
            turn,
            users,
            limits,
            server_properties(__version__, config.node.cluster()),
            self.log,
            lambda: self.definitions.changes,
        )
        node.mechanisms = config.auth.auth_mechanisms
        chain = make_chain(config.auth, users, self.log)
        self._cleanup.push_async_callback(chain.stop)
        node.authenticator = chain
        return node

    def _start_events(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        """The event journal, where the configuration wants one. Raises StartError."""
        config = self.config.events
        folder = config.path(path)
        if config.event_journal == "off":
            note_off(folder)
            return
        files = EventFiles(folder, config.segment_size_bytes(), config.max_size_bytes(), config.max_age_s(), self.log)
        files.open()
        self._cleanup.callback(files.close)
        events = EventJournal(files)
        self._cleanup.callback(events.flush)
        self.node.events = self.node.turn.events = events
        flushing = loop.create_task(_flush_regularly(events))
        self._cleanup.push_async_callback(_cancel, flushing)

    # -- vhosts ---------------------------------------------------------------------------------------------------

    def _load_vhosts(self, path: Path) -> None:
        """Those that the definitions have; the folder of any other is what a deletion has left, and is removed."""
        names = self.definitions.vhosts()
        remove_deleted(self.make_disk(), path, names, self.log)
        for name in names:
            metadata = self.definitions.vhost_metadata(name)
            if is_replicated(metadata) or is_becoming(metadata):
                self.node.owned_elsewhere[name] = ""  # until this node has taken it over
            else:
                self.load_vhost(name)
        self.definitions.commit()

    def _make_backups(self) -> PlainBackups:
        return BrokerBackups(self)

    def close_connections(self, connections: Sequence[Connection], reason: str) -> None:
        for connection in connections:
            connection.force_close(ConnectionClosed(CONNECTION_FORCED, reason))

    def commit(self) -> None:
        try:
            self._flush_events()
            self.definitions.commit()
        except DefinitionsError:
            self.node.turn.commit_due = True
            self.node.turn.wake()
            raise
        self.node.changes_seen = self.definitions.changes
        self._replicated.committed()

    def _load_definitions(self, file: str) -> None:
        """The file that `load_definitions` names. Raises StartError."""
        if not file:
            return
        try:
            outcome = load_file(Admin(self), Path(file).expanduser())
        except AdminError as error:
            raise StartError(f"load_definitions: {file}: {error}") from None
        self.log.info("definitions loaded", path=file, outcome=outcome)

    # -- stores ---------------------------------------------------------------------------------------------------

    def store_trouble(self, vhost: str, reason: str) -> None:
        """The disk of a vhost's store fails, for this reason; "": it works again."""
        if reason:
            self.alarms.store_failed(reason, vhost)
        else:
            self.alarms.store_recovered(vhost)
        try:
            self.check_alarms()
        except OSError as error:  # the next round looks again
            self.log.warning("alarms not checked", error=str(error))

    async def _stop_stores(self) -> None:
        """Brings everything to where it rests, and writes the terms with which the next start is quick."""
        self._disarm_timers()  # nothing expires any more in a store that is closed while another one is being pushed
        await stop_stores(list(self.node.vhosts.values()), self.threads, self._grace, self.log)
        self.abandon_starting()

    def _stop_threads(self) -> None:
        self._is_writing_left = not self.threads.stop(max(THREADS_END_S, self._grace.left_s()))

    def _unlock(self, lock: DataDirLock) -> None:
        """A thread that does not come back may still write: then the directory is ours until the process is gone."""
        if not self._is_writing_left:
            lock.release()

    def _flush_events(self) -> None:
        """So that the event journal knows of each queue that the definitions have no longer."""
        events = self.node.events
        if events is not None:
            events.flush()

    def try_commit(self) -> bool:
        try:
            self._flush_events()
            self.definitions.commit()
        except DefinitionsError as error:
            self.log.error("definitions not written", error=str(error))
            return False
        self._replicated.committed()
        return True

    def _close_definitions(self) -> None:
        try:
            self.definitions.close()
        except DefinitionsError as error:
            self.log.error("definitions not written", error=str(error))

    def report(self, fault: Exception) -> None:
        """A fault of ours in one queue or connection; the others go on."""
        self.log.error("internal error", exc_info=fault)

    def check_invariants(self, connections: Collection[Connection]) -> None:
        """Ends the process where one is broken: nothing more of what is wrong gets to disk or to clients."""
        try:
            check_invariants(self.node.vhosts.values(), connections)
        except AssertionError as broken:
            self.log.error("invariant broken", exc_info=broken)
            os._exit(BROKEN_EXIT_CODE)

    # -- timers ---------------------------------------------------------------------------------------------------

    def _arm_timers(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(delay_s, self.timers.run)

    def _disarm_timers(self) -> None:
        self.vhost_timers.disarm()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tell_alarm(self) -> None:
        self._upkeep.tell_alarm()

    # -- alarms ---------------------------------------------------------------------------------------------------

    def _make_alarms(self, path: Path) -> alarms.Alarms:
        config = self.config.alarms
        return alarms.Alarms(
            memory_limit(self.memory_threshold),
            config.disk_limit_bytes(process_memory.available()),
            process_memory.used,
            lambda: alarms.disk_free(path),
            process_memory.give_back,
        )

    def _certificate_name(self, certificate: Mapping[str, Any]) -> str:
        config = self.config.auth
        san_type, san_index = config.ssl_cert_login_san_type, config.ssl_cert_login_san_index
        return certificate_name(certificate, config.ssl_cert_login_from, san_type, san_index)

    def reload_tls(self) -> bool:
        contexts = [one for one in (self._listeners.tls, self._management_tls) if one is not None]
        for context in contexts:
            context.reload()
        if contexts:
            self.log.info("certificates read again")
        return bool(contexts)

    def set_memory_threshold(self, threshold: Threshold) -> None:
        self.memory_threshold = threshold
        self.alarms.set_memory_limit(memory_limit(threshold))
        self.check_alarms()

    def check_alarms(self) -> None:
        self._upkeep.check_alarms()

    # -- seen from outside ----------------------------------------------------------------------------------------

    async def stats(self, per_object: bool) -> BrokerStats:
        """The figures for /metrics; with every single queue, channel and connection when asked for."""
        cluster = self.config.node.cluster()
        clients = self.clients
        look = Look(
            self.node,
            clients.connections,
            self.alarms,
            cluster,
            self.cluster_id,
            len(clients.open),
            clients.moderation.rests,
            per_object=per_object,
            deleted=self._deleted,
        )
        await in_slices(look.steps())
        self._deleted.shown.keep_up(look.stats)
        look.stats.node.node_name = self.config.node_name()
        if self.member is not None and self.view is not None:
            look.stats.cluster = cluster_stats(self.member, self.view)
        return look.stats

    # -- stop -----------------------------------------------------------------------------------------------------

    def _new_grace(self, asked_at: float | None = None) -> Grace:
        return Grace(self.config.node.stop_grace / 1000, asked_at)

    async def stop(self, asked_at: float | None = None) -> None:
        """Stops accepting, closes every connection with 320, waits a moment for their close-ok, and lets go of all.

        It is over when `stop_grace` is, counted from `asked_at` (of `time.monotonic`; default: now).
        """
        self.ready = False
        self._grace = self._new_grace(asked_at)
        self._listeners.stop()
        if self.transfers is not None:
            await self.transfers.leave(self._grace.left_s() / 4)
        for vhost in self.node.vhosts.values():
            vhost.store.stop_work()
        error = ConnectionClosed(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")
        for client in list(self.clients.open):
            client.connection.force_close(error)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.clients.wait_until_none(), self._grace.for_clients_s())
        self.clients.abort_all()
        with suppress(TimeoutError):  # what they had not acked is back in its queues then
            await asyncio.wait_for(self.clients.wait_until_none(), ABORT_S)
        self.try_commit()
        await self._cleanup.aclose()
        self.log.info("broker stopped")


def is_replicated(metadata: str) -> bool:
    """Whether a vhost is one that other nodes have as well."""
    return "replicas" in json.loads(metadata)


def is_becoming(metadata: str) -> bool:
    """Whether the registry has to be asked whether a vhost has become a replicated one (conversion.py)."""
    return BECOMING in json.loads(metadata)


def create_defaults(users: Users, config: Config) -> None:
    """The user and the vhost of a broker that has none, where no definitions are to be loaded, which say what there is."""
    if not config.node.load_definitions:
        users.create_defaults(
            user=config.users.default_user,
            password=config.users.default_pass,
            vhost=config.users.default_vhost,
            tags=config.users.default_user_tags,
            configure=config.users.default_permissions.configure,
            write=config.users.default_permissions.write,
            read=config.users.default_permissions.read,
        )


def make_cluster_id(definitions: Definitions) -> str:
    """What this broker, alone or with its definitions moved, is told apart by: a global parameter, as in RabbitMQ."""
    for name, value in definitions.global_parameters():
        if name == CLUSTER_ID:
            return str(json.loads(value))
    made = f"rabbitmq-cluster-id-{secrets.token_urlsafe(16)}"
    definitions.put_global_parameter(CLUSTER_ID, json.dumps(made))
    definitions.commit()
    return made


def remove_deleted(disk: Disk, path: Path, names: Sequence[str], log: Any) -> None:
    """Removes the folder of each vhost that is none of these: what a deletion has left."""
    folders = {vhost_folder(name) for name in names}
    for folder in disk.list_dir(str(path / "vhosts")):
        if folder not in folders:
            log.info("deleted vhost removed", path=str(path / "vhosts" / folder))
            disk.remove_tree(str(path / "vhosts" / folder))


def say_started(
    log: Any, config: Config, addresses: Sequence[str], tls_addresses: Sequence[str], metrics: str, management: Sequence[str]
) -> None:
    """Tells the log that all of it listens, and where."""
    log.info(
        "broker started",
        version=__version__,
        build=build_info.build(),
        python=build_info.python(),
        listeners=addresses,
        tls_listeners=tls_addresses,
        metrics=metrics,
        management=management,
        data_dir=str(config.node.data_path()),
    )
    # RabbitMQ's words, which those wait for who start a broker in a container for a test.
    log.info("Server startup complete; 0 plugins started.")


def memory_limit(threshold: Threshold) -> int:
    """In bytes; never more than there is, as in RabbitMQ: memory would run out before the alarm."""
    available = process_memory.available()
    return min(threshold.bytes_of(available), available)


async def _start_metrics(broker: Broker, cleanup: AsyncExitStack) -> None:
    """/metrics and /health, where they are wanted; aiohttp is not imported where they are not. Raises StartError."""
    if broker.sockets is None and not broker.config.net.metrics_listen:
        return
    from rabbitpy_broker.net.http import start_http, start_http_on

    if broker.sockets is not None:
        http = await start_http_on(broker.sockets.metrics, broker.stats, lambda: broker.ready)
    else:
        host, port = split_address(broker.config.net.metrics_listen)
        http = await start_http(host, port, broker.stats, lambda: broker.ready)
        broker.metrics_address = f"{host}:{http.port}"
    cleanup.push_async_callback(http.stop)


async def _flush_regularly(events: EventJournal) -> None:
    """What a quiet broker records is not to wait for a full buffer."""
    while True:
        await asyncio.sleep(EVENTS_FLUSH_S)
        events.flush()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
