"""Content headers for tests of what looks at a message's header."""

from __future__ import annotations

from datetime import UTC, datetime

import pamqp.commands as amqp
from pamqp.header import ContentHeader as PamqpHeader

from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import with_headers
from rabbitpy_broker.wire.field_table import FieldTable, encode_table


def payload_of(**properties: object) -> bytes:
    """A header payload, by pamqp; `timestamp` in seconds since 1970."""
    stamp = properties.get("timestamp")
    if isinstance(stamp, int):
        properties["timestamp"] = datetime.fromtimestamp(stamp, UTC)
    marshalled: bytes = PamqpHeader(0, 0, amqp.Basic.Properties(**properties)).marshal()
    return marshalled


def header_of(headers: FieldTable | None = None) -> ContentHeader | None:
    """A header with this table; None without one."""
    return None if headers is None else ContentHeader(with_headers(payload_of(), encode_table(headers)[4:]))
