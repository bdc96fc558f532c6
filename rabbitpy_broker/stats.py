"""A look at the broker for /metrics: plain ints of queues, channels, connections and stores, copied and added up.

The sums count what is gone too: `Totals` has it of closed channels and connections, the vhosts of deleted queues.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from typing import Any

from rabbitpy_broker import __version__, build_info
from rabbitpy_broker.alarms import Alarms
from rabbitpy_broker.metrics import (
    BrokerStats,
    ChannelStats,
    ConnectionStats,
    MessageStoreStats,
    NodeStats,
    QueueStats,
    StoreStats,
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
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.store_file import HEADER_SIZE
from rabbitpy_broker.storage.vhost_store import VHostStore
from rabbitpy_broker.vhost import VHost

STARTED = time.monotonic()


class DeletedVHosts:
    """What vhosts that are gone had counted: a counter never falls."""

    def __init__(self) -> None:
        self.queues = QueueStats()
        self.stores = StoreStats()
        self.dead_lettered = DeadLettered()
        self.queues_declared = 0
        self.queues_created = 0
        self.queues_deleted = 0
        self.leaving: list[VHost] = []  # gone for everybody, but not counted above yet

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


def collect(
    node: Node,
    connections: list[Connection],
    alarms: Alarms,
    cluster_name: str,
    cluster_id: str,
    sockets: int,
    rests: int,
    *,
    per_object: bool,
    deleted: DeletedVHosts | None = None,
) -> BrokerStats:
    """Copies the figures; the lists of single objects only when asked for."""
    queue_sum, channel_sum, connection_sum = QueueStats(), ChannelStats(), ConnectionStats()
    vhosts = [*node.vhosts.values(), *(deleted.leaving if deleted is not None else [])]
    of_node = _node_stats(node, vhosts, connections, alarms, cluster_name, cluster_id, sockets, rests)
    stats = BrokerStats(of_node, queue_sum, channel_sum, connection_sum)
    dead_lettered = DeadLettered()
    for vhost in vhosts:
        dead_lettered.add(vhost.dead_letters.dead_lettered)
    if deleted is not None:
        dead_lettered.add(deleted.dead_lettered)
    stats.dead_lettered = dead_lettered.counts
    _add_counters(channel_sum, node.totals.closed_channels)
    connection_sum.received_bytes += node.totals.received_bytes
    connection_sum.sent_bytes += node.totals.sent_bytes
    if deleted is not None:
        queue_sum.published += deleted.queues.published
        add_disk_traffic(queue_sum, deleted.queues)
        stats.store_sum = copy.deepcopy(deleted.stores)
        stats.node.queues_declared += deleted.queues_declared
        stats.node.queues_created += deleted.queues_created
        stats.node.queues_deleted += deleted.queues_deleted
    for vhost in vhosts:
        queue_sum.published += vhost.deleted.published
        add_disk_traffic(queue_sum, vhost.deleted)
        add_store(stats.store_sum, vhost.store)
        if per_object:
            stats.stores.append(add_store(StoreStats(vhost=vhost.name), vhost.store))
        for queue in vhost.queues.values():
            _add_queue(queue_sum, queue, connections)
            if per_object:
                stats.queues.append(queue_stats(queue, connections))
    for connection in connections:
        _add_connection(connection_sum, connection)
        vhost_name = connection.session.vhost.name if connection.session.vhost else ""
        if per_object:
            user = connection.session.user.name if connection.session.user else ""
            single = ConnectionStats(name=connection.name, vhost=vhost_name, user=user)
            stats.connections.append(_add_connection(single, connection))
        for channel in connection.channels.values():
            if channel.closing:
                continue  # counted in the totals already
            _add_channel(channel_sum, channel)
            if per_object:
                name = f"{connection.name} ({channel.number})"
                single_channel = ChannelStats(name=name, connection=connection.name, vhost=vhost_name)
                stats.channels.append(_add_channel(single_channel, channel))
    return stats


def _node_stats(
    node: Node,
    vhosts: list[VHost],
    connections: list[Connection],
    alarms: Alarms,
    cluster_name: str, cluster_id: str, sockets: int, rests: int
) -> NodeStats:
    totals = node.totals
    channels = [channel for connection in connections for channel in connection.channels.values()]
    return NodeStats(
        node_name=cluster_name,
        cluster_name=cluster_name,
        cluster_id=cluster_id,
        version=__version__,
        rabbitmq_version=RABBITMQ_VERSION,
        compiled=build_info.is_compiled(),
        uptime_seconds=time.monotonic() - STARTED,
        memory_used=alarms.memory_used,
        memory_limit_bytes=alarms.memory_limit_bytes,
        disk_free=alarms.disk_free,
        disk_limit_bytes=alarms.disk_limit_bytes,
        alarms=frozenset(alarms.active),
        sockets=sockets,
        rests=rests,
        connections=len(connections),
        channels=len(channels),
        queues=sum(len(vhost.queues) for vhost in vhosts),
        consumers=sum(len(channel.deliveries.consumers) for channel in channels),
        publishers=sum(1 for channel in channels if channel.counters.published),
        blocked_connections=sum(1 for connection in connections if connection.blocked),
        connections_opened=int(totals.connections_opened),
        connections_closed=int(totals.connections_closed),
        channels_opened=int(totals.channels_opened),
        channels_closed=int(totals.channels_closed),
        queues_declared=sum(int(vhost.queues_declared) for vhost in vhosts),
        queues_created=sum(int(vhost.queues_created) for vhost in vhosts),
        queues_deleted=sum(int(vhost.queues_deleted) for vhost in vhosts),
        authentications_failed=int(totals.authentications_failed),
        authentications_succeeded=int(totals.authentications_succeeded),
        authentications=int(totals.authentications_failed + totals.authentications_succeeded),
    )


def _add_counters(stats: ChannelStats, counters: Counters) -> None:
    for name in COUNTED:
        setattr(stats, name, getattr(stats, name) + getattr(counters, name))


def queue_stats(queue: Queue, connections: Iterable[Connection]) -> QueueStats:
    """The figures of one queue."""
    return _add_queue(QueueStats(vhost=queue.vhost, name=queue.name), queue, connections)


def _add_queue(stats: QueueStats, queue: Queue, connections: Iterable[Connection]) -> QueueStats:
    backing = queue.backing
    stats.messages_ready += backing.len
    stats.messages_unacked += backing.unacked
    stats.messages_ready_bytes += backing.ready_bytes
    stats.messages_unacked_bytes += backing.unacked_bytes
    stats.consumers += len(queue.consumers.members)
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
    stats.unacked += deliveries.unacked.count
    stats.consumer_prefetch += deliveries.consumer_prefetch
    stats.prefetch_limit += deliveries.prefetch_limit
    _add_counters(stats, channel.counted())
    if channel.confirms is not None:
        stats.unconfirmed += channel.confirms.waiting_count()
    if channel.tx is not None:
        stats.uncommitted += len(channel.tx.publishes)
        stats.acks_uncommitted += sum(len(statuses) for statuses, _ in channel.tx.settles)
    return stats


def _add_connection(stats: ConnectionStats, connection: Connection) -> ConnectionStats:
    stats.received_bytes += connection.received_bytes
    stats.sent_bytes += connection.output.sent_bytes
    stats.channels += len(connection.channels)
    return stats
