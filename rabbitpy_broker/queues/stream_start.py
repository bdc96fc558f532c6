"""Where a consumer begins in a stream (`x-stream-offset`), what it wants to see (`x-stream-filter`), and ages like `7D`.

  first      the oldest message that is kept          last       the newest chunk that is kept
  next       what is published from now on            number     this offset, or the first one kept behind it
  timestamp, and an age that is counted back from now: the chunk in which this time lies

An offset that is not there yet is waited for; what lies before it is not delivered.
"""

from __future__ import annotations

import re
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.erlang_text import as_erlang
from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.wire.field_table import FieldTable

OFFSET: Final = "x-stream-offset"
FILTER: Final = "x-stream-filter"
MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
_DAY_MS: Final = 86_400_000
AGE_MS: Final = {"Y": 365 * _DAY_MS, "M": 30 * _DAY_MS, "D": _DAY_MS, "h": 3_600_000, "m": 60_000, "s": 1_000}

FIRST: Final[i64] = 0
LAST: Final[i64] = 1
NEXT: Final[i64] = 2
AT_OFFSET: Final[i64] = 3
AT_TIME: Final[i64] = 4
_WORDS: Final = {"first": FIRST, "last": LAST, "next": NEXT}
_HIGHEST: Final = (1 << 62) - 1


class StreamStart:
    """`number` is the offset for AT_OFFSET, and milliseconds since 1970 for AT_TIME. `values` None: no filter."""

    def __init__(self, kind: i64, number: i64, values: list[bytes] | None, match_unfiltered: bool) -> None:
        self.kind = kind
        self.number = number
        self.values = values
        self.match_unfiltered = match_unfiltered


def is_age(text: str) -> bool:
    """Whether it is a number above 0 and a unit: Y, M, D, h, m or s."""
    return re.fullmatch("0*[1-9][0-9]*[YMDhms]", text, re.ASCII) is not None


def age_ms(text: str) -> int:
    """Milliseconds of an age: a year has 365 days, a month 30."""
    return min(AGE_MS[text[-1]] * int(text[:-1]), _HIGHEST)


def stream_start(arguments: FieldTable, what: str, now_ms: i64) -> StreamStart:
    """What the arguments of basic.consume ask for; `what` names the queue. Raises 406."""
    kind, number = _start(arguments, what, now_ms)
    match = arguments.get(MATCH_UNFILTERED, False)
    if not isinstance(match, bool):
        raise _invalid(MATCH_UNFILTERED, what, f"{{unacceptable_type,{arguments.type_name(MATCH_UNFILTERED)}}}")
    return StreamStart(kind, number, _values(arguments, what), match)


def _start(arguments: FieldTable, what: str, now_ms: i64) -> tuple[i64, i64]:
    if OFFSET not in arguments:
        return NEXT, i64(0)
    value = arguments[OFFSET]
    if isinstance(value, str):
        if value in _WORDS:
            return _WORDS[value], i64(0)
        if is_age(value):
            return AT_TIME, i64(max(0, int(now_ms) - age_ms(value)))
        raise _bad_offset(what, f"{{longstr,{as_erlang(value)}}}")
    if arguments.is_integer(OFFSET) and isinstance(value, int):
        return AT_OFFSET, i64(max(0, min(value, _HIGHEST)))
    if arguments.types[OFFSET] == "T" and isinstance(value, int):
        return AT_TIME, i64(max(0, min(value, _HIGHEST // 1_000)) * 1_000)
    raise _bad_offset(what, arguments.type_name(OFFSET))


def _values(arguments: FieldTable, what: str) -> list[bytes] | None:
    """One string or an array of them."""
    if FILTER not in arguments:
        return None
    given = arguments[FILTER]
    values = given if isinstance(given, list) else [given]
    texts = [value.encode("utf-8") for value in values if isinstance(value, str)]
    if len(texts) < len(values) or not texts:
        raise _invalid(FILTER, what, f"{{unacceptable_type,{arguments.type_name(FILTER)}}}")
    return texts


def _bad_offset(what: str, value: str) -> ChannelClosed:
    return _invalid(OFFSET, what, f"{{invalid_stream_offset_arg,{value}}}")


def _invalid(key: str, what: str, why: str) -> ChannelClosed:
    return ChannelClosed(PRECONDITION_FAILED, f"invalid arg '{key}' {what}: {why}")
