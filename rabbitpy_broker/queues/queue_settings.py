"""The settings of a queue, from the arguments of its declaration and the policies that match it.

For numbers the smaller of both counts, for anything else the argument, as in RabbitMQ. -1 means that there is none;
`expires` has 0 for none.

A quorum queue always persists, and never lazily. It has a delivery limit even if nobody asks for one; a negative one frees it.
A stream always persists. Its `max_length_bytes`, `max_age_ms` and `max_segment_bytes` are the policy's where it has them, as
in RabbitMQ.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.queues.stream_start import age_ms
from rabbitpy_broker.wire.field_table import FieldTable

MAX_MILLISECONDS: Final = 315_360_000_000  # ten years: the longest time that RabbitMQ takes
AT_LEAST_ONCE: Final = "at-least-once"
CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"
QUEUE_TYPES: Final = (CLASSIC, QUORUM, STREAM)
PERSIST: Final[i64] = 0
CONSUMER_ACK: Final[i64] = 1
CONSUMER_ACK_LIGHT: Final[i64] = 2
CONFIRM_MODES: Final = ("persist", "consumer-ack", "consumer-ack-light")  # by these numbers
SEGMENT_BYTES: Final[i64] = 500_000_000  # as in RabbitMQ
FILTER_SIZE: Final[i64] = 16  # bytes, as in RabbitMQ
_HIGHEST: Final = 1 << 62


class QueueDefaults:
    """What holds for a queue of which neither arguments nor policies say anything.

    `confirm_mode` is a classic queue's. `delivery_limit` is a quorum queue's, -1 for none. `quorum_priorities`: whether it
    delivers what is urgent sooner. `queue_type` is that of a queue which could be of any type.
    """

    def __init__(self) -> None:
        self.confirm_mode = "persist"
        self.queue_type = CLASSIC
        self.delivery_limit: i64 = 20
        self.quorum_priorities = True


DEFAULTS: Final = QueueDefaults()  # nobody changes them


class QueueSettings:
    """`policy` is the definition that policy and operator policy make together (policies.py)."""

    def __init__(
        self, arguments: FieldTable, policy: dict[str, object], defaults: QueueDefaults = DEFAULTS
    ) -> None:
        kind = queue_type(arguments)
        self.quorum = kind == QUORUM
        self.stream = kind == STREAM
        self.message_ttl: i64 = _number("message-ttl", arguments, policy)  # ms
        self.expires: i64 = max(0, _number("expires", arguments, policy))  # ms
        self.max_length: i64 = _number("max-length", arguments, policy)  # ready messages
        self.max_length_bytes: i64 = _number("max-length-bytes", arguments, policy)  # bytes of their bodies
        self.delivery_limit: i64 = _number("delivery-limit", arguments, policy)
        self.overflow = _text("overflow", arguments, policy) or "drop-head"
        if self.quorum:
            self.delivery_limit = _quorum_limit(arguments, policy, defaults.delivery_limit)
            if self.overflow == "reject-publish-dlx":  # of a policy; as in RabbitMQ
                self.overflow = "drop-head"
        self.dead_letter_exchange = _text("dead-letter-exchange", arguments, policy)  # None: there is none
        self.dead_letter_routing_key = _text("dead-letter-routing-key", arguments, policy)
        # As in RabbitMQ it takes a queue that refuses when it is full: one that drops could not keep what it drops.
        self.at_least_once = (
            _text("dead-letter-strategy", arguments, policy) == AT_LEAST_ONCE
            and self.overflow == "reject-publish"
            and self.dead_letter_exchange is not None
        )
        confirm_mode = _text("confirm-mode", arguments, policy) or defaults.confirm_mode
        self.confirm_mode: i64 = PERSIST if kind != CLASSIC else CONFIRM_MODES.index(confirm_mode)
        self.lazy = _text("queue-mode", arguments, policy) == "lazy" and not self.quorum
        self.max_age_ms: i64 = -1
        self.max_segment_bytes: i64 = SEGMENT_BYTES
        self.filter_size: i64 = FILTER_SIZE
        if self.stream:
            self._set_stream(arguments, policy)

    def _set_stream(self, arguments: FieldTable, policy: dict[str, object]) -> None:
        size = _policy_number("max-length-bytes", arguments, policy)
        self.max_length_bytes = -1 if size is None else size
        segment = _policy_number("stream-max-segment-size-bytes", arguments, policy)
        if segment is not None:
            self.max_segment_bytes = segment
        age = policy.get("max-age", arguments.get("x-max-age"))
        if isinstance(age, str):
            self.max_age_ms = age_ms(age)
        filter_size = arguments.get("x-stream-filter-size-bytes")
        if isinstance(filter_size, int):
            self.filter_size = filter_size


def queue_type(arguments: FieldTable) -> str:
    """The type that a declaration asks for; whether there is such a one is another question."""
    kind = arguments.get("x-queue-type", CLASSIC)
    return kind if isinstance(kind, str) else CLASSIC


def _quorum_limit(arguments: FieldTable, policy: dict[str, object], default: i64) -> i64:
    """As RabbitMQ 4 has it: the smaller one, of which a negative one frees; -1 for none."""
    limits: list[int] = []
    for value in (arguments.get("x-delivery-limit"), policy.get("delivery-limit")):
        if isinstance(value, int) and not isinstance(value, bool):
            limits.append(max(-1, min(value, _HIGHEST)))
    if not limits:
        return default
    return max(limits) if min(limits) < 0 else min(limits)


def _number(key: str, arguments: FieldTable, policy: dict[str, object]) -> int:
    found = -1
    for value in (arguments.get("x-" + key), policy.get(key)):
        if isinstance(value, int) and not isinstance(value, bool):
            found = min(value, _HIGHEST) if found < 0 else min(found, value)
    return found


def _policy_number(key: str, arguments: FieldTable, policy: dict[str, object]) -> int | None:
    value = policy.get(key, arguments.get("x-" + key))
    return min(value, _HIGHEST) if isinstance(value, int) and not isinstance(value, bool) else None


def _text(key: str, arguments: FieldTable, policy: dict[str, object]) -> str | None:
    for value in (arguments.get("x-" + key), policy.get(key)):
        if isinstance(value, str):
            return value
    return None
