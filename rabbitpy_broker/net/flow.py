"""Holding a publisher back while its queues' consumers are busy catching up.

A publisher without confirms can send faster than any consumer can take: the broker would spend its time on filling the
queue and the consumers would get what is left. So a publisher that filled a queue beyond the mark is held for as long
as that queue's consumers make progress of their own accord, and let go when they have caught up. Consumers that are
slow or stuck must not slow their publishers down, only the other way round (a queue is there to absorb): a queue
whose consumers took less than SLOW_PER_TICK in a tick gives up its hold, and is left alone for GRACE_TICKS.

  publisher --fills--> queue > mark --hold--> tick, tick: consumers take --> queue <= mark / 2 --> release
                                              tick: they hardly take     --> release, grace

What must stay true: while something is held the timer runs; a hold lasts no longer than its queue's progress.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from rabbitpy_broker.queues.queue import Queue

if TYPE_CHECKING:
    from rabbitpy_broker.net.transport import Client

HELD: Final = 2
TICK_S: Final = 0.005
SLOW_PER_TICK: Final = 50  # 10,000 messages a second
GRACE_TICKS: Final = 20


class Flow:
    """`mark` is in ready messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop, mark: int) -> None:
        self._loop = loop
        self._mark = mark
        self._held: dict[Queue, dict[Client, None]] = {}
        self._taken: dict[Queue, int] = {}
        self._grace: dict[Queue, int] = {}
        self._ticking = False
        self.holds = 0

    def consider(self, client: Client, queue: Queue) -> None:
        """The client has filled the queue beyond the mark: holds it, if that would help somebody."""
        if not queue.consumers.members or queue in self._grace or queue.deleted:
            return
        if queue not in self._held:
            self._held[queue] = {}
            self._taken[queue] = queue.taken
        self._held[queue][client] = None
        self.holds += 1
        client.pause(HELD)
        self._run()

    def forget(self, client: Client) -> None:
        """The client is gone."""
        for clients in self._held.values():
            clients.pop(client, None)

    def _run(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        for queue in list(self._grace):
            self._grace[queue] -= 1
            if self._grace[queue] <= 0:
                del self._grace[queue]
        for queue in list(self._held):
            taken = queue.taken
            progress = taken - self._taken[queue]
            self._taken[queue] = taken
            if queue.backing.len <= self._mark // 2 or queue.deleted:
                self._release(queue)
            elif progress < SLOW_PER_TICK:
                self._grace[queue] = GRACE_TICKS
                self._release(queue)
        if self._held or self._grace:
            self._run()

    def _release(self, queue: Queue) -> None:
        del self._taken[queue]
        for client in self._held.pop(queue):
            client.resume(HELD)
