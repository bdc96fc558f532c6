"""Rates and samples: the counters of everything, looked at every `collect_statistics_interval`, and what they were before.

Nothing here is told of a message: a look copies integers that are counted anyway, a slice of the queues at a time. A `Series`
keeps what an object's counters were at each look in the last ten minutes, and only of looks at which they had changed; of the
whole broker it keeps a day, ever more coarsely. Single objects are looked at while somebody asks: from the first request of
the API until ASKED_S after the last.

What must stay true: `values` are those of the latest look, `names` say what they are; whoever is gone is forgotten at the next
look; no more than FULL series keep more than two looks.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from rabbitpy_broker.management.api.errors import bad_request
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.counters import Counters
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.routing.exchange import Routed
from rabbitpy_broker.slices import REST_S, in_slices
from rabbitpy_broker.vhost import VHost

ASKED_S: Final = 600.0
KEPT_S: Final = 605.0
FULL: Final = 2_000  # series with a history
LIVE: Final = 500  # connections, whose counts are added up for each answer; those of more only at a look
POINTS_MAX: Final = 500
COARSER: Final = ((60.0, 3_660.0), (600.0, 29_400.0), (1_800.0, 86_400.0))  # seconds: how often, how long; of the whole broker

LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
PUBLISHED: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
DELIVERED: Final = ("deliver", "deliver_no_ack", "deliver_get", "get", "get_no_ack", "get_empty", "redeliver", "ack")
DISK: Final = ("disk_reads", "disk_writes")
TRAFFIC: Final = ("recv_oct", "send_oct")
CHURN: Final = (
    "channel_closed", "channel_created", "connection_closed", "connection_created", "queue_created", "queue_declared",
    "queue_deleted",
)  # fmt: skip
NODE: Final = ("fd_used", "sockets_used", "proc_used", "mem_used", "disk_free")

QUEUE: Final = (*LENGTHS, "publish", *DELIVERED, *DISK)
CHANNEL: Final = (*PUBLISHED, *DELIVERED)
EXCHANGE: Final = ("publish_in", "publish_out")
CONNECTION: Final = TRAFFIC
VHOST: Final = (*LENGTHS, *CHANNEL, *TRAFFIC)
NOTHING_DONE: Final = (0,) * len((*CHANNEL, *TRAFFIC))
WHOLE: Final = (*LENGTHS, *CHANNEL, *DISK, *CHURN, *NODE)

Values = tuple[int, ...]


class Series:
    """What some counters were. `before` and `checked` are the times of the last two looks, in seconds since 1970."""

    def __init__(self, names: tuple[str, ...], now: float, values: Values, every_s: float = 0.0, kept_s: float = KEPT_S) -> None:
        self.names = names
        self.values = values
        self.checked = self.before = now
        self.changed = now  # but for what the disk does by itself
        self.lively = len(names) - len(DISK) if names is QUEUE else len(names)
        self.mark = 0  # what the owner remembers of the last look
        self.look = 0
        self._every_s = every_s
        self._kept_s = kept_s
        self._times = array("d", [now])
        self._rows = array("q", values)

    def add(self, now: float, values: Values, *, full: bool = True) -> None:
        """What they are now."""
        if now - self.checked < self._every_s:
            return
        self.before, self.checked = self.checked, now
        if values == self.values:
            return
        if values[: self.lively] != self.values[: self.lively]:
            self.changed = now
        self.values = values
        self._times.append(now)
        self._rows.extend(values)
        oldest = now - self._kept_s if full else self.before
        drop = bisect_right(self._times, oldest) - 1  # of those before it, the last is still what it was then
        if drop > (16 if full else 0):
            del self._times[:drop]
            del self._rows[: drop * len(self.names)]

    def at(self, when: float, column: int) -> int:
        """What a counter was then; before the first look, what it was at that."""
        row = max(bisect_right(self._times, when) - 1, 0)
        return self._rows[row * len(self.names) + column]

    def rate(self, column: int) -> float:
        """The change between the last two looks, per second."""
        elapsed = self.checked - self.before
        if elapsed <= 0:
            return 0.0
        return (self.values[column] - self.at(self.before, column)) / elapsed

    def covers(self, seconds: float) -> bool:
        return self._kept_s >= seconds


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


@dataclass(frozen=True)
class Spans:
    """The spans that a request names, by kind; None where it names none."""

    lengths: Span | None = None
    msg_rates: Span | None = None
    data_rates: Span | None = None
    node_stats: Span | None = None


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
    names: tuple[str, ...], values: Values, series: Series | None, span: Span | None = None, only: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """`{name: value, name_details: {rate}}` of each; the values are what counts now, the rates those of the last look."""
    found: dict[str, Any] = {}
    for column, name in enumerate(names):
        if only is not None and name not in only:
            continue
        found[name] = values[column]
        details: dict[str, Any] = {"rate": 0.0 if series is None else series.rate(column)}
        if span is not None:
            of = series or Series(names, time.time(), values)
            details.update(span.samples(of, column))
        found[f"{name}_details"] = details
    return found


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


def exchange_values(routed: Routed) -> Values:
    """As EXCHANGE says."""
    return int(routed.published_in), int(routed.published_out)


def connection_values(connection: Connection) -> Values:
    """As CONNECTION says."""
    return int(connection.received_bytes), int(connection.output.sent_bytes)


def _added(one: Values, other: Values) -> Values:
    return tuple(a + b for a, b in zip(one, other, strict=True))


@dataclass
class NodeFigures:
    """What the process uses now; in the order of NODE."""

    fd_used: int
    sockets_used: int
    proc_used: int
    mem_used: int
    disk_free: int

    def values(self) -> Values:
        return self.fd_used, self.sockets_used, self.proc_used, self.mem_used, self.disk_free


class Sampler:
    """Looks every `interval_s`. `node_figures` reads what the process uses."""

    def __init__(
        self, broker: ManagedBroker, interval_s: float, node_figures: Callable[[], NodeFigures], log: Any
    ) -> None:
        self._broker = broker
        self._log = log
        self._interval_s = interval_s
        self._node_figures = node_figures
        self._asked_at = time.monotonic() - ASKED_S
        self.started = time.time()
        self.forget()

    def forget(self) -> None:
        """All statistics begin anew."""
        self._series: dict[object, Series] = {}
        self._whole: list[Series] = []
        self._lengths: dict[str, Values] = {}  # by vhost, at the last look
        self._disk: Values = (0, 0)
        self._done: dict[str, Values] = {}  # as VHOST says, without lengths; by vhost, at the last look
        self._look = 0

    def asked(self) -> None:
        """Somebody uses the API."""
        self._asked_at = time.monotonic()

    def of(self, key: object) -> Series | None:
        """The series of a queue, a channel, a connection, of an exchange's `Routed`, of a vhost's name."""
        return self._series.get(key)

    def whole(self, span: Span | None = None) -> Series | None:
        """The series of the broker, fine enough and long enough for a span."""
        for series in self._whole:
            if span is None or series.covers(span.age):
                return series
        return self._whole[-1] if self._whole else None

    def idle_since(self, series: Series | None, values: Values) -> float | None:
        """When these values last changed, in seconds since 1970; None when they just did, or that is not known yet."""
        if series is None:
            return None if any(values) else self.started
        unchanged = series.values[: series.lively] == values[: series.lively]
        return series.changed if unchanged and series.changed < series.checked else None

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 -- a fault of ours in one look; the next may go well
                self._log.exception("internal error", part="statistics")
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Takes one sample of everything."""
        self._look += 1
        singly = time.monotonic() - self._asked_at < ASKED_S
        disk = [0, 0]
        lengths: dict[str, Values] = {}
        for vhost in list(self._broker.node.vhosts.values()):
            of_vhost = [0, 0]
            await in_slices(self._queues(vhost, of_vhost, disk, singly=singly), REST_S)
            lengths[vhost.name] = of_vhost[0] + of_vhost[1], of_vhost[0], of_vhost[1]
            if singly:
                await in_slices(self._exchanges(vhost), REST_S)
        self._lengths, self._disk = lengths, (disk[0], disk[1])
        await in_slices(self._connections(singly=singly), REST_S)
        if singly:
            for vhost in list(self._broker.node.vhosts.values()):
                self._note(vhost.name, VHOST, self.vhost_values(vhost))
        self._series = {key: series for key, series in self._series.items() if series.look == self._look}
        now, values = time.time(), self.whole_values()
        if not self._whole:
            self._whole = [Series(WHOLE, now, values)]
            self._whole += [Series(WHOLE, now, values, every_s - 0.5, kept_s) for every_s, kept_s in COARSER]
        for series in self._whole:
            series.add(now, values)

    def _queues(self, vhost: VHost, lengths: list[int], disk: list[int], *, singly: bool) -> Iterator[None]:
        disk[0] += int(vhost.deleted.disk_reads)
        disk[1] += int(vhost.deleted.disk_writes)
        for queue in vhost.each_queue():
            backing = queue.backing
            ready = int(queue.ready_count())
            lengths[0] += ready
            lengths[1] += int(backing.unacked)
            series = self._series.get(queue)
            mark = int(queue.published + queue.taken + queue.acked + queue.get_empty + backing.unacked) + ready
            if singly and (mark or series is not None):
                if series is None or series.mark != mark:
                    series = self._note(queue, QUEUE, queue_values(queue))
                    series.mark = mark
                else:
                    self._note(queue, QUEUE, series.values)
            if series is not None:
                disk[0] += series.values[-2]
                disk[1] += series.values[-1]
            yield

    def _exchanges(self, vhost: VHost) -> Iterator[None]:
        for routed in chain([vhost.routes.routed], (exchange.routed for exchange in vhost.each_exchange())):
            if routed.published_in:
                self._note(routed, EXCHANGE, exchange_values(routed))
            yield

    def _connections(self, *, singly: bool) -> Iterator[None]:
        """What is closed is added last: what closes meanwhile counts twice until the next look, and no count falls."""
        done: dict[str, Values] = {}
        for connection in list(self._broker.clients.connections):
            if singly:
                self._note(connection, CONNECTION, connection_values(connection))
                for channel in _open_channels(connection):
                    self._note(channel, CHANNEL, channel_values(channel.counted()))
            vhost = connection.session.vhost
            if vhost is not None:
                done[vhost.name] = _added(done.get(vhost.name, NOTHING_DONE), _done_by(connection))
            yield
        for name in self._broker.node.vhosts:
            found = _added(done.get(name, NOTHING_DONE), self._closed(name))
            self._done[name] = tuple(map(max, found, self._done.get(name, NOTHING_DONE)))
        self._done = {name: found for name, found in self._done.items() if name in self._broker.node.vhosts}

    def _note(self, key: object, names: tuple[str, ...], values: Values) -> Series:
        now = time.time()
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(names, now, values)
        else:
            series.add(now, values, full=len(self._series) <= FULL)
        series.look = self._look
        return series

    # -- sums ----------------------------------------------------------------------------------------------------

    def lengths(self, vhost: VHost) -> Values:
        """Messages of a vhost, ready and unacked ones: now if it has few queues, else at the last look."""
        known = self._lengths.get(vhost.name)
        if known is not None and len(vhost.queues) > FULL:
            return known
        ready = unacked = 0
        for queue in vhost.queues.values():
            ready += int(queue.ready_count())
            unacked += int(queue.backing.unacked)
        return ready + unacked, ready, unacked

    def vhost_values(self, vhost: VHost) -> Values:
        """As VHOST says."""
        connections = self._broker.clients.connections
        if len(connections) > LIVE:
            return (*self.lengths(vhost), *self._done.get(vhost.name, NOTHING_DONE))
        done = self._closed(vhost.name)
        for connection in list(connections):
            if connection.session.vhost is vhost:
                done = _added(done, _done_by(connection))
        return (*self.lengths(vhost), *done)

    def _closed(self, vhost: str) -> Values:
        """What channels and connections of a vhost that are closed have done."""
        closed = self._broker.node.totals.closed_of_vhosts.get(vhost)
        if closed is None:
            return NOTHING_DONE
        return (*channel_values(closed), int(closed.received_bytes), int(closed.sent_bytes))

    def _gone(self, closed: Values) -> Values:
        """What was done in vhosts that are deleted: all that is closed, less what is closed in those that are there."""
        there = NOTHING_DONE
        for name in self._broker.node.vhosts:
            there = _added(there, self._closed(name))
        return tuple(max(one - other, 0) for one, other in zip(closed, there, strict=False))

    def whole_values(self) -> Values:
        """As WHOLE says."""
        node = self._broker.node
        vhosts = list(node.vhosts.values())
        lengths: Values = (0, 0, 0)
        for vhost in vhosts:
            lengths = _added(lengths, self.lengths(vhost))
        totals = node.totals
        sums = channel_values(totals.closed_channels)
        connections = self._broker.clients.connections
        if len(connections) > LIVE:
            gone = self._gone(sums)
            sums = tuple(map(sum, zip(gone, *(done[: len(CHANNEL)] for done in self._done.values()), strict=True)))
        else:
            for connection in list(connections):
                for channel in _open_channels(connection):
                    sums = _added(sums, channel_values(channel.counted()))
        churn = (
            int(totals.channels_closed),
            int(totals.channels_opened),
            int(totals.connections_closed),
            int(totals.connections_opened),
            sum(int(vhost.queues_created) for vhost in vhosts),
            sum(int(vhost.queues_declared) for vhost in vhosts),
            sum(int(vhost.queues_deleted) for vhost in vhosts),
        )
        return (*lengths, *sums, *self._disk, *churn, *self._node_figures().values())


def _done_by(connection: Connection) -> Values:
    """What the open channels of a connection have done, and its traffic."""
    sums = NOTHING_DONE[:-2]
    for channel in _open_channels(connection):
        sums = _added(sums, channel_values(channel.counted()))
    return (*sums, *connection_values(connection))


def _open_channels(connection: Connection) -> list[Channel]:
    return [channel for channel in list(connection.channels.values()) if not channel.closing]
