"""The daemon: one broker on one uvloop loop, until SIGTERM or SIGINT, and then for `stop_grace` at most.

SIGHUP has certificates read again and the log file opened again, SIGUSR1 the latter alone. systemd is told when the broker is
ready, that its loop goes round, and when it stops.

What must stay true: nothing that the disk, a client or we ourselves do keeps the process longer than that and OVERTIME_S, and
its exit code is 0; what was promised is on disk all the time, and is not in danger then.

The cyclic garbage collector is off (`Broker._collect_garbage` says why); reference counts free what the hot path makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import uvloop

from rabbitpy_broker import process_memory, systemd
from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import Config
from rabbitpy_broker.errors import ConfigError
from rabbitpy_broker.log import LogFile, RecentLines, configure_log

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
AGAIN_SIGNALS: Final = (signal.SIGHUP, signal.SIGUSR1)
OVERTIME_S: Final = 1.0  # after stop_grace: for what cannot be told to end, such as a call into the disk by the loop
LAST_WORDS_S: Final = 0.1


def run(config: Config, make_broker: Callable[[Config, Any], Broker] | None = None) -> NoReturn:
    """Runs until it is told to stop, then ends the process with exit code 0. Raises ConfigError or StartError.

    `make_broker` makes another broker than usual of the configuration and the log.
    """
    # Blocked in all threads, before there is a second one, and waited for by one of them: whatever comes later, until the very
    # end of the process, changes neither what stopping does nor the exit code.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, *AGAIN_SIGNALS))
    log_file = LogFile(config.log.file) if config.log.file else None
    recent = RecentLines()
    log = configure_log(config.log, log_file, recent)
    _raise_open_files_limit()
    process_memory.keep_free()
    gc.collect()
    gc.freeze()
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(make_broker(config, log) if make_broker else Broker(config, log, loop_is_ours=True), log_file, recent))
        _end()


def _end() -> NoReturn:
    """Everything is closed and written. To take down what is in memory, object by object, would cost seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _serve(broker: Broker, log_file: LogFile | None, recent: RecentLines) -> None:
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[float] = loop.create_future()
    config, log = broker.config, broker.log
    broker.recent_lines = recent

    def wait_for_signal() -> None:
        while (number := signal.sigwait((*STOP_SIGNALS, *AGAIN_SIGNALS))) not in STOP_SIGNALS:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_again, number, broker, log_file, log)
        with contextlib.suppress(RuntimeError):  # it has ended by itself, with a loop that is closed
            loop.call_soon_threadsafe(asked.set_result, time.monotonic())
        time.sleep(config.node.stop_grace / 1000 + OVERTIME_S)
        _end_now(log)

    threading.Thread(target=wait_for_signal, name="signals", daemon=True).start()
    await broker.start()
    systemd.notify(systemd.READY)
    seconds = systemd.watchdog_s()
    living = loop.create_task(_tell_alive(seconds)) if seconds else None
    asked_at = await asked
    systemd.notify(systemd.STOPPING)
    await broker.stop(asked_at)
    if living is not None:
        living.cancel()


def _again(number: int, broker: Broker, log_file: LogFile | None, log: Any) -> None:
    """Does again what was done at the start; what cannot be done leaves all as it was."""
    try:
        if log_file is not None:
            log_file.reopen()
        if number == signal.SIGHUP and broker.ready:
            broker.reload_tls()
    except ConfigError as error:
        log.error("not reloaded", reason=str(error))


async def _tell_alive(seconds: float) -> None:
    """As long as the loop goes round."""
    while True:
        systemd.notify(systemd.ALIVE)
        await asyncio.sleep(seconds)


def _end_now(log: Any) -> None:
    """Whatever the loop is doing: a start that takes long, or a stop that waits for a disk that does not answer."""
    # Nobody may read what is written to standard error, and then nobody comes back from it.
    words = threading.Thread(target=lambda: log.error("stop cut short"), daemon=True)
    words.start()
    words.join(LAST_WORDS_S)
    os._exit(0)


def _raise_open_files_limit() -> None:
    """As many sockets as the system allows us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
