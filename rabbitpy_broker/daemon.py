"""The daemon: one broker on one uvloop loop, until SIGTERM or SIGINT, and then for `stop_grace` at most.

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
from typing import Any, Final, NoReturn

import structlog
import uvloop

from rabbitpy_broker import process_memory
from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import Config
from rabbitpy_broker.log import RecentLines, configure_log

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
OVERTIME_S: Final = 1.0  # after stop_grace: for what cannot be told to end, such as a call into the disk by the loop
LAST_WORDS_S: Final = 0.1


def run(config: Config) -> NoReturn:
    """Runs until it is told to stop, then ends the process with exit code 0. Raises ConfigError or StartError."""
    # Blocked in all threads, before there is a second one, and waited for by one of them: whatever comes later, until the very
    # end of the process, changes neither what stopping does nor the exit code.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    recent = RecentLines()
    configure_log(config.log, recent=recent)
    _raise_open_files_limit()
    process_memory.keep_free()
    gc.collect()
    gc.freeze()
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, recent))
        _end()


def _end() -> NoReturn:
    """Everything is closed and written. To take down what is in memory, object by object, would cost seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _serve(config: Config, recent: RecentLines) -> None:
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[float] = loop.create_future()
    log = structlog.get_logger()

    def wait_for_signal() -> None:
        signal.sigwait(STOP_SIGNALS)
        with contextlib.suppress(RuntimeError):  # it has ended by itself, with a loop that is closed
            loop.call_soon_threadsafe(asked.set_result, time.monotonic())
        time.sleep(config.node.stop_grace / 1000 + OVERTIME_S)
        _end_now(log)

    threading.Thread(target=wait_for_signal, name="signals", daemon=True).start()
    broker = Broker(config, log, loop_is_ours=True)
    broker.recent_lines = recent
    await broker.start()
    await broker.stop(await asked)


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
