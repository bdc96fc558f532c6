"""Health checks: 200 when all is well, 503 with what is wrong when not."""

from __future__ import annotations

import datetime as dt
import math
import ssl
from typing import Any, Final

from rabbitpy_broker.cluster.status import LAGS_S
from rabbitpy_broker.management.api.errors import bad_request
from rabbitpy_broker.management.api.nodes import other_node, others
from rabbitpy_broker.management.api.request import Answer, Request, Row, whole
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.clustering import critical_vhosts, lagging, ownerless_vhosts
from rabbitpy_broker.management.managed import PROTOCOLS

OK: Final = {"status": "ok"}
LIMIT_REACHED: Final = "Node connection limit is reached"
QUEUES_MAX: Final = 500  # that are named
UNITS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}


def failed(reason: str, **details: Any) -> Answer:
    return Answer(503, {"status": "failed", "reason": reason, **details})


def alarms(api: Api, request: Request) -> Any:
    """Of all nodes that run."""
    found = _own_alarms(api)
    for node, info in sorted(others(api).items()):
        found += [{"node": node, "resource": resource} for resource in info.alarms]
        found += [{"node": node, "resource": "log", "vhost": vhost} for vhost in info.held]
    return failed("There are alarms in effect", alarms=found) if found else OK


def local_alarms(api: Api, request: Request) -> Any:
    found = _own_alarms(api)
    return failed("There are alarms in effect", alarms=found) if found else OK


def _own_alarms(api: Api) -> list[Row]:
    found: list[Row] = [{"node": api.node_name, "resource": resource} for resource in sorted(api.broker.alarms.active)]
    for vhost, reason in api.broker.alarms.held.items():
        found.append({"node": api.node_name, "resource": "log", "vhost": vhost, "reason": reason})
    return found


def port_listener(api: Api, request: Request) -> Any:
    port = whole(request.names["port"])
    if port is None:
        raise bad_request("Invalid port")
    ports = [one.port for one in api.broker.listeners()]
    if port in ports:
        return {**OK, "port": port}
    return failed("No active listener", missing=port, ports=ports)


def protocol_listener(api: Api, request: Request) -> Any:
    """A comma lists several, one of which is enough."""
    name = request.names["protocol"]
    protocols = {one.protocol for one in api.broker.listeners()}
    if any(PROTOCOLS.get(one.lower(), one.lower()) in protocols for one in name.split(",")):
        return {**OK, "protocol": name}
    return failed("No active listener", missing=name, protocols=sorted(protocols))


def virtual_hosts(api: Api, request: Request) -> Any:
    """A vhost whose store cannot write is not well, nor is one whose log takes nothing."""
    down = sorted(name for name in {**api.broker.alarms.store_failures, **api.broker.alarms.held} if name in api.vhosts)
    return failed("Some virtual hosts are down", **{"virtual-hosts": down}) if down else OK


def no_mirrors(api: Api, request: Request) -> Row:
    """Nothing is mirrored, so nothing becomes unsafe when this node stops."""
    return {**OK, "reason": "single node cluster"}


def quorum_critical(api: Api, request: Request) -> Any:
    """Whether replicated vhosts would be without a majority of their replicas if this node stopped."""
    if api.broker.view is None:
        return {**OK, "reason": "single node cluster"}
    found = critical_vhosts(api.broker)
    if not found:
        return OK
    queues = [
        {"name": queue.name, "virtual_host": name, "type": "rabbit_quorum_queue"}
        for name in found
        if name in api.vhosts
        for queue in api.vhosts[name].each_queue()
        if queue.quorum
    ]
    reason = "There are replicated vhosts that would lose their quorum if the target node is shut down"
    return failed(reason, **{"virtual-hosts": found, "queues": queues[:QUEUES_MAX]})


def replica_lag(api: Api, request: Request) -> Any:
    """Each replica runs, and is not further behind."""
    text = request.names.get("seconds", str(LAGS_S))
    try:
        seconds = float(text)
    except ValueError:
        raise bad_request("Invalid number of seconds.") from None
    if not 0 <= seconds < math.inf:
        raise bad_request("Invalid number of seconds.")
    found = lagging(api.broker, seconds)
    return failed("Some replicas do not run, or are behind", replicas=found, seconds=seconds) if found else OK


def vhost_owners(api: Api, request: Request) -> Any:
    """Each replicated vhost has an owner that lives."""
    found = ownerless_vhosts(api.broker)
    return failed("Some replicated vhosts have no owner", **{"virtual-hosts": found}) if found else OK


def node(api: Api, request: Request) -> Row:
    """The old check: 200 in any case."""
    other, found = other_node(api, request), api.broker.alarms
    if other is None:
        active, held = sorted(found.active), list(found.held)
    elif other[1] is None:
        return {"status": "failed", "reason": f"node {other[0]} does not run"}
    else:
        active, held = other[1].alarms, other[1].held
    active = active + [f"log of vhost '{name}'" for name in held]
    if active:
        return {"status": "failed", "reason": f"resource alarm(s) in effect:{active}"}
    return dict(OK)


def in_service(api: Api, request: Request) -> Row:
    """Whoever gets this answer could connect."""
    return dict(OK)


def connection_limit(api: Api, request: Request) -> Any:
    limit, count = api.broker.node.limits.connection_max, len(api.broker.clients.connections)
    if limit and count >= limit:
        return failed(LIMIT_REACHED, connections=count, limit=int(limit))
    return {**OK, "limit": int(limit) or "infinity", "connections": count}


def certificate_expiration(api: Api, request: Request) -> Any:
    unit = request.names["unit"]
    if unit not in UNITS:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    within = whole(request.names["within"])
    if within is None:
        raise bad_request("Invalid expiration value.")
    days = min(within * UNITS[unit], 365_000)
    until = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    expired = []
    for protocol, file in certificates(api):
        ends = expiry(file)
        if ends < until:
            expired.append({"node": api.node_name, "protocol": protocol, "certfile": file, "certfile_expires_on": [str(ends)]})
    return failed("Certificates expiring", expired=expired) if expired else OK


def certificates(api: Api) -> list[tuple[str, str]]:
    net = api.broker.config.net
    found = [("amqp/ssl", net.ssl_options.certfile)] if net.listeners_ssl else []
    return found + ([("https", api.config.ssl.certfile)] if api.config.ssl.certfile else [])


def expiry(file: str) -> dt.datetime:
    """When the certificate in a PEM file ends."""
    decoded = ssl._ssl._test_decode_cert(file)  # type: ignore[attr-defined]  # what the module offers to read one
    seconds = ssl.cert_time_to_seconds(decoded["notAfter"])
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
