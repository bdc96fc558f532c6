"""Watching messages as they come: server-sent events of a queue, and of an exchange.

A queue is *sampled*: every TICK_S its newest messages are looked at, ready and unacked ones, as a browse does it. That costs its
publishers and consumers nothing; what came and went in between is counted only. An exchange is *copied*: a tap gets what its
queues get (queues/tap.py).

What must stay true: a tail leaves nothing behind when it ends, however it ends; at most TAILS_MAX are open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from rabbitpy_broker.errors import AmqpError, ChannelClosed
from rabbitpy_broker.management.api.browse import Show, content_row, readable_queue, row
from rabbitpy_broker.management.api.errors import ApiError, bad_request, not_found, of_amqp
from rabbitpy_broker.management.api.request import Request, Row, Stream, integer, vhost_or_404
from rabbitpy_broker.management.api.shapes import exchange_name
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.protocol.access import Access
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.stream_browse import browsing, newest
from rabbitpy_broker.queues.tap import Tap
from rabbitpy_broker.routing.delayed import DelayedExchange
from rabbitpy_broker.routing.equality import identity
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.storage.peek import content_of
from rabbitpy_broker.vhost import Follower, VHost
from rabbitpy_broker.wire.edit_header import shown

EVENTS: Final = "text/event-stream"
TAILS_MAX: Final = 32
TICK_S: Final = 0.25
PING_S: Final = 15.0
AT_ONCE: Final = 20  # messages of a tick
AT_ONCE_MAX: Final = 100
TRUNCATE: Final = 4_096
BINDINGS_MAX: Final = 2_000
COPIED: Final = ("direct", "topic", "fanout", "headers")


def event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


def _limit(request: Request) -> int:
    limit = integer(request.query.get("limit", AT_ONCE))
    if not 1 <= limit <= AT_ONCE_MAX:
        raise bad_request(f"limit is from 1 to {AT_ONCE_MAX}")
    return limit


def _admit(api: Api) -> None:
    """Raises ApiError 503 when too many watch already."""
    if api.browser.tails >= TAILS_MAX:
        raise ApiError(503, "service_unavailable", f"{TAILS_MAX} are watching already", {"Retry-After": "5"})


async def _ticks(api: Api) -> AsyncGenerator[bytes, None]:
    """A comment now and then, and b"" for each tick, while it counts as open."""
    api.browser.tails += 1
    pinged = time.monotonic()
    try:
        yield b"retry: 2000\n\n"
        while True:
            yield b""
            await asyncio.sleep(TICK_S)
            if time.monotonic() - pinged > PING_S:
                pinged = time.monotonic()
                yield b": ping\n\n"
    finally:
        api.browser.tails -= 1


# -- a queue --------------------------------------------------------------------------------------------------------


def of_queue(api: Api, request: Request) -> Stream:
    vhost, queue = readable_queue(api, request)
    _admit(api)
    return Stream(EVENTS, _sampled(api, request, vhost, queue, _limit(request), Show(request, TRUNCATE)))


async def _sampled(
    api: Api, request: Request, vhost: VHost, queue: Queue, limit: int, show: Show
) -> AsyncGenerator[bytes | None, None]:
    name = api.browser.name_of(queue)
    access = Access(request.user, vhost)
    last = newest(queue)
    ticks = _ticks(api)
    try:
        async for tick in ticks:
            yield tick or None
            if tick:
                continue
            if queue.deleted or not _may_read(access, queue):
                yield event("end", {"reason": "deleted" if queue.deleted else "refused"})
                return
            now = newest(queue)
            came = sum(seq_id - last.get(lane, -1) for lane, seq_id in now.items())
            if came <= 0:
                continue
            items: list[Row] = []
            try:
                for lane, seq_id in now.items():
                    part = (lane, max(last.get(lane, -1), seq_id - limit), seq_id)
                    items += await _newest(api, queue, name, part, show)
            except ApiError:  # too many browse: with the next tick
                continue
            last = now
            counts = {"ready": int(queue.ready_count()), "unacknowledged": int(queue.backing.unacked)}
            yield event("messages", {"items": items, "unseen": max(0, came - len(items)), "mode": "sampled", **counts})
    finally:
        await ticks.aclose()


async def _newest(api: Api, queue: Queue, name: str, part: tuple[int, int, int], show: Show) -> list[Row]:
    """The messages of a lane behind one seq_id, up to another."""
    lane, after, upto = part
    if upto <= after:
        return []
    browse = browsing(queue, api.browser.peeks, (lane, after), True, upto - after, cut=show.cut, most_bytes=1 << 20)
    async with api.browser.turn():
        await api.browser.run(browse)
    now_ms = int(queue.host.now_ms())
    return [row(seen, name, show, now_ms) for seen in browse.found if seen.lane == lane and seen.seq_id <= upto]


def _may_read(access: Access, queue: Queue) -> bool:
    try:
        access.check("read", "queue", queue.name)
    except ChannelClosed:
        return False
    return True


# -- an exchange ----------------------------------------------------------------------------------------------------


def of_exchange(api: Api, request: Request) -> Stream:
    """What comes to any of its destinations. With `routing_key` only what has this key."""
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    name = exchange_name(request.names["exchange"])
    if not name:
        raise bad_request("nothing can be bound to the default exchange: its queues can be watched")
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        raise not_found()
    access = Access(request.user, vhost)
    try:
        access.check("read", "exchange", exchange.name)
        access.check_topic("read", exchange, request.query.get("routing_key", "#"))
    except AmqpError as error:
        raise of_amqp(error) from None
    kind = exchange.inner.type if isinstance(exchange, DelayedExchange) else exchange.type
    if kind not in COPIED:
        raise bad_request(f"an exchange of the type {kind} would route otherwise with one more binding")
    _admit(api)
    watched = Watched(vhost, exchange, _limit(request))
    return Stream(EVENTS, _copied(api, watched, request.query.get("routing_key"), Show(request, TRUNCATE)))


class Watched(Follower):
    """A tap at an exchange, from `open` to `close`."""

    def __init__(self, vhost: VHost, exchange: Exchange, limit: int) -> None:
        self.tap = Tap(limit)
        self.exchange = exchange
        self._vhost = vhost
        self._queue: Queue | None = None

    @property
    def is_over(self) -> bool:
        return self.tap.closed or self._vhost.exchanges.get(self.exchange.name) is not self.exchange

    def open(self) -> None:
        self._queue = self._vhost.make_reply_queue()
        self._queue.consume(self.tap)
        self._vhost.followers.setdefault(self.exchange, []).append(self)
        self.follow()

    def _others(self) -> list[Binding]:
        """Without those of taps."""
        hidden = self._vhost.reply_queues
        return [one for one in self.exchange.bindings() if one.destination.name not in hidden]

    def follow(self) -> None:
        """Has the bindings that others have. (What others have no more it has lost at once: `unbound`.)"""
        queue = self._queue
        assert queue is not None, "kept by: it is open"
        for one in self._others()[:BINDINGS_MAX]:
            if not self.exchange.is_bound(queue, one.binding_key, one.arguments):
                self._vhost.bind(self.exchange, queue, one.binding_key, one.arguments)

    def unbound(self, binding: Binding) -> None:
        queue, of = self._queue, identity(binding.arguments)
        if queue is None or binding.destination.name in self._vhost.reply_queues:
            return
        for one in self._others():
            if one.binding_key == binding.binding_key and identity(one.arguments) == of:
                return
        self.exchange.unbind(queue, binding.binding_key, binding.arguments)

    def close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is None:
            return
        followers = self._vhost.followers.get(self.exchange, [])
        if self in followers:
            followers.remove(self)
        if not followers:
            self._vhost.followers.pop(self.exchange, None)
        for binding in list(queue.incoming):
            assert isinstance(binding, Binding), "kept by: Exchange.bind"
            self._vhost.unbind(binding.source, queue, binding.binding_key, binding.arguments)
        queue.cancel(self.tap)
        self._vhost.delete_reply_queue(queue)


async def _copied(api: Api, watched: Watched, key: str | None, show: Show) -> AsyncGenerator[bytes | None, None]:
    ticks = _ticks(api)
    try:
        watched.open()
        async for tick in ticks:
            yield tick or None
            if tick:
                continue
            if watched.is_over:
                yield event("end", {"reason": "deleted"})
                return
            watched.follow()
            messages, unseen = watched.tap.take()
            rows = [content_row(content_of(shown(one), show.cut), show) for one in messages]
            sizes = [{"payload_bytes": int(one.body_size)} for one in messages]
            items = [one | size for one, size in zip(rows, sizes, strict=True) if key in (None, one["routing_key"])]
            if items or unseen:
                yield event("messages", {"items": items, "unseen": unseen, "mode": "copied"})
    finally:
        watched.close()
        api.admin.commit()
        await ticks.aclose()


