"""Looks at the counters of everything, every `collect_statistics_interval`, or each second while somebody watches or there is
little to look at.

Nothing here is told of a message: a look copies integers that are counted anyway, a slice of the queues at a time. Single
objects are looked at while somebody asks: from the first request of the API until ASKED_S after the last.

What must stay true: whoever is gone is forgotten at the next look; no more than FULL series keep more than the latest looks;
`touched` has whatever a look found changed, or unchanged for the first time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from rabbitpy_broker.management.api.rates import (
    CHANNEL,
    CONNECTION,
    EXCHANGE,
    NOTHING_DONE,
    QUEUE,
    RATE_S,
    VHOST,
    WHOLE,
    Series,
    Span,
    Values,
    channel_values,
    connection_values,
    exchange_values,
    queue_values,
)
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.slices import REST_S, in_slices
from rabbitpy_broker.vhost import VHost

ASKED_S: Final = 600.0
FULL: Final = 2_000  # series with a history
UNUSED: Final = (0,) * 7  # the mark of a queue with which nothing has been done
LIVE: Final = 500  # connections, whose counts are added up for each answer; those of more only at a look
FEW_QUEUES: Final = 500  # so few, with FEW_CONNECTIONS, may be looked at each second, whoever asks
FEW_CONNECTIONS: Final = 100
COARSER: Final = ((60.0, 3_660.0), (600.0, 29_400.0), (1_800.0, 86_400.0))  # seconds: how often, how long; of the whole broker


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
    """Looks every `interval_s`, or at each tick. `node_figures` reads what the process uses. `watchers` see each change."""

    def __init__(self, broker: ManagedBroker, interval_s: float, node_figures: Callable[[], NodeFigures]) -> None:
        self.watchers = 0
        self.touched: list[object] = []
        self.started = time.time()
        self._broker = broker
        self._interval_s = interval_s
        self._rate_s = min(RATE_S, interval_s)
        self._node_figures = node_figures
        self._asked_at = time.monotonic() - ASKED_S
        self._looked_at = 0.0
        self.forget()

    def forget(self) -> None:
        """All statistics begin anew."""
        self._series: dict[object, Series] = {}
        self._whole: list[Series] = []
        self._lengths: dict[str, Values] = {}  # by vhost, at the last look
        self._disk: Values = (0, 0)
        self._done: dict[str, Values] = {}  # as VHOST says, without lengths; by vhost, at the last look
        self._look = 0
        self._noted = 0  # series, in this look
        self._nothing_at: float | None = None  # when whatever has no series had done nothing

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

    async def tick(self) -> bool:
        """Looks when it is time; says whether it did."""
        if not (self.watchers or self._is_little()) and time.monotonic() - self._looked_at < self._interval_s - 0.05:
            return False
        await self.look()
        return True

    def _is_little(self) -> bool:
        queues = sum(len(vhost.queues) for vhost in self._broker.node.vhosts.values())
        return queues <= FEW_QUEUES and len(self._broker.clients.connections) <= FEW_CONNECTIONS

    async def look(self) -> None:
        """Takes one sample of everything."""
        self._looked_at = time.monotonic()
        self._look += 1
        self._noted = 0
        self.touched = []
        singly = self.watchers > 0 or time.monotonic() - self._asked_at < ASKED_S
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
        for vhost in list(self._broker.node.vhosts.values()):
            self._note(vhost.name, VHOST, self.vhost_values(vhost))
        if self._noted < len(self._series):
            self._series = {key: series for key, series in self._series.items() if series.look == self._look}
        now, values = time.time(), self.whole_values()
        if not self._whole:
            self._whole = [Series(WHOLE, now, values, rate_s=self._rate_s)]
            self._whole += [Series(WHOLE, now, values, every_s - 0.5, kept_s) for every_s, kept_s in COARSER]
        for series in self._whole:
            series.add(now, values)
        self._nothing_at = now if singly else None

    def _queues(self, vhost: VHost, lengths: list[int], disk: list[int], *, singly: bool) -> Iterator[None]:
        disk[0] += int(vhost.deleted.disk_reads)
        disk[1] += int(vhost.deleted.disk_writes)
        for queue in vhost.each_queue():
            backing, ready = queue.backing, int(queue.ready_count())
            lengths[0] += ready
            lengths[1] += int(backing.unacked)
            series = self._series.get(queue)
            if singly:
                mark = (
                    queue.published, queue.taken, queue.acked, queue.get_empty, ready, backing.unacked,
                    len(queue.consumers.members),
                )  # fmt: skip
                if series is None:
                    if mark != UNUSED:
                        series = self._note(queue, QUEUE, queue_values(queue))
                        series.mark = mark
                elif series.mark != mark:
                    series = self._note(queue, QUEUE, queue_values(queue))
                    series.mark = mark
                elif series.previous is not series.values:
                    self._note(queue, QUEUE, series.values)
                else:  # as it was, and as it was before
                    series.before, series.checked, series.look = series.checked, time.time(), self._look
                    self._noted += 1
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
        if series is None and self._nothing_at is not None and names is not VHOST:
            series = self._series[key] = Series(names, self._nothing_at, (0,) * len(values), rate_s=self._rate_s)
        if series is None:
            series = self._series[key] = Series(names, now, values, rate_s=self._rate_s)
            self.touched.append(key)
        else:
            if series.previous is not series.values or values != series.values:
                self.touched.append(key)
            series.add(now, values, full=len(self._series) <= FULL)
        series.look = self._look
        self._noted += 1
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
