"""Fanout: every binding matches, whatever the routing key."""

from __future__ import annotations

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable


class FanoutExchange(Exchange):
    """`_destinations` counts the bindings to each."""

    def __init__(self, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable) -> None:
        super().__init__(name, "fanout", durable, auto_delete, internal, arguments)
        self.by_each_key = False
        self._destinations: dict[Destination, int] = {}

    def added(self, binding: Binding) -> None:
        self._destinations[binding.destination] = self._destinations.get(binding.destination, 0) + 1

    def removed(self, binding: Binding) -> None:
        self._destinations[binding.destination] -= 1
        if not self._destinations[binding.destination]:
            del self._destinations[binding.destination]

    def match(self, routing_key: str, header: ContentHeader | None, found: dict[Destination, None]) -> None:
        for destination in self._destinations:
            found[destination] = None
