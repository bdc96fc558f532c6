"""How many messages the queues of a vhost gave up: why, and what was to become of them. For /metrics, as RabbitMQ counts.

A message is counted once, when its queue gives it up: dead-lettered at most once, at least once, or, where there is no
exchange to hand it to, not at all (DISABLED). Letters that are kept until somebody takes them are counted a second time,
as CONFIRMED, when all their targets have. What is purged, or goes with its queue, is not given up.
"""

from __future__ import annotations

from typing import Final

AT_LEAST_ONCE: Final = "at_least_once"
AT_MOST_ONCE: Final = "at_most_once"
DISABLED: Final = "disabled"

CONFIRMED: Final = "confirmed"
STRATEGIES: Final = {
    CONFIRMED: (AT_LEAST_ONCE,),
    "delivery_limit": (AT_LEAST_ONCE, AT_MOST_ONCE, DISABLED),
    "expired": (AT_LEAST_ONCE, AT_MOST_ONCE, DISABLED),
    "maxlen": (AT_MOST_ONCE, DISABLED),  # a queue that drops or hands on what is too many is never at-least-once
    "rejected": (AT_LEAST_ONCE, AT_MOST_ONCE, DISABLED),
}


class DeadLettered:
    """`counts` by (reason, strategy); all that can be, from the start."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {
            (reason, strategy): 0 for reason, strategies in STRATEGIES.items() for strategy in strategies
        }

    def count(self, reason: str, strategy: str) -> None:
        self.counts[reason, strategy] = self.counts.get((reason, strategy), 0) + 1

    def add(self, other: DeadLettered) -> None:
        """Adds what another one counted."""
        for key, number in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + number
