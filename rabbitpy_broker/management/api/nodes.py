"""The broker as a node: /nodes, /overview, and what it says of itself.

Much of RabbitMQ's is about Erlang and clusters; what has no counterpart here is 0, empty or absent, as a fresh node has it.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any, Final

from rabbitpy_broker import __version__
from rabbitpy_broker.alarms import DISK, MEMORY
from rabbitpy_broker.definitions import CLUSTER_NAME
from rabbitpy_broker.management.api.auth import own_vhosts
from rabbitpy_broker.management.api.errors import not_found
from rabbitpy_broker.management.api.rates import (
    CHANNEL,
    CHURN,
    LENGTHS,
    NODE,
    WHOLE,
    Spans,
    spans,
    stats,
)
from rabbitpy_broker.management.api.rates import DISK as DISK_STATS
from rabbitpy_broker.management.api.request import NO_CONTENT, Answer, Request, Row, need
from rabbitpy_broker.management.api.sampler import NodeFigures
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.diagnostics import memory_kinds
from rabbitpy_broker.management.managed import Listener, ManagedBroker
from rabbitpy_broker.metrics import StoreStats
from rabbitpy_broker.protocol.handshake import MECHANISMS, RABBITMQ_VERSION
from rabbitpy_broker.routing.resolve import EXCHANGE_TYPES
from rabbitpy_broker.stats import STARTED, add_store

RETENTION: Final = {"global": [600, 3_600, 28_800, 86_400], "basic": [600, 3_600], "detailed": [600]}
PROCESSES_MAX: Final = 1_048_576
PLUGINS: Final = ("rabbitmq_management", "rabbitmq_management_agent", "rabbitmq_prometheus", "rabbitmq_web_dispatch")
COUNTED: Final = (  # by RabbitMQ's Erlang and its stores
    "context_switches", "gc_num", "gc_bytes_reclaimed", "io_read_count", "io_read_bytes", "io_read_avg_time", "io_write_count",
    "io_write_bytes", "io_write_avg_time", "io_sync_count", "io_sync_avg_time", "io_seek_count", "io_seek_avg_time",
    "io_reopen_count", "mnesia_ram_tx_count", "mnesia_disk_tx_count", "msg_store_read_count", "msg_store_write_count",
    "queue_index_read_count", "queue_index_write_count",
)  # fmt: skip
GONE: Final = (
    "connection_closed", "channel_closed", "consumer_deleted", "exchange_deleted", "queue_deleted", "vhost_deleted",
    "node_node_deleted", "channel_consumer_deleted",
)  # fmt: skip
MEMORY_KINDS: Final = (
    "connection_readers", "connection_writers", "connection_channels", "connection_other", "queue_procs", "queue_slave_procs",
    "quorum_queue_procs", "quorum_queue_dlx_procs", "stream_queue_procs", "stream_queue_replica_reader_procs",
    "stream_queue_coordinator_procs", "plugins", "other_proc", "metrics", "mgmt_db", "mnesia", "quorum_ets", "other_ets",
    "binary", "msg_index", "code", "atom", "other_system", "allocated_unused", "reserved_unallocated",
)  # fmt: skip

BINARY_KINDS: Final = (*MEMORY_KINDS[:12], "mgmt_db", "msg_index", "metrics", "other")


def read_figures(broker: ManagedBroker) -> NodeFigures:
    """What the process uses now."""
    try:
        fd_used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- names are enough
    except OSError:
        fd_used = 0
    node = broker.node
    processes = sum(len(vhost.queues) for vhost in node.vhosts.values())
    processes += len(broker.clients.connections) + int(node.totals.channels_opened - node.totals.channels_closed)
    alarms = broker.alarms
    return NodeFigures(fd_used, len(broker.clients.open), max(processes, 0), alarms.memory_used, alarms.disk_free)


def exchange_types() -> list[Row]:
    return [{"name": name, "description": f"exchange type {name}", "enabled": True} for name in EXCHANGE_TYPES]


def cluster_name(api: Api) -> str:
    for name, value in api.broker.definitions.global_parameters():
        if name == CLUSTER_NAME:
            return str(json.loads(value))
    return api.node_name


def listener_context(listener: Listener) -> Row:
    return {
        "description": "RabbitMQ Management",
        "path": "/",
        "ip": listener.host,
        "port": str(listener.port),
        "cowboy_opts": "[]",
    }


# -- overview --------------------------------------------------------------------------------------------------------


def overview(api: Api, request: Request) -> Row:
    wanted = spans(request.query)
    plain = request.is_true("disable_stats") or api.config.disable_stats
    row: Row = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "basic",
        "sample_retention_policies": RETENTION,
        "exchange_types": exchange_types(),
        "product_version": __version__,
        "product_name": "rabbitpy-broker",
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": cluster_name(api),
        "erlang_version": "",
        "erlang_full_version": "",
        "release_series_support_status": "supported",
        "disable_stats": plain,
        "enable_queue_totals": request.is_true("enable_queue_totals"),
        "node": api.node_name,
    }
    vhosts = list(api.vhosts.values()) if request.is_monitor else own_vhosts(api, request)
    connections = [
        one
        for one in list(api.broker.clients.connections)
        if request.is_monitor or (one.session.user is not None and one.session.user.name == request.user.name)
    ]
    totals = {
        "queues": sum(len(vhost.queues) for vhost in vhosts),
        "exchanges": sum(len(vhost.exchanges) + 1 for vhost in vhosts),
        "connections": len(connections),
    }
    row["object_totals"] = totals
    if plain:
        return row
    channels = [channel for one in connections for channel in list(one.channels.values())]
    totals |= {"channels": len(channels), "consumers": sum(len(channel.deliveries.consumers) for channel in channels)}
    row |= _sums(api, request, wanted)
    row["statistics_db_event_queue"] = 0
    if request.is_monitor:
        row["listeners"] = [
            {"node": api.node_name, "protocol": one.protocol, "ip_address": one.host, "port": one.port, "socket_opts": {}}
            for one in api.broker.listeners()
        ]
        row["contexts"] = [{"node": api.node_name, "ssl_opts": [], **listener_context(one)} for one in api.broker.http_listeners]
    return row


def _sums(api: Api, request: Request, wanted: Spans) -> Row:
    values = api.sampler.whole_values() if request.is_monitor else _sum_of_vhosts(api, request)

    def part(names: tuple[str, ...], span: Any) -> Row:
        return stats(WHOLE, values, api.sampler.whole(span) if request.is_monitor else None, span, names)

    return {
        "message_stats": part((*CHANNEL, *DISK_STATS), wanted.msg_rates),
        "churn_rates": part(CHURN, wanted.msg_rates),
        "queue_totals": part(LENGTHS, wanted.lengths),
    }


def _sum_of_vhosts(api: Api, request: Request) -> tuple[int, ...]:
    """As WHOLE says, of what the user may enter; what is the node's is 0."""
    sums = [0] * len(WHOLE)
    for vhost in own_vhosts(api, request):
        values = api.sampler.vhost_values(vhost)[: len(LENGTHS) + len(CHANNEL)]
        for column, value in enumerate(values):
            sums[column] += value
    return tuple(sums)


def get_cluster_name(api: Api, request: Request) -> Row:
    return {"name": cluster_name(api)}


def put_cluster_name(api: Api, request: Request) -> Answer:
    (name,) = need(request.json(), "name")
    api.admin.set_global_parameter(CLUSTER_NAME, json.dumps(str(name)))
    take_cluster_name(api)
    return NO_CONTENT


def take_cluster_name(api: Api) -> None:
    """Has AMQP clients be told the name that the broker was given here."""
    api.broker.node.server_properties["cluster_name"] = cluster_name(api)


# -- nodes -----------------------------------------------------------------------------------------------------------


def list_all(api: Api, request: Request) -> list[Row]:
    if request.is_true("disable_stats") or api.config.disable_stats:
        return [{"name": api.node_name, "type": "disc", "running": True}]
    return [_row(api, spans(request.query))]


def check_node(api: Api, request: Request) -> None:
    """Raises ApiError 404 unless the path names this node."""
    if request.names.get("node", api.node_name) != api.node_name:
        raise not_found()


async def get_one(api: Api, request: Request) -> Row:
    check_node(api, request)
    row = _row(api, spans(request.query))
    if request.is_true("memory"):
        row["memory"] = await _memory(api)
    if request.is_true("binary"):
        row["binary"] = dict.fromkeys(BINARY_KINDS, 0)
    return row


def _row(api: Api, wanted: Spans) -> Row:
    broker, series = api.broker, api.sampler.whole(wanted.node_stats)
    alarms = broker.alarms
    figures = api.sampler.whole_values()
    open_files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return {
        "name": api.node_name,
        "type": "disc",
        "running": True,
        "partitions": [],
        "being_drained": False,
        "cluster_links": [],
        "net_ticktime": 60,
        "os_pid": str(os.getpid()),
        "uptime": int((time.monotonic() - STARTED) * 1000),
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "rates_mode": "basic",
        "fd_total": open_files_max,
        "sockets_total": open_files_max,
        "proc_total": PROCESSES_MAX,
        "mem_limit": alarms.memory_limit_bytes,
        "mem_alarm": MEMORY in alarms.active,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": alarms.disk_limit_bytes,
        "disk_free_alarm": DISK in alarms.active,
        "exchange_types": exchange_types(),
        "auth_mechanisms": [{"name": name, "description": f"SASL {name}", "enabled": True} for name in MECHANISMS],
        "applications": [{"name": "rabbitpy_broker", "description": "rabbitpy-broker", "version": __version__}],
        "contexts": [listener_context(one) for one in api.broker.http_listeners],
        "log_files": ["<stderr>"],
        "config_files": [""],
        "db_dir": str(Path(broker.config.node.data_path())),
        "enabled_plugins": list(PLUGINS),
        "metrics_gc_queue_length": dict.fromkeys(GONE, 0),
        "ra_open_file_metrics": {"ra_log_wal": 0, "ra_log_segment_writer": 0},
        **stats(WHOLE, figures, series, wanted.node_stats, (*CHURN, *NODE)),
        **stats(COUNTED, _counted(api), None, wanted.node_stats),
    }


def _counted(api: Api) -> tuple[int, ...]:
    """As COUNTED says: what our stores have done in its place, else 0. Times are in ms."""
    done = StoreStats()
    for vhost in list(api.vhosts.values()):
        add_store(done, vhost.store)
    found = {
        "io_write_count": done.epochs,
        "io_write_bytes": done.synced_bytes,
        "io_sync_count": done.epochs,
        "io_sync_avg_time": round(1000 * done.sync_seconds / done.epochs) if done.epochs else 0,
        "msg_store_read_count": done.persistent.reads + done.transient.reads,
        "msg_store_write_count": done.persistent.writes + done.transient.writes,
    }
    return tuple(found.get(name, 0) for name in COUNTED)


async def _memory(api: Api) -> Row:
    kinds: Row = {**dict.fromkeys(MEMORY_KINDS, 0), **await memory_kinds(api.admin)}
    used = sum(kinds.values())
    kinds["strategy"] = "rss"
    kinds["total"] = {"rss": used, "allocated": used, "erlang": used}
    return kinds


async def get_memory(api: Api, request: Request) -> Row:
    check_node(api, request)
    return {"memory": await _memory(api)}


async def get_memory_shares(api: Api, request: Request) -> Row:
    """In percent."""
    check_node(api, request)
    kinds = await memory_kinds(api.admin)
    used = sum(kinds.values()) or 1
    shares: Row = {name: round(100 * kinds.get(name, 0) / used) for name in MEMORY_KINDS}
    return {"memory": {**shares, "total": 100}}


def get_memory_tables(api: Api, request: Request) -> Row:
    """Erlang's, of which there are none."""
    check_node(api, request)
    return {"ets": "no_ets_tables"}


def reset(api: Api, request: Request) -> Answer:
    """Forgets the statistics."""
    check_node(api, request)
    api.sampler.forget()
    return NO_CONTENT


