"""What is known of every message of a replicated vhost, and what is held against the brokers.

The ledger of perf.kill follows one broker, which ends all connections when it ends. Here connections to several nodes live side
by side, and one of them may be to a former owner that does not know yet. So less can be said of a single delivery, and all
of it at the end of a round, when everything has healed and the queues are drained. What is held against the brokers:

- *Lost*: a message was confirmed, and no consumer has acked it, nor did it come when its queue was drained.
- *Out of order*: a consumer gets a publisher's messages that are new (not redelivered) in the order of their numbers; when a
  queue that keeps the places of what is given back is drained, all of them come in that order.
- *Twice without redelivered*: one delivery of a message in a queue has no such flag, at most. Whoever takes over sets it,
  so the one that has not is the first owner's; where that one had slept, it may be read after the others.
- *What is gone does not come back*: a queue is drained, acked and empty, and something was confirmed after the last ack; then
  none of it comes again.
- *Invented or changed*: each delivery is a message that was published there, with its content.

An ack may be lost with its owner. A message that was not confirmed may be there or not, also when it was delivered; when it
comes a round later than it was published, a sleeper had it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from perf.kill.ledger import CONFIRMED, Ledger, Message, Place, Track, Violation


class ClusterLedger(Ledger):
    """May be used by several threads. A round is a session of it."""

    def __init__(self, queues: Iterable[str], keeping_order: Iterable[str]) -> None:
        """`keeping_order`: the queues in which what is given back gets its place again."""
        super().__init__(queues)
        self.redelivered = 0
        self.longest_wait = 0.0  # seconds without a confirm while `expect_confirms`
        self._keeping_order = frozenset(keeping_order)
        self._draining: dict[tuple[str, str], int] | None = None
        self._plain: set[Place] = set()  # those that were delivered without redelivered
        self._last_confirm = 0.0  # 0: none is expected
        self._lock = threading.RLock()

    def publish(self, publisher: str, queues: Iterable[str], size: int, crc: int, persistent: bool = True) -> Message:
        with self._lock:
            return super().publish(publisher, queues, size, crc, persistent)

    def confirm(self, message: Message) -> None:
        with self._lock:
            super().confirm(message)
            self._note_wait()

    def nack(self, message: Message) -> None:
        with self._lock:
            super().nack(message)

    def expect_confirms(self, expected: bool) -> None:
        with self._lock:
            self._note_wait()
            self._last_confirm = time.monotonic() if expected else 0.0

    def _note_wait(self) -> None:
        if self._last_confirm:
            now = time.monotonic()
            self.longest_wait = max(self.longest_wait, now - self._last_confirm)
            self._last_confirm = now

    def deliver(
        self, queue: str, message_id: str, size: int, crc: int, redelivered: bool, last: dict[str, int]
    ) -> Place:
        with self._lock:
            self.delivered += 1
            self.redelivered += redelivered
            place = self._place(queue, message_id)
            message = place.message
            self._note(message, "delivered, redelivered" if redelivered else "delivered", queue)
            if (message.id, message.size, message.crc) != (message_id, size, crc):
                raise Violation(f"changed in {queue}: {message_id!r}, {size} bytes, checksum {crc:08x}\n{self.history(message)}")
            self._check_order(queue, message, None if redelivered else last)
            if not redelivered:
                if place in self._plain:
                    raise Violation(f"{queue} delivered twice without redelivered\n{self.history(message)}")
                self._plain.add(place)
            place.deliveries += 1
            if place.acked:
                place.acked = False  # the ack was lost
                self.returned += 1
            return place

    def _place(self, queue: str, message_id: str) -> Place:
        publisher, number, *_ = (*message_id.split(" "), "", "")
        place = self._track(queue, publisher).ahead.get(int(number) if number.isdecimal() else 0)
        if place is None:
            raise Violation(f"{queue} delivered what it cannot have: {message_id!r}\n{self._story(message_id)}")
        return place

    def _check_order(self, queue: str, message: Message, last: dict[str, int] | None) -> None:
        publisher, number = message.publisher, message.number
        if last is not None:
            if number <= last.get(publisher, 0):
                raise Violation(f"order broken in {queue}: after number {last[publisher]}\n{self.history(message)}")
            last[publisher] = number
        if self._draining is not None and queue in self._keeping_order:
            before = self._draining.get((queue, publisher), 0)
            if number <= before:
                raise Violation(f"order broken in {queue}, drained: after number {before}\n{self.history(message)}")
            self._draining[queue, publisher] = number

    def ack(self, queue: str, place: Place) -> None:
        with self._lock:
            place.acked = True
            self.acked += 1
            self._note(place.message, "acked", queue)

    def lacks(self, publisher: str, after: int) -> bool:
        """Whether a queue has still to deliver what this publisher has published after that number, or it is not acked."""
        with self._lock:
            tracks = [tracks[publisher] for tracks in self.tracks.values() if publisher in tracks]
            return any(number > after and not place.acked for track in tracks for number, place in track.ahead.items())

    def begin_draining(self) -> None:
        """All connections are closed; from now on each queue has one consumer, on a connection that lives."""
        with self._lock:
            self._draining = {}

    def finish_round(self) -> None:
        """All queues have delivered what they had, and it is acked."""
        with self._lock:
            self._draining = None
            for queue, tracks in self.tracks.items():
                for publisher, track in list(tracks.items()):
                    self._finish(queue, track)
                    if not track.ahead:
                        del tracks[publisher]

    def _finish(self, queue: str, track: Track) -> None:
        for number, place in list(track.ahead.items()):
            message = place.message
            if place.acked:
                why = "acked for good"
            elif message.outcome == CONFIRMED:
                raise Violation(f"lost: never came out of {queue}\n{self.history(message)}")
            elif message.session == self.session:
                continue  # a sleeper may have it
            else:
                why = "never came"
            self._close(place, queue, why)
            self._plain.discard(place)
            del track.ahead[number]
