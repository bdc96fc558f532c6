"""The `x-delay` header of the delayed message exchange: read, and made negative once the delay is over.

A delay is a number of milliseconds from 1 to MAX_DELAY_MS: an integer of any width, a float or decimal (the digits
behind the point are cut off) or a string of digits. A message with any other value has no delay and is routed at once.
When the delay is over, the header becomes the negative of its value. Consumers then see how long the delay was, and the
next delayed message exchange on the way does not delay the message again.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.wire.edit_header import join_table, raw_headers, split_table, with_headers
from rabbitpy_broker.wire.field_table import FieldTable

DELAY: Final = "x-delay"
MAX_DELAY_MS: Final = 4_294_967_295

_SIGNED_32: Final = 1 << 31


def delay_ms(headers: FieldTable | None) -> i64:
    """The delay that a message asks for; 0 when the message is to be routed at once."""
    if headers is None:
        return 0
    value = _number(headers)
    return i64(value) if 0 < value <= MAX_DELAY_MS else 0


def _number(headers: FieldTable) -> int:
    """The header as an integer of any size, 0 when it is no number."""
    value = headers.get(DELAY)
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value if headers.is_integer(DELAY) else 0
    if isinstance(value, (float, Decimal)):
        try:
            return int(value)
        except (ValueError, OverflowError):  # not a number, infinity
            return 0
    if isinstance(value, str):
        digits = value[1:] if value[:1] in ("+", "-") else value
        return int(value) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0
    return 0


def waited(payload: bytes, headers: FieldTable) -> bytes:
    """The header payload of a message whose delay is over, with the delay made negative.

    Assumes: `headers` is the table of this payload, and has a delay.
    """
    value = -_number(headers)
    items = split_table(raw_headers(payload))
    if -_SIGNED_32 <= value < _SIGNED_32:
        items[DELAY] = b"I" + value.to_bytes(4, "big", signed=True)
    else:
        items[DELAY] = b"l" + value.to_bytes(8, "big", signed=True)
    return with_headers(payload, join_table(items))
