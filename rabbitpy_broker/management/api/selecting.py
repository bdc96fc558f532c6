"""Going through the messages of a queue, page by page: for a search, and for what is done with chosen messages.

Chosen are single messages by their positions, or all that fulfil conditions up to a position, which has to be given: what is
published after somebody has looked is never touched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

from rabbitpy_broker.management.api.browser import Position
from rabbitpy_broker.management.api.errors import bad_request, key_missing
from rabbitpy_broker.management.api.matching import Where
from rabbitpy_broker.management.api.request import Row
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.queues.browse import Seen
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.stream_browse import browsing
from rabbitpy_broker.slices import SLICE_S

PAGE: Final = 200
PAGE_BYTES: Final = 8_388_608
CHOSEN_MAX: Final = 1_000


class Slice:
    """The part of the loop's time that one task may have before the others' turn."""

    def __init__(self) -> None:
        self._ends_at = time.perf_counter() + SLICE_S

    async def over(self) -> None:
        """Lets others have their turn if this one's is over."""
        if time.perf_counter() > self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = time.perf_counter() + SLICE_S


class Walk:
    """Through a queue from `start` on, or before it against the queue's order. `at` is how far it has come."""

    def __init__(
        self, api: Api, queue: Queue, where: Where | None, *, start: Position | None, forward: bool, cut: int, deadline: float
    ) -> None:
        self.scanned = 0
        self.at = start
        self.end = ""  # why it ended: end, max_scan, timeout
        self._api = api
        self._queue = queue
        self._where = where
        self._forward = forward
        self._cut = cut
        self._deadline = deadline

    async def found(
        self, *, ready: bool, unacked: bool, max_scan: int, up_to: dict[int, int] | None
    ) -> AsyncGenerator[Seen | None, None]:
        """What fulfils the conditions; None after each page, and whenever much was looked at. Raises ApiError."""
        pause = Slice()
        while True:
            browse = browsing(
                self._queue, self._api.browser.peeks, self.at, self._forward, min(PAGE, max_scan - self.scanned),
                ready=ready, unacked=unacked, cut=self._cut, most_bytes=PAGE_BYTES, positions=False,
            )  # fmt: skip
            async with self._api.browser.turn():
                await self._api.browser.run(browse)
            now_ms = int(self._queue.host.now_ms())
            for seen in browse.found:
                self.scanned += 1
                self.at = (int(seen.lane), int(seen.seq_id))
                if up_to is None or seen.seq_id <= up_to.get(int(seen.lane), -1):
                    if await self._holds(seen, now_ms):
                        yield seen
                await pause.over()
                if time.monotonic() > self._deadline:
                    self.end = "timeout"
                    return
            if not browse.more or self._queue.deleted or self._is_past(up_to):
                self.end = "end"
                return
            if self.scanned >= max_scan:
                self.end = "max_scan"
                return
            yield None

    def _is_past(self, up_to: dict[int, int] | None) -> bool:
        """Whether nothing up to that position can follow: it is beyond it in the last lane."""
        if up_to is None or self.at is None or not self._forward:
            return False
        lane, seq_id = self.at
        return lane <= min(up_to, default=lane) and seq_id > up_to.get(lane, -1)

    async def _holds(self, seen: Seen, now_ms: int) -> bool:
        where = self._where
        if where is None:
            return True
        if not where.holds(seen, now_ms):
            return False
        if where.expression is None:
            return True
        return seen.content is not None and await where.expression.matches(seen.content.body)


class Chosen:
    """What a body chooses: `seqs`, or `filter` with `up_to_seq` and, to go on, `after`. Raises ApiError 400 and 410."""

    def __init__(self, api: Api, queue: Queue, body: Row) -> None:
        name = api.browser.name_of(queue)
        self.positions: list[Position] | None = None
        self.where: Where | None = None
        self.up_to: dict[int, int] = {}
        self.after: Position | None = None
        if "seqs" in body:
            seqs = body["seqs"]
            if not isinstance(seqs, list) or len(seqs) > CHOSEN_MAX or not all(isinstance(one, str) for one in seqs):
                raise bad_request(f"seqs is a list of at most {CHOSEN_MAX} cursors")
            if "filter" in body:
                raise bad_request("seqs or filter, not both")
            self.positions = sorted({api.browser.position(name, one) for one in seqs}, key=lambda one: (-one[0], one[1]))
            return
        if "filter" not in body:
            raise bad_request("seqs or filter is missing")
        self.where = Where(body["filter"])
        if not isinstance(body.get("up_to_seq"), str):
            raise key_missing("up_to_seq")
        self.up_to = api.browser.positions(name, body["up_to_seq"])
        if isinstance(body.get("after"), str):
            self.after = api.browser.position(name, body["after"])

    async def close(self) -> None:
        if self.where is not None and self.where.expression is not None:
            await self.where.expression.close()


async def single(api: Api, queue: Queue, position: Position, cut: int) -> Seen | None:
    """The message at a position; None when it has gone."""
    lane, seq_id = position
    browse = browsing(queue, api.browser.peeks, (lane, seq_id - 1), True, 1, cut=cut, positions=False)
    async with api.browser.turn():
        await api.browser.run(browse)
    found = browse.found[0] if browse.found else None
    return found if found is not None and (int(found.lane), int(found.seq_id)) == position else None


def milliseconds(value: Any, default: int, most: int) -> int:
    """A time that somebody gives. Raises ApiError 400."""
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise bad_request(f"timeout_ms is from 1 to {most}")
    return value
