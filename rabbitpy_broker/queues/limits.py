"""How long a queue may become: x-max-length in ready messages, x-max-length-bytes in bytes of their bodies.

With x-overflow drop-head, the default, the oldest messages make room; with reject-publish a publish that would go over
a limit is refused, and its publisher gets a basic.nack. Unacked messages do not count.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.queues.backing_queue import BackingQueue
from rabbitpy_broker.wire.field_table import FieldTable

UNLIMITED: Final[i64] = -1


class Limits:
    """The limits of one queue; -1 is none."""

    def __init__(self, arguments: FieldTable) -> None:
        self.max_length = _integer(arguments, "x-max-length")
        self.max_length_bytes = _integer(arguments, "x-max-length-bytes")
        overflow = arguments.get("x-overflow")
        self.reject = overflow == "reject-publish" or overflow == "reject-publish-dlx"
        self.any = self.max_length >= 0 or self.max_length_bytes >= 0

    def refuses(self, backing: BackingQueue, size: i64) -> bool:
        """True when a message of `size` bytes is not to be taken."""
        return self.reject and self._over(backing.len + 1, backing.ready_bytes + size)

    def exceeded(self, backing: BackingQueue) -> bool:
        """True when the oldest message has to go."""
        return backing.len > 0 and self._over(backing.len, backing.ready_bytes)

    def _over(self, length: i64, size: i64) -> bool:
        return (self.max_length >= 0 and length > self.max_length) or (
            self.max_length_bytes >= 0 and size > self.max_length_bytes
        )


def _integer(arguments: FieldTable, key: str) -> i64:
    value = arguments.get(key)
    return min(value, 1 << 62) if isinstance(value, int) else UNLIMITED
