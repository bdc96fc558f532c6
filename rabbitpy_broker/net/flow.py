"""Flow control: a publisher is held back while the consumers of its queues are busy catching up.

A publisher without confirms can send faster than any consumer can take. The broker would spend its time on filling the
queue, and the consumers would get the rest of it. So a publisher that filled a queue beyond the mark is held for as
long as that queue's consumers make progress of their own accord, and let go when they have caught up. Slow or stuck
consumers must not slow their publishers down (a queue is there to absorb). So a queue whose consumers took less than
SLOW_PER_WINDOW in a window gives up its hold, and is left alone for GRACE_WINDOWS.

  publisher --fills--> queue > mark --hold--> each turn: queue <= mark / 2          --> release
                                              each window: consumers hardly take    --> release, grace

What must stay true: while something is held or in grace the timer runs; a hold lasts no longer than its queue's
progress.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from rabbitpy_broker.queues.queue import Queue

HELD: Final = 2
WINDOW_S: Final = 0.05
SLOW_PER_WINDOW: Final = 500  # 10,000 messages a second
GRACE_WINDOWS: Final = 10
UNSEEN: Final = -1  # held since the window began: only whole windows are judged


class Publisher(Protocol):
    """A client that can be held: its socket is not read then."""

    def stop_reading(self, reason: int) -> None:
        """Stops reading for `reason`, besides any reasons there are."""

    def go_on_reading(self, reason: int) -> None:
        """Takes this reason back; reading goes on when it was the last."""


class Flow:
    """`mark` is in ready messages. `after_turn` is to be called at the end of each turn while `holding`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, mark: int) -> None:
        self._loop = loop
        self._mark = mark
        self._held: dict[Queue, dict[Publisher, None]] = {}
        self._taken: dict[Queue, int] = {}
        self._grace: dict[Queue, int] = {}
        self._timer_runs = False

    def consider(self, client: Publisher, queue: Queue) -> None:
        """Holds a client that has filled the queue beyond the mark, if that helps the consumers."""
        if queue.consumer_count == 0 or queue in self._grace or queue.deleted:
            return
        if queue not in self._held:
            self._held[queue] = {}
            self._taken[queue] = UNSEEN
        self._held[queue][client] = None
        client.stop_reading(HELD)
        self._start_timer()

    def forget(self, client: Publisher) -> None:
        """Forgets a client that is gone."""
        for clients in self._held.values():
            clients.pop(client, None)

    def after_turn(self) -> None:
        """Lets go of the clients whose consumers have caught up."""
        if self._held:
            for queue in list(self._held):
                if queue.backing.len <= self._mark // 2 or queue.deleted:
                    self._release(queue)

    def _start_timer(self) -> None:
        if not self._timer_runs:
            self._timer_runs = True
            self._loop.call_later(WINDOW_S, self._end_of_window)

    def _end_of_window(self) -> None:
        self._timer_runs = False
        for queue in list(self._grace):
            self._grace[queue] -= 1
            if not self._grace[queue]:
                del self._grace[queue]
        for queue in list(self._held):
            taken = queue.taken
            before = self._taken[queue]
            if before != UNSEEN and taken - before < SLOW_PER_WINDOW:
                self._grace[queue] = GRACE_WINDOWS
                self._release(queue)
            else:
                self._taken[queue] = taken
        if self._held or self._grace:
            self._start_timer()

    def _release(self, queue: Queue) -> None:
        del self._taken[queue]
        for client in self._held.pop(queue):
            client.go_on_reading(HELD)
