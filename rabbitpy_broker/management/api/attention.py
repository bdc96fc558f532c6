"""/attention: what is unusual now, each with what it concerns and, where there is one, the request that ends it.

Everything is seen in counters that are kept anyway, over the last minute or five; so queues are known from when somebody first
used the API, and the first minute has nothing to compare with. What must stay true: a user is told of what its lists show.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final
from urllib.parse import quote

import msgspec

from rabbitpy_broker.cluster.status import LAGS_S
from rabbitpy_broker.management.api.auth import own_vhosts, sees_connections_of
from rabbitpy_broker.management.api.health import certificates, expiry
from rabbitpy_broker.management.api.overview import figures_row
from rabbitpy_broker.management.api.rates import CHANNEL, LENGTHS, QUEUE, WHOLE, Series
from rabbitpy_broker.management.api.request import Made, Request, Row
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.clustering import engine_row, replicated, slow_appends
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.protocol.publish_waits import oldest_wait_s
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import queue_type
from rabbitpy_broker.slices import in_slices
from rabbitpy_broker.vhost import VHost

WARNING: Final = "warning"
CRITICAL: Final = "critical"
ITEMS_MAX: Final = 500
MINUTE_S: Final = 60.0
GROWN: Final = 100  # messages in a minute, and a tenth of what there was: then a queue grows
UNACKED_S: Final = 300.0  # without any ack
REDELIVERED: Final = 100  # in a minute, and half of what is delivered: then it goes round
DELIVERY_LIMIT: Final = 20  # as quorum queues have it
UNROUTABLE: Final = 1
CHURN: Final = 120  # connections in a minute
WAITS_S: Final = 60
CERTIFICATE_DAYS: Final = 30
NEAR: Final = 0.9  # of a limit

MESSAGES, READY, _ = (QUEUE.index(name) for name in LENGTHS)
UNACKED: Final = QUEUE.index("messages_unacknowledged")
ACK, REDELIVER, DELIVER = (QUEUE.index(name) for name in ("ack", "redeliver", "deliver_get"))
RETURNED, DROPPED = (CHANNEL.index(name) for name in ("return_unroutable", "drop_unroutable"))
CONNECTED: Final = WHOLE.index("connection_created")


class Item:
    """Makes one entry."""

    def __init__(self, kind: str, severity: str, text: str, target: Row, **figures: object) -> None:
        self.severity = severity
        self.row: Row = {
            "kind": kind, "severity": severity, "since": None, "text": text, "target": target, "figures": figures, "action": None,
        }  # fmt: skip

    def ends_by(self, title: str, method: str, *path: str, body: Row | None = None) -> Item:
        """The request that ends it; `path` has the segments."""
        action: Row = {"title": title, "method": method, "path": "/".join(quote(part, safe="") for part in path)}
        self.row["action"] = action | ({"body": body} if body is not None else {})
        return self


def _number(count: int, one: str, more: str) -> str:
    """How many there are, with the words for one or for any other number."""
    return f"{count} {one if count == 1 else more}"


def grown(series: Series, column: int, seconds: float = MINUTE_S) -> int:
    """By how much a counter or a length is greater than so long ago; 0 where it is not known for so long."""
    then = series.checked - seconds
    if series.begun > then + seconds / 2:
        return 0
    return series.values[column] - series.at(then, column)


def of_queue(queue: Queue, series: Series, dead_letters: frozenset[str], api: Api) -> Iterator[Item]:
    """What is unusual about a queue. `dead_letters` are the queues of its vhost that others' dead letters go to."""
    target = {"kind": "queue", "vhost": queue.vhost, "name": queue.name}
    ready, more = series.values[READY], grown(series, READY)
    consumers = list(queue.consumers.members)
    figures = {"messages": series.values[MESSAGES], "ready": ready, "rate": round(more / MINUTE_S, 2)}
    if more >= GROWN and more * 10 >= ready - more:
        if queue.name in dead_letters:
            yield Item("dead_letters_growing", WARNING, "dead letters come in", target, **figures)
        elif consumers:
            text = f"{_number(len(consumers), 'consumer takes', 'consumers take')} less than comes"
            yield Item("growing_slow_consumers", WARNING, text, target, **figures)
        else:
            yield Item("growing", WARNING, "messages come, and nobody takes them", target, **figures)
    unacked = series.values[UNACKED]
    if unacked and series.begun <= series.checked - UNACKED_S:
        then = series.checked - UNACKED_S
        if series.at(then, UNACKED) and series.at(then, ACK) == series.values[ACK]:
            yield _unacked(queue, target, unacked)
    redelivered, delivered = grown(series, REDELIVER), grown(series, DELIVER)
    if redelivered >= REDELIVERED and redelivered * 2 >= delivered:
        text = "messages are delivered again and again"
        yield _limited(
            Item("redelivery_loop", WARNING, text, target, redelivered=redelivered, delivered=delivered), queue, api
        )
    if queue.backing.publishes_waiting():
        waits_s = int(oldest_wait_s(queue, api.broker.clients.connections))
        if waits_s >= WAITS_S:
            text = "publishers wait for a consumer's ack"
            yield Item("publishes_waiting", WARNING, text, target, oldest_s=waits_s, count=int(queue.backing.publishes_waiting()))


def _limited(item: Item, queue: Queue, api: Api) -> Item:
    """Ended by a policy for this queue alone, which says the same as the one that applies, and a limit besides."""
    vhost = api.vhosts.get(queue.vhost)
    policy = vhost.policies.for_queue(queue.name, queue_type(queue.arguments))[0] if vhost is not None else None
    body: Row = {
        "pattern": f"^{_literal(queue.name)}$",
        "apply-to": "queues",
        "definition": {**(policy.definition if policy is not None else {}), "delivery-limit": DELIVERY_LIMIT},
        "priority": policy.priority + 1 if policy is not None else 0,
    }
    title = f"Set a delivery limit of {DELIVERY_LIMIT}"
    return item.ends_by(title, "PUT", "policies", queue.vhost, f"limit {queue.name}", body=body)


def _unacked(queue: Queue, target: Row, unacked: int) -> Item:
    """Who holds most of it is the one to be closed."""
    text = f"{_number(unacked, 'message is', 'messages are')} held, and none was acked in {UNACKED_S / 60:.0f} minutes"
    item = Item("unacked_long", WARNING, text, target, unacked=unacked, for_at_least_s=int(UNACKED_S))
    holders: list[Any] = [one for one in queue.consumers.members if one.unacked_count]
    if holders:
        holder = max(holders, key=lambda one: int(one.unacked_count))
        name = holder.deliveries.host.name
        item.row["figures"]["connection"] = name
        item.ends_by("Close the connection that holds most", "DELETE", "connections", name)
    return item


def _literal(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-" else f"\\{letter}" for letter in name)


def dead_letter_queues(vhost: VHost) -> Iterator[frozenset[str] | None]:
    """The names of the queues that dead letters go to, as the last thing that it gives; None before."""
    found: set[str] = set()
    exchanges: set[str] = set()
    for queue in vhost.each_queue():
        exchange, key = queue.settings.dead_letter_exchange, queue.settings.dead_letter_routing_key
        if exchange:
            exchanges.add(exchange)
        elif exchange is not None and key is not None:
            found.add(key)
        yield None
    for name in exchanges:
        exchange_ = vhost.exchanges.get(name)
        for binding in exchange_.each_binding() if exchange_ is not None else ():
            found.add(binding.destination.name)
            yield None
    yield frozenset(found)


class Look:
    """One look at everything that the user may see."""

    def __init__(self, api: Api, request: Request) -> None:
        self.items: list[Item] = []
        self._api = api
        self._request = request

    def steps(self) -> Iterator[None]:
        for vhost in own_vhosts(self._api, self._request):
            dead_letters: frozenset[str] = frozenset()
            for found in dead_letter_queues(vhost):
                dead_letters = found or dead_letters
                yield
            for queue in vhost.each_queue():
                series = self._api.sampler.of(queue)
                if series is not None and len(self.items) < ITEMS_MAX:
                    self.items += of_queue(queue, series, dead_letters, self._api)
                yield
        yield from self._channels()
        if self._request.is_monitor:
            self.items += self._node()

    def _channels(self) -> Iterator[None]:
        for connection in list(self._api.broker.clients.connections):
            user = connection.session.user
            if user is None or not sees_connections_of(self._request, user.name):
                continue
            for channel in list(connection.channels.values()):
                series = self._api.sampler.of(channel)
                lost = 0 if series is None else grown(series, RETURNED) + grown(series, DROPPED)
                if lost >= UNROUTABLE:
                    target = {"kind": "channel", "name": f"{connection.name} ({channel.number})"}
                    text = "publishes to where no queue is bound"
                    self.items.append(Item("unroutable", WARNING, text, target, connection=connection.name, in_a_minute=lost))
                yield

    def _node(self) -> Iterator[Item]:
        api, broker = self._api, self._api.broker
        target = {"kind": "node", "name": api.node_name}
        figures = figures_row(api)
        for resource in sorted(broker.alarms.active):
            text = f"the {resource} alarm blocks publishers"
            yield Item("alarm", CRITICAL, text, target, resource=resource)
        yield from of_cluster(broker)
        for name, reason in broker.alarms.held.items():
            yield Item("held", CRITICAL, f"publishers are held: {reason}", {"kind": "vhost", "name": name})
        for name, reason in broker.alarms.store_failures.items():
            yield Item("store_failure", CRITICAL, f"the disk fails: {reason}", {"kind": "vhost", "name": name})
        for used, limit, kind, text in (
            ("mem_used", "mem_limit", "memory", "memory is nearly what the alarm allows"),
            ("fd_used", "fd_total", "file_descriptors", "there are few file descriptors left"),
        ):
            if figures[used] > NEAR * figures[limit] and kind not in broker.alarms.active:
                yield Item(kind, WARNING, text, target, used=figures[used], limit=figures[limit])
        series = api.sampler.whole()
        connected = 0 if series is None else grown(series, CONNECTED)
        if connected >= CHURN and connected >= 2 * len(broker.clients.connections):
            text = "connections are opened for a moment: clients had better keep theirs"
            yield Item("connection_churn", WARNING, text, target, in_a_minute=connected)


def of_cluster(broker: ManagedBroker) -> Iterator[Item]:
    """What is unusual about the engine, owners and replicas."""
    engine = engine_row(broker)
    if engine is not None and not engine["is_reachable"]:
        target = {"kind": "node", "name": broker.config.node_name()}
        text = "the engine does not answer: what is published to replicated vhosts is not confirmed"
        yield Item("engine_silent", CRITICAL, text, target, silent_s=engine["silent_s"])
    for node, slow_ms in slow_appends(broker):
        text = "appends to the engine take long, and publishers to replicated vhosts wait so long for their confirms"
        yield Item("engine_slow", WARNING, text, {"kind": "node", "name": node}, append_ms=slow_ms)
    away: dict[str, int] = {}
    for vhost in replicated(broker):
        target = {"kind": "vhost", "name": vhost.name}
        if not vhost.owner:
            yield Item("no_owner", CRITICAL, "no running node owns the vhost", target)
        for one in vhost.replicas:
            if not one.running:
                away[one.node] = away.get(one.node, 0) + 1
            elif one.lag_s is not None and one.lag_s > LAGS_S:
                text = f"the replica on {one.node} is behind"
                yield Item("replica_lag", WARNING, text, target, node=one.node, entries=one.lag, seconds=round(one.lag_s))
    for node, count in sorted(away.items()):
        text = f"the node is away, and with it {_number(count, 'replica', 'replicas')} of vhosts"
        yield Item("replica_away", WARNING, text, {"kind": "node", "name": node}, replicas=count)


def _of_certificates(api: Api) -> list[Item]:
    """Those that end soon. Reads files."""
    found = []
    now = dt.datetime.now(dt.UTC)
    for protocol, file in certificates(api):
        try:
            ends = expiry(file)
        except (OSError, ValueError):  # it was good at the start; the health check tells
            continue
        if ends < now + dt.timedelta(days=CERTIFICATE_DAYS):
            left = (ends - now).days
            when = f"ends in {_number(left, 'day', 'days')}" if left >= 0 else "has ended"
            text = f"the certificate of {protocol} {when}"
            target = {"kind": "node", "name": api.node_name}
            severity = CRITICAL if left < CERTIFICATE_DAYS // 4 else WARNING
            found.append(Item("certificate", severity, text, target, file=file, ends=ends.isoformat()))
    return found


def show(api: Api, request: Request) -> Made:
    return Made(_made(api, request))


async def _made(api: Api, request: Request) -> AsyncIterator[bytes]:
    look = Look(api, request)
    await in_slices(look.steps())
    if request.is_monitor:
        look.items += await asyncio.to_thread(_of_certificates, api)
    look.items.sort(key=lambda item: item.severity)
    items = [item.row for item in look.items[:ITEMS_MAX]]
    yield msgspec.json.encode({"as_of": int(time.time() * 1000), "items": items})
