"""The broker's numbers as Prometheus metrics, under the names of RabbitMQ's rabbitmq_prometheus plugin.

    counters in queues, channels, connections, stores --(at a scrape)--> BrokerStats --> metric families --> text

The hot path counts in plain ints and knows nothing of this file. At a scrape the broker copies them into a
`BrokerStats`, and of that the text is made piece by piece as it goes out: a series for each of fifty thousand queues is a
hundred megabytes of text. Both are walks in slices (`slices.py`), so the numbers of a scrape are not of one moment.

Three views, as RabbitMQ has them: /metrics sums over all queues, channels, connections and stores and is what the
dashboards read; /metrics/per-object has one series for each of them; /metrics/detailed has the families that the query
asks for, per object, under names of their own (rabbitmq_detailed_...), so that it can be scraped beside /metrics. The tables
below say for each name which attribute of the snapshot it shows; the summed and the per-object view read the same rows.

What must stay true:
- a counter never falls while the broker lives: the sums include channels, connections and queues that are gone
  (`stats.py` has how);
- the format is prometheus_client's, but for the lines of single objects, which are written here: with all the families of
  fifty thousand queues it would take longer than Prometheus waits;
- the sums are there on a broker with no queue and no connection too (0, not an absent series);
- names, once published, stay. Names without counterpart in RabbitMQ begin with rabbitpy_.

The `channel` label is the channel's name as RabbitMQ's management shows it, `127.0.0.1:50234 -> 127.0.0.1:5672 (1)`;
RabbitMQ's plugin has an Erlang process id there.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

# -- the snapshot: filled in by the broker ----------------------------------------------------------------------------
#
# All but NodeStats serve both views: as one object's numbers, and, without names, as the sum over all of them. One
# function that adds an object's counters to a given QueueStats does for both.


@dataclass(slots=True)
class QueueStats:
    vhost: str = ""
    name: str = ""
    messages_ready: int = 0
    messages_unacked: int = 0
    messages_ready_bytes: int = 0
    messages_unacked_bytes: int = 0
    consumers: int = 0
    published: int = 0  # messages that reached the queue; the sum includes deleted queues
    messages_ram: int = 0
    messages_ready_ram: int = 0
    messages_unacked_ram: int = 0
    messages_ram_bytes: int = 0
    messages_persistent: int = 0
    messages_persistent_bytes: int = 0
    messages_alpha: int = 0
    messages_beta: int = 0
    messages_gamma: int = 0
    messages_delta: int = 0
    messages_paged_out: int = 0
    messages_paged_out_bytes: int = 0
    publishes_waiting: int = 0  # for a consumer's ack
    oldest_publish_waiting_s: int = 0  # in the sum: of all queues
    in_persist: int = 0  # queues by confirm mode: in the sum how many, else 1 for the queue's own
    in_consumer_ack: int = 0
    in_consumer_ack_light: int = 0
    paged_out: int = 0  # of this and the next three, too, the sum includes deleted queues
    paged_in: int = 0
    disk_reads: int = 0
    disk_writes: int = 0


@dataclass(slots=True)
class StreamStats:
    """What a stream has besides what every queue has. In the sum the lag is the largest, and offsets are added up."""

    vhost: str = ""
    name: str = ""
    segments: int = 0
    readers: int = 0
    first_offset: int = 0
    committed_offset: int = 0  # of the newest message that may be read; -1: there is none
    max_offset_lag: int = 0  # of its consumers


@dataclass(slots=True)
class ChannelStats:
    """In the sum, counters include closed channels."""

    name: str = ""
    connection: str = ""
    vhost: str = ""
    consumers: int = 0
    unacked: int = 0
    unconfirmed: int = 0
    uncommitted: int = 0  # publishes in a transaction
    acks_uncommitted: int = 0
    consumer_prefetch: int = 0
    prefetch_limit: int = 0  # shared by the channel's consumers
    published: int = 0
    published_confirm: int = 0  # those of them on channels in confirm mode
    confirmed: int = 0
    unroutable_returned: int = 0
    unroutable_dropped: int = 0
    delivered: int = 0  # to consumers that ack
    delivered_no_ack: int = 0
    redelivered: int = 0
    got: int = 0  # by basic.get, to be acked
    got_no_ack: int = 0
    get_empty: int = 0
    acked: int = 0


@dataclass(slots=True)
class ConnectionStats:
    """In the sum, counters include closed connections."""

    name: str = ""
    vhost: str = ""
    user: str = ""
    received_bytes: int = 0
    sent_bytes: int = 0
    channels: int = 0


@dataclass(slots=True)
class MessageStoreStats:
    """One of a vhost's two message stores."""

    messages: int = 0
    bytes: int = 0
    files: int = 0
    garbage_bytes: int = 0
    writes: int = 0
    elided_writes: int = 0
    reads: int = 0
    compactions: int = 0


@dataclass(slots=True)
class StoreStats:
    """The store of one vhost, which its queues share."""

    vhost: str = ""
    epochs: int = 0
    epoch_failures: int = 0
    synced_bytes: int = 0
    sync_seconds: float = 0.0
    elided_publishes: int = 0
    journal_files: int = 0
    journal_bytes: int = 0
    scatters: int = 0
    persistent: MessageStoreStats = field(default_factory=MessageStoreStats)
    transient: MessageStoreStats = field(default_factory=MessageStoreStats)


@dataclass(slots=True)
class Authentications:
    """Log-ins over one protocol."""

    failed: int
    succeeded: int

    @property
    def tried(self) -> int:
        return self.failed + self.succeeded


@dataclass(slots=True)
class ReplicationStats:
    """The log of a replicated vhost, as its node has it. In the sum lag is the largest, and counters include deleted vhosts."""

    vhost: str = ""
    owned: int = 0
    takeovers: int = 0
    term: int = 0
    position: int = 0
    appends: int = 0
    appended_bytes: int = 0
    append_failures: int = 0
    append_seconds: float = 0.0
    append_buckets: Sequence[int] = ()  # how many took at most so long as `append_bounds_s` says, and longer than the one before
    held: int = 0
    ownerless: int = 0
    replicas: int = 0
    replicas_running: int = 0
    lag: int = 0  # entries, of the replica that is furthest behind and runs
    lag_seconds: float = 0.0


@dataclass(slots=True)
class FollowerStats:
    """A replica of a vhost."""

    vhost: str
    node: str
    running: int
    lag: int
    lag_seconds: float


@dataclass(slots=True)
class ClusterStats:
    """The cluster that the broker is a node of."""

    nodes: int
    nodes_away: int
    engine_reachable: int
    engine_reachable_since: float  # in seconds of the epoch; 0: it is not reachable
    engine_silent_seconds: float
    append_bounds_s: Sequence[float]
    replication_sum: ReplicationStats
    replication: list[ReplicationStats]
    followers: list[FollowerStats]


@dataclass(slots=True, kw_only=True)
class NodeStats:
    """What the broker is and has; nothing here has a default, so that nothing is forgotten."""

    node_name: str
    cluster_name: str
    cluster_id: str  # that the cluster keeps, whatever it is called
    version: str
    rabbitmq_version: str  # the version whose behaviour clients are promised
    build: str
    python: str
    uptime_seconds: float
    memory_used: int
    memory_limit_bytes: int
    disk_free: int
    disk_limit_bytes: int
    alarms: Collection[str]  # those that are on: "memory", "disk"
    sockets: int  # client sockets, also of those who have not logged in yet
    rests: int  # of the loop, so that input gathers
    connections: int  # logged in
    channels: int
    queues: int
    consumers: int
    publishers: int  # channels that have published
    blocked_connections: int
    connections_opened: int
    connections_closed: int
    channels_opened: int
    channels_closed: int
    queues_declared: int
    queues_created: int
    queues_deleted: int
    amqp_authentications: Authentications
    http_authentications: Authentications


@dataclass(slots=True)
class BrokerStats:
    """One look at the broker: `node` and the sums always, the lists only for a view that shows single objects."""

    node: NodeStats
    queue_sum: QueueStats
    channel_sum: ChannelStats
    connection_sum: ConnectionStats
    queues: list[QueueStats] = field(default_factory=list)
    channels: list[ChannelStats] = field(default_factory=list)
    connections: list[ConnectionStats] = field(default_factory=list)
    store_sum: StoreStats = field(default_factory=StoreStats)
    stores: list[StoreStats] = field(default_factory=list)
    stream_sum: StreamStats = field(default_factory=StreamStats)
    streams: list[StreamStats] = field(default_factory=list)
    dead_lettered: dict[tuple[str, str, str], int] = field(default_factory=dict)  # by reason, strategy and type of queue
    cluster: ClusterStats | None = None


# -- the tables -------------------------------------------------------------------------------------------------------

Kind = Literal["gauge", "counter"]


class _Row(NamedTuple):
    """A name, the attributes that are added up for it, and the family that shows it in /metrics/detailed.

    A name without a prefix is RabbitMQ's.
    """

    name: str
    kind: Kind
    attributes: tuple[str, ...]
    help: str
    family: str = ""


_QUEUE_ROWS: Final = (
    _Row("queue_messages_ready", "gauge", ("messages_ready",),
         "Messages waiting for a consumer", "queue_coarse_metrics"),
    _Row("queue_messages_unacked", "gauge", ("messages_unacked",),
         "Messages handed to a consumer that has not acked them yet", "queue_coarse_metrics"),
    _Row("queue_messages", "gauge", ("messages_ready", "messages_unacked"),
         "Messages ready and unacked, the depth", "queue_coarse_metrics"),
    _Row("queue_consumers", "gauge", ("consumers",),
         "Consumers of the queue", "queue_consumer_count"),
    _Row("queue_messages_bytes", "gauge", ("messages_ready_bytes", "messages_unacked_bytes"),
         "Size of the messages ready and unacked", "queue_metrics"),
    _Row("queue_messages_ready_bytes", "gauge", ("messages_ready_bytes",),
         "Size of the messages ready", "queue_metrics"),
    _Row("queue_messages_unacked_bytes", "gauge", ("messages_unacked_bytes",),
         "Size of the messages unacked", "queue_metrics"),
    _Row("queue_messages_published_total", "counter", ("published",),
         "Messages that were routed to the queue", "channel_queue_exchange_metrics"),
    _Row("queue_messages_ram", "gauge", ("messages_ram",),
         "Messages ready and unacked whose body is in memory", "queue_metrics"),
    _Row("queue_messages_ready_ram", "gauge", ("messages_ready_ram",),
         "Messages ready whose body is in memory", "queue_metrics"),
    _Row("queue_messages_unacked_ram", "gauge", ("messages_unacked_ram",),
         "Messages unacked whose body is in memory", "queue_metrics"),
    _Row("queue_messages_ram_bytes", "gauge", ("messages_ram_bytes",),
         "Size of the messages whose body is in memory", "queue_metrics"),
    _Row("queue_messages_persistent", "gauge", ("messages_persistent",),
         "Persistent messages", "queue_metrics"),
    _Row("queue_messages_persistent_bytes", "gauge", ("messages_persistent_bytes",),
         "Size of the persistent messages", "queue_metrics"),
    _Row("queue_messages_paged_out", "gauge", ("messages_paged_out",),
         "Messages ready and unacked whose body is on disk only", "queue_metrics"),
    _Row("queue_messages_paged_out_bytes", "gauge", ("messages_paged_out_bytes",),
         "Size of the messages whose body is on disk only", "queue_metrics"),
    _Row("queue_disk_reads_total", "counter", ("disk_reads",),
         "Messages that the queue read from disk", "queue_metrics"),
    _Row("queue_disk_writes_total", "counter", ("disk_writes",),
         "Messages that the queue wrote to disk", "queue_metrics"),
    _Row("rabbitpy_queue_messages_alpha", "gauge", ("messages_alpha",),
         "Messages ready with body and position in memory", "queue_metrics"),
    _Row("rabbitpy_queue_messages_beta", "gauge", ("messages_beta",),
         "Messages ready with the body on disk, the position in memory", "queue_metrics"),
    _Row("rabbitpy_queue_messages_gamma", "gauge", ("messages_gamma",),
         "Messages ready with the body on disk, the position in memory and on disk", "queue_metrics"),
    _Row("rabbitpy_queue_messages_delta", "gauge", ("messages_delta",),
         "Messages ready of which nothing is in memory", "queue_metrics"),
    _Row("rabbitpy_queue_publishes_waiting", "gauge", ("publishes_waiting",),
         "Messages whose publishers wait for a consumer's ack", "queue_metrics"),
    _Row("rabbitpy_queue_oldest_publish_waiting_seconds", "gauge", ("oldest_publish_waiting_s",),
         "How long the oldest of these has waited", "queue_metrics"),
    _Row("rabbitpy_queue_confirm_mode_persist", "gauge", ("in_persist",),
         "Queues in the confirm mode persist", "queue_metrics"),
    _Row("rabbitpy_queue_confirm_mode_consumer_ack", "gauge", ("in_consumer_ack",),
         "Queues in the confirm mode consumer-ack", "queue_metrics"),
    _Row("rabbitpy_queue_confirm_mode_consumer_ack_light", "gauge", ("in_consumer_ack_light",),
         "Queues in the confirm mode consumer-ack-light", "queue_metrics"),
    _Row("rabbitpy_queue_paged_out_total", "counter", ("paged_out",),
         "Messages whose body was dropped from memory", "queue_metrics"),
    _Row("rabbitpy_queue_paged_in_total", "counter", ("paged_in",),
         "Messages whose body was read back into memory", "queue_metrics"),
)  # fmt: skip

_STREAM_ROWS: Final = (
    _Row("stream_segments", "gauge", ("segments",),
         "Segments of streams on disk", "stream_metrics"),
    _Row("stream_consumer_max_offset_lag", "gauge", ("max_offset_lag",),
         "Messages that the slowest consumer of a stream is behind", "stream_metrics"),
    _Row("rabbitpy_stream_readers", "gauge", ("readers",),
         "Consumers of streams", "stream_metrics"),
    _Row("rabbitpy_stream_first_offset", "gauge", ("first_offset",),
         "Offset of the oldest message that the stream keeps", "stream_metrics"),
    _Row("rabbitpy_stream_committed_offset", "gauge", ("committed_offset",),
         "Offset of the newest message that may be read, -1 for none", "stream_metrics"),
)  # fmt: skip

_CHANNEL_ROWS: Final = (
    _Row("channel_consumers", "gauge", ("consumers",),
         "Consumers on the channel", "channel_metrics"),
    _Row("channel_messages_unacked", "gauge", ("unacked",),
         "Messages delivered on the channel and not acked yet", "channel_metrics"),
    _Row("channel_messages_unconfirmed", "gauge", ("unconfirmed",),
         "Messages published on the channel and not confirmed yet", "channel_metrics"),
    _Row("channel_messages_uncommitted", "gauge", ("uncommitted",),
         "Messages published in a transaction that is still open", "channel_metrics"),
    _Row("channel_acks_uncommitted", "gauge", ("acks_uncommitted",),
         "Acks in a transaction that is still open", "channel_metrics"),
    _Row("consumer_prefetch", "gauge", ("consumer_prefetch",),
         "Unacked messages that each new consumer of the channel may have", "channel_metrics"),
    _Row("channel_prefetch", "gauge", ("prefetch_limit",),
         "Unacked messages that the consumers of the channel may have together", "channel_metrics"),
    _Row("channel_messages_published_total", "counter", ("published",),
         "Messages published on the channel", "channel_exchange_metrics"),
    _Row("channel_messages_confirmed_total", "counter", ("confirmed",),
         "Messages published on the channel and confirmed", "channel_exchange_metrics"),
    _Row("channel_messages_unroutable_returned_total", "counter", ("unroutable_returned",),
         "Mandatory messages without a queue, returned to their publisher", "channel_exchange_metrics"),
    _Row("channel_messages_unroutable_dropped_total", "counter", ("unroutable_dropped",),
         "Messages without a queue, dropped", "channel_exchange_metrics"),
    _Row("channel_get_ack_total", "counter", ("got",),
         "Messages fetched by basic.get, to be acked", "channel_queue_metrics"),
    _Row("channel_get_total", "counter", ("got_no_ack",),
         "Messages fetched by basic.get without acks", "channel_queue_metrics"),
    _Row("channel_messages_delivered_ack_total", "counter", ("delivered",),
         "Messages delivered to consumers that ack", "channel_queue_metrics"),
    _Row("channel_messages_delivered_total", "counter", ("delivered_no_ack",),
         "Messages delivered to consumers that do not ack", "channel_queue_metrics"),
    _Row("channel_messages_redelivered_total", "counter", ("redelivered",),
         "Messages delivered or fetched that had been before", "channel_queue_metrics"),
    _Row("channel_messages_acked_total", "counter", ("acked",),
         "Messages acked on the channel", "channel_queue_metrics"),
    _Row("channel_get_empty_total", "counter", ("get_empty",),
         "Times that basic.get found the queue empty", "channel_queue_metrics"),
)  # fmt: skip

_CONNECTION_ROWS: Final = (
    _Row("connection_incoming_bytes_total", "counter", ("received_bytes",),
         "Bytes received on the connection", "connection_coarse_metrics"),
    _Row("connection_outgoing_bytes_total", "counter", ("sent_bytes",),
         "Bytes sent on the connection", "connection_coarse_metrics"),
    _Row("connection_channels", "gauge", ("channels",),
         "Channels open on the connection", "connection_metrics"),
)  # fmt: skip

_STORE_ROWS: Final = (
    _Row("rabbitpy_store_epochs_total", "counter", ("epochs",),
         "Epochs written and synced", "store_metrics"),
    _Row("rabbitpy_store_epoch_failures_total", "counter", ("epoch_failures",),
         "Epochs that could not be written or synced", "store_metrics"),
    _Row("rabbitpy_store_synced_bytes_total", "counter", ("synced_bytes",),
         "Bytes written and synced with the epochs", "store_metrics"),
    _Row("rabbitpy_store_sync_seconds_total", "counter", ("sync_seconds",),
         "Time that writing and syncing the epochs took", "store_metrics"),
    _Row("rabbitpy_store_elided_publishes_total", "counter", ("elided_publishes",),
         "Publishes never written because the ack came first", "store_metrics"),
    _Row("rabbitpy_store_journal_files", "gauge", ("journal_files",),
         "Files of the journals", "store_metrics"),
    _Row("rabbitpy_store_journal_bytes", "gauge", ("journal_bytes",),
         "Size of the journals", "store_metrics"),
    _Row("rabbitpy_store_scatters_total", "counter", ("scatters",),
         "Times that a queue's entries went from the journal to its segments", "store_metrics"),
)  # fmt: skip

_REPLICATION_ROWS: Final = (
    _Row("rabbitpy_replication_owned", "gauge", ("owned",),
         "Replicated vhosts that this node owns", "replication_metrics"),
    _Row("rabbitpy_replication_takeovers_total", "counter", ("takeovers",),
         "Times that this node became the owner of a vhost", "replication_metrics"),
    _Row("rabbitpy_replication_appended_blocks_total", "counter", ("appends",),
         "Blocks that this node appended to logs", "replication_metrics"),
    _Row("rabbitpy_replication_appended_bytes_total", "counter", ("appended_bytes",),
         "Size of the blocks that this node appended to logs", "replication_metrics"),
    _Row("rabbitpy_replication_append_failures_total", "counter", ("append_failures",),
         "Appends that were refused, not possible, or whose outcome was not known", "replication_metrics"),
    _Row("rabbitpy_replication_publishers_held", "gauge", ("held",),
         "Replicated vhosts whose publishers are held because the log takes nothing", "replication_metrics"),
    _Row("rabbitpy_replication_ownerless", "gauge", ("ownerless",),
         "Replicated vhosts that no running node owns", "replication_metrics"),
    _Row("rabbitpy_replication_replicas", "gauge", ("replicas",),
         "Replicas of replicated vhosts", "replication_metrics"),
    _Row("rabbitpy_replication_replicas_running", "gauge", ("replicas_running",),
         "Replicas whose nodes run", "replication_metrics"),
    _Row("rabbitpy_replication_lag_entries", "gauge", ("lag",),
         "Entries of the log that the replica furthest behind has not applied", "replication_metrics"),
    _Row("rabbitpy_replication_lag_seconds", "gauge", ("lag_seconds",),
         "For how long the replica furthest behind has been so", "replication_metrics"),
)  # fmt: skip

# What has no sum.
_REPLICATION_VHOST_ROWS: Final = (
    _Row("rabbitpy_replication_term", "gauge", ("term",), "Term of the vhost's owner", "replication_metrics"),
    _Row("rabbitpy_replication_position", "gauge", ("position",), "Position of the vhost's log", "replication_metrics"),
)  # fmt: skip
_FOLLOWER_ROWS: Final = (
    _Row("rabbitpy_replication_follower_running", "gauge", ("running",),
         "Whether the replica's node runs", "replication_metrics"),
    _Row("rabbitpy_replication_follower_lag_entries", "gauge", ("lag",),
         "Entries of the log that the replica has not applied", "replication_metrics"),
    _Row("rabbitpy_replication_follower_lag_seconds", "gauge", ("lag_seconds",),
         "For how long the replica has been behind", "replication_metrics"),
)  # fmt: skip
_CLUSTER_ROWS: Final = (
    _Row("rabbitpy_cluster_nodes", "gauge", ("nodes",), "Nodes of the cluster that run"),
    _Row("rabbitpy_cluster_nodes_away", "gauge", ("nodes_away",), "Nodes of the cluster that do not run"),
    _Row("rabbitpy_cluster_engine_reachable", "gauge", ("engine_reachable",), "1 while the engine answers this node"),
    _Row("rabbitpy_cluster_engine_reachable_since_seconds", "gauge", ("engine_reachable_since",),
         "Since when it does, in seconds of the epoch; 0 while it does not"),
    _Row("rabbitpy_cluster_engine_silent_seconds", "gauge", ("engine_silent_seconds",),
         "Time since the engine last took this node's lease"),
)  # fmt: skip
_APPEND_SECONDS: Final = "rabbitpy_replication_append_seconds"

# Labelled by store, persistent or transient.
_MESSAGE_STORE_ROWS: Final = (
    _Row("rabbitpy_message_store_messages", "gauge", ("messages",),
         "Messages in the message stores", "store_metrics"),
    _Row("rabbitpy_message_store_bytes", "gauge", ("bytes",),
         "Size of the messages in the message stores", "store_metrics"),
    _Row("rabbitpy_message_store_files", "gauge", ("files",),
         "Files of the message stores", "store_metrics"),
    _Row("rabbitpy_message_store_garbage_bytes", "gauge", ("garbage_bytes",),
         "Bytes in these files that no queue holds any more", "store_metrics"),
    _Row("rabbitpy_message_store_writes_total", "counter", ("writes",),
         "Messages written to the message stores", "store_metrics"),
    _Row("rabbitpy_message_store_elided_writes_total", "counter", ("elided_writes",),
         "Messages never written because no queue held them any more", "store_metrics"),
    _Row("rabbitpy_message_store_reads_total", "counter", ("reads",),
         "Messages read from the message stores' files", "store_metrics"),
    _Row("rabbitpy_message_store_compactions_total", "counter", ("compactions",),
         "Compactions of the message stores' files", "store_metrics"),
)  # fmt: skip

_NODE_ROWS: Final = (
    _Row("rabbitmq_connections", "gauge", ("connections",), "Connections open"),
    _Row("rabbitmq_channels", "gauge", ("channels",), "Channels open"),
    _Row("rabbitmq_consumers", "gauge", ("consumers",), "Consumers of all queues"),
    _Row("rabbitmq_queues", "gauge", ("queues",), "Queues"),
    _Row("rabbitmq_connections_opened_total", "counter", ("connections_opened",), "Connections opened"),
    _Row("rabbitmq_connections_closed_total", "counter", ("connections_closed",), "Connections closed or lost"),
    _Row("rabbitmq_channels_opened_total", "counter", ("channels_opened",), "Channels opened"),
    _Row("rabbitmq_channels_closed_total", "counter", ("channels_closed",), "Channels closed"),
    _Row("rabbitmq_queues_declared_total", "counter", ("queues_declared",), "Queue declarations, of existing queues too"),
    _Row("rabbitmq_queues_created_total", "counter", ("queues_created",), "Queues made"),
    _Row("rabbitmq_queues_deleted_total", "counter", ("queues_deleted",), "Queues deleted"),
    _Row("rabbitmq_process_resident_memory_bytes", "gauge", ("memory_used",), "Resident memory of the broker"),
    _Row("rabbitmq_resident_memory_limit_bytes", "gauge", ("memory_limit_bytes",),
         "Resident memory above which publishing is blocked"),
    _Row("rabbitmq_disk_space_available_bytes", "gauge", ("disk_free",), "Free space on the disk of the data directory"),
    _Row("rabbitmq_disk_space_available_limit_bytes", "gauge", ("disk_limit_bytes",),
         "Free space below which publishing is blocked"),
    _Row("rabbitmq_process_open_tcp_sockets", "gauge", ("sockets",), "Client sockets open"),
    _Row("rabbitmq_erlang_uptime_seconds", "gauge", ("uptime_seconds",),
         "Time since the broker started; the name is RabbitMQ's"),
    _Row("rabbitpy_connections_blocked", "gauge", ("blocked_connections",),
         "Connections that are not read from because of an alarm"),
    _Row("rabbitpy_turn_rests_total", "counter", ("rests",), "Rests of the busy loop, in which input gathers"),
)  # fmt: skip

# The global metrics are labelled by protocol, and those of deliveries by queue type too; there is one of each.
_GLOBAL_NODE_ROWS: Final = (
    _Row("rabbitmq_global_consumers", "gauge", ("consumers",), "Consumers of all queues"),
    _Row("rabbitmq_global_publishers", "gauge", ("publishers",), "Channels that have published"),
)  # fmt: skip
_AUTHENTICATION_ROWS: Final = (
    _Row("rabbitmq_auth_attempts_total", "counter", ("tried",), "Log-ins that were tried"),
    _Row("rabbitmq_auth_attempts_succeeded_total", "counter", ("succeeded",), "Log-ins whose password was right"),
    _Row("rabbitmq_auth_attempts_failed_total", "counter", ("failed",), "Log-ins that were refused"),
)
_GLOBAL_QUEUE_ROWS: Final = (
    _Row("rabbitmq_global_messages_routed_total", "counter", ("published",),
         "Messages that reached queues, once for each queue"),
)  # fmt: skip
_GLOBAL_CHANNEL_ROWS: Final = (
    _Row("rabbitmq_global_messages_received_total", "counter", ("published",), "Messages published"),
    _Row("rabbitmq_global_messages_received_confirm_total", "counter", ("published_confirm",),
         "Messages published on channels in confirm mode"),
    _Row("rabbitmq_global_messages_confirmed_total", "counter", ("confirmed",), "Messages confirmed to their publishers"),
    _Row("rabbitmq_global_messages_unroutable_returned_total", "counter", ("unroutable_returned",),
         "Mandatory messages without a queue, returned to their publisher"),
    _Row("rabbitmq_global_messages_unroutable_dropped_total", "counter", ("unroutable_dropped",),
         "Messages without a queue, dropped"),
)  # fmt: skip
_GLOBAL_DELIVERY_ROWS: Final = (
    _Row("rabbitmq_global_messages_delivered_total", "counter", ("delivered", "delivered_no_ack", "got", "got_no_ack"),
         "Messages delivered to consumers or fetched by basic.get"),
    _Row("rabbitmq_global_messages_delivered_consume_auto_ack_total", "counter", ("delivered_no_ack",),
         "Messages delivered to consumers that do not ack"),
    _Row("rabbitmq_global_messages_delivered_consume_manual_ack_total", "counter", ("delivered",),
         "Messages delivered to consumers that ack"),
    _Row("rabbitmq_global_messages_delivered_get_auto_ack_total", "counter", ("got_no_ack",),
         "Messages fetched by basic.get without acks"),
    _Row("rabbitmq_global_messages_delivered_get_manual_ack_total", "counter", ("got",),
         "Messages fetched by basic.get, to be acked"),
    _Row("rabbitmq_global_messages_redelivered_total", "counter", ("redelivered",),
         "Messages delivered or fetched that had been before"),
    _Row("rabbitmq_global_messages_acknowledged_total", "counter", ("acked",), "Messages acked"),
    _Row("rabbitmq_global_messages_get_empty_total", "counter", ("get_empty",),
         "Times that basic.get found the queue empty"),
)  # fmt: skip

# Labelled by queue type and by what became of the message.
_DEAD_LETTERED: Final = (
    ("rabbitmq_global_messages_dead_lettered_confirmed_total", "confirmed",
     "Messages that were kept until the queues they were dead-lettered to had taken them"),
    ("rabbitmq_global_messages_dead_lettered_delivery_limit_total", "delivery_limit",
     "Messages given up because they had been delivered too often"),
    ("rabbitmq_global_messages_dead_lettered_expired_total", "expired",
     "Messages given up because their time to live was over"),
    ("rabbitmq_global_messages_dead_lettered_maxlen_total", "maxlen",
     "Messages given up, or refused and handed on, because their queue was full"),
    ("rabbitmq_global_messages_dead_lettered_rejected_total", "rejected",
     "Messages given up because a consumer rejected them"),
)  # fmt: skip

_ALARMS: Final = (
    ("memory", "rabbitmq_alarms_memory_used_watermark", "1 while the memory alarm is on"),
    ("disk", "rabbitmq_alarms_free_disk_space_watermark", "1 while the disk alarm is on"),
    ("file_descriptors", "rabbitmq_alarms_file_descriptor_limit", "Always 0: here file descriptors have no alarm"),
)

_PROTOCOL: Final = (("protocol", "amqp091"),)
_CLASSIC: Final = "rabbit_classic_queue"
_PROTOCOL_AND_TYPE: Final = (*_PROTOCOL, ("queue_type", _CLASSIC))

FAMILIES: Final = frozenset(
    row.family
    for row in (
        *_QUEUE_ROWS, *_STREAM_ROWS, *_CHANNEL_ROWS, *_CONNECTION_ROWS, *_STORE_ROWS, *_MESSAGE_STORE_ROWS, *_REPLICATION_ROWS
    )
)  # fmt: skip


# -- the views --------------------------------------------------------------------------------------------------------

_Sample = tuple[Sequence[str], object]


class Series(NamedTuple):
    """A family with a line for each object: `shown` says which, `labels` and `value` what stands in its line."""

    family: Metric
    name: str
    objects: Iterable[Any]
    labels: Callable[[Any], str]
    value: Callable[[Any], float]
    shown: Callable[[Any], bool]


class View:
    """What one of the pages shows."""

    def families(self) -> Iterator[Metric | Series]:
        raise NotImplementedError


class SummedView(View):
    """What /metrics shows."""

    def __init__(self, stats: BrokerStats) -> None:
        self._stats = stats

    def families(self) -> Iterator[Metric | Series]:
        stats = self._stats
        yield from _node_metrics(stats)
        yield from _metrics(_QUEUE_ROWS, (), [((), stats.queue_sum)])
        yield from _metrics(_STREAM_ROWS, (), [((), stats.stream_sum)])
        yield from _metrics(_CHANNEL_ROWS, (), [((), stats.channel_sum)])
        yield from _metrics(_CONNECTION_ROWS, (), [((), stats.connection_sum)])
        yield from _metrics(_STORE_ROWS, (), [((), stats.store_sum)])
        yield from _metrics(_MESSAGE_STORE_ROWS, ("store",), _message_stores((), stats.store_sum))
        if stats.cluster is not None:
            yield from _metrics(_REPLICATION_ROWS, (), [((), stats.cluster.replication_sum)])
            yield _append_seconds((), stats.cluster.append_bounds_s, [((), stats.cluster.replication_sum)])


class PerObjectView(View):
    """What /metrics/per-object shows: the same names, with a series for each queue, channel, connection and store."""

    def __init__(self, stats: BrokerStats) -> None:
        self._stats = stats

    def families(self) -> Iterator[Metric | Series]:
        yield from _node_metrics(self._stats)
        yield from _object_families(self._stats, FAMILIES, (), "")


class DetailedView(View):
    """What /metrics/detailed shows: the wanted `families` of the wanted `vhosts` (all, when empty), per object."""

    def __init__(self, stats: BrokerStats, families: Collection[str], vhosts: Collection[str] = ()) -> None:
        self._stats = stats
        self._families = families
        self._vhosts = frozenset(vhosts)

    def families(self) -> Iterator[Metric | Series]:
        yield from _object_families(self._stats, self._families, self._vhosts, "detailed_")


def render(view: View, accept: str = "") -> tuple[Iterator[str], str]:
    """The text of a view in small pieces, and its content type; OpenMetrics for those who `accept` it."""
    encode, content_type = choose_encoder(accept)
    return _pieces(view, encode), content_type


class _Only(Collector):
    """Has one family, or none."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _pieces(view: View, encode: Callable[[Collector], bytes]) -> Iterator[str]:
    """A piece is a family with its few samples, or one line; an empty one for an object that is not shown."""
    ending = encode(_Only()).decode()  # OpenMetrics has one
    for family in view.families():
        if isinstance(family, Metric):
            yield encode(_Only(family)).decode().removesuffix(ending)
            continue
        yield encode(_Only(family.family)).decode().removesuffix(ending)
        name, labels, value, shown = family.name, family.labels, family.value, family.shown
        for stats in family.objects:
            yield f"{name}{{{labels(stats)}}} {value(stats)}\n" if shown(stats) else ""
    yield ending


def _metrics(
    rows: Iterable[_Row], labels: Sequence[str], samples: Collection[_Sample], view: str = ""
) -> Iterator[Metric]:
    for row in rows:
        family, _ = _family(row, view, labels)
        value = _value(row)
        for label_values, stats in samples:
            family.add_metric(label_values, value(stats))
        yield family


def _family(row: _Row, view: str, labels: Sequence[str] = ()) -> tuple[CounterMetricFamily | GaugeMetricFamily, str]:
    """An empty family, and its samples' name; `view` goes into it, behind rabbitmq_ or rabbitpy_."""
    make = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
    prefix = "rabbitpy_" if row.name.startswith("rabbitpy_") else "rabbitmq_"
    name = prefix + view + row.name.removeprefix(prefix)
    return make(name, row.help, labels=labels), name


def _value(row: _Row) -> Callable[[Any], float]:
    """What reads and adds up the attributes of a row."""
    read: Callable[[Any], Any] = attrgetter(*row.attributes)
    if len(row.attributes) == 1:
        return read
    return lambda stats: sum(read(stats))


def _message_stores(labels: Sequence[str], store: StoreStats) -> list[_Sample]:
    return [((*labels, "persistent"), store.persistent), ((*labels, "transient"), store.transient)]


def _object_families(
    stats: BrokerStats, families: Collection[str], vhosts: Collection[str], view: str
) -> Iterator[Metric | Series]:
    def shown(each: Any) -> bool:
        return not vhosts or each.vhost in vhosts

    tables: tuple[tuple[tuple[_Row, ...], Iterable[Any], Callable[[Any], str]], ...] = (
        (_QUEUE_ROWS, stats.queues, _queue_labels),
        (_STREAM_ROWS, stats.streams, _queue_labels),
        (_CHANNEL_ROWS, stats.channels, _channel_labels),
        (_CONNECTION_ROWS, stats.connections, _connection_labels),
        (_STORE_ROWS, stats.stores, _store_labels),
    )
    if stats.cluster is not None:
        of_vhosts = (*_REPLICATION_ROWS, *_REPLICATION_VHOST_ROWS)
        tables += (
            (of_vhosts, stats.cluster.replication, _store_labels),
            (_FOLLOWER_ROWS, stats.cluster.followers, _follower_labels),
        )
    for rows, objects, labels in tables:
        for row in rows:
            if row.family in families:
                yield Series(*_family(row, view), objects, labels, _value(row), shown)
    stores = [store for store in stats.stores if shown(store)]
    samples = [sample for store in stores for sample in _message_stores((store.vhost,), store)]
    rows = tuple(row for row in _MESSAGE_STORE_ROWS if row.family in families)
    yield from _metrics(rows, ("vhost", "store"), samples, view)
    if stats.cluster is not None and "replication_metrics" in families:
        of_logs = [((one.vhost,), one) for one in stats.cluster.replication if shown(one)]
        yield _append_seconds(("vhost",), stats.cluster.append_bounds_s, of_logs, view)


def _append_seconds(
    labels: Sequence[str], bounds_s: Sequence[float], samples: Collection[tuple[Sequence[str], ReplicationStats]], view: str = ""
) -> Metric:
    """The histogram of how long appends took; Prometheus wants its buckets to include all shorter ones."""
    name = _APPEND_SECONDS.replace("rabbitpy_", f"rabbitpy_{view}", 1)
    family = HistogramMetricFamily(name, "Time that appends of blocks to logs took, until a quorum had them", labels=labels)
    for label_values, stats in samples:
        sums = list(accumulate(stats.append_buckets))
        buckets = [(str(bound), number) for bound, number in zip((*map(float, bounds_s), "+Inf"), sums, strict=True)]
        family.add_metric(label_values, buckets, stats.append_seconds)
    return family


# The labels of single objects as they stand in a line, by name as prometheus_client has them.


def _queue_labels(stats: QueueStats | StreamStats) -> str:
    return f'queue="{_escaped(stats.name)}",vhost="{_escaped(stats.vhost)}"'


def _channel_labels(stats: ChannelStats) -> str:
    name, connection = _escaped(stats.name), _escaped(stats.connection)
    return f'channel="{name}",connection="{connection}",vhost="{_escaped(stats.vhost)}"'


def _connection_labels(stats: ConnectionStats) -> str:
    return f'connection="{_escaped(stats.name)}",user="{_escaped(stats.user)}",vhost="{_escaped(stats.vhost)}"'


def _store_labels(stats: StoreStats | ReplicationStats) -> str:
    return f'vhost="{_escaped(stats.vhost)}"'


def _follower_labels(stats: FollowerStats) -> str:
    return f'node="{_escaped(stats.node)}",vhost="{_escaped(stats.vhost)}"'


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


def _node_metrics(stats: BrokerStats) -> Iterator[Metric]:
    node = stats.node
    # Dashboards join every series with rabbitmq_identity_info, and show the versions of rabbitmq_build_info.
    yield _info(
        "rabbitmq_build_info",
        "Versions: of the RabbitMQ whose behaviour this broker has, and of Python where RabbitMQ has Erlang",
        rabbitmq_version=node.rabbitmq_version,
        prometheus_plugin_version=node.version,
        prometheus_client_version=metadata.version("prometheus-client"),
        erlang_version=node.python,
    )
    yield _info(
        "rabbitmq_identity_info",
        "Name of this node and its cluster",
        rabbitmq_node=node.node_name,
        rabbitmq_cluster=node.cluster_name,
        rabbitmq_cluster_permanent_id=node.cluster_id,
    )
    yield _info(
        "rabbitpy_build_info",
        "Version and build of this broker",
        version=node.version,
        build=node.build,
        python=node.python,
    )
    for alarm, name, help_text in _ALARMS:
        yield GaugeMetricFamily(name, help_text, value=int(alarm in node.alarms))
    yield from _metrics(_NODE_ROWS, (), [((), node)])
    if stats.cluster is not None:
        yield from _metrics(_CLUSTER_ROWS, (), [((), stats.cluster)])
    yield from _file_metrics(node.sockets)
    yield from _metrics(_GLOBAL_NODE_ROWS, *_labelled(_PROTOCOL, node))
    by_protocol: list[_Sample] = [(("amqp091",), node.amqp_authentications), (("http",), node.http_authentications)]
    yield from _metrics(_AUTHENTICATION_ROWS, ("protocol",), by_protocol)
    yield from _metrics(_GLOBAL_CHANNEL_ROWS, *_labelled(_PROTOCOL, stats.channel_sum))
    yield from _metrics(_GLOBAL_QUEUE_ROWS, *_labelled(_PROTOCOL, stats.queue_sum))
    yield from _metrics(_GLOBAL_DELIVERY_ROWS, *_labelled(_PROTOCOL_AND_TYPE, stats.channel_sum))
    for name, reason, help_text in _DEAD_LETTERED:
        family = CounterMetricFamily(name, help_text, labels=["queue_type", "dead_letter_strategy"])
        for (counted, strategy, kind), number in stats.dead_lettered.items():
            if counted == reason:
                family.add_metric([f"rabbit_{kind}_queue", strategy], number)
        yield family
    stores = stats.store_sum.persistent, stats.store_sum.transient
    for name, help_text, count in (
        ("rabbitmq_msg_store_read_total", "Messages read from the message stores' files", sum(each.reads for each in stores)),
        ("rabbitmq_msg_store_write_total", "Messages written to the message stores", sum(each.writes for each in stores)),
    ):
        yield CounterMetricFamily(name, help_text, value=count)
    yield from ProcessCollector(registry=None).collect()


def _labelled(labels: Sequence[tuple[str, str]], stats: object) -> tuple[list[str], list[_Sample]]:
    return [name for name, _ in labels], [([value for _, value in labels], stats)]


def _info(name: str, help_text: str, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _file_metrics(sockets: int) -> Iterator[Metric]:
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    max_fds = math.inf if soft_limit == resource.RLIM_INFINITY else soft_limit
    yield GaugeMetricFamily("rabbitmq_process_max_fds", "File descriptors that may be open", value=max_fds)
    try:
        with os.scandir("/dev/fd") as files:
            open_fds = sum(1 for _ in files) - 1  # one was for the listing
    except OSError:
        return
    yield GaugeMetricFamily("rabbitmq_process_open_fds", "File descriptors open", value=open_fds)
    yield GaugeMetricFamily(
        "rabbitmq_process_max_tcp_sockets",
        "Client sockets that may be open, with the other files as they are",
        value=max_fds - max(open_fds - sockets, 0),
    )
