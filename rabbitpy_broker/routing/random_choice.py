"""Random (x-random): each message goes along one binding, chosen by chance; keys and headers do not matter."""

from __future__ import annotations

import random
from typing import Final

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable

CHANCE: Final = random.Random()  # noqa: S311 -- nobody gains anything by predicting it


class RandomExchange(Exchange):
    """Not cacheable. A destination with two bindings gets twice as much; tests hand in a `chance` of their own."""

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: FieldTable,
        chance: random.Random = CHANCE,
    ) -> None:
        super().__init__(name, "x-random", durable, auto_delete, internal, arguments)
        self.cacheable = False
        self.by_each_key = False
        self._chance = chance
        self._targets: list[Binding] = []

    def added(self, binding: Binding) -> None:
        self._targets.append(binding)

    def removed(self, binding: Binding) -> None:
        self._targets.remove(binding)

    def match(self, routing_key: str, header: ContentHeader | None, found: dict[Destination, None]) -> None:
        if self._targets:
            found[self._chance.choice(self._targets).destination] = None
