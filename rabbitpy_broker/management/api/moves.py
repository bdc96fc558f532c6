"""Deleting, moving, copying and retrying chosen messages: /queues/V/Q/messages/{delete,move,copy,retry,replace}.

Each message goes from its queue and comes to its target in one epoch of the journal (queues/moving.py). An answer comes when all
that was done is on disk. What is unacked, has gone, or would be refused by its target is left as it is, and told.

Whoever may get from the queue may delete; a move needs the right to write to the exchange that the target is published to, the
default exchange for a queue. The `user_id` of a message stays what it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from mypy_extensions import i64

from rabbitpy_broker.errors import AmqpError, ChannelClosed
from rabbitpy_broker.management.api.browse import (
    address,
    cursor,
    deaths,
    properties,
    readable_queue,
)
from rabbitpy_broker.management.api.errors import ApiError, bad_request, no_such, of_amqp
from rabbitpy_broker.management.api.messages import payload_of
from rabbitpy_broker.management.api.properties import header_payload
from rabbitpy_broker.management.api.request import Request, Row, flag, need, text
from rabbitpy_broker.management.api.selecting import Chosen, Slice, Walk, milliseconds, single
from rabbitpy_broker.management.api.shapes import exchange_name
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol.access import Access
from rabbitpy_broker.queues import moving
from rabbitpy_broker.queues.browse import READY, Seen
from rabbitpy_broker.queues.dead_letter import address_of
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_host import HostedQueue
from rabbitpy_broker.storage.sync import EpochWaiter
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.edit_header import (
    blind_keys,
    join_table,
    raw_headers,
    split_table,
    texts,
    with_headers,
)
from rabbitpy_broker.wire.field_table import encode_value
from rabbitpy_broker.wire.properties import MALFORMED, PERSISTENT, check_header

TIMEOUT_MS: Final = 30_000
TIMEOUT_MAX_MS: Final = 600_000
SKIPPED_TOLD: Final = 1_000
RETRIES: Final = "x-retry-count"
MOVED: Final = "x-moved"
EVERYTHING: Final = 1 << 40

# What is to be done with a message: "" when it is done, else why it was not. With `dry` only the reason is found.
Deed = Callable[[Seen, bool], str]


class Settled(EpochWaiter):
    """Waits until the epoch that is filling is on disk."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        if not self.outcome.done():
            self.outcome.set_result(ok)


async def settled(vhost: VHost) -> None:
    """Returns when all that was done up to now is on disk. Raises ApiError 503 when that failed; it is tried again then."""
    waiter = Settled()
    vhost.syncs.wait(waiter)
    if not await waiter.outcome:
        raise ApiError(503, "service_unavailable", "it is done, but could not be written yet: the disk fails")


class Work:
    """What is done with the chosen messages of one queue, and what came of it."""

    def __init__(self, api: Api, request: Request, vhost: VHost, queue: Queue) -> None:
        self.body = request.json()
        self.matched = self.done = self.scanned = 0
        self.skipped: list[Row] = []
        self.skipped_count = 0
        self.complete = True
        self.at: str | None = None
        self._api = api
        self._request = request
        self._vhost = vhost
        self._queue = queue
        self._name = api.browser.name_of(queue)
        self._dry = flag(self.body, "dry_run")
        self._chosen = Chosen(api, queue, self.body)
        self._seconds = milliseconds(self.body.get("timeout_ms"), TIMEOUT_MS, TIMEOUT_MAX_MS) / 1000

    async def run(self, deed: Deed, *, whole: bool) -> Row:
        """Does it to each. `whole`: it needs the whole message."""
        fault: object = None
        try:
            if self._chosen.positions is not None:
                await self._run_positions(deed, whole=whole)
            else:
                await self._run_filter(deed, whole=whole)
        except ApiError as error:
            if not self.done:
                raise
            fault, self.complete = error.body, False
        finally:
            await self._chosen.close()
            if self.done and not self._dry:
                told = {"matched": self.matched, "done": self.done, "skipped": self.skipped_count}
                self._request.details.update(told)
        if self.done and not self._dry:
            await settled(self._vhost)
        return {
            "matched": self.matched,
            "done": self.done,
            "skipped": self.skipped,
            "skipped_count": self.skipped_count,
            "scanned": self.scanned,
            "complete": self.complete,
            "at": self.at,
            "dry_run": self._dry,
            **({} if fault is None else {"fault": fault}),
        }

    async def _run_positions(self, deed: Deed, *, whole: bool) -> None:
        deadline = time.monotonic() + self._seconds
        pause = Slice()
        positions = self._chosen.positions or []
        for number, position in enumerate(positions):
            if time.monotonic() > deadline:
                self.complete = False
                for lane, seq_id in positions[number:]:
                    self._skip(f"{self._name}.{lane}.{seq_id}", seq_id, "there was no time for it")
                return
            self.scanned += 1
            seen = await single(self._api, self._queue, position, -1 if whole else 0)
            if seen is None:
                self._skip(f"{self._name}.{position[0]}.{position[1]}", position[1], moving.GONE)
            else:
                self._do(deed, seen, whole=whole)
            await pause.over()

    async def _run_filter(self, deed: Deed, *, whole: bool) -> None:
        where = self._chosen.where
        cut = -1 if whole else where.body_bytes if where is not None else 0
        deadline = time.monotonic() + self._seconds
        walk = Walk(self._api, self._queue, where, start=self._chosen.after, forward=True, cut=cut, deadline=deadline)
        found = walk.found(ready=True, unacked=True, max_scan=EVERYTHING, up_to=self._chosen.up_to)
        done = 0
        async with aclosing(found) as walked:
            async for seen in walked:
                if seen is not None:
                    self._do(deed, seen, whole=whole)
                elif self.done > done and not self._dry:  # no more is on its way to the disk than a page
                    done = self.done
                    await settled(self._vhost)
        self.scanned = walk.scanned
        self.complete = walk.end == "end"
        if walk.at is not None:
            self.at = f"{self._name}.{walk.at[0]}.{walk.at[1]}"

    def _do(self, deed: Deed, seen: Seen, *, whole: bool) -> None:
        self.matched += 1
        if self._queue.deleted:
            reason = moving.GONE
        elif seen.state != READY:
            reason = "unacked"
        elif whole and seen.content is None:
            reason = f"damaged: {seen.damaged}"
        else:
            reason = deed(seen, self._dry)
        if reason:
            self._skip(cursor(self._name, seen), int(seen.seq_id), reason)
        else:
            self.done += 1

    def _skip(self, position: str, seq_id: int, reason: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < SKIPPED_TOLD:
            self.skipped.append({"cursor": position, "seq": seq_id, "reason": reason})


def changeable_queue(api: Api, request: Request) -> tuple[VHost, Queue]:
    """As `readable_queue`, of what may be taken from: not from another connection's exclusive queue."""
    vhost, queue = readable_queue(api, request)
    if queue.stream:
        raise bad_request(f"'{queue.name}' is a stream: its messages stay")
    try:
        vhost.queue(queue.name, None)
    except ChannelClosed as error:
        raise of_amqp(error) from None
    return vhost, queue


# -- delete ---------------------------------------------------------------------------------------------------------


async def delete(api: Api, request: Request) -> Row:
    vhost, queue = changeable_queue(api, request)
    return await Work(api, request, vhost, queue).run(_deleting(queue), whole=False)


async def delete_one(api: Api, request: Request) -> Row:
    """DELETE of one message."""
    request.body = b"{}"
    vhost, queue = changeable_queue(api, request)
    position = api.browser.position(api.browser.name_of(queue), request.names["position"])
    seen = await single(api, queue, position, 0)
    reason = moving.GONE if seen is None else _deleting(queue)(seen, False) if seen.state == READY else "unacked"
    if reason:
        raise no_such(reason)
    await settled(vhost)
    return {"done": 1}


def _deleting(queue: Queue) -> Deed:
    def deed(seen: Seen, dry: bool) -> str:
        if dry:
            return ""
        return "" if moving.remove(queue, seen.lane, {int(seen.seq_id): seen.in_delta}) else moving.GONE

    return deed


# -- move and copy --------------------------------------------------------------------------------------------------


async def move(api: Api, request: Request) -> Row:
    return await _to_target(api, request, leaves=True)


async def copy(api: Api, request: Request) -> Row:
    return await _to_target(api, request, leaves=False)


async def _to_target(api: Api, request: Request, *, leaves: bool) -> Row:
    vhost, queue = changeable_queue(api, request) if leaves else readable_queue(api, request)
    work = Work(api, request, vhost, queue)
    (to,) = need(work.body, "to")
    find = _target(request, vhost, to)
    mark = _mark(api, request, queue, to) if flag(work.body, "mark") else None

    def deed(seen: Seen, dry: bool) -> str:
        message = whole(seen)
        payload = message.header_payload()
        if mark is not None:
            payload = mark(payload)
        targets, published = find(message, payload, moving.is_persistent(queue, message))
        return _deed(queue, vhost, seen, published, targets, dry=dry, leaves=leaves)

    return await work.run(deed, whole=True)


def _deed(
    queue: Queue, vhost: VHost, seen: Seen, published: Message, targets: list[HostedQueue], *, dry: bool, leaves: bool
) -> str:
    if dry:
        return moving.refusal(targets, published, queue if leaves else None)
    if leaves:
        return moving.move(queue, seen.lane, seen.seq_id, seen.in_delta, published, targets, vhost.syncs)
    reason = moving.refusal(targets, published, None)
    if not reason:
        moving.publish(targets, published)
    return reason


def whole(seen: Seen) -> Message:
    content = seen.content
    assert content is not None and content.message is not None, "kept by: Work._do"  # noqa: PT018
    return content.message


def _target(request: Request, vhost: VHost, to: Any) -> Callable[[Message, bytes, bool], tuple[list[HostedQueue], Message]]:
    """Finds the queues for a message that is published to `{"queue": name}`, as it was addressed, or to `{"exchange": name,
    "routing_key": key}`, its own key if none is given. Raises ApiError 400, 401 and 404.
    """
    if not isinstance(to, dict) or ("queue" in to) == ("exchange" in to):
        raise bad_request("to has a queue or an exchange")
    access = Access(request.user, vhost)
    if "queue" in to:
        name = text(to, "queue")
        check_write(access, vhost, "")
        if name not in vhost.queues:
            raise no_such(f"no queue '{name}' in vhost '{vhost.name}'")

        def to_queue(message: Message, payload: bytes, persistent: bool) -> tuple[list[HostedQueue], Message]:
            target = vhost.queues.get(name)
            return [target] if target is not None else [], moving.copy_of(message, payload, message.address, persistent)

        return to_queue
    exchange = exchange_name(text(to, "exchange"))
    check_write(access, vhost, exchange)
    given = text(to, "routing_key", "")
    if len(given.encode()) > 255:
        raise bad_request(["not_string", "routing_key"])

    def to_exchange(message: Message, payload: bytes, persistent: bool) -> tuple[list[HostedQueue], Message]:
        keys = [given or address(message.address)[1], *further_keys(message)]
        return addressed(vhost, message, payload, persistent, exchange, keys)

    return to_exchange


def addressed(
    vhost: VHost, message: Message, payload: bytes, persistent: bool, exchange: str, keys: list[str]
) -> tuple[list[HostedQueue], Message]:
    """The queues for a message that is published to an exchange with these keys, and the message as it is published."""
    published = moving.copy_of(message, payload, address_of(exchange, keys[0]), persistent)
    return vhost.find_queues(published, exchange, keys), published


def further_keys(message: Message) -> list[str]:
    """Those of CC and BCC."""
    headers = split_table(raw_headers(message.header_payload()))
    return [*texts(headers.get("CC", b"")), *blind_keys(message)]


def check_write(access: Access, vhost: VHost, exchange: str, key: str | None = None) -> None:
    """Raises ApiError 401 where the user may not publish, 404 without such an exchange."""
    try:
        access.check("write", "exchange", exchange)
        found = vhost.exchange(exchange) if exchange else None
        if found is not None and found.internal:
            raise bad_request(f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'")
        if found is not None and key is not None:
            access.check_topic("write", found, key)
    except AmqpError as error:
        raise of_amqp(error) from None


def _mark(api: Api, request: Request, queue: Queue, to: Any) -> Callable[[bytes], bytes]:
    """Adds a record of the move to the headers, the newest first."""
    target = f"queue {to['queue']}" if "queue" in to else f"exchange {to['exchange']}"

    def mark(payload: bytes) -> bytes:
        headers = split_table(raw_headers(payload))
        now_s = int(queue.host.now_ms()) // 1000
        entry = {"from": encode_value(queue.name), "to": encode_value(target), "by": encode_value(request.user.name)}
        raw = join_table({**entry, "at": b"T" + now_s.to_bytes(8, "big")})
        before = headers.get(MOVED, b"")
        others = before[5:] if before[:1] == b"A" else b""
        array = b"F" + len(raw).to_bytes(4, "big") + raw + others
        headers[MOVED] = b"A" + len(array).to_bytes(4, "big") + array
        return with_headers(payload, join_table(headers))

    return mark


# -- retry ----------------------------------------------------------------------------------------------------------


async def retry(api: Api, request: Request) -> Row:
    """Dead letters back to where they came from: the queue in which they died, or the exchange that they had been published to.

    `"by": "queue"` or `"exchange"`; `"death": "last"` or `"first"`. Each retry counts the header x-retry-count.
    """
    vhost, queue = changeable_queue(api, request)
    work = Work(api, request, vhost, queue)
    by, which = text(work.body, "by", "queue"), text(work.body, "death", "last")
    if by not in ("queue", "exchange") or which not in ("last", "first"):
        raise bad_request("by is queue or exchange, death is last or first")
    access = Access(request.user, vhost)

    def deed(seen: Seen, dry: bool) -> str:
        record = deaths(properties(seen.content)) if seen.content is not None else []
        if not record:
            return "it has no record of a death"
        found = _origin(vhost, access, whole(seen), queue, record[0 if which == "last" else -1], by)
        if isinstance(found, str):
            return found
        targets, published = found
        return _deed(queue, vhost, seen, published, targets, dry=dry, leaves=True)

    return await work.run(deed, whole=True)


def _origin(
    vhost: VHost, access: Access, message: Message, queue: Queue, death: Row, by: str
) -> tuple[list[HostedQueue], Message] | str:
    """The queues that a dead letter goes back to, and the message; or why it does not."""
    payload = counted(message.header_payload())
    persistent = moving.is_persistent(queue, message)
    keys = [*death["routing_keys"]] or [""]
    exchange = str(death["exchange"])
    try:
        check_write(access, vhost, exchange if by == "exchange" else "", keys[0])
    except ApiError as error:
        return str(error.body["reason"]) if error.body is not None else str(error)
    if by == "exchange":
        return addressed(vhost, message, payload, persistent, exchange, keys)
    target = vhost.queues.get(death["queue"])
    if target is None:
        return f"no queue '{death['queue']}' in vhost '{vhost.name}'"
    return [target], moving.copy_of(message, payload, address_of(exchange, keys[0]), persistent)


def counted(payload: bytes) -> bytes:
    """With one more retry in x-retry-count."""
    headers = split_table(raw_headers(payload))
    before = headers.get(RETRIES, b"")
    tries = int.from_bytes(before[1:], "big", signed=True) if before[:1] in (b"l", b"I", b"s", b"b") else 0
    headers[RETRIES] = b"l" + min(tries + 1, (1 << 63) - 1).to_bytes(8, "big", signed=True)
    return with_headers(payload, join_table(headers))


# -- edit and publish -----------------------------------------------------------------------------------------------


async def replace(api: Api, request: Request) -> Row:
    """Publishes an edited message in the place of one that is removed, both in one epoch.

    To the default exchange and this queue, if the body names no exchange; `remove` false leaves the old one where it is.
    """
    vhost, queue = changeable_queue(api, request)
    body = request.json()
    given, payload, encoding = need(body, "properties", "payload", "payload_encoding")
    exchange = exchange_name(text(body, "exchange", ""))
    key = text(body, "routing_key", queue.name if not exchange else None)
    if len(key.encode()) > 255:
        raise bad_request(["not_string", "routing_key"])
    check_write(Access(request.user, vhost), vhost, exchange, key)
    content = payload_of(payload, encoding)
    if len(content) > api.broker.node.limits.max_message_size:
        raise bad_request("the payload is larger than max_message_size")
    message = made(header_payload(given, len(content)), content, address_of(exchange, key))
    if isinstance(given, dict) and given.get("user_id", request.user.name) != request.user.name:
        raise bad_request("user_id is not the name of who publishes")
    position = api.browser.position(api.browser.name_of(queue), request.names["position"])
    removes = flag(body, "remove", default=True)
    seen = await single(api, queue, position, 0)
    if removes and (seen is None or seen.state != READY):
        raise no_such(moving.GONE)
    keys = [key, *further_keys(message)]
    targets, published = addressed(vhost, message, message.header_payload(), message.persistent, exchange, keys)
    reason = _replace(queue, vhost, seen if removes else None, published, targets)
    if reason:
        raise bad_request(reason)
    await settled(vhost)
    return {"routed": True, "removed": removes}


def _replace(queue: Queue, vhost: VHost, seen: Seen | None, published: Message, targets: list[HostedQueue]) -> str:
    if seen is None:
        reason = moving.refusal(targets, published, None)
        if not reason:
            moving.publish(targets, published)
        return reason
    return moving.move(
        queue, seen.lane, seen.seq_id, seen.in_delta, published, targets, vhost.syncs, to_itself=True
    )


def made(header: bytes, content: bytes, where: bytes) -> Message:
    """A message of these parts. Raises ApiError 400."""
    mode = check_header(header, 0, len(header))
    if mode == MALFORMED:
        raise bad_request("properties cannot be encoded")
    framed = len(header).to_bytes(4, "big") + header + b"\xce"
    body = b"\x03\x00\x00" + len(content).to_bytes(4, "big") + content + b"\xce" if content else b""
    message = Message(where, framed + body, len(framed), mode & PERSISTENT != 0)
    message.has_bcc = b"\x03BCC" in header
    return message


