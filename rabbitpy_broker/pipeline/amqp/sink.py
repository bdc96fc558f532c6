"""Rows become messages: one connection for each task, publisher confirms, and a window of messages that are not confirmed.

A task has succeeded when the broker has confirmed every one of its rows. A row that is returned as unroutable or refused fails
the task, as does a broker that confirms nothing for `confirmTimeoutMs`; what was published before stays published, so
that rows come at least once. Nothing of AMQP holds messages back until Spark commits: its transactions end with the task.

The connection has a thread of its own, which answers heartbeats while Spark computes the next rows.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pika
import pyarrow as pa
from pika.channel import Channel
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rabbitpy_broker.pipeline.amqp.messages import PROPERTIES, READ_ONLY, publishable_properties
from rabbitpy_broker.pipeline.amqp.options import WriteOptions
from rabbitpy_broker.pipeline.amqp.receiver import place, told
from rabbitpy_broker.pipeline.errors import PipelineError

# exchange, routing_key, properties, body
Publish: TypeAlias = tuple[str, str, pika.BasicProperties, bytes]

ROWS_PER_CALL: Final = 500
SAMPLE: Final = 5
CONNECT_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 5.0


@dataclass
class Published(WriterCommitMessage):
    rows: int


class AmqpWriter(DataSourceArrowWriter):
    """Of a batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.stamp_batch:
            raise PipelineError("option stampBatch: only a streaming query has batches")
        self._options = options
        self._rows = RowReader(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return publish_all(self._options, self._rows, iterator, {})


class AmqpStreamWriter(DataSourceStreamArrowWriter):
    """Of a streaming query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._rows = RowReader(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return publish_all(self._options, self._rows, iterator, self._stamp())

    def _stamp(self) -> dict[str, Any]:
        """Headers that are the same for a row when its batch is written again."""
        if not self._options.stamp_batch:
            return {}
        context = TaskContext.get()
        if context is None:
            raise PipelineError("option stampBatch: there is no task")
        return {
            "x-spark-query": context.getLocalProperty("sql.streaming.queryId"),
            "x-spark-batch": int(context.getLocalProperty("streaming.sql.batchId") or -1),
            "x-spark-partition": context.partitionId(),
        }


def publish_all(
    options: WriteOptions, rows: RowReader, batches: Iterator[pa.RecordBatch], stamp: dict[str, Any]
) -> Published:
    """Publishes every row and waits for the confirms. Raises PipelineError."""
    publisher = Publisher(options)
    try:
        publisher.start()
        for batch in batches:
            publishes = rows.publishes(batch, stamp, publisher.handed_over)
            for position in range(0, len(publishes), publisher.rows_per_call):
                publisher.publish(publishes[position : position + publisher.rows_per_call])
        publisher.finish()
        return Published(publisher.handed_over)
    finally:
        publisher.close()


class RowReader:
    """How the columns of a query become messages. Raises PipelineError where they cannot."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._exchange = options.exchange
        self._routing_key = options.routing_key
        self._delivery_mode = options.delivery_mode
        names = set(schema.fieldNames())
        allowed = {"body", "exchange", "routing_key", "headers", *READ_ONLY, *(name for name, _ in PROPERTIES)}
        unknown = sorted(names - allowed)
        if unknown:
            raise PipelineError(f"columns that no message has: {', '.join(unknown)}; there are {', '.join(sorted(allowed))}")
        if "body" not in names:
            raise PipelineError("column body is missing")
        if self._routing_key is None and "routing_key" not in names:
            raise PipelineError("say where to: with the option routingKey, or a column routing_key")
        if self._exchange is None and "exchange" not in names:
            self._exchange = ""
        wanted = {
            "body": ("binary", "string"),
            "headers": ("map<string,string>", "string"),
            **{name: (kind.lower(),) for name, kind in PROPERTIES},
        }
        for field in schema.fields:
            kind = field.dataType.simpleString()
            kinds = wanted.get(field.name, (kind,))
            if kind not in kinds:
                raise PipelineError(f"column {field.name} is {kind}, and not {' or '.join(kinds)}")
        self._properties = publishable_properties(names)
        self._has_headers = "headers" in names

    def publishes(self, batch: pa.RecordBatch, stamp: dict[str, Any], first_row: int) -> list[Publish]:
        """The batch's rows as messages. `stamp` goes into the headers, with the number of the row."""
        count = batch.num_rows
        exchanges = self._addresses(batch, "exchange", self._exchange)
        routing_keys = self._addresses(batch, "routing_key", self._routing_key)
        bodies = batch.column("body").to_pylist()
        if None in bodies:
            raise PipelineError(f"row {first_row + bodies.index(None)} has no body")
        if bodies and isinstance(bodies[0], str):
            bodies = [body.encode() for body in bodies]
        columns = {name: self._values(batch, name) for name in self._properties}
        if "delivery_mode" in columns:
            columns["delivery_mode"] = [mode or self._delivery_mode for mode in columns["delivery_mode"]]
        else:
            columns["delivery_mode"] = [self._delivery_mode] * count
        if self._has_headers or stamp:
            headers = batch.column("headers").to_pylist() if self._has_headers else [None] * count
            columns["headers"] = [
                self._headers(each, stamp, first_row + row) for row, each in enumerate(headers)
            ]
        if len(columns) == 1 and "delivery_mode" not in self._properties:
            properties = [pika.BasicProperties(delivery_mode=self._delivery_mode)] * count
        else:
            names = list(columns)
            properties = [
                pika.BasicProperties(**dict(zip(names, values, strict=True)))
                for values in zip(*columns.values(), strict=True)
            ]
        return list(zip(exchanges, routing_keys, properties, bodies, strict=True))

    @staticmethod
    def _addresses(batch: pa.RecordBatch, column: str, fixed: str | None) -> list[str]:
        if fixed is not None:
            return [fixed] * batch.num_rows
        values: list[str] = batch.column(column).to_pylist()
        if None in values:
            raise PipelineError(f"a row has no {column}")
        return values

    @staticmethod
    def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
        column = batch.column(name)
        if name != "timestamp":
            return list(column.to_pylist())
        return [None if each is None else each // 1_000_000 for each in column.cast(pa.int64()).to_pylist()]

    @staticmethod
    def _headers(given: Any, stamp: dict[str, Any], row: int) -> dict[str, Any] | None:
        headers: dict[str, Any] | None = None
        if isinstance(given, str):
            try:
                headers = json.loads(given)
            except ValueError:
                headers = None
            if not isinstance(headers, dict):
                raise PipelineError(f"row {row}: headers are no JSON object")
        elif given is not None:
            headers = dict(given)
        return {**(headers or {}), **stamp, "x-spark-row": row} if stamp else headers


class Publisher:
    """One connection in a thread of its own: `start`, `publish` in parts of `rows_per_call`, `finish`, and `close` always."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._parameters = options.address.parameters()
        self._timeout_s = options.confirm_timeout_ms / 1000
        self.rows_per_call = min(ROWS_PER_CALL, options.max_in_flight)
        self.handed_over = 0
        self._connection: pika.SelectConnection | None = None
        self._channel: Channel | None = None
        self._thread = threading.Thread(target=self._run, name="amqp publisher", daemon=True)
        # Guards what follows, and tells of every change to it.
        self._changed = threading.Condition()
        self._is_ready = False
        self._settled = 0
        self._unconfirmed: dict[int, tuple[str, str]] = {}  # publish number -> exchange and routing key
        self._publish_seqno = 0
        self._unroutable = 0
        self._refused = 0
        self._samples: list[str] = []
        self._blocked = ""
        self._ended: BaseException | None = None

    # --- the task's thread ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connects. Raises PipelineError."""
        connection = pika.SelectConnection(
            self._parameters,
            on_open_callback=lambda opened: opened.channel(on_open_callback=self._on_channel),
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
        )
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._connection = connection
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._ended, CONNECT_TIMEOUT_S)
            if not self._is_ready:
                why = told(self._ended) if self._ended else f"no answer within {CONNECT_TIMEOUT_S:.0f} s"
                raise PipelineError(f"{place(self._parameters)}: {why}") from self._ended

    def publish(self, rows: Sequence[Publish]) -> None:
        """Hands over a part of `rows_per_call` at most, when the window has room for it. Raises PipelineError."""
        assert self._connection is not None
        self._wait(self._options.max_in_flight - len(rows))
        self.handed_over += len(rows)
        self._call(functools.partial(self._send, rows))

    def finish(self) -> None:
        """Waits until every row is confirmed. Raises PipelineError."""
        self._wait(0)
        with self._changed:
            if self._unroutable or self._refused:
                raise self._failure("")

    def close(self) -> None:
        """Ends connection and thread."""
        self._call(self._close_connection)
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)

    def _wait(self, most_in_flight: int) -> None:
        """Returns when at most so many rows are not settled."""
        with self._changed:
            while self.handed_over - self._settled > most_in_flight:
                if self._ended is not None:
                    raise self._failure(told(self._ended)) from self._ended
                if self._unroutable or self._refused:
                    most_in_flight = 0  # nothing more is published, but what is on the way is counted
                if not self._changed.wait(self._timeout_s):
                    blocked = f"; it blocks publishers: {self._blocked}" if self._blocked else ""
                    raise self._failure(
                        f"the broker has confirmed nothing for {self._options.confirm_timeout_ms} ms{blocked}"
                    )
            if self._ended is not None:
                raise self._failure(told(self._ended)) from self._ended
            if self._unroutable or self._refused:
                raise self._failure("")

    def _failure(self, why: str) -> PipelineError:
        unconfirmed = self.handed_over - self._settled
        counts = [
            (self._unroutable, "unroutable"),
            (self._refused, "refused (nack)"),
            (unconfirmed, "not confirmed"),
        ]
        said = ", ".join(f"{count} {what}" for count, what in counts if count)
        failed = self._unroutable + self._refused + unconfirmed
        samples = self._samples or [_shown(*where) for where in list(self._unconfirmed.values())[:SAMPLE]]
        return PipelineError(
            f"{place(self._parameters)}: {failed} of {self.handed_over} rows that were published are not with the broker"
            + (f" ({said})" if said else "")
            + (f": {why}" if why else "")
            + (f"; the first: {'; '.join(samples)}" if samples else "")
        )

    # --- the connection's thread ---------------------------------------------------------------------------------------------

    def _call(self, function: Any) -> None:
        with self._changed:
            if self._connection is not None:
                self._connection.ioloop.add_callback_threadsafe(function)

    def _run(self) -> None:
        connection = self._connection
        assert connection is not None
        why: BaseException | None = None
        try:
            connection.ioloop.start()
        # A value that AMQP cannot carry, such as a routing key that is too long: raised in the task's thread.
        except Exception as error:  # noqa: BLE001
            why = error
        with self._changed:
            self._connection = None
            self._ended = self._ended or why or PipelineError("the connection was closed")
            self._changed.notify_all()
        connection.ioloop.close()

    def _on_channel(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_settled, callback=self._on_confirming)

    def _on_confirming(self, _frame: Any) -> None:
        with self._changed:
            self._is_ready = True
            self._changed.notify_all()

    def _send(self, rows: Sequence[Publish]) -> None:
        channel = self._channel
        if channel is None or not channel.is_open:
            return
        mandatory = self._options.mandatory
        for exchange, routing_key, properties, body in rows:
            self._publish_seqno += 1
            self._unconfirmed[self._publish_seqno] = (exchange, routing_key)
            channel.basic_publish(exchange, routing_key, body, properties, mandatory)

    def _on_return(self, _channel: Channel, method: Any, _properties: Any, _body: bytes) -> None:
        with self._changed:
            self._unroutable += 1
            self._sample(method.exchange, method.routing_key, method.reply_text)

    def _on_settled(self, frame: Any) -> None:
        method = frame.method
        tag = method.delivery_tag
        tags = [tag]
        if method.multiple:  # the numbers are in ascending order; 0 stands for all of them
            tags = list(itertools.takewhile(lambda each: each <= tag or not tag, self._unconfirmed))
        is_refused = method.NAME == "Basic.Nack"
        with self._changed:
            for each in tags:
                exchange, routing_key = self._unconfirmed.pop(each)
                if is_refused:
                    self._refused += 1
                    self._sample(exchange, routing_key, "nack")
            self._settled += len(tags)
            self._changed.notify_all()

    def _sample(self, exchange: str, routing_key: str, why: str) -> None:
        if len(self._samples) < SAMPLE:
            self._samples.append(f"{_shown(exchange, routing_key)}: {why}")

    def _on_blocked(self, _connection: Any, frame: Any) -> None:
        self._blocked = frame.method.reason

    def _on_unblocked(self, _connection: Any, _frame: Any) -> None:
        self._blocked = ""

    def _on_channel_closed(self, _channel: Channel, why: BaseException) -> None:
        self._ended = self._ended or why
        self._close_connection()

    def _on_closed(self, connection: pika.SelectConnection, why: BaseException) -> None:
        self._ended = self._ended or why
        connection.ioloop.stop()

    def _close_connection(self) -> None:
        connection = self._connection
        if connection is not None and not (connection.is_closing or connection.is_closed):
            connection.close()


def _shown(exchange: str, routing_key: str) -> str:
    return f"routing key {routing_key!r} of {f'exchange {exchange!r}' if exchange else 'the default exchange'}"
