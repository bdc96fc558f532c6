"""One worker: a whole broker with some of the daemon's vhosts, which takes and gives connections, and vhosts when it is told to.

    where is VHOST?           worker -> supervisor
    ready                     worker -> supervisor, when it takes clients
    adopt, release VHOST      supervisor -> worker
    others of USER?           worker -> supervisor, before a connection or channel that a limit is for (counting.py)
    count USER, counted       supervisor -> worker
    reload                    supervisor -> worker: somebody has changed users or permissions

What must stay true: a vhost is loaded by one worker at a time; when `release` is answered its store is at rest, and nothing here
touches its folder any more. Without a supervisor it stops.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from rabbitpy_broker import daemon
from rabbitpy_broker.broker import Broker, memory_limit
from rabbitpy_broker.config import Config, load_config
from rabbitpy_broker.data_dir import check_format
from rabbitpy_broker.definitions import FILE_NAME, Definitions
from rabbitpy_broker.errors import BrokerError, ConfigError, StartError
from rabbitpy_broker.net.listener import Listeners
from rabbitpy_broker.queues.timers import Timers
from rabbitpy_broker.stopping import stop_stores
from rabbitpy_broker.thresholds import Threshold
from rabbitpy_broker.workers.counting import Counting, Counts
from rabbitpy_broker.workers.fleet import WorkerSockets
from rabbitpy_broker.workers.handover import Others, Taker
from rabbitpy_broker.workers.leash import Leash, LeashError

FOLDER: Final = "workers"  # in the data directory
HANDOVER: Final = "handover.sock"
LOCK_WAIT_S: Final = 10.0  # for another worker that commits definitions


def worker_folder(data_path: Path, number: int) -> Path:
    """Where a worker has its sockets."""
    return data_path / FOLDER / str(number)


class WorkerBroker(Broker):
    """`vhosts` are those that it begins with; `given` the sockets that it listens on, with TLS and without."""

    def __init__(
        self,
        config: Config,
        log: Any,
        number: int,
        workers: int,
        vhosts: list[str],
        leash_socket: socket.socket,
        plain: list[socket.socket],
        tls: list[socket.socket],
    ) -> None:
        folder = worker_folder(config.node.data_path(), number)
        super().__init__(config, log.bind(worker=number), loop_is_ours=True, sockets=WorkerSockets(folder, number))
        self.number = number
        self._workers = workers
        self._first_vhosts = vhosts
        self._given = plain, tls
        self._leash_socket = leash_socket
        self._leash = Leash(self._answer, self.log)
        self._counting = Counting(self._leash, self.log)
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: dict[str, tuple[Timers, list[asyncio.TimerHandle]]] = {}

    # -- what it stands on -----------------------------------------------------------------------------------------

    def _take_data_dir(self, path: Path) -> None:
        check_format(path)  # its lock is the supervisor's

    def _open_definitions(self, path: Path) -> Definitions:
        return Definitions(path / FILE_NAME, lock_wait_s=LOCK_WAIT_S)

    def _load_vhosts(self, path: Path) -> None:
        """Those of its own that the definitions have; the folder of another is what a deletion, or a creation, has left."""
        there = set(self.definitions.vhosts())
        for name in self._first_vhosts:
            if name in there:
                self.load_vhost(name)
            else:
                self.make_disk().remove_tree(self.vhost_path(name))
        self.definitions.commit()

    def _load_definitions(self, file: str) -> None:
        pass  # the supervisor does it, when all are there

    async def _listen(self, listeners: Listeners) -> None:
        self._tasks.append(asyncio.create_task(self._hold(await self._leash.connect(self._leash_socket))))
        others = Others(self._leash, self._number_and_place, self._counting, self.log)
        self.node.elsewhere = others
        taker = Taker(self.clients, self.log)
        try:
            taker.start(worker_folder(self.config.node.data_path(), self.number) / HANDOVER)
        except OSError as error:
            raise StartError(f"cannot listen for other workers: {error.strerror or error}") from None
        self._cleanup.push_async_callback(taker.stop)
        await listeners.start_on(self.config.net, *self._given)
        self._share_memory()

    def _number_and_place(self, number: int) -> Path | None:
        """Where another worker takes connections; None for this one, which has the vhost that it was asked for, or nobody."""
        return None if number == self.number else worker_folder(self.config.node.data_path(), number) / HANDOVER

    def _say_started(self) -> None:
        self.log.info("worker started", vhosts=len(self.node.vhosts))
        self._tasks.append(asyncio.create_task(self._say_ready()))

    async def _say_ready(self) -> None:
        try:
            await self._leash.ask("ready")
        except LeashError as error:
            self.log.warning("not told that it is ready", reason=str(error))

    async def _hold(self, reader: asyncio.StreamReader) -> None:
        await self._leash.run(reader)
        self.log.warning("the supervisor is gone")
        os.kill(os.getpid(), signal.SIGTERM)

    async def stop(self, asked_at: float | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().stop(asked_at)

    # -- memory, of which each has a share -------------------------------------------------------------------------

    def _share_memory(self) -> None:
        self.alarms.set_memory_limit(memory_limit(self.memory_threshold) // self._workers)

    def set_memory_threshold(self, threshold: Threshold) -> None:
        self.memory_threshold = threshold
        self._share_memory()
        self.check_alarms()

    # -- timers: each vhost has its own, since it may leave ---------------------------------------------------------

    def _timers_of(self, vhost: str) -> Timers:
        loop = asyncio.get_running_loop()
        handles: list[asyncio.TimerHandle] = []

        def arm(delay_s: float) -> None:
            self._disarm(handles)
            handles.append(loop.call_later(delay_s, timers.run))

        timers = Timers(self.make_clock(), arm, self.report)
        self._timers[vhost] = timers, handles
        return timers

    @staticmethod
    def _disarm(handles: list[asyncio.TimerHandle]) -> None:
        for handle in handles:
            handle.cancel()
        handles.clear()

    def _disarm_timers(self) -> None:
        super()._disarm_timers()
        for _, handles in self._timers.values():
            self._disarm(handles)

    # -- what the supervisor asks ------------------------------------------------------------------------------------

    async def _answer(self, what: str, arguments: Mapping[str, Any]) -> Any:
        if what == "reload":
            return self._reload()
        if what == "adopt":
            return self._adopt(arguments["vhost"])
        if what == "release":
            return await self._release(arguments["vhost"])
        if what == "count":
            return self._count(arguments["user"])
        if what == "counted":
            return await self._counting.told(arguments["ticket"], arguments["counts"])
        raise BrokerError(f"a worker does not know {what!r}")

    def _count(self, name: str) -> Counts:
        user = self.node.users.get(name)
        everybody = len(self.clients.connections)
        return (everybody, 0, 0) if user is None else (everybody, user.connections, user.channels)

    def _reload(self) -> None:
        gone = self.node.users.read_again()
        for user in gone:
            theirs = [each for each in self.clients.connections if each.session.user is user]
            self.close_connections(theirs, f"user '{user.name}' is deleted")

    def _adopt(self, name: str) -> None:
        """Loads a vhost. Raises StartError, and BrokerError for one that the definitions do not have."""
        if name not in self.node.vhosts:
            if name not in self.definitions.vhosts():
                raise BrokerError(f"Virtual host '{name}' does not exist")
            try:
                self.load_vhost(name)
            except BrokerError:
                self.abandon_starting()
                raise

    async def _release(self, name: str) -> None:
        """Brings a vhost to rest and forgets it. Raises BrokerError when that is not done within the grace of a stop."""
        vhost = self.node.vhosts.pop(name, None)
        if vhost is None:
            return
        await self.end_clients(vhost, f"vhost '{name}' moves to another worker")
        self.commit()
        timers, handles = self._timers.pop(name)
        self._disarm(handles)
        timers.stop()
        late = await stop_stores([vhost], self.threads, self._new_grace(), self.log)
        self.alarms.store_recovered(name)
        if late:
            raise BrokerError(f"the store of vhost '{name}' does not come to rest")


def main(given: Mapping[str, Any]) -> NoReturn:
    """The process of one worker, as the supervisor starts it. The lock of the data directory stays open in it, whatever comes."""
    os.setpgid(0, 0)  # a terminal's Ctrl-C is for the supervisor, which stops the workers
    try:
        file = Path(given["file"]) if given["file"] else None
        config = load_config(file, os.environ, given["overrides"])
        plain, tls = ([socket.socket(fileno=fd) for fd in given[kind]] for kind in ("plain", "tls"))
        leash = socket.socket(fileno=given["leash"])
        make = partial(
            WorkerBroker, number=given["number"], workers=given["workers"], vhosts=given["vhosts"], leash_socket=leash,
            plain=plain, tls=tls,
        )  # fmt: skip
        daemon.run(config, make)
    except (ConfigError, StartError) as error:
        sys.stderr.write(f"rabbitpy-broker: {error}\n")
        sys.exit(2)
