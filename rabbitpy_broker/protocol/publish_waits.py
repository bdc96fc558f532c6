"""How long publishes wait for a consumer's ack, found out at ticks and scrapes alone.

A queue knows the messages in it. A queue in the mode consumer-ack-light has forgotten those that it has handed out:
they are looked for on the consumers' channels, among the oldest deliveries of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from mypy_extensions import i64

from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import queue_of
from rabbitpy_broker.queues.backing_queue import AckWaits
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.vhost import VHost

DELIVERIES_LOOKED_AT: Final[i64] = 1_000  # the oldest deliveries of each channel
WARN_AFTER_S: Final[i64] = 60
NONE_WAITS: Final[i64] = -1


def oldest_wait_s(queue: Queue, connections: Iterable[Connection]) -> i64:
    """The seconds for which the oldest publish to this queue has waited for a consumer's ack; NONE_WAITS when none does."""
    oldest = NONE_WAITS
    if queue.backing.publishes_waiting() == 0:
        return oldest
    waits = AckWaits()
    queue.backing.add_waits(waits)
    oldest = waits.longest_s
    if waits.light:
        of_light = _oldest_light_s(queue, connections, waits.now_s)
        oldest = max(oldest, min(of_light, waits.now_s - waits.began_s))
    if oldest < 0:
        oldest = 0  # a publish waits, but none was found where we looked
    return oldest


def _oldest_light_s(queue: Queue, connections: Iterable[Connection], now_s: i64) -> i64:
    oldest = NONE_WAITS
    for connection in connections:
        for channel in connection.channels.values():
            for status in channel.deliveries.unacked.first(DELIVERIES_LOOKED_AT):
                if status.light and queue_of(status) is queue:
                    oldest = max(oldest, now_s - i64(status.since_s))
    return oldest


class WaitWatch:
    """Logs that publishes wait long, once until none does any more."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self._warned: dict[Queue, None] = {}

    def looking(self, vhosts: Iterable[VHost], connections: Iterable[Connection]) -> Iterator[None]:
        """Looks at every queue, one at a time."""
        waiting: dict[Queue, None] = {}
        for vhost in vhosts:
            for queue in vhost.each_queue():
                self._look_at(queue, connections, waiting)
                yield
        self._warned = waiting

    def _look_at(self, queue: Queue, connections: Iterable[Connection], waiting: dict[Queue, None]) -> None:
        wait_s = oldest_wait_s(queue, connections)
        if wait_s < WARN_AFTER_S:
            return
        waiting[queue] = None
        if queue not in self._warned:
            self.log.warning(
                "publishes wait for acks",
                vhost=queue.vhost,
                queue=queue.name,
                publishes=int(queue.backing.publishes_waiting()),
                oldest_s=int(wait_s),
                consumers=int(queue.consumer_count),
            )
