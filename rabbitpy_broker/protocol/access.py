"""Access: the rights of a connection's user in its vhost, and the routes that it may publish to.

A permission is looked up for each declaration. For publishes it is looked up once for each address, until the user's
rights or the route change.

Rights may be known elsewhere only. Then the first look at each raises AnswerAwaited, before anything has been changed, and
the connection comes again with the same frame.

What must stay true: `route` gives no route that the user may not publish to; whoever keeps `last_route` asks `valid`
first.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.errors import ACCESS_REFUSED, SYNTAX_ERROR, ChannelClosed, ConnectionClosed
from rabbitpy_broker.routing.exchange import Exchange
from rabbitpy_broker.routing.routes import Route
from rabbitpy_broker.users import BackendFault, User
from rabbitpy_broker.vhost import VHost, generated_name

ROUTES_KEPT: Final = 4_096


class Access:
    """The access of one connection. `last_route` is the route that the latest publish took."""

    def __init__(self, user: User, vhost: VHost) -> None:
        self.user = user
        self.vhost = vhost
        self.last_route: Route | None = None
        self._routes: dict[bytes, Route] = {}
        self._user_version = user.version
        self._queue_name = ""

    def refresh(self) -> None:
        """Forgets the routes if the user's rights have changed since they were found."""
        if self.user.version != self._user_version:
            self._user_version = self.user.version
            self.forget()

    def forget(self) -> None:
        """Forgets the routes."""
        self._routes = {}
        self.last_route = None

    def check(self, operation: str, kind: str, name: str) -> None:
        """Raises 403 when the user may not `operation` (configure, write, read) the queue or exchange."""
        user, vhost = self.user, self.vhost
        text = f"access to {kind} '{name if name else 'amq.default'}' in vhost '{vhost.name}' refused for user '{user.name}'"
        try:
            allowed: bool = user.may(vhost.name, operation, kind, name)
        except BackendFault as fault:
            raise ChannelClosed(ACCESS_REFUSED, f"{text}, {fault}") from None
        if not allowed:
            raise ChannelClosed(ACCESS_REFUSED, text)

    def check_topic(self, operation: str, exchange: Exchange, key: str) -> None:
        """Raises 403 when the user may not publish (write) or bind (read) with this key at a topic exchange."""
        if exchange.type != "topic":
            return
        user, vhost = self.user, self.vhost
        text = (
            f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{vhost.name}' refused for user '{user.name}'"
        )
        try:
            allowed: bool = user.may_use_key(vhost.name, operation, exchange.name, key)
        except BackendFault as fault:
            raise ChannelClosed(ACCESS_REFUSED, f"{text}, {fault}") from None
        if not allowed:
            raise ChannelClosed(ACCESS_REFUSED, text)

    def new_queue_name(self) -> str:
        """A name for a queue whose client leaves it to us: the same until it is taken, for a declaration that comes again."""
        if not self._queue_name:
            self._queue_name = generated_name()
        return self._queue_name

    def queue_name_taken(self) -> None:
        """A queue of the new name is about to be declared."""
        self._queue_name = ""

    def route(self, address: bytes) -> Route:
        """The route of an address, as basic.publish has it: exchange and routing key, two short strings.

        Raises 403 where the user may not publish, 404 without such an exchange, and 502 for bytes that are no address.
        """
        route = self._routes.get(address)
        if route is None or not route.valid:
            route = self._find(address)
        self.last_route = route
        return route

    def _find(self, address: bytes) -> Route:
        """Finds a route the long way: names, permission, exchange."""
        split: i64 = 1 + i64(address[0]) if address else 0
        if split == 0 or split >= len(address) or split + 1 + i64(address[split]) != len(address):
            raise ConnectionClosed(SYNTAX_ERROR, "malformed basic.publish")
        try:
            exchange_name = address[1:split].decode("utf-8")
            address[split + 1 :].decode("utf-8")
        except UnicodeDecodeError:
            raise ConnectionClosed(SYNTAX_ERROR, "exchange or routing key is not UTF-8") from None
        self.check("write", "exchange", exchange_name)
        route = self.vhost.routes.find(address)
        if route.exchange is not None and route.exchange.internal:
            raise ChannelClosed(
                ACCESS_REFUSED, f"cannot publish to internal exchange '{exchange_name}' in vhost '{self.vhost.name}'"
            )
        if route.exchange is not None:
            self.check_topic("write", route.exchange, route.routing_key)
        if len(self._routes) >= ROUTES_KEPT:
            self._routes = {}
        self._routes[address] = route
        return route
