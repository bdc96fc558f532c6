"""The rules for the properties of a published message, and the one property that the broker changes.

Messages come here when `check_header` (`wire/properties.py`) has found such a property (TO_CHECK); most have none.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import MAX_MILLISECONDS
from rabbitpy_broker.users import User
from rabbitpy_broker.vhost import REPLY_TO as REPLY_TO_NAME
from rabbitpy_broker.wire.field_table import TYPE_NAMES
from rabbitpy_broker.wire.properties import (
    EXPIRATION,
    HEADERS,
    REPLY_TO,
    USER_ID,
    delivery_mode,
    find_header,
    find_property,
    replace_short_property,
    short_property,
    value_end,
)

REPLY_TO_VALUE: Final = REPLY_TO_NAME.encode("ascii")
LONGSTR: Final = 0x53
MAX_COPIES: Final = 4_096  # RabbitMQ has no limit; each key costs a look at every exchange on the way


def check_properties(message: Message, user: User, reply_queue: Queue | None, copies: list[str]) -> Message:
    """The message as it may be routed; the keys in CC and BCC are added to `copies`.

    Raises 406 for the first of these rules that it breaks: the sender of a request to direct reply-to has a reply
    consumer; user_id is the user's own name, unless the user is an impersonator; expiration is a number of
    milliseconds; CC and BCC are arrays; delivery_mode is 1 or 2. A reply_to of direct reply-to is replaced by the name
    of the channel's own reply queue.
    """
    payload = message.header_payload()
    is_request = short_property(payload, REPLY_TO) == REPLY_TO_VALUE
    if is_request and reply_queue is None:
        raise ChannelClosed(PRECONDITION_FAILED, "fast reply consumer does not exist")
    user_id = short_property(payload, USER_ID)
    if user_id is not None and user_id != user.name.encode("utf-8") and "impersonator" not in user.tags:
        named = user_id.decode("utf-8", "replace")
        raise ChannelClosed(
            PRECONDITION_FAILED, f"user_id property set to '{named}' but authenticated user was '{user.name}'"
        )
    expiration = short_property(payload, EXPIRATION)
    if expiration is not None:
        why = _bad_expiration(expiration)
        if why:
            shown = expiration.decode("utf-8", "replace")
            raise ChannelClosed(PRECONDITION_FAILED, f"invalid expiration '{shown}': {why}")
        message.expiration = int(expiration)
    table = find_property(payload, HEADERS)
    if table > 0:
        _add_copies(payload, table, "CC", copies)
        message.has_bcc = _add_copies(payload, table, "BCC", copies)
    mode = delivery_mode(payload)
    if mode not in (1, 2):
        raise ChannelClosed(PRECONDITION_FAILED, f"invalid message: {{delivery_mode_unknown,{mode}}}")
    if not is_request or reply_queue is None:
        return message
    return message.with_header(replace_short_property(payload, REPLY_TO, reply_queue.name.encode("ascii")))


def _add_copies(payload: bytes, table: i64, name: str, copies: list[str]) -> bool:
    """Adds the keys in one header to `copies`, each once. False when the header is not there.

    An element that is no longstr, or that no routing key can be (longer than 255 octets, not UTF-8), is left out.
    """
    start, end = find_header(payload, table, name.encode("ascii"))
    if start == 0:
        return False
    letter = chr(payload[start])
    if letter != "A":
        kind = TYPE_NAMES[letter]
        raise ChannelClosed(PRECONDITION_FAILED, f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')
    known = set(copies)
    at = start + 5
    while at < end:
        after = value_end(payload, at, end)
        if payload[at] == LONGSTR and after - at - 5 <= 255:
            key = _text(payload[at + 5 : after])
            if key is not None and key not in known:
                if len(known) == MAX_COPIES:
                    raise ChannelClosed(
                        PRECONDITION_FAILED, f"invalid message: more than {MAX_COPIES} routing keys in CC and BCC"
                    )
                known.add(key)
                copies.append(key)
        at = after
    return True


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _bad_expiration(expiration: bytes) -> str:
    """RabbitMQ's text for what is wrong with an expiration; "" when it is a number of milliseconds."""
    digits = expiration[1:] if expiration[:1] in (b"+", b"-") else expiration
    number = digits[: len(digits) - len(digits.lstrip(b"0123456789"))]
    if not number:
        return "no_integer"
    if number != digits:
        rest = digits[len(number) :].decode("utf-8", "replace")
        return f'{{leftover_string,"{rest}"}}'
    value = int(expiration)
    if value < 0:
        return f"{{value_negative,{value}}}"
    return f"{{value_too_large,{value}}}" if value > MAX_MILLISECONDS else ""
