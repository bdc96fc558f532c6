"""A vhost with TTL, dead-lettering, limits and priorities, the plain lists that it must agree with, and what joins them.

  Spec             what a queue is told to do: arguments and policy
  Copy             one message in one queue, from its publish or dead-lettering on; `children` are its dead letters
  Model            all queues as plain lists; knows of disks and turns only what it is told
  BrokerAndModel   does everything to both, and compares

The model is told in which order the broker drains its queues; all else follows from the rules. Everything is synced at
the end of a step. What is demanded after a crash in the middle of a step:
  - a persistent copy that was there before the step and is there after it, is there, with its expiry and priority;
  - one that was dead-lettered in the step is there, or what became of it, never both;
  - nothing returns that had left its queue and whose dead letter is there, and nothing is there twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from pamqp.commands import Basic, Channel
from pamqp.commands import Queue as QueueMethods

from cranked_clock import CrankedTime
from rabbitpy_broker.storage.vhost_store import StoreSettings
from rabbitpy_broker.wire.properties import decode_headers
from sans_io import METHOD, Peer, SansIOBroker, content, method, parts_of
from small_client import Got, SmallClient, contents
from storage.faulty_disk import Choose, MemoryDisk

NAMES = ("a", "b", "c", "d")
FANNED = ("c", "d")  # what the exchange "x" leads to
GET = 1  # the channel that gets and publishes
NUMBERS = ("message-ttl", "max-length", "max-length-bytes", "delivery-limit")
TEXTS = ("overflow", "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy")

Death = tuple[str, str, int]


def small_settings() -> StoreSettings:
    settings = StoreSettings()
    settings.msg_store_file_size_limit = 4096
    settings.queue_index_embed_msgs_below = 300
    settings.queue_index_max_journal_entries = 20
    settings.segment_entry_count = 8
    settings.journal_file_size_limit = 4 * 4096
    return settings


class Spec:
    """`arguments` without their x-, `policy` as it stands now."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.policy: dict[str, Any] = {}

    def number(self, key: str) -> int | None:
        found = [one[key] for one in (self.arguments, self.policy) if key in one]
        return min(found) if found else None

    def text(self, key: str) -> str | None:
        return self.arguments.get(key, self.policy.get(key))

    @property
    def dlx(self) -> str | None:
        return self.text("dead-letter-exchange")

    @property
    def rejects(self) -> bool:
        return (self.text("overflow") or "drop-head") != "drop-head"

    @property
    def at_least_once(self) -> bool:
        strategy = self.text("dead-letter-strategy") == "at-least-once"
        return strategy and self.dlx is not None and self.text("overflow") == "reject-publish"


class Copy:
    def __init__(
        self,
        number: int,
        queue: str,
        place: int,
        message: Message,
        expiry: int,
        deaths: tuple[Death, ...],
    ) -> None:
        self.number = number
        self.queue = queue
        self.place = place
        self.message = message
        self.lane = 0
        self.expiry = expiry
        self.deaths = deaths
        self.redelivered: bool | None = False  # None: either
        self.delivered = False
        self.returns = 0
        self.children: list[Copy] = []
        self.taken_by: set[str] = set()
        self.fate = ""

    def key(self) -> tuple[str, int, tuple[Death, ...]]:
        return (self.queue, self.number, self.deaths)

    def descendants(self) -> Iterator[Copy]:
        for child in self.children:
            yield child
            yield from child.descendants()

    def __repr__(self) -> str:
        return f"<{self.number} in {self.queue} {self.fate} {self.deaths}>"


class Message:
    """What does not change on a message's way."""

    def __init__(self, size: int, persistent: bool, priority: int, key: str) -> None:
        self.size = size
        self.persistent = persistent
        self.priority = priority
        self.key = key  # its routing key; a dead letter may have another


class ModelConsumer:
    def __init__(self, channel: int, tag: str, limit: int, no_ack: bool) -> None:
        self.channel = channel
        self.tag = tag
        self.limit = limit
        self.no_ack = no_ack
        self.held = 0

    def is_ready(self) -> bool:
        return self.no_ack or self.limit == 0 or self.held < self.limit


class ModelQueue:
    def __init__(self, name: str, spec: Spec) -> None:
        self.name = name
        self.spec = spec
        self.ready: list[Copy] = []
        self.consumer: ModelConsumer | None = None

    def insert(self, copy: Copy) -> None:
        self.ready.append(copy)
        self.ready.sort(key=lambda one: (-one.lane, one.place))

    def is_over(self, more: int = 0, size: int = 0) -> bool:
        count, weight = self.spec.number("max-length"), self.spec.number("max-length-bytes")
        return (count is not None and len(self.ready) + more > count) or (
            weight is not None and sum(one.message.size for one in self.ready) + size > weight
        )


class Model:
    def __init__(self, specs: dict[str, Spec]) -> None:
        self.now = 0
        self.queues = {name: ModelQueue(name, spec) for name, spec in specs.items()}
        self.letters: deque[tuple[Copy | None, Copy, str]] = deque()  # source, what it was, reason
        self.kept: list[tuple[Copy, str]] = []
        self.held: dict[int, dict[int, tuple[Copy, ModelConsumer | None]]] = {}  # by channel and tag
        self.expected: dict[int, list[Copy]] = {}  # deliveries, by channel
        self.next_place = 0
        self.born: list[Copy] = []
        self.settled: set[Copy] = set()

    def alive(self) -> set[Copy]:
        found = {copy for queue in self.queues.values() for copy in queue.ready}
        found.update(copy for held in self.held.values() for copy, _ in held.values())
        found.update(copy for copies in self.expected.values() for copy in copies)
        found.update(source for source, _, _ in self.letters if source is not None)
        found.update(copy for copy, _ in self.kept)
        return found

    def unacked(self, queue: str) -> int:
        held = [copy for one in self.held.values() for copy, _ in one.values()]
        return sum(copy.queue == queue for copy in held + [copy for copy, _ in self.kept])

    # -- a queue's rules --

    def publish(
        self, name: str, number: int, message: Message, ttl: int | None, deaths: tuple[Death, ...]
    ) -> Copy | None:
        """None when it is refused."""
        queue = self.queues[name]
        spec = queue.spec
        self.drop_expired(queue)
        times = [one for one in (spec.number("message-ttl"), ttl) if one is not None]
        copy = Copy(number, name, self.next_place, message, self.now + min(times) if times else 0, deaths)
        copy.lane = min(message.priority, spec.arguments.get("max-priority", 0))
        self.next_place += 1
        if spec.rejects and queue.is_over(1, message.size):
            if spec.text("overflow") == "reject-publish-dlx" and spec.dlx is not None:
                self.letters.append((None, copy, "maxlen"))
            return None
        self.born.append(copy)
        if not queue.ready and queue.consumer is not None and queue.consumer.is_ready():
            self.deliver(queue, copy)
            return copy
        queue.insert(copy)
        self.make_room(queue)
        self.drop_expired(queue)
        return copy

    def make_room(self, queue: ModelQueue) -> None:
        while not queue.spec.rejects and queue.ready and queue.is_over():
            self.discard(queue, queue.ready.pop(0), "maxlen")

    def drop_expired(self, queue: ModelQueue) -> None:
        while queue.ready and 0 < queue.ready[0].expiry <= self.now:
            self.discard(queue, queue.ready.pop(0), "expired")

    def discard(self, queue: ModelQueue, copy: Copy, reason: str) -> None:
        if queue.spec.dlx is None:
            self.settle(copy, reason)
        else:
            self.letters.append((copy, copy, reason))

    def settle(self, copy: Copy, fate: str) -> None:
        copy.fate = fate
        self.settled.add(copy)

    def deliver(self, queue: ModelQueue, copy: Copy) -> None:
        consumer = queue.consumer
        assert consumer is not None
        copy.delivered = True
        self.expected.setdefault(consumer.channel, []).append(copy)
        if consumer.no_ack:
            self.settle(copy, "acked")
        else:
            consumer.held += 1

    def requeue(self, queue: ModelQueue, copies: list[Copy]) -> None:
        limit = queue.spec.number("delivery-limit")
        for copy in copies:
            if limit is not None:
                copy.returns += 1
                if copy.returns > limit:
                    self.discard(queue, copy, "delivery_limit")
                    continue
            copy.redelivered = True
            queue.insert(copy)
        self.make_room(queue)

    def apply_policies(self) -> None:
        for queue in self.queues.values():
            if queue.spec.number("delivery-limit") is None:
                for copy in self.alive():
                    if copy.queue == queue.name:
                        copy.returns = 0

    # -- a turn --

    def turn(self, touched: list[str]) -> None:
        for name in touched:
            queue = self.queues[name]
            self.make_room(queue)
            while True:
                self.drop_expired(queue)
                if not queue.ready or queue.consumer is None or not queue.consumer.is_ready():
                    break
                self.deliver(queue, queue.ready.pop(0))
        while self.letters:
            self.publish_letter(*self.letters.popleft())

    def publish_letter(self, source: Copy | None, copy: Copy, reason: str) -> None:
        spec = self.queues[copy.queue].spec
        owed = False
        if spec.dlx is not None:
            deaths = died(copy.deaths, copy.queue, reason)
            key = spec.text("dead-letter-routing-key") or copy.message.key
            message = Message(copy.message.size, copy.message.persistent, copy.message.priority, key)
            targets = self.targets(spec.dlx, key)
            owed = not targets
            for target in targets:
                if target in copy.taken_by or is_circle(deaths, target):
                    continue
                child = self.publish(target, copy.number, message, None, deaths)
                if child is None:
                    owed = True
                else:
                    copy.taken_by.add(target)
                    copy.children.append(child)
        if source is None:
            return
        if owed and spec.at_least_once:
            self.kept.append((source, reason))
        else:
            self.settle(source, reason)

    def targets(self, exchange: str, key: str) -> list[str]:
        if exchange == "x":
            return list(FANNED)
        return [key] if exchange == "" and key in self.queues else []

    def tick(self) -> None:
        self.letters.extend((copy, copy, reason) for copy, reason in self.kept)
        self.kept = []


def died(deaths: tuple[Death, ...], queue: str, reason: str) -> tuple[Death, ...]:
    count = sum(one[2] for one in deaths if one[:2] == (queue, reason))
    return ((queue, reason, count + 1), *(one for one in deaths if one[:2] != (queue, reason)))


def is_circle(deaths: tuple[Death, ...], queue: str) -> bool:
    for one in deaths:
        if one[1] == "rejected":
            return False
        if one[0] == queue:
            return True
    return False


class WatchedBroker(SansIOBroker):
    """Tells the model of each turn before it comes."""

    model: Model | None = None

    def run(self) -> None:
        for _ in range(1_000):
            if self.due:
                if self.model is not None:
                    self.model.turn([queue.name for queue in self.turn._queues])
                self.due = False
                self.turn.run()
            elif not self.threads.crank():
                return
        raise AssertionError("turn follows turn without end")


class BrokerAndModel:
    def __init__(self, arguments: dict[str, dict[str, Any]]) -> None:
        self.time = CrankedTime()
        self.broker = WatchedBroker(time=self.time, settings=small_settings(), recording=True)
        self.model = Model({name: Spec(one) for name, one in arguments.items()})
        self._connect()
        for name, one in arguments.items():
            self.client.declare(name, {f"x-{key}": value for key, value in one.items()})
        for name in FANNED:
            self.client.bind("x", "fanout", name)
        self.next_number = 1
        self.told: dict[int, bool] = {}
        self.agrees = True
        self.partial: set[Copy] = set()  # was kept once: some targets may have theirs, at least once, while another refuses it
        self._begin()
        self._end()

    def _connect(self) -> None:
        self.broker.model = self.model
        self.client = SmallClient(self.broker)
        self.consumers: Peer = self.broker.connect()
        for at in range(len(NAMES)):
            self.consumers.open_channel(10 + at)

    def _begin(self) -> None:
        self.agrees = False
        self.from_op = len(self.broker.disk.log)
        self.before = self.model.alive()
        self.partial.update(copy for copy, _ in self.model.kept)
        self.model.born = []
        self.model.now = self.time.clock.now

    def _end(self) -> None:
        self._advance(0)
        self.broker.run()
        self.check()
        self.agrees = True

    def _advance(self, ms: int) -> None:
        """From timer to timer, each followed by its turn."""
        clock, timers = self.time.clock, self.time.timers
        end = clock.now + ms
        while 0 < timers.next_ms() <= end:
            clock.now = self.model.now = max(clock.now, timers.next_ms())
            timers.run()
            self.broker.run()
            self._collect()
        clock.now = self.model.now = end

    def _collect(self) -> None:
        """Compares what was delivered to consumers with what was to be."""
        frames = self.consumers.output()
        for got in contents(frames):
            expected = self.model.expected[got.channel].pop(0)
            compare(got, expected)
            consumer = self.model.queues[expected.queue].consumer
            if expected.fate != "acked":
                self.model.held.setdefault(got.channel, {})[got.tag] = (expected, consumer)
        left = [copy for copies in self.model.expected.values() for copy in copies]
        assert not left, f"not delivered: {left}"

    # -- clients --

    def publish(self, name: str, size: int, persistent: bool, ttl: int | None, priority: int) -> None:
        self._begin()
        number = self.next_number
        self.next_number += 1
        message = Message(size, persistent, priority, name)
        told = self.model.publish(name, number, message, ttl, ()) is not None
        body = (b"%08d" % number).ljust(size, b".")
        properties = _properties(persistent, priority, ttl)
        command = Basic.Publish(routing_key=name)
        frames = self.client.peer.feed(method(GET, command) + content(GET, body, properties))
        answers = [one.command() for one in frames if one.type == METHOD]
        assert len(answers) == 1, answers
        assert isinstance(answers[0], Basic.Ack if told else Basic.Nack), f"message {number}: {answers[0]}"
        self.told[number] = told
        self._collect()
        self._end()

    def get(self, name: str) -> None:
        self._begin()
        queue = self.model.queues[name]
        self.model.drop_expired(queue)
        copy = queue.ready.pop(0) if queue.ready else None
        if copy is not None:
            copy.delivered = True
            self.model.expected[0] = [copy]
            self.model.drop_expired(queue)  # what is told to be left has not expired
        frames = self.client.peer.feed(method(GET, Basic.Get(queue=name)))
        found = contents(frames)
        assert len(found) == (copy is not None), f"{found}, not {copy}"
        if copy is not None:
            compare(found[0], copy)
            self.model.expected[0] = []
            self.model.held.setdefault(GET, {})[found[0].tag] = (copy, None)
        self._collect()
        self._end()

    def settle(self, channel: int, which: int, how: str, multiple: bool) -> None:
        held = self.model.held.get(channel, {})
        if not held:
            return
        self._begin()
        tags = sorted(held)
        tag = tags[which % len(tags)]
        taken = [one for one in tags if one <= tag] if multiple else [tag]
        pairs = [held.pop(one) for one in taken]
        by_queue: dict[str, list[Copy]] = {}
        for copy, consumer in pairs:
            if consumer is not None:
                consumer.held -= 1
            by_queue.setdefault(copy.queue, []).append(copy)
        if how == "ack":
            for copy, _ in pairs:
                self.model.settle(copy, "acked")
            command: Any = Basic.Ack(delivery_tag=tag, multiple=multiple)
        elif how == "reject":
            for copy, _ in pairs:
                self.model.discard(self.model.queues[copy.queue], copy, "rejected")
            command = Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=False)
        else:
            for name, copies in by_queue.items():
                self.model.requeue(self.model.queues[name], copies)
            command = Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=True)
        peer = self.client.peer if channel == GET else self.consumers
        peer.connection.receive_data(method(channel, command))
        self.broker.run()
        self._collect()
        self._end()

    def consume(self, name: str, limit: int, no_ack: bool) -> None:
        queue = self.model.queues[name]
        channel = 10 + NAMES.index(name)
        self._begin()
        if queue.consumer is None:
            tag = f"{name}-{self.model.next_place}"
            queue.consumer = ModelConsumer(channel, tag, limit, no_ack)
            self.consumers.connection.receive_data(
                method(channel, Basic.Qos(prefetch_count=limit))
                + method(channel, Basic.Consume(queue=name, consumer_tag=tag, no_ack=no_ack))
            )
        else:
            self.consumers.connection.receive_data(
                method(channel, Basic.Cancel(consumer_tag=queue.consumer.tag))
            )
            queue.consumer = None
        self.broker.run()
        self._collect()
        self._end()

    def purge(self, name: str) -> None:
        self._begin()
        queue = self.model.queues[name]
        count = len(queue.ready)
        for copy in queue.ready:
            self.model.settle(copy, "purged")
        queue.ready = []
        answer = self.client.peer.call(GET, QueueMethods.Purge(queue=name))
        assert isinstance(answer, QueueMethods.PurgeOk), answer
        assert answer.message_count == count
        self._collect()
        self._end()

    def lose_consumers(self) -> None:
        """The connection of the consumers breaks."""
        self._begin()
        self._lost([10 + at for at in range(len(NAMES))])
        self.consumers.lose()
        self.consumers = self.broker.connect()
        for at in range(len(NAMES)):
            assert not isinstance(self.consumers.open_channel(10 + at), Channel.Close)
        self._collect()
        self._end()

    def _lost(self, channels: list[int]) -> None:
        for channel in channels:
            if channel != GET:
                self.model.queues[NAMES[channel - 10]].consumer = None
            by_queue: dict[str, list[Copy]] = {}
            for _, (copy, _) in sorted(self.model.held.pop(channel, {}).items()):
                by_queue.setdefault(copy.queue, []).append(copy)
            for name, copies in by_queue.items():
                self.model.requeue(self.model.queues[name], copies)

    # -- the broker --

    def set_policy(self, name: str, definition: dict[str, Any]) -> None:
        self._begin()
        policies = self.broker.policies
        spec = self.model.queues[name].spec
        if definition:
            policies.set(f"p-{name}", f"^{name}$", "queues", 0, definition)
        elif spec.policy:
            policies.clear(f"p-{name}")
        spec.policy = definition
        self.model.apply_policies()
        self.broker.definitions.commit()
        self.broker.run()
        self._collect()
        self._end()

    def advance(self, ms: int) -> None:
        self._begin()
        self._advance(ms)
        self._end()

    def tick(self) -> None:
        self._begin()
        self.model.tick()
        self.broker.vhost.tick(float(self.model.next_place))
        self.broker.run()
        self._collect()
        self._end()

    def set_target(self, name: str, count: int) -> None:
        """So many messages in RAM at most."""
        self._begin()
        for part in parts_of(self.broker.vhost.queues[name].backing):
            part.set_target_ram_count(count)
            part.reduce_memory_use()
        self.broker.run()
        self._collect()
        self._end()

    # -- its end --

    def restart(self, down_ms: int) -> None:
        self._begin()
        self._lost([GET, *(10 + at for at in range(len(NAMES)))])
        disk = self.broker.stop()
        for copy, _ in self.model.kept:  # what nobody took is in its queue
            copy.redelivered = None
            copy.taken_by = set()
            self.model.queues[copy.queue].insert(copy)
        self.model.kept = []
        for queue in self.model.queues.values():
            for copy in queue.ready:
                if not copy.message.persistent:
                    self.model.settle(copy, "transient")
            queue.ready = [copy for copy in queue.ready if copy.message.persistent]
        found = self._recovered(disk)
        for name, queue in self.model.queues.items():
            assert [one[0] for one in found[name]] == [copy.key() for copy in queue.ready], name
            for (_, expiry, lane, redelivered), copy in zip(found[name], queue.ready, strict=True):
                assert (expiry, lane) == (copy.expiry, copy.lane), copy
                assert copy.redelivered in (None, redelivered), copy
        self._start(disk, down_ms)

    def crash(self, back: int, choose: Choose | None, down_ms: int) -> None:
        """kill -9, or a power cut, up to so many operations before the end of the last step."""
        log = self.broker.disk.log
        disk = self.broker.disk.after(max(self.from_op, len(log) - back)) if back else self.broker.disk.kill()
        if choose is not None:
            disk = disk.crash(choose)
        born, before, after = set(self.model.born), self.before, self.model.alive()
        # Two copies may look the same, when an at-least-once letter was sent again; they are told by their order.
        known: dict[Any, list[Copy]] = {}
        for copy in sorted(before | after | born | self.model.settled, key=lambda one: one.place):
            known.setdefault(copy.key(), []).append(copy)
        found = self._recovered(disk)
        there: set[Copy] = set()
        self.partial.update(copy for copy, _ in self.model.kept)
        recovered: dict[str, list[Copy]] = {}
        for name, entries in found.items():
            copies = recovered[name] = []
            for key, expiry, lane, redelivered in entries:
                assert key in known, f"unknown, or gone for good: {key}"
                left = [copy for copy in known[key] if copy not in there]
                assert left, f"twice: {key}"
                behind = copies[-1].place if copies and copies[-1].lane == lane else -1
                fits = [one for one in left if (one.expiry, one.lane) == (expiry, lane)]
                copy = next((one for one in fits if one.place > behind), (fits or left)[0])
                assert copy.message.persistent, f"transient: {copy}"
                assert (expiry, lane) == (copy.expiry, copy.lane), copy
                assert redelivered or not copy.delivered, f"delivered before and not marked: {copy}"
                copy.redelivered = redelivered  # without a delivery as well, unless the crash came while it started
                there.add(copy)
                copies.append(copy)
            assert copies == sorted(copies, key=lambda one: (-one.lane, one.place)), f"order in {name}"
        for copy in there:
            if copy not in self.partial:
                doubles = [one for one in copy.descendants() if one in there]
                assert not doubles, f"doubled: {copy} and {doubles}"
        for copy in before:
            if copy.message.persistent:
                self._must_be(copy, after, there)
        for name, queue in self.model.queues.items():
            queue.ready = recovered[name]
            queue.consumer = None
            for copy in queue.ready:
                copy.fate = ""
                copy.taken_by = set()
        self.model.kept = []
        self.model.held = {}
        self._start(disk, down_ms)

    def _must_be(self, copy: Copy, after: set[Copy], there: set[Copy]) -> None:
        if copy in there:
            return
        if any(one.key() == copy.key() for one in there - after):  # looks the same, and was taken for the other one
            return
        assert copy not in after, f"lost: {copy}"
        for child in copy.children:
            if child in self.model.born:
                self._must_be(child, after, there)

    def _recovered(self, disk: MemoryDisk) -> dict[str, list[tuple[Any, int, int, bool]]]:
        """What a broker that starts from a copy of this disk finds in each queue."""
        time = CrankedTime(self.time.clock.now)
        broker = SansIOBroker(
            disk=disk.kill(), definitions=self.broker.definitions, time=time, settings=small_settings()
        )
        found: dict[str, list[tuple[Any, int, int, bool]]] = {}
        for name in NAMES:
            backing = broker.vhost.queues[name].backing
            backing.check()
            found[name] = []
            while backing.len:
                status = backing.fetch()
                assert status.message is not None
                headers = decode_headers(status.message.header_payload()) or {}
                deaths = tuple(
                    (one["queue"], one["reason"], one["count"]) for one in headers.get("x-death", [])
                )
                number = int(status.message.body()[:8])
                found[name].append(
                    ((name, number, deaths), status.expiry, status.priority, status.redelivered)
                )
        return found

    def _start(self, disk: MemoryDisk, down_ms: int) -> None:
        definitions = self.broker.definitions
        self.time = CrankedTime(self.time.clock.now + down_ms)
        for queue in self.model.queues.values():
            for copy in queue.ready:
                copy.returns = 0
        self.model.settled = set()
        self.model.letters.clear()
        self.broker = WatchedBroker(
            disk=disk, definitions=definitions, time=self.time, settings=small_settings(), recording=True
        )
        self.from_op = 0
        self.before = self.model.alive()
        self.model.born = []
        self.model.now = self.time.clock.now
        self._connect()
        self._end()

    # -- what must stay true --

    def check(self) -> None:
        assert not self.broker.log.faults, self.broker.log.faults[0]
        for name, queue in self.model.queues.items():
            backing = self.broker.vhost.queues[name].backing
            backing.check()
            assert backing.len == len(queue.ready), f"{name}: {backing.len} are ready, not {queue.ready}"
            assert backing.ready_bytes == sum(copy.message.size for copy in queue.ready), name
            assert backing.unacked == self.model.unacked(name), f"{name}: unacked"
            waits = queue.ready and queue.consumer is not None and queue.consumer.is_ready()
            assert not waits, f"{name}: ready messages and a ready consumer"
            assert not queue.ready or not 0 < queue.ready[0].expiry <= self.model.now, f"{name}: expired"
            if queue.spec.number("max-length") is not None and not queue.spec.rejects:
                assert not queue.is_over(), name


def compare(got: Got, copy: Copy) -> None:
    assert int(got.body[:8]) == copy.number, f"{got} instead of {copy}"
    assert tuple(got.deaths) == copy.deaths
    assert copy.redelivered in (None, got.redelivered), f"redelivered: {copy}"
    assert got.routing_key == copy.message.key
    assert len(got.body) == copy.message.size
    assert (got.properties.priority or 0) == copy.message.priority
    assert (got.properties.expiration is None) or not copy.deaths, "its own expiration is taken away"


def _properties(persistent: bool, priority: int, ttl: int | None) -> bytes:
    flags = 0x1800 | (0 if ttl is None else 0x0100)
    values = bytes([2 if persistent else 1, priority])
    if ttl is not None:
        text = str(ttl).encode()
        values += bytes([len(text)]) + text
    return flags.to_bytes(2, "big") + values
