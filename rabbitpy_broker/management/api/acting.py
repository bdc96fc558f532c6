"""What is done on a user's behalf as if it had asked over AMQP: the same methods, with the same checks, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rabbitpy_broker.errors import AmqpError
from rabbitpy_broker.management.api.errors import of_amqp
from rabbitpy_broker.management.api.request import Request
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.inner_channel import close_inner_channel, open_inner_channel
from rabbitpy_broker.protocol.output import LOST, Transport
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire import methods


@contextmanager
def channel_of(
    api: Api, request: Request, vhost: VHost, transport: Transport = LOST, *, confirms: bool = False
) -> Iterator[Channel]:
    """A channel as the user who asks."""
    channel = open_inner_channel(
        api.broker.node, request.user, vhost, f"{request.peer} -> management", transport, confirms=confirms
    )
    try:
        yield channel
    finally:
        close_inner_channel(channel)


def act(
    api: Api,
    request: Request,
    vhost: VHost,
    handler: Callable[[Channel, Any], None],
    method: str,
    **arguments: object,
) -> None:
    """Has a handler of the protocol do a method; what it changed is on disk afterwards. Raises ApiError."""
    try:
        with channel_of(api, request, vhost) as channel:
            handler(channel, methods.make(method, ticket=0, nowait=True, **arguments))
    except AmqpError as error:
        raise of_amqp(error) from None
    finally:
        api.admin.commit()
