"""The rules for message properties that a publish is held to, and the one that the broker changes.

`check_header` has found that a message has one of them (`wire/properties.py`, TO_CHECK); most messages never come here.
"""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.arguments import MAX_MILLISECONDS
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.users import User
from rabbitpy_broker.vhost import REPLY_TO as REPLY_TO_NAME
from rabbitpy_broker.wire.properties import (
    EXPIRATION,
    REPLY_TO,
    USER_ID,
    delivery_mode,
    replace_short_property,
    short_property,
)

REPLY_TO_VALUE: Final = REPLY_TO_NAME.encode("ascii")


def check_properties(message: Message, user: User, reply_queue: Queue | None) -> Message:
    """The message as it may be routed. Raises 406.

    delivery_mode is 1 or 2; user_id is the user's own name, unless it is an impersonator; expiration is a number of
    milliseconds. A reply_to of direct reply-to is replaced by the name of the channel's own reply queue.
    """
    payload = message.header_payload()
    mode = delivery_mode(payload)
    if mode not in (1, 2):
        raise ChannelClosed(PRECONDITION_FAILED, f"invalid message: {{delivery_mode_unknown,{mode}}}")
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
    if short_property(payload, REPLY_TO) != REPLY_TO_VALUE:
        return message
    if reply_queue is None:
        raise ChannelClosed(PRECONDITION_FAILED, "fast reply consumer does not exist")
    return message.with_header(replace_short_property(payload, REPLY_TO, reply_queue.name.encode("ascii")))


def _bad_expiration(expiration: bytes) -> str:
    """What is wrong with an expiration in RabbitMQ's words, "" when it is a number of milliseconds."""
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
