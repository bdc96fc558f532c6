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
from collections.abc import Callable, Iterator
from typing import Final

from mypy_extensions import i64, u8

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.errors import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    ChannelClosed,
    StartError,
)
from rabbitpy_broker.events.journal import EventJournal
from rabbitpy_broker.limits import NO_LIMIT, VHostLimits
from rabbitpy_broker.message import Message
from rabbitpy_broker.policies import Policies
from rabbitpy_broker.queues.arguments import (
    VERIFIED_ARGUMENTS,
    check_arguments,
    inequivalent,
    max_priority,
)
from rabbitpy_broker.queues.backing_queue import BackingQueue
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.dead_letter import DeadLetter, address_of, split_address
from rabbitpy_broker.queues.dead_lettered import DISABLED
from rabbitpy_broker.queues.dead_letters import DeadLetters, LetterRouter
from rabbitpy_broker.queues.deduplication import deduplication
from rabbitpy_broker.queues.delay_queue import DelayQueue
from rabbitpy_broker.queues.delayed_messages import DelayedMessages, PlainMaker
from rabbitpy_broker.queues.msg_status import MsgStatus, StatusMaker
from rabbitpy_broker.queues.priority_queue import LaneMaker, PriorityQueue, lane_id
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_host import HostedQueue, QueueHost
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES, PERSIST, QueueSettings
from rabbitpy_broker.queues.timers import Timed, Timers
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.routing.delayed import DelayedExchange
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.routing.resolve import is_cacheable, make_exchange, resolve, upstream
from rabbitpy_broker.storage.place import PlaceMaker
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.sync import SyncGroup
from rabbitpy_broker.storage.terms import TermsWrite
from rabbitpy_broker.storage.vhost_store import RecoveredQueue, VHostStore
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import blind_keys, shown_header
from rabbitpy_broker.wire.field_table import FieldTable, decode_table

MAX_ROUTES: Final = 65_536
UNROUTABLE: Final[i64] = -1
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
    """Where an address leads. `exchange` is None for the default exchange; not `cacheable`: ask for each message.

    `copies` are further routing keys, of one message only (CC and BCC): such a route is made for it, and kept nowhere.
    """

    def __init__(self, address: bytes, exchange_name: str, routing_key: str, exchange: Exchange | None) -> None:
        self.address = address
        self.exchange_name = exchange_name
        self.routing_key = routing_key
        self.exchange = exchange
        self.copies: list[str] | None = None
        self.queues: list[Queue] = []
        self.cacheable = True
        self.valid = True
        self.event_id: i64 = 0  # of the exchange, in the event journal


class DeletedQueues:
    """What queues that are gone had counted."""

    def __init__(self) -> None:
        self.published: i64 = 0
        self.paged_out: i64 = 0
        self.paged_in: i64 = 0
        self.disk_reads: i64 = 0
        self.disk_writes: i64 = 0


class Lanes(LaneMaker):
    """Makes the variable queues of one queue with priorities."""

    def __init__(self, vhost: VHost, queue_id: int, durable: bool, arguments: FieldTable) -> None:
        self._vhost = vhost
        self._queue_id = queue_id
        self._durable = durable
        self._arguments = arguments

    def make_lane(self, priority: u8) -> BackingQueue:
        vhost = self._vhost
        queue_id = lane_id(self._queue_id, int(priority))
        index = vhost.store.new_index(queue_id, self._durable, StatusMaker(priority))
        return vhost.make_variable_queue(self._arguments, index, priority)


class VHost(QueueHost, LetterRouter):
    """One namespace. `definitions` and `store` keep what is durable; `queue_max` is 0 for no limit.

    `limits` come before `queue_max`, and change while it runs.
    `on_touch` and `dead_letters.on_due` are the turn's.
    """

    def __init__(
        self, name: str, definitions: Definitions, store: VHostStore, timers: Timers, queue_max: int = 0
    ) -> None:
        self.name = name
        self.timers = timers
        self.default_confirm_mode = "persist"
        self.on_touch: Callable[[HostedQueue], None] | None = None
        self.dead_letters = DeadLetters(self, store.journal, timers.clock)
        self.definitions = definitions
        self.store = store
        self.syncs: SyncGroup = store.journal
        self.policies = Policies(definitions, name)
        self.policies.on_change = self.apply_policies
        self._maker = StatusMaker()
        self.queue_max = queue_max
        self.limits = VHostLimits(definitions, name)
        self.connections: i64 = 0  # open ones; the protocol counts them
        self.events: EventJournal | None = None
        self.tracing = False  # by the firehose; not kept over a restart
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.queues_declared: i64 = 0
        self.queues_created: i64 = 0
        self.queues_deleted: i64 = 0
        self.deleted = DeletedQueues()
        self._routes: dict[bytes, Route] = {}
        self._routes_of: dict[str, list[Route]] = {}
        self._alternates = 0
        self.reply_queues: dict[str, Queue] = {}  # of direct reply-to: to its users they are no queues at all
        self._exclusive: dict[object, dict[Queue, None]] = {}  # by connection
        for exchange_name, kind in PREDECLARED:
            internal = exchange_name == "amq.rabbitmq.trace"
            self.exchanges[exchange_name] = make_exchange(kind, exchange_name, True, False, internal, NO_ARGUMENTS)

    def load(self) -> None:
        """Brings back what the definitions hold, and the messages of its queues. Raises StartError."""
        for name, kind, auto_delete, internal, raw in self.definitions.exchanges(self.name):
            exchange = make_exchange(kind, name, True, auto_delete, internal, _table(raw))
            exchange.deduplication = deduplication(exchange.arguments, f"exchange '{name}'", self.timers.clock)
            self._add_exchange(exchange)
        queues = self.definitions.queues(self.name)
        makers: dict[int, PlaceMaker] = {}
        for _, _, raw, queue_id in queues:
            for priority in range(max_priority(_table(raw)) + 1):
                makers[lane_id(queue_id, priority)] = StatusMaker(u8(priority))
        delay_queues = self.definitions.delay_queues(self.name)
        for queue_id in delay_queues.values():
            makers[queue_id] = PlainMaker()
        recovered = self.store.recover(makers)
        for name, queue_id in delay_queues.items():
            self._recover_delay_queue(name, recovered[queue_id])
        for name, auto_delete, raw, queue_id in queues:
            arguments = _table(raw)
            backing = self._recover_backing(queue_id, arguments, recovered)
            queue = self._make_queue(name, True, auto_delete, None, arguments, backing)
            self.queues[name] = queue
            self._record(queue, queue_id)
        for source, kind, destination, key, raw in self.definitions.bindings(self.name):
            exchange = self.exchanges[source]
            target: Destination = self.queues[destination] if kind == QUEUE else self.exchanges[destination]
            exchange.bind(target, key, _table(raw), True)
        for exchange in self.exchanges.values():
            self._apply_policy(exchange)

    def _recover_delay_queue(self, exchange_name: str, found: RecoveredQueue) -> None:
        exchange = self.exchanges[exchange_name]
        assert isinstance(exchange, DelayedExchange), "kept by: declare_exchange"
        queue = self._make_delay_queue(exchange, found.index)
        try:
            queue.messages.recovered(found.next_seq_id, found.places)
        except OSError as error:
            raise StartError(f"cannot read what {exchange_name} has delayed: {error}") from None
        self._record(queue, int(found.index.queue_id))
        queue.expect_next()

    def _recover_backing(
        self, queue_id: int, arguments: FieldTable, recovered: dict[int, RecoveredQueue]
    ) -> BackingQueue:
        highest = max_priority(arguments)
        lanes: dict[int, VariableQueue] = {}
        for priority in range(highest + 1):
            found = recovered[lane_id(queue_id, priority)]
            if priority > 0 and found.next_seq_id == 0:
                self.store.forget(found.index)
                continue
            lane = self.make_variable_queue(arguments, found.index, u8(priority))
            lane.recovered(found.next_seq_id, found.delta_end, found.places)
            lanes[priority] = lane
        if highest == 0:
            return lanes[0]
        backing = PriorityQueue(highest, Lanes(self, queue_id, True, arguments))
        for priority, lane in lanes.items():
            backing.add_lane(priority, lane)
        return backing

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
            queue = self.addressed(routing_key)
            if queue is not None:
                route.queues.append(queue)
        elif is_cacheable(exchange, self.exchanges):
            route.queues = self._resolve(exchange, [routing_key], None)
            route.cacheable = exchange.deduplication is None
        else:
            route.cacheable = False
        if len(self._routes) >= MAX_ROUTES:
            self._forget_all_routes()
        self._routes[address] = route
        if exchange is not None:
            self._routes_of.setdefault(exchange_name, []).append(route)
        return route

    def queues_for(self, route: Route, header: ContentHeader) -> list[Queue]:
        """The queues of a route that is not cacheable, for a message with this header. Raises ValueError."""
        routing_keys = [route.routing_key]
        if route.copies is not None:
            routing_keys.extend(route.copies)
        if route.exchange is not None:
            return self._resolve(route.exchange, routing_keys, header)
        queues: dict[Queue, None] = {}
        for name in routing_keys:
            queue = self.addressed(name)
            if queue is not None:
                queues[queue] = None
        return list(queues)

    def addressed(self, name: str) -> Queue | None:
        """The queue that this routing key leads to at the default exchange."""
        queue = self.queues.get(name)
        return self.reply_queues.get(name) if queue is None else queue

    def _resolve(self, exchange: Exchange, routing_keys: list[str], header: ContentHeader | None) -> list[Queue]:
        queues: list[Queue] = []
        for found in resolve(exchange, self.exchanges, routing_keys, header):
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
        check_alternate(name, self.name, arguments)
        exchange = make_exchange(kind, name, durable, auto_delete, internal, arguments)
        what = f"exchange '{name}' in vhost '{self.name}'"
        exchange.deduplication = deduplication(arguments, what, self.timers.clock)
        if isinstance(exchange, DelayedExchange):
            self._new_delay_queue(exchange)
        self._add_exchange(exchange)
        if durable:
            self.definitions.put_exchange(self.name, name, kind, auto_delete, internal, arguments.raw)

    def _new_delay_queue(self, exchange: DelayedExchange) -> None:
        queue_id = int.from_bytes(os.urandom(8), "big")
        queue = self._make_delay_queue(exchange, self.store.new_index(queue_id, exchange.durable, PlainMaker()))
        self._record(queue, queue_id)
        if exchange.durable:
            self.definitions.put_delay_queue(self.name, exchange.name, queue_id)

    def _make_delay_queue(self, exchange: DelayedExchange, index: QueueIndex) -> DelayQueue:
        embed_below = self.store.settings.queue_index_embed_msgs_below
        queue = DelayQueue(self, self.name, exchange, DelayedMessages(index, embed_below, self.timers.clock))
        exchange.delay_queue = queue
        return queue

    def all_queues(self) -> list[Queue]:
        """Whatever holds messages: the queues, those of direct reply-to, and those behind delayed message exchanges."""
        return [*self.queues.values(), *self.reply_queues.values(), *self.delay_queues()]

    def delay_queues(self) -> list[DelayQueue]:
        """What the delayed message exchanges keep their messages in."""
        found: list[DelayQueue] = []
        for exchange in self.exchanges.values():
            if isinstance(exchange, DelayedExchange) and exchange.delay_queue is not None:
                found.append(exchange.delay_queue)
        return found

    def _add_exchange(self, exchange: Exchange) -> None:
        self.exchanges[exchange.name] = exchange
        if exchange.alternate:
            self._alternates += 1
        self._apply_policy(exchange)
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
            if self.events is not None:
                self.events.exchange_deleted(self.name, gone.name)
            if gone.alternate:
                self._alternates -= 1
            if gone.durable:
                self.definitions.delete_exchange(self.name, gone.name)
            if isinstance(gone, DelayedExchange) and gone.delay_queue is not None:
                gone.delay_queue.delete()
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
        """Makes a queue, or verifies that the one of that name is the same.

        An exclusive queue is never durable: it goes with its connection. Without a connection the broker itself declares.
        """
        self.queues_declared += 1
        durable = durable and not exclusive
        current = self.queues.get(name)
        if current is not None:
            self._verify_queue(current, durable, connection if exclusive else None, auto_delete, arguments)
            return current
        self.check_queue_limit(name)
        check_arguments(name, self.name, arguments)
        queue_id = int.from_bytes(os.urandom(8), "big")
        backing = self._new_backing(queue_id, durable, arguments)
        queue = self._make_queue(name, durable, auto_delete, connection if exclusive else None, arguments, backing)
        self._record(queue, queue_id)
        self.queues[name] = queue
        self.queues_created += 1
        if exclusive:
            self._exclusive.setdefault(connection, {})[queue] = None
        self._forget_default_route(name)
        if durable:
            self.definitions.put_queue(self.name, name, auto_delete, arguments.raw, queue_id)
        return queue

    def check_queue_limit(self, name: str) -> None:
        """Raises 406 when there are as many queues as the vhost's limit says, or the configured one if it has none."""
        limit: int | None = self.limits.max_queues
        if limit is None:
            limit = self.queue_max or NO_LIMIT
        if 0 <= limit <= len(self.queues):
            raise ChannelClosed(
                PRECONDITION_FAILED,
                f"cannot declare queue '{name}': queue limit in vhost '{self.name}' ({limit}) is reached",
            )

    def make_reply_queue(self) -> Queue:
        """A queue behind direct reply-to: its unguessable name is the reply_to of requests, its one consumer gets the
        replies, and it goes with that consumer.
        """
        # Two parts and their padding as in RabbitMQ, where the first names a process: clients tell such names by their shape.
        name = f"{REPLY_TO}.{_random_text(18)}.{_random_text(16)}"
        queue_id = int.from_bytes(os.urandom(8), "big")
        backing = self._new_backing(queue_id, False, NO_ARGUMENTS)
        settings = QueueSettings(NO_ARGUMENTS, {})  # it is of no policy's business
        queue = Queue(self, self.name, name, False, True, None, NO_ARGUMENTS, backing, settings)
        self._record(queue, queue_id)
        self.reply_queues[name] = queue
        self._forget_default_route(name)
        return queue

    def delete_reply_queue(self, queue: Queue) -> None:
        """Its consumer is gone."""
        if self.reply_queues.pop(queue.name, None) is not None:
            self._forget_default_route(queue.name)
            queue.delete()

    def _make_queue(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: FieldTable,
        backing: BackingQueue,
    ) -> Queue:
        settings = self._settings_of(name, arguments)
        return Queue(self, self.name, name, durable, auto_delete, owner, arguments, backing, settings)

    def _record(self, queue: Queue, store_id: int) -> None:
        """Has the event journal, if there is one, know a queue that was made or recovered."""
        events = self.events
        if events is not None:
            queue.record(events.queue(self.name, queue.name, queue.durable, store_id))

    def _settings_of(self, name: str, arguments: FieldTable) -> QueueSettings:
        return QueueSettings(arguments, self.policies.effective(name), self.default_confirm_mode)

    def _new_backing(self, queue_id: int, durable: bool, arguments: FieldTable) -> BackingQueue:
        highest = max_priority(arguments)
        if highest > 0:
            backing = PriorityQueue(highest, Lanes(self, queue_id, durable, arguments))
            backing.add_lane(0, backing.maker.make_lane(0))
            return backing
        return self.make_variable_queue(arguments, self.store.new_index(queue_id, durable, self._maker), 0)

    def make_variable_queue(self, arguments: FieldTable, index: QueueIndex, priority: u8) -> VariableQueue:
        """What keeps the messages of a queue, or of one of its priorities."""
        embed_below = self.store.settings.queue_index_embed_msgs_below
        return VariableQueue(index, PERSIST, False, embed_below, self.timers.clock, priority)

    def _verify_queue(
        self,
        current: Queue,
        durable: bool,
        owner: object | None,
        auto_delete: bool,
        arguments: FieldTable,
    ) -> None:
        if current.owner is not owner:
            raise self._locked(current.name)
        what = f"for queue '{current.name}' in vhost '{self.name}'"
        _same_flag("durable", what, durable, current.durable)
        _same_flag("auto_delete", what, auto_delete, current.auto_delete)
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
        self.deleted.published += queue.published
        for backing in queue.backing.parts():
            assert isinstance(backing, VariableQueue), "kept by: make_variable_queue"
            self.deleted.paged_out += backing.paged_out
            self.deleted.paged_in += backing.paged_in
            self.deleted.disk_reads += backing.index.segments.reads
            self.deleted.disk_writes += backing.index.segments.writes

    # -- what queues ask for --------------------------------------------------------------------------------------

    def clock(self) -> Clock:
        return self.timers.clock

    def wake_at(self, when_ms: i64, who: Timed) -> None:
        self.timers.at(when_ms, who)

    def touch(self, queue: HostedQueue) -> None:
        if self.on_touch is not None and not queue.touched:
            self.on_touch(queue)

    def queue_expired(self, queue: HostedQueue) -> None:
        self.delete_queue(self.queues[queue.name])

    def dead_letter(self, queue: HostedQueue, message: Message, status: MsgStatus | None, reason: str) -> None:
        self.dead_letters.add(DeadLetter(queue, message, status, reason))

    def gave_up(self, reason: str) -> None:
        self.dead_letters.dead_lettered.count(reason, DISABLED)

    # -- what the broker itself publishes -------------------------------------------------------------------------

    def publish(self, message: Message, exchange_name: str, routing_keys: list[str]) -> i64:
        """Publishes a message that the broker made: the worst of its queues' answers, or UNROUTABLE.

        Not from inside a queue's method: a turn's publishers are called where it is safe.
        """
        if self.events is not None:
            self.events.publish(self.name, exchange_name, message)
        return self._publish_to(self.find_queues(message, exchange_name, routing_keys), message)

    def has_exchange(self, name: str) -> bool:
        """Whether there is one; the default exchange always is."""
        return not name or name in self.exchanges

    def find_queues(self, message: Message, exchange_name: str, routing_keys: list[str]) -> list[Queue]:
        """The queues for a message; none when there is no such exchange."""
        exchange = self.exchanges.get(exchange_name)
        if exchange is None:
            named: dict[Queue, None] = {}
            for key in routing_keys if not exchange_name else []:
                queue = self.addressed(key)
                if queue is not None:
                    named[queue] = None
            return list(named)
        if len(routing_keys) == 1 and len(routing_keys[0].encode("utf-8", "replace")) <= 255:
            route = self.route(address_of(exchange_name, routing_keys[0]))
            if route.cacheable:
                return route.queues
        try:
            return self._resolve(exchange, routing_keys, ContentHeader(shown_header(message)))
        except ValueError:  # headers that no headers exchange can match
            return []

    def publish_delayed(self, exchange: Destination, message: Message) -> None:
        assert isinstance(exchange, DelayedExchange), "kept by: _make_delay_queue"
        header = ContentHeader(shown_header(message))
        routing_keys = [split_address(message.address)[1]]
        headers = header.headers()
        copies = headers.get("CC") if headers is not None else None
        if isinstance(copies, list):
            routing_keys.extend([key for key in copies if isinstance(key, str)])
        routing_keys.extend(blind_keys(message))
        if self.events is not None:
            self.events.publish(self.name, exchange.name, message)
        for queue in self._resolve(exchange, routing_keys, header):
            queue.publish(message)

    def _publish_to(self, queues: list[Queue], message: Message) -> i64:
        outcome = UNROUTABLE
        for queue in queues:
            outcome = max(outcome, queue.publish(message))
        return outcome

    # -- policies -------------------------------------------------------------------------------------------------

    def apply_policies(self) -> None:
        """A policy has come, changed or gone: what applies to each queue and exchange is found anew."""
        for _ in self.applying_policies():
            pass

    def applying_policies(self) -> Iterator[None]:
        """The same, one queue or exchange at a time; what is declared meanwhile has the new policies from its beginning."""
        for queue in list(self.queues.values()):
            if self.queues.get(queue.name) is queue:
                self._apply_to_queue(queue)
            yield
        for exchange in list(self.exchanges.values()):
            if self.exchanges.get(exchange.name) is exchange:
                self._apply_policy(exchange)
            yield

    def _apply_to_queue(self, queue: Queue) -> None:
        before = queue.settings.confirm_mode
        queue.apply(self._settings_of(queue.name, queue.arguments))
        if queue.settings.confirm_mode != before:
            mode = CONFIRM_MODES[queue.settings.confirm_mode]
            self.store.log.info("confirm mode changed", queue=queue.name, mode=mode)

    def _apply_policy(self, exchange: Exchange) -> None:
        """Arguments beat policies."""
        policy = self.policies.for_exchange(exchange.name)
        before = exchange.alternate
        exchange.apply_policy(policy.definition if policy is not None else {})
        if exchange.alternate != before:
            self._alternates += (1 if exchange.alternate else 0) - (1 if before else 0)
            self._forget_all_routes()

    # -- now and then, and the end --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """About once a second: what the store does when nobody asks for anything."""
        self.store.tick()
        for queue in self.all_queues():
            queue.backing.tick(now)
        self.dead_letters.tick()

    def stop(self) -> TermsWrite:
        """After `store.push` says that nothing is under way any more: closes the store; what is given is still to be done."""
        next_seq_ids: dict[QueueIndex, int] = {}
        for queue in self.queues.values():
            for backing in queue.backing.parts() if queue.durable else []:
                assert isinstance(backing, VariableQueue), "kept by: make_variable_queue"
                backing.note_delivered()
                next_seq_ids[backing.index] = backing.next_seq_id
        for delay_queue in self.delay_queues():
            if delay_queue.durable:
                messages = delay_queue.messages
                next_seq_ids[messages.index] = messages.next_seq_id
        return self.store.stop(next_seq_ids)

    def delete_exclusive_queues(self, connection: object) -> None:
        """The connection is gone, and its queues with it."""
        for queue in list(self._exclusive.get(connection, {})):
            self.delete_queue(queue)
        self._exclusive.pop(connection, None)


def generated_name() -> str:
    """A name for a queue that its client leaves to the broker."""
    return "amq.gen-" + base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("=")


def check_alternate(name: str, vhost: str, arguments: FieldTable) -> None:
    """Raises 406 when the alternate exchange that an exchange is to have is no name."""
    alternate = arguments.get("alternate-exchange")
    if alternate is not None and not isinstance(alternate, str):
        raise ChannelClosed(
            PRECONDITION_FAILED,
            f"invalid type '{arguments.type_name('alternate-exchange')}' for arg 'alternate-exchange' "
            f"in exchange '{name}' in vhost '{vhost}'",
        )


def _table(raw: bytes) -> FieldTable:
    return decode_table(len(raw).to_bytes(4, "big") + raw, 0)[0]


def _random_text(size: int) -> str:
    """So many random bytes in base64."""
    return base64.b64encode(os.urandom(size)).decode("ascii")


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
