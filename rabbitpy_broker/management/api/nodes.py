"""The broker as a node, and the other nodes of its cluster: /nodes, /overview, and what it says of itself.

    own_figures --> lease (NodeInfo.figures) --> View of another node --> a row of /nodes there

Much of RabbitMQ's is about Erlang; what has no counterpart here is 0, empty or absent, as a fresh node has it. What must stay
true: a node is never asked for its row by another, so a list of nodes is made at once whatever is away; and every row of a node
that runs has the same fields.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rabbitpy_broker import __version__
from rabbitpy_broker.alarms import DISK, MEMORY
from rabbitpy_broker.cluster.nodes import Listening, NodeInfo
from rabbitpy_broker.cluster.status import all_nodes
from rabbitpy_broker.definitions import CLUSTER_NAME
from rabbitpy_broker.management.api.auth import own_vhosts
from rabbitpy_broker.management.api.errors import not_found
from rabbitpy_broker.management.api.rates import (
    CHANNEL,
    CHURN,
    LENGTHS,
    WHOLE,
    Series,
    Spans,
    stats,
)
from rabbitpy_broker.management.api.rates import DISK as DISK_STATS
from rabbitpy_broker.management.api.request import NO_CONTENT, Answer, Request, Row, need
from rabbitpy_broker.management.api.sampler import OF_NODE, NodeFigures
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.diagnostics import memory_kinds
from rabbitpy_broker.management.managed import Listener, ManagedBroker
from rabbitpy_broker.metrics import StoreStats
from rabbitpy_broker.protocol.handshake import MECHANISMS, RABBITMQ_VERSION
from rabbitpy_broker.routing.resolve import EXCHANGE_TYPES
from rabbitpy_broker.stats import STARTED, add_store

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

NOT_AVAILABLE: Final = "not_available"  # what RabbitMQ has of a node that cannot be asked
WEB: Final = ("http", "https")  # protocols of the API's listeners
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


def listener_context(listener: Listener | Listening) -> Row:
    return {
        "description": "RabbitMQ Management",
        "path": "/",
        "ip": listener.host,
        "port": str(listener.port),
        "cowboy_opts": "[]",
    }


# -- overview --------------------------------------------------------------------------------------------------------


def overview(api: Api, request: Request) -> Row:
    wanted = api.sampler.spans(request.query)
    plain = api.is_plain(request)
    row: Row = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": api.config.rates_mode,
        "sample_retention_policies": api.sampler.kept.row(),
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
        found = _listeners(api)
        row["listeners"] = [
            {"node": node, "protocol": one.protocol, "ip_address": one.host, "port": one.port, "socket_opts": {}}
            for node, one in found
        ]
        row["contexts"] = [
            {"node": node, "ssl_opts": [], **listener_context(one)} for node, one in found if one.protocol in WEB
        ]
    return row


def _listeners(api: Api) -> list[tuple[str, Listener | Listening]]:
    """Of all nodes that run, each with its node; this one's first."""
    found: list[tuple[str, Listener | Listening]] = [(api.node_name, one) for one in api.broker.listeners()]
    for node, info in sorted(others(api).items()):
        found += [(node, one) for one in info.listeners]
    return found


def _sums(api: Api, request: Request, wanted: Spans) -> Row:
    values = api.sampler.whole_values() if request.is_monitor else _sum_of_vhosts(api, request)

    def part(names: tuple[str, ...], span: Any) -> Row:
        return stats(WHOLE, values, api.sampler.whole() if request.is_monitor else None, span, names)

    return {
        "message_stats": part((*CHANNEL, *DISK_STATS), wanted.msg_rates) if api.sampler.kept.rates else {},
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


def others(api: Api) -> dict[str, NodeInfo]:
    """The other nodes that run, with what each tells of itself."""
    view = api.broker.view
    return {} if view is None else {node: info for node, info in view.nodes.items() if node != api.node_name}


def list_all(api: Api, request: Request) -> list[Row]:
    """All nodes of the cluster that are known, by name."""
    view, running = api.broker.view, others(api)
    names = sorted({api.node_name, *(() if view is None else all_nodes(view))})
    if api.is_plain(request):
        return [{"name": name, "type": "disc", "running": name == api.node_name or name in running} for name in names]
    wanted = api.sampler.spans(request.query)
    return [
        _row(api, wanted) if name == api.node_name else _row_of_other(api, name, running.get(name)) for name in names
    ]


def check_node(api: Api, request: Request) -> None:
    """Raises ApiError 404 unless the path names this node."""
    if request.names.get("node", api.node_name) != api.node_name:
        raise not_found()


def other_node(api: Api, request: Request) -> tuple[str, NodeInfo | None] | None:
    """The other node that the path names, with None for one that does not run; None if it is this one. Raises ApiError 404."""
    name, view = request.names.get("node", api.node_name), api.broker.view
    if name == api.node_name:
        return None
    if view is None or name not in all_nodes(view):
        raise not_found()
    return name, others(api).get(name)


async def get_one(api: Api, request: Request) -> Row:
    other = other_node(api, request)
    row = _row(api, api.sampler.spans(request.query)) if other is None else _row_of_other(api, *other)
    if request.is_true("memory"):
        row["memory"] = await _memory(api, request)
    if request.is_true("binary"):
        row["binary"] = dict.fromkeys(BINARY_KINDS, 0)
    return row


def own_figures(api: Api) -> dict[str, int]:
    """What this node tells others of itself, by the names that its row has: counters and levels of the last look that are not 0.

    `began` is when it did, in ms since 1970.
    """
    alarms = api.broker.alarms
    open_files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    found = {
        "os_pid": os.getpid(), "began": int(api.sampler.started * 1000), "fd_total": open_files_max,
        "sockets_total": open_files_max, "mem_limit": alarms.memory_limit_bytes, "disk_free_limit": alarms.disk_limit_bytes,
        **dict(zip(COUNTED, _counted(api), strict=True)), **api.sampler.of_node(),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def _row(api: Api, wanted: Spans) -> Row:
    broker = api.broker
    values = dict(zip(WHOLE, api.sampler.whole_values(), strict=True))
    row = _shape(api, api.node_name, own_figures(api) | values, sorted(broker.alarms.active), api.sampler.whole(), wanted)
    return row | {
        "being_drained": broker.member is not None and broker.member.is_drained,
        "uptime": int((time.monotonic() - STARTED) * 1000),
        "contexts": [listener_context(one) for one in broker.http_listeners],
        "db_dir": str(Path(broker.config.node.data_path())),
    }


def _row_of_other(api: Api, name: str, info: NodeInfo | None) -> Row:
    """Of what it told last; one that does not run has no figures, as in RabbitMQ. Rates are 0: only the node itself has them."""
    if info is None:
        return {"name": name, "type": "disc", "running": False, "being_drained": False}
    row = _shape(api, name, info.figures, info.alarms, None, api.sampler.spans({}))
    began = info.figures.get("began")
    return row | {
        "being_drained": info.maintenance,
        "uptime": 0 if began is None else max(0, int(time.time() * 1000) - began),
        "processors": info.cores or 1,
        "applications": [{"name": "rabbitpy_broker", "description": "rabbitpy-broker", "version": info.version}],
        "contexts": [listener_context(one) for one in info.listeners if one.protocol in WEB],
    }


def _shape(
    api: Api, name: str, figures: Mapping[str, int], alarms: list[str], series: Series | None, wanted: Spans
) -> Row:
    """The row of a node that runs. Totals are never 0: who divides by them finds nothing used of one."""
    values = tuple(figures.get(one, 0) for one in WHOLE)
    counted = tuple(figures.get(one, 0) for one in COUNTED)
    return {
        "name": name,
        "type": "disc",
        "running": True,
        "partitions": [],
        "being_drained": False,
        "cluster_links": [],
        "net_ticktime": 60,
        "os_pid": str(figures.get("os_pid", 0)),
        "uptime": 0,
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "rates_mode": api.config.rates_mode,
        "fd_total": figures.get("fd_total", 1),
        "sockets_total": figures.get("sockets_total", 1),
        "proc_total": PROCESSES_MAX,
        "mem_limit": figures.get("mem_limit", 0),
        "mem_alarm": MEMORY in alarms,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": figures.get("disk_free_limit", 0),
        "disk_free_alarm": DISK in alarms,
        "exchange_types": exchange_types(),
        "auth_mechanisms": [{"name": one, "description": f"SASL {one}", "enabled": True} for one in MECHANISMS],
        "applications": [{"name": "rabbitpy_broker", "description": "rabbitpy-broker", "version": __version__}],
        "contexts": [],
        "log_files": ["<stderr>"],
        "config_files": [""],
        "db_dir": "",
        "enabled_plugins": list(PLUGINS),
        "metrics_gc_queue_length": dict.fromkeys(GONE, 0),
        "ra_open_file_metrics": {"ra_log_wal": 0, "ra_log_segment_writer": 0},
        **stats(WHOLE, values, series, wanted.node_stats, OF_NODE),
        **stats(COUNTED, counted, None, wanted.node_stats),
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


async def _memory_kinds(api: Api, request: Request) -> dict[str, int] | None:
    """Bytes by kind: of another node only all that it uses, None of one that does not run. Raises ApiError 404."""
    other = other_node(api, request)
    if other is None:
        return await memory_kinds(api.admin)
    return None if other[1] is None else {"other_system": other[1].figures.get("mem_used", 0)}


async def _memory(api: Api, request: Request) -> Row | str:
    found = await _memory_kinds(api, request)
    if found is None:
        return NOT_AVAILABLE
    used = sum(found.values())
    total = {"rss": used, "allocated": used, "erlang": used}
    return {**dict.fromkeys(MEMORY_KINDS, 0), **found, "strategy": "rss", "total": total}


async def get_memory(api: Api, request: Request) -> Row:
    return {"memory": await _memory(api, request)}


async def get_memory_shares(api: Api, request: Request) -> Row:
    """In percent."""
    kinds = await _memory_kinds(api, request)
    if kinds is None:
        return {"memory": NOT_AVAILABLE}
    used = sum(kinds.values()) or 1
    shares: Row = {name: round(100 * kinds.get(name, 0) / used) for name in MEMORY_KINDS}
    return {"memory": {**shares, "total": 100}}


def get_memory_tables(api: Api, request: Request) -> Row:
    """Erlang's, of which there are none."""
    other_node(api, request)
    return {"ets": "no_ets_tables"}


def reset(api: Api, request: Request) -> Answer:
    """Forgets the statistics."""
    check_node(api, request)
    api.sampler.forget()
    return NO_CONTENT


