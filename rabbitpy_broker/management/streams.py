"""Super streams, and offsets that are stored by name: what rabbitpy-ctl has for streams.

A super stream is an exchange and its partitions, streams that are bound to it in order. With a number of partitions a message
goes to the partition of the hash of its routing key (routing/super_stream.py), with routing keys to that of its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rabbitpy_broker.errors import AmqpError
from rabbitpy_broker.management.admin import DATA_ERROR, USAGE, Admin, AdminError, check_name, split_tags
from rabbitpy_broker.queues.arguments import check_arguments
from rabbitpy_broker.queues.queue_settings import STREAM
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.routing.super_stream import PARTITION_ORDER
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.field_table import field_table

Row = dict[str, object]

PARTITIONS: Final = 3
PARTITIONS_MAX: Final = 10_000
OFFSET_MAX: Final = (1 << 62) - 1
SUPER_STREAM: Final = "x-super-stream"  # type and argument of the exchange


def add_super_stream(
    admin: Admin,
    name: str,
    *,
    vhost: str = "/",
    partitions: int = 0,
    routing_keys: str = "",
    max_length_bytes: int | None = None,
    max_age: str = "",
    stream_max_segment_size_bytes: int | None = None,
) -> None:
    """Declares the exchange and the partitions; all of them, or none when one of the names is taken."""
    target = admin.vhost(vhost)
    check_name("super stream", name)
    if partitions and routing_keys:
        raise AdminError("Specify --partitions or --routing-keys, not both.", USAGE)
    if not 0 <= partitions <= PARTITIONS_MAX:
        raise AdminError("The partition number must be greater than 0", USAGE)
    keys = split_tags(routing_keys) or [str(number) for number in range(partitions or PARTITIONS)]
    arguments: dict[str, Any] = {"x-queue-type": STREAM}
    given = {
        "x-max-length-bytes": max_length_bytes,
        "x-max-age": max_age or None,
        "x-stream-max-segment-size-bytes": stream_max_segment_size_bytes,
    }
    arguments |= {key: value for key, value in given.items() if value is not None}
    try:
        check_arguments(name, vhost, field_table(arguments))
        _declare(target, name, "direct" if routing_keys else SUPER_STREAM, keys, arguments)
    except AmqpError as error:
        raise AdminError(error.text, DATA_ERROR) from None
    admin.commit()


def _declare(vhost: VHost, name: str, kind: str, keys: list[str], arguments: dict[str, Any]) -> None:
    partitions = [f"{name}-{key}" for key in keys]
    for partition in partitions:
        check_name("partition", partition)
    taken = [partition for partition in partitions if partition in vhost.queues]
    if name in vhost.exchanges or taken or len(set(partitions)) < len(partitions):
        raise AdminError(f"exchange '{name}' or a queue of a partition exists already", DATA_ERROR)
    vhost.declare_exchange(name, kind, True, False, False, field_table({SUPER_STREAM: True}))
    exchange = vhost.exchange(name)
    for number, (key, partition) in enumerate(zip(keys, partitions, strict=True)):
        queue = vhost.declare_queue(partition, True, False, False, field_table(arguments), None)
        vhost.bind(exchange, queue, key, field_table({PARTITION_ORDER: number}))


def delete_super_stream(admin: Admin, name: str, *, vhost: str = "/") -> None:
    """Deletes the exchange and the streams that are bound to it as partitions."""
    target = admin.vhost(vhost)
    exchange = target.exchanges.get(name)
    if exchange is None or exchange.arguments.get(SUPER_STREAM) is not True:
        raise AdminError(f"There is no super stream '{name}' in vhost '{vhost}'", DATA_ERROR)
    bound = [binding.destination for binding in exchange.bindings() if PARTITION_ORDER in binding.arguments]
    target.delete_exchange(name, False)
    for partition in bound:
        if isinstance(partition, StreamQueue):
            target.delete_queue(partition)
    admin.commit()


# -- offsets ------------------------------------------------------------------------------------------------------


def store_offset(admin: Admin, reference: str, stream: str, offset: str, *, vhost: str = "/") -> None:
    """Keeps an offset of a stream under a name, in place of the one that it may have."""
    target = _with_stream(admin, vhost, stream)
    check_name("reference", reference)
    if not (offset.isascii() and offset.isdigit()) or int(offset) > OFFSET_MAX:
        raise AdminError(f"an offset is a number from 0 to {OFFSET_MAX}", USAGE)
    admin.definitions.put_offset(target.name, stream, reference, int(offset))
    admin.commit()


def query_offset(admin: Admin, reference: str, stream: str, *, vhost: str = "/") -> int:
    """The offset that is kept."""
    target = _with_stream(admin, vhost, stream)
    for of_stream, name, offset in admin.definitions.offsets(target.name):
        if (of_stream, name) == (stream, reference):
            return offset
    raise AdminError(f"There is no offset '{reference}' of stream '{stream}' in vhost '{vhost}'", DATA_ERROR)


def delete_offset(admin: Admin, reference: str, stream: str, *, vhost: str = "/") -> None:
    query_offset(admin, reference, stream, vhost=vhost)
    admin.definitions.delete_offset(vhost, stream, reference)
    admin.commit()


def list_stream_offsets(admin: Admin, *, vhost: str = "/") -> Iterator[Row]:
    """Every offset that is kept, and how many messages are behind it."""
    target = admin.vhost(vhost)
    rows: list[Row] = []
    for stream, reference, offset in admin.definitions.offsets(vhost):
        queue = target.queues.get(stream)
        if isinstance(queue, StreamQueue):
            lag = max(0, int(queue.log.committed) - 1 - max(offset, int(queue.log.first_offset) - 1))
            rows.append({"stream": stream, "reference": reference, "offset": offset, "offset_lag": lag})
    return iter(rows)


def _with_stream(admin: Admin, vhost: str, stream: str) -> VHost:
    target = admin.vhost(vhost)
    if not isinstance(target.queues.get(stream), StreamQueue):
        raise AdminError(f"There is no stream '{stream}' in vhost '{vhost}'", DATA_ERROR)
    return target
