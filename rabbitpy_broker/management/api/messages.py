"""Publishing one message, and getting some: /exchanges/V/X/publish, /queues/V/Q/get, /aliveness-test/V.

A publish is answered when it is confirmed, as it would be over AMQP. What is got is taken from the queue: it is acked, rejected
or put back when all are taken, and put back means marked as redelivered.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import time
from typing import Any, Final

from rabbitpy_broker.errors import ACCESS_REFUSED, NOT_ALLOWED, NOT_FOUND, REPLY_NAMES, AmqpError
from rabbitpy_broker.management.api.acting import act, channel_of
from rabbitpy_broker.management.api.errors import (
    ApiError,
    bad_request,
    code_and_text,
    no_such,
    not_authorised,
)
from rabbitpy_broker.management.api.properties import header_payload, properties_of
from rabbitpy_broker.management.api.request import Request, Row, integer, need, vhost_or_404
from rabbitpy_broker.management.api.shapes import exchange_name
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol.basic_methods import Taken, take
from rabbitpy_broker.protocol.channel import REJECT, REQUEUE, Channel
from rabbitpy_broker.protocol.output import Transport
from rabbitpy_broker.protocol.queue_methods import declare
from rabbitpy_broker.questions import AnswerAwaited
from rabbitpy_broker.slices import SLICE_S
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.edit_header import shown_header
from rabbitpy_broker.wire.field_table import FieldTable
from rabbitpy_broker.wire.properties import MALFORMED, PERSISTENT, TO_CHECK, check_header

CONFIRM_WAIT_S: Final = 60.0  # where only a consumer's ack confirms, it may never come
RETURN: Final = b"\x00\x3c\x00\x32"
ACK: Final = b"\x00\x3c\x00\x50"
NACK: Final = b"\x00\x3c\x00\x78"
ALIVENESS: Final = "aliveness-test"
AFTERWARDS: Final = {  # what becomes of what was got
    "ack_requeue_true": REQUEUE,
    "ack_requeue_false": None,
    "reject_requeue_true": REQUEUE,
    "reject_requeue_false": REJECT,
}


class Fate(Transport):
    """Reads from a channel's output what has become of its one publish."""

    def __init__(self) -> None:
        self.is_returned = False
        self.is_confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            method = data[at + 7 : at + 11] if data[at] == 1 else b""
            if method == RETURN:
                self.is_returned = True
            elif method in (ACK, NACK) and not self.is_confirmed.done():
                self.is_confirmed.set_result(method == ACK)
            at += 8 + int.from_bytes(data[at + 3 : at + 7], "big")

    def close(self) -> None:
        pass

    def reading_wanted(self, wanted: bool) -> None:
        pass

    def unsent(self) -> int:
        return 0

    def set_timer(self, seconds: float) -> None:
        pass


# -- publish ---------------------------------------------------------------------------------------------------------


async def publish(api: Api, request: Request) -> Row:
    body = request.json()
    properties, key, payload, encoding = need(body, "properties", "routing_key", "payload", "payload_encoding")
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    content = payload_of(payload, encoding)
    header = header_payload(properties, len(content))
    return {"routed": await _publish(api, request, vhost, exchange_name(request.names["exchange"]), key, header, content)}


def payload_of(payload: Any, encoding: Any) -> bytes:
    """The bytes that a payload stands for. Raises ApiError 400."""
    if encoding not in ("string", "base64"):
        raise bad_request(["unsupported_encoding", encoding])
    if not isinstance(payload, str):
        raise bad_request("payload_not_string")
    if encoding == "string":
        return payload.encode("utf-8")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(["not_base64", payload]) from None


async def _publish(
    api: Api, request: Request, vhost: VHost, exchange: str, key: Any, header: bytes, content: bytes
) -> bool:
    """Whether it was routed, when it is confirmed. Raises ApiError."""
    names = [name.encode("utf-8") for name in (exchange, str(key))]
    if any(len(name) > 255 for name in names):
        raise bad_request(["not_string", "routing_key"])
    if len(content) > api.broker.node.limits.max_message_size:
        raise bad_request("the payload is larger than max_message_size")
    fate = Fate()
    with channel_of(api, request, vhost, fate, confirms=True) as channel:
        try:
            _publish_on(channel, b"".join(bytes([len(name)]) + name for name in names), header, content)
        except AmqpError as error:
            raise bad_request(code_and_text(error)) from None
        try:
            async with asyncio.timeout(CONFIRM_WAIT_S):
                confirmed = await fate.is_confirmed
        except TimeoutError:
            raise ApiError(503, "service_unavailable", "the message is published, and not confirmed yet") from None
    if not confirmed:
        raise bad_request("rejected Unable to publish message. Check queue limits.")
    return not fate.is_returned


def _publish_on(channel: Channel, address: bytes, header: bytes, content: bytes) -> None:
    """What a connection does with a basic.publish, mandatory. Raises AmqpError."""
    mode = check_header(header, 0, len(header))
    if mode == MALFORMED:
        raise bad_request("properties cannot be encoded")
    framed = len(header).to_bytes(4, "big") + header + b"\xce"
    body = b"\x03\x00\x00" + len(content).to_bytes(4, "big") + content + b"\xce" if content else b""
    route = channel.access.route(address)
    message = Message(route.address, framed + body, len(framed), mode & PERSISTENT != 0)
    if mode & TO_CHECK:
        channel.publish_checked(route, message, True)
    else:
        channel.publish(route, message, True)


# -- get -------------------------------------------------------------------------------------------------------------


async def get(api: Api, request: Request) -> list[Row]:
    body = request.json()
    count, mode, encoding = need(body, "count", "ackmode", "encoding")
    count = integer(count)
    cut = integer(body["truncate"]) if "truncate" in body else None
    if mode not in AFTERWARDS:
        raise bad_request(["unsupported_ackmode", mode])
    if encoding not in ("auto", "base64"):
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    with channel_of(api, request, vhost) as channel:
        return await _get_on(channel, request.names["queue"], count, AFTERWARDS[mode], encoding, cut)


async def _get_on(
    channel: Channel, queue: str, count: int, afterwards: int | None, encoding: str, cut: int | None
) -> list[Row]:
    """A negative count is all that there are."""
    rows: list[Row] = []
    ends_at = time.perf_counter() + SLICE_S
    try:
        while len(rows) != count:
            taken = take(channel, queue, afterwards is None)
            if taken is None:
                break
            rows.append(_row(taken, encoding, cut))
            if time.perf_counter() > ends_at:
                await asyncio.sleep(0)
                ends_at = time.perf_counter() + SLICE_S
    except AnswerAwaited:  # another node may own the vhost by now; what has been taken is answered, since it may be acked
        if not rows:
            raise
    except AmqpError as error:
        raise _refused_get(error) from None
    if afterwards is not None:
        channel.settle_now(channel.deliveries.unacked.take_all(), afterwards)
    return rows


def _refused_get(error: AmqpError) -> ApiError:
    named = f"{REPLY_NAMES.get(error.code, '')} - {error.text}"
    if error.code == NOT_FOUND:
        return no_such(named)
    if error.code in (ACCESS_REFUSED, NOT_ALLOWED):
        return not_authorised(named)
    return bad_request(code_and_text(error))


def _row(taken: Taken, encoding: str, cut: int | None) -> Row:
    message = taken.message
    exchange_size = message.address[0]
    body = message.body()
    shown = body if cut is None else body[: max(cut, 0)]
    payload, how = _shown(shown, encoding)
    return {
        "payload_bytes": len(body),
        "redelivered": bool(taken.redelivered),
        "exchange": message.address[1 : 1 + exchange_size].decode("utf-8"),
        "routing_key": message.address[2 + exchange_size :].decode("utf-8"),
        "message_count": int(taken.left),
        "properties": properties_of(shown_header(message)),
        "payload": payload,
        "payload_encoding": how,
    }


def _shown(payload: bytes, encoding: str) -> tuple[str, str]:
    """As a text if it is one and may be, else as base64."""
    if encoding == "auto":
        with contextlib.suppress(UnicodeDecodeError):
            return payload.decode("utf-8"), "string"
    return base64.b64encode(payload).decode("ascii"), "base64"


# -- the aliveness test ----------------------------------------------------------------------------------------------


async def aliveness(api: Api, request: Request) -> Row:
    """A message on its way through a queue of this vhost, which stays."""
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    flags: Row = {"passive": False, "durable": False, "exclusive": False, "auto_delete": False}
    act(api, request, vhost, declare, "Queue.Declare", queue=ALIVENESS, arguments=FieldTable(), **flags)
    payload = b"test_message"
    await _publish(api, request, vhost, "", ALIVENESS, header_payload({}, len(payload)), payload)
    with channel_of(api, request, vhost) as channel:
        rows = await _get_on(channel, ALIVENESS, 1, None, "auto", None)
    return {"status": "ok" if rows else "failed"}
