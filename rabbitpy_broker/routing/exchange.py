"""Exchanges and bindings: the parts that all exchange types share.

An exchange answers one question, `match`: which destinations do its bindings choose for a routing key (and header).
Each type keeps its bindings in the form that makes this cheap; the work is done when binding, not when publishing.

What must stay true: a binding stands in its source's table and in its destination's `incoming`, or in neither; two
bindings of an exchange differ in destination, key or arguments.
"""

from __future__ import annotations

from collections.abc import Iterator

from mypy_extensions import i64

from rabbitpy_broker.destination import EXCHANGE, Destination
from rabbitpy_broker.queues.deduplication import Deduplication
from rabbitpy_broker.routing.equality import identity
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable


class Binding:
    """A rule: a message that matches `binding_key` and `arguments` at `source` goes to `destination`. Equal only to
    itself.
    """

    def __init__(
        self, source: Exchange, destination: Destination, binding_key: str, arguments: FieldTable, durable: bool
    ) -> None:
        self.source = source
        self.destination = destination
        self.binding_key = binding_key
        self.arguments = arguments
        self.durable = durable


class Routed:
    """How many messages came to an exchange from clients, and how many queues they went to, counted once for each message."""

    def __init__(self) -> None:
        self.published_in: i64 = 0
        self.published_out: i64 = 0


class Exchange(Destination):
    """Base of the types. `alternate` is "" when there is none.

    `cacheable` is False when more than the routing key decides; `by_each_key` is False when the further keys of a message
    (CC and BCC) make no difference. `deduplication` is asked by the vhost, before anything is matched.
    """

    def __init__(
        self, name: str, type: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable
    ) -> None:
        super().__init__(EXCHANGE, name)
        self.type = type
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.alternate = ""
        self.cacheable = True
        self.by_each_key = True
        self.deduplication: Deduplication | None = None
        self.had_binding = False
        self.routed = Routed()
        self._bindings: dict[tuple[Destination, str, frozenset[tuple[str, bytes]]], Binding] = {}
        self._exchanges: dict[Exchange, int] = {}  # exchanges among the destinations, with their number of bindings
        self.apply_policy({})

    def apply_policy(self, definition: dict[str, object]) -> None:
        """Takes the settings that the arguments leave open from the definition of a policy."""
        alternate = self.arguments.get("alternate-exchange", definition.get("alternate-exchange"))
        self.alternate = alternate if isinstance(alternate, str) else ""

    def bind(
        self, destination: Destination, binding_key: str, arguments: FieldTable, durable: bool
    ) -> Binding | None:
        """Adds a binding; returns None when an equal one exists. Raises 406 for a key or arguments that make no binding."""
        self.check_binding(binding_key, arguments)
        place = (destination, binding_key, identity(arguments))
        if place in self._bindings:
            return None
        binding = Binding(self, destination, binding_key, arguments, durable)
        self._bindings[place] = binding
        self.had_binding = True
        destination.incoming[binding] = None
        if isinstance(destination, Exchange):
            self._exchanges[destination] = self._exchanges.get(destination, 0) + 1
        self.added(binding)
        return binding

    def is_bound(self, destination: Destination, binding_key: str, arguments: FieldTable) -> bool:
        """True when there is an equal binding."""
        return (destination, binding_key, identity(arguments)) in self._bindings

    def unbind(self, destination: Destination, binding_key: str, arguments: FieldTable) -> Binding | None:
        """Removes a binding and returns it; None when there is no equal one."""
        binding = self._bindings.get((destination, binding_key, identity(arguments)))
        if binding is not None:
            self.remove(binding)
        return binding

    def remove(self, binding: Binding) -> None:
        """Removes a binding of this exchange."""
        destination = binding.destination
        del self._bindings[(destination, binding.binding_key, identity(binding.arguments))]
        del destination.incoming[binding]
        if isinstance(destination, Exchange):
            self._exchanges[destination] -= 1
            if not self._exchanges[destination]:
                del self._exchanges[destination]
        self.removed(binding)

    def bindings(self) -> list[Binding]:
        """All bindings, in the order they were made."""
        return list(self._bindings.values())

    def each_binding(self) -> Iterator[Binding]:
        """The same, for a walk in slices: those that are gone when it is their turn are left out."""
        for binding in list(self._bindings.values()):
            if binding in binding.destination.incoming:
                yield binding

    def binding_count(self) -> int:
        return len(self._bindings)

    def exchange_destinations(self) -> list[Exchange]:
        """The exchanges that bindings lead to."""
        return list(self._exchanges)

    # -- what each type does --------------------------------------------------------------------------------------

    def check_binding(self, binding_key: str, arguments: FieldTable) -> None:
        """Raises ChannelClosed (406) for a key or arguments that make no binding."""

    def added(self, binding: Binding) -> None:
        """Takes a new binding into the form that `match` uses."""
        raise NotImplementedError

    def removed(self, binding: Binding) -> None:
        """Takes a binding out of the form that `match` uses."""
        raise NotImplementedError

    def match(self, routing_key: str, header: ContentHeader | None, found: dict[Destination, None]) -> None:
        """Adds the destinations that the bindings choose to `found`, each once."""
        raise NotImplementedError
