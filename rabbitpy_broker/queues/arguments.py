"""The arguments of queue.declare: what is a valid value, and when two declarations are the same.

Codes and texts are those of RabbitMQ 3.10. Arguments that are not listed here are kept and ignored. The checks know
the wire type of a value, not only its Python type: 10 as a byte equals 10 as a long, but not 10.0.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.deduplication import deduplication
from rabbitpy_broker.queues.queue_settings import (
    CLASSIC,
    CONFIRM_MODES,
    MAX_MILLISECONDS,
    QUEUE_TYPES,
    QUORUM,
    STREAM,
    queue_type,
)
from rabbitpy_broker.queues.stream_start import is_age
from rabbitpy_broker.wire.field_table import INTEGER_TYPES, FieldTable, decode_table, field_table

MAX_PRIORITY: Final = 255
URGENT_LANE: Final = 1  # of a quorum queue

# The arguments that a classic queue knows, in the order in which they are judged when it is new, and compared when it is
# there: each must be the same in every declaration.
_OF_CLASSIC: Final = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-master-locator",
    "x-confirm-mode",
    "x-dead-letter-strategy",
    "x-delivery-limit",
)
# The same of a quorum queue. The last five ask for nothing of a single node; they are kept, compared and shown.
_OF_QUORUM: Final = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-confirm-mode",
    "x-dead-letter-strategy",
    "x-delivery-limit",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-quorum-initial-group-size",
    "x-quorum-target-group-size",
    "x-queue-leader-locator",
)
# The same of a stream. The last two ask for nothing of a single node.
_OF_STREAM: Final = (
    "x-max-length-bytes",
    "x-queue-type",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-queue-leader-locator",
    "x-initial-cluster-size",
)

# RabbitMQ has these for other queue types only.
_NOT_FOR_CLASSIC: Final = (
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-quorum-initial-group-size",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
    "x-queue-leader-locator",
)
_NOT_FOR_QUORUM: Final = (
    "x-max-priority",
    "x-queue-mode",
    "x-queue-version",
    "x-queue-master-locator",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
)
_NOT_FOR_STREAM: Final = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-master-locator",
    "x-confirm-mode",
    "x-dead-letter-strategy",
    "x-delivery-limit",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-quorum-initial-group-size",
)
_VERIFIED: Final = {CLASSIC: _OF_CLASSIC, QUORUM: _OF_QUORUM, STREAM: _OF_STREAM}
_FOREIGN: Final = {CLASSIC: _NOT_FOR_CLASSIC, QUORUM: _NOT_FOR_QUORUM, STREAM: _NOT_FOR_STREAM}
_INTEGERS: Final = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-delivery-limit",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-quorum-initial-group-size",
    "x-quorum-target-group-size",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
)
_NOT_ZERO: Final = (
    "x-expires",
    "x-quorum-initial-group-size",
    "x-quorum-target-group-size",
    "x-initial-cluster-size",
)
MAX_SEGMENT_BYTES: Final = 3_000_000_000  # the largest segment that RabbitMQ takes
FILTER_SIZES: Final = (16, 255)  # bytes
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-type": QUEUE_TYPES,
    "x-queue-leader-locator": ("client-local", "balanced", "random", "least-leaders"),
    "x-queue-master-locator": ("client-local", "min-masters", "random"),
    "x-confirm-mode": CONFIRM_MODES,
    "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
}
# What a quorum queue could not do as it is asked to.
_CLASSIC_ONLY: Final = (
    ("x-overflow", "reject-publish-dlx"),
    ("x-confirm-mode", "consumer-ack"),
    ("x-confirm-mode", "consumer-ack-light"),
)
_BAD_IN_QUORUM: Final[dict[str, str]] = {
    "x-queue-leader-locator": "invalid_queue_locator_arg",
    "x-dead-letter-strategy": "invalid_dlx_strategy",
}


def check_arguments(name: str, vhost: str, arguments: FieldTable) -> None:
    """Raises 406 for the first argument that RabbitMQ would not take."""
    if not arguments:
        return
    check_dead_letter_exchange(name, vhost, arguments)
    what = f"for queue '{name}' in vhost '{vhost}'"
    kind = queue_type(arguments)
    for key in verified_arguments(kind):
        why = _fault(key, kind, arguments) if key in arguments else ""
        if why:
            raise ChannelClosed(PRECONDITION_FAILED, f"invalid arg '{key}' {what}: {why}")
    deduplication(arguments, f"queue '{name}' in vhost '{vhost}'", Clock())
    foreign = _FOREIGN.get(kind, _NOT_FOR_CLASSIC)
    for key in arguments:
        if key in foreign:
            raise ChannelClosed(PRECONDITION_FAILED, f"invalid arg '{key}' {what} of queue type {module_of(kind)}")
    if kind == STREAM:
        _check_sizes(arguments)


def _check_sizes(arguments: FieldTable) -> None:
    """Raises 406 for sizes of a stream that are out of their range."""
    segment = arguments.get("x-stream-max-segment-size-bytes")
    if isinstance(segment, int) and segment > MAX_SEGMENT_BYTES:
        raise ChannelClosed(PRECONDITION_FAILED, "Exceeded max value for x-stream-max-segment-size-bytes")
    size = arguments.get("x-stream-filter-size-bytes")
    if isinstance(size, int) and not FILTER_SIZES[0] <= size <= FILTER_SIZES[1]:
        raise ChannelClosed(PRECONDITION_FAILED, "Invalid value for x-stream-filter-size-bytes")


def verified_arguments(kind: str) -> tuple[str, ...]:
    """The arguments that must be the same in every declaration of a queue of that type."""
    return _VERIFIED.get(kind, _OF_CLASSIC)


def module_of(kind: str) -> str:
    """What RabbitMQ's texts call a queue type."""
    return f"rabbit_{kind}_queue"


def check_properties(name: str, vhost: str, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    """Raises 406 for the first property that a quorum queue or a stream cannot have."""
    for wrong, text in ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable")):
        if wrong:
            raise ChannelClosed(PRECONDITION_FAILED, f"invalid property '{text}' for queue '{name}' in vhost '{vhost}'")


def with_type(arguments: FieldTable, kind: str) -> FieldTable:
    """The arguments of a queue that is of this type, though its declaration names none."""
    typed = field_table({"x-queue-type": kind})
    return decode_table((len(typed.raw) + len(arguments.raw)).to_bytes(4, "big") + typed.raw + arguments.raw, 0)[0]


def check_dead_letter_exchange(name: str, vhost: str, arguments: FieldTable) -> None:
    """Raises 406 when the dead-letter exchange is no name. It is the first check of all; the permissions on it come next."""
    if not _is("S", "x-dead-letter-exchange", arguments):
        kind = arguments.type_name("x-dead-letter-exchange")
        text = f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost '{vhost}'"
        raise ChannelClosed(PRECONDITION_FAILED, text)


def _fault(key: str, kind: str, arguments: FieldTable) -> str:
    """The text of what is wrong with an argument that is there; "" when nothing is."""
    if key in _INTEGERS:
        return _bad_integer(key, kind, arguments)
    if key in _CHOICES:
        return _bad_choice(key, kind, arguments)
    if key == "x-queue-version":
        return _bad_version(arguments)
    if key == "x-max-age":
        age = arguments[key]
        return _unacceptable(key, arguments) if not isinstance(age, str) else "" if is_age(age) else "invalid_max_age"
    if key == "x-single-active-consumer" and not _is("t", key, arguments):
        return _unacceptable(key, arguments)
    if key == "x-dead-letter-routing-key":
        if not _is("S", key, arguments):
            return _unacceptable(key, arguments)
        if "x-dead-letter-exchange" not in arguments:
            return "routing_key_but_no_dlx_defined"
    return ""


def max_priority(arguments: FieldTable) -> int:
    """x-max-priority; 0 for a queue without priorities."""
    value = arguments.get("x-max-priority")
    return value if isinstance(value, int) else 0


def highest_lane(arguments: FieldTable) -> int:
    """The last of the variable queues that there may be for a queue: one for each priority, or each kind of message."""
    return URGENT_LANE if queue_type(arguments) == QUORUM else max_priority(arguments)


def inequivalent(key: str, received: FieldTable, current: FieldTable) -> str:
    """The text of how two declarations differ in one argument; "" when they do not."""
    if key not in received and key not in current:
        return ""
    if key == "x-queue-type" and received.get(key, CLASSIC) == current.get(key, CLASSIC):
        return ""
    if key not in received:
        return f"received none but current is {_value_and_type(key, current)}"
    if key not in current:
        return f"received {_value_and_type(key, received)} but current is none"
    if received[key] == current[key] and _class_of(received.types[key]) == _class_of(current.types[key]):
        return ""
    return f"received {_quoted(received[key])} but current is {_quoted(current[key])}"


def _class_of(letter: str) -> str:
    """A letter that is the same for types whose values may be equal."""
    if letter in INTEGER_TYPES or letter == "T":
        return "integer"
    return "float" if letter in ("f", "d") else letter


def _bad_integer(key: str, kind: str, arguments: FieldTable) -> str:
    value = arguments[key]
    if not arguments.is_integer(key) or not isinstance(value, int):
        return f'"expected integer, got {arguments.type_name(key)}"'
    if value < 0:
        unlimited = kind == QUORUM and key == "x-delivery-limit"
        return "" if unlimited else f"{{value_negative,{value}}}"
    if key in _NOT_ZERO and value == 0:
        return "{value_zero,0}"
    if key == "x-max-priority" and value > MAX_PRIORITY:
        return f"{{max_value_exceeded,{value}}}"
    if key in ("x-expires", "x-message-ttl") and value > MAX_MILLISECONDS:
        return f"{{value_too_large,{value}}}"
    return ""


def _bad_choice(key: str, kind: str, arguments: FieldTable) -> str:
    value = arguments[key]
    if not isinstance(value, str):
        return _unacceptable(key, arguments)
    if kind == QUORUM and (key, value) in _CLASSIC_ONLY:
        return f"\"'{value}' is not for quorum queues\""
    if value in _CHOICES[key]:
        return ""
    if kind != CLASSIC and key in _BAD_IN_QUORUM:
        return _BAD_IN_QUORUM[key]
    if key == "x-overflow":
        return "invalid_overflow"
    if key == "x-confirm-mode":
        return f"\"unsupported confirm mode '{value}', expected {' or '.join(CONFIRM_MODES)}\""
    return f"\"unsupported {key[2:].replace('-', ' ')} '{value}'\""


def _bad_version(arguments: FieldTable) -> str:
    value = arguments["x-queue-version"]
    if not arguments.is_integer("x-queue-version"):
        return f'"expected integer, got {arguments.type_name("x-queue-version")}"'
    return "" if value in (1, 2) else f"\"unsupported queue version '{value}'\""


def _unacceptable(key: str, arguments: FieldTable) -> str:
    return f"{{unacceptable_type,{arguments.type_name(key)}}}"


def _is(letter: str, key: str, arguments: FieldTable) -> bool:
    return key not in arguments or arguments.types[key] == letter


def _value_and_type(key: str, arguments: FieldTable) -> str:
    return f"the value '{_text(arguments[key])}' of type '{arguments.type_name(key)}'"


def _quoted(value: object) -> str:
    return "none" if value is None else f"'{_text(value)}'"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return f"{{{-int(value.as_tuple().exponent)},{int(value.scaleb(-int(value.as_tuple().exponent)))}}}"
    return "undefined" if value is None else str(value)
