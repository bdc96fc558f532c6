"""The broker at a glance, as pages show it: totals, rates of the last second, what the process uses, alarms."""

from __future__ import annotations

import resource
import time
from typing import Final

from rabbitpy_broker.management.api.auth import own_vhosts
from rabbitpy_broker.management.api.rates import (
    CHANNEL,
    CHURN,
    DISK,
    LENGTHS,
    NODE,
    TRAFFIC,
    VHOST,
    WHOLE,
    Series,
)
from rabbitpy_broker.management.api.request import Request, Row
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.stats import STARTED

OF_NODE: Final = (*CHANNEL, *DISK, *CHURN)
OF_VHOST: Final = (*CHANNEL, *TRAFFIC)


def overview_value(api: Api, request: Request) -> Row:
    """What the user may see of it: figures of the node are None for who does not monitor; no rates where there are none."""
    node, sampler = api.broker.node, api.sampler
    vhosts = list(api.vhosts.values()) if request.is_monitor else own_vhosts(api, request)
    connections = [
        one for one in list(api.broker.clients.connections) if request.is_monitor or one.session.user is request.user
    ]
    channels = [channel for one in connections for channel in list(one.channels.values())]
    lengths = [0, 0, 0]
    rates = dict.fromkeys(OF_VHOST, 0.0)
    for vhost in vhosts:
        for column, count in enumerate(sampler.lengths(vhost)):
            lengths[column] += count
        _add(rates, sampler.of(vhost.name), VHOST, TRAFFIC if request.is_monitor else OF_VHOST)
    if request.is_monitor:
        rates |= dict.fromkeys(OF_NODE, 0.0)
        _add(rates, sampler.whole(), WHOLE, OF_NODE)
    return {
        "totals": {
            "connections": len(connections),
            "channels": len(channels),
            "exchanges": sum(len(vhost.exchanges) + 1 for vhost in vhosts),
            "queues": sum(len(vhost.queues) for vhost in vhosts),
            "consumers": sum(len(channel.deliveries.consumers) for channel in channels),
            **dict(zip(LENGTHS, lengths, strict=True)),
        },
        "rates": {name: round(rate, 2) for name, rate in rates.items()} if sampler.kept.rates else {},
        "node": figures_row(api) if request.is_monitor else None,
        "alarms": sorted(api.broker.alarms.active),
        "blocked": node.blocked,
    }


def _add(rates: dict[str, float], series: Series | None, names: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    if series is not None:
        for name in wanted:
            rates[name] += series.latest_rate(names.index(name))


def figures_row(api: Api) -> Row:
    """What the process uses, and could; `uptime` in ms."""
    alarms = api.broker.alarms
    open_files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = dict.fromkeys(NODE, 0) | {name: value for name, value in api.sampler.of_node().items() if name in NODE}
    return {
        "name": api.node_name,
        **used,
        "fd_total": open_files_max,
        "sockets_total": open_files_max,
        "mem_limit": alarms.memory_limit_bytes,
        "mem_alarm": "memory" in alarms.active,
        "disk_free_limit": alarms.disk_limit_bytes,
        "disk_free_alarm": "disk" in alarms.active,
        "uptime": int((time.monotonic() - STARTED) * 1000),
    }
