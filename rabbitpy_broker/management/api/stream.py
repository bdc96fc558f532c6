"""A stream as pages show it: where it begins and ends, its segments, who reads where, and the offsets that are kept by name."""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.management.api.consumers import user_of
from rabbitpy_broker.management.api.errors import ApiError, bad_request
from rabbitpy_broker.management.api.queues import find
from rabbitpy_broker.management.api.request import Request, Row, integer
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.streams import list_stream_offsets
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.stream_deliveries import StreamConsumer
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.stream_queue import StreamQueue

SEGMENTS_SHOWN: Final = 100  # the newest


def of_queue(api: Api, request: Request) -> Row:
    """Raises ApiError 404, and 400 for a queue that is no stream."""
    _, queue = find(api, request)
    if not isinstance(queue, StreamQueue):
        raise bad_request(f"'{queue.name}' is no stream")
    return stream_row(api, queue)


def stream_row(api: Api, stream: StreamQueue) -> Row:
    """Offsets are those of messages: the last one is -1 while there is none. Times are in ms since 1970, None while unknown."""
    log = stream.log
    settings = log.settings
    return {
        "first_offset": int(log.first_offset),
        "last_offset": int(log.committed) - 1,
        "first_timestamp": _known(int(log.first_timestamp_ms)),
        "last_timestamp": _known(int(log.last_timestamp_ms)),
        "bytes": int(log.size_bytes),
        "segments": int(log.segment_count()),
        "segment_list": [
            {"first_offset": int(one.first_offset), "bytes": int(one.size), "damaged": bool(one.is_damaged)}
            for one in log.segments.segments[-SEGMENTS_SHOWN:]
        ],
        "max_length_bytes": _known(int(settings.max_length_bytes)),
        "max_age_ms": _known(int(settings.max_age_ms)),
        "max_segment_bytes": int(settings.max_segment_bytes),
        "readers": _readers(stream),
        "offsets": [
            {"reference": row["reference"], "offset": row["offset"], "lag": row["offset_lag"]}
            for row in list_stream_offsets(api.admin, vhost=stream.vhost)
            if row["stream"] == stream.name
        ],
    }


def _readers(stream: StreamQueue) -> list[Row]:
    """Consumers, and how many messages each has before it."""
    found: list[Row] = []
    for consumer, cursor in list(stream.cursors.items()):
        if isinstance(consumer, StreamConsumer):
            connection = consumer.deliveries.host
            found.append(
                {
                    "consumer_tag": consumer.tag,
                    "channel": f"{connection.name} ({int(consumer.deliveries.number)})",
                    "user": user_of(connection),
                    "client_name": connection.session.client_name if isinstance(connection, Connection) else "",
                    "offset": int(cursor.last_offset) if cursor.delivered else None,
                    "lag": int(cursor.lag()),
                    "delivered": int(cursor.delivered),
                    "credits": max(0, int(consumer.prefetch_limit - consumer.unacked_count)),
                }
            )
    return found


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def start_of(request: Request, queue: Queue, *, forward: bool) -> int | None:
    """The offset behind which, or before which, a page begins, where `offset` or `time` (ms since 1970) ask for one. Raises
    ApiError 400, and 503 when the disk cannot say where a time is.
    """
    query = request.query
    if "offset" not in query and "time" not in query:
        return None
    if not isinstance(queue, StreamQueue):
        raise bad_request("only a stream has offsets and times")
    if "offset" in query:
        offset = integer(query["offset"])
    else:
        try:
            offset = int(queue.log.offset_at(integer(query["time"])))
        except OSError as error:
            raise ApiError(503, "service_unavailable", f"the stream cannot be read: {error}") from None
    if not 0 <= offset < 1 << 62:
        raise bad_request("an offset is a number from 0 on")
    return offset - 1 if forward else offset + 1
