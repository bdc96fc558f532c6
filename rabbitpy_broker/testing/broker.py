"""The broker as a test suite has it: `Broker` for plain code, `AsyncBroker` for coroutines.

`with Broker() as broker` starts a thread with a loop of its own; `async with Broker() as broker` starts in the loop that runs,
and gives an `AsyncBroker`. Either is a view of the same thing: `Broker.aio` is the other one, for a coroutine whose loop is not
the broker's. Calls that only do something (the clock, trouble) are plain functions in both, and over when they return; what has
to wait (assertions, kill, restart) is a coroutine in `AsyncBroker`.

What must stay true: everything that touches the broker runs in its loop, whoever asks; when the block is left there is no
thread, no socket and no file of ours any more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import quote

import structlog
import uvloop

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.management.admin import Admin
from rabbitpy_broker.testing import queue_view
from rabbitpy_broker.testing.assertions import WITHIN_S, AsyncAssertions, Body
from rabbitpy_broker.testing.clock import advance
from rabbitpy_broker.testing.history import DeadLettered, Published, Settled
from rabbitpy_broker.testing.queue_view import QueueView
from rabbitpy_broker.testing.trouble import Troubles
from rabbitpy_broker.testing.watched_broker import Ground, WatchedBroker

T = TypeVar("T")
START_TIMEOUT_S: Final = 60.0
DEFAULT_VHOST: Final = "/"


class NotRunning(BrokerError):
    """The broker was not started, or is stopped."""


class Engine:
    """The loop that a broker runs in, and how to get there. `broker` is None while there is none."""

    def __init__(self, ground: Ground, loop_kind: str) -> None:
        self.ground = ground
        self.broker: WatchedBroker | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._loop_kind = loop_kind
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Event | None = None

    def running(self) -> WatchedBroker:
        """Raises NotRunning."""
        if self.broker is None:
            raise NotRunning("the broker is not running: use it inside `with Broker() as broker`")
        return self.broker

    # -- in a thread of its own, or in the loop that runs ----------------------------------------------------------------

    def start_thread(self) -> None:
        """Returns when the broker takes clients. Raises ConfigError or StartError."""
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="amqp broker", daemon=True)
        self._thread.start()
        try:
            started.result(START_TIMEOUT_S)
        except BaseException:
            self._join()
            raise

    def _run(self, started: concurrent.futures.Future[None]) -> None:
        factory = uvloop.new_event_loop if self._loop_kind == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: concurrent.futures.Future[None]) -> None:
        self._ended = asyncio.Event()
        try:
            await self.start()
        except BaseException as error:  # noqa: BLE001 -- raised by whoever waits for the start
            self.loop = None
            started.set_exception(error)
            return
        started.set_result(None)
        await self._ended.wait()

    def stop_thread(self) -> None:
        """Returns when the thread has ended."""
        loop, ended = self.loop, self._ended
        if loop is None or ended is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self.stop(), loop).result()
        finally:
            loop.call_soon_threadsafe(ended.set)
            self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    async def start(self) -> None:
        """In the loop that runs. Raises ConfigError or StartError."""
        self.loop = asyncio.get_running_loop()
        broker = WatchedBroker(self.ground)
        await broker.start()
        self.broker = broker

    async def stop(self) -> None:
        """In the broker's loop."""
        broker, self.broker = self.broker, None
        if broker is not None:
            await broker.stop()
        self.ground.end()
        self.loop = None

    async def kill(self, *, power_cut: bool) -> None:
        broker, self.broker = self.running(), None
        await broker.kill(power_cut=power_cut)

    async def go_on(self) -> None:
        """Starts again after a kill."""
        if self.broker is None:
            await self.start()

    async def restart(self) -> None:
        broker, self.broker = self.running(), None
        await broker.stop()
        await self.start()

    # -- the way into the loop -------------------------------------------------------------------------------------------

    def call(self, function: Callable[[], T]) -> T:
        """Runs a function in the broker's loop, and gives what it returns."""
        loop = self._loop()
        if _running_loop() is loop:
            return function()
        called: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                called.set_result(function())
            except BaseException as error:  # noqa: BLE001 -- raised by whoever asked
                called.set_exception(error)

        loop.call_soon_threadsafe(run)
        return called.result()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the broker's loop, which must be another thread's."""
        loop = self.loop
        if loop is None or _running_loop() is loop:
            work.close()
            self.running()
            raise RuntimeError("the broker runs in this loop, which cannot wait for itself: await `broker.aio`'s method")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def wait_async(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a coroutine of any loop."""
        loop = self.loop
        if loop is None:
            work.close()
            loop = self._loop()
        if asyncio.get_running_loop() is loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def _loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.running()
        assert self.loop is not None, "running has raised"
        return self.loop


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class BrokerClock:
    """The broker's clock: it goes with the world's, and further when it is advanced."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def now(self) -> float:
        """Seconds since 1970."""
        return self._engine.ground.clock.now_ns() / 1e9

    def advance(self, seconds: float, *, silent_clients: bool = False) -> None:
        """Lets so much time pass for the broker, and does what is due on the way: messages and queues expire, delayed messages
        are published, deliveries time out, half-open connections are given up. With `silent_clients` all connections are, if
        they have a heartbeat: as if no client had written anything meanwhile.

        Raises ValueError for a negative time.
        """
        engine = self._engine

        def pass_time() -> None:
            broker = engine.running()
            silenced = [client for client in broker.watched() if silent_clients and not client.is_silent]
            for client in silenced:
                client.is_silent = True
            advance(engine.ground.clock, seconds, broker.waiting(), broker)
            for client in silenced:
                client.is_silent = False
            broker.after_time()

        engine.call(pass_time)


class RunningBroker:
    """What `Broker` and `AsyncBroker` have in common. `vhost` is the one that assertions and views mean unless they are told."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.vhost = DEFAULT_VHOST
        self.clock = BrokerClock(engine)
        self.trouble = Troubles(engine.ground, engine.running, engine.call)

    @property
    def host(self) -> str:
        """Where it listens."""
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """The port, which stays the same over restarts."""
        return self._engine.ground.port

    @property
    def url(self) -> str:
        """Of `vhost`."""
        return self.url_of(self.vhost)

    def url_of(self, vhost: str, user: str = "guest", password: str = "guest") -> str:
        """`amqp://guest:guest@127.0.0.1:40123/%2F`."""
        return f"amqp://{user}:{password}@{self.host}:{self.port}/{quote(vhost, safe='')}"

    @property
    def management_url(self) -> str:
        """Of the management API; "" without one."""
        listeners = self._engine.running().http_listeners
        return f"http://guest:guest@{listeners[0].address}" if listeners else ""

    def add_vhost(self, name: str, user: str = "guest") -> None:
        """Adds a vhost in which the user may do everything."""

        def add() -> None:
            admin = Admin(self._engine.running())
            admin.add_vhost(name)
            admin.set_permissions(user, ".*", ".*", ".*", vhost=name)

        self._engine.call(add)

    def add_user(self, name: str, password: str, *, vhost: str | None = None) -> None:
        """Adds a user who may do everything in `vhost` (by default in the one that is meant)."""
        where = self.vhost if vhost is None else vhost

        def add() -> None:
            admin = Admin(self._engine.running())
            admin.add_user(name, password)
            admin.set_permissions(name, ".*", ".*", ".*", vhost=where)

        self._engine.call(add)

    def queues(self, vhost: str | None = None) -> list[QueueView]:
        """The queues at this moment, by name."""
        where = self.vhost if vhost is None else vhost
        return self._engine.call(lambda: queue_view.view(self._engine.running(), where))

    def report(self, vhost: str | None = None) -> str:
        """What is left in the queues, and which consumers hold what, for people."""
        where = self.vhost if vhost is None else vhost
        return self._engine.call(lambda: queue_view.report(self._engine.running(), where))

    def published(self, vhost: str | None = None) -> list[Published]:
        """What clients have published, oldest first."""
        where = self.vhost if vhost is None else vhost
        return self._engine.call(lambda: [one for one in self._engine.ground.history.published if one.vhost == where])

    def forget_history(self) -> None:
        """Lets assertions see only what comes from now on."""

        def forget() -> None:
            self._engine.running().flush_history()
            self._engine.ground.history.clear()

        self._engine.call(forget)


class AsyncBroker(RunningBroker, AsyncAssertions):
    """The broker for coroutines, of its own loop or of any other."""

    def __init__(self, engine: Engine) -> None:
        RunningBroker.__init__(self, engine)
        AsyncAssertions.__init__(self, engine.running, engine.wait_async, lambda: self.vhost)

    async def delete_vhost(self, name: str) -> None:
        """Deletes a vhost with all that is in it, and closes its connections."""
        await self._engine.wait_async(Admin(self._engine.running()).delete_vhost(name))

    async def kill(self, *, power_cut: bool = True) -> None:
        """As kill -9 and a power cut: see `Broker.kill`."""
        await self._engine.wait_async(self._engine.kill(power_cut=power_cut))

    async def start_again(self) -> None:
        """Starts again after `kill`, on the same port, with what is left."""
        await self._engine.wait_async(self._engine.go_on())

    async def restart(self) -> None:
        """Stops and starts again, on the same port."""
        await self._engine.wait_async(self._engine.restart())


class Broker(RunningBroker):
    """A broker for tests. `directory` None: in memory, and no file is touched. Port 0: a free one.

    `settings` are those of rabbitpy.toml: `{"consumer_timeout": 60_000}`. With `management` the management API is there too.
    `loop` is the kind of a loop of its own. It logs to `logging`'s logger "rabbitpy_broker".
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        port: int = 0,
        settings: Mapping[str, object] | None = None,
        management: bool = False,
        loop: Literal["uvloop", "asyncio"] = "uvloop",
    ) -> None:
        given = dict(settings or {})
        if management:
            given.setdefault("management_listen", "127.0.0.1:0")
        ground = Ground(Path(directory) if directory is not None else None, port, given, _logger())
        super().__init__(Engine(ground, loop))
        self._aio: AsyncBroker | None = None

    @property
    def aio(self) -> AsyncBroker:
        """The same broker for coroutines."""
        if self._aio is None:
            self._aio = AsyncBroker(self._engine)
        self._aio.vhost = self.vhost
        return self._aio

    # -- start and stop --------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """In a thread of its own. Raises ConfigError or StartError."""
        self._engine.start_thread()
        return self

    def stop(self) -> None:
        """Returns when nothing is left of it; a second call does nothing."""
        self._engine.stop_thread()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> AsyncBroker:
        await self._engine.start()
        return self.aio

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.stop()

    def kill(self, *, power_cut: bool = True) -> None:
        """As kill -9 and a power cut: connections end without a word, and what was not synced is gone, in memory and in a
        directory. Without the power cut all stays that was written.
        """
        self._engine.wait(self._engine.kill(power_cut=power_cut))

    def start_again(self) -> None:
        """Starts again after `kill`, on the same port, with what is left."""
        self._engine.wait(self._engine.go_on())

    def restart(self) -> None:
        """Stops and starts again, on the same port."""
        self._engine.wait(self._engine.restart())

    def delete_vhost(self, name: str) -> None:
        """Deletes a vhost with all that is in it, and closes its connections."""
        self._engine.wait(Admin(self._engine.running()).delete_vhost(name))

    # -- assertions ------------------------------------------------------------------------------------------------------

    def assert_published(
        self,
        exchange: str,
        routing_key: str,
        *,
        body: Body = None,
        count: int = 1,
        vhost: str | None = None,
        within: float = WITHIN_S,
    ) -> list[Published]:
        """At least `count` messages were published so, within so many seconds; returns them. Raises AssertionError."""
        __tracebackhide__ = True
        asked = self.aio.assert_published(exchange, routing_key, body=body, count=count, vhost=vhost, within=within)
        return self._expect(asked)

    def assert_drained(self, queue: str, *, vhost: str | None = None, within: float = WITHIN_S) -> None:
        """The queue has no message, ready or unacked. Raises AssertionError."""
        __tracebackhide__ = True
        self._expect(self.aio.assert_drained(queue, vhost=vhost, within=within))

    def assert_acked(
        self, queue: str, *, body: Body = None, count: int = 1, vhost: str | None = None, within: float = WITHIN_S
    ) -> list[Settled]:
        """At least `count` messages of this queue were acked; returns them. Raises AssertionError."""
        __tracebackhide__ = True
        return self._expect(self.aio.assert_acked(queue, body=body, count=count, vhost=vhost, within=within))

    def assert_dead_lettered(
        self, queue: str, *, reason: str = "", count: int = 1, vhost: str | None = None, within: float = WITHIN_S
    ) -> list[DeadLettered]:
        """At least `count` messages have left this queue as dead letters; returns them. Raises AssertionError."""
        __tracebackhide__ = True
        asked = self.aio.assert_dead_lettered(queue, reason=reason, count=count, vhost=vhost, within=within)
        return self._expect(asked)

    def _expect(self, asked: Coroutine[Any, Any, T]) -> T:
        """Waits for an assertion. pytest shows the test's own line where it fails, and nothing of how it was asked."""
        __tracebackhide__ = True
        try:
            return self._engine.wait(asked)
        except AssertionError as error:
            raise error.with_traceback(None) from None


def _logger() -> Any:
    """A structlog logger that ends in the standard library's, from its level up."""
    return structlog.wrap_logger(
        logging.getLogger("rabbitpy_broker"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
    )


