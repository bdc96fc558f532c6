"""Messages as columns: the schema of the format `amqp`, and the way from AMQP properties to Arrow and back.

A delivery is a plain tuple, for there are tens of thousands a second:

    (delivery_tag, redelivered, exchange, routing_key, properties, body, received_us)

Columns are built from whole lists. What must stay true: a batch has exactly the schema that Spark derives from `schema()`,
or it refuses the batch.

Values of headers become text: a string is itself, true and false are in lower case, a time is ISO 8601, bytes that are not
UTF-8 are base64, tables and arrays are JSON. With headersAs=json the whole table is one JSON object, with its types.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pika
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rabbitpy_broker.pipeline.amqp.stream_frames import Layout

Delivery: TypeAlias = tuple[int, bool, str, str, pika.BasicProperties, bytes, int]
TAG: Final = 0
BODY: Final = 5

# Property columns: name in the schema, attribute of pika's properties, Spark's type.
PROPERTIES: Final = (
    ("content_type", "STRING"),
    ("content_encoding", "STRING"),
    ("delivery_mode", "INT"),
    ("priority", "INT"),
    ("correlation_id", "STRING"),
    ("reply_to", "STRING"),
    ("expiration", "STRING"),
    ("message_id", "STRING"),
    ("timestamp", "TIMESTAMP"),
    ("type", "STRING"),
    ("user_id", "STRING"),
    ("app_id", "STRING"),
)
# What says how a message came here; of no use to who publishes it.
READ_ONLY: Final = ("redelivered", "queue", "offset", "partition", "received_at")
# Seconds whose microseconds no longer fit into 64 bits.
TIMESTAMP_LIMIT: Final = 2**63 // 1_000_000

_MAP_TYPE: Final = pa.map_(pa.string(), pa.string())


def ddl(include_headers: bool = True, headers_as: str = "map", of_streams: bool = False) -> str:
    """The columns of what is read, in Spark's words. Those of streams have the number of the partition as well."""
    properties = ", ".join(f"{name} {kind}" for name, kind in PROPERTIES)
    columns = (
        "body BINARY, exchange STRING, routing_key STRING, redelivered BOOLEAN, queue STRING, offset BIGINT, "
        f"{'partition INT, ' if of_streams else ''}received_at TIMESTAMP, {properties}"
    )
    if not include_headers:
        return columns
    return f"{columns}, headers {'STRING' if headers_as == 'json' else 'MAP<STRING, STRING>'}"


def arrow_schema(schema: StructType) -> pa.Schema:
    """The one schema that Spark takes batches in."""
    return to_arrow_schema(schema, timezone="UTC")


def to_batch(deliveries: Sequence[Delivery], queue: str, first_offset: int, schema: pa.Schema) -> pa.RecordBatch:
    """Deliveries, of which there must be some, as a batch of the given schema."""
    count = len(deliveries)
    _, redelivered, exchanges, routing_keys, properties, bodies, received = zip(*deliveries, strict=True)
    columns: dict[str, Any] = {
        "body": pa.array(bodies, pa.binary()),
        "exchange": _strings(exchanges),
        "routing_key": _strings(routing_keys),
        "redelivered": pa.array(redelivered, pa.bool_()),
        "queue": pa.repeat(pa.scalar(queue, pa.string()), count),
        "offset": pa.array(range(first_offset, first_offset + count), pa.int64()),
        "received_at": pa.array(received, pa.timestamp("us", tz="UTC")),
    }
    for name, kind in PROPERTIES:
        # pika sets on an object only what is in the message; the rest are the class's None
        values = [getattr(each, name) for each in properties]
        if kind == "STRING":
            columns[name] = _strings(values)
        elif kind == "INT":
            columns[name] = pa.array(values, pa.int32())
        else:
            columns[name] = pa.array(map(_microseconds, values), pa.timestamp("us", tz="UTC"))
    if "headers" in schema.names:
        tables = [each.headers for each in properties]
        if schema.field("headers").type == pa.string():
            columns["headers"] = pa.array([table and to_json(table) for table in tables], pa.string())
        else:
            columns["headers"] = _maps(tables)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def stream_batch(
    offsets: Sequence[int], bodies: Sequence[bytes], layouts: Sequence[Layout], queue: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Messages of a stream, of which there must be some, as a batch of the given schema.

    What many messages have in common is converted once, and then looked up for each.
    """
    count = len(offsets)
    numbers: dict[Layout, int] = {}
    of_rows = pa.array([numbers.setdefault(layout, len(numbers)) for layout in layouts], pa.int32())
    now = time.time_ns() // 1000
    distinct = to_batch(
        [
            (0, each.redelivered, each.exchange, each.routing_key, each.properties, b"", now) for each in numbers
        ],
        queue, 0, pa.schema([field for field in schema if field.name != "partition"]),
    )  # fmt: skip
    own = {
        "body": pa.array(bodies, pa.binary()),
        "offset": pa.array(offsets, pa.int64()),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
    }
    columns = [own[name] if name in own else distinct.column(name).take(of_rows) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def header_text(value: object) -> str | None:
    """A header's value as text; None of a header without a value."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return format(value, "d")  # pika's own integers have a suffix
        case bytes():
            return _bytes_text(value)
        case dt.datetime():
            return value.isoformat()
        case Mapping() | list():
            return to_json(value)
        case _:
            return str(value)


def to_json(value: object) -> str:
    """A header table, or a value in one, as JSON."""
    return json.dumps(_named(value), default=_json_value, ensure_ascii=False)


def publishable_properties(names: Iterable[str]) -> list[str]:
    """The property columns among these names."""
    wanted = set(names)
    return [name for name, _ in PROPERTIES if name in wanted]


def _strings(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except pa.ArrowInvalid:  # pika leaves what is not UTF-8 as bytes
        texts = [each.decode("utf-8", "backslashreplace") if isinstance(each, bytes) else each for each in values]
        return pa.array(texts, pa.string())


def _microseconds(seconds: int | None) -> int | None:
    return seconds * 1_000_000 if seconds is not None and seconds < TIMESTAMP_LIMIT else None


def _maps(tables: Sequence[Mapping[Any, object] | None]) -> pa.Array:
    if not any(tables):
        return pa.array([None if table is None else [] for table in tables], _MAP_TYPE)
    rows = [
        None if table is None else [(_name(key), header_text(value)) for key, value in table.items()]
        for table in tables
    ]
    return pa.array(rows, _MAP_TYPE)


def _named(value: object) -> object:
    """The same with names that are text, however deep."""
    match value:
        case Mapping():
            return {_name(key): _named(inner) for key, inner in value.items()}
        case list():
            return [_named(inner) for inner in value]
    return value


def _name(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")


def _bytes_text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(value).decode("ascii")


def _json_value(value: object) -> object:
    match value:
        case bytes():
            return _bytes_text(value)
        case dt.datetime():
            return value.isoformat()
        case decimal.Decimal():
            return str(value)
    raise TypeError(f"no AMQP value: {type(value).__name__}")
