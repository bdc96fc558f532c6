"""The daemon's threads for disk work: a few threads that wait for jobs, and the way back into the loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable

from rabbitpy_broker.storage.sync import Threads

COUNT = 8  # an epoch, a scatter and a compaction for each of some vhosts; they mostly wait for the disk

_Done = Callable[[Exception | None], None]


class DiskJobs(Threads):
    """The way back into the loop. `fault` gets an exception that a `done` raised; `came_back` is set whenever a job is done."""

    def __init__(self, fault: Callable[[Exception], None]) -> None:
        self._fault = fault
        self._under_way = 0  # jobs that are not back
        self._held: list[tuple[Callable[[], None], _Done]] | None = None
        self.came_back = asyncio.Event()

    def run(self, job: Callable[[], None], done: _Done) -> None:
        if self._held is not None:
            self._held.append((job, done))
            return
        self._under_way += 1
        self.begin(job, done)

    def begin(self, job: Callable[[], None], done: _Done) -> None:
        """Has the job done; `back` is called afterwards."""
        raise NotImplementedError

    def back(self, done: _Done, error: Exception | None) -> None:
        """Tells of a job that is done; to be called in the loop."""
        self._under_way -= 1
        self.came_back.set()
        try:
            done(error)
        except Exception as fault:  # noqa: BLE001 -- a fault of ours; the other jobs go on
            self._fault(fault)

    async def hold(self) -> None:
        """Returns when no job is under way; none begins before `release`, which is called whether this returns or not."""
        self._held = []
        while self._under_way:
            self.came_back.clear()
            await self.came_back.wait()

    def release(self) -> None:
        """The jobs that have come since `hold` begin."""
        held, self._held = self._held, None
        for job, done in held or []:
            self.run(job, done)

    def stop(self, within_s: float) -> bool:
        """Ends after the jobs that there are. False when some are not back within that time."""
        raise NotImplementedError


class DiskThreads(DiskJobs):
    """The jobs of one loop, each done by one of a few threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fault: Callable[[Exception], None], count: int = COUNT) -> None:
        super().__init__(fault)
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], _Done] | None] = queue.SimpleQueue()
        self._is_over = False
        self._threads = [threading.Thread(target=self._work, name=f"disk-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def begin(self, job: Callable[[], None], done: _Done) -> None:
        self._jobs.put((job, done))

    def _work(self) -> None:
        while True:
            item = self._jobs.get()
            if item is None:
                return
            job, done = item
            error: Exception | None = None
            try:
                job()
            except Exception as raised:  # noqa: BLE001 -- handed to `done`, which knows what it means
                error = raised
            if self._is_over:  # the loop may be closed too
                return
            self._loop.call_soon_threadsafe(self.back, done, error)

    def stop(self, within_s: float) -> bool:
        for _ in self._threads:
            self._jobs.put(None)
        end = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._is_over = True
        return not any(thread.is_alive() for thread in self._threads)
