"""Routes: where addresses lead in one vhost. They are kept until a change could alter them.

An address (exchange and routing key, as they stand in basic.publish) leads to a `Route`. Connections keep routes of
their own after the permission check. So a route is never changed: it is marked not `valid`, and is looked up anew. What
must stay true: a valid route gives the queues that `resolve` would give now.

Which routes does a change alter?

- A binding of exchange X: the routes of X and of every exchange that leads to X, by exchange-to-exchange bindings or as
  an alternate exchange. While any exchange has an alternate, all routes go: alternates are rare, and a walk backwards
  over names that need not exist yet is not worth it.
- A queue that comes or goes: the route that the default exchange has to it.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.errors import NOT_FOUND, ChannelClosed
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.dead_letter import address_of
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_host import HostedQueue
from rabbitpy_broker.routing.exchange import Exchange, Routed
from rabbitpy_broker.routing.resolve import is_cacheable, resolve, upstream
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import shown_header

MAX_ROUTES: Final = 65_536
SHORT_STRING: Final = 255  # bytes


class Route:
    """The destination queues of an address. `exchange` is None for the default exchange; without `cacheable` ask for each
    message.

    `copies` are the further routing keys (CC and BCC) of one message; such a route is made for this message and not
    kept.
    """

    def __init__(
        self, address: bytes, exchange_name: str, routing_key: str, exchange: Exchange | None, routed: Routed
    ) -> None:
        self.routed = routed  # counted by the exchange
        self.address = address
        self.exchange_name = exchange_name
        self.routing_key = routing_key
        self.exchange = exchange
        self.copies: list[str] | None = None
        self.queues: list[HostedQueue] = []
        self.cacheable = True
        self.valid = True
        self.event_id: i64 = 0  # the exchange's id in the event journal


class Routes:
    """The routes of one vhost, with its exchanges and queues; a `hidden` queue can be addressed and is listed nowhere."""

    def __init__(
        self, vhost: str, exchanges: dict[str, Exchange], queues: dict[str, Queue], hidden: dict[str, Queue]
    ) -> None:
        self._vhost = vhost
        self._exchanges = exchanges
        self._queues = queues
        self._hidden = hidden
        self._by_address: dict[bytes, Route] = {}
        self._by_exchange: dict[str, list[Route]] = {}
        self._alternates = 0  # the number of exchanges that have an alternate
        self.routed = Routed()  # by the default exchange

    # -- asking ---------------------------------------------------------------------------------------------------

    def all(self) -> list[Route]:
        """The routes that are kept."""
        return list(self._by_address.values())

    def exchange(self, name: str) -> Exchange:
        """The exchange of that name. Raises 404."""
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise ChannelClosed(NOT_FOUND, f"no exchange '{name}' in vhost '{self._vhost}'")
        return exchange

    def find(self, address: bytes) -> Route:
        """The route of an address. Raises 404 for an absent exchange, ValueError for names that are not UTF-8."""
        route = self._by_address.get(address)
        if route is not None:
            return route
        split = 1 + address[0]
        exchange_name = address[1:split].decode("utf-8")
        routing_key = address[split + 1 :].decode("utf-8")
        exchange: Exchange | None = None
        if exchange_name:
            exchange = self.exchange(exchange_name)
        routed = self.routed if exchange is None else exchange.routed
        route = Route(address, exchange_name, routing_key, exchange, routed)
        if exchange is None:
            queue = self.addressed(routing_key)
            if queue is not None:
                route.queues.append(queue)
        elif is_cacheable(exchange, self._exchanges):
            route.queues = self.resolve(exchange, [routing_key], None)
            route.cacheable = exchange.deduplication is None
        else:
            route.cacheable = False
        if len(self._by_address) >= MAX_ROUTES:
            self.forget_all()
        self._by_address[address] = route
        if exchange is not None:
            self._by_exchange.setdefault(exchange_name, []).append(route)
        return route

    def queues_for(self, route: Route, header: ContentHeader) -> list[HostedQueue]:
        """The queues of a route that is not cacheable, for a message with this header. Raises ValueError."""
        routing_keys = [route.routing_key]
        if route.copies is not None:
            routing_keys.extend(route.copies)
        if route.exchange is not None:
            return self.resolve(route.exchange, routing_keys, header)
        return self._named(routing_keys)

    def queues_of(self, message: Message, exchange_name: str, routing_keys: list[str]) -> list[HostedQueue]:
        """The queues for a message that the broker itself publishes; none when there is no such exchange."""
        if not exchange_name:
            return self._named(routing_keys)
        exchange = self._exchanges.get(exchange_name)
        if exchange is None:
            return []
        if len(routing_keys) == 1 and len(routing_keys[0].encode("utf-8", "replace")) <= SHORT_STRING:
            route = self.find(address_of(exchange_name, routing_keys[0]))
            if route.cacheable:
                return route.queues
        try:
            return self.resolve(exchange, routing_keys, ContentHeader(shown_header(message)))
        except ValueError:  # headers that no headers exchange can match
            return []

    def addressed(self, name: str) -> Queue | None:
        """The queue that this routing key leads to at the default exchange."""
        queue = self._queues.get(name)
        return self._hidden.get(name) if queue is None else queue

    def _named(self, names: list[str]) -> list[HostedQueue]:
        queues: dict[HostedQueue, None] = {}
        for name in names:
            queue = self.addressed(name)
            if queue is not None:
                queues[queue] = None
        return list(queues)

    def resolve(self, exchange: Exchange, routing_keys: list[str], header: ContentHeader | None) -> list[HostedQueue]:
        """The queues that `resolve` finds. Raises ValueError for headers that cannot be read."""
        queues: list[HostedQueue] = []
        for found in resolve(exchange, self._exchanges, routing_keys, header):
            if isinstance(found, HostedQueue):
                queues.append(found)
        return queues

    # -- what changes them ----------------------------------------------------------------------------------------

    def count_alternate(self, change: int) -> None:
        """Notes that an exchange has got an alternate exchange (1), has lost it (-1), or has another one (0)."""
        self._alternates += change
        self.forget_all()

    def exchange_added(self, exchange: Exchange) -> None:
        """Notes a new exchange. Its name may have been named as an alternate before."""
        if exchange.alternate:
            self._alternates += 1
        if self._alternates:
            self.forget_all()

    def exchange_removed(self, exchange: Exchange) -> None:
        """Notes that an exchange goes. Its bindings are still there."""
        self.forget_for(exchange)
        if exchange.alternate:
            self._alternates -= 1

    def forget_all(self) -> None:
        """Forgets every route: each may lead elsewhere now."""
        for route in self._by_address.values():
            route.valid = False
        self._by_address = {}
        self._by_exchange = {}

    def forget_for(self, exchange: Exchange) -> None:
        """Marks every route that a change at `exchange` could alter."""
        if not self._by_exchange:
            return
        if self._alternates:
            self.forget_all()
            return
        for reached in upstream(exchange):
            for route in self._by_exchange.pop(reached.name, []):
                route.valid = False
                self._by_address.pop(route.address, None)

    def forget_default(self, queue_name: str) -> None:
        """Forgets the route of the default exchange to the queue of that name, which has come or gone."""
        key = queue_name.encode("utf-8")
        route = self._by_address.pop(b"\x00" + bytes([len(key)]) + key, None)
        if route is not None:
            route.valid = False
