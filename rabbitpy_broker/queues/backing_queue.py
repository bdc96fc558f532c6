"""The contract between a queue and what keeps its messages.

`Queue` calls it, `VariableQueue` fulfils it. The queue decides who gets a message; the backing queue keeps the
order, the messages themselves and the promise behind a confirm.

  len        ready messages                 unacked    fetched or delivered, not yet acked or requeued
  publish    -> CONFIRMED  the promise is kept already: the publisher may be told
                SYNCING    it is kept when the epoch that is filling now is synced (storage/sync.py)
                WAITING    it is not yet kept; `message.waiter` is told once, by whichever comes first:
                           the message is safe, a consumer acked it, or it is gone unacked (decided(False))
  Queue.publish may also answer
                REJECTED   the queue does not take it: the publisher gets basic.nack, nothing was kept

When a message may be confirmed:
  1. at once, when keeping it in memory is all that was promised (transient message or queue);
  2. when it is safe on disk (a persistent message in a durable queue);
  3. when a consumer has acked it, if acks are the promise (x-confirm-mode=consumer-ack). Acked before 2 came true it is
     confirmed with its epoch, which does not have to write it any more.

What must stay true: `fetch` and `publish_delivered` hand out a MsgStatus that comes back exactly once, by `ack`,
`drop` or `requeue`; seq_ids increase in publish order; no method calls back into the queue.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.events.journal import QueueEvents
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.storage.queue_index import QueueIndex

CONFIRMED: Final[i64] = 0
SYNCING: Final[i64] = 1
WAITING: Final[i64] = 2
REJECTED: Final[i64] = 3


class Figures:
    """What of some messages is where, for /metrics; see counted_queue.py for the kinds."""

    def __init__(self) -> None:
        self.alpha: i64 = 0
        self.beta: i64 = 0
        self.gamma: i64 = 0
        self.delta: i64 = 0
        self.ready_ram: i64 = 0
        self.unacked_ram: i64 = 0
        self.ram_bytes: i64 = 0
        self.persistent: i64 = 0
        self.persistent_bytes: i64 = 0
        self.paged_out: i64 = 0
        self.paged_in: i64 = 0
        self.disk_reads: i64 = 0
        self.disk_writes: i64 = 0


class AckWaits:
    """How long publishes have waited for a consumer's ack, in seconds of the clock of `tick`."""

    def __init__(self) -> None:
        self.now_s: i64 = 0  # the last tick
        self.began_s: i64 = 0  # the first one
        self.longest_s: i64 = -1  # of those that could be found; -1: none
        self.light = False  # some may have been handed out light, of which a queue knows nothing more


class KeptMessages:
    """Messages that are kept as far as that pays in memory: what the broker as a whole needs of whoever keeps some."""

    def __init__(self) -> None:
        self.len: i64 = 0
        self.unacked: i64 = 0
        self.ready_bytes: i64 = 0
        self.unacked_bytes: i64 = 0

    def record(self, events: QueueEvents) -> None:
        """Records from now on which place a message has and in what state it is, beginning with what is there."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """About once a second; `now` is in seconds of a clock that only goes forward."""
        raise NotImplementedError

    def ram_duration(self) -> float:
        """Seconds that the messages in RAM would last at the present rates; infinity when nothing moves."""
        raise NotImplementedError

    def set_ram_duration_target(self, duration: float) -> None:
        """Messages for no more than so many seconds shall be in RAM; infinity for no limit."""
        raise NotImplementedError

    def stop(self, next_seq_ids: dict[QueueIndex, int]) -> None:
        """The broker stops: which ready messages had been delivered before is to outlive it; notes the seq_ids that come next."""
        raise NotImplementedError


class BackingQueue(KeptMessages):
    """See the top of this file. Byte counts are of bodies."""

    def __init__(self) -> None:
        super().__init__()
        self.message_ttl: i64 = -1  # ms that messages published from now on may wait; -1: for ever
        self.may_expire = False  # some message has had an expiry

    def publish(self, message: Message) -> i64:
        """Keeps a message behind all others; returns CONFIRMED, SYNCING or WAITING."""
        raise NotImplementedError

    def publish_delivered(self, message: Message) -> MsgStatus:
        """Notes a message that goes straight to a consumer which will ack it; the queue must be empty."""
        raise NotImplementedError

    def delivered_outcome(self, message: Message) -> i64:
        """What `publish` would have answered for a message that `publish_delivered` took."""
        raise NotImplementedError

    def fetch(self) -> MsgStatus:
        """Takes the oldest ready message; there must be one (`len` > 0).

        Raises OSError when it cannot be read now; then it is still there.
        """
        raise NotImplementedError

    def fetch_place(self) -> MsgStatus:
        """As `fetch`, for who does not need the message itself: `message` may be None."""
        raise NotImplementedError

    def next_expiry(self) -> i64:
        """When the message that `fetch` would give expires, ms since 1970; 0: never, or there is none.

        Raises OSError when that cannot be read.
        """
        raise NotImplementedError

    def fetch_expired(self, now_ms: i64, with_body: bool) -> MsgStatus | None:
        """Takes the message whose expiry `next_expiry` gives, if it has come; as `fetch` or as `fetch_place`."""
        expiry = self.next_expiry()
        if expiry == 0 or expiry > now_ms:
            return None
        return self.fetch() if with_body else self.fetch_place()

    def load(self, status: MsgStatus) -> bool:
        """Has the message itself of something unacked in RAM; False when it is damaged. Raises OSError."""
        raise NotImplementedError

    def ack(self, status: MsgStatus) -> None:
        """A consumer has it: forget it, and keep the promise to its publisher."""
        raise NotImplementedError

    def drop(self, status: MsgStatus) -> None:
        """A consumer refused it for good, or it had to make room: forget it. (Taken without ack counts as `ack`.)"""
        raise NotImplementedError

    def hand_over(self, status: MsgStatus) -> None:
        """Forget it as `drop` does, but tell nobody: who takes it keeps the promise to its publisher."""
        raise NotImplementedError

    def requeue(self, statuses: list[MsgStatus]) -> None:
        """Puts them back into their places, marked redelivered. The list is sorted in place."""
        raise NotImplementedError

    def purge(self) -> i64:
        """Forgets every ready message and returns how many there were."""
        raise NotImplementedError

    def delete(self) -> None:
        """Forgets every ready message. Afterwards only `ack`, `drop` and `requeue` may come, for what is still unacked:
        an ack keeps its promise as ever, a requeue is a loss.
        """
        raise NotImplementedError

    def set_lazy(self, lazy: bool) -> None:
        """As little in RAM as can be, or as much as pays."""
        raise NotImplementedError

    def set_confirm_mode(self, mode: i64) -> None:
        """What a publisher is told from now on, and when: PERSIST, CONSUMER_ACK, CONSUMER_ACK_LIGHT."""
        raise NotImplementedError

    def publishes_waiting(self) -> i64:
        """Messages whose publishers wait for a consumer's ack."""
        raise NotImplementedError

    def add_waits(self, waits: AckWaits) -> None:
        """Adds how long its publishers have waited."""
        raise NotImplementedError

    def add_figures(self, figures: Figures) -> None:
        """Adds what of it is where."""
        raise NotImplementedError

    def count_owing(self) -> i64:
        """Walks everything: how many messages here owe their publishers a word. For tests."""
        raise NotImplementedError

    def check(self) -> None:
        """Compares what is there with the counts; for tests. Raises AssertionError."""
        raise NotImplementedError
