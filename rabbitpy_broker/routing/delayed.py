"""The delayed message exchange: a message with an `x-delay` waits first, and is then routed as an inner exchange type
routes.

The bindings are those of the inner type, which the argument `x-delayed-type` named at the declaration. A message that
has to wait matches one destination, the exchange's delay queue. When its delay is over, the message comes back with its
delay made negative, and matches as a message without a delay does.

What must stay true: `delay_queue` is set before the first message comes (vhost.py); `inner` has the bindings of this
exchange and no others, and knows nothing of destinations beyond that.
"""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.queues.delay_queue import DelayQueue
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.delay_header import delay_ms
from rabbitpy_broker.wire.field_table import FieldTable

DELAYED: Final = "x-delayed-message"
DELAYED_TYPE: Final = "x-delayed-type"


def inner_type(arguments: FieldTable) -> str:
    """The exchange type that `x-delayed-type` names. Raises 406 when it is no name, or this type's own; whether it exists
    is not checked.
    """
    found = arguments.get(DELAYED_TYPE)
    if not isinstance(found, str):
        raise ChannelClosed(
            PRECONDITION_FAILED, f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"
        )
    if found == DELAYED:
        raise ChannelClosed(PRECONDITION_FAILED, f"Invalid argument, '{DELAYED}' can't be used for '{DELAYED_TYPE}'")
    return found


class DelayedExchange(Exchange):
    """An exchange around its `inner` exchange, which has the same name and is never declared."""

    def __init__(
        self, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable, inner: Exchange
    ) -> None:
        super().__init__(name, DELAYED, durable, auto_delete, internal, arguments)
        self.cacheable = False
        self.by_each_key = inner.by_each_key
        self.inner = inner
        self.delay_queue: DelayQueue | None = None

    def messages_delayed(self) -> int:
        """The number of messages that wait."""
        queue = self.delay_queue
        return int(queue.messages.unacked) if queue is not None else 0

    def check_binding(self, binding_key: str, arguments: FieldTable) -> None:
        self.inner.check_binding(binding_key, arguments)

    def added(self, binding: Binding) -> None:
        self.inner.added(binding)

    def removed(self, binding: Binding) -> None:
        self.inner.removed(binding)

    def match(self, routing_key: str, header: ContentHeader | None, found: dict[Destination, None]) -> None:
        if delay_ms(None if header is None else header.headers()) > 0:
            assert self.delay_queue is not None, "kept by: VHost"
            found[self.delay_queue] = None
        else:
            self.inner.match(routing_key, header, found)
