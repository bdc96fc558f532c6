"""Direct: the routing key equals the binding key. A dict from key to destinations; routing is one look-up."""

from __future__ import annotations

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable


class DirectExchange(Exchange):
    """`_by_key` counts the bindings to each destination, which differ in their arguments only."""

    def __init__(self, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable) -> None:
        super().__init__(name, "direct", durable, auto_delete, internal, arguments)
        self._by_key: dict[str, dict[Destination, int]] = {}

    def added(self, binding: Binding) -> None:
        counts = self._by_key.setdefault(binding.binding_key, {})
        counts[binding.destination] = counts.get(binding.destination, 0) + 1

    def removed(self, binding: Binding) -> None:
        counts = self._by_key[binding.binding_key]
        counts[binding.destination] -= 1
        if not counts[binding.destination]:
            del counts[binding.destination]
            if not counts:
                del self._by_key[binding.binding_key]

    def match(self, routing_key: str, header: ContentHeader | None, found: dict[Destination, None]) -> None:
        for destination in self._by_key.get(routing_key, {}):
            found[destination] = None
