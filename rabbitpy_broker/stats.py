"""A look at the broker for /metrics: plain ints of queues, channels, connections and stores, copied and added up.

The sums count what is gone too: `Totals` has it of closed channels and connections, the vhosts of deleted queues. A look is
a walk in slices. It begins with what is gone, so that nothing is counted twice: what goes before its turn is missing from
this look, and in the next one. That no counter falls because of it is the affair of `Shown`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from typing import Any

from rabbitpy_broker import __version__, build_info
from rabbitpy_broker.alarms import Alarms
from rabbitpy_broker.metrics import (
    Authentications,
    BrokerStats,
    ChannelStats,
    ConnectionStats,
    MessageStoreStats,
    NodeStats,
    QueueStats,
    StoreStats,
    StreamStats,
)
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.counters import COUNTED, Counters
from rabbitpy_broker.protocol.handshake import RABBITMQ_VERSION
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.protocol.publish_waits import oldest_wait_s
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.queues.dead_lettered import DeadLettered
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CONSUMER_ACK, CONSUMER_ACK_LIGHT, PERSIST
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.store_file import HEADER_SIZE
from rabbitpy_broker.storage.vhost_store import VHostStore
from rabbitpy_broker.vhost import VHost

STARTED = time.monotonic()


class Shown:
    """The counters that fall when something is missing from a look, as they were last shown: none is shown lower."""

    def __init__(self) -> None:
        self._highest: dict[tuple[type, str], Any] = {}

    def keep_up(self, stats: BrokerStats) -> None:
        """Raises what is lower than it was shown, and remembers what is shown now."""
        for part, names in (
            (stats.queue_sum, ("published", "paged_out", "paged_in", "disk_reads", "disk_writes")),
            (stats.channel_sum, COUNTED),
            (stats.connection_sum, ("received_bytes", "sent_bytes")),
        ):
            for name in names:
                place = type(part), name
                highest = max(getattr(part, name), self._highest.get(place, 0))
                self._highest[place] = highest
                setattr(part, name, highest)


class DeletedVHosts:
    """What vhosts that are gone had counted, and what was shown of all: a counter never falls."""

    def __init__(self) -> None:
        self.queues = QueueStats()
        self.stores = StoreStats()
        self.dead_lettered = DeadLettered()
        self.queues_declared = 0
        self.queues_created = 0
        self.queues_deleted = 0
        self.leaving: list[VHost] = []  # gone for everybody, but not counted above yet
        self.shown = Shown()

    def add(self, vhost: VHost) -> None:
        """A vhost goes, and all its queues are deleted already."""
        self.queues_declared += vhost.queues_declared
        self.queues_created += vhost.queues_created
        self.queues_deleted += vhost.queues_deleted
        self.queues.published += vhost.deleted.published
        add_disk_traffic(self.queues, vhost.deleted)
        self.dead_lettered.add(vhost.dead_letters.dead_lettered)
        stores = add_store(self.stores, vhost.store)
        stores.journal_files = stores.journal_bytes = 0  # what it has, unlike what it did, is gone
        for store in (stores.persistent, stores.transient):
            store.messages = store.bytes = store.files = store.garbage_bytes = 0


class Look:
    """One look at the broker: `stats` is whole when all `steps` have been taken.

    `open_connections` are those that are open at any time. The lists of single objects are made only when asked for.
    """

    def __init__(
        self,
        node: Node,
        open_connections: dict[Connection, None],
        alarms: Alarms,
        cluster_name: str,
        cluster_id: str,
        sockets: int,
        rests: int,
        *,
        per_object: bool,
        deleted: DeletedVHosts | None = None,
    ) -> None:
        self._node = node
        self._connections = open_connections
        self._vhosts = [*node.vhosts.values(), *(deleted.leaving if deleted is not None else [])]
        self._deleted = deleted if deleted is not None else DeletedVHosts()
        self._per_object = per_object
        of_node = _node_stats(
            node, self._vhosts, len(open_connections), alarms, cluster_name, cluster_id, sockets, rests
        )
        self.stats = BrokerStats(of_node, QueueStats(), ChannelStats(), ConnectionStats())

    def steps(self) -> Iterator[None]:
        """One for each queue and each channel."""
        self._add_gone()
        self._add_stores()
        yield
        for vhost in self._vhosts:
            for queue in vhost.each_queue():
                self._add_queue(queue)
                yield
        for connection in list(self._connections):
            if connection in self._connections:
                yield from self._add_connection(connection)

    def _add_gone(self) -> None:
        stats, node, deleted = self.stats, self._node, self._deleted
        dead_lettered = DeadLettered()
        dead_lettered.add(deleted.dead_lettered)
        _add_counters(stats.channel_sum, node.totals.closed_channels)
        stats.connection_sum.received_bytes += node.totals.received_bytes
        stats.connection_sum.sent_bytes += node.totals.sent_bytes
        stats.queue_sum.published += deleted.queues.published
        add_disk_traffic(stats.queue_sum, deleted.queues)
        stats.node.queues_declared += deleted.queues_declared
        stats.node.queues_created += deleted.queues_created
        stats.node.queues_deleted += deleted.queues_deleted
        for vhost in self._vhosts:
            dead_lettered.add(vhost.dead_letters.dead_lettered)
            stats.queue_sum.published += vhost.deleted.published
            add_disk_traffic(stats.queue_sum, vhost.deleted)
        stats.dead_lettered = dead_lettered.counts

    def _add_stores(self) -> None:
        stats = self.stats
        stats.store_sum = copy.deepcopy(self._deleted.stores)
        for vhost in self._vhosts:
            add_store(stats.store_sum, vhost.store)
            if self._per_object:
                stats.stores.append(add_store(StoreStats(vhost=vhost.name), vhost.store))

    def _add_queue(self, queue: Queue) -> None:
        _add_queue(self.stats.queue_sum, queue, self._connections)
        if self._per_object:
            self.stats.queues.append(queue_stats(queue, self._connections))
        if isinstance(queue, StreamQueue):
            of_stream, stream_sum = stream_stats(queue), self.stats.stream_sum
            stream_sum.segments += of_stream.segments
            stream_sum.readers += of_stream.readers
            stream_sum.first_offset += of_stream.first_offset
            stream_sum.committed_offset += of_stream.committed_offset
            stream_sum.max_offset_lag = max(stream_sum.max_offset_lag, of_stream.max_offset_lag)
            if self._per_object:
                self.stats.streams.append(of_stream)

    def _add_connection(self, connection: Connection) -> Iterator[None]:
        stats, node = self.stats, self.stats.node
        vhost = connection.session.vhost.name if connection.session.vhost else ""
        _add_connection(stats.connection_sum, connection)
        node.blocked_connections += connection.blocked
        if self._per_object:
            user = connection.session.user.name if connection.session.user else ""
            single = ConnectionStats(name=connection.name, vhost=vhost, user=user)
            stats.connections.append(_add_connection(single, connection))
        for channel in list(connection.channels.values()):
            if connection.channels.get(channel.number) is channel:
                self._add_channel(connection, channel, vhost)
            yield
        yield

    def _add_channel(self, connection: Connection, channel: Channel, vhost: str) -> None:
        stats, node = self.stats, self.stats.node
        node.channels += 1
        node.consumers += len(channel.deliveries.consumers)
        node.publishers += channel.counters.published > 0
        if channel.closing:
            return  # counted in the totals already
        _add_channel(stats.channel_sum, channel)
        if self._per_object:
            name = f"{connection.name} ({channel.number})"
            single = ChannelStats(name=name, connection=connection.name, vhost=vhost)
            stats.channels.append(_add_channel(single, channel))


def _node_stats(
    node: Node,
    vhosts: list[VHost],
    connections: int,
    alarms: Alarms,
    cluster_name: str, cluster_id: str, sockets: int, rests: int
) -> NodeStats:
    """What is counted by walking is still 0."""
    totals = node.totals
    return NodeStats(
        node_name=cluster_name,
        cluster_name=cluster_name,
        cluster_id=cluster_id,
        version=__version__,
        rabbitmq_version=RABBITMQ_VERSION,
        build=build_info.build(),
        python=build_info.python(),
        uptime_seconds=time.monotonic() - STARTED,
        memory_used=alarms.memory_used,
        memory_limit_bytes=alarms.memory_limit_bytes,
        disk_free=alarms.disk_free,
        disk_limit_bytes=alarms.disk_limit_bytes,
        alarms=frozenset(alarms.active),
        sockets=sockets,
        rests=rests,
        connections=connections,
        channels=0,
        queues=sum(len(vhost.queues) for vhost in vhosts),
        consumers=0,
        publishers=0,
        blocked_connections=0,
        connections_opened=int(totals.connections_opened),
        connections_closed=int(totals.connections_closed),
        channels_opened=int(totals.channels_opened),
        channels_closed=int(totals.channels_closed),
        queues_declared=sum(int(vhost.queues_declared) for vhost in vhosts),
        queues_created=sum(int(vhost.queues_created) for vhost in vhosts),
        queues_deleted=sum(int(vhost.queues_deleted) for vhost in vhosts),
        amqp_authentications=Authentications(
            int(totals.authentications_failed), int(totals.authentications_succeeded)
        ),
        http_authentications=Authentications(
            int(totals.http_authentications_failed), int(totals.http_authentications_succeeded)
        ),
    )


def _add_counters(stats: ChannelStats, counters: Counters) -> None:
    for name in COUNTED:
        setattr(stats, name, getattr(stats, name) + getattr(counters, name))


def queue_stats(queue: Queue, connections: Iterable[Connection]) -> QueueStats:
    """The figures of one queue."""
    return _add_queue(QueueStats(vhost=queue.vhost, name=queue.name), queue, connections)


def stream_stats(queue: StreamQueue) -> StreamStats:
    """What a stream has besides."""
    log = queue.log
    return StreamStats(
        queue.vhost,
        queue.name,
        segments=int(log.segment_count()),
        readers=len(queue.cursors),
        first_offset=int(log.first_offset),
        committed_offset=int(log.committed) - 1,
        max_offset_lag=max([int(cursor.lag()) for cursor in queue.cursors.values()], default=0),
    )


def _add_queue(stats: QueueStats, queue: Queue, connections: Iterable[Connection]) -> QueueStats:
    backing = queue.backing
    stats.messages_ready += queue.ready_count()
    stats.messages_unacked += backing.unacked
    stats.messages_ready_bytes += queue.ready_bytes()
    stats.messages_unacked_bytes += backing.unacked_bytes
    stats.consumers += queue.consumer_count
    stats.published += queue.published
    stats.publishes_waiting += backing.publishes_waiting()
    stats.oldest_publish_waiting_s = max(stats.oldest_publish_waiting_s, oldest_wait_s(queue, connections))
    mode = queue.settings.confirm_mode
    stats.in_persist += mode == PERSIST
    stats.in_consumer_ack += mode == CONSUMER_ACK
    stats.in_consumer_ack_light += mode == CONSUMER_ACK_LIGHT
    add_paging(stats, backing)
    return stats


def add_paging(stats: QueueStats, backing: Any) -> None:
    """What of a queue is where; `backing` is its BackingQueue."""
    figures = Figures()
    backing.add_figures(figures)
    in_ram = figures.ready_ram + figures.unacked_ram
    stats.messages_alpha += figures.alpha
    stats.messages_beta += figures.beta
    stats.messages_gamma += figures.gamma
    stats.messages_delta += figures.delta
    stats.messages_ready_ram += figures.ready_ram
    stats.messages_unacked_ram += figures.unacked_ram
    stats.messages_ram += in_ram
    stats.messages_ram_bytes += figures.ram_bytes
    stats.messages_paged_out += backing.len + backing.unacked - in_ram
    stats.messages_paged_out_bytes += backing.ready_bytes + backing.unacked_bytes - figures.ram_bytes
    stats.messages_persistent += figures.persistent
    stats.messages_persistent_bytes += figures.persistent_bytes
    add_disk_traffic(stats, figures)


def add_disk_traffic(stats: QueueStats, counted: Any) -> None:
    """What went to disk and came back: of one queue, or what a vhost has kept of its deleted ones."""
    stats.paged_out += counted.paged_out
    stats.paged_in += counted.paged_in
    stats.disk_reads += counted.disk_reads
    stats.disk_writes += counted.disk_writes


def add_store(stats: StoreStats, store: VHostStore) -> StoreStats:
    """What a vhost's queues share: the journal, and the two message stores behind it."""
    journal = store.journal
    stats.epochs += journal.epochs
    stats.epoch_failures += journal.epoch_failures
    stats.synced_bytes += journal.synced_bytes
    stats.sync_seconds += journal.sync_seconds
    stats.elided_publishes += journal.elided
    stats.journal_files += journal.files.count()
    stats.journal_bytes += journal.files.size()
    stats.scatters += store.scatter.scatters
    _add_message_store(stats.persistent, store.persistent_messages)
    _add_message_store(stats.transient, store.transient_messages)
    return stats


def _add_message_store(stats: MessageStoreStats, store: MessageStore) -> None:
    counters = store.counters()
    stats.messages += counters["messages"]
    stats.bytes += counters["bytes"]
    stats.files += counters["files"]
    stats.garbage_bytes += sum(
        total - HEADER_SIZE - valid for _, valid, total in store.file_summary()
    )
    stats.writes += counters["writes"]
    stats.elided_writes += counters["elided_writes"]
    stats.reads += counters["reads"]
    stats.compactions += counters["compactions"]


def _add_channel(stats: ChannelStats, channel: Channel) -> ChannelStats:
    deliveries = channel.deliveries
    stats.consumers += len(deliveries.consumers)
    stats.unacked += deliveries.unacked_count()
    stats.consumer_prefetch += deliveries.consumer_prefetch
    stats.prefetch_limit += deliveries.prefetch_limit
    _add_counters(stats, channel.counted())
    if channel.confirms is not None:
        stats.unconfirmed += channel.confirms.waiting_count()
    if channel.tx is not None:
        stats.uncommitted += len(channel.tx.publishes)
        stats.acks_uncommitted += channel.tx.settled_count()
    return stats


def _add_connection(stats: ConnectionStats, connection: Connection) -> ConnectionStats:
    stats.received_bytes += connection.received_bytes
    stats.sent_bytes += connection.output.sent_bytes
    stats.channels += len(connection.channels)
    return stats
