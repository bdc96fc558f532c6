"""A virtual host: its exchanges, queues and bindings, and the cache of routes through them.

Every change to them goes through this file: durable things are noted in the definitions (the commit comes before any
`-ok` leaves, see `protocol/turn.py`), and routes that a change could alter are thrown away.

A `Route` is what an address (exchange and routing key, as they stand in basic.publish) leads to. Connections keep
routes of their own after the permission check, so a route is never changed: it is marked not `valid` and looked up
anew. What must stay true: a valid route gives the queues that `resolve` would give now.

Whose routes does a change alter? A binding of exchange X: the routes of X and of every exchange that leads to X, by
exchange-to-exchange bindings or as an alternate exchange. While any exchange has an alternate, all routes go: that is
rare, and a walk backwards over names that need not exist yet is not worth it.
"""

from __future__ import annotations

import base64
import os
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    ChannelClosed,
)
from rabbitpy_broker.queues.arguments import (
    VERIFIED_ARGUMENTS,
    check_arguments,
    confirm_on_ack,
    inequivalent,
    is_lazy,
)
from rabbitpy_broker.queues.msg_status import StatusMaker
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.routing.resolve import is_cacheable, make_exchange, resolve, upstream
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.sync import SyncGroup
from rabbitpy_broker.storage.vhost_store import VHostStore
from rabbitpy_broker.wire.field_table import FieldTable, decode_table

MAX_ROUTES: Final = 65_536
REPLY_TO: Final = "amq.rabbitmq.reply-to"
PREDECLARED: Final = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.rabbitmq.trace", "topic"),
)
NO_ARGUMENTS: Final = FieldTable()


class Route:
    """Where an address leads. `exchange` is None for the default exchange; not `cacheable`: ask for each message."""

    def __init__(self, address: bytes, exchange_name: str, routing_key: str, exchange: Exchange | None) -> None:
        self.address = address
        self.exchange_name = exchange_name
        self.routing_key = routing_key
        self.exchange = exchange
        self.queues: list[Queue] = []
        self.cacheable = True
        self.valid = True


class DeletedQueues:
    """What queues that are gone had counted."""

    def __init__(self) -> None:
        self.published: i64 = 0
        self.paged_out: i64 = 0
        self.paged_in: i64 = 0
        self.disk_reads: i64 = 0
        self.disk_writes: i64 = 0


class VHost:
    """One namespace. `definitions` and `store` keep what is durable; `queue_max` is 0 for no limit."""

    def __init__(self, name: str, definitions: Definitions, store: VHostStore, queue_max: int = 0) -> None:
        self.name = name
        self.definitions = definitions
        self.store = store
        self.syncs: SyncGroup = store.journal
        self._maker = StatusMaker()
        self.queue_max = queue_max
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.queues_declared: i64 = 0
        self.queues_created: i64 = 0
        self.queues_deleted: i64 = 0
        self.deleted = DeletedQueues()
        self._routes: dict[bytes, Route] = {}
        self._routes_of: dict[str, list[Route]] = {}
        self._alternates = 0
        self._exclusive: dict[object, dict[Queue, None]] = {}  # by connection
        for exchange_name, kind in PREDECLARED:
            internal = exchange_name == "amq.rabbitmq.trace"
            self.exchanges[exchange_name] = make_exchange(kind, exchange_name, True, False, internal, NO_ARGUMENTS)

    def load(self) -> None:
        """Brings back what the definitions hold, and the messages of its queues. Raises StartError."""
        for name, kind, auto_delete, internal, raw in self.definitions.exchanges(self.name):
            self._add_exchange(make_exchange(kind, name, True, auto_delete, internal, _table(raw)))
        queues = self.definitions.queues(self.name)
        recovered = self.store.recover([queue_id for _, _, _, queue_id in queues], self._maker)
        for name, auto_delete, raw, queue_id in queues:
            found = recovered[queue_id]
            queue = self._make_queue(name, True, auto_delete, None, _table(raw), found.index)
            backing = queue.backing
            assert isinstance(backing, VariableQueue), "kept by: _make_queue"
            backing.recovered(found.next_seq_id, found.delta_end, found.places)
            self.queues[name] = queue
        for source, kind, destination, key, raw in self.definitions.bindings(self.name):
            exchange = self.exchanges[source]
            target: Destination = self.queues[destination] if kind == QUEUE else self.exchanges[destination]
            exchange.bind(target, key, _table(raw), True)

    # -- routing --------------------------------------------------------------------------------------------------

    def route(self, address: bytes) -> Route:
        """The route of an address. Raises 404 for an absent exchange, ValueError for names that are not UTF-8."""
        route = self._routes.get(address)
        if route is not None:
            return route
        split = 1 + address[0]
        exchange_name = address[1:split].decode("utf-8")
        routing_key = address[split + 1 :].decode("utf-8")
        exchange: Exchange | None = None
        if exchange_name:
            exchange = self.exchange(exchange_name)
        route = Route(address, exchange_name, routing_key, exchange)
        if exchange is None:
            queue = self.queues.get(routing_key)
            if queue is not None:
                route.queues.append(queue)
        elif is_cacheable(exchange, self.exchanges):
            route.queues = self._resolve(exchange, routing_key, None)
        else:
            route.cacheable = False
        if len(self._routes) >= MAX_ROUTES:
            self._forget_all_routes()
        self._routes[address] = route
        if exchange is not None:
            self._routes_of.setdefault(exchange_name, []).append(route)
        return route

    def queues_for(self, route: Route, headers: FieldTable | None) -> list[Queue]:
        """The queues of a route that is not cacheable, for a message with these headers."""
        exchange = route.exchange
        assert exchange is not None, "kept by: route, the default exchange is always cacheable"
        return self._resolve(exchange, route.routing_key, headers)

    def _resolve(self, exchange: Exchange, routing_key: str, headers: FieldTable | None) -> list[Queue]:
        queues: list[Queue] = []
        for found in resolve(exchange, self.exchanges, routing_key, headers):
            if isinstance(found, Queue):
                queues.append(found)
        return queues

    def _forget_all_routes(self) -> None:
        for route in self._routes.values():
            route.valid = False
        self._routes = {}
        self._routes_of = {}

    def _forget_routes(self, exchange: Exchange) -> None:
        """Marks every route that a change at `exchange` could alter."""
        if not self._routes_of:
            return
        if self._alternates:
            self._forget_all_routes()
            return
        for reached in upstream(exchange):
            for route in self._routes_of.pop(reached.name, []):
                route.valid = False
                self._routes.pop(route.address, None)

    def _forget_default_route(self, queue_name: str) -> None:
        key = queue_name.encode("utf-8")
        route = self._routes.pop(b"\x00" + bytes([len(key)]) + key, None)
        if route is not None:
            route.valid = False

    # -- exchanges ------------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """The exchange of that name. Raises 404."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise ChannelClosed(NOT_FOUND, f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def declare_exchange(
        self, name: str, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable
    ) -> None:
        """Makes an exchange, or verifies that the one of that name is the same. The caller knows that `kind` exists."""
        current = self.exchanges.get(name)
        if current is not None:
            self._verify_exchange(current, kind, durable, auto_delete, internal, arguments)
            return
        if name.startswith("amq."):
            raise ChannelClosed(ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'")
        alternate = arguments.get("alternate-exchange")
        if alternate is not None and not isinstance(alternate, str):
            raise ChannelClosed(
                PRECONDITION_FAILED,
                f"invalid type '{arguments.type_name('alternate-exchange')}' for arg 'alternate-exchange' "
                f"in exchange '{name}' in vhost '{self.name}'",
            )
        exchange = make_exchange(kind, name, durable, auto_delete, internal, arguments)
        self._add_exchange(exchange)
        if durable:
            self.definitions.put_exchange(self.name, name, kind, auto_delete, internal, arguments.raw)

    def _add_exchange(self, exchange: Exchange) -> None:
        self.exchanges[exchange.name] = exchange
        if exchange.alternate:
            self._alternates += 1
        if self._alternates:
            self._forget_all_routes()

    def _verify_exchange(
        self, current: Exchange, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable
    ) -> None:
        what = f"for exchange '{current.name}' in vhost '{self.name}'"
        if kind != current.type:
            raise ChannelClosed(
                PRECONDITION_FAILED,
                f"inequivalent arg 'type' {what}: received '{kind}' but current is '{current.type}'",
            )
        _same_flag("durable", what, durable, current.durable)
        _same_flag("auto_delete", what, auto_delete, current.auto_delete)
        _same_flag("internal", what, internal, current.internal)
        text = inequivalent("alternate-exchange", arguments, current.arguments)
        if text:
            raise ChannelClosed(PRECONDITION_FAILED, f"inequivalent arg 'alternate-exchange' {what}: {text}")

    def delete_exchange(self, name: str, if_unused: bool) -> None:
        """Removes an exchange and its bindings; an absent one is no error."""
        if name.startswith("amq."):
            raise ChannelClosed(
                ACCESS_REFUSED, f"deletion of system exchange '{name}' in vhost '{self.name}' not allowed"
            )
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.binding_count():
            raise ChannelClosed(PRECONDITION_FAILED, f"exchange '{name}' in vhost '{self.name}' in use")
        self._remove_exchange(exchange)

    def _remove_exchange(self, exchange: Exchange) -> None:
        """Removes an exchange, then the auto-delete exchanges that lose their last binding by that, and so on."""
        todo = [exchange]
        while todo:
            gone = todo.pop()
            if self.exchanges.get(gone.name) is not gone:
                continue
            self._forget_routes(gone)
            del self.exchanges[gone.name]
            if gone.alternate:
                self._alternates -= 1
            if gone.durable:
                self.definitions.delete_exchange(self.name, gone.name)
            for binding in gone.bindings():
                gone.remove(binding)
            todo.extend(self._unbind_incoming(gone))

    # -- bindings -------------------------------------------------------------------------------------------------

    def bind(self, source: Exchange, destination: Destination, binding_key: str, arguments: FieldTable) -> None:
        """Binds; an equal binding is no error."""
        durable = source.durable and _is_durable(destination)
        if source.bind(destination, binding_key, arguments, durable) is None:
            return
        if durable:
            self.definitions.put_binding(
                self.name, source.name, destination.kind, destination.name, binding_key, arguments.raw
            )
        self._forget_routes(source)

    def unbind(self, source: Exchange, destination: Destination, binding_key: str, arguments: FieldTable) -> None:
        """Unbinds; an absent binding is no error. An auto-delete exchange goes with its last binding."""
        self._forget_routes(source)
        binding = source.unbind(destination, binding_key, arguments)
        if binding is not None and self._unbound(binding):
            self._remove_exchange(source)

    def _unbound(self, binding: Binding) -> bool:
        """Forgets a binding; True when its source is now to be auto-deleted."""
        source = binding.source
        if binding.durable:
            target = binding.destination
            self.definitions.delete_binding(
                self.name, source.name, target.kind, target.name, binding.binding_key, binding.arguments.raw
            )
        return source.auto_delete and not source.binding_count()

    def _unbind_incoming(self, destination: Destination) -> list[Exchange]:
        """Removes every binding that ends here; returns the exchanges that are now to be auto-deleted."""
        unused: list[Exchange] = []
        for binding in list(destination.incoming):
            assert isinstance(binding, Binding)
            self._forget_routes(binding.source)
            binding.source.remove(binding)
            if self._unbound(binding):
                unused.append(binding.source)
        return unused

    # -- queues ---------------------------------------------------------------------------------------------------

    def queue(self, name: str, connection: object) -> Queue:
        """The queue of that name. Raises 404, and 405 when it is exclusive to another connection."""
        queue = self.queues.get(name)
        if queue is None:
            raise ChannelClosed(NOT_FOUND, f"no queue '{name}' in vhost '{self.name}'")
        if queue.owner is not None and queue.owner is not connection:
            raise self._locked(name)
        return queue

    def _locked(self, name: str) -> ChannelClosed:
        return ChannelClosed(
            RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'. It could be originally "
            "declared on another connection or the exclusive property value does not match that of the original "
            "declaration.",
        )

    def declare_queue(
        self, name: str, durable: bool, exclusive: bool, auto_delete: bool, arguments: FieldTable, connection: object
    ) -> Queue:
        """Makes a queue, or verifies that the one of that name is the same; an empty name gets one of the broker's.

        An exclusive queue is never durable: it goes with its connection.
        """
        self.queues_declared += 1
        durable = durable and not exclusive
        if name.startswith("amq."):
            raise ChannelClosed(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
        current = self.queues.get(name) if name else None
        if current is not None:
            self._verify_queue(current, durable, exclusive, auto_delete, arguments, connection)
            return current
        check_arguments(name, self.name, arguments)
        if self.queue_max and len(self.queues) >= self.queue_max:
            raise ChannelClosed(
                PRECONDITION_FAILED,
                f"cannot declare queue '{name}': queue limit in vhost '{self.name}' ({self.queue_max}) is reached",
            )
        if not name:
            name = "amq.gen-" + base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("=")
        queue_id = int.from_bytes(os.urandom(8), "big")
        index = self.store.new_index(queue_id, durable, self._maker)
        queue = self._make_queue(name, durable, auto_delete, connection if exclusive else None, arguments, index)
        self.queues[name] = queue
        self.queues_created += 1
        if exclusive:
            self._exclusive.setdefault(connection, {})[queue] = None
        self._forget_default_route(name)
        if durable:
            self.definitions.put_queue(self.name, name, auto_delete, arguments.raw, queue_id)
        return queue

    def make_reply_queue(self) -> Queue:
        """A queue behind direct reply-to: its unguessable name is the reply_to of requests, its one consumer gets the
        replies, and it goes with that consumer.
        """
        name = f"{REPLY_TO}.{base64.urlsafe_b64encode(os.urandom(16)).decode('ascii').rstrip('=')}"
        index = self.store.new_index(int.from_bytes(os.urandom(8), "big"), False, self._maker)
        queue = self._make_queue(name, False, True, None, NO_ARGUMENTS, index)
        self.queues[name] = queue
        self.queues_created += 1
        self._forget_default_route(name)
        return queue

    def _make_queue(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: FieldTable,
        index: QueueIndex,
    ) -> Queue:
        embed_below = self.store.settings.queue_index_embed_msgs_below
        backing = VariableQueue(index, confirm_on_ack(arguments), is_lazy(arguments), embed_below)
        return Queue(self.name, name, durable, auto_delete, owner, arguments, backing)

    def _verify_queue(
        self,
        current: Queue,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: FieldTable,
        connection: object,
    ) -> None:
        if current.owner is not None and current.owner is not connection:
            raise self._locked(current.name)
        what = f"for queue '{current.name}' in vhost '{self.name}'"
        _same_flag("durable", what, durable, current.durable)
        _same_flag("auto_delete", what, auto_delete, current.auto_delete)
        if exclusive != (current.owner is not None):
            raise self._locked(current.name)
        for key in VERIFIED_ARGUMENTS:
            text = inequivalent(key, arguments, current.arguments)
            if text:
                raise ChannelClosed(PRECONDITION_FAILED, f"inequivalent arg '{key}' {what}: {text}")

    def delete_queue(self, queue: Queue) -> i64:
        """Ends a queue: bindings, definition, consumers, messages. Returns how many messages were ready."""
        if self.queues.get(queue.name) is not queue:
            return 0
        del self.queues[queue.name]
        self.queues_deleted += 1
        self._count_deleted(queue)
        self._forget_default_route(queue.name)
        if queue.durable:
            self.definitions.delete_queue(self.name, queue.name)
        if queue.owner is not None:
            self._exclusive[queue.owner].pop(queue, None)
        for exchange in self._unbind_incoming(queue):
            self._remove_exchange(exchange)
        return queue.delete()

    def _count_deleted(self, queue: Queue) -> None:
        backing = queue.backing
        assert isinstance(backing, VariableQueue), "kept by: _make_queue"
        self.deleted.published += queue.published
        self.deleted.paged_out += backing.paged_out
        self.deleted.paged_in += backing.paged_in
        self.deleted.disk_reads += backing.index.disk_reads
        self.deleted.disk_writes += backing.index.disk_writes

    # -- now and then, and the end --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """About once a second: what the store does when nobody asks for anything."""
        self.store.tick()
        for queue in self.queues.values():
            queue.backing.tick(now)

    def note_delivered(self) -> None:
        """Before a clean stop: what was delivered and came back is to be known as redelivered."""
        for queue in self.queues.values():
            queue.backing.note_delivered()

    def close(self) -> None:
        """After `store.push` says that everything is where it rests. Raises OSError."""
        next_seq_ids: dict[int, int] = {}
        for queue in self.queues.values():
            backing = queue.backing
            if queue.durable and isinstance(backing, VariableQueue):
                next_seq_ids[backing.index.queue_id] = backing.next_seq_id
        self.store.stop(next_seq_ids)

    def delete_exclusive_queues(self, connection: object) -> None:
        """The connection is gone, and its queues with it."""
        for queue in list(self._exclusive.get(connection, {})):
            self.delete_queue(queue)
        self._exclusive.pop(connection, None)


def _table(raw: bytes) -> FieldTable:
    return decode_table(len(raw).to_bytes(4, "big") + raw, 0)[0]


def _is_durable(destination: Destination) -> bool:
    if isinstance(destination, Queue):
        return destination.durable
    return isinstance(destination, Exchange) and destination.durable


def _same_flag(name: str, what: str, received: bool, current: bool) -> None:
    if received != current:
        raise ChannelClosed(
            PRECONDITION_FAILED,
            f"inequivalent arg '{name}' {what}: received '{_flag(received)}' but current is '{_flag(current)}'",
        )


def _flag(value: bool) -> str:
    return "true" if value else "false"
