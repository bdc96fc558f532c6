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
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES, MAX_MILLISECONDS
from rabbitpy_broker.wire.field_table import INTEGER_TYPES, FieldTable

MAX_PRIORITY: Final = 255

# The arguments that a queue knows, in the order in which they are judged when it is new, and compared when it is there: each
# must be the same in every declaration.
VERIFIED_ARGUMENTS: Final = (
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

# RabbitMQ has these for other queue types only.
_NOT_FOR_CLASSIC: Final = (
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-quorum-initial-group-size",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size",
    "x-queue-leader-locator",
)
_INTEGERS: Final = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-delivery-limit",
)
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-type": ("classic",),
    "x-queue-master-locator": ("client-local", "min-masters", "random"),
    "x-confirm-mode": CONFIRM_MODES,
    "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
}


def check_arguments(name: str, vhost: str, arguments: FieldTable) -> None:
    """Raises 406 for the first argument that RabbitMQ would not take."""
    if not arguments:
        return
    check_dead_letter_exchange(name, vhost, arguments)
    what = f"for queue '{name}' in vhost '{vhost}'"
    for key in VERIFIED_ARGUMENTS:
        why = _fault(key, arguments) if key in arguments else ""
        if why:
            raise ChannelClosed(PRECONDITION_FAILED, f"invalid arg '{key}' {what}: {why}")
    deduplication(arguments, f"queue '{name}' in vhost '{vhost}'", Clock())
    for key in arguments:
        if key in _NOT_FOR_CLASSIC:
            raise ChannelClosed(
                PRECONDITION_FAILED, f"invalid arg '{key}' {what} of queue type rabbit_classic_queue"
            )


def check_dead_letter_exchange(name: str, vhost: str, arguments: FieldTable) -> None:
    """Raises 406 when the dead-letter exchange is no name. It is the first check of all; the permissions on it come next."""
    if not _is("S", "x-dead-letter-exchange", arguments):
        kind = arguments.type_name("x-dead-letter-exchange")
        text = f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost '{vhost}'"
        raise ChannelClosed(PRECONDITION_FAILED, text)


def _fault(key: str, arguments: FieldTable) -> str:
    """The text of what is wrong with an argument that is there; "" when nothing is."""
    if key in _INTEGERS:
        return _bad_integer(key, arguments)
    if key in _CHOICES:
        return _bad_choice(key, arguments)
    if key == "x-queue-version":
        return _bad_version(arguments)
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


def inequivalent(key: str, received: FieldTable, current: FieldTable) -> str:
    """The text of how two declarations differ in one argument; "" when they do not."""
    if key not in received and key not in current:
        return ""
    if key == "x-queue-type" and received.get(key, "classic") == current.get(key, "classic"):
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


def _bad_integer(key: str, arguments: FieldTable) -> str:
    value = arguments[key]
    if not arguments.is_integer(key) or not isinstance(value, int):
        return f'"expected integer, got {arguments.type_name(key)}"'
    if value < 0:
        return f"{{value_negative,{value}}}"
    if key == "x-expires" and value == 0:
        return "{value_zero,0}"
    if key == "x-max-priority" and value > MAX_PRIORITY:
        return f"{{max_value_exceeded,{value}}}"
    if key in ("x-expires", "x-message-ttl") and value > MAX_MILLISECONDS:
        return f"{{value_too_large,{value}}}"
    return ""


def _bad_choice(key: str, arguments: FieldTable) -> str:
    value = arguments[key]
    if not isinstance(value, str):
        return _unacceptable(key, arguments)
    if value in _CHOICES[key]:
        return ""
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
