"""Dead letters: messages that a queue gives up and hands on, and the record of deaths that each of them carries.

A queue hands over a message that was rejected, has expired, was one too many (maxlen) or was delivered too often
(delivery_limit). The vhost publishes it to the queue's dead-letter exchange at the end of the turn, and drops it from
the queue immediately afterwards: both are in one epoch of the journal, so a crash neither loses nor doubles it.

The record is the header x-death, newest entry first: one entry for each queue and reason, with a count. The first death
of all is kept in x-first-death-*. A publisher may have written anything there: a value that is no entry is left out,
and entries of one queue and reason become one. A message that comes back to a queue which it left before, and was
rejected nowhere on the way, goes in a circle that nobody wanted: it is dropped there.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.handover import HandedOver
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue_host import BackedQueue, HostedQueue
from rabbitpy_broker.wire.edit_header import (
    blind_keys,
    elements,
    join_table,
    raw_headers,
    split_table,
    texts,
    with_headers,
    without_property,
)
from rabbitpy_broker.wire.field_table import encode_value
from rabbitpy_broker.wire.properties import EXPIRATION, delivery_mode, short_property

_HIGHEST_COUNT: Final = (1 << 63) - 1
_SIGNED: Final = (b"b", b"s", b"I", b"l", b"L")
_UNSIGNED: Final = (b"B", b"u", b"i", b"T")


class DeadLetter:
    """One message that left `queue`; `status` is None for a message that the queue never took.

    `taken_by` are the targets that have their copy while others have to be asked again; `handed` waits for these
    copies.
    """

    def __init__(self, queue: BackedQueue, message: Message, status: MsgStatus | None, reason: str) -> None:
        self.queue = queue
        self.message = message
        self.status = status
        self.reason = reason
        self.place = status  # its place in the queue, also when its promise was handed over
        self.publish: i64 = 0  # the number of its copy in the event journal
        self.taken_by: dict[HostedQueue, None] = {}
        self.handed: HandedOver | None = None


class Death:
    """An entry of x-death: its items, and the values that are looked for in it. `of` is equal for entries of one queue and
    reason.
    """

    def __init__(self, items: dict[str, bytes]) -> None:
        self.items = items
        self.queue = _text(items.get("queue", b""))
        self.reason = _text(items.get("reason", b""))
        self.of = (_value(items.get("queue", b"")), _value(items.get("reason", b"")))


class Obituary:
    """A dead letter as it is published: the copy, its routing keys, and its deaths so far."""

    def __init__(self, message: Message, exchange: str, routing_keys: list[str], deaths: list[Death]) -> None:
        self.message = message
        self.exchange = exchange
        self.routing_keys = routing_keys
        self.deaths = deaths

    def is_circle(self, queue: str) -> bool:
        """True when the letter comes back to this queue without a reject since it left the queue."""
        for death in self.deaths:
            if death.reason == "rejected":
                return False
            if death.queue == queue:
                return True
        return False


def address_of(exchange: str, routing_key: str) -> bytes:
    """Exchange and routing key as they stand in basic.publish, cut to the 255 octets for which there is room there."""
    name, key = _short(exchange), _short(routing_key)
    return bytes([len(name)]) + name + bytes([len(key)]) + key


def _short(text: str) -> bytes:
    """The text as UTF-8 in at most 255 octets: an argument or a policy may have any length."""
    raw = text.encode("utf-8", "replace")
    return raw if len(raw) <= 255 else raw[:255].decode("utf-8", "ignore").encode("utf-8")


def split_address(address: bytes) -> tuple[str, str]:
    """The exchange and the routing key of an address that has been routed."""
    split = 1 + address[0]
    return address[1:split].decode("utf-8"), address[split + 1 :].decode("utf-8")


def write_obituary(letter: DeadLetter, exchange: str, routing_key: str | None, now_ms: i64) -> Obituary:
    """The copy of a message for the dead-letter exchange. Without `routing_key` it keeps its own, its CC and its BCC."""
    message = letter.message
    payload = message.header_payload()
    headers = split_table(raw_headers(payload))
    old_exchange, old_key = split_address(message.address)
    old_keys = [old_key, *texts(headers.get("CC", b""))]  # every consumer can read the record, so BCC is left out
    expiration = short_property(payload, EXPIRATION)
    entry: dict[str, bytes] = {
        "count": encode_value(1),
        "reason": encode_value(letter.reason),
        "queue": encode_value(letter.queue.name),
        "time": b"T" + (int(now_ms) // 1000).to_bytes(8, "big"),
        "exchange": encode_value(old_exchange),
        "routing-keys": encode_value(old_keys),
    }
    if expiration is not None:
        entry["original-expiration"] = b"S" + len(expiration).to_bytes(4, "big") + expiration
    before = headers.get("x-death", b"")
    newest = Death(entry)
    others: list[Death] = []
    for death in _grouped(_deaths(before)):
        if death.of == newest.of:
            newest = death
        else:
            others.append(death)
    if newest.items is not entry:
        newest.items["count"] = encode_value(min(_count(newest.items) + 1, _HIGHEST_COUNT))
    if before[:1] == b"A":
        newest.items = _sorted(newest.items)
    deaths = [newest, *others]
    array = b"".join([_table(death.items) for death in deaths])
    headers["x-death"] = b"A" + len(array).to_bytes(4, "big") + array
    if not before:
        for name in ("reason", "queue", "exchange"):
            headers["x-first-death-" + name] = entry[name]
    keys = [*old_keys, *blind_keys(message)]
    if routing_key is not None:
        keys = [routing_key]
        headers.pop("CC", None)
        headers.pop("BCC", None)
    changed = with_headers(without_property(payload, int(EXPIRATION)), join_table(_sorted(headers)))
    copy = message.with_header(changed)
    copy.has_bcc = message.has_bcc and routing_key is None
    if letter.queue.settings.quorum:  # which keeps every message; the next queue what is to be kept
        copy.persistent = delivery_mode(changed) == 2
    copy.address = address_of(exchange, keys[0])
    copy.expiration = -1
    return Obituary(copy, exchange, keys, deaths)


def _table(items: dict[str, bytes]) -> bytes:
    raw = join_table(items)
    return b"F" + len(raw).to_bytes(4, "big") + raw


def _sorted(items: dict[str, bytes]) -> dict[str, bytes]:
    return dict(sorted(items.items()))


def _deaths(value: bytes) -> list[Death]:
    """The entries of an x-death header; none when a client has put something else there."""
    return [Death(split_table(one[5:])) for one in elements(value) if one[:1] == b"F"]


def _grouped(deaths: list[Death]) -> list[Death]:
    """The first entry of each queue and reason; its count is the number of these entries if it has none.

    RabbitMQ once wrote an entry for each death. An entry that is alone stays as it is.
    """
    if len(deaths) < 2:
        return deaths
    groups: dict[tuple[object, object], list[Death]] = {}
    for death in deaths:
        groups.setdefault(death.of, []).append(death)
    for group in groups.values():
        items = group[0].items
        if items.get("count", b"V") == b"V":
            items.pop("count", None)
            group[0].items = {"count": encode_value(len(group)), **items}
    return [group[0] for group in groups.values()]


def _count(items: dict[str, bytes]) -> int:
    count = _value(items.get("count", b""))
    return count if isinstance(count, int) else 0


def _value(value: bytes) -> object:
    """A value without the parts of its type that do not matter: numbers, texts and octets; a void one is none."""
    letter = value[:1]
    if letter in _SIGNED or letter in _UNSIGNED:
        return int.from_bytes(value[1:], "big", signed=letter in _SIGNED)
    if letter in (b"S", b"x"):
        return value[5:]
    return None if letter == b"V" or not value else value.hex()


def _text(value: bytes) -> str:
    return value[5:].decode("utf-8", "replace") if value[:1] == b"S" else ""
