"""rabbitpy-broker, whose loop's turns are measured: `python -m perf.turns` takes its options, and PERF_TURNS names the file in
which each long turn gets a line, `MILLISECONDS WHERE`.

A callback comes in each turn. What CPU time the loop's thread has had since the one before is the length of a turn: what other
processes took meanwhile is not in it. A loop that is measured never rests, so its CPU time as a whole says nothing. A second
thread looks where the loop is when a turn is long.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from rabbitpy_broker import daemon
from rabbitpy_broker.__main__ import main
from rabbitpy_broker.broker import Broker

LONG_S: Final = float(os.environ.get("PERF_TURNS_S", "0.010"))
LOOK_S: Final = 0.002
FRAMES: Final = 5  # that are shown


class Turns:
    """Of one loop, whose thread this is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        self._file = path.open("w", buffering=1)
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._began = time.thread_time()
        self._where = ""
        threading.Thread(target=self._watch, daemon=True).start()
        self._turn()

    def _turn(self) -> None:
        took = time.thread_time() - self._began
        if took >= LONG_S:
            self._file.write(f"{1000 * took:.1f} {self._where}\n")
        self._where = ""
        self._began = time.thread_time()
        self._loop.call_soon(self._turn)

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            if time.clock_gettime(self._clock) - self._began >= LONG_S / 2 and not self._where:
                self._where = self._place()

    def _place(self) -> str:
        """The innermost functions, the innermost last."""
        found: list[str] = []
        frame: Any = sys._current_frames().get(self._thread)
        while frame is not None and len(found) < FRAMES:
            found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        return " > ".join(reversed(found))


class MeasuredBroker(Broker):
    """As any other."""

    async def start(self) -> None:
        await super().start()
        Turns(asyncio.get_running_loop(), Path(os.environ["PERF_TURNS"]))


def measured(config: Any, log: Any) -> Broker:
    return MeasuredBroker(config, log, loop_is_ours=True)


if __name__ == "__main__":
    daemon.run = partial(daemon.run, make_broker=measured)
    main()
