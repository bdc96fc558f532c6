"""What browses of queues share: names of positions, who may browse when, and the threads that read for them.

A position is told as `QID.LANE.SEQ`: a name that the queue has as long as the broker runs, the lane (a priority), the seq_id.
After a restart a queue's seq_ids may begin again, and a queue that was deleted and declared again is another one: positions of
before are refused then (410), and can never mean another message.

What must stay true: at most BROWSES_AT_ONCE browses read at a time, and together no more than `bytes_per_s`; nothing is done
in the loop for longer than a slice.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from rabbitpy_broker.management.api.errors import ApiError, bad_request
from rabbitpy_broker.queues.browse import Browsing, Peeks
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.stream_browse import id_of
from rabbitpy_broker.slices import SLICE_S

BROWSES_AT_ONCE: Final = 2
WAITING_MAX: Final = 64
FORGET_S: Final = 30.0  # what was read for one page is kept so long for the next
Position = tuple[int, int]  # lane and seq_id


class Browser:
    """Of one broker."""

    def __init__(self, bytes_per_s: int) -> None:
        self.peeks = Peeks()
        self.tails = 0  # that are open
        self._bytes_per_s = bytes_per_s
        self._salt = os.urandom(16)
        self._free = asyncio.Semaphore(BROWSES_AT_ONCE)
        self._waiting = 0
        self._paid_until = 0.0
        self._forgetting: asyncio.TimerHandle | None = None

    # -- positions ------------------------------------------------------------------------------------------------

    def name_of(self, queue: Queue) -> str:
        """The name that stands for the queue in positions."""
        return self.name_of_id(id_of(queue))

    def name_of_id(self, queue_id: int) -> str:
        return hashlib.blake2b(queue_id.to_bytes(8, "big"), digest_size=6, key=self._salt).hexdigest()

    def position(self, name: str, text: str) -> Position:
        """Lane and seq_id. Raises ApiError 400 for what is no position, and 410 for one of another queue or another life."""
        positions = self.positions(name, text)
        if len(positions) != 1:
            raise bad_request("not a position: QID.LANE.SEQ")
        return next(iter(positions.items()))

    def positions(self, name: str, text: str) -> dict[int, int]:
        """The seq_ids of none, one or several lanes: QID.LANE.SEQ.LANE.SEQ... Raises ApiError 400 and 410."""
        first, *numbers = text.split(".")
        if len(numbers) % 2 or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in numbers):
            raise bad_request("not a position: QID.LANE.SEQ")
        if first != name:
            raise ApiError(410, "gone", "the position is one of another queue, or of before a restart")
        return {int(lane): int(seq_id) for lane, seq_id in zip(numbers[::2], numbers[1::2], strict=True)}

    # -- reading --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until one more may browse. Raises ApiError 503 when many wait already."""
        if self._waiting >= WAITING_MAX:
            raise ApiError(503, "service_unavailable", "too many messages are browsed", {"Retry-After": "1"})
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()
            if self._forgetting is not None:
                self._forgetting.cancel()
            self._forgetting = asyncio.get_running_loop().call_later(FORGET_S, self.peeks.forget)

    async def run(self, browse: Browsing) -> None:
        """Takes the steps of a browse in the loop, and has its jobs done in a thread."""
        steps = browse.steps()
        ends_at = time.perf_counter() + SLICE_S
        for job in steps:
            await asyncio.to_thread(job.run)
            await self._pay(int(job.bytes_read))
            ends_at = time.perf_counter() + SLICE_S
        if time.perf_counter() > ends_at:
            await asyncio.sleep(0)

    async def _pay(self, size: int) -> None:
        """Waits as long as reading so much may take."""
        now = time.monotonic()
        self._paid_until = max(self._paid_until, now) + size / self._bytes_per_s
        if self._paid_until - now > SLICE_S:
            await asyncio.sleep(self._paid_until - now)
