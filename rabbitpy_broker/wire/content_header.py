"""A message's content header as routing sees it: nothing is decoded before somebody asks, and the table only once.

The payload has passed `check_header`. If a headers table has a key twice, `headers` gives the last value and `header`
the first.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.wire.field_table import FieldTable
from rabbitpy_broker.wire.properties import (
    HEADERS,
    TIMESTAMP,
    decode_headers,
    find_header,
    find_property,
    short_property,
)


class ContentHeader:
    """See the top of this file."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._headers: FieldTable | None = None
        self._decoded = False

    def headers(self) -> FieldTable | None:
        """The headers table; None when there is none. Raises ValueError for keys that are not UTF-8."""
        if not self._decoded:
            self._headers = decode_headers(self.payload)
            self._decoded = True
        return self._headers

    def header(self, key: bytes) -> bytes:
        """The value of one header as it came, type letter first; empty when the header is not there."""
        at = find_property(self.payload, HEADERS)
        if at == 0:
            return b""
        start, end = find_header(self.payload, at, key)
        return self.payload[start:end]

    def text(self, bit: i64) -> str | None:
        """The short string property with this bit; None when it is not there."""
        raw = short_property(self.payload, bit)
        return None if raw is None else raw.decode("utf-8", "replace")

    def timestamp(self) -> int | None:
        """Seconds since 1970."""
        at = find_property(self.payload, TIMESTAMP)
        return None if at == 0 else int.from_bytes(self.payload[at : at + 8], "big")
