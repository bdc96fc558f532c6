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

from rabbitpy_broker.pipeline.amqp.stream_frames import TAIL_PROPERTIES, Layout, Messages, tail_columns

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

_TYPES: Final = {"STRING": pa.string(), "INT": pa.int32(), "TIMESTAMP": pa.timestamp("us", tz="UTC")}
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
        columns[name] = _property(kind, [getattr(each, name) for each in properties])
    if "headers" in schema.names:
        columns["headers"] = _headers([each.headers for each in properties], schema.field("headers").type)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def stream_batch(read: Messages, queue: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Messages of a stream, of which there must be some, as a batch of the given schema.

    What many messages have in common is converted once, and then looked up for each. Raises PipelineError.
    """
    count = len(read.offsets)
    numbers: dict[Layout, int] = {}
    of_rows = pa.array([numbers.setdefault(layout, len(numbers)) for layout in read.layouts], pa.int32())
    layouts = list(numbers)
    shared = {
        "exchange": _strings([each.exchange for each in layouts]),
        "routing_key": _strings([each.routing_key for each in layouts]),
        "redelivered": pa.array([each.redelivered for each in layouts], pa.bool_()),
        "content_type": _strings([each.content_type for each in layouts]),
        "content_encoding": _strings([each.content_encoding for each in layouts]),
    }
    if "headers" in schema.names:
        shared["headers"] = _headers([each.headers for each in layouts], schema.field("headers").type)
    columns = {
        "body": pa.array(read.bodies, pa.binary()),
        "offset": pa.array(read.offsets, pa.int64()),
        "queue": pa.repeat(pa.scalar(queue, pa.string()), count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "received_at": pa.repeat(pa.scalar(time.time_ns() // 1000, pa.timestamp("us", tz="UTC")), count),
        **{name: column.take(of_rows) for name, column in shared.items()},
        **_tails(read),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _tails(read: Messages) -> dict[str, pa.Array]:
    """The columns of the properties that are in tails."""
    numbers: dict[tuple[int, bytes], int] = {}
    of_rows = [
        numbers.setdefault((layout.flags, tail), len(numbers))
        for layout, tail in zip(read.layouts, read.tails, strict=True)
    ]
    groups: dict[int, list[bytes]] = {}
    for flags, tail in numbers:
        groups.setdefault(flags, []).append(tail)
    # Groups one after the other, and where each of the distinct ones is then.
    places = dict(zip(((flags, tail) for flags, tails in groups.items() for tail in tails), range(len(numbers)), strict=True))
    taken = pa.array([places[each] for each in numbers], pa.int32()).take(pa.array(of_rows, pa.int32()))
    found = [(len(tails), tail_columns(flags, tails)) for flags, tails in groups.items()]
    return {
        name: pa.concat_arrays([
            _property(kind, columns[name]) if name in columns else pa.nulls(size, _TYPES[kind]) for size, columns in found
        ]).take(taken)
        for name, kind in PROPERTIES
        if name in TAIL_PROPERTIES
    }  # fmt: skip


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


def _property(kind: str, values: Sequence[Any]) -> pa.Array:
    if kind == "STRING":
        return _strings(values)
    if kind == "TIMESTAMP":
        values = list(map(_microseconds, values))
    return pa.array(values, _TYPES[kind])


def _headers(tables: Sequence[Mapping[Any, object] | None], wanted: pa.DataType) -> pa.Array:
    if wanted == pa.string():
        return pa.array([table and to_json(table) for table in tables], pa.string())
    return _maps(tables)


def _strings(values: Sequence[Any]) -> pa.Array:
    """Of text, or of bytes that may be no UTF-8."""
    try:
        return pa.array(values, pa.string())
    except pa.ArrowInvalid:
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
