"""The daemon: one broker on one uvloop loop, until SIGTERM or SIGINT.

The cyclic garbage collector is off (`Broker._collect_garbage` says why); reference counts free what the hot path makes.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from types import FrameType
from typing import Final

import structlog
import uvloop

from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import Config
from rabbitpy_broker.log import configure_log

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(config: Config) -> int:
    """Runs until it is told to stop; returns the exit code. Raises ConfigError or StartError."""
    configure_log(config.log)
    _raise_open_files_limit()
    gc.collect()
    gc.freeze()
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))
    return 0


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop.set)

    # Not loop.add_signal_handler: a loop that closes leaves the signals to the system, which would end a process that
    # has stopped well, and is asked once more, with an exit code that says otherwise.
    for number in STOP_SIGNALS:
        signal.signal(number, ask_to_stop)
    broker = Broker(config, structlog.get_logger())
    await broker.start()
    await stop.wait()
    await broker.stop()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _raise_open_files_limit() -> None:
    """As many sockets as the system allows us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
