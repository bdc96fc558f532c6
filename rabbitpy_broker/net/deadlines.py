"""The deadlines of clients: when each wants to be called, for its heartbeat or because something has taken too long.

    10.3 s: {client, client}    10.4 s: {client}    39.9 s: {client, client, client}

Times are rounded up to tenths of a second and clients gathered under them. So one timer of the loop serves all, and a
pass costs as much as there are clients to call, however many are open. What must stay true: a client stands under one
time at most, `due`, and is called at most a tenth of a second (and the delay of the loop) after it asked for, never
before.
"""

from __future__ import annotations

import asyncio
from typing import Final

PER_SECOND: Final = 10


class HasDeadline:
    """A client that may be called. `due` is the time it stands under, in tenths of a second of the loop's clock; 0: none."""

    due = 0

    def deadline(self, now: float) -> None:
        """Follows the end of the time; `now` is the loop's. Never raises."""
        raise NotImplementedError


class Deadlines:
    """The deadlines of all clients of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._times: dict[int, dict[HasDeadline, None]] = {}
        self._next = 0  # the time for which the timer is set; 0: it is not set
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def set(self, client: HasDeadline, seconds: float) -> None:
        """Has `client.deadline` called in `seconds`, and no longer at the time that was set before."""
        self.forget(client)
        due = int((self._loop.time() + seconds) * PER_SECOND) + 1
        client.due = due
        self._times.setdefault(due, {})[client] = None
        if not self._next or due < self._next:
            self._arm(due)

    def forget(self, client: HasDeadline) -> None:
        """Takes a client out: it is not called any more."""
        if client.due:
            waiting = self._times[client.due]
            del waiting[client]
            if not waiting:
                del self._times[client.due]
            client.due = 0

    def stop(self) -> None:
        """Takes all clients out."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, due: int) -> None:
        if self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._next = due
        self._timer = self._loop.call_at(due / PER_SECOND, self._call)

    def _call(self) -> None:
        self._next = 0
        now = self._loop.time()
        for due in sorted(time for time in self._times if time <= now * PER_SECOND):
            for client in self._times.pop(due):
                client.due = 0
                client.deadline(now)
        if self._times:
            self._arm(min(self._times))
