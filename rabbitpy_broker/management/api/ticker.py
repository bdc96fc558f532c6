"""What the management API does each second: look, remember, tell; and once a minute the history is written."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rabbitpy_broker.management.api.events import Hub
from rabbitpy_broker.management.api.history import History
from rabbitpy_broker.management.api.state import Api

TICK_S: Final = 1.0
REST_S: Final = 0.05  # between two ticks, whatever they take
SAVE_S: Final = 60.0
LAST_SAVE_S: Final = 0.5  # a stop has better things to wait for


class Ticker:
    """Runs until it is cancelled; then it writes the history."""

    def __init__(self, api: Api, hub: Hub, history: History, interval_s: float, log: Any) -> None:
        self._api = api
        self._hub = hub
        self._history = history
        self._period_s = min(TICK_S, interval_s)
        self._log = log
        self._save_at = time.monotonic() + SAVE_S

    async def run(self) -> None:
        try:
            while True:
                began = time.monotonic()
                for part in (self._look, self._hub.tick, self._save):
                    await self._do(part)
                await asyncio.sleep(max(self._period_s - (time.monotonic() - began), REST_S))
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SAVE_S):
                    await asyncio.to_thread(self._history.save, self._history.pack())

    async def _do(self, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except Exception:  # noqa: BLE001 -- a fault of ours in one tick; the next may go well
            self._log.exception("internal error", part=part.__qualname__)

    async def _look(self) -> None:
        self._api.lists.tidy()
        await self._api.lists.let_go()
        sampler = self._api.sampler
        if not await sampler.tick():
            return
        whole = sampler.whole()
        if whole is not None:
            found = {name: sampler.of(name) for name in list(self._api.vhosts)}
            vhosts = {name: series.values for name, series in found.items() if series is not None}
            self._history.add(whole.values, vhosts)

    async def _save(self) -> None:
        if time.monotonic() >= self._save_at:
            self._save_at = time.monotonic() + SAVE_S
            await asyncio.to_thread(self._history.save, self._history.pack())
