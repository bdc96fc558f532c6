"""Headers: the binding's arguments are compared with the message's headers.

`x-match` says how: all (the default) or any of them, leaving out those that begin with "x-"; all-with-x and any-with-x
leave out none but x-match itself. A void argument asks for presence only; any other must be equal to the header, as
`equality.comparable` defines it. The arguments are prepared when binding. A header is prepared once a message, when the
first binding asks for it.
"""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.erlang_text import as_erlang
from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.routing.equality import comparable
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable

MODES: Final = ("all", "any", "all-with-x", "any-with-x")
NO_HEADERS: Final = FieldTable()


class Pattern:
    """The wanted headers of a binding: `all_of` or any of `wanted`, where the value None asks for presence only."""

    def __init__(self, arguments: FieldTable) -> None:
        mode = arguments.get("x-match", "all")
        self.all_of = mode == "all" or mode == "all-with-x"
        with_x = mode == "all-with-x" or mode == "any-with-x"
        self.wanted: list[tuple[str, object]] = []
        for key, value in arguments.items():
            if key != "x-match" and (with_x or not key.startswith("x-")):
                self.wanted.append((key, None if value is None else comparable(arguments, key)))

    def matches(self, headers: FieldTable, known: dict[str, object]) -> bool:
        """An empty pattern matches every message when all are asked for, and none when any is.

        `known` holds the headers that have been made comparable, and takes those that are made now.
        """
        for key, value in self.wanted:
            hit = key in headers
            if hit and value is not None:
                if key not in known:
                    known[key] = comparable(headers, key)
                hit = known[key] == value
            if hit != self.all_of:
                return hit
        return self.all_of


class HeadersExchange(Exchange):
    """Not cacheable: two messages with the same routing key may go different ways."""

    def __init__(self, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable) -> None:
        super().__init__(name, "headers", durable, auto_delete, internal, arguments)
        self.cacheable = False
        self.by_each_key = False
        self._patterns: dict[Binding, Pattern] = {}

    def check_binding(self, binding_key: str, arguments: FieldTable) -> None:
        if "x-match" not in arguments:
            return
        mode = arguments["x-match"]
        if arguments.types["x-match"] != "S":
            raise ChannelClosed(
                PRECONDITION_FAILED,
                f"Invalid x-match field type {arguments.type_name('x-match')} "
                f"(value {as_erlang(mode)}); expected longstr",
            )
        if mode not in MODES:
            raise ChannelClosed(
                PRECONDITION_FAILED,
                f"Invalid x-match field value {as_erlang(mode)}; expected all, any, all-with-x, or any-with-x",
            )

    def added(self, binding: Binding) -> None:
        self._patterns[binding] = Pattern(binding.arguments)

    def removed(self, binding: Binding) -> None:
        del self._patterns[binding]

    def match(self, routing_key: str, header: ContentHeader | None, found: dict[Destination, None]) -> None:
        headers = None if header is None else header.headers()
        given = NO_HEADERS if headers is None else headers
        known: dict[str, object] = {}
        for binding, pattern in self._patterns.items():
            if binding.destination not in found and pattern.matches(given, known):
                found[binding.destination] = None
