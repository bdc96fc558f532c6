"""This node's lease by its own clock: when it has ended, nothing is delivered from the vhosts that the node owns.

Who follows takes over when the lease has ended, so a node that is cut off, or has slept, may have a successor. That it confirms
nothing then is the log's doing. But what it still delivers may have been delivered and acked there: so deliveries stop with the
lease, and go on when the node has renewed it, some time has passed in which somebody might act on having seen it ended, and the
vhost's record still names this node. Who takes over asks once more, when it has claimed, whether the owner of before lives: an
engine may have held the claim up for longer than that. If it does the new owner delivers nothing for two leases (member.py).

What must stay true: the lease ends here no later than for others, since it counts from before the renewal was sent. The clocks
of two machines need to run at about the same speed, no more. No confirm rests on it, only how few messages come again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

SETTLED_S: Final = 1.0  # after which nobody acts any more on having seen the lease ended


class OwnLease:
    """`ended` is called in the loop at the lease's end, before what waits in sockets then is acted upon."""

    def __init__(self, lasts_s: float, ended: Callable[[], None]) -> None:
        self.lasts_s = lasts_s
        self._ended = ended
        self._began = float("-inf")
        self._unbroken_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def renewed(self, began: float) -> None:
        """The engine has it again; `began` is the moment, of `time.monotonic`, before it was asked to."""
        now = time.monotonic()
        if not self.is_valid():
            self._unbroken_since = now
        self._began = began
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, began + self.lasts_s - now), self._ended)

    def is_valid(self) -> bool:
        return time.monotonic() - self._began < self.lasts_s

    def unbroken_s(self) -> float:
        """For how long it has not ended; 0 when it has."""
        return time.monotonic() - self._unbroken_since if self.is_valid() else 0.0

    def is_steady(self) -> bool:
        """Whether it was renewed in time for as long as it lasts.

        An engine that was gone and is back has ended all leases: whoever lives has to say so before he is taken for dead.
        """
        return self.unbroken_s() >= self.lasts_s

    def was_settled(self, moment: float) -> bool:
        """Whether it had been valid for a while at that moment, of `time.monotonic`, and has been since."""
        return self.is_valid() and moment - self._unbroken_since >= SETTLED_S

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
