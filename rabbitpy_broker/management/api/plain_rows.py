"""The JSON of the rows of plain queues, which are most of them: what `queues.queue_row` makes and the encoder writes, letter by
letter, without the dicts between. It takes a third of the time, for lists of thousands of queues that change.

    head    what was declared, and the policies: the same until policies change
    front   consumers
    rates   counts of messages and how fast they change, since when it is idle: what changes by itself for some seconds
    back    bodies
    end     averages, which change by themselves while they fade

After a message a row is made anew but for its head, and once more when its rates have come to rest: then only those are.

A template is the JSON of such a part with places for its numbers, made of the same dicts that the encoder writes. Most numbers
are 0: of counts and rates, and of bodies, there is a template for each choice of those that are not.

Compiled, as all that is asked of each queue for a list is. What must stay true: all five together are the row; a queue is plain
as long as `is_plain` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from mypy_extensions import i64

from rabbitpy_broker.management.api.kept_rows import MadeRow, Marks
from rabbitpy_broker.management.api.queue_series import QueueSeries
from rabbitpy_broker.management.api.rates import (
    DELIVERED,
    LENGTHS,
    NO_RATES,
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
from rabbitpy_broker.wire.properties import TIMESTAMP

STATS: Final[Names] = ("publish", *DELIVERED)
PLACE_BYTES: Final = 200  # of memory, about, for what is known of one message in a queue

_encode: Final = msgspec.json.Encoder().encode
_NUMBER: Final = msgspec.Raw(b"%d")
_JSON: Final = msgspec.Raw(b"%b")
_NO_RATE: Final = b"0.0"
_NULL: Final = b"null"
_LENGTHS: Final[i64] = len(LENGTHS)
_COLUMNS: Final[i64] = _LENGTHS + len(STATS)  # of QUEUE, the first, which are what lists show
_SHOWN: Final = list(range(_COLUMNS))
_SHAPES_MAX: Final = 512  # templates that are kept
_TIMES_MAX: Final = 4_096


def _template(row: dict[str, Any]) -> bytes:
    """The fields of a row, without its braces."""
    return _encode(row)[1:-1]


def _counted(names: Names) -> dict[str, Any]:
    """As `rates.stats` has them."""
    found: dict[str, Any] = {}
    for name in names:
        found |= {name: _JSON, f"{name}_details": {"rate": _JSON}}
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
_LENGTHS_RATED: Final = _template({**_counted(LENGTHS), **erlang_process(None)})
_LENGTHS_ALONE: Final = _template({**dict.fromkeys(LENGTHS, _NUMBER), **erlang_process(NO_RATES)})
_IDLE: Final = b"," + _template({"idle_since": msgspec.Raw(b'"%b"')})
_STATS: Final = b"," + _template({"message_stats": _counted(STATS)})
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
_FRONT: Final = _CONSUMERS + b","
_UNRATED: Final = b"%b%%b" % _LENGTHS_ALONE
_BACK: Final = b",%b,%b," % (_BODIES, _STATUS)
_END: Final = b'"avg_ingress_rate":%b,"avg_egress_rate":%b,"avg_ack_ingress_rate":%b,"avg_ack_egress_rate":%b}}'
_NO_AVERAGES: Final = _END % ((_NO_RATE,) * 4)
_IN_ONLY: Final = _END % (b"%b", *(_NO_RATE,) * 3)
_MODES: Final[tuple[bytes, ...]] = tuple(_encode(mode) for mode in CONFIRM_MODES)
_LAZY: Final = _encode("lazy")
_DEFAULT: Final = _encode("default")


def is_plain(queue: Queue) -> bool:
    """Whether `made_row` knows all that lists show of it."""
    return (
        isinstance(queue.backing, VariableQueue)
        and queue.owner is None
        and not (queue.quorum or queue.stream or queue.single_active)
        and not (queue.consumer_count and any(member.exclusive for member in queue.consumers.members))
    )


def head_timestamp(queue: Queue) -> int | None:
    """The property of the message that goes out next, if it is in memory."""
    message = queue.backing.head()
    if message is None or not message.property_flags() & TIMESTAMP:
        return None
    return ContentHeader(message.header_payload()).timestamp()


def end(rates: Rates | None) -> bytes:
    """The averages, and what closes the row."""
    if rates is None:
        return _NO_AVERAGES
    ingress, egress, ack_ingress, ack_egress = rates.ingress, rates.egress, rates.ack_ingress, rates.ack_egress
    if egress == 0.0 and ack_ingress == 0.0 and ack_egress == 0.0:  # nothing has left it yet
        return _NO_AVERAGES if ingress == 0.0 else _IN_ONLY % _encode(ingress)
    return _END % (_encode(ingress), _encode(egress), _encode(ack_ingress), _encode(ack_egress))


class PlainMarks(Marks):
    """What the rows of plain queues follow from; ALWAYS for one of another kind. An item is a vhost and a queue."""

    def __init__(self, series: QueueSeries) -> None:
        super().__init__()
        self._series = series

    def look(self, item: Any) -> None:
        queue: Queue = item[1]
        self.mark = shown_activity(queue)
        self.moment = self._series.moment(queue)
        self.level = fading(queue)

    def end(self, item: Any) -> bytes:
        return end_of(item[1])


class PlainRows:
    """Makes the rows of plain queues. An item is a vhost and a queue. `started` is when the sampler began; `head` makes that part
    of a row, `other` the row of a queue that is not plain; `rated`: with rates, if only those of 0.
    """

    def __init__(
        self,
        series: QueueSeries,
        started: float,
        head: Callable[[Any], bytes],
        other: Callable[[Any], bytes],
        *,
        rated: bool,
    ) -> None:
        self._series = series
        self._started = started
        self._head = head
        self._other = other
        self._rated = rated

    def make(self, item: Any, mark: int, before: MadeRow | None) -> MadeRow | None:
        """As `kept_rows.Make`."""
        queue: Queue = item[1]
        if queue.deleted:
            return None
        if not is_plain(queue):
            return MadeRow(self._other(item))
        series = self._series.of(queue)
        head_size = 0 if before is None else before.head
        if before is not None and head_size and series is not None and before.values is not None and before.mark == mark:
            values = before.values
            front, back = before.part(0, before.rates_at), before.part(before.rates_end, before.ends_at)
        else:
            head = before.part(0, head_size) if before is not None and head_size else self._head(item)
            head_size = len(head)
            figures = Figures()
            queue.backing.add_figures(figures)
            values = queue_values(queue, figures)
            if series is not None and series.values == values:
                values = series.values
            front, back = head + _front(queue), _back(queue, figures)
        rates = _rates_part(values, series, self._started, rated=self._rated)
        ends_at = len(front) + len(rates) + len(back)
        json = b"".join((front, rates, back, end_of(queue)))
        if before is None:
            before = MadeRow(json, head_size, ends_at)
        else:
            before.is_now(json, head_size, ends_at)
        before.rates_at, before.rates_end = len(front), ends_at - len(back)
        before.values = values if series is not None and mark != ALWAYS and series.values is values else None
        return before


def end_of(queue: Queue) -> bytes:
    """The averages of a queue, if it is plain, and what closes its row."""
    backing = queue.backing
    return end(backing.rates) if isinstance(backing, VariableQueue) else b"}"


def _front(queue: Queue) -> bytes:
    count, timestamp = queue.consumer_count, head_timestamp(queue)
    capacity = b"1.0" if count and any(level.round for level in queue.consumers.levels) else _NO_RATE
    return _FRONT % (
        count, capacity, capacity, _MODES[queue.settings.confirm_mode], queue.backing.publishes_waiting(),
        _NULL if timestamp is None else b"%d" % timestamp,
    )  # fmt: skip


def _rates_part(values: Values, series: Series | None, started: float, *, rated: bool) -> bytes:
    idle_at = idle_since(series, values, started)
    idle = b"" if idle_at is None else _idle(idle_at)
    if not rated:
        return _UNRATED % (*values[:3], idle)
    rates = None if series is None else series.rates(_SHOWN)
    shape: i64 = 0
    bit: i64 = 1
    numbers: list[Any] = []
    for column in range(_COLUMNS):
        if column == _LENGTHS:
            numbers.append(idle)
        value = values[column]
        if value:
            shape |= bit
            numbers.append(value)
        if rates is not None:
            rate = rates[column]
            if rate != 0.0:
                shape |= bit << 1
                numbers.append(_encode(rate))
        bit <<= 2
    return _rates_templates.of(int(shape)) % tuple(numbers)


class _Templates:
    """Those of one part, by what is not 0 in it: a bit for each number."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        self._make = make
        self._made: dict[int, bytes] = {}

    def of(self, shape: int) -> bytes:
        found = self._made.get(shape)
        if found is None:
            if len(self._made) >= _SHAPES_MAX:
                self._made.clear()
            found = self._made[shape] = self._make(shape)
        return found


def _rates_template(shape: int) -> bytes:
    """Of counts, each with its rate."""
    places: list[bytes] = []
    for _ in range(_COLUMNS):
        places += (b"%d" if shape & 1 else b"0", b"%b" if shape & 2 else _NO_RATE)
        shape >>= 2
    counted = any(place != b"0" and place != _NO_RATE for place in places[2 * _LENGTHS :])
    stats = _STATS % tuple(places[2 * _LENGTHS :]) if counted else b""
    return _LENGTHS_RATED % tuple(places[: 2 * _LENGTHS]) + b"%b" + stats


def _back_template(shape: int) -> bytes:
    """Of counts; the lowest bit says whether it is a lazy queue."""
    parts = _BACK.replace(b"%b", _LAZY if shape & 1 else _DEFAULT).split(b"%d")
    made = [parts[0]]
    for part in parts[1:]:
        shape >>= 1
        made += (b"%d" if shape & 1 else b"0", part)
    return b"".join(made)


_rates_templates: Final = _Templates(_rates_template)
_back_templates: Final = _Templates(_back_template)
_idle_texts: Final[dict[float, bytes]] = {}


def _idle(seconds: float) -> bytes:
    """Since when it is idle; a look finds the same of many queues."""
    found = _idle_texts.get(seconds)
    if found is None:
        if len(_idle_texts) >= _TIMES_MAX:
            _idle_texts.clear()
        found = _idle_texts[seconds] = _IDLE % iso_time(seconds).encode()
    return found


def _back(queue: Queue, figures: Figures) -> bytes:
    backing = queue.backing
    assert isinstance(backing, VariableQueue), "it is plain"
    ready_ram, unacked_ram, ram_bytes = figures.ready_ram, figures.unacked_ram, figures.ram_bytes
    count, size = backing.len + backing.unacked, backing.ready_bytes + backing.unacked_bytes
    next_seq_id = backing.next_seq_id
    counts: list[int] = [
        ready_ram + unacked_ram, ready_ram, unacked_ram, figures.persistent, count - ready_ram - unacked_ram, size,
        backing.ready_bytes, backing.unacked_bytes, ram_bytes, figures.persistent_bytes, size - ram_bytes,
        ram_bytes + PLACE_BYTES * (count - figures.delta), backing.len, backing.unacked, backing.publishes_waiting(),
        len(backing.q1), len(backing.q2), backing.delta_count, len(backing.q3), len(backing.q4), next_seq_id, next_seq_id,
    ]  # fmt: skip
    shape: i64 = 1 if queue.settings.lazy else 0
    bit: i64 = 2
    numbers: list[int] = []
    for number in counts:
        if number:
            shape |= bit
            numbers.append(number)
        bit <<= 1
    return _back_templates.of(int(shape)) % tuple(numbers)
