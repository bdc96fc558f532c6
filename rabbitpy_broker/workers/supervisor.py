"""The supervisor of a daemon with several workers: one process without traffic, which starts them and knows where each vhost is.

    config -> data directory, locked -> definitions (first user, vhosts) -> placement -> sockets, bound
           -> workers, each a process with all these sockets -> gateway -> ready

It is the process that users and systemd know: its end is the end of all, a worker's end is not. A worker that has ended is
started again, later each time when it ends soon, and its vhosts recover while the others go on.

What must stay true: a vhost is opened by a worker only when the one that had it has said that it rests, or when its process is
gone; the data directory stays locked while any worker runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import uvloop

from rabbitpy_broker import systemd
from rabbitpy_broker.broker import create_defaults, make_cluster_id, remove_deleted, say_started
from rabbitpy_broker.config import Config
from rabbitpy_broker.data_dir import DataDirLock, check_format, lock_data_dir
from rabbitpy_broker.definitions import FILE_NAME, Definitions, DefinitionsError
from rabbitpy_broker.errors import BrokerError, ConfigError, StartError
from rabbitpy_broker.log import LogFile, RecentLines, configure_log
from rabbitpy_broker.management.admin import AdminError
from rabbitpy_broker.net.listener import bind, shown
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.users import Users
from rabbitpy_broker.workers.counting import Census
from rabbitpy_broker.workers.fleet import Fleet, Member, WorkerSockets
from rabbitpy_broker.workers.gateway import Gateway, start_gateway
from rabbitpy_broker.workers.leash import Leash, LeashError
from rabbitpy_broker.workers.placement import Placement
from rabbitpy_broker.workers.worker import worker_folder

START: Final = (
    "import json, sys; given = json.load(open(int(sys.argv[1]))); sys.path[:] = given['path']; "
    "from rabbitpy_broker.workers.worker import main; main(given)"
)
AGAIN_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)  # before a worker is started again, by how often it has ended soon
SOON_S: Final = 10.0
OVERTIME_S: Final = 2.0  # after stop_grace, for the workers' own last words
NOT_THEIRS: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # of the environment


class Worker:
    """One worker as its supervisor sees it: a process, again and again. `ready` is set while it takes clients."""

    def __init__(self, number: int, sockets: WorkerSockets, leash: Leash) -> None:
        self.number = number
        self.sockets = sockets
        self.leash = leash
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()  # there is no process
        self.ended.set()
        self.process: Process | None = None

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0


class Supervisor(Fleet):
    """`file` and `overrides` are what the configuration was made of: the workers make it again."""

    def __init__(
        self, config: Config, file: Path | None, overrides: Mapping[str, object], count: int, lock: DataDirLock, log: Any
    ) -> None:
        self._config = config
        self._lock = lock
        self._log = log
        self._file = file
        self._overrides = dict(overrides)
        self._path = config.node.data_path()
        self._placement = Placement(self._path, count, by_load=config.node.worker_placement == "load")
        self._census = Census(log)
        self._moving: dict[str, asyncio.Event] = {}  # set when it is over
        self._stopping = False
        self._failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()  # why there can be no start
        self._started = False
        self._plain: list[socket.socket] = []
        self._tls: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._workers = [self._make_worker(number) for number in range(count)]

    def _make_worker(self, number: int) -> Worker:
        async def answer(what: str, arguments: Mapping[str, Any]) -> Any:
            return await self._answer(self._workers[number], what, arguments)

        return Worker(number, WorkerSockets(worker_folder(self._path, number), number), Leash(answer, self._log))

    # -- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when all workers take clients. Raises StartError."""
        net = self._config.net
        self._placement.load(self._prepare())
        self._plain, self._tls = bind(net.listeners), bind(net.listeners_ssl)
        for listening in (*self._plain, *self._tls):
            listening.listen(net.tcp_listen_options.backlog)
        for worker in self._workers:
            worker.sockets.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._tasks.append(asyncio.create_task(self._keep_running(worker)))
        for worker in self._workers:
            ready = asyncio.create_task(worker.ready.wait())
            await asyncio.wait([asyncio.ensure_future(self._failed), ready], return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if self._failed.done():
                raise StartError(self._failed.result())
        self._started = True

    def _prepare(self) -> list[str]:
        """Makes what only one process may make, and says which vhosts there are. Raises StartError."""
        definitions = Definitions(self._path / FILE_NAME)
        try:
            create_defaults(Users(definitions, self._config.users.loopback_users, self._log), self._config)
            definitions.commit()
            make_cluster_id(definitions)
            names = definitions.vhosts()
        except (DefinitionsError, KeyError, ValueError) as error:
            raise StartError(f"the definitions in {self._path} cannot be used: {error}") from error
        finally:
            definitions.close()
        remove_deleted(Disk(), self._path, names, self._log)
        return names

    async def _keep_running(self, worker: Worker) -> None:
        soon = 0
        while not self._stopping:
            began = time.monotonic()
            try:
                code: int | str = await self._run(worker)
            except OSError as error:  # no process, or no memory for it
                code = str(error)
            if self._stopping:
                return
            if not self._started:
                if not self._failed.done():
                    self._failed.set_result(f"worker {worker.number} has ended: {code}")
                return
            soon = 0 if time.monotonic() - began > SOON_S else min(soon + 1, len(AGAIN_S) - 1)
            self._log.error("worker ended", number=worker.number, exit_code=code, again_in_s=AGAIN_S[soon])
            await asyncio.sleep(AGAIN_S[soon])

    async def _run(self, worker: Worker) -> int:
        """One life of a worker's process; returns its exit code. Raises OSError when there can be none."""
        worker.ended.clear()  # before it is told what it has: whoever moves a vhost asks it, or waits for its end
        try:
            return await self._live(worker)
        finally:
            worker.ready.clear()
            worker.process = None
            worker.ended.set()

    async def _live(self, worker: Worker) -> int:
        ours, theirs = socket.socketpair()
        fds = [listening.fileno() for listening in (*self._plain, *self._tls)]
        given = {
            "path": sys.path, "file": str(self._file) if self._file else "", "overrides": self._overrides,
            "number": worker.number, "workers": len(self._workers), "vhosts": self._placement.of_worker(worker.number),
            "plain": fds[: len(self._plain)], "tls": fds[len(self._plain) :], "leash": theirs.fileno(),
        }  # fmt: skip
        env = {name: value for name, value in os.environ.items() if name not in NOT_THEIRS}
        told = os.memfd_create("worker", 0)  # with many vhosts it is more than an argument may be
        try:
            os.write(told, json.dumps(given).encode())
            os.lseek(told, 0, os.SEEK_SET)
            with theirs:
                worker.process = process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", START, str(told), env=env, pass_fds=[*fds, theirs.fileno(), told, self._lock.fileno()]
                )
        except OSError:
            ours.close()
            raise
        finally:
            os.close(told)
        ours.setblocking(False)
        leash = asyncio.create_task(worker.leash.run(await worker.leash.connect(ours)))
        try:
            return await process.wait()
        finally:
            leash.cancel()
            await asyncio.gather(leash, return_exceptions=True)

    def signal(self, number: int, *, only_ready: bool = False) -> None:
        """Passes a signal on to all workers. One that is not ready may not know yet what to do with it."""
        for worker in self._workers:
            if worker.process is not None and (worker.ready.is_set() or not only_ready):
                with contextlib.suppress(ProcessLookupError):
                    worker.process.send_signal(number)

    def begin_stop(self) -> None:
        """No worker is started any more."""
        self._stopping = True

    async def stop(self) -> None:
        """Stops all workers; those that do not end within the grace are killed."""
        self.begin_stop()
        self.signal(signal.SIGTERM)
        for listening in (*self._plain, *self._tls):
            listening.close()
        ending = asyncio.gather(*(worker.ended.wait() for worker in self._workers))
        try:
            await asyncio.wait_for(ending, self._config.node.stop_grace / 1000 + OVERTIME_S)
        except TimeoutError:
            self._log.error("workers killed", numbers=[one.number for one in self._workers if not one.ended.is_set()])
            self.signal(signal.SIGKILL)
            await asyncio.gather(*(worker.ended.wait() for worker in self._workers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def addresses(self) -> list[str]:
        return [shown(listening) for listening in self._plain]

    @property
    def tls_addresses(self) -> list[str]:
        return [shown(listening) for listening in self._tls]

    # -- what workers ask ----------------------------------------------------------------------------------------------

    async def _answer(self, worker: Worker, what: str, arguments: Mapping[str, Any]) -> Any:
        if what == "ready":
            worker.ready.set()
            return None
        if what == "where":
            return await self._where(arguments["vhost"])
        if what == "others":
            others = [one.leash for one in self._workers if one is not worker and not one.ended.is_set()]
            return await self._census.count(worker.leash, others, arguments["user"], arguments["ticket"])
        raise BrokerError(f"the supervisor does not know {what!r}")

    async def _where(self, vhost: str) -> int | None:
        """The worker of a vhost, once it has it and takes clients; None for a vhost that there is not."""
        while True:
            moving = self._moving.get(vhost)
            if moving is not None:
                await moving.wait()
                continue
            number = self._placement.table().get(vhost)
            if number is None or self._workers[number].ready.is_set():
                return number
            await self._workers[number].ready.wait()

    # -- what the gateway asks ------------------------------------------------------------------------------------------

    def members(self) -> Sequence[Member]:
        return [Member(one.number, one.sockets, one.pid, one.ready.is_set()) for one in self._workers]

    def placed(self) -> Mapping[str, int]:
        return self._placement.table()

    def place(self, vhost: str) -> int:
        return self._placement.place(vhost)

    def forget(self, vhost: str) -> None:
        self._placement.forget(vhost)

    async def tell(self, by: int) -> None:
        asked = [one.leash.ask("reload") for one in self._workers if one.number != by and one.ready.is_set()]
        for found in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(found, LeashError):  # one that ends reads all of it when it starts again
                self._log.warning("definitions not read anew", reason=str(found))
            elif isinstance(found, BaseException):
                raise found

    async def move(self, vhost: str, number: int) -> None:
        if not 0 <= number < len(self._workers):
            raise AdminError(f"there is no worker {number}: they are numbered from 0 to {len(self._workers) - 1}")
        if vhost in self._moving:
            raise AdminError(f"vhost '{vhost}' is being moved")
        before = self._placement.table().get(vhost)
        if before is None:
            raise AdminError(f"Virtual host '{vhost}' does not exist")
        if before == number:
            return
        over = self._moving[vhost] = asyncio.Event()
        try:
            await self._release(self._workers[before], vhost)
            try:
                self._placement.put(vhost, number)
                await self._adopt(self._workers[number], vhost)
            except (OSError, AdminError) as error:
                self._log.error("vhost not moved", vhost=vhost, reason=str(error))
                self._placement.put(vhost, before)
                await self._adopt(self._workers[before], vhost)
                raise AdminError(f"vhost '{vhost}' stays with worker {before}: {error}") from None
            self._log.info("vhost moved", vhost=vhost, before=before, now=number)
        finally:
            del self._moving[vhost]
            over.set()

    async def _release(self, worker: Worker, vhost: str) -> None:
        """Returns when nobody has the vhost. Where its worker does not let go of it, the worker has to go."""
        if worker.ended.is_set():
            return
        try:
            await worker.leash.ask("release", vhost=vhost)
        except LeashError as error:
            self._log.error("vhost not released, its worker is killed", vhost=vhost, reason=str(error))
            if worker.process is not None:
                worker.process.kill()
            await worker.ended.wait()

    async def _adopt(self, worker: Worker, vhost: str) -> None:
        """Has a worker load a vhost; one that starts has it among those that it begins with."""
        await worker.ready.wait()
        try:
            await worker.leash.ask("adopt", vhost=vhost)
        except LeashError as error:
            raise AdminError(f"worker {worker.number} does not take vhost '{vhost}': {error}") from None


def run(config: Config, file: Path | None, overrides: Mapping[str, object], count: int) -> NoReturn:
    """Runs until it is told to stop, then ends the process with exit code 0. Raises ConfigError or StartError."""
    log_file = LogFile(config.log.file) if config.log.file else None
    log = configure_log(config.log, log_file, RecentLines())
    lock = lock_data_dir(config.node.data_path())
    check_format(config.node.data_path())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, file, overrides, count, lock, log, log_file))
    lock.release()
    sys.exit(0)


async def _serve(
    config: Config,
    file: Path | None,
    overrides: Mapping[str, object],
    count: int,
    lock: DataDirLock,
    log: Any,
    log_file: LogFile | None,
) -> None:
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(config, file, overrides, count, lock, log)
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    for number in (signal.SIGHUP, signal.SIGUSR1):
        loop.add_signal_handler(number, _again, number, supervisor, log_file, log)
    living: asyncio.Task[None] | None = None
    try:
        starting = asyncio.create_task(_start(supervisor, config, log))
        waiting = asyncio.create_task(asked.wait())
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            gateway = starting.result()
            systemd.notify(systemd.READY)
            seconds = systemd.watchdog_s()
            living = loop.create_task(_tell_alive(seconds)) if seconds else None
            await waiting
            supervisor.begin_stop()
            systemd.notify(systemd.STOPPING)
            await gateway.stop()
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        if living is not None:
            living.cancel()
        await supervisor.stop()
    log.info("broker stopped")


async def _start(supervisor: Supervisor, config: Config, log: Any) -> Gateway:
    """The gateway, when everything takes clients."""
    await supervisor.start()
    gateway = await start_gateway(supervisor, config, log)
    if config.node.load_definitions:
        await _load_definitions(gateway, Path(config.node.load_definitions), log)
    say_started(log, config, supervisor.addresses, supervisor.tls_addresses, gateway.metrics, gateway.management)
    return gateway


async def _load_definitions(gateway: Gateway, file: Path, log: Any) -> None:
    """Raises StartError."""
    try:
        text = await asyncio.to_thread(lambda: file.expanduser().read_text(encoding="utf-8"))
        outcome = await gateway.import_definitions(json.loads(text))
    except (OSError, ValueError, AdminError) as error:
        raise StartError(f"load_definitions: {file}: {error}") from None
    log.info("definitions loaded", path=str(file), outcome=outcome)


def _again(number: int, supervisor: Supervisor, log_file: LogFile | None, log: Any) -> None:
    """The log file is opened again, and the workers do what the signal says."""
    try:
        if log_file is not None:
            log_file.reopen()
    except ConfigError as error:
        log.error("not reloaded", reason=str(error))
    supervisor.signal(number, only_ready=True)


async def _tell_alive(seconds: float) -> None:
    while True:
        systemd.notify(systemd.ALIVE)
        await asyncio.sleep(seconds)
