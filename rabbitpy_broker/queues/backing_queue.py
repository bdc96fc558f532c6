"""The contract between a queue and its backing queue, which keeps the messages.

`Queue` calls it, `VariableQueue` fulfils it. The queue decides who gets a message; the backing queue keeps the order,
the messages themselves and the promise behind a confirm.

  len        ready messages                 unacked    fetched or delivered, not yet acked or requeued
  publish    -> CONFIRMED  the promise is kept already: the publisher may be told
                SYNCING    it is kept when the epoch that is filling now is synced (storage/sync.py)
                WAITING    it is not yet kept; `message.waiter` is told once, by the first of these:
                           a consumer acked the message, or the message is gone unacked (decided(False))
  Queue.publish may also answer
                REJECTED   the queue does not take the message: the publisher gets basic.nack, nothing was kept

When a message may be confirmed:
  1. at once, when keeping it in memory is all that was promised (transient message or queue);
  2. when it is safe on disk (a persistent message in a durable queue);
  3. when a consumer has acked it, if acks are the promise (x-confirm-mode=consumer-ack).
  A message that is acked before 2 came true is confirmed with its epoch; the epoch does not have to write it any more.

What must stay true: `fetch` and `publish_delivered` hand out a MsgStatus that comes back exactly once, by `ack`,
`drop`, `hand_over` or `requeue`; seq_ids increase in publish order; no method calls back into the queue.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.events.journal import QueueEvents
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.storage.place import Place
from rabbitpy_broker.storage.queue_index import QueueIndex

CONFIRMED: Final[i64] = 0
SYNCING: Final[i64] = 1
WAITING: Final[i64] = 2
REJECTED: Final[i64] = 3


class Figures:
    """How many messages are where, and their bytes, for /metrics; counted_queue.py names the kinds."""

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
        self.longest_s: i64 = -1  # the longest wait that was found; -1: none
        self.light = False  # some may have been handed out light; the queue has forgotten those


class KeptMessages:
    """A store of messages, in memory as far as that pays: the calls that the broker as a whole makes to it."""

    def __init__(self) -> None:
        self.len: i64 = 0
        self.unacked: i64 = 0
        self.ready_bytes: i64 = 0
        self.unacked_bytes: i64 = 0

    def record(self, events: QueueEvents) -> None:
        """Records from now on the place and the state of each message, beginning with the messages that are there."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Does the work that time brings, about once a second; `now` is in seconds of a clock that only goes forward."""
        raise NotImplementedError

    def ram_duration(self) -> float:
        """Seconds that the messages in RAM would last at the present rates; infinity when nothing moves."""
        raise NotImplementedError

    def set_ram_duration_target(self, duration: float) -> None:
        """Sets for how many seconds messages in RAM shall last at most; infinity for no limit."""
        raise NotImplementedError

    def stop(self, next_seq_ids: dict[QueueIndex, int]) -> None:
        """Prepares for the end of the broker.

        Ensures: the disk will know which ready messages had been delivered before; `next_seq_ids` has the next seq_id
        of each index.
        """
        raise NotImplementedError

    def note_seq_ids(self, found: dict[int, int]) -> None:
        """Adds the next seq_id of each index that is durable, by its queue_id."""
        raise NotImplementedError


class BackingQueue(KeptMessages):
    """The contract at the top of this file. Byte counts are of bodies."""

    def __init__(self) -> None:
        super().__init__()
        self.message_ttl: i64 = -1  # ms that messages published from now on may wait; -1: for ever
        self.may_expire = False  # some message has had an expiry

    def publish(self, message: Message) -> i64:
        """Keeps a message behind all others; returns CONFIRMED, SYNCING or WAITING."""
        raise NotImplementedError

    def publish_delivered(self, message: Message) -> MsgStatus:
        """Notes a message that goes straight to a consumer which will ack it. Assumes: the queue is empty."""
        raise NotImplementedError

    def delivered_outcome(self, message: Message) -> i64:
        """The answer that `publish` would have given for a message that `publish_delivered` took."""
        raise NotImplementedError

    def fetch(self) -> MsgStatus:
        """Takes the oldest ready message. Assumes: there is one (`len` > 0).

        Raises OSError when it cannot be read now; it is still there then.
        """
        raise NotImplementedError

    def fetch_place(self) -> MsgStatus:
        """As `fetch`, for a caller that does not need the message itself: `message` may be None."""
        raise NotImplementedError

    def take(self, lane: i64, wanted: dict[int, Place | None]) -> list[MsgStatus]:
        """Takes messages by their seq_ids, wherever in the queue they stand, as `fetch_place` takes the oldest one.

        Assumes: a message in delta has its place in `wanted`, as a browse found it (queues/browse.py); what is in memory has
        None, or its place, which then does not count.

        Ensures: what is not ready here any more is left out; the others are unacked, and given in the order of the queue.
        """
        raise NotImplementedError

    def head(self) -> Message | None:
        """The ready message that goes out next; None when there is none, or it is not in memory."""
        raise NotImplementedError

    def next_expiry(self) -> i64:
        """The expiry of the message that `fetch` would give, in ms since 1970; 0 when it has none, or there is no message.

        Raises OSError when it cannot be read.
        """
        raise NotImplementedError

    def fetch_expired(self, now_ms: i64, with_body: bool) -> MsgStatus | None:
        """Takes the message whose expiry `next_expiry` gives, if that time has come; as `fetch` or as `fetch_place`."""
        expiry = self.next_expiry()
        if expiry == 0 or expiry > now_ms:
            return None
        return self.fetch() if with_body else self.fetch_place()

    def load(self, status: MsgStatus) -> bool:
        """Brings the message of an unacked status into RAM; False when it is damaged. Raises OSError."""
        raise NotImplementedError

    def ack(self, status: MsgStatus) -> None:
        """Forgets a message that a consumer has, and keeps the promise to its publisher."""
        raise NotImplementedError

    def drop(self, status: MsgStatus) -> None:
        """Forgets a message that a consumer refused for good or that had to make room. (A message taken without ack is
        acked.)
        """
        raise NotImplementedError

    def hand_over(self, status: MsgStatus) -> None:
        """Forgets a message as `drop` does, but tells nobody: its dead letter now keeps the promise to its publisher."""
        raise NotImplementedError

    def requeue(self, statuses: list[MsgStatus]) -> None:
        """Puts messages back into their old places, marked redelivered. The list is sorted in place."""
        raise NotImplementedError

    def requeue_left(self, statuses: list[MsgStatus]) -> None:
        """As `requeue`, of what somebody held who is gone: he has not said that he does not want them."""
        self.requeue(statuses)

    def count_requeue(self, status: MsgStatus) -> i64:
        """Something unacked comes back: how often it has now. Only for a queue that keeps these counts itself."""
        raise NotImplementedError

    def set_delivery_limit(self, limit: i64) -> None:
        """How often a message may come back, as the queue sees to it; -1 for any number."""

    def shown(self, message: Message, status: MsgStatus) -> Message:
        """Something that was delivered before, as it is delivered again."""
        return message

    def purge(self) -> i64:
        """Forgets every ready message and returns how many there were."""
        raise NotImplementedError

    def delete(self) -> None:
        """Forgets every ready message. Afterwards only `ack`, `drop` and `requeue` may come, for messages that are still
        unacked: an ack keeps its promise as ever, a requeue is a loss.
        """
        raise NotImplementedError

    def set_lazy(self, lazy: bool) -> None:
        """Keeps as little in RAM as possible from now on, or as much as pays."""
        raise NotImplementedError

    def set_confirm_mode(self, mode: i64) -> None:
        """Sets when publishers are told from now on: PERSIST, CONSUMER_ACK, CONSUMER_ACK_LIGHT."""
        raise NotImplementedError

    def publishes_waiting(self) -> i64:
        """The number of messages whose publishers wait for a consumer's ack."""
        raise NotImplementedError

    def add_waits(self, waits: AckWaits) -> None:
        """Adds to `waits` how long publishers have waited for this queue."""
        raise NotImplementedError

    def add_figures(self, figures: Figures) -> None:
        """Adds the counts of this queue to `figures`."""
        raise NotImplementedError

    def count_owing(self) -> i64:
        """Walks all messages: the number of those whose publishers still wait for a consumer's ack. For tests."""
        raise NotImplementedError

    def check(self) -> None:
        """Walks all messages and compares them with the counts; for tests. Raises AssertionError."""
        raise NotImplementedError
