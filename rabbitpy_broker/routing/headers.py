"""Headers: the binding's arguments are compared with the message's headers.

`x-match` says how: all (the default) or any of them, leaving out those that begin with "x-"; all-with-x and any-with-x
leave out none but x-match itself. A void argument asks for presence only; any other must be equal in value, 1 equal to
1.0 but not to true. The arguments are sorted out when binding.
"""

from __future__ import annotations

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.wire.field_table import FieldTable

MODES = ("all", "any", "all-with-x", "any-with-x")


class Pattern:
    """What a binding asks for: `all_of` or any of `wanted`."""

    def __init__(self, arguments: FieldTable) -> None:
        mode = arguments.get("x-match", "all")
        self.all_of = mode == "all" or mode == "all-with-x"
        with_x = mode == "all-with-x" or mode == "any-with-x"
        self.wanted: list[tuple[str, object]] = [
            (key, value)
            for key, value in arguments.items()
            if key != "x-match" and (with_x or not key.startswith("x-"))
        ]

    def matches(self, headers: FieldTable | None) -> bool:
        """An empty pattern matches everything when all are asked for, and nothing when any is."""
        for key, value in self.wanted:
            hit = headers is not None and key in headers and (value is None or _equal(value, headers[key]))
            if hit != self.all_of:
                return hit
        return self.all_of


def _equal(left: object, right: object) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and left == right


class HeadersExchange(Exchange):
    """Not cacheable: two messages with the same routing key may go different ways."""

    def __init__(self, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable) -> None:
        super().__init__(name, "headers", durable, auto_delete, internal, arguments)
        self.cacheable = False
        self._patterns: dict[Binding, Pattern] = {}

    def check_binding(self, arguments: FieldTable) -> None:
        if "x-match" not in arguments:
            return
        value = arguments["x-match"]
        if arguments.types["x-match"] != "S":
            raise ChannelClosed(
                PRECONDITION_FAILED,
                f"Invalid x-match field type {arguments.type_name('x-match')} (value {value}); expected longstr",
            )
        if value not in MODES:
            raise ChannelClosed(
                PRECONDITION_FAILED,
                f'Invalid x-match field value <<"{value}">>; expected all, any, all-with-x, or any-with-x',
            )

    def added(self, binding: Binding) -> None:
        self._patterns[binding] = Pattern(binding.arguments)

    def removed(self, binding: Binding) -> None:
        del self._patterns[binding]

    def match(self, routing_key: str, headers: FieldTable | None, found: dict[Destination, None]) -> None:
        for binding, pattern in self._patterns.items():
            if pattern.matches(headers):
                found[binding.destination] = None
