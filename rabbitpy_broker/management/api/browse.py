"""Looking at messages where they are: /queues/V/Q/messages, one of them, and what a delayed message exchange keeps.

Nothing is taken from the queue and nothing about it changes (queues/browse.py). Whoever may get messages from a queue may look
at them; at those of another connection's exclusive queue administrators only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any, Final

import msgspec

from rabbitpy_broker.errors import ChannelClosed
from rabbitpy_broker.management.api.browser import Position
from rabbitpy_broker.management.api.errors import bad_request, no_such, not_found, of_amqp
from rabbitpy_broker.management.api.properties import properties_of
from rabbitpy_broker.management.api.request import Answer, Request, Row, Stream, integer, vhost_or_404
from rabbitpy_broker.management.api.shapes import exchange_name
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.api.stream import start_of
from rabbitpy_broker.protocol.access import Access
from rabbitpy_broker.protocol.deliveries import ChannelConsumer, Getter
from rabbitpy_broker.queues.browse import DelayedBrowse, Seen
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES, CONSUMER_ACK_LIGHT
from rabbitpy_broker.queues.stream_browse import browsing, newest
from rabbitpy_broker.routing.delayed import DelayedExchange
from rabbitpy_broker.slices import SLICE_S
from rabbitpy_broker.storage.peek import Content
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.edit_header import without_header
from rabbitpy_broker.wire.properties import HEADERS, find_property

LIMIT_MAX: Final = 500
LIMIT: Final = 50
TRUNCATE: Final = 65_536
PAGE_BYTES: Final = 6_291_456  # of bodies: in base64 they make an answer of 8 MiB
STATES: Final = {"ready": (True, False), "unacked": (False, True), "all": (True, True)}


# -- who may --------------------------------------------------------------------------------------------------------


def readable_queue(api: Api, request: Request) -> tuple[VHost, Queue]:
    """The queue that the path names, if its messages may be looked at. Raises ApiError 401, 404, and 400 as basic.get would."""
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    queue = vhost.queues.get(request.names["queue"])
    if queue is None:
        raise not_found()
    try:
        Access(request.user, vhost).check("read", "queue", queue.name)
        if queue.owner is not None and not request.is_administrator:
            vhost.queue(queue.name, None)
    except ChannelClosed as error:
        raise of_amqp(error) from None
    return vhost, queue


# -- what is asked for ----------------------------------------------------------------------------------------------


class Page:
    """A page as it is asked for: what comes behind `after` or before `before`, in the order of the queue or, `reverse`, against
    it.
    """

    def __init__(self, request: Request) -> None:
        query = request.query
        self.states = STATES.get(query.get("state", "all"))
        if self.states is None:
            raise bad_request("state is ready, unacked or all")
        if query.get("order", "head") not in ("head", "tail"):
            raise bad_request("order is head or tail")
        self.reverse = query.get("order") == "tail"
        self.limit = integer(query.get("limit", LIMIT))
        if not 1 <= self.limit <= LIMIT_MAX:
            raise bad_request(f"limit is from 1 to {LIMIT_MAX}")
        self.after, self.before = query.get("after", ""), query.get("before", "")
        if self.after and self.before:
            raise bad_request("a page comes after a position or before one")
        self.show = Show(request)

    @property
    def forward(self) -> bool:
        """Whether the queue is walked in its order."""
        return self.reverse == bool(self.before)


class Show:
    """How bodies are shown."""

    def __init__(self, request: Request, cut: int = TRUNCATE) -> None:
        self.encoding = request.query.get("encoding", "auto")
        if self.encoding not in ("auto", "base64"):
            raise bad_request("Unsupported encoding. Please use auto or base64.")
        self.cut = min(integer(request.query.get("truncate", cut)), PAGE_BYTES)
        if self.cut < 0:
            raise bad_request(["not_natural", "truncate"])


# -- answers --------------------------------------------------------------------------------------------------------


async def messages(api: Api, request: Request) -> Answer:
    """A page of messages."""
    vhost, queue = readable_queue(api, request)
    page = Page(request)
    name = api.browser.name_of(queue)
    given = page.after or page.before
    start = api.browser.position(name, given) if given else None
    if start is None:
        offset = start_of(request, queue, forward=page.forward)
        if offset is not None:
            start = 0, offset
            given = f"{name}.0.{max(offset, 0)}"
    ready, unacked = page.states or (True, True)
    now_ms = int(vhost.clock().now_ms())
    head: Row = {
        "ready": int(queue.ready_count()),
        "unacknowledged": int(queue.backing.unacked),
        "as_of": now_ms,
        "end": end_of(api, queue),
    }
    if queue.settings.confirm_mode == CONSUMER_ACK_LIGHT:  # what is handed out is known no more
        head["confirm_mode"] = CONFIRM_MODES[CONSUMER_ACK_LIGHT]
        head["publishes_waiting"] = int(queue.backing.publishes_waiting())
    browse = browsing(
        queue, api.browser.peeks, start, page.forward, page.limit,
        ready=ready, unacked=unacked, cut=page.show.cut, most_bytes=PAGE_BYTES,
    )  # fmt: skip
    async with api.browser.turn():
        await api.browser.run(browse)
    return await _page(page, browse.found, browse.more, name, head, given, now_ms)


async def _page(
    page: Page, found: list[Seen], more: bool, name: str, head: Row, given: str, now_ms: int
) -> Answer:
    if page.before:
        found.reverse()
    first = cursor(name, found[0]) if found else given
    last = cursor(name, found[-1]) if found else given
    head["previous"] = first if (more if page.before else given) else None
    head["next"] = last if (given if page.before else more) else None
    parts = [b'{"items":[']
    async for encoded in encoded_rows(found, name, page.show, now_ms):
        parts += [encoded] if len(parts) == 1 else [b",", encoded]
    return Answer(200, [*parts, b"],", msgspec.json.encode(head)[1:]])


async def encoded_rows(found: Iterable[Seen], name: str, show: Show, now_ms: int) -> AsyncIterator[bytes]:
    """The JSON of each, a slice at a time."""
    ends_at = time.perf_counter() + SLICE_S
    for seen in found:
        if time.perf_counter() > ends_at:
            await asyncio.sleep(0)
            ends_at = time.perf_counter() + SLICE_S
        yield msgspec.json.encode(row(seen, name, show, now_ms))


async def message(api: Api, request: Request) -> Row | Stream:
    """One message; with `raw=1` its whole body, for a browser to save."""
    vhost, queue = readable_queue(api, request)
    name = api.browser.name_of(queue)
    if request.query.get("raw") == "1":
        position = api.browser.position(name, request.names["position"])
        seen = await find(api, queue, position, -1)
        if seen.content is None:
            raise no_such(seen.damaged)
        headers = {"Content-Disposition": f'attachment; filename="message-{position[0]}-{position[1]}.bin"'}
        return Stream("application/octet-stream", _parts(seen.content.body), headers)
    show = Show(request)
    seen = await find(api, queue, api.browser.position(name, request.names["position"]), show.cut)
    return row(seen, name, show, int(vhost.clock().now_ms()))


async def _parts(body: bytes) -> AsyncGenerator[bytes | None, None]:
    for at in range(0, len(body), TRUNCATE):
        yield body[at : at + TRUNCATE]


async def find(api: Api, queue: Queue, position: Position, cut: int) -> Seen:
    """The message at a position. Raises ApiError 404 when it has gone."""
    lane, seq_id = position
    browse = browsing(queue, api.browser.peeks, (lane, seq_id - 1), True, 1, cut=cut)
    async with api.browser.turn():
        await api.browser.run(browse)
    if not browse.found or (int(browse.found[0].lane), int(browse.found[0].seq_id)) != position:
        raise not_found()
    return browse.found[0]


async def delayed(api: Api, request: Request) -> Answer:
    """A page of what waits behind a delayed message exchange, in the order in which it is due. Whoever may bind to the exchange
    may look.
    """
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    exchange = vhost.exchanges.get(exchange_name(request.names["exchange"]))
    if exchange is None:
        raise not_found()
    try:
        Access(request.user, vhost).check("read", "exchange", exchange.name)
    except ChannelClosed as error:
        raise of_amqp(error) from None
    if not isinstance(exchange, DelayedExchange) or exchange.delay_queue is None:
        raise bad_request("the exchange is no delayed message exchange")
    page = Page(request)
    if page.before or page.reverse:
        raise bad_request("what is delayed is listed from the first that is due")
    kept = exchange.delay_queue.messages
    name = api.browser.name_of_id(kept.index.queue_id)
    start = api.browser.position(name, page.after) if page.after else None
    now_ms = int(vhost.clock().now_ms())
    head: Row = {"delayed": int(kept.unacked), "as_of": now_ms}
    browse = DelayedBrowse(kept, start, page.limit, page.show.cut, PAGE_BYTES)
    async with api.browser.turn():
        await api.browser.run(browse)
    return await _page(page, browse.found, browse.more, name, head, page.after, now_ms)


# -- rows -----------------------------------------------------------------------------------------------------------


def cursor(name: str, seen: Seen) -> str:
    return f"{name}.{int(seen.lane)}.{int(seen.seq_id)}"


def end_of(api: Api, queue: Queue) -> str:
    """The position of the newest message of each lane: what is published from now on stands behind it."""
    lanes = [f"{lane}.{seq_id}" for lane, seq_id in newest(queue).items()]
    return ".".join([api.browser.name_of(queue), *lanes])


def row(seen: Seen, name: str, show: Show, now_ms: int) -> Row:
    """A message as JSON."""
    found: Row = {
        "cursor": cursor(name, seen),
        "seq_id": int(seen.seq_id),
        "lane": int(seen.lane),
        "position": int(seen.position) if seen.position >= 0 else None,
        "state": seen.state,
        "stage": seen.stage,
        "redelivered": bool(seen.redelivered),
        "returned": seen.returned,
        "delivery_count": int(seen.requeues) if seen.requeues >= 0 else None,
        "holder": holder(seen),
        "expires_at": int(seen.expiry) or None,
        "expired": bool(0 < seen.expiry <= now_ms),
        "stored_at": int(seen.stored_ms) or None,
        "payload_bytes": int(seen.size),
        "damaged": seen.damaged or None,
    }
    return found | (NOTHING if seen.content is None else content_row(seen.content, show))


def content_row(content: Content, show: Show) -> Row:
    """What a message says."""
    payload, encoding = as_text(content.body[: show.cut], show.encoding, is_cut=len(content.body) < content.body_size)
    shown = properties(content)
    exchange, key = address(content.address)
    return {
        "exchange": exchange,
        "routing_key": key,
        "persistent": content.persistent,
        "properties": shown,
        "deaths": deaths(shown),
        "payload": payload,
        "payload_encoding": encoding,
        "truncated": min(len(content.body), show.cut) < content.body_size,
    }


NOTHING: Final[Row] = {
    "exchange": None, "routing_key": None, "persistent": None, "properties": {}, "deaths": [], "payload": None,
    "payload_encoding": None, "truncated": True,
}  # fmt: skip


def address(raw: bytes) -> tuple[str, str]:
    """Exchange and routing key."""
    split = 1 + raw[0]
    return raw[1:split].decode("utf-8", "replace"), raw[split + 1 :].decode("utf-8", "replace")


def properties(content: Content) -> Row:
    """What clients may see of them. Headers that cannot be read are left out."""
    header = content.header
    if b"\x03BCC" in header and find_property(header, HEADERS) > 0:
        header = without_header(header, b"BCC")
    try:
        return properties_of(header) or {}
    except ValueError:
        return {}


def as_text(payload: bytes, encoding: str, *, is_cut: bool) -> tuple[str, str]:
    """As a text if it is one and may be, else in base64. A text that is cut may end in the middle of a letter."""
    if encoding == "auto":
        with contextlib.suppress(UnicodeDecodeError):
            return payload.decode("utf-8"), "string"
        if is_cut:
            for less in range(1, 4):
                with contextlib.suppress(UnicodeDecodeError):
                    return payload[:-less].decode("utf-8"), "string"
    return base64.b64encode(payload).decode("ascii"), "base64"


def holder(seen: Seen) -> Row | None:
    """Who has an unacked message, and for how long at least."""
    held_by = seen.held_by
    if seen.state != "unacked":
        return None
    if not isinstance(held_by, (ChannelConsumer, Getter)):
        return {"kind": "dead_letter"}  # its letter waits for somebody to take it
    deliveries = held_by.deliveries
    now_ms = int(asyncio.get_running_loop().time() * 1000)
    return {
        "kind": "consumer" if isinstance(held_by, ChannelConsumer) else "get",
        "connection": deliveries.host.name,
        "channel": f"{deliveries.host.name} ({int(deliveries.number)})",
        "user": deliveries.user(),
        "consumer_tag": held_by.tag if isinstance(held_by, ChannelConsumer) else None,
        "delivery_tag": int(seen.delivery_tag),
        "held_at_least_s": int(deliveries.ack_marks.age(now_ms, seen.delivery_tag)) // 1000,
    }


def deaths(shown: Row) -> list[Row]:
    """The record of its deaths, the newest first; what is no entry is left out."""
    headers = shown.get("headers", {})
    entries = headers.get("x-death") if isinstance(headers, dict) else None
    found: list[Row] = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            keys = entry.get("routing-keys")
            found.append(
                {
                    "queue": _text(entry.get("queue")),
                    "reason": _text(entry.get("reason")),
                    "exchange": _text(entry.get("exchange")),
                    "routing_keys": [_text(key) for key in keys] if isinstance(keys, list) else [],
                    "count": entry.get("count"),
                    "time": entry.get("time"),
                    "original_expiration": entry.get("original-expiration"),
                }
            )
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
