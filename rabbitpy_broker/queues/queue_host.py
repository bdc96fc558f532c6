"""The vhost as its queues see it, and the queues as a vhost sees them; `vhost.py` and `queue.py` implement these.

None of these calls comes back into the queue before it has returned, but `queue_expired`.
"""

from __future__ import annotations

from abc import abstractmethod

from mypy_extensions import i64, trait

from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.events.journal import QueueEvents
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import BackingQueue, KeptMessages
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue_settings import QueueSettings
from rabbitpy_broker.queues.timers import Timed


@trait
class TurnPublisher:
    """A part of the broker that has messages of its own to publish, as the turn sees it."""

    def publish_now(self) -> None:
        """Publishes all its messages."""
        raise NotImplementedError


class HostedQueue(Destination):
    """A queue that messages can be routed to. `kept` has its messages.

    `touched`: drain will be called at the end of this turn. `events`: its records in the event journal, None without
    one.
    """

    def __init__(self, vhost: str, name: str, durable: bool, kept: KeptMessages) -> None:
        super().__init__(QUEUE, name)
        self.vhost = vhost
        self.durable = durable
        self.kept = kept
        self.published: i64 = 0
        self.touched = False
        self.deleted = False
        self.unreadable = False  # the disk did not give a message that was due
        self.events: QueueEvents | None = None

    def record(self, events: QueueEvents) -> None:
        """Records from now on what happens, beginning with the messages that are there."""
        self.events = events
        self.kept.record(events)

    @abstractmethod
    def publish(self, message: Message) -> i64:
        """Takes one message; returns CONFIRMED, SYNCING, WAITING or REJECTED (see backing_queue)."""
        raise NotImplementedError

    def refusal(self, message: Message) -> str:
        """Why a publish of this message would come to nothing now, as a text that follows the queue's name; "": it would not."""
        return ""

    @abstractmethod
    def drain(self, budget: i64) -> bool:
        """Hands out, or drops as expired, at most `budget` ready messages; True when it stopped because of that."""
        raise NotImplementedError


class BackedQueue(HostedQueue):
    """A queue whose messages may become dead letters. `backing` is `kept`."""

    def __init__(self, vhost: str, name: str, durable: bool, backing: BackingQueue, settings: QueueSettings) -> None:
        super().__init__(vhost, name, durable, backing)
        self.backing = backing
        self.settings = settings


class QueueTurn:
    """The turn, as vhosts and their queues see it; `protocol/turn.py` implements it."""

    def touch(self, queue: HostedQueue) -> None:
        """Has `queue.drain` called at the end of this turn."""
        raise NotImplementedError

    def publish_due(self, publisher: TurnPublisher) -> None:
        """Has `publisher.publish_now` called in this turn, once for each call."""
        raise NotImplementedError


class QueueHost:
    """See the top of this file."""

    def clock(self) -> Clock:
        """The clock of the vhost."""
        raise NotImplementedError

    def now_ms(self) -> i64:
        """Milliseconds since 1970."""
        return self.clock().now_ms()

    def from_ms(self) -> i64:
        """The millisecond from which a span is counted that must not end early."""
        return self.clock().from_ms()

    def wake_at(self, when_ms: i64, who: Timed) -> None:
        """Has `who.timer_due` called at `when_ms`."""
        raise NotImplementedError

    def touch(self, queue: HostedQueue) -> None:
        """Has `queue.drain` called at the end of this turn."""
        raise NotImplementedError

    def dead_letter(self, queue: BackedQueue, message: Message, status: MsgStatus | None, reason: str) -> None:
        """Has the message published to the queue's dead-letter exchange in this turn, before anything is synced.

        `status` is unacked, and is dropped from the queue then; None for a message that the queue never took.
        """
        raise NotImplementedError

    def gave_up(self, reason: str, quorum: bool) -> None:
        """Counts a message that is gone from a queue without a dead-letter exchange, a quorum queue or a classic one."""
        raise NotImplementedError

    def publish_delayed(self, exchange: Destination, message: Message) -> None:
        """Routes a message whose delay at this exchange is over, at once."""
        raise NotImplementedError

    def queue_expired(self, queue: HostedQueue) -> None:
        """Has the queue deleted: nobody used it for as long as x-expires says."""
        raise NotImplementedError
