"""Rates and samples: what counters were at each look, and what follows from that for an answer.

A `Series` keeps what an object's counters were, and only at looks at which they had changed: each of the latest, older ones as
far apart as its retention says, the further the older. `sampler.py` looks.

What must stay true: `values` are those of the latest look, `previous` those of the one before it; `names` say what they are. What
a series says of a moment that it keeps is no older than two of its samples are apart then.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rabbitpy_broker.management.api.errors import bad_request
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.counters import Counters
from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.routing.exchange import Routed

Names = tuple[str, ...]
Values = tuple[int, ...]
Retention = tuple[tuple[float, float], ...]  # for how long, and how far apart, in seconds; the finest first
GLOBAL: Final[Retention] = ((605.0, 5.0), (3_660.0, 60.0), (29_400.0, 600.0), (86_400.0, 1_800.0))  # RabbitMQ's own three
BASIC: Final[Retention] = ((605.0, 5.0), (3_660.0, 60.0))
DETAILED: Final[Retention] = ((605.0, 5.0),)
RATE_S: Final = 5.0  # over which rates are, if looks are more frequent
LOOK_S: Final = 1.0  # what is looked at most often is looked at so often
FINE: Final = 8  # rows that are kept whatever the time between them
POINTS_MAX: Final = 500

LENGTHS: Final[Names] = ("messages", "messages_ready", "messages_unacknowledged")
PUBLISHED: Final[Names] = ("publish", "confirm", "return_unroutable", "drop_unroutable")
DELIVERED: Final[Names] = ("deliver", "deliver_no_ack", "deliver_get", "get", "get_no_ack", "get_empty", "redeliver", "ack")
DISK: Final[Names] = ("disk_reads", "disk_writes")
TRAFFIC: Final[Names] = ("recv_oct", "send_oct")
CHURN: Final[Names] = (
    "channel_closed", "channel_created", "connection_closed", "connection_created", "queue_created", "queue_declared",
    "queue_deleted",
)  # fmt: skip
NODE: Final[Names] = ("fd_used", "sockets_used", "proc_used", "mem_used", "disk_free")

QUEUE: Final[Names] = (*LENGTHS, "publish", *DELIVERED, *DISK)
CHANNEL: Final[Names] = (*PUBLISHED, *DELIVERED)
EXCHANGE: Final[Names] = ("publish_in", "publish_out")
CONNECTION: Final[Names] = TRAFFIC
CONSUMER: Final[Names] = ("deliver", "deliver_no_ack", "deliver_get", "redeliver", "ack")
VHOST: Final[Names] = (*LENGTHS, *CHANNEL, *TRAFFIC)
NOTHING_DONE: Final[Values] = (0,) * len((*CHANNEL, *TRAFFIC))
WHOLE: Final[Names] = (*LENGTHS, *CHANNEL, *DISK, *CHURN, *NODE)

Looks = tuple[int, float, float]  # the number of the last look that has ended, when it began, and when the one before it did


class Series:
    """What some counters were. `before` and `checked` are the times of the last two looks, in seconds since 1970."""

    def __init__(
        self,
        names: Names,
        now: float,
        values: Values,
        kept: Retention = BASIC,
        rate_s: float = RATE_S,
    ) -> None:
        self.names = names
        self.values = self.previous = values
        self.checked = self.before = now
        self.begun = now
        self.changed = now  # but for what the disk does by itself
        self.lively = len(names) - len(DISK) if names is QUEUE else len(names)
        self.look = 0  # of the owner, in which it was added to last
        self._rate_s = rate_s
        self._kept = kept
        self._thin_at = now + kept[0][0]
        self._times = array("d", [now])
        self._rows = array("q", values)

    def add(self, now: float, values: Values, *, full: bool = True) -> None:
        """What they are now."""
        self.before, self.checked, self.previous = self.checked, now, self.values
        if values == self.values:  # `values` stays the object that it is: so it is seen that nothing has changed
            return
        if values[: self.lively] != self.values[: self.lively]:
            self.changed = now
        self.values = values
        self._times.append(now)
        self._rows.extend(values)
        self._thin()
        if full and now >= self._thin_at and len(self._kept) > 1:
            self._thin_old(now)
        oldest = now - self._kept[-1][0] if full else min(self.before, now - self._rate_s - LOOK_S)
        drop = bisect_right(self._times, oldest) - 1  # of those before it, the last is still what it was then
        if drop > (16 if full else 0):
            del self._times[:drop]
            del self._rows[: drop * len(self.names)]

    def _thin(self) -> None:
        """Drops the row that leaves the latest ones, if those beside it are close enough without it."""
        row = len(self._times) - FINE - 1
        if row > 0 and self._times[row + 1] - self._times[row - 1] < self._kept[0][1] + LOOK_S / 2:
            self._drop(row)

    def _thin_old(self, now: float) -> None:
        """The same with all rows that are old enough to be further apart; as often as that changes something."""
        self._thin_at = now + self._kept[1][1]
        level = len(self._kept) - 1
        row = 1
        while row < len(self._times) - 1:
            while level and self._times[row + 1] >= now - self._kept[level - 1][0]:  # until when the row counts
                level -= 1
            if level == 0:
                return
            if self._times[row + 1] - self._times[row - 1] < self._kept[level][1] + LOOK_S / 2:
                self._drop(row)
            else:
                row += 1

    def _drop(self, row: int) -> None:
        width = len(self.names)
        del self._times[row]
        del self._rows[row * width : (row + 1) * width]

    def catch_up(self, looks: Looks) -> None:
        """Has it say that nothing has changed until the last look, which has passed over it."""
        look, at, before = looks
        if self.look < look:
            self.look, self.checked, self.before = look, max(at, self.checked), max(before, self.before)

    def at(self, when: float, column: int) -> int:
        """What a counter was then; before the first look, what it was at that."""
        row = max(bisect_right(self._times, when) - 1, 0)
        return self._rows[row * len(self.names) + column]

    def rate(self, column: int) -> float:
        """The change per second between the last two looks, over `rate_s` at least where there were looks for so long."""
        return self.rates((column,))[0]

    def rates(self, columns: Sequence[int]) -> list[float]:
        """`rate` of each."""
        values, previous, elapsed = self.values, self.previous, self.checked - self.before
        if elapsed < self._rate_s - LOOK_S:
            then = self.checked - self._rate_s
            row = max(bisect_right(self._times, then) - 1, 0)
            elapsed = self.checked - max(self._times[row], then - LOOK_S)
            if row == len(self._times) - 1:
                previous = values
            else:
                width = len(self.names)
                previous = tuple(self._rows[row * width : (row + 1) * width])
        if elapsed <= 0 or previous is values:
            return [0.0] * len(columns)
        rates: list[float] = []
        for column in columns:
            done = values[column] - previous[column]
            rates.append(done / elapsed if done else 0.0)
        return rates

    def latest_rates(self, columns: Sequence[int]) -> list[float]:
        """`latest_rate` of each."""
        elapsed, values, previous = self.checked - self.before, self.values, self.previous
        if elapsed <= 0 or values is previous:
            return [0.0] * len(columns)
        return [(values[column] - previous[column]) / elapsed for column in columns]

    def latest_rate(self, column: int) -> float:
        """The change per second between the last two looks."""
        return self.latest_rates((column,))[0]

    def has_settled(self) -> bool:
        """Whether all rates are 0, and stay so until something changes."""
        if self.previous is not self.values:
            return False
        return self.changed <= self.checked - self._rate_s or self.checked - self.before >= self._rate_s - LOOK_S


@dataclass(frozen=True)
class Span:
    """What samples a request wants: of the last `age` seconds, one every `incr`."""

    age: int
    incr: int

    def samples(self, series: Series, column: int) -> dict[str, Any]:
        newest = int(series.checked) // self.incr * self.incr
        times = range(newest, newest - self.age - 1, -self.incr)
        found = [series.at(when, column) for when in times]
        length = (len(found) - 1) * self.incr
        return {
            "samples": [{"sample": value, "timestamp": when * 1000} for value, when in zip(found, times, strict=True)],
            "avg": sum(found) / len(found),
            "avg_rate": (found[0] - found[-1]) / length if length else 0.0,
        }


NO_RATES: Final = Span(0, 0)


@dataclass(frozen=True)
class Spans:
    """The spans that a request names, by kind; None where it names none, NO_RATES where there are no rates at all."""

    lengths: Span | None = None
    msg_rates: Span | None = None
    data_rates: Span | None = None
    node_stats: Span | None = None


WITHOUT_RATES: Final = Spans(NO_RATES, NO_RATES, NO_RATES, NO_RATES)


def spans(query: Mapping[str, str]) -> Spans:
    """Raises ApiError 400."""
    return Spans(*(_span(query, kind) for kind in ("lengths", "msg_rates", "data_rates", "node_stats")))


def _span(query: Mapping[str, str], kind: str) -> Span | None:
    try:
        age, incr = int(query[f"{kind}_age"]), int(query[f"{kind}_incr"])
    except (KeyError, ValueError):
        return None
    if incr <= 0 or age <= 0 or age // incr > POINTS_MAX:
        raise bad_request(f"Invalid range parameters: age {age}, incr {incr}", "invalid_range_parameters")
    return Span(age, incr)


def stats(
    names: Names, values: Values, series: Series | None, span: Span | None = None, only: Names | None = None
) -> dict[str, Any]:
    """`{name: value, name_details: {rate}}` of each; the values are what counts now, the rates those of the last look. Without
    details for NO_RATES.
    """
    found: dict[str, Any] = {}
    columns = [column for column, name in enumerate(names) if only is None or name in only]
    if span is NO_RATES:
        return {names[column]: values[column] for column in columns}
    rates = [0.0] * len(columns) if series is None else series.rates(columns)
    for column, rate in zip(columns, rates, strict=True):
        name = names[column]
        found[name] = values[column]
        details: dict[str, Any] = {"rate": rate}
        if span is not None:
            of = series or Series(names, time.time(), values)
            details.update(span.samples(of, column))
        found[f"{name}_details"] = details
    return found


def message_stats(
    names: Names, values: Values, series: Series | None, span: Span | None = None, only: Names | None = None
) -> dict[str, Any]:
    """`{"message_stats": ...}` with what `stats` says; nothing while nothing was counted, nor, as in RabbitMQ, for NO_RATES."""
    counted = any(value for name, value in zip(names, values, strict=True) if only is None or name in only)
    return {"message_stats": stats(names, values, series, span, only)} if counted and span is not NO_RATES else {}


def idle_since(series: Series | None, values: Values, started: float) -> float | None:
    """When these values last changed, in seconds since 1970; None when they just did, or that is not known yet. `started` is
    when somebody began to look.
    """
    if series is None:
        return None if any(values) else started
    unchanged = series.values is values or series.values[: series.lively] == values[: series.lively]
    return series.changed if unchanged and series.changed < series.checked else None


# -- what is counted -----------------------------------------------------------------------------------------------


def queue_values(queue: Queue, figures: Figures | None = None) -> Values:
    """As QUEUE says. `figures` are those of its messages, if they are known."""
    backing = queue.backing
    if figures is None:
        figures = Figures()
        backing.add_figures(figures)
    ready, unacked = int(queue.ready_count()), int(backing.unacked)
    taken, no_ack, got, got_no_ack = int(queue.taken), int(queue.taken_no_ack), int(queue.got), int(queue.got_no_ack)
    return (
        ready + unacked, ready, unacked, int(queue.published), taken - no_ack - got - got_no_ack, no_ack, taken, got, got_no_ack,
        int(queue.get_empty), int(queue.redelivered), int(queue.acked) - got_no_ack, int(figures.disk_reads),
        int(figures.disk_writes),
    )  # fmt: skip


def channel_values(counters: Counters) -> Values:
    """As CHANNEL says."""
    deliver, no_ack, got, got_no_ack = (
        int(counters.delivered), int(counters.delivered_no_ack), int(counters.got), int(counters.got_no_ack)
    )  # fmt: skip
    return (
        int(counters.published), int(counters.confirmed), int(counters.unroutable_returned), int(counters.unroutable_dropped),
        deliver, no_ack, deliver + no_ack + got + got_no_ack, got, got_no_ack, int(counters.get_empty),
        int(counters.redelivered), int(counters.acked),
    )  # fmt: skip


def consumer_values(consumer: ChannelConsumer) -> Values:
    """As CONSUMER says."""
    delivered = int(consumer.delivered)
    to_ack, no_ack = (0, delivered) if consumer.no_ack else (delivered, 0)
    return to_ack, no_ack, delivered, int(consumer.redelivered), int(consumer.acked())


def exchange_values(routed: Routed) -> Values:
    """As EXCHANGE says."""
    return int(routed.published_in), int(routed.published_out)


def connection_values(connection: Connection) -> Values:
    """As CONNECTION says."""
    return int(connection.received_bytes), int(connection.output.sent_bytes)
