"""What a node does for as long as it runs: a fault of ours in it is logged, and it begins again.

Left alone it would be over without a word: a vhost that nobody opens while its owner renews its lease, a view of the others that
stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

AGAIN_S = 1.0


async def lasting(work: Callable[[], Awaitable[None]], log: Any, **what: str) -> None:
    """Until the work returns, or is cancelled; `what` says in the log what it is."""
    while True:
        try:
            await work()
        except Exception:  # a fault of ours, which may be over the next time
            log.exception("internal error", **what)
            await asyncio.sleep(AGAIN_S)
        else:
            return
