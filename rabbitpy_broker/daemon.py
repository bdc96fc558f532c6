"""The daemon: one broker on one uvloop loop, until SIGTERM or SIGINT.

The cyclic garbage collector is off (`Broker._collect_garbage` says why); reference counts free what the hot path makes.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal

import structlog
import uvloop

from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import Config
from rabbitpy_broker.log import configure_log


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
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(config, structlog.get_logger())
    await broker.start()
    await stop.wait()
    await broker.stop()


def _raise_open_files_limit() -> None:
    """As many sockets as the system allows us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
