"""The connections to PostgreSQL: to whichever of its servers takes writes, shared by all that one engine does.

What must stay true for the contract (`cluster/log.py`):

- *Nothing is cancelled.* asyncpg cancels a statement whose task is cancelled or whose time is over, and PostgreSQL answers a
  cancel that meets a commit while it waits for the standbys with success and a warning, though only the primary has it. So
  statements run in tasks of their own; who no longer waits drops the connection, which the server does not mind before the
  commit is done. The server's own time-outs for statements are off in our sessions. A warning that comes with a change makes
  its outcome unknown.
- *A new connection sees only what is safe.* After a crash the primary has, and shows, what it had committed for itself and no
  standby ever got. So a connection is used only once a commit of its own is on the standbys, and with it all before. (Crashes
  end all connections.) One that still waits for that is kept, and whoever needs a connection next waits on with it: the server
  does not notice that nobody waits any more, and without standbys would fill up with commits that do.
- *One server at a time.* When a connection is made to another server than before, those to the former one are dropped, so that
  a read here never trails what an append here has returned.
- *Whoever uses a connection that is dropped meanwhile* is told so, by one of CONNECTION_ERRORS, at whatever step that meets it.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import asyncpg  # an extra without types: its objects are Any here

from rabbitpy_broker.cluster.log import ClusterError, OutcomeUnknown, Unavailable
from rabbitpy_broker.cluster.urls import split

T = TypeVar("T")
Home = tuple[str | None, int | None]  # a server's host and port
CONNECTIONS: Final = 8  # of one engine; appends to different logs wait for the standbys side by side
CONNECT_TIMEOUT: Final = 3.0  # seconds for one host, so that one that hangs does not keep us from the next
SESSION: Final = {
    "application_name": "rabbitpy-broker",
    "synchronous_commit": "on",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_min_messages": "warning",
    "jit": "off",
}
# In one statement: what is in effect, what newer versions have of time-outs, and a commit that waits for the standbys.
SAFE_FROM_HERE: Final = """
SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
       pg_logical_emit_message(true, 'rabbitpy-broker', ''),
       (SELECT count(set_config(name, '0', false)) FROM pg_settings WHERE name = 'transaction_timeout')
"""
CONNECTION_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


def hosts(url: str) -> list[Home]:
    """The servers that a URL names, `postgresql://user:password@host:port,host:port/database`; one of Nones if it names none, and
    leaves that to the environment.
    """
    found: list[Home] = []
    for server in split(url)[0].rpartition("@")[2].split(","):
        host, colon, port = server.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = server, "5432"
        if host:
            found.append((host.strip("[]"), int(port)))
    return found or [(None, None)]


def session_settings(url: str) -> dict[str, str]:
    """The settings of our sessions; what the URL says goes before."""
    given = urllib.parse.parse_qs(split(url)[1].query)
    return {name: value for name, value in SESSION.items() if name not in given}


async def connect(url: str, host: str | None, port: int | None) -> Any:
    """A connection to one server, if it takes writes. Raises one of CONNECTION_ERRORS."""
    return await asyncpg.connect(
        url, host=host, port=port, target_session_attrs="read-write", timeout=CONNECT_TIMEOUT,
        server_settings=session_settings(url),
    )  # fmt: skip


@contextmanager
def noticing_its_end(connection: Any) -> Iterator[None]:
    """For what is done on a connection that may be dropped meanwhile: whatever comes of that is one of CONNECTION_ERRORS.

    asyncpg looks for the connection's protocol between two steps of a statement, and then finds None.
    """
    try:
        yield
    except AttributeError as exc:
        if not connection.is_closed():
            raise
        raise asyncpg.InterfaceError("the connection was dropped") from exc


def certainly_undone(error: Exception) -> bool:
    """Whether the server said that it rolled back; when it ends the session instead, the commit may be done."""
    return isinstance(error, asyncpg.PostgresError) and (error.severity_en or error.severity) == "ERROR"


class Candidate(NamedTuple):
    """A connection that is not safe to use until `safe` is done: a commit of its own, that waits for the standbys."""

    home: Home
    connection: Any
    safe: asyncio.Task[Any]

    @property
    def is_lost(self) -> bool:
        return self.connection.is_closed() or (self.safe.done() and (self.safe.cancelled() or self.safe.exception() is not None))


class Connections:
    """Connections that are made when they are needed, used by one at a time, and kept. `timeout`: seconds for whatever is
    asked.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        self.timeout = timeout
        self._url = url
        self._hosts = hosts(url)
        self._home: Home | None = None  # the server of all our connections
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._idle: list[Any] = []
        self._candidates: list[Candidate] = []  # that nobody waits for at the moment
        self._all: dict[Any, Home] = {}
        self._warnings: dict[Any, str] = {}  # connection -> what the server warned of since it was taken
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    async def run(self, work: Callable[[Any], Awaitable[T]], *, changes: bool) -> T:
        """Does some work on a connection of its own.

        Raises `Unavailable` if nothing was done, or nothing that matters (`changes` is false); else `OutcomeUnknown` if it
        cannot be known; and whatever else of `ClusterError` the work raises.
        """
        await self._begin()
        try:
            connection = await self._take()
            return await self._run_on(connection, work, changes=changes)
        finally:
            self._slots.release()

    async def run_here(self, work: Callable[[Any], Awaitable[T]], *, changes: bool) -> T:
        """As `run`, in a task made by `start`, which nobody cancels: what is done often takes fewer turns of the loop so."""
        await self._begin()
        try:
            connection = await self._take()
            loop = asyncio.get_running_loop()
            late = loop.call_later(self.timeout, self._give_up, connection)
            try:
                return await self._guarded(connection, work, changes=changes)
            except (OutcomeUnknown, Unavailable):
                if loop.time() < late.when():
                    raise
                raise self._no_answer(changes) from None
            finally:
                late.cancel()
        finally:
            self._slots.release()

    async def _begin(self) -> None:
        """Waits until there may be one connection more in use."""
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(self.timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable("postgresql: all connections are waiting for it") from None

    def _give_up(self, connection: Any) -> None:
        """The time is over for what the connection is used for, which then fails."""
        self.drop(connection)
        while self._idle:  # they lead to the same server, and who used one would wait as long
            self.drop(self._idle.pop())

    async def fetch(self, statement: str, *arguments: object) -> list[Any]:
        """The rows of a statement that changes nothing. Raises `Unavailable`."""
        rows: list[Any] = await self.run(lambda connection: connection.fetch(statement, *arguments), changes=False)
        return rows

    async def execute(self, statement: str, *arguments: object) -> int:
        """Carries out one statement as a transaction, and returns how many rows it has changed. Raises as `run`."""
        status: str = await self.run(lambda connection: connection.execute(statement, *arguments), changes=True)
        return int(status.rpartition(" ")[2])

    async def open(self) -> Any:
        """A connection for somebody's own use, who gives it back with `drop`. Raises `Unavailable`."""
        reasons = []
        for home in sorted(self._hosts, key=lambda home: home != self._home):
            if self._stopped:
                break
            try:
                candidate = await self._candidate(home)
                await self._make_sure(candidate)
            except (Unavailable, *CONNECTION_ERRORS) as exc:
                host, port = home
                reasons.append(f"{host or 'default host'}:{port or ''} {str(exc) or type(exc).__name__}")
                continue
            self._settle(home)
            return candidate.connection
        raise Unavailable(f"postgresql: {'; '.join(reasons) or 'stopped'}")

    def drop(self, connection: Any) -> None:
        self._all.pop(connection, None)
        self._warnings.pop(connection, None)
        connection.terminate()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs something beside, which a stop waits for; who is not there when it fails need not ask for its failure."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def stop(self) -> None:
        """Ends all connections; what is under way fails, and is waited for."""
        self._stopped = True
        for connection in list(self._all):
            if connection in self._idle:
                del self._all[connection]
                try:
                    await connection.close(timeout=CONNECT_TIMEOUT)
                except CONNECTION_ERRORS:
                    connection.terminate()
            else:
                self.drop(connection)
        self._idle.clear()
        self._candidates.clear()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _take(self) -> Any:
        if self._stopped:
            raise Unavailable("postgresql: stopped")
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                self._warnings.pop(connection, None)
                return connection
            self.drop(connection)
        return await self.open()

    async def _run_on(self, connection: Any, work: Callable[[Any], Awaitable[T]], *, changes: bool) -> T:
        task = self.start(self._guarded(connection, work, changes=changes))
        try:
            await asyncio.wait({task}, timeout=self.timeout)
            if task.done():
                return task.result()
        finally:
            if not task.done():  # the time is over, or nobody waits any more
                self.drop(connection)
        self._give_up(connection)
        raise self._no_answer(changes)

    def _no_answer(self, changes: bool) -> ClusterError:
        return (OutcomeUnknown if changes else Unavailable)(f"postgresql: no answer in {self.timeout:g} s")

    async def _guarded(self, connection: Any, work: Callable[[Any], Awaitable[T]], *, changes: bool) -> T:
        unsure: type[ClusterError] = OutcomeUnknown if changes else Unavailable
        keep = False
        try:
            with noticing_its_end(connection):
                result = await work(connection)
            keep = True
        except ClusterError:
            keep = True
            raise
        except CONNECTION_ERRORS as exc:
            if certainly_undone(exc):
                unsure = Unavailable
            raise unsure(f"postgresql: {str(exc) or type(exc).__name__}") from exc
        finally:
            warning = self._warnings.pop(connection, None)
            if keep and warning is None and connection in self._all and not connection.is_closed():
                self._idle.append(connection)
            else:
                self.drop(connection)
        if changes and warning is not None:
            raise OutcomeUnknown(f"postgresql: {warning}")
        return result

    async def _candidate(self, home: Home) -> Candidate:
        """One that was left waiting, or a new one. Raises one of CONNECTION_ERRORS, `Unavailable`."""
        for candidate in [one for one in self._candidates if one.home == home]:
            self._candidates.remove(candidate)
            if not candidate.is_lost:
                return candidate
            self.drop(candidate.connection)
        connection = await connect(self._url, *home)
        if self._stopped:  # meanwhile
            connection.terminate()
            raise Unavailable("stopped")
        connection.add_log_listener(self._warned)
        self._all[connection] = home
        return Candidate(home, connection, self.start(connection.fetchrow(SAFE_FROM_HERE)))

    async def _make_sure(self, candidate: Candidate) -> None:
        """Raises `Unavailable` unless the connection's settings keep the promise and all that it can see is on the standbys."""
        connection, safe = candidate.connection, candidate.safe
        try:
            await asyncio.wait({safe}, timeout=self.timeout)
        except asyncio.CancelledError:
            self._candidates.append(candidate)
            raise
        if not safe.done():
            self._candidates.append(candidate)
            raise Unavailable(f"its standbys do not confirm within {self.timeout:g} s")
        try:
            with noticing_its_end(connection):
                level, standbys = safe.result()[:2]
            reason = self._unsafe(connection, level, standbys)
        except CONNECTION_ERRORS as exc:
            reason = str(exc) or type(exc).__name__
        if reason:
            self.drop(connection)
            raise Unavailable(reason)

    def _unsafe(self, connection: Any, level: str, standbys: str) -> str:
        """Why a connection that was asked cannot be used; "" if it can."""
        if self._stopped or connection.is_closed():  # meanwhile
            return "stopped"
        if level not in ("on", "remote_apply"):
            return f"synchronous_commit is {level}"
        if not standbys:
            return "synchronous_standby_names is empty"
        return self._warnings.get(connection, "")

    def _settle(self, home: Home) -> None:
        if self._home not in (None, home):
            for connection, other in list(self._all.items()):
                if other != home:
                    self.drop(connection)
            self._idle = [connection for connection in self._idle if connection in self._all]
            self._candidates = [candidate for candidate in self._candidates if candidate.home == home]
        self._home = home

    def _warned(self, connection: Any, message: Any) -> None:
        if (message.severity_en or message.severity) == "WARNING":
            self._warnings[connection] = str(message)
