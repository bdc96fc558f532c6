"""The queue behind a delayed message exchange: a message that is published to it comes out of the exchange when it is due.

It stands among the queues that a message is routed to, and nowhere else: it has no name that a client could use, and no
consumers. A timer waits for the message that is due first. Then the queue is touched, and its drain routes the messages
that are due, in the order of their times and, at equal times, of publishing. Routing a due message to other queues and
removing it here fall into one epoch of the journal, so a crash neither loses nor doubles the message. A queue that
promises a consumer's ack keeps such a message as any other queue does.

What must stay true: while a message waits, a timer is due for the first one or earlier, or the queue is touched.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.events.layout import DELAY_OVER
from rabbitpy_broker.message import NO_RESEND, Message
from rabbitpy_broker.queues.delayed_messages import DelayedMessages
from rabbitpy_broker.queues.queue_host import HostedQueue, QueueHost
from rabbitpy_broker.queues.timers import Timed
from rabbitpy_broker.storage.place import Place
from rabbitpy_broker.wire.delay_header import delay_ms, waited
from rabbitpy_broker.wire.properties import EXPIRATION, decode_headers, short_property

DUE_AT_ONCE: Final[i64] = 1_024  # messages routed in one turn, however many are due
AGAIN_MS: Final[i64] = 1_000  # when the disk could not be read


class DelayQueue(HostedQueue, Timed):
    """`exchange` is the delayed message exchange that this queue belongs to."""

    def __init__(self, host: QueueHost, vhost: str, exchange: Destination, messages: DelayedMessages) -> None:
        super().__init__(vhost, f"delayed messages of exchange '{exchange.name}'", messages.index.durable, messages)
        self.host = host
        self.exchange = exchange
        self.messages = messages
        self._waits_for: i64 = 0  # the earliest time that a timer is due for, 0 for none

    def publish(self, message: Message) -> i64:
        """Keeps a message with a delay; returns CONFIRMED or SYNCING."""
        self.published += 1
        due_ms = self.host.from_ms() + delay_ms(decode_headers(message.header_payload()))
        outcome = self.messages.keep(message, due_ms)
        self._wait_for(due_ms)
        return outcome

    def _wait_for(self, when_ms: i64) -> None:
        if self._waits_for == 0 or when_ms < self._waits_for:
            self._waits_for = when_ms
            self.host.wake_at(when_ms, self)

    def waits_for(self, when_ms: i64) -> bool:
        return not self.deleted and when_ms == self._waits_for

    def timer_due(self, now_ms: i64) -> None:
        """Touches the queue. Timers are not cancelled, so the time may be one that another call has dealt with already."""
        if self._waits_for <= now_ms:
            self._waits_for = 0
        if not self.deleted:
            self.host.touch(self)

    def drain(self, budget: i64) -> bool:
        """Routes the messages that are due; touches the queue again when there are more."""
        places = self.messages.take(self.host.now_ms(), min(budget, DUE_AT_ONCE))
        at: i64 = 0
        try:
            for place in places:
                at += 1
                self._let_out(place)
        finally:
            if at < len(places):  # a fault in one message: it stays as it is until the next start, the others go on
                self.messages.put_back(places[at:])
            self.expect_next()
        return False

    def expect_next(self) -> None:
        """Sets a timer for the next message, or touches the queue if it is due already."""
        messages = self.messages
        next_ms = messages.schedule.next_ms()
        now_ms = self.host.now_ms()
        if messages.unreadable:
            messages.unreadable = False
            self._wait_for(now_ms + AGAIN_MS)
        elif next_ms > now_ms:
            self._wait_for(next_ms)
        elif next_ms > 0:
            self.host.touch(self)

    def _let_out(self, place: Place) -> None:
        """Routes a message whose delay is over."""
        message = place.message
        assert message is not None, "kept by: DelayedMessages.take"
        payload = message.header_payload()
        headers = decode_headers(payload)
        assert headers is not None, "kept by: publish, the delay is in it"
        released = message.with_header(waited(payload, headers))
        expiration = short_property(payload, EXPIRATION)
        if expiration is not None:  # a message that was read back from the disk lacks it
            released.expiration = int(expiration)
        released.waiter = NO_RESEND  # it was confirmed when it came here
        self.host.publish_delayed(self.exchange, released)
        if self.events is not None:
            self.events.dead_letter(place.seq_id, 0, self.events.journal.publishes, DELAY_OVER)
        self.messages.done(place)

    def delete(self) -> None:
        """Ends the queue with its exchange; the delayed messages go with it."""
        self.deleted = True
        if self.events is not None:
            self.events.deleted(self.messages.unacked)
        self.messages.delete()
