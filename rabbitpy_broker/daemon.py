"""The daemon: one broker on one uvloop loop, until SIGTERM or SIGINT.

The cyclic garbage collector is off (`Broker._collect_garbage` says why); reference counts free what the hot path makes.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import threading
from typing import Final

import structlog
import uvloop

from rabbitpy_broker import process_memory
from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import Config
from rabbitpy_broker.log import configure_log

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(config: Config) -> int:
    """Runs until it is told to stop; returns the exit code. Raises ConfigError or StartError."""
    # Blocked in all threads, before there is a second one, and waited for by one of them: whatever comes later, until the very
    # end of the process, changes neither what stopping does nor the exit code.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    configure_log(config.log)
    _raise_open_files_limit()
    process_memory.keep_free()
    gc.collect()
    gc.freeze()
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))
    return 0


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_signal() -> None:
        signal.sigwait(STOP_SIGNALS)
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait_for_signal, name="signals", daemon=True).start()
    broker = Broker(config, structlog.get_logger(), loop_is_ours=True)
    await broker.start()
    await stop.wait()
    await broker.stop()


def _raise_open_files_limit() -> None:
    """As many sockets as the system allows us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
