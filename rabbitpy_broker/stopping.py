"""Stopping the stores, all side by side, within the one grace that a stop has.

    stop_work   no scatter, no compaction begins any more, from the first moment of a stop on
    push        the last epoch is written and synced; nobody waits for a thread that still scatters
    stop        what the next start has to know is written, by a thread

A store that is not done when the grace is over is left as it is: the journal has all that was promised, and the next start
finds it as after a crash. Then a thread may still be in the middle of a write, and nobody knows for how long; so its files
stay open, and the data directory stays locked until the process is gone.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from rabbitpy_broker.net.threads import DiskJobs
from rabbitpy_broker.vhost import VHost

CLOSE_GRACE_S: Final = 3.0  # for clients to answer connection.close
ABORT_S: Final = 0.5  # for the loop to see that their sockets are closed


class Grace:
    """How long a stop may take, from the moment when it was asked for (of `time.monotonic`)."""

    def __init__(self, seconds: float, asked_at: float | None = None) -> None:
        self.ends_at = (time.monotonic() if asked_at is None else asked_at) + seconds

    def left_s(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    def for_clients_s(self) -> float:
        """What clients may have of it: no more than half."""
        return min(CLOSE_GRACE_S, self.left_s() / 2)


class StoreStop:
    """One vhost's store on its way to rest. `error` says why it did not get there."""

    def __init__(self, vhost: VHost, threads: DiskJobs) -> None:
        self.vhost = vhost
        self.is_done = False
        self.error = ""
        self._threads = threads
        self._is_writing = False
        self._failures = vhost.store.journal.epoch_failures
        vhost.store.stop_work()

    def step(self) -> None:
        """Does what can be done now; to be called again when a thread has come back."""
        if self.is_done or self._is_writing:
            return
        try:
            self._step()
        except Exception as fault:  # noqa: BLE001 -- a fault of ours; the others are stopped all the same
            self._end(f"{type(fault).__name__}: {fault}")

    def _step(self) -> None:
        store = self.vhost.store
        if store.journal.epoch_failures > self._failures:
            if not store.is_busy():
                store.abandon()
                self._end(store.trouble.epoch)
        elif store.push():
            self._is_writing = True
            write = self.vhost.stop()
            self._threads.run(write.run, self._written)

    def _written(self, error: Exception | None) -> None:
        self._end("" if error is None else str(error))

    def _end(self, error: str) -> None:
        self.is_done = True
        self.error = error


async def stop_stores(vhosts: list[VHost], threads: DiskJobs, grace: Grace, log: Any) -> list[VHost]:
    """Brings everything to where it rests, and writes the terms with which the next start is a clean one.

    Returns those that did not get there within the grace.
    """
    stops = [StoreStop(vhost, threads) for vhost in vhosts]
    while True:
        threads.came_back.clear()
        for one in stops:
            one.step()
        left = [one for one in stops if not one.is_done]
        if not left or not await _comes_back(threads, grace):
            break
    for one in stops:
        if not one.is_done:
            log.error("store not stopped cleanly", vhost=one.vhost.name, error="stop_grace is over")
        elif one.error:
            log.error("store not stopped cleanly", vhost=one.vhost.name, error=one.error)
    return [one.vhost for one in stops if not one.is_done]


async def _comes_back(threads: DiskJobs, grace: Grace) -> bool:
    """Waits for a thread; False when the grace is over."""
    try:
        await asyncio.wait_for(threads.came_back.wait(), grace.left_s())
    except TimeoutError:
        return False
    return True
