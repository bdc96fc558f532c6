"""How a node becomes the owner of a replicated vhost: it claims the next term, appends a fence with it, and reads up to it.

What counts before the fence is the vhost. Whatever the former owner still appends is behind it, with a lower term, and counts
for nobody; so it may live, sleep, or wake in the middle of anything.

    claim a term (registry) --> append the fence (log) --> read up to it --> append behind it
          ^                          | outcome unknown
          +--------------------------+   a fence that may land later is harmless: a higher term stands before it then

What must stay true: a term is used by one try of one node; nothing is appended but fences until everything before the fence
was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.log import OutcomeUnknown, Refused, ReplicatedLog, Unavailable
from rabbitpy_broker.cluster.ownership import Deposed, Owner, OwnerRecord

Pause = Callable[[], Awaitable[None]]
RETRY_S = 0.2


async def short_pause() -> None:
    """Before something that was not possible is tried again."""
    await asyncio.sleep(RETRY_S)


async def append_fence(log: ReplicatedLog, record: OwnerRecord, node: str, after: Owner, pause: Pause) -> tuple[int, int]:
    """Claims a term behind `after`'s, and returns it with the position of the fence that has it.

    It goes on until the engine answers. Raises `Deposed` when another node has claimed since, or its fence is there.
    """
    while True:
        try:
            term = await record.claim(node, after)
            after = Owner(node, term)
            return term, await log.append(blocks.fence(node), term=term)
        except Unavailable:
            await pause()
        except OutcomeUnknown:
            continue
        except Refused:
            raise Deposed from None
