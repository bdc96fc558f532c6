"""Publish-side deduplication: a message is dropped when its identity, a header of it, has been seen before.

It is switched on by the argument `x-message-deduplication`, and has LavinMQ's arguments: `x-deduplication-header` names
the header that identifies a message (its default is `x-deduplication-header`), `x-cache-size` says how many identities
are remembered, and `x-cache-ttl` for how many milliseconds; a message may say the latter for itself in a header of that
name. A message without identity is never a duplicate. The remembered identities are lost when the broker ends.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.queue_settings import MAX_MILLISECONDS
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import INTEGER_TYPES, FieldTable

SWITCH: Final = "x-message-deduplication"
DEFAULT_HEADER: Final = "x-deduplication-header"
DEFAULT_SIZE: Final = 128
FOR_EVER: Final[i64] = -1
SHORT: Final = 32  # bytes; a longer key is remembered by its hash, so that a large header costs no more


class SeenKeys:
    """The last `size` keys, the oldest forgotten first, each for as long as its ttl says."""

    def __init__(self, size: i64, clock: Clock) -> None:
        self._size = size
        self._clock = clock
        self._until: dict[bytes, int] = {}  # in the order they came; FOR_EVER or ms since 1970

    def __contains__(self, key: bytes) -> bool:
        key = _short(key)
        until = self._until.get(key)
        if until is None:
            return False
        if until == FOR_EVER or until > self._clock.now_ms():
            return True
        del self._until[key]
        return False

    def add(self, key: bytes, ttl_ms: i64 = FOR_EVER) -> None:
        """Remembers a key from now on."""
        key = _short(key)
        self._until.pop(key, None)
        if len(self._until) >= self._size:
            del self._until[next(iter(self._until))]
        self._until[key] = FOR_EVER if ttl_ms == FOR_EVER else self._clock.from_ms() + ttl_ms

    def discard(self, key: bytes) -> None:
        """Forgets a key."""
        self._until.pop(_short(key), None)

    def __len__(self) -> int:
        return len(self._until)


def _short(key: bytes) -> bytes:
    return key if len(key) < SHORT else blake2b(key, digest_size=SHORT).digest()


class Deduplication:
    """The identities that one exchange or queue with such arguments remembers."""

    def __init__(self, header: str, size: i64, ttl_ms: i64, clock: Clock) -> None:
        self._header = header.encode("utf-8")
        self._ttl_ms = ttl_ms
        self._seen = SeenKeys(size, clock)

    def is_duplicate(self, header: ContentHeader) -> bool:
        """True when a message with this identity is remembered."""
        key = header.header(self._header)
        return bool(key) and key in self._seen

    def remember(self, header: ContentHeader) -> None:
        """Remembers the identity of a message that has been taken."""
        key = header.header(self._header)
        if not key:
            return
        ttl_ms = self._ttl_ms
        given = integer(header.header(b"x-cache-ttl"))
        if given >= 0:
            ttl_ms = min(given, MAX_MILLISECONDS)
        self._seen.add(key, ttl_ms)

    def forget(self, header: ContentHeader) -> None:
        """Forgets the identity of a message that was not taken after all: its publisher is told, and may publish it again."""
        key = header.header(self._header)
        if key:
            self._seen.discard(key)


def deduplication(arguments: FieldTable, what: str, clock: Clock) -> Deduplication | None:
    """The Deduplication of these arguments; None where `x-message-deduplication` is not true.

    Raises 406 for bad arguments; `what` names the exchange or queue in the text.
    """
    if not arguments or SWITCH not in arguments:
        return None
    wanted = arguments[SWITCH]
    if not isinstance(wanted, bool):
        raise _refused(SWITCH, what, f"{{unacceptable_type,{arguments.type_name(SWITCH)}}}")
    header = arguments.get(DEFAULT_HEADER, DEFAULT_HEADER)
    if not isinstance(header, str):
        raise _refused(DEFAULT_HEADER, what, f"{{unacceptable_type,{arguments.type_name(DEFAULT_HEADER)}}}")
    size = _integer("x-cache-size", arguments, what, DEFAULT_SIZE)
    if size == 0:
        raise _refused("x-cache-size", what, "{value_zero,0}")
    ttl_ms = _integer("x-cache-ttl", arguments, what, int(FOR_EVER))
    return Deduplication(header, size, min(ttl_ms, MAX_MILLISECONDS), clock) if wanted else None


def integer(raw: bytes) -> int:
    """The integer of an encoded value, type letter first; -1 for anything else."""
    letter = chr(raw[0]) if raw else ""
    if letter not in INTEGER_TYPES:
        return -1
    return int.from_bytes(raw[1:], "big", signed=letter not in "Bui")


def _integer(key: str, arguments: FieldTable, what: str, default: int) -> int:
    if key not in arguments:
        return default
    value = arguments[key]
    if not arguments.is_integer(key) or not isinstance(value, int):
        raise _refused(key, what, f'"expected integer, got {arguments.type_name(key)}"')
    if value < 0:
        raise _refused(key, what, f"{{value_negative,{value}}}")
    return value


def _refused(key: str, what: str, why: str) -> ChannelClosed:
    return ChannelClosed(PRECONDITION_FAILED, f"invalid arg '{key}' for {what}: {why}")
