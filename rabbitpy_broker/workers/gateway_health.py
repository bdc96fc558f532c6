"""Health checks of the whole daemon: well when all of it is.

A worker that does not run is an answer, too: its vhosts are down, and clients that want them are not served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from rabbitpy_broker.management.api.asking import Reply, path_to
from rabbitpy_broker.management.api.health import LIMIT_REACHED, OK, failed
from rabbitpy_broker.management.api.paging import Columns
from rabbitpy_broker.management.api.request import Answer, Row
from rabbitpy_broker.management.managed import PROTOCOLS
from rabbitpy_broker.workers.gateway_front import Asked, Front, Refused, as_answer, kept_headers

Check = Callable[[Front, Asked], Awaitable[Answer]]


async def _all(front: Front, asked: Asked) -> list[Reply]:
    """Raises ApiError 503 when no worker runs, and Refused for who may not ask."""
    await front.check(asked)
    members = front.ready()
    asked.down |= {member.number for member in front.fleet.members()} - {member.number for member in members}
    query = {key: value for key, value in asked.query.items() if key != "columns"}
    replies = [await front.ask(asked, member, "GET", path_to(*asked.segments, query=query)) for member in members]
    asked.base = kept_headers(replies[0].headers)
    return replies


def _as_told(asked: Asked, reply: Reply) -> Answer:
    """What a worker says; of a refusal all."""
    if 400 <= reply.status < 500:
        raise Refused(reply)
    return as_answer(asked, Columns(asked.light()).of(reply.json()), reply.status)


def _chosen(asked: Asked, row: Row) -> Answer:
    return as_answer(asked, Columns(asked.light()).of(row))


def _as_failed(asked: Asked, reason: str, **details: Any) -> Answer:
    answer = failed(reason, **details)
    return as_answer(asked, Columns(asked.light()).of(answer.body), answer.status)


async def _alarms(front: Front, asked: Asked) -> Answer:
    replies = await _all(front, asked)
    found = {repr(alarm): alarm for reply in replies for alarm in reply.json().get("alarms", [])}
    return _as_failed(asked, "There are alarms in effect", alarms=list(found.values())) if found else _as_told(asked, replies[0])


async def _virtual_hosts(front: Front, asked: Asked) -> Answer:
    replies = await _all(front, asked)
    down = {name for reply in replies for name in reply.json().get("virtual-hosts", [])}
    down |= {name for name, number in front.fleet.placed().items() if number in asked.down}
    if not down:
        return _as_told(asked, replies[0])
    return _as_failed(asked, "Some virtual hosts are down", **{"virtual-hosts": sorted(down)})


async def _in_service(front: Front, asked: Asked) -> Answer:
    replies = await _all(front, asked)
    if asked.down:
        return _as_failed(asked, "Some workers are not running", workers=sorted(asked.down))
    return _as_told(asked, replies[0])


async def _worst(front: Front, asked: Asked) -> Answer:
    """The first that is not well."""
    replies = await _all(front, asked)
    found = next((reply for reply in replies if reply.status != 200 or reply.json().get("status") != "ok"), replies[0])
    return _as_told(asked, found)


async def _port_listener(front: Front, asked: Asked) -> Answer:
    port = asked.names["port"]
    reply = (await _all(front, asked))[0]
    if port in [str(one.port) for one in front.listeners]:
        return _chosen(asked, {**OK, "port": int(port)})
    found = reply.json()
    if "ports" in found:
        return _as_failed(asked, found["reason"], missing=int(port), ports=found["ports"] + [one.port for one in front.listeners])
    return _as_told(asked, reply)


async def _protocol_listener(front: Front, asked: Asked) -> Answer:
    name = asked.names["protocol"]
    ours = {one.protocol for one in front.listeners}
    reply = (await _all(front, asked))[0]
    if any(PROTOCOLS.get(one.lower(), one.lower()) in ours for one in name.split(",")):
        return _chosen(asked, {**OK, "protocol": name})
    found = reply.json()
    if "protocols" in found:
        return _as_failed(asked, found["reason"], missing=name, protocols=sorted({*found["protocols"], *ours}))
    return _as_told(asked, reply)


async def _connection_limit(front: Front, asked: Asked) -> Answer:
    found = [reply.json() for reply in await _all(front, asked)]
    limit, count = found[0]["limit"], sum(one["connections"] for one in found)
    if limit != "infinity" and count >= limit:
        return _as_failed(asked, LIMIT_REACHED, connections=count, limit=limit)
    return _chosen(asked, {**OK, "limit": limit, "connections": count})


HEALTH: Final[dict[str, Check]] = {
    "healthchecks/node": _worst,
    "healthchecks/node/:node": _worst,
    "health/checks/alarms": _alarms,
    "health/checks/local-alarms": _alarms,
    "health/checks/port-listener/:port": _port_listener,
    "health/checks/protocol-listener/:protocol": _protocol_listener,
    "health/checks/virtual-hosts": _virtual_hosts,
    "health/checks/is-in-service": _in_service,
    "health/checks/ready-to-serve-clients": _in_service,
    "health/checks/below-node-connection-limit": _connection_limit,
}
