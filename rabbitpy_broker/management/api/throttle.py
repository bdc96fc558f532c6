"""Wrong passwords are answered slowly: whoever tries one after the other at a user, from one address, gets few tries.

After FAILURES_FREE wrong ones within WINDOW_S, each further try of that address at that user waits for those before it and for
DELAY_S, right ones too, so that the time tells nothing. What must stay true: no more than KNOWN_MAX pairs are remembered, and
no more than WAITING_MAX tries wait for one of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from typing import Final

from rabbitpy_broker.management.api.errors import ApiError

FAILURES_FREE: Final = 10
WINDOW_S: Final = 60.0
DELAY_S: Final = 0.05
WAITING_MAX: Final = 20
KNOWN_MAX: Final = 10_000
NAME_MAX: Final = 255  # letters that a user's name may have


class _Pair:
    """An address and a user: when the latest wrong passwords came, and who waits."""

    def __init__(self) -> None:
        self.failures: deque[float] = deque(maxlen=FAILURES_FREE)
        self.turn = asyncio.Lock()
        self.waiting = 0

    def is_suspect(self) -> bool:
        return len(self.failures) == FAILURES_FREE and time.monotonic() - self.failures[0] < WINDOW_S


class Throttle:
    """Of one broker's HTTP log-ins."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str], _Pair] = OrderedDict()

    async def wait(self, address: str, user: str) -> None:
        """Returns when a password may be tried. Raises ApiError 429 when many wait already."""
        pair = self._pairs.get((address, user[:NAME_MAX]))
        if pair is None or not pair.is_suspect():
            return
        if pair.waiting >= WAITING_MAX:
            raise ApiError(429, "too_many_attempts", "too many log-ins are tried at once", {"Retry-After": "1"})
        pair.waiting += 1
        try:
            async with pair.turn:
                await asyncio.sleep(DELAY_S)
        finally:
            pair.waiting -= 1

    def failed(self, address: str, user: str) -> None:
        """A password was wrong."""
        key = (address, user[:NAME_MAX])
        pair = self._pairs.setdefault(key, _Pair())
        self._pairs.move_to_end(key)
        pair.failures.append(time.monotonic())
        if len(self._pairs) > KNOWN_MAX:
            self._pairs.popitem(last=False)
