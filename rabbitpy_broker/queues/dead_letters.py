"""The dead letters of one vhost: gathered while queues work, published once a turn.

A queue hands a message over and keeps it, unacked, until its letter has been published here; both are in the same epoch.
With at-least-once a letter that nobody takes is kept, and its message with it, and asked about again at ticks.

What must stay true: each letter ends in one of three ways, its message dropped, kept, or its promise handed over; a
fault in one letter does not hold up the others; a publisher that waits for a consumer's ack is told once.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64, trait

from rabbitpy_broker.events import layout
from rabbitpy_broker.message import NO_RESEND, Message
from rabbitpy_broker.queues.backing_queue import REJECTED, SYNCING, WAITING
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.dead_letter import DeadLetter, write_obituary
from rabbitpy_broker.queues.dead_lettered import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    CONFIRMED,
    DISABLED,
    DeadLettered,
)
from rabbitpy_broker.queues.handover import HandedOver
from rabbitpy_broker.queues.queue_host import BackedQueue, HostedQueue, QueueTurn, TurnPublisher
from rabbitpy_broker.storage.sync import SyncGroup

ASK_AGAIN_AT_ONCE: Final = 1_024


@trait
class LetterRouter:
    """The routes of letters; `vhost.py` implements it."""

    def has_exchange(self, name: str) -> bool:
        """True when there is an exchange of that name; the default exchange always exists."""
        raise NotImplementedError

    def find_queues(self, message: Message, exchange_name: str, routing_keys: list[str]) -> list[HostedQueue]:
        """The queues for a message; none when there is no such exchange."""
        raise NotImplementedError


class DeadLetters(TurnPublisher):
    """The dead letters of one vhost."""

    def __init__(self, router: LetterRouter, syncs: SyncGroup, clock: Clock, turn: QueueTurn) -> None:
        self.dead_lettered = DeadLettered()
        self._router = router
        self._syncs = syncs
        self._clock = clock
        self._turn = turn
        self._letters: deque[DeadLetter] = deque()
        self._kept: deque[DeadLetter] = deque()  # letters of at-least-once that nobody has taken yet
        self._asking_again = False

    def add(self, letter: DeadLetter) -> None:
        """Has a letter published in this turn."""
        self.dead_lettered.count(letter.reason, self._strategy(letter.queue), letter.queue.settings.quorum)
        self._letters.append(letter)
        if len(self._letters) == 1:
            self._turn.publish_due(self)

    def _strategy(self, queue: BackedQueue) -> str:
        if queue.settings.at_least_once:
            return AT_LEAST_ONCE
        exchange = queue.settings.dead_letter_exchange
        return AT_MOST_ONCE if exchange is not None and self._router.has_exchange(exchange) else DISABLED

    def publish_now(self) -> None:
        """Publishes the letters, and the letters that these cause. `is_circle` cuts circles, so this ends."""
        letters = self._letters
        kept = len(self._kept)
        try:
            while letters:
                self._publish(letters.popleft())
        finally:
            if letters:  # one letter caused a fault: the others follow in the next turn
                self._turn.publish_due(self)
        if self._asking_again:
            self._asking_again = False
            if len(self._kept) == kept:  # all were taken
                self._ask_again()

    def tick(self) -> None:
        """Asks again, now and then, about the letters that nobody took."""
        if not self._asking_again:
            self._ask_again()

    def _ask_again(self) -> None:
        """Has the first letters that nobody took published again. The next ones follow when all of these are taken, or at
        a tick.
        """
        kept = self._kept
        for _ in range(min(len(kept), ASK_AGAIN_AT_ONCE)):
            self._letters.append(kept.popleft())
            self._asking_again = True
        if self._asking_again:
            self._turn.publish_due(self)

    def _publish(self, letter: DeadLetter) -> None:
        """Publishes one letter to the targets that do not have it yet, and decides what becomes of its message.

        Ensures: the message is dropped from its queue, or kept in `_kept` with at-least-once when a target refused it,
        or its promise was handed over. A target gets its copy once, however often this is called. Its publisher is told
        once.
        """
        queue = letter.queue
        exchange = queue.settings.dead_letter_exchange
        owed = False
        if exchange is not None:
            obituary = write_obituary(letter, exchange, queue.settings.dead_letter_routing_key, self._clock.now_ms())
            queues = self._router.find_queues(obituary.message, exchange, obituary.routing_keys)
            owed = not queues
            if letter.status is None or not letter.status.owes:
                obituary.message.waiter = NO_RESEND
            waiting: i64 = 0
            syncing = False
            taken = False
            events = queue.events
            for target in queues:
                if target in letter.taken_by or obituary.is_circle(target.name):
                    continue
                if events is not None and letter.publish == 0:
                    letter.publish = events.journal.publish(queue.vhost, exchange, obituary.message)
                answer = target.publish(obituary.message)
                if answer == REJECTED:
                    owed = True
                    continue
                letter.taken_by[target] = None
                taken = True
                if answer == WAITING:
                    waiting += 1
                elif answer == SYNCING:
                    syncing = True
            if taken:
                self._hand_over(letter, obituary.message, waiting, syncing, not owed)
            if letter.taken_by and not owed and queue.settings.at_least_once:
                self.dead_lettered.count(CONFIRMED, AT_LEAST_ONCE, queue.settings.quorum)
        status = letter.status
        if status is None:
            self._record(letter)
            return
        if owed and queue.settings.at_least_once and not queue.deleted:
            letter.publish = 0
            self._kept.append(letter)
        else:
            self._record(letter)
            queue.backing.drop(status)

    def _record(self, letter: DeadLetter) -> None:
        """Records the end of a letter: its message has left the queue, or comes from a queue that did not take it."""
        events = letter.queue.events
        if events is None:
            return
        seq_id: i64 = -1
        priority: i64 = 0
        if letter.place is not None:
            seq_id = letter.place.seq_id
            priority = i64(letter.place.priority)
        events.dead_letter(seq_id, priority, letter.publish, layout.REASONS[letter.reason])

    def _hand_over(self, letter: DeadLetter, copy: Message, waiting: i64, syncing: bool, done: bool) -> None:
        """Makes a publisher that waits for a consumer's ack wait for the fate of the copies.

        `done`: all targets have their copy. Until then the letter may still be lost, and its queue tells the publisher.
        """
        status = letter.status
        if status is None or not status.owes:
            return
        waiter = letter.message.waiter
        if letter.handed is None and waiter is not None:
            letter.handed = HandedOver(waiter)
        handed = letter.handed
        if handed is not None:
            handed.wait_for(copy, waiting, self._syncs if syncing else None)
        if done:
            letter.queue.backing.hand_over(status)
            letter.status = None
            if handed is not None:
                handed.decided(True)
