"""What several resources show in the same way."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote_plus

from rabbitpy_broker.management.api.errors import bad_request
from rabbitpy_broker.management.api.rates import Span, stats
from rabbitpy_broker.wire.field_table import FieldTable, field_table

DEFAULT_EXCHANGE: Final = "amq.default"  # what the exchange "" is called in a path
NO_COLLECTION: Final = {
    "fullsweep_after": 0,
    "max_heap_size": 0,
    "min_bin_vheap_size": 0,
    "min_heap_size": 0,
    "minor_gcs": 0,
}


def erlang_process(span: Span | None) -> dict[str, Any]:
    """What RabbitMQ says of the Erlang process behind a thing."""
    return {"garbage_collection": NO_COLLECTION, **stats(("reductions",), (0,), None, span)}


def arguments(given: Any) -> FieldTable:
    """The table that an `arguments` in a body stands for. Raises ApiError 400."""
    if given in ([], None):
        given = {}
    if not isinstance(given, dict):
        raise bad_request("arguments must be an object")
    _no_null(given)
    try:
        return field_table(given)
    except (ValueError, OverflowError) as error:
        raise bad_request(f"arguments: {error}") from None


def _no_null(value: Any) -> None:
    """As RabbitMQ has it, which knows no way to write one."""
    if value is None:
        raise bad_request("null_not_allowed")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _no_null(inner)


def iso_time(seconds: float) -> str:
    """As `idle_since` has it: to the millisecond, in UTC."""
    whole, part = divmod(int(seconds * 1000), 1000)
    return f"{_second(whole)}.{part:03}+00:00"


@lru_cache(maxsize=256)  # a list has the same seconds again and again
def _second(since_1970: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since_1970))


def quoted(text: str) -> str:
    """As RabbitMQ quotes a routing key in a properties_key: all but letters, digits and `_.-`; a space is a plus."""
    return quote_plus(text, safe="")


def exchange_name(in_path: str) -> str:
    return "" if in_path == DEFAULT_EXCHANGE else in_path
