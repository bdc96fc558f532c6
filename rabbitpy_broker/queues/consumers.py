"""The consumers of one queue, and which of them gets the next message.

Consumers of the same priority follow each other in a round; a lower priority is served only while nobody above is
ready. A consumer that is found not ready (prefetch used up, its connection's output buffer full) is parked: it is out
of the round until `wake`. So a queue with a thousand busy consumers does not look at each of them for every message.
Whoever makes a consumer ready again wakes it: the queue when a message comes back, the channel when its shared limit or
its connection's output has room again.

With a single active consumer one of them is *active*, and the others wait, out of every round, until it has gone; then
the oldest of the highest priority follows.

What must stay true: a consumer of `members` is waiting, parked or in the round of its level, one of the three.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.events.journal import Origin
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.msg_status import Holder, MsgStatus


class Consumer(Holder):
    """A consumer as its queue sees it; `protocol/deliveries.py` implements it for a channel."""

    def __init__(self, tag: str, no_ack: bool, exclusive: bool, priority: i64) -> None:
        super().__init__()
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.parked = False
        self.waiting = False  # for the single active consumer to go
        self.origin: Origin | None = None  # its channel, in the records of the event journal

    def ready(self) -> bool:
        """True when one more message may be delivered now."""
        raise NotImplementedError

    def deliver(self, message: Message, redelivered: bool, status: MsgStatus | None) -> None:
        """Delivers a message; `status` comes back by ack, drop or requeue, and is None when no ack is expected."""
        raise NotImplementedError

    def cancelled(self) -> None:
        """Forgets the queue, which is gone, and tells the client (consumer cancel notify)."""
        raise NotImplementedError


class Level:
    """The consumers of one priority that are in the round."""

    def __init__(self, priority: i64) -> None:
        self.priority = priority
        self.members: i64 = 0
        self.round: list[Consumer] = []
        self.next: i64 = 0  # index in `round`


class Consumers:
    """All consumers of a queue; `levels` has the highest priority first."""

    def __init__(self, single_active: bool = False) -> None:
        self.single_active = single_active
        self.members: dict[Consumer, None] = {}
        self.levels: list[Level] = []

    def add(self, consumer: Consumer) -> None:
        consumer.parked = False
        self.members[consumer] = None
        if self.single_active and len(self.members) > 1:
            consumer.waiting = True
        else:
            self._enter(consumer)

    def _enter(self, consumer: Consumer) -> None:
        level = self._level(consumer.priority)
        level.members += 1
        level.round.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        del self.members[consumer]
        if consumer.waiting:
            consumer.waiting = False
            return
        self._leave(consumer)
        if self.single_active and self.members:
            following = next(iter(self.members))
            for member in self.members:
                if member.priority > following.priority:
                    following = member
            following.waiting = False
            self._enter(following)

    def _leave(self, consumer: Consumer) -> None:
        level = self._level(consumer.priority)
        if not consumer.parked:
            at: i64 = level.round.index(consumer)
            level.round.pop(at)
            if at < level.next:
                level.next -= 1
        consumer.parked = False
        level.members -= 1
        if level.members == 0:
            self.levels.remove(level)

    def wake(self, consumer: Consumer) -> None:
        """Puts a parked consumer back, behind the others of its priority."""
        if consumer.parked:
            consumer.parked = False
            self._level(consumer.priority).round.append(consumer)

    def next_ready(self) -> Consumer | None:
        """The consumer that gets the next message, or None when all are parked."""
        for level in self.levels:
            members = level.round
            while members:
                at = level.next
                if at >= len(members):
                    at = 0
                consumer = members[at]
                if consumer.ready():
                    level.next = at + 1
                    return consumer
                level.next = at
                members.pop(at)
                consumer.parked = True
        return None

    def _level(self, priority: i64) -> Level:
        at: i64 = 0
        for level in self.levels:
            if level.priority == priority:
                return level
            if level.priority < priority:
                break
            at += 1
        level = Level(priority)
        self.levels.insert(at, level)
        return level
