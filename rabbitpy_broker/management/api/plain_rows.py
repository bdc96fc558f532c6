"""The JSON of the rows of plain queues, which are most of them: what `queues.queue_row` makes and the encoder writes, letter by
letter, without the dicts between. It takes a third of the time, for lists of thousands of queues that change.

    head    what was declared, and the policies: the same until policies change
    rest    consumers, counts, rates
    end     averages, which change by themselves while they fade

A template is the JSON of such a part with places for its numbers, made of the same dicts that the encoder writes.

Compiled, as all that is asked of each queue for a list is. What must stay true: the three together are the row; a queue is plain
as long as `is_plain` says so.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rabbitpy_broker.management.api.rates import (
    DELIVERED,
    LENGTHS,
    NO_RATES,
    QUEUE,
    Names,
    Series,
    Values,
    idle_since,
    queue_values,
)
from rabbitpy_broker.management.api.shapes import erlang_process, iso_time
from rabbitpy_broker.queues.activity import ALWAYS, fading, shown_activity
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES
from rabbitpy_broker.queues.rates import Rates
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.wire.content_header import ContentHeader

STATS: Final[Names] = ("publish", *DELIVERED)
PLACE_BYTES: Final = 200  # of memory, about, for what is known of one message in a queue

_encode: Final = msgspec.json.Encoder().encode
_NUMBER: Final = msgspec.Raw(b"%d")
_JSON: Final = msgspec.Raw(b"%b")
_NO_RATE: Final = b"0.0"
_NULL: Final = b"null"
_OF_LENGTHS: Final[tuple[int, ...]] = tuple(QUEUE.index(name) for name in LENGTHS)
_OF_STATS: Final[tuple[int, ...]] = tuple(QUEUE.index(name) for name in STATS)


def _template(row: dict[str, Any]) -> bytes:
    """The fields of a row, without its braces."""
    return _encode(row)[1:-1]


def _counted(names: Names, rate: object) -> dict[str, Any]:
    """As `rates.stats` has them."""
    found: dict[str, Any] = {}
    for name in names:
        found |= {name: _NUMBER, f"{name}_details": {"rate": rate}}
    return found


_CONSUMERS: Final = _template(
    {
        "exclusive_consumer_tag": None,
        "single_active_consumer_tag": None,
        "consumers": _NUMBER,
        "consumer_capacity": _JSON,
        "consumer_utilisation": _JSON,
        "confirm_mode": _JSON,
        "publishes_waiting": _NUMBER,
        "recoverable_slaves": None,
        "head_message_timestamp": _JSON,
    }
)
_LENGTHS_AT_REST: Final = _template({**_counted(LENGTHS, 0.0), **erlang_process(None)})
_LENGTHS_MOVING: Final = _template({**_counted(LENGTHS, _JSON), **erlang_process(None)})
_LENGTHS_ALONE: Final = _template({**dict.fromkeys(LENGTHS, _NUMBER), **erlang_process(NO_RATES)})
_IDLE: Final = b"," + _template({"idle_since": msgspec.Raw(b'"%b"')})
_STATS_AT_REST: Final = b"," + _template({"message_stats": _counted(STATS, 0.0)})
_STATS_MOVING: Final = b"," + _template({"message_stats": _counted(STATS, _JSON)})
_BODIES: Final = _template(
    dict.fromkeys(
        (
            "messages_ram", "messages_ready_ram", "messages_unacknowledged_ram", "messages_persistent", "messages_paged_out",
            "message_bytes", "message_bytes_ready", "message_bytes_unacknowledged", "message_bytes_ram",
            "message_bytes_persistent", "message_bytes_paged_out", "memory",
        ),
        _NUMBER,
    )
)  # fmt: skip
_STATUS: Final = _template(
    {
        "backing_queue_status": {
            "mode": _JSON,
            "len": _NUMBER,
            "target_ram_count": "infinity",
            "num_pending_acks": _NUMBER,
            "num_unconfirmed": _NUMBER,
            "version": 1,
            "q1": _NUMBER,
            "q2": _NUMBER,
            "delta": ["delta", 0, _NUMBER, 0, 0],
            "q3": _NUMBER,
            "q4": _NUMBER,
            "next_seq_id": _NUMBER,
            "next_deliver_seq_id": _NUMBER,
        }
    }
)[:-1]
_AT_REST: Final = b"%b,%b%%b%%b,%b,%b," % (_CONSUMERS, _LENGTHS_AT_REST, _BODIES, _STATUS)
_MOVING: Final = b"%b,%b%%b%%b,%b,%b," % (_CONSUMERS, _LENGTHS_MOVING, _BODIES, _STATUS)
_UNRATED: Final = b"%b,%b%%b%%b,%b,%b," % (_CONSUMERS, _LENGTHS_ALONE, _BODIES, _STATUS)
_END: Final = b'"avg_ingress_rate":%b,"avg_egress_rate":%b,"avg_ack_ingress_rate":%b,"avg_ack_egress_rate":%b}}'
_NO_AVERAGES: Final = _END % ((_NO_RATE,) * 4)
_MODES: Final[tuple[bytes, ...]] = tuple(_encode(mode) for mode in CONFIRM_MODES)
_LAZY: Final = _encode("lazy")
_DEFAULT: Final = _encode("default")


def is_plain(queue: Queue) -> bool:
    """Whether `rest` knows all that lists show of it."""
    return (
        isinstance(queue.backing, VariableQueue)
        and queue.owner is None
        and not (queue.quorum or queue.stream or queue.single_active)
        and not any(member.exclusive for member in queue.consumers.members)
    )


def head_timestamp(queue: Queue) -> int | None:
    """The property of the message that goes out next, if it is in memory."""
    message = queue.backing.head()
    return ContentHeader(message.header_payload()).timestamp() if message is not None else None


def end(rates: Rates | None) -> bytes:
    """The averages, and what closes the row."""
    if rates is None:
        return _NO_AVERAGES
    return _END % tuple([
        _encode(rate) if rate else _NO_RATE
        for rate in (rates.ingress, rates.egress, rates.ack_ingress, rates.ack_egress)
    ])


def marks(queues: list[Queue], moments: list[float]) -> tuple[list[object | None], list[int]]:
    """What the rows of plain queues follow from, but for their ends, which follow from `fading`; None for one of another kind.
    `moments` are those of the sampler.
    """
    found: list[object | None] = []
    levels: list[int] = []
    for queue, moment in zip(queues, moments, strict=True):
        mark = shown_activity(queue)
        found.append(None if mark == ALWAYS else (mark, moment, queue.owner))
        levels.append(fading(queue))
    return found, levels


def rest(queue: Queue, series: Series | None, started: float, *, rated: bool) -> bytes:
    """What is between head and end in the row of a plain queue. `started` is when the sampler began; `rated`: with rates, if only
    those of 0.
    """
    backing, settings, figures = queue.backing, queue.settings, Figures()
    assert isinstance(backing, VariableQueue), "it is plain"
    backing.add_figures(figures)
    values = queue_values(queue, figures)
    idle_at = idle_since(series, values, started)
    capacity = b"1.0" if any(level.round for level in queue.consumers.levels) else _NO_RATE
    waiting = backing.publishes_waiting()
    members = queue.consumers.members
    ready_ram, unacked_ram = figures.ready_ram, figures.unacked_ram
    count = backing.len + backing.unacked
    ready_bytes, unacked_bytes = backing.ready_bytes, backing.unacked_bytes
    next_seq_id, timestamp = backing.next_seq_id, head_timestamp(queue)
    rates = None if series is None else _rates(series)
    counts = values[:3] if rates is None else _with_rates(values, rates, _OF_LENGTHS)
    return (_UNRATED if not rated else _AT_REST if rates is None else _MOVING) % (
        len(members), capacity if members else _NO_RATE, capacity if members else _NO_RATE,
        _MODES[settings.confirm_mode], waiting, _NULL if timestamp is None else b"%d" % timestamp, *counts,
        b"" if idle_at is None else _IDLE % iso_time(idle_at).encode(),
        _stats(values, rates) if rated and any(values[3:12]) else b"",
        ready_ram + unacked_ram, ready_ram, unacked_ram, figures.persistent, count - ready_ram - unacked_ram,
        ready_bytes + unacked_bytes, ready_bytes, unacked_bytes, figures.ram_bytes, figures.persistent_bytes,
        ready_bytes + unacked_bytes - figures.ram_bytes, figures.ram_bytes + PLACE_BYTES * (count - figures.delta),
        _LAZY if settings.lazy else _DEFAULT, backing.len, backing.unacked, waiting, len(backing.q1), len(backing.q2),
        backing.delta_count, len(backing.q3), len(backing.q4), next_seq_id, next_seq_id,
    )  # fmt: skip


def _rates(series: Series) -> list[bytes] | None:
    """Encoded, in the order of QUEUE; None when all are 0."""
    rates = series.rates(range(12))
    return [_encode(rate) if rate else _NO_RATE for rate in rates] if any(rates) else None


def _with_rates(values: Values, rates: list[bytes], columns: tuple[int, ...]) -> list[Any]:
    found: list[Any] = []
    for column in columns:
        found += (values[column], rates[column])
    return found


def _stats(values: Values, rates: list[bytes] | None) -> bytes:
    if rates is None:
        return _STATS_AT_REST % values[3:12]
    return _STATS_MOVING % tuple(_with_rates(values, rates, _OF_STATS))
