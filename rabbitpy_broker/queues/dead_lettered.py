"""The messages that the queues of a vhost gave up, counted by reason and strategy. For /metrics, as RabbitMQ counts.

A message is counted once, when its queue gives it up: dead-lettered at most once, at least once, or, where there is no
exchange to hand it to, not at all (DISABLED). A letter that is kept until somebody takes it is counted a second time,
as CONFIRMED, when all its targets have taken it. A message that is purged, or goes with its queue, is not given up.
"""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.queues.queue_settings import CLASSIC, QUORUM

AT_LEAST_ONCE: Final = "at_least_once"
AT_MOST_ONCE: Final = "at_most_once"
DISABLED: Final = "disabled"

CONFIRMED: Final = "confirmed"
STRATEGIES: Final = {
    CONFIRMED: (AT_LEAST_ONCE,),
    "delivery_limit": (AT_LEAST_ONCE, AT_MOST_ONCE, DISABLED),
    "expired": (AT_LEAST_ONCE, AT_MOST_ONCE, DISABLED),
    "maxlen": (AT_MOST_ONCE, DISABLED),  # a queue that drops or dead-letters messages beyond its length is never at-least-once
    "rejected": (AT_LEAST_ONCE, AT_MOST_ONCE, DISABLED),
}


class DeadLettered:
    """`counts` by (reason, strategy, type of the queue), with every pair that can occur in classic queues from the start."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, str], int] = {
            (reason, strategy, CLASSIC): 0 for reason, strategies in STRATEGIES.items() for strategy in strategies
        }

    def count(self, reason: str, strategy: str, quorum: bool) -> None:
        """One more, of a quorum queue or a classic one."""
        key = (reason, strategy, QUORUM if quorum else CLASSIC)
        self.counts[key] = self.counts.get(key, 0) + 1

    def add(self, other: DeadLettered) -> None:
        """Adds the counts of another vhost."""
        for key, number in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + number
