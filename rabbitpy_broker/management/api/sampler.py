"""Looks at the counters of everything, every `collect_statistics_interval`, or each second while somebody watches or there is
little to look at.

Nothing here is told of a message: a look copies integers that are counted anyway, a slice of the queues at a time. Single
objects are looked at while somebody asks: from the first request of the API until ASKED_S after the last. A queue with which
nothing has been done costs a look no more than one number (`queues/activity.py`), and its series is brought up to date when
somebody asks for it.

Without rates there are no looks and no series. Only while pages watch is it found out which queues have changed.

What must stay true: whoever is gone is forgotten at the next look; no more than FULL series keep more than the latest looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from rabbitpy_broker.config import Config
from rabbitpy_broker.management.api.queue_series import QueueSeries
from rabbitpy_broker.management.api.rates import (
    BASIC,
    CHANNEL,
    CHURN,
    CONNECTION,
    CONSUMER,
    DETAILED,
    EXCHANGE,
    GLOBAL,
    NODE,
    NOTHING_DONE,
    RATE_S,
    VHOST,
    WHOLE,
    WITHOUT_RATES,
    Names,
    Retention,
    Series,
    Spans,
    Values,
    channel_values,
    connection_values,
    consumer_values,
    exchange_values,
    idle_since,
    spans,
)
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.queues.activity import Lengths, done_since
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.slices import REST_S, in_slices
from rabbitpy_broker.vhost import VHost

ASKED_S: Final = 600.0
FULL: Final = 2_000  # series with a history
WALKED: Final = 500  # queues that are looked at in one step
LIVE: Final = 500  # connections, whose counts are added up for each answer; those of more only at a look
FOLLOWED_S: Final = 60.0  # for which a consumer is looked at that somebody has asked for
FEW_QUEUES: Final = 500  # so few, with FEW_CONNECTIONS, may be looked at each second, whoever asks
FEW_CONNECTIONS: Final = 100
HOUR_S: Final = 3_600
OF_NODE: Final = (*CHURN, *NODE)


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


@dataclass(frozen=True)
class Sampling:
    """Whether there are rates; for how long samples are kept of the broker and its vhosts, of other objects, of pairs of them."""

    rates: bool = True
    overall: Retention = GLOBAL
    basic: Retention = BASIC
    detailed: Retention = DETAILED

    def of(self, names: Names) -> Retention:
        """Of what has these counters."""
        return self.overall if names in (WHOLE, VHOST) else self.detailed if names == CONSUMER else self.basic

    def row(self) -> dict[str, list[int]]:
        """As `sample_retention_policies` has it: for how long, in whole minutes, or in whole hours."""
        kinds = {"global": self.overall, "basic": self.basic, "detailed": self.detailed}
        return {kind: [_rounded(int(kept_s)) for kept_s, _ in kept] for kind, kept in kinds.items()}


def _rounded(seconds: int) -> int:
    unit_s = HOUR_S if seconds >= HOUR_S else 60
    return seconds // unit_s * unit_s


def sampling(config: Config) -> Sampling:
    """As the configuration has it."""
    given = config.management.sample_retention_policies
    return Sampling(
        config.management.rates_mode != "none" and not config.management_agent.disable_metrics_collector,
        given.global_.levels() or GLOBAL,
        given.basic.levels() or BASIC,
        given.detailed.levels() or DETAILED,
    )


class Sampler:
    """Looks every `interval_s`, or at each tick. `node_figures` reads what the process uses. `watchers` see each change."""

    def __init__(
        self,
        broker: ManagedBroker,
        interval_s: float,
        node_figures: Callable[[], NodeFigures],
        kept: Sampling = Sampling(),
    ) -> None:
        self.kept = kept
        self.watchers = 0
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
        self.queues = QueueSeries(self._rate_s, self.kept.basic)
        self._series: dict[object, Series] = {}  # of everything else
        self._followed: dict[ChannelConsumer, float] = {}  # until when
        self._whole: Series | None = None
        self._lengths: dict[str, Values] = {}  # by vhost, at the last look
        self._disk: Values = (0, 0)
        self._done: dict[str, Values] = {}  # as VHOST says, without lengths; by vhost, at the last look
        self._look = 0
        self._noted = 0  # of `_series`, in this look
        self._queues: dict[VHost, tuple[tuple[int, int, int], list[Queue]]] = {}  # of vhosts, with how many came and went
        self._there: list[tuple[VHost, int]] = []  # vhosts, and how many queues were deleted in each
        self._anew = True  # what was done with a queue has not been looked at
        self._nothing_at: float | None = None  # when whatever has no series had done nothing

    def asked(self) -> None:
        """Somebody uses the API."""
        self._asked_at = time.monotonic()

    def of(self, key: object) -> Series | None:
        """The series of a queue, a channel, a connection, of an exchange's `Routed`, of a vhost's name."""
        if not isinstance(key, Queue):
            return self._series.get(key)
        return self.queues.of(key)

    def spans(self, query: Mapping[str, str]) -> Spans:
        """As `rates.spans`, which is what a request wants; without rates it gets none."""
        return spans(query) if self.kept.rates else WITHOUT_RATES

    def follow(self, consumer: ChannelConsumer) -> Series:
        """The series of a consumer, which is looked at from now on, as long as somebody asks for it."""
        self._followed[consumer] = time.monotonic() + FOLLOWED_S
        series = self._series.get(consumer)
        if series is None:
            series = self._series[consumer] = self._new(CONSUMER, time.time(), consumer_values(consumer))
            series.look = self._look
        return series

    @property
    def era(self) -> object:
        """Another one when statistics have begun anew."""
        return self.queues

    def whole(self) -> Series | None:
        """The series of the broker."""
        return self._whole

    def of_node(self) -> dict[str, int]:
        """Churn, and what the process uses, by name: at the last look, or now where there are none."""
        if self._whole is not None:
            found = dict(zip(WHOLE, self._whole.values, strict=True))
            return {name: found[name] for name in OF_NODE}
        return {} if self.kept.rates else dict(zip(OF_NODE, self._node_values(), strict=True))

    def idle_since(self, series: Series | None, values: Values) -> float | None:
        """As `rates.idle_since`."""
        return idle_since(series, values, self.started)

    async def tick(self) -> bool:
        """Looks when it is time; says whether it did."""
        if not self.kept.rates:
            if self.watchers:
                await in_slices(self._find_changed(), REST_S)
            else:
                self._queues.clear()
            return False
        if not (self.watchers or self._is_little()) and time.monotonic() - self._looked_at < self._interval_s - 0.05:
            return False
        await self.look()
        return True

    def _is_little(self) -> bool:
        queues = sum(len(vhost.queues) for vhost in self._broker.node.vhosts.values())
        return queues <= FEW_QUEUES and len(self._broker.clients.connections) <= FEW_CONNECTIONS

    async def look(self) -> None:
        """Takes one sample of everything."""
        self._looked_at, began = time.monotonic(), time.time()
        self._look += 1
        self._noted = 0
        fresh = self.queues.begin(self._look)
        singly = self.watchers > 0 or time.monotonic() - self._asked_at < ASKED_S
        lengths: dict[str, Values] = {}
        for vhost in self._vhosts():
            of_vhost = Lengths()
            await in_slices(self._look_at_queues(vhost, of_vhost, singly=singly), REST_S)
            ready, unacked = int(of_vhost.ready), int(of_vhost.unacked)
            lengths[vhost.name] = ready + unacked, ready, unacked
            if singly:
                await in_slices(self._exchanges(vhost), REST_S)
        self._lengths = lengths
        await in_slices(self.queues.settle(fresh), REST_S)
        await in_slices(self._connections(singly=singly), REST_S)
        await in_slices(self._consumers(), REST_S)
        for vhost in list(self._broker.node.vhosts.values()):
            self._note(vhost.name, VHOST, self.vhost_values(vhost))
        if self._noted < len(self._series):
            await in_slices(self._forget_others())
        await in_slices(self._forget_queues(singly=singly))
        deleted = [vhost.deleted for vhost in self._broker.node.vhosts.values()]
        self._disk = (
            self.queues.disk[0] + sum(int(queues.disk_reads) for queues in deleted),
            self.queues.disk[1] + sum(int(queues.disk_writes) for queues in deleted),
        )
        now, values = time.time(), self.whole_values()
        if self._whole is None:
            self._whole = self._new(WHOLE, now, values)
        self._whole.add(now, values)
        self.queues.looks = self._look, began, self.queues.looks[1] or began
        self._nothing_at = began if singly else None
        self._anew = not singly

    def _find_changed(self) -> Iterator[None]:
        """Queues with which something has been done since this was last asked."""
        self._look += 1
        self.queues.begin(self._look)
        for vhost in self._vhosts():
            queues = self._queues_of(vhost)
            for start in range(0, len(queues), WALKED):
                self.queues.touched += done_since(queues, start, start + WALKED, Lengths(), False)
                yield

    def _look_at_queues(self, vhost: VHost, lengths: Lengths, *, singly: bool) -> Iterator[None]:
        queues = self._queues_of(vhost)
        for start in range(0, len(queues), WALKED):
            changed = done_since(queues, start, start + WALKED, lengths, self._anew)
            if singly:
                yield from self.queues.note(changed, self._nothing_at, FULL - len(self._series))
            yield

    def _vhosts(self) -> list[VHost]:
        """Those that there are; what is known of the queues of others is forgotten."""
        vhosts = list(self._broker.node.vhosts.values())
        for vhost in self._queues.keys() - set(vhosts):
            del self._queues[vhost]
        return vhosts

    def _queues_of(self, vhost: VHost) -> list[Queue]:
        """Its queues; the list of the look before, unless one came or went."""
        counts = int(vhost.queues_created), int(vhost.queues_deleted), len(vhost.queues)
        known = self._queues.get(vhost)
        if known is None or known[0] != counts:
            known = self._queues[vhost] = counts, list(vhost.queues.values())
        return known[1]

    def _forget_others(self) -> Iterator[None]:
        for key, series in list(self._series.items()):
            if series.look != self._look:
                self._series.pop(key, None)
            yield

    def _forget_queues(self, *, singly: bool) -> Iterator[None]:
        there = [(vhost, int(vhost.queues_deleted)) for vhost in self._broker.node.vhosts.values()]
        if singly and there == self._there:
            return
        self._there = there
        yield from self.queues.forget({vhost.name for vhost, _ in there} if singly else set())

    def _is_full(self) -> bool:
        return len(self._series) + self.queues.count() <= FULL

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

    def _consumers(self) -> Iterator[None]:
        now = time.monotonic()
        for consumer, until in list(self._followed.items()):
            if until < now or consumer not in consumer.queue.consumers.members:
                del self._followed[consumer]
            else:
                self._note(consumer, CONSUMER, consumer_values(consumer))
            yield

    def _note(self, key: object, names: tuple[str, ...], values: Values) -> Series:
        now = time.time()
        series = self._series.get(key)
        if series is None and self._nothing_at is not None and names is not VHOST:
            series = self._series[key] = self._new(names, self._nothing_at, (0,) * len(values))
        if series is None:
            series = self._series[key] = self._new(names, now, values)
        else:
            series.add(now, values, full=self._is_full())
        series.look = self._look
        self._noted += 1
        return series

    def _new(self, names: Names, now: float, values: Values) -> Series:
        return Series(names, now, values, self.kept.of(names), self._rate_s)

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
        if len(connections) > LIVE and self.kept.rates:
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
        sums = channel_values(node.totals.closed_channels)
        connections = self._broker.clients.connections
        if len(connections) > LIVE:
            gone = self._gone(sums)
            sums = tuple(map(sum, zip(gone, *(done[: len(CHANNEL)] for done in self._done.values()), strict=True)))
        else:
            for connection in list(connections):
                for channel in _open_channels(connection):
                    sums = _added(sums, channel_values(channel.counted()))
        return (*lengths, *sums, *self._disk, *self._node_values())

    def _node_values(self) -> Values:
        """As OF_NODE says."""
        vhosts, totals = list(self._broker.node.vhosts.values()), self._broker.node.totals
        return (
            int(totals.channels_closed),
            int(totals.channels_opened),
            int(totals.connections_closed),
            int(totals.connections_opened),
            sum(int(vhost.queues_created) for vhost in vhosts),
            sum(int(vhost.queues_declared) for vhost in vhosts),
            sum(int(vhost.queues_deleted) for vhost in vhosts),
            *self._node_figures().values(),
        )


def _done_by(connection: Connection) -> Values:
    """What the open channels of a connection have done, and its traffic."""
    sums = NOTHING_DONE[:-2]
    for channel in _open_channels(connection):
        sums = _added(sums, channel_values(channel.counted()))
    return (*sums, *connection_values(connection))


def _open_channels(connection: Connection) -> list[Channel]:
    return [channel for channel in list(connection.channels.values()) if not channel.closing]
