"""The memory policy of a variable queue: how much of it is to be in RAM, and when to look again.

RAM holds no more than `target_count` messages, ready and unacked. The target is unlimited while the broker has memory
to spare. Otherwise it is the number of messages that lasts, at the rates of the queue, for as long as the memory
monitor says. A durable queue has a limit of its own besides. VariableQueue.reduce_memory_use brings the queue to its
target.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.queues.counted_queue import CountedQueue
from rabbitpy_broker.queues.rates import Rates

UNLIMITED: Final[i64] = 1 << 62
IO_BATCH_SIZE: Final[i64] = 64
# A durable queue keeps no more than this in RAM even when there is plenty: dropping a body that is on disk anyway costs
# nothing, and 32,768 messages are some tenths of a second of work.
DURABLE_RAM_COUNT: Final[i64] = 32_768
DURABLE_RAM_BYTES: Final[i64] = 67_108_864
MORE_BYTES: Final[i64] = 1_048_576


class MemoryPolicy:
    """The policy of one queue. `lazy`: as little in RAM as can be."""

    def __init__(self, durable: bool, lazy: bool) -> None:
        self.lazy = lazy
        self.target_count: i64 = 0
        self.target_bytes: i64 = 0
        # Above these limits the queue looks again what it can bring to disk.
        self.look_above: i64 = 0
        self.look_above_bytes: i64 = 0
        self._durable = durable
        self.set_target(UNLIMITED)

    def set_target(self, count: i64) -> None:
        """Sets the target: at most `count` messages in RAM, ready and unacked; UNLIMITED for all of them."""
        if self.lazy:
            count = 0
        self.target_bytes = UNLIMITED
        if self._durable:
            count = min(count, DURABLE_RAM_COUNT)
            self.target_bytes = DURABLE_RAM_BYTES
        self.target_count = count
        self.look_above = count
        self.look_above_bytes = self.target_bytes

    def set_duration(self, duration: float, rates: Rates | None) -> None:
        """Sets the target to the messages that last for `duration` seconds at these rates."""
        if duration == float("inf"):
            self.set_target(UNLIMITED)
        else:
            rate = rates.total() if rates is not None else 0.0
            self.set_target(i64(int(min(duration * rate, 1e15))))

    def is_over(self, queue: CountedQueue) -> bool:
        """True when something has to leave RAM."""
        return (
            queue.ram_msg_count + queue.ram_unacked_count > self.target_count
            or queue.ram_bytes > self.target_bytes
        )

    def looked(self, queue: CountedQueue) -> None:
        """Notes that the queue has done what it can. The rest waits for the disk, so the next publishes need not look
        again.
        """
        self.look_above = self.target_count
        self.look_above_bytes = self.target_bytes
        if self.is_over(queue):
            self.look_above = max(self.target_count, queue.ram_msg_count) + IO_BATCH_SIZE
            self.look_above_bytes = max(self.target_bytes, queue.ram_bytes) + MORE_BYTES

    def unacked_first(self, rates: Rates | None) -> bool:
        """True when unacked messages pile up faster than ready ones."""
        return rates is not None and rates.ack_ingress - rates.ack_egress > rates.ingress - rates.egress

    def positions(self, both: i64, least: i64) -> i64:
        """The number of messages that may keep their positions in RAM, out of `both` without body in RAM; at least
        `least`.
        """
        target = self.target_count
        permitted: i64 = 0
        if both + target > 0:
            # both * target / (both + target), the same as BD - BD*BD / (BD + target)
            permitted = i64(int(float(int(both)) * float(int(target)) / float(int(both + target))))
        return max(least, permitted)
