"""The event journal as the hot path sees it: records of what happens to messages, gathered in a buffer and written now and
then.

The broker has one `EventJournal` or, by default, none; then every place that would record an event tests one attribute
for None. A channel has an `Origin`, a queue a `QueueEvents`: they hold the ids that its records share. layout.py
describes the records.

`stamp` reads the clock, at the beginning of each read and each turn: all events in one have the same time, which is
also when they become visible outside. `flush` hands the buffer to the files: when FLUSH_ABOVE is reached at the end of
a turn, at a timer, and before an epoch of any store is written.

What must stay true: the events of an epoch's content are written before the epoch is; a name is known to the files
before a record has its id.
"""

from __future__ import annotations

import time
from typing import Final

from librt.strings import BytesWriter, write_i64_le
from mypy_extensions import i64, mypyc_attr

from rabbitpy_broker.events.layout import (
    AT_ONCE,
    CONFIRM,
    DAMAGED,
    DEAD_LETTER,
    DELETED,
    DELIVER,
    DROP,
    KEPT,
    MANDATORY,
    PERSISTENT,
    PUBLISH,
    PURGE,
    RECOVER,
    REDELIVERED,
    REFUSED,
    RETURN,
    ROUTE,
    STATE,
)
from rabbitpy_broker.message import Message

FLUSH_ABOVE: Final[i64] = 65_536  # bytes


@mypyc_attr(allow_interpreted_subclasses=True)
class EventSink:
    """The destination of records and names; `files.py` implements it."""

    def name(self, number: int, kind: str, vhost: str, name: str, more: dict[str, object]) -> None:
        """Makes a name known; it is needed until `forget`."""
        raise NotImplementedError

    def forget(self, number: int) -> None:
        """Forgets a name: no later record has this id."""
        raise NotImplementedError

    def write(self, records: bytes) -> None:
        """Writes whole records. Does not raise: records that cannot be written leave a gap, which the journal notes."""
        raise NotImplementedError


class EventJournal:
    """`publishes` is the number of the latest publish of this boot."""

    def __init__(self, sink: EventSink) -> None:
        self.sink = sink
        self.publishes: i64 = 0
        self.now_ns: i64 = 0
        self._out = BytesWriter()
        self._last_id: i64 = 0
        self._exchanges: dict[tuple[str, str], int] = {}
        self.stamp()

    def stamp(self) -> None:
        """Sets the time of the records that follow to now."""
        self.now_ns = time.time_ns()

    def flush(self) -> None:
        """Hands all records to the files."""
        if len(self._out) > 0:
            records = self._out.getvalue()
            self._out.truncate(0)
            self.sink.write(records)

    def flush_if_much(self) -> None:
        """As `flush`, when it is worth a write."""
        if len(self._out) >= FLUSH_ABOVE:
            self.flush()

    def write(self, seq_id: i64, aux: i64, ids: i64, what: i64, more: i64) -> None:
        """Writes one record. `ids`: queue and connection; `what`: size, channel, event, flags; `more`: state to opening."""
        out = self._out
        write_i64_le(out, self.now_ns)
        write_i64_le(out, seq_id)
        write_i64_le(out, aux)
        write_i64_le(out, ids)
        write_i64_le(out, what)
        write_i64_le(out, more)

    # -- names ----------------------------------------------------------------------------------------------------

    def queue(self, vhost: str, name: str, durable: bool, store_id: int) -> QueueEvents:
        """Names a queue that is made, or was recovered; returns its records."""
        number = self._new_id()
        more: dict[str, object] = {"durable": durable, "store": f"{store_id:016x}"}
        self.sink.name(number, "queue", vhost, name, more)
        return QueueEvents(self, number)

    def connection(self, vhost: str, name: str, user: str) -> int:
        """Names a connection that is open; returns its id."""
        number = self._new_id()
        self.sink.name(number, "connection", vhost, name, {"user": user})
        return number

    def exchange(self, vhost: str, name: str) -> int:
        """The id of an exchange, which gets its name at its first publish."""
        number = self._exchanges.get((vhost, name))
        if number is None:
            number = self._new_id()
            self._exchanges[vhost, name] = number
            self.sink.name(number, "exchange", vhost, name, {})
        return number

    def exchange_deleted(self, vhost: str, name: str) -> None:
        """Forgets an exchange that is gone; the next one of that name is another."""
        number = self._exchanges.pop((vhost, name), None)
        if number is not None:
            self.sink.forget(number)

    def connection_closed(self, number: int) -> None:
        """Forgets a connection that is gone."""
        self.sink.forget(number)

    def _new_id(self) -> int:
        self._last_id += 1
        return int(self._last_id)

    # -- the broker's own -----------------------------------------------------------------------------------------

    def publish(self, vhost: str, exchange: str, message: Message) -> i64:
        """Records a publish of the broker: a dead letter, a delayed message, a trace. Returns the publish number."""
        self.publishes += 1
        flags: i64 = 0
        if message.persistent:
            flags = PERSISTENT
        what = message.body_size | PUBLISH << 48 | flags << 56
        self.write(self.publishes, 0, i64(self.exchange(vhost, exchange)), what, 0)
        return self.publishes


class Origin:
    """The records of the messages that are published to one channel and delivered by it."""

    def __init__(self, journal: EventJournal, connection: i64, channel: i64, opening: i64) -> None:
        self.journal = journal
        self._connection = connection << 32
        self.channel = channel << 32
        self.opening = opening << 32

    def publish(self, exchange: i64, message: Message, mandatory: bool, seqno: i64) -> None:
        """Records a publish; the ROUTE records that follow belong to it."""
        journal = self.journal
        number = journal.publishes + 1
        journal.publishes = number
        flags: i64 = 0
        if message.persistent:
            flags = PERSISTENT
        if mandatory:
            flags |= MANDATORY
        what = message.body_size | self.channel | PUBLISH << 48 | flags << 56
        journal.write(number, seqno, exchange | self._connection, what, self.opening)

    def not_routed(self, returned: bool, reason: i64) -> None:
        """Records that the last publish went to no queue."""
        journal = self.journal
        event = RETURN if returned else DROP
        journal.write(-1, journal.publishes, self._connection, self.channel | event << 48, reason << 8 | self.opening)

    def confirm(self, first: i64, last: i64, ok: bool) -> None:
        """Records that the publishes from `first` to `last` are told: acked, or nacked without `ok`."""
        more = self.opening if ok else self.opening | REFUSED << 8
        self.journal.write(first, last, self._connection, self.channel | CONFIRM << 48, more)

    def ids(self, queue: i64) -> i64:
        """The third word of a record: the ids of a queue and of this channel."""
        return queue | self._connection


class QueueEvents:
    """The records of what happens in one queue. Name and id stay when the queue is deleted, for messages that are unacked."""

    def __init__(self, journal: EventJournal, number: i64) -> None:
        self.journal = journal
        self.number = number

    def route(self, seq_id: i64, priority: i64, size: i64, persistent: bool, kept: bool) -> None:
        """Records that the last publish has a place here."""
        journal = self.journal
        flags: i64 = 0
        if persistent:
            flags = PERSISTENT
        if kept:
            flags |= KEPT
        journal.write(seq_id, journal.publishes, self.number, size | ROUTE << 48 | flags << 56, priority << 16)

    def deliver_at_once(
        self, origin: Origin | None, seq_id: i64, priority: i64, message: Message, flags: i64
    ) -> None:
        """Records that the last publish goes straight to a consumer; seq_id -1 when nobody will ack it."""
        journal = self.journal
        size = message.body_size
        flags |= AT_ONCE
        if message.persistent:
            flags |= PERSISTENT
        if origin is None:
            journal.write(seq_id, journal.publishes, self.number, size | DELIVER << 48 | flags << 56, priority << 16)
        else:
            what = size | origin.channel | DELIVER << 48 | flags << 56
            journal.write(seq_id, journal.publishes, origin.ids(self.number), what, priority << 16 | origin.opening)

    def deliver(
        self, origin: Origin | None, seq_id: i64, priority: i64, size: i64, redelivered: bool, flags: i64
    ) -> None:
        """Records that a message that waited is handed out."""
        if redelivered:
            flags |= REDELIVERED
        if origin is None:
            self.journal.write(seq_id, 0, self.number, size | DELIVER << 48 | flags << 56, priority << 16)
        else:
            what = size | origin.channel | DELIVER << 48 | flags << 56
            self.journal.write(seq_id, 0, origin.ids(self.number), what, priority << 16 | origin.opening)

    def settle(self, event: i64, seq_id: i64, priority: i64, reason: i64, letters: i64) -> None:
        """Records ACK, NACK, REQUEUE, EXPIRE or DROP of a message; `letters` is the number of DEAD_LETTERs that follow, 0
        or 1.
        """
        self.journal.write(seq_id, letters, self.number, event << 48, reason << 8 | priority << 16)

    def not_taken(self, reason: i64) -> None:
        """Records that the last publish came to this queue and has no place in it."""
        self.journal.write(-1, self.journal.publishes, self.number, DROP << 48, reason << 8)

    def dead_letter(self, seq_id: i64, priority: i64, publish: i64, reason: i64) -> None:
        """Records that a message leaves for another publish; seq_id -1 when it never had a place here."""
        self.journal.write(seq_id, publish, self.number, DEAD_LETTER << 48, reason << 8 | priority << 16)

    def purge(self, count: i64, reason: i64) -> None:
        """Records that all ready messages are gone."""
        self.journal.write(-1, count, self.number, PURGE << 48, reason << 8)

    def lost(self, seq_id: i64, count: i64, priority: i64) -> None:
        """Records a message that the disk does not give back; seq_id -1: `count` messages that cannot be named."""
        self.journal.write(seq_id, count, self.number, DROP << 48, DAMAGED << 8 | priority << 16)

    def state(self, seq_id: i64, priority: i64, state: i64) -> None:
        """Records that a message is in another state."""
        self.journal.write(seq_id, 0, self.number, STATE << 48, state | priority << 16)

    def recover(self, first: i64, count: i64, priority: i64, state: i64) -> None:
        """Records that `count` messages with consecutive seq_ids are there after a start."""
        self.journal.write(first, count, self.number, RECOVER << 48, state | priority << 16)

    def deleted(self, count: i64) -> None:
        """Records that the queue is gone, with `count` messages that were ready."""
        self.purge(count, DELETED)
        self.journal.sink.forget(int(self.number))
