"""A virtual host: its exchanges, queues and bindings, and all that may change them.

Every change goes through this file: durable things are noted in the definitions (the commit comes before any `-ok` leaves,
see `protocol/turn.py`), routes that a change could alter are thrown away (`routing/routes.py`), and what ends takes its
bindings along. Queues are made by `queues/queue_factory.py`.

What must stay true: a binding's source and destination are there; an exclusive queue is in `queues` as long as its connection
is open, and no longer.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64, mypyc_attr

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.durable_queues import NO_ARGUMENTS, DurableQueues, arguments_of
from rabbitpy_broker.errors import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    ChannelClosed,
)
from rabbitpy_broker.events.journal import EventJournal
from rabbitpy_broker.limits import NO_LIMIT, VHostLimits
from rabbitpy_broker.message import Message
from rabbitpy_broker.policies import Policies
from rabbitpy_broker.questions import Question
from rabbitpy_broker.queues.arguments import (
    check_arguments,
    check_properties,
    inequivalent,
    verified_arguments,
    with_type,
)
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.dead_letter import DeadLetter, split_address
from rabbitpy_broker.queues.dead_lettered import DISABLED
from rabbitpy_broker.queues.dead_letters import DeadLetters, LetterRouter
from rabbitpy_broker.queues.deduplication import deduplication
from rabbitpy_broker.queues.delay_queue import DelayQueue
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_factory import QueueFactory
from rabbitpy_broker.queues.queue_host import BackedQueue, HostedQueue, QueueHost, QueueTurn
from rabbitpy_broker.queues.queue_settings import (
    CLASSIC,
    CONFIRM_MODES,
    DEFAULTS,
    QUEUE_TYPES,
    QueueDefaults,
    QueueSettings,
    queue_type,
)
from rabbitpy_broker.queues.timers import Timed, Timers
from rabbitpy_broker.routing.delayed import DelayedExchange
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.routing.resolve import make_exchange
from rabbitpy_broker.routing.routes import Routes
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.sync import SyncGroup
from rabbitpy_broker.storage.terms import TermsWrite
from rabbitpy_broker.storage.vhost_store import VHostStore
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import blind_keys, shown_header
from rabbitpy_broker.wire.field_table import FieldTable

UNROUTABLE: Final[i64] = -1
TICKED_TOGETHER: Final = 50  # queues in one step of a tick, with as many messages in all but the last of them
MESSAGES_TOGETHER: Final = 1_000
REPLY_TO: Final = "amq.rabbitmq.reply-to"
PREDECLARED: Final = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.rabbitmq.trace", "topic"),
)


@mypyc_attr(allow_interpreted_subclasses=True)
class Follower:
    """Whoever has bindings at an exchange as long as others have the same ones, and no longer."""

    def unbound(self, binding: Binding) -> None:
        """One that is no follower's has gone."""
        raise NotImplementedError


class DeletedQueues:
    """What queues that are gone had counted."""

    def __init__(self) -> None:
        self.published: i64 = 0
        self.paged_out: i64 = 0
        self.paged_in: i64 = 0
        self.disk_reads: i64 = 0
        self.disk_writes: i64 = 0


class VHost(QueueHost, LetterRouter):
    """One namespace. `definitions` and `store` keep what is durable; `queue_max` is 0 for no limit.

    `limits` come before `queue_max`, and change while it runs. `turn` is told what is due. `defaults` are for queues of which
    nothing else is said; the type among them gives way to the vhost's own, in its metadata.

    Large, because exchanges, queues and bindings change together: each change asks all three, the definitions and the store.
    """

    def __init__(
        self,
        name: str,
        definitions: Definitions,
        store: VHostStore,
        timers: Timers,
        turn: QueueTurn,
        queue_max: int = 0,
        defaults: QueueDefaults = DEFAULTS,
    ) -> None:
        self.name = name
        self.timers = timers
        self.defaults = defaults
        self.dead_letters = DeadLetters(self, store.journal, timers.clock, turn)
        self.definitions = definitions
        self.store = store
        self.syncs: SyncGroup = store.journal
        self.policies = Policies(definitions, name)
        self.queue_max = queue_max
        self.limits = VHostLimits(definitions, name)
        self.connections: i64 = 0  # open ones; the protocol counts them
        self.events: EventJournal | None = None
        self.own_queue_type = ""  # its default type; "": it has none
        self.held = ""  # why nothing can be promised to its publishers now; "": something can
        self.in_question: Question | None = None  # whether this node still owns it, while that is not known: nothing is delivered
        self.tracing = False  # by the firehose; not kept over a restart
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.queues_declared: i64 = 0
        self.queues_created: i64 = 0
        self.queues_deleted: i64 = 0
        self.deleted = DeletedQueues()
        self.followers: dict[Exchange, list[Follower]] = {}
        self.reply_queues: dict[str, Queue] = {}  # of direct reply-to: to its users they are no queues at all
        self.routes = Routes(name, self.exchanges, self.queues, self.reply_queues)
        self._turn = turn
        self._factory = QueueFactory(self, name, store, defaults)
        self._exclusive: dict[object, dict[Queue, None]] = {}  # by connection
        for exchange_name, kind in PREDECLARED:
            internal = exchange_name == "amq.rabbitmq.trace"
            self.exchanges[exchange_name] = make_exchange(kind, exchange_name, True, False, internal, NO_ARGUMENTS)

    def load(self) -> None:
        """Brings back what the definitions hold, and the messages of its queues. Raises StartError."""
        self.set_metadata(self.definitions.vhost_metadata(self.name))
        for name, kind, auto_delete, internal, raw in self.definitions.exchanges(self.name):
            exchange = make_exchange(kind, name, True, auto_delete, internal, arguments_of(raw))
            exchange.deduplication = deduplication(exchange.arguments, f"exchange '{name}'", self.timers.clock)
            self._add_exchange(exchange)
        durable = DurableQueues(self.definitions, self.name)
        recovered = self.store.recover(durable.makers, durable.streams)
        for name, queue_id in durable.delay_queues.items():
            exchange = self.exchanges[name]
            assert isinstance(exchange, DelayedExchange), "kept by: declare_exchange"
            delay_queue = self._factory.recover_delay_queue(exchange, recovered[queue_id])
            exchange.delay_queue = delay_queue
            self._record(delay_queue, queue_id)
            delay_queue.expect_next()
        for name, (auto_delete, arguments, queue_id) in durable.queues.items():
            settings = self._settings_of(name, arguments)
            queue = self._factory.recover(name, auto_delete, arguments, settings, queue_id, recovered)
            self.queues[name] = queue
            self._record(queue, queue_id)
        for source, kind, destination, key, raw in self.definitions.bindings(self.name):
            exchange = self.exchanges[source]
            target: Destination = self.queues[destination] if kind == QUEUE else self.exchanges[destination]
            exchange.bind(target, key, arguments_of(raw), True)
        for exchange in self.exchanges.values():
            self._apply_policy(exchange)

    # -- exchanges ------------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """The exchange of that name. Raises 404."""
        return self.routes.exchange(name)

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
        queue_id = _new_id()
        queue = self._factory.make_delay_queue(exchange, exchange.durable, queue_id)
        exchange.delay_queue = queue
        self._record(queue, queue_id)
        if exchange.durable:
            self.definitions.put_delay_queue(self.name, exchange.name, queue_id)

    def each_queue(self) -> Iterator[Queue]:
        """The queues, for a walk in slices: one that is there all the while comes once, one that goes before does not."""
        for queue in list(self.queues.values()):
            if not queue.deleted:
                yield queue

    def each_holder(self) -> Iterator[HostedQueue]:
        """As `each_queue`, of whatever holds messages: queues of direct reply-to and behind delayed message exchanges too."""
        yield from self.each_queue()
        for name in list(self.reply_queues):
            reply_queue = self.reply_queues.get(name)
            if reply_queue is not None:
                yield reply_queue
        for delay_queue in self.delay_queues():
            if not delay_queue.deleted:
                yield delay_queue

    def delay_queues(self) -> list[DelayQueue]:
        """What the delayed message exchanges keep their messages in."""
        found: list[DelayQueue] = []
        for exchange in self.exchanges.values():
            if isinstance(exchange, DelayedExchange) and exchange.delay_queue is not None:
                found.append(exchange.delay_queue)
        return found

    def each_exchange(self) -> Iterator[Exchange]:
        """As `each_queue`, of the exchanges."""
        for name in list(self.exchanges):
            exchange = self.exchanges.get(name)
            if exchange is not None:
                yield exchange

    def _add_exchange(self, exchange: Exchange) -> None:
        self.exchanges[exchange.name] = exchange
        self.routes.exchange_added(exchange)
        self._apply_policy(exchange)

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
            self.routes.exchange_removed(gone)
            del self.exchanges[gone.name]
            if self.events is not None:
                self.events.exchange_deleted(self.name, gone.name)
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
        self.routes.forget_for(source)

    def unbind(self, source: Exchange, destination: Destination, binding_key: str, arguments: FieldTable) -> None:
        """Unbinds; an absent binding is no error. An auto-delete exchange goes with its last binding."""
        self.routes.forget_for(source)
        binding = source.unbind(destination, binding_key, arguments)
        if binding is not None and self._unbound(binding):
            self._remove_exchange(source)

    def _unbound(self, binding: Binding) -> bool:
        """Forgets a binding; True when its source is now to be auto-deleted."""
        source = binding.source
        if self.followers:
            for follower in self.followers.get(source, []):
                follower.unbound(binding)
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
            self.routes.forget_for(binding.source)
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
        asked_durable, durable = durable, durable and not exclusive
        current = self.queues.get(name)
        if current is not None:
            self._verify_queue(current, durable, connection if exclusive else None, auto_delete, arguments)
            return current
        self.check_queue_limit(name)
        check_arguments(name, self.name, arguments)
        if queue_type(arguments) != CLASSIC:
            check_properties(name, self.name, asked_durable, exclusive, auto_delete)
        queue_id = _new_id()
        owner = connection if exclusive else None
        settings = self._settings_of(name, arguments)
        queue = self._factory.make(name, durable, auto_delete, owner, arguments, settings, queue_id)
        self._record(queue, queue_id)
        self.queues[name] = queue
        self.queues_created += 1
        if exclusive:
            self._exclusive.setdefault(connection, {})[queue] = None
        self.routes.forget_default(name)
        if durable:
            self.definitions.put_queue(self.name, name, auto_delete, arguments.raw, queue_id)
        return queue

    def typed(self, arguments: FieldTable, durable: bool, exclusive: bool, auto_delete: bool) -> FieldTable:
        """The arguments of a declaration, of the vhost's default type if they name none and the queue could be of it."""
        kind = self.default_queue_type()
        if kind == CLASSIC or "x-queue-type" in arguments or not durable or exclusive or auto_delete:
            return arguments
        return with_type(arguments, kind)

    def default_queue_type(self) -> str:
        """That of the vhost's metadata, or the broker's."""
        return self.own_queue_type or self.defaults.queue_type

    def set_metadata(self, metadata: str) -> None:
        """What `add_vhost` was given, a JSON object: the default type in it is for what is declared from now on."""
        kind = json.loads(metadata).get("default_queue_type")
        self.own_queue_type = kind if kind in QUEUE_TYPES else ""

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
        queue_id = _new_id()
        settings = QueueSettings(NO_ARGUMENTS, {})  # no policy applies to it
        queue = self._factory.make(name, False, True, None, NO_ARGUMENTS, settings, queue_id)
        self._record(queue, queue_id)
        self.reply_queues[name] = queue
        self.routes.forget_default(name)
        return queue

    def delete_reply_queue(self, queue: Queue) -> None:
        """Its consumer is gone."""
        if self.reply_queues.pop(queue.name, None) is not None:
            self.routes.forget_default(queue.name)
            queue.delete()

    def _record(self, queue: HostedQueue, store_id: int) -> None:
        """Has the event journal, if there is one, know a queue that was made or recovered."""
        events = self.events
        if events is not None:
            queue.record(events.queue(self.name, queue.name, queue.durable, store_id))

    def _settings_of(self, name: str, arguments: FieldTable) -> QueueSettings:
        return QueueSettings(arguments, self.policies.effective(name, queue_type(arguments)), self.defaults)

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
        for key in verified_arguments(queue_type(current.arguments)):
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
        self.routes.forget_default(queue.name)
        if queue.durable:
            self.definitions.delete_queue(self.name, queue.name)
            if queue.stream:
                self.definitions.delete_offsets(self.name, queue.name)
        if queue.owner is not None:
            self._exclusive[queue.owner].pop(queue, None)
        for exchange in self._unbind_incoming(queue):
            self._remove_exchange(exchange)
        return queue.delete()

    def _count_deleted(self, queue: Queue) -> None:
        figures = Figures()
        queue.backing.add_figures(figures)
        self.deleted.published += queue.published
        self.deleted.paged_out += figures.paged_out
        self.deleted.paged_in += figures.paged_in
        self.deleted.disk_reads += figures.disk_reads
        self.deleted.disk_writes += figures.disk_writes

    # -- what queues ask for --------------------------------------------------------------------------------------

    def clock(self) -> Clock:
        return self.timers.clock

    def wake_at(self, when_ms: i64, who: Timed) -> None:
        self.timers.at(when_ms, who)

    def touch(self, queue: HostedQueue) -> None:
        if not queue.touched:
            self._turn.touch(queue)

    def queue_expired(self, queue: HostedQueue) -> None:
        self.delete_queue(self.queues[queue.name])

    def dead_letter(self, queue: BackedQueue, message: Message, status: MsgStatus | None, reason: str) -> None:
        self.dead_letters.add(DeadLetter(queue, message, status, reason))

    def gave_up(self, reason: str, quorum: bool) -> None:
        self.dead_letters.dead_lettered.count(reason, DISABLED, quorum)

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

    def find_queues(self, message: Message, exchange_name: str, routing_keys: list[str]) -> list[HostedQueue]:
        """The queues for a message; none when there is no such exchange."""
        return self.routes.queues_of(message, exchange_name, routing_keys)

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
        for queue in self.routes.resolve(exchange, routing_keys, header):
            queue.publish(message)

    def _publish_to(self, queues: list[HostedQueue], message: Message) -> i64:
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
        for queue in self.each_queue():
            self._apply_to_queue(queue)
            yield
        for exchange in self.each_exchange():
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
            self.routes.count_alternate((1 if exchange.alternate else 0) - (1 if before else 0))

    # -- now and then, and the end --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """About once a second: what is done when nobody asks for anything."""
        for _ in self.ticking(now):
            pass

    def ticking(self, now: float) -> Iterator[None]:
        """The same, some queues at a time."""
        yield from self.store.ticking()
        holders: list[HostedQueue] = [*self.queues.values(), *self.reply_queues.values(), *self.delay_queues()]
        at = 0
        while at < len(holders):
            at = self._tick_some(holders, at, now)
            yield
        self.dead_letters.tick()

    def _tick_some(self, holders: list[HostedQueue], start: int, now: float) -> int:
        """Of those from `start` on, as many as take little time together: one with many messages may have to page them. Gives
        where the next ones begin.
        """
        at, messages = i64(start), i64(0)
        while at < min(start + TICKED_TOGETHER, len(holders)) and messages < MESSAGES_TOGETHER:
            holder = holders[at]
            at += 1
            if holder.deleted:
                continue
            kept = holder.kept
            messages += kept.len + kept.unacked
            kept.tick(now)
            if holder.unreadable:  # until now; perhaps the disk gives it again
                holder.unreadable = False
                self.touch(holder)
        return at

    def stop(self) -> TermsWrite:
        """After `store.push` says that nothing is under way any more: closes the store; what is given is still to be done."""
        next_seq_ids: dict[QueueIndex, int] = {}
        for queue in [*self.queues.values(), *self.delay_queues()]:
            if queue.durable:
                queue.kept.stop(next_seq_ids)
        return self.store.stop(next_seq_ids)

    def next_seq_ids(self) -> dict[int, int]:
        """By queue_id, of every durable queue: behind all seq_ids that it has used."""
        found: dict[int, int] = {}
        for queue in self.each_holder():
            if queue.durable:
                queue.kept.note_seq_ids(found)
        return found

    def delete_exclusive_queues(self, connection: object) -> None:
        """The connection is gone, and its queues with it."""
        for queue in list(self._exclusive.get(connection, {})):
            self.delete_queue(queue)
        self._exclusive.pop(connection, None)


def _new_id() -> int:
    return int.from_bytes(os.urandom(8), "big")


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
