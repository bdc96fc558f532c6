"""The arguments of queue.declare: what is a valid value, and when two declarations are the same.

Codes and texts are those of RabbitMQ 3.10. Arguments that are not listed here are kept and ignored. The checks know
the wire type of a value, not only its Python type: 10 as a byte equals 10 as a long, but not 10.0.
"""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.deduplication import deduplication
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES, MAX_MILLISECONDS
from rabbitpy_broker.wire.field_table import FieldTable

MAX_PRIORITY: Final = 255

# An argument that is one of these must be the same in every declaration of the queue.
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
    for key in _INTEGERS:
        if key in arguments:
            _refuse(key, name, vhost, _bad_integer(key, arguments))
    for key in _CHOICES:
        if key in arguments:
            _refuse(key, name, vhost, _bad_choice(key, arguments))
    if "x-queue-version" in arguments:
        _refuse("x-queue-version", name, vhost, _bad_version(arguments))
    if not _is("t", "x-single-active-consumer", arguments):
        _refuse("x-single-active-consumer", name, vhost, _unacceptable("x-single-active-consumer", arguments))
    if not _is("S", "x-dead-letter-exchange", arguments):
        kind = arguments.type_name("x-dead-letter-exchange")
        text = f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost '{vhost}'"
        raise ChannelClosed(PRECONDITION_FAILED, text)
    if not _is("S", "x-dead-letter-routing-key", arguments):
        _refuse("x-dead-letter-routing-key", name, vhost, _unacceptable("x-dead-letter-routing-key", arguments))
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        _refuse("x-dead-letter-routing-key", name, vhost, "routing_key_but_no_dlx_defined")
    deduplication(arguments, f"queue '{name}' in vhost '{vhost}'", Clock())
    for key in _NOT_FOR_CLASSIC:
        if key in arguments:
            text = f"invalid arg '{key}' for queue '{name}' in vhost '{vhost}' of queue type rabbit_classic_queue"
            raise ChannelClosed(PRECONDITION_FAILED, text)


def max_priority(arguments: FieldTable) -> int:
    """x-max-priority; 0 for a queue without priorities."""
    value = arguments.get("x-max-priority")
    return value if isinstance(value, int) else 0


def inequivalent(key: str, received: FieldTable, current: FieldTable) -> str:
    """How two declarations differ in one argument, "" when they do not."""
    if key not in received and key not in current:
        return ""
    if key not in received:
        return f"received none but current is {_value_and_type(key, current)}"
    if key not in current:
        return f"received {_value_and_type(key, received)} but current is none"
    if received[key] == current[key] and (
        received.types[key] == current.types[key] or (received.is_integer(key) and current.is_integer(key))
    ):
        return ""
    return f"received '{_text(received[key])}' but current is '{_text(current[key])}'"


def _refuse(key: str, name: str, vhost: str, why: str) -> None:
    if why:
        raise ChannelClosed(PRECONDITION_FAILED, f"invalid arg '{key}' for queue '{name}' in vhost '{vhost}': {why}")


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


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
