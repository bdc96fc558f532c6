"""What one run of the load generator does: the options, and the names and numbers that follow from them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from perf.load.client import Address

STAMP_BYTES = 8
SECOND_NS = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Plan:
    """The options of a run; __main__.py describes each. Counts of connections are per run, rate and messages per producer."""

    url: str
    producers: int = 1
    consumers: int = 1
    queues: int = 1
    producer_channels: int = 1
    consumer_channels: int = 1
    spread: bool = False  # each channel has the next queue, instead of each connection
    queue: str = "perf"
    exchange: str = ""
    exchange_type: str = "direct"
    routing_key: str | None = None
    binding_key: str | None = None
    sizes: tuple[int, ...] = (12,)
    bodies: str = "zeros"
    persistent: bool = False
    durable: bool = False
    mandatory: bool = False
    confirm: int = 0
    prefetch: int = 0
    ack_every: int = 1  # 0: auto-ack
    rate: float = 0.0
    messages: int = 0
    seconds: float = 10.0
    warmup: float = 1.0
    interval: float = 1.0
    queue_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    predeclared: bool = False
    keep: bool = False
    processes: int = 1

    @property
    def address(self) -> Address:
        return Address.parse(self.url)

    def queue_of(self, connection: int, channel: int, channels: int) -> str:
        """The queue of a connection's channel, the first one having number 1; `channels` is how many each connection has."""
        number = connection * channels + channel - 1 if self.spread else connection
        return self.queue_names[number % self.queues]

    @functools.cached_property
    def queue_names(self) -> list[str]:
        return (
            [self.queue] if self.queues == 1 else [f"{self.queue}-{number}" for number in range(self.queues)]
        )

    @property
    def owns_exchange(self) -> bool:
        return bool(self.exchange) and not self.exchange.startswith("amq.")

    @property
    def is_stamped(self) -> bool:
        """Whether every body has room for a timestamp; without one there is no latency to report."""
        return min(self.sizes) >= STAMP_BYTES

    @property
    def expected(self) -> int:
        """How many messages the consumers are to receive before a run of `messages` ends; 0 without consumers."""
        if self.consumers == 0:
            return 0
        copies = self.queues if self.exchange_type == "fanout" and self.exchange else 1
        return self.messages * self.producers * copies if self.producers else self.messages

    def batch_count(self) -> int:
        """How many messages go out at once: enough to make the call cheap, few enough for window and rate."""
        size = max(self.sizes)
        count = 64 if size < 256 else 16 if size < 4096 else 1
        if self.confirm:
            count = min(count, self.confirm)
        if self.rate:
            # One millisecond's worth, which is what the loop's timer resolves: larger bursts would queue behind themselves.
            count = min(count, max(1, round(self.rate / 1000)))
        if self.messages:
            count = min(count, self.messages)
        return count
