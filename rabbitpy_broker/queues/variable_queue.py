"""The variable queue: the order of one queue's messages, in RAM as far as that pays, the rest on disk.

    newest                                                              oldest
    publish -> q1 -> q2 -> delta -> q3 -> q4 -> fetch

  alpha   body in RAM,  position in RAM              gamma   body on disk, position in RAM and on disk
  beta    body on disk, position in RAM              delta   all on disk: a range of seq_ids and a count

A short queue is q4 alone. When more messages are in RAM than the memory policy wants, the oldest of q1 lose their bodies and
move to q2; what is in q2 beyond what is worth a position in RAM goes to delta, which costs no memory however long it is.
On the way out delta is read back into q3, a segment at a time, and bodies are read some way ahead of the consumers.

A body can be dropped where the disk has it: a persistent message in the journal or a segment (its epoch has settled),
a transient one once it was paged out, which happens only to make room. Nothing waits for that: what is not yet on disk
stays in RAM until it is. So paging out a persistent message costs no write at all.

A small message in a queue that confirms when its consumers ack is not written unless it is paged: owed.py has the waiters
of its publishers. In the light form of that mode a message is forgotten when it is handed out.

What must stay true (`check`; OSErrors in `fetch` may leave q3 empty before delta until the next one):
- order: every seq_id in q4 < q3 < delta < q2 < q1; requeued messages whose place is in delta's range wait in `_extras`;
- q1 not empty -> q3 not empty; q2 not empty -> delta not empty; delta not empty -> q3 not empty;
- len = |q1| + |q2| + delta + |q3| + |q4|; the counts (counted_queue.py) are exact;
- a message is unacked or ready or gone, and counted once.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32, i64, u8

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.events import layout
from rabbitpy_broker.events.journal import QueueEvents
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import CONFIRMED, SYNCING, WAITING, AckWaits, Figures
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.counted_queue import CountedQueue
from rabbitpy_broker.queues.memory_policy import IO_BATCH_SIZE, UNLIMITED, MemoryPolicy
from rabbitpy_broker.queues.msg_ring import MsgRing
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.owed import Owed
from rabbitpy_broker.queues.queue_settings import CONSUMER_ACK_LIGHT
from rabbitpy_broker.queues.unacked_statuses import UnackedStatuses
from rabbitpy_broker.storage.place import BETA, GONE, JOURNAL, PAGING, RAM, SEGMENT, TRANSIENT, Place
from rabbitpy_broker.storage.queue_index import QueueIndex, ScatterListener

READ_AHEAD: Final[i64] = 256  # messages
PAGE_AT_ONCE: Final[i64] = 4_096  # transient messages on their way to disk
PAGE_UNACKED_AT_ONCE: Final[i64] = 1_024
LOOKED_AT: Final = 10_000  # messages that are looked at for the oldest that owes a confirm
SYSTEM_CLOCK: Final = Clock()


class VariableQueue(CountedQueue):
    """See BackingQueue for the contract of the inherited methods. `lazy` keeps as little in RAM as can be.

    `embed_below`: messages of fewer bytes (header, properties and body) are kept in the index, others in a message store.
    `priority` is that of all its messages, for a queue that has one VariableQueue for each.

    Large, because the five parts and the way between them are one thing: whoever moves a message needs its part, its state
    and the order at once. Counts, memory policy and owed confirms are files of their own.
    """

    def __init__(
        self,
        index: QueueIndex,
        confirm_mode: i64,
        lazy: bool,
        embed_below: i64,
        clock: Clock = SYSTEM_CLOCK,
        priority: u8 = 0,
    ) -> None:
        super().__init__()
        self._clock = clock
        self.priority = priority
        self.index = index
        self.owed = Owed(confirm_mode, embed_below)
        self.memory = MemoryPolicy(index.durable, lazy)
        self._embed_below = embed_below
        self._durable = index.durable
        self.q1 = MsgRing()
        self.q2 = MsgRing()
        self.q3 = MsgRing()
        self.q4 = MsgRing()
        self.delta_start: i64 = 0
        self.delta_end: i64 = 0
        self._extras: dict[int, MsgStatus] = {}
        self._unacked = UnackedStatuses()
        self.next_seq_id: i64 = 0
        self._deleted = False
        self._events: QueueEvents | None = None
        self._checked: list[int] = []  # by `check`: steps, and what lists show
        index.listener = PageListener(self)

    # -- publish --------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> i64:
        """Ensures: the message is the newest of its queue: in q4 if all others are there too, else in q1; it is counted
        once; with the answer SYNCING the epoch that is filling holds it. Above the marks of the memory policy,
        `reduce_memory_use` has run.
        """
        size = message.body_size
        seq_id = self.next_seq_id
        self.next_seq_id = seq_id + 1
        status = MsgStatus(seq_id, message, size)
        status.priority = self.priority
        if self.message_ttl >= 0 or message.expiration >= 0:
            self._set_expiry(status, message)
        if self.delta_count == 0 and self.q3.count() == 0:
            self.q4.append(status)
        else:
            self.q1.append(status)
        outcome = self._keep(status, message)
        self.count_published(size, outcome == SYNCING)
        if self._events is not None:
            self._record_route(status, message, outcome)
        if self.ram_msg_count > self.memory.look_above or self.ram_bytes > self.memory.look_above_bytes:
            self.reduce_memory_use()
        return outcome

    def publish_delivered(self, message: Message) -> MsgStatus:
        size = message.body_size
        seq_id = self.next_seq_id
        self.next_seq_id = seq_id + 1
        status = MsgStatus(seq_id, message, size)
        status.priority = self.priority
        if self.message_ttl >= 0 or message.expiration >= 0:
            self._set_expiry(status, message)
        if self.owed.on_ack and self.owed.is_promised(message):
            self.owed.owe(status)
            if self.owed.mode == CONSUMER_ACK_LIGHT:
                status.light = True
                self.count_published_light()
                return status
        status.unacked = True
        persistent = not status.owes and self._keep(status, message) == SYNCING
        self.count_published_unacked(size, persistent)
        self._unacked.note(status, self.unacked)
        return status

    def delivered_outcome(self, message: Message) -> i64:
        if self.owed.on_ack and self.owed.is_promised(message):
            return WAITING
        return SYNCING if message.persistent and self._durable else CONFIRMED

    def _set_expiry(self, status: MsgStatus, message: Message) -> None:
        """Sets the expiry by the message's own time to live or the queue's, whichever is less."""
        ttl = self.message_ttl
        if ttl < 0 or 0 <= message.expiration < ttl:
            ttl = message.expiration
        status.expiry = self._clock.from_ms() + ttl if ttl > 0 else self._clock.now_ms()
        self.may_expire = True

    def _keep(self, status: MsgStatus, message: Message) -> i64:
        """Has the message written if it must survive; returns what its publisher may be told."""
        if self.owed.on_ack and self.owed.is_promised(message):
            self.owed.owe(status)
            return WAITING
        if message.persistent and self._durable:
            if len(message.content) >= self._embed_below:
                self.index.large.put(status, message, False)
            self.index.publish(status)
            return SYNCING
        return CONFIRMED

    # -- fetch ----------------------------------------------------------------------------------------------------

    def fetch(self) -> MsgStatus:
        """Raises OSError when no message can be read now; nothing is lost then."""
        status = self.q4.peek()
        if status is not None and status.message is not None:
            self.q4.popleft()
        else:
            status = self._take_oldest(True)
        self._fetched(status)
        return status

    def fetch_place(self) -> MsgStatus:
        status = self._take_oldest(False)
        self._fetched(status)
        return status

    def _fetched(self, status: MsgStatus) -> None:
        if status.owes and self.owed.mode == CONSUMER_ACK_LIGHT and status.message is not None:
            self._hand_out_light(status)
            return
        status.unacked = True
        self.count_fetched(status)
        self._unacked.note(status, self.unacked)

    def _hand_out_light(self, status: MsgStatus) -> None:
        """Forgets a message that is handed out: only its publisher is still to be told."""
        self.count_fetched_light(status.body_size)
        status.light = True
        status.unacked = False  # `_unacked` may have it from before
        if status.where != RAM or status.stored is not None:
            message = status.message
            self.index.ack(status)
            status.message = message  # which is on its way to the consumer

    def take(self, lane: i64, wanted: dict[int, Place | None]) -> list[MsgStatus]:
        """Ensures, besides: order and counts hold; delta that has lost its last message gives way to q2 and q1."""
        if self._deleted or not wanted:
            return []
        taken: list[MsgStatus] = []
        for ring in (self.q4, self.q3, self.q2, self.q1):
            if ring.count() > 0:
                taken.extend(ring.take_out(wanted))
        if self.delta_count > 0:
            self._take_from_delta(wanted, taken)
        taken.sort(key=_seq_id)
        for status in taken:
            status.unacked = True
            self.count_fetched(status)
            self._unacked.note(status, self.unacked)
        if self.q3.count() == 0 or self.delta_count == 0:
            self._refill_if_possible()
        if self.q3.count() == 0 and self.q1.count() > 0:
            self.q4.extend(self.q1.clear())
        return taken

    def _take_from_delta(self, wanted: dict[int, Place | None], taken: list[MsgStatus]) -> None:
        """Adds those of `wanted` that are in delta, with their positions in memory again."""
        held = self._unacked.seq_ids()
        for seq_id, place in wanted.items():
            if seq_id < self.delta_start or seq_id >= self.delta_end:
                continue
            status = self._extras.pop(seq_id, None)
            if status is None and place is not None and seq_id not in held:
                status = self._status_of(place)
            if status is not None:
                self.count_out_of_delta(1, status.body_size)
                taken.append(status)

    def _status_of(self, place: Place) -> MsgStatus | None:
        """The status of a message in delta, which a segment has at that place; None when it is not alive there."""
        index = self.index
        seq_id = place.seq_id
        segment = index.segments.by_num.get(seq_id // index.segments.entry_count)
        if segment is None or segment.is_acked(seq_id):
            return None
        status = index.segments.maker.make_place(seq_id, place.body_size)
        assert isinstance(status, MsgStatus), "kept by: StatusMaker"
        stored = place.stored
        if stored is not None and not index.large.find(status, stored.msg_id, place.in_transient_store):
            return None
        redelivered_below = index.segments.redelivered_below
        status.redelivered = place.redelivered or seq_id in segment.delivered or seq_id < redelivered_below
        status.found(place.where, 0, place.offset, place.size, place.expiry)
        if status.expiry > 0:
            self.may_expire = True
        self.owed.position_read(status)
        if self._events is not None:
            self._record_state(status, layout.GAMMA)
        return status

    def load(self, status: MsgStatus) -> bool:
        if status.message is not None:
            return True
        try:
            self.index.read_messages([status], False)
        except BrokerError as error:
            self.index.segments.damage.message_damaged(self.index.segments.path, str(error))
        return self._load_unacked(status)

    def _load_unacked(self, status: MsgStatus) -> bool:
        """Counts a body that has been read; False when none has."""
        message = status.message
        if message is None:
            return False
        self.count_body_read(status, True)
        if self._events is not None:
            self._record_state(status, layout.ALPHA)
        self.owed.body_read(status.seq_id, message)
        return True

    def next_expiry(self) -> i64:
        status = self.q4.peek()
        if status is None:
            status = self.q3.peek()
            if status is None and self.len > 0:  # delta could not be read when its turn came
                return self._read_next_expiry()
        return status.expiry if status is not None else 0

    def _read_next_expiry(self) -> i64:
        try:
            self._refill()
        except OSError as error:
            self._log_unreadable(error)
            raise
        return self.next_expiry()

    def oldest_seq_id(self) -> i64:
        """Of what is ready, of which there must be something."""
        status = self.q4.peek()
        if status is None:
            status = self.q3.peek()
        return status.seq_id if status is not None else self.delta_start

    def head(self) -> Message | None:
        status = self.q4.peek()
        if status is None:
            status = self.q3.peek()
        return status.message if status is not None else None

    def lost_unacked(self, status: MsgStatus) -> None:
        """Says that something unacked, which has been dropped, could not be read."""
        self.index.segments.damage.message_unreadable(self.index.segments.path, int(status.seq_id))
        events = self._events
        if events is not None:
            events.lost(status.seq_id, 0, i64(self.priority))

    def _log_unreadable(self, error: OSError) -> None:
        self.index.segments.damage.queue_unreadable(self.index.segments.path, str(error))

    def _take_oldest(self, with_body: bool) -> MsgStatus:
        """Takes the oldest message; its body, or even its position, may have to be read. Raises OSError, and logs it."""
        try:
            return self._take_from_disk(with_body)
        except OSError as error:
            self._log_unreadable(error)
            raise

    def _take_from_disk(self, with_body: bool) -> MsgStatus:
        while self.len > 0:
            ring = self.q4 if self.q4.count() > 0 else self.q3
            if ring.count() == 0:
                self._refill()
                continue
            if with_body and ring.at(0).message is None:
                self._read_ahead(ring)
                continue
            status = ring.popleft()
            if ring is self.q3 and ring.count() == 0:
                self._refill_if_possible()
            return status
        raise OSError("the messages that were left cannot be read")

    def _refill_if_possible(self) -> None:
        """`_refill` that leaves an error to the next fetch, which reads again and raises it."""
        try:
            self._refill()
        except OSError as error:
            self._log_unreadable(error)

    def _refill(self) -> None:
        """Reads from delta until q3 is not empty, then lets q2 and q1 move up. Assumes: q3 is empty."""
        while self.q3.count() == 0 and self.delta_count > 0:
            self._read_delta()
        if self.delta_count == 0:
            if self.q3.count() == 0:
                self.q3, self.q2 = self.q2, self.q3
            elif self.q2.count() > 0:
                self.q3.extend(self.q2.clear())
            if self.q3.count() == 0 and self.q4.count() == 0:
                self.q4, self.q1 = self.q1, self.q4

    def _read_delta(self) -> None:
        """Moves the oldest segment of delta into q3, positions only. Raises OSError.

        Assumes: q3 is empty, and delta is not.

        Ensures: delta begins behind that segment. q3 has the segment's ready messages in order: those that the disk
        has, without the ones that are unacked, and the requeued ones of `_extras`, each once. When the range is used up
        and the count of delta is not 0, the rest is counted as lost. On an OSError nothing is changed.
        """
        start = self.delta_start
        if start >= self.delta_end:
            self._lost_delta()
            return
        index = self.index
        num = start // index.segments.entry_count
        end = min(index.segments.boundary(start), self.delta_end)
        held: set[int] = set()
        if self.unacked > 0 and start <= self._unacked.highest:
            self._unacked.sweep(self.unacked)
            for status in self._unacked.statuses:
                if status.seq_id >= start:
                    held.add(status.seq_id)
        extras: list[MsgStatus] = []
        if self._extras:
            for seq_id in sorted(self._extras):
                if seq_id < end:
                    extras.append(self._extras.pop(seq_id))
        found: list[MsgStatus] = []
        at: i64 = 0
        try:
            places = index.segments.read(num)
        except OSError:
            for status in extras:
                self._extras[status.seq_id] = status
            raise
        for place in places:
            if place.seq_id < start or place.seq_id >= end or place.seq_id in held:
                continue
            assert isinstance(place, MsgStatus), "kept by: StatusMaker"
            while at < len(extras) and extras[at].seq_id < place.seq_id:
                found.append(extras[at])
                at += 1
            if at < len(extras) and extras[at].seq_id == place.seq_id:
                continue
            if place.expiry > 0:
                self.may_expire = True
            self.owed.position_read(place)
            if self._events is not None:
                self._record_state(place, layout.GAMMA)
            found.append(place)
        while at < len(extras):
            found.append(extras[at])
            at += 1
        size: i64 = 0
        for status in found:
            size += status.body_size
        self.count_out_of_delta(len(found), size)
        self.delta_start = end
        self.q3.extend(found)
        if self.delta_start >= self.delta_end and self.delta_count != 0:
            self._lost_delta()

    def _lost_delta(self) -> None:
        """Counts off the messages that the segments should have and have not: damage, reported when they were read."""
        if self.delta_count > 0:
            segments = self.index.segments
            segments.damage.messages_lost(segments.path, int(self.delta_count))
            events = self._events
            if events is not None:
                events.lost(-1, self.delta_count, i64(self.priority))
        there = self._unacked.seq_ids()
        for ring in (self.q4, self.q3):
            there.update([int(ring.at(at).seq_id) for at in range(ring.count())])
        for seq_id in [seq_id for seq_id in self.owed.paged if seq_id < self.delta_end and seq_id not in there]:
            self.owed.tell_paged(seq_id, False)
        self.count_delta_lost()
        self.delta_start = self.delta_end

    def _read_ahead(self, ring: MsgRing) -> None:
        """Brings the bodies of the oldest messages of the ring into RAM. A damaged message is dropped. Raises OSError."""
        wanted: list[Place] = []
        count = ring.count()
        at: i64 = 0
        size: i64 = 0
        while at < count and at < READ_AHEAD and size < 1_048_576:
            status = ring.at(at)
            if status.message is None:
                wanted.append(status)
                size += status.body_size
            at += 1
        try:
            self.index.read_messages(wanted, False)
        except BrokerError as error:
            self.index.segments.damage.message_damaged(self.index.segments.path, str(error))
        finally:
            self._loaded(wanted)
        if ring.at(0).message is None:
            self._drop_damaged(ring)

    def _loaded(self, places: list[Place]) -> None:
        for place in places:
            message = place.message
            if message is None:
                continue
            self.count_body_read(place, False)
            if self._events is not None:
                self._record_state(place, layout.ALPHA)
            self.owed.body_read(place.seq_id, message)

    def _drop_damaged(self, ring: MsgRing) -> None:
        """Drops the oldest message, which the disk cannot give back, and logs the loss."""
        status = ring.popleft()
        self.count_lost(status)
        self.owed.tell(status, None, False)
        if _is_persistent(status):
            self.count_persistent_gone(status.body_size)
        self.index.segments.damage.message_unreadable(self.index.segments.path, int(status.seq_id))
        events = self._events
        if events is not None:
            events.lost(status.seq_id, 0, i64(self.priority))
        self.index.ack(status)
        if ring is self.q3 and ring.count() == 0:
            self._refill_if_possible()

    # -- settle ---------------------------------------------------------------------------------------------------

    def ack(self, status: MsgStatus) -> None:
        self._settle(status, True)

    def drop(self, status: MsgStatus) -> None:
        self._settle(status, False)

    def hand_over(self, status: MsgStatus) -> None:
        self.owed.forget(status)
        self._settle(status, False)

    def _settle(self, status: MsgStatus, ok: bool) -> None:
        """Ends a message that comes back by ack (`ok`), drop or hand-over.

        Ensures: it is counted as gone; its publisher is told if it waits; an ACK is noted for the disk if the disk has
        the message.
        """
        if status.light:
            self.count_light_told()
            self.owed.tell(status, status.message, ok)
            return
        self.count_settled(status)
        status.unacked = False
        message = status.message
        status.message = None  # `_unacked` may keep the status for a while
        if status.owes:
            self.owed.tell(status, message, ok)
        where = status.where
        if where != RAM or status.stored is not None:
            if _is_persistent(status):
                self.count_persistent_gone(status.body_size)
            if self._deleted:
                self.index.large.release(status)
            else:
                self.index.ack(status)

    def requeue(self, statuses: list[MsgStatus]) -> None:
        """Puts unacked messages back into their old places, marked redelivered.

        Assumes: each is unacked here, and is given once.

        Ensures: the order q4 < q3 < delta < q2 < q1 holds; a message whose place is in delta's range waits in
        `_extras`. Light messages are lost, and so are all after `delete`. Conserves `len` + `unacked`, but for those
        that are lost.
        """
        if self._deleted:
            for status in statuses:
                self._settle(status, False)
            return
        if self.owed.may_be_light():
            statuses = self._drop_light(statuses)
        statuses.sort(key=_seq_id)
        to_q4: list[MsgStatus] = []
        to_q3: list[MsgStatus] = []
        to_q2: list[MsgStatus] = []
        to_q1: list[MsgStatus] = []
        q3_first = self.q3.peek()
        q1_first = self.q1.peek()
        for status in statuses:
            seq_id = status.seq_id
            status.redelivered = True
            status.unacked = False
            self.count_requeued(status)
            if (q3_first is None and self.delta_count == 0) or (q3_first is not None and seq_id < q3_first.seq_id):
                to_q4.append(status)
            elif self.delta_count > 0 and self.delta_start <= seq_id < self.delta_end:
                self._extras[seq_id] = status
                self.count_into_delta(status.body_size)
            elif self.delta_count == 0 or seq_id < self.delta_start:
                if self.delta_count == 0 and q1_first is not None and seq_id > q1_first.seq_id:
                    to_q1.append(status)
                else:
                    to_q3.append(status)
            elif q1_first is not None and seq_id > q1_first.seq_id:
                to_q1.append(status)
            else:
                to_q2.append(status)
        _merge(self.q4, to_q4)
        _merge(self.q3, to_q3)
        _merge(self.q2, to_q2)
        _merge(self.q1, to_q1)
        if self.q3.count() == 0 and self.q4.count() == 0:
            self._refill_if_possible()

    def _drop_light(self, statuses: list[MsgStatus]) -> list[MsgStatus]:
        """Tells the publishers of messages that were handed out light, which are lost; returns the others."""
        kept: list[MsgStatus] = []
        for status in statuses:
            if status.light:
                self._settle(status, False)
            else:
                kept.append(status)
        return kept

    # -- the end of many ------------------------------------------------------------------------------------------

    def purge(self) -> i64:
        """Drops every ready message. Raises OSError when a segment that has to be known cannot be read; nothing is purged
        then.
        """
        count = self.len
        self._unacked.sweep(self.unacked)
        if count == 0:
            return 0
        keep: list[Place] = []
        for status in self._unacked.statuses:
            if status.unacked:
                keep.append(status)
        keep.sort(key=_place_seq_id)
        plan = self.index.segments.plan_purge(keep)
        self._release_delta()
        oldest = self.q4.peek()
        if oldest is None:
            oldest = self.q3.peek()
        low: i64 = oldest.seq_id if oldest is not None else self.delta_start
        for status in self._extras.values():
            low = min(low, status.seq_id)
        self._forget_ready()
        self.count_none_persistent()
        for place in keep:
            if _is_persistent(place):
                self.count_persistent(place.body_size)
        self.index.purge(keep, low, self.next_seq_id, plan)
        return count

    def _forget_ready(self) -> None:
        """Forgets every ready message, as far as it is in memory."""
        gone = self.q1.clear() + self.q2.clear() + self.q3.clear() + self.q4.clear() + list(self._extras.values())
        ram_bytes: i64 = 0
        for status in gone:
            message = status.message
            if message is not None:
                ram_bytes += status.body_size
            if status.owes:
                self.owed.tell(status, message, False)
            self.index.large.release(status)
            status.settled()
        if self.owed.paged:
            unacked = self._unacked.seq_ids()
            for seq_id in [seq_id for seq_id in self.owed.paged if seq_id not in unacked]:
                self.owed.tell_paged(seq_id, False)
        self._extras = {}
        self.delta_start = self.delta_end
        self.count_none_ready(ram_bytes)

    def _release_delta(self) -> None:
        """Releases the large messages of delta from the message stores. A message that cannot be read stays there until a
        recovery.
        """
        index = self.index
        held = self._unacked.seq_ids()
        for num in sorted(index.segments.by_num):
            segment = index.segments.by_num[num]
            if segment.stored == 0 or self.delta_count == 0:
                continue
            if segment.first_seq_id >= self.delta_end or index.segments.boundary(segment.first_seq_id) <= self.delta_start:
                continue
            try:
                places = index.segments.read(segment.num)
            except OSError as error:
                index.segments.damage.queue_unreadable(index.segments.path, str(error))
                continue
            for place in places:
                seq_id = place.seq_id
                if self.delta_start <= seq_id < self.delta_end and seq_id not in held and seq_id not in self._extras:
                    index.large.release(place)

    def delete(self) -> None:
        self._unacked.sweep(self.unacked)
        self._release_delta()
        self._forget_ready()
        self._deleted = True
        self.index.listener = None
        self.index.delete()

    # -- memory ---------------------------------------------------------------------------------------------------

    def set_lazy(self, lazy: bool) -> None:
        if lazy != self.memory.lazy:
            self.memory.lazy = lazy
            self.set_target_ram_count(UNLIMITED)
            self.reduce_memory_use()

    def set_confirm_mode(self, mode: i64) -> None:
        self.owed.set_mode(mode)

    def publishes_waiting(self) -> i64:
        return self.owed.waiting

    def oldest_waiting_s(self) -> i64:
        """The second, of the clock of `tick`, in which the oldest publish came that waits for an ack; -1 when none is
        found.

        Messages that were handed out light are unknown here. Of a queue that is long and mixed only the oldest messages
        are looked at.
        """
        oldest: i64 = -1
        if self.owed.waiting == 0:
            return oldest
        for status in self._unacked.statuses:
            if status.unacked and status.owes and (oldest < 0 or i64(status.since_s) < oldest):
                oldest = i64(status.since_s)
        ready = _oldest_owing([self.q4, self.q3])
        if ready < 0 and self.owed.paged:
            ready = i64(next(iter(self.owed.paged.values())).since_s)
        if ready < 0:
            ready = _oldest_owing([self.q2, self.q1])
        if oldest < 0 or 0 <= ready < oldest:
            oldest = ready
        return oldest if oldest < 0 else max(oldest, i64(self.owed.began_s))

    def add_waits(self, waits: AckWaits) -> None:
        owed = self.owed
        waits.now_s = i64(owed.now_s)
        waits.began_s = i64(owed.began_s)
        since = self.oldest_waiting_s()
        if since >= 0:
            waits.longest_s = max(waits.longest_s, waits.now_s - since)
        if owed.waiting > 0 and owed.may_be_light():
            waits.light = True

    def add_figures(self, figures: Figures) -> None:
        alpha, beta, gamma, delta = self.state_counts()
        figures.alpha += alpha
        figures.beta += beta
        figures.gamma += gamma
        figures.delta += delta
        self.add_counts(figures)
        figures.disk_reads += self.index.segments.reads
        figures.disk_writes += self.index.segments.writes

    def set_target_ram_count(self, count: i64) -> None:
        """Sets the target: at most `count` messages in RAM, ready and unacked; UNLIMITED for all of them."""
        self.memory.set_target(count)

    def ram_duration(self) -> float:
        """Seconds that the messages in RAM would last at the present rates; infinity when nothing moves."""
        if self.rates is None:
            return float("inf")
        return self.rates.ram_duration(self.ram_msg_count + self.ram_unacked_count)

    def set_ram_duration_target(self, duration: float) -> None:
        self.memory.set_duration(duration, self.rates)
        self.reduce_memory_use()

    def tick(self, now: float) -> None:
        """Updates the rates, and reduces memory even though nothing moves."""
        self.owed.tick(i32(int(now)), self.rates is None)
        self.update_rates(now)
        self.reduce_memory_use()

    def _is_over(self) -> bool:
        return self.memory.is_over(self)

    def reduce_memory_use(self) -> None:
        """Drops bodies that the disk has, has others written, moves positions to delta.

        Ensures: RAM is within its target, or what is too much waits for the disk.
        """
        memory = self.memory
        if memory.is_over(self):
            unacked_first = memory.unacked_first(self.rates)
            if unacked_first:
                self._page_unacked()
            self._page_alphas()
            if not unacked_first:
                self._page_unacked()
            memory.looked(self)
        if memory.target_count != UNLIMITED:
            self._push_to_delta()

    def _page_alphas(self) -> None:
        keep = self.memory.target_count // 2
        if self.q3.count() == 0 and self.delta_count == 0 and self.q4.count() > keep:
            # What is published from now on goes to q1. The newest of q4 may not be on disk yet; those before them are.
            self.count_moved()
            self.q3.prepend(self.q4.take_from(max(keep, self.q4.count() - IO_BATCH_SIZE)))
            self._drop_from_q3()
        while self.q1.count() > 0 and self._is_over():
            status = self.q1.at(0)
            if not self._drop_body(status):
                if status.where == RAM:
                    self._page_oldest(self.q1)
                break
            self.count_moved()
            self.q1.popleft()
            if self.delta_count > 0:
                self.q2.append(status)
            else:
                self.q3.append(status)
        if self._is_over() and self.ram_msg_count - self.q1.count() - self.q4.count() > READ_AHEAD:
            self._drop_from_q3()
        if self._is_over() and self._extras:
            for status in self._extras.values():
                if not self._drop_body(status):
                    self._page(status)
        if self._is_over():
            self._page_q4(keep if self.q1.count() > 0 else 0)

    def _page_q4(self, keep: i64) -> None:
        """Moves messages from q4 to the front of q3, without their bodies; newest first, since the others are fetched
        before.
        """
        moved: list[MsgStatus] = []
        while self.q4.count() > keep and self._is_over():
            status = self.q4.newest()
            if status is None or not self._drop_body(status):
                break
            moved.append(self.q4.pop_newest())
        if moved:
            moved.reverse()
            self.count_moved()
            self.q3.prepend(moved)
        if self.q3.count() > 0 and self._is_over():
            at = self.q4.count() - 1
            looked: i64 = 0
            while at >= keep and looked < PAGE_AT_ONCE:
                self._page(self.q4.at(at))
                at -= 1
                looked += 1

    def _drop_from_q3(self) -> None:
        """Drops bodies of q3, newest first, so that those to be fetched next stay."""
        at = self.q3.count() - 1
        while at >= 0 and self._is_over():
            status = self.q3.at(at)
            if not self._drop_body(status):
                self._page(status)
            at -= 1

    def _page_oldest(self, ring: MsgRing) -> None:
        """Has the oldest transient messages of a ring written."""
        at: i64 = 0
        count = ring.count()
        while at < count and at < PAGE_AT_ONCE:
            self._page(ring.at(at))
            at += 1

    def _page(self, status: MsgStatus) -> None:
        """Has a message written that is nowhere on disk; does nothing for any other."""
        message = status.message
        if status.where != RAM or message is None or status.stored is not None:
            return
        if len(message.content) >= self._embed_below:
            self.index.large.put(status, message, True)
            self.index.scatter()
        else:
            self.index.page(status)

    def _drop_body(self, status: MsgStatus) -> bool:
        """Drops a body if the disk has it. Returns True when the body is not in RAM afterwards."""
        message = status.message
        if message is None:
            return True
        where = status.where
        if where == RAM and status.stored is not None and status.stored.file_num > 0:
            status.body_paged()
            where = BETA
        if where != JOURNAL and where != SEGMENT and where != TRANSIENT and where != BETA:
            return False
        self.owed.body_dropped(status, message)
        status.message = None
        self.count_body_dropped(status)
        if self._events is not None:
            self._record_state(status, layout.BETA if where == BETA else layout.GAMMA)
        return True

    def _page_unacked(self) -> None:
        if self.ram_unacked_count == 0:
            return
        looked: i64 = 0
        while looked < PAGE_UNACKED_AT_ONCE and self._is_over():
            looked += 1
            status = self._unacked.next()
            if status is None:
                break
            if status.unacked and not self._drop_body(status):
                self._page(status)

    def _push_to_delta(self) -> None:
        """Moves the positions that are more than `permitted` allows to delta, in batches."""
        betas = self.q2.count() + self.q3.count()
        both: i64 = self.len - self.q1.count() - self.q4.count()
        permitted = self.memory.positions(both, self.index.segments.entry_count)
        excess = betas - permitted
        if excess < min(IO_BATCH_SIZE, self.index.segments.entry_count):
            return
        first = self.q3.peek()
        if first is None:
            return
        boundary = self.index.segments.boundary(first.seq_id)
        while excess > 0:
            newest = self.q3.newest()
            if newest is None or newest.seq_id < boundary or self.q3.count() < 2 or not self._may_go_to_delta(newest):
                break
            self.q3.pop_newest()
            if self.delta_count == 0:
                self.delta_end = newest.seq_id + 1
            self.delta_start = newest.seq_id
            self._count_into_delta(newest)
            excess -= 1
        while excess > 0 and self.delta_count > 0:
            oldest = self.q2.peek()
            if oldest is None or not self._may_go_to_delta(oldest):
                break
            self.q2.popleft()
            self.delta_end = oldest.seq_id + 1
            self._count_into_delta(oldest)
            excess -= 1

    def _may_go_to_delta(self, status: MsgStatus) -> bool:
        """True when a segment has the message and RAM has no body. Otherwise has it brought to a segment, for a later
        call.
        """
        where = status.where
        if where == BETA:
            self.count_position_paged(status)
            self.index.page(status)
            return False
        if where == JOURNAL:
            self.index.scatter()
            return False
        return (where == SEGMENT or where == TRANSIENT) and self._drop_body(status)

    def _count_into_delta(self, status: MsgStatus) -> None:
        self.count_into_delta(status.body_size)
        if self._events is not None:
            self._record_state(status, layout.DELTA)
        if status.redelivered:
            self.index.segments.delivered(status)

    # -- recovery, and what others look at ------------------------------------------------------------------------

    def recovered(self, next_seq_id: i64, delta_end: i64, journal_places: list[Place]) -> None:
        """Begins with the content of the index: its segments as delta, which ends before `delta_end`, and
        `journal_places`, in order, mostly behind delta.
        """
        index = self.index
        self.next_seq_id = next_seq_id
        self.delta_start = self.delta_end = delta_end
        for num in sorted(index.segments.by_num):
            segment = index.segments.by_num[num]
            if self.delta_count == 0:
                self.delta_start = min(segment.first_seq_id, delta_end)
            self.count_recovered_segment(segment.live, segment.live_bytes)
        has_delta = self.delta_count > 0
        for place in journal_places:
            assert isinstance(place, MsgStatus), "kept by: StatusMaker"
            self.count_recovered(place.body_size)
            if place.expiry > 0:
                self.may_expire = True
            if not has_delta or place.seq_id < self.delta_start:
                self.q3.append(place)
            elif place.seq_id < delta_end:
                self._extras[place.seq_id] = place
                self.count_into_delta(place.body_size)
            else:
                self.q2.append(place)
        if self.len > 0 and self.q3.count() == 0:
            self._refill_if_possible()

    def record(self, events: QueueEvents) -> None:
        """Records from now on, beginning with the recovered messages, in ranges.

        A segment is read only if its counts leave open which of its places are alive.
        """
        self._events = events
        if self.len == 0:
            return
        index = self.index
        for num in sorted(index.segments.by_num):
            segment = index.segments.by_num[num]
            first = segment.first_seq_id
            end = min(index.segments.boundary(first), self.next_seq_id)
            there = [seq_id for seq_id in range(int(first), int(end)) if not segment.is_acked(seq_id)]
            if len(there) != segment.live:
                try:
                    there = [int(place.seq_id) for place in index.segments.read(num)]
                except OSError as error:
                    self._log_unreadable(error)
                    continue
            self._record_recovered(there, layout.DELTA)
        in_journal: list[int] = []
        for ring in (self.q4, self.q3, self.q2, self.q1):
            for at in range(ring.count()):
                if ring.at(at).where == JOURNAL:
                    in_journal.append(int(ring.at(at).seq_id))
        in_journal.extend(self._extras)
        in_journal.sort()
        self._record_recovered(in_journal, layout.GAMMA)

    def _record_recovered(self, seq_ids: list[int], state: i64) -> None:
        events = self._events
        at = 0
        while events is not None and at < len(seq_ids):
            first = seq_ids[at]
            count = 1
            while at + count < len(seq_ids) and seq_ids[at + count] == first + count:
                count += 1
            events.recover(i64(first), i64(count), i64(self.priority), state)
            at += count

    def _record_route(self, status: MsgStatus, message: Message, outcome: i64) -> None:
        events = self._events
        if events is not None:
            events.route(status.seq_id, i64(self.priority), status.body_size, message.persistent, outcome == SYNCING)

    def _record_state(self, place: Place, state: i64) -> None:
        events = self._events
        if events is not None:
            events.state(place.seq_id, i64(self.priority), state)

    def stop(self, next_seq_ids: dict[QueueIndex, int]) -> None:
        next_seq_ids[self.index] = self.next_seq_id
        for ring in (self.q1, self.q2, self.q3, self.q4):
            at: i64 = 0
            count = ring.count()
            while at < count:
                status = ring.at(at)
                if status.redelivered and status.where == SEGMENT:
                    self.index.segments.delivered(status)
                at += 1
        for status in self._extras.values():
            if status.where == SEGMENT:
                self.index.segments.delivered(status)

    def note_seq_ids(self, found: dict[int, int]) -> None:
        if self.index.durable:
            found[self.index.queue_id] = int(self.next_seq_id)

    def state_counts(self) -> tuple[int, int, int, int]:
        """The number of ready messages that are alpha, beta, gamma and delta."""
        delta = self.delta_count - len(self._extras)
        return int(self.ram_msg_count), int(self.beta_count), int(self.gamma_count()) + len(self._extras), int(delta)

    def check(self) -> None:
        """Walks everything in RAM and compares it with the counts; for tests and --check-invariants. Raises
        AssertionError.

        Changes nothing but a sweep of the unacked statuses. Each assert names the methods that keep it true.
        """
        rings = [self.q4, self.q3, self.q2, self.q1]
        last: i64 = -1
        ram: i64 = 0
        betas: i64 = 0
        size: i64 = 0
        ram_bytes: i64 = 0
        for number, ring in enumerate(rings):
            if number == 2 and self.delta_count > 0:
                assert self.delta_start > last, "delta begins behind q3; kept by: _push_to_delta, _read_delta, requeue"
                assert self.delta_start < self.delta_end or self._extras, "delta is a range; kept by: _read_delta"
                last = self.delta_end - 1
            for at in range(ring.count()):
                status = ring.at(at)
                assert status.seq_id > last, "seq_ids increase from q4 to q1; kept by: publish, requeue"
                last = status.seq_id
                assert not status.unacked, "ready messages are not unacked; kept by: requeue, fetch"
                assert status.where != GONE, "ready messages are not gone; kept by: _settle, purge"
                size += status.body_size
                if status.message is not None:
                    ram += 1
                    ram_bytes += status.body_size
                elif status.where == BETA:
                    betas += 1
        for seq_id, status in self._extras.items():
            assert self.delta_start <= seq_id < self.delta_end, "extras are in delta's range; kept by: requeue, _read_delta"
            if status.message is not None:
                ram += 1
                ram_bytes += status.body_size
            elif status.where == BETA:
                betas += 1
        count = self.q1.count() + self.q2.count() + self.q3.count() + self.q4.count()
        assert self.len == count + self.delta_count, "len; kept by: every public method"
        assert self.ready_bytes == size + self.delta_bytes, "ready_bytes; kept by: every public method"
        assert self.ram_msg_count == ram, f"ram_msg_count {self.ram_msg_count}, counted {ram}"
        assert self.beta_count == betas, f"beta_count {self.beta_count}, counted {betas}"
        assert self.q1.count() == 0 or self.q3.count() > 0, "q1 -> q3; kept by: publish, _refill"
        assert self.q2.count() == 0 or self.delta_count > 0, "q2 -> delta; kept by: _page_alphas, _refill"
        assert self.delta_count == 0 or self.q3.count() > 0, "delta -> q3; kept by: _push_to_delta, _refill"
        assert (self.len == 0) == (self.q3.count() == 0 and self.q4.count() == 0), "empty; kept by: _refill"
        self._unacked.sweep(self.unacked)
        ram_unacked: i64 = 0
        for status in self._unacked.statuses:
            assert status.unacked, "kept by: UnackedStatuses.sweep"
            if status.message is not None:
                ram_unacked += 1
                ram_bytes += status.body_size
        assert len(self._unacked.statuses) == self.unacked, "unacked; kept by: fetch, _settle, requeue"
        assert self.ram_unacked_count == ram_unacked, "ram_unacked_count; kept by: _drop_body, _settle"
        assert self.ram_bytes == ram_bytes, f"ram_bytes {self.ram_bytes}, counted {ram_bytes}"
        waiting = self.owed.waiting
        assert waiting >= self.count_owing(), f"waiting {waiting}, counted {self.count_owing()}"
        self._check_steps()

    def _check_steps(self) -> None:
        """What lists show of a queue is as it was when it was checked last, if no step was counted since."""
        shown: list[int] = [
            self.len, self.unacked, self.ready_bytes, self.unacked_bytes, self.ram_msg_count, self.ram_unacked_count,
            self.ram_bytes, self.beta_count, self.delta_count, self.persistent_count, self.persistent_bytes, self.q1.count(),
            self.q2.count(), self.q3.count(), self.q4.count(), self.next_seq_id, self.owed.waiting, len(self._extras),
            int(self.head() is not None),
        ]  # fmt: skip
        checked = self._checked
        assert not checked or checked[0] != self.steps or checked[1:] == shown, "steps; kept by: all count_ methods"
        self._checked = [self.steps, *shown]

    def count_owing(self) -> i64:
        """Walks all messages: the number of those that owe their publishers a confirm. `owed.waiting` counts the light
        ones besides.
        """
        statuses = list(self._extras.values())
        for ring in (self.q4, self.q3, self.q2, self.q1):
            statuses.extend([ring.at(at) for at in range(ring.count())])
        self._unacked.sweep(self.unacked)
        owing: i64 = len(self.owed.paged)
        for status in statuses + self._unacked.statuses:
            if status.owes and status.message is not None:
                owing += 1
            paged = status.owes and status.message is None
            assert paged == (status.seq_id in self.owed.paged), "a waiter is in one place; kept by: Owed"
        return owing


class PageListener(ScatterListener):
    """Goes on with paging when the messages that were paged last have reached the disk."""

    def __init__(self, queue: VariableQueue) -> None:
        self._queue = queue

    def scattered(self) -> None:
        self._queue.reduce_memory_use()


def _is_persistent(place: Place) -> bool:
    """True for a place that survives a restart."""
    where = place.where
    return where != RAM and where != PAGING and where != BETA and where != TRANSIENT


def _oldest_owing(rings: list[MsgRing]) -> i64:
    """The second in which the oldest message came that owes a confirm; -1 when there is none among the first of each ring."""
    for ring in rings:
        for at in range(min(int(ring.count()), LOOKED_AT)):
            status = ring.at(at)
            if status.owes:
                return i64(status.since_s)
    return -1


def _merge(ring: MsgRing, statuses: list[MsgStatus]) -> None:
    if statuses:
        ring.merge(statuses)


def _seq_id(status: MsgStatus) -> int:
    return status.seq_id


def _place_seq_id(place: Place) -> int:
    return place.seq_id
