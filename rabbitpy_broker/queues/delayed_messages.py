"""The messages that a delayed message exchange keeps until they are due: places of a queue index, and a schedule of them.

A persistent message in a durable exchange goes to the journal with the next epoch and on to segments, as one in a queue
does. `Place.expiry` is the time at which it is due; the index keeps it. The place itself is in RAM as long as the
message waits. Its body is dropped, once the disk has it, when bodies take more than RAM_BYTES. That is more than a
queue keeps, because the bodies are read back in the order of their times, which need not be their order on disk. The
bodies of messages that are due soon stay unless memory is short. A transient message is written only to make room.

What must stay true: each place is in the schedule, or taken and not `done`; `unacked` and `unacked_bytes` count all of
them; `_resident` has every place whose message is in RAM (and some that are gone); `ram_count` and `ram_bytes` are
exact.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.events import layout
from rabbitpy_broker.events.journal import QueueEvents
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import CONFIRMED, SYNCING, KeptMessages
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.delay_schedule import DelaySchedule
from rabbitpy_broker.storage.place import BETA, GONE, JOURNAL, RAM, SEGMENT, TRANSIENT, Place, PlaceMaker
from rabbitpy_broker.storage.queue_index import QueueIndex, ScatterListener

RAM_BYTES: Final[i64] = 268_435_456
SHORT_RAM_BYTES: Final[i64] = 33_554_432  # while memory is above the paging mark
OVERHEAD: Final[i64] = 200  # bytes of memory for a message besides its content
STAYS_MS: Final[i64] = 5_000
LOOK_AT_ONCE: Final[i64] = 4_096
READ_AT_ONCE: Final[i64] = 1_024


class DelayedMessages(KeptMessages):
    """The messages are never ready: `take` gives those that are due, and `done` forgets them.

    `embed_below`: messages of fewer bytes are kept in the index, others in a message store.
    """

    def __init__(self, index: QueueIndex, embed_below: i64, clock: Clock) -> None:
        super().__init__()
        self.index = index
        self.schedule = DelaySchedule()
        self.next_seq_id: i64 = 0
        self.ram_count: i64 = 0
        self.ram_bytes: i64 = 0  # contents, with what else a message takes
        self.ram_limit: i64 = RAM_BYTES
        self.paged_out: i64 = 0
        self.paged_in: i64 = 0
        self.unreadable = False
        self._events: QueueEvents | None = None
        self._clock = clock
        self._embed_below = embed_below
        self._resident: deque[Place] = deque()
        self._stays_ms = STAYS_MS
        self._reduce_above: i64 = RAM_BYTES
        self._deleted = False
        index.segments.maker = PlainMaker()
        index.listener = MoreToPage(self)

    def keep(self, message: Message, due_ms: i64) -> i64:
        """Keeps a message until `due_ms`; returns CONFIRMED or SYNCING."""
        size = message.body_size
        place = Place(self.next_seq_id, message, size)
        place.expiry = due_ms
        self.next_seq_id += 1
        self.unacked += 1
        self.unacked_bytes += size
        self.schedule.add(place)
        self._count_in(place, message)
        index = self.index
        outcome = CONFIRMED
        if message.persistent and index.durable:
            if len(message.content) >= self._embed_below:
                index.large.put(place, message, False)
            index.publish(place)
            outcome = SYNCING
        if self._events is not None:
            self._events.route(place.seq_id, 0, size, message.persistent, outcome == SYNCING)
        if self.ram_bytes > self._reduce_above:
            self.reduce_memory_use()
        return outcome

    def record(self, events: QueueEvents) -> None:
        self._events = events
        for place in self.schedule.all():
            events.recover(place.seq_id, 1, 0, layout.GAMMA)

    # -- when it is due -------------------------------------------------------------------------------------------

    def take(self, now_ms: i64, limit: i64) -> list[Place]:
        """Takes the messages that are due, the earliest first; each comes back by `done` or `put_back`.

        A damaged message is dropped, and the log says so. A message that cannot be read now is still due, and
        `unreadable` is set.
        """
        places = self.schedule.take(now_ms, limit)
        at: i64 = 0
        for place in places:
            if place.message is None:
                return places[:at] + self._read(places[at:])
            at += 1
        return places

    def put_back(self, places: list[Place]) -> None:
        """Puts back the last of the places that `take` gave; they are still due."""
        self.schedule.put_back(places)

    def _read(self, places: list[Place]) -> list[Place]:
        """Brings the bodies of these places into RAM, and some that are due after them. Returns the places that could be
        read.
        """
        wanted = [place for place in places + self.schedule.upcoming(READ_AT_ONCE) if place.message is None]
        wanted.sort(key=_position)
        readable: list[Place] = []
        handled: i64 = 0
        try:
            self._load(wanted)
            for place in places:
                if place.message is None:  # it is damaged, or another one was and came first
                    self._load([place])
                handled += 1
                if place.message is None:
                    self._drop_damaged(place)
                else:
                    readable.append(place)
        except OSError as error:
            self.index.segments.damage.queue_unreadable(self.index.segments.path, str(error))
            self.unreadable = True
            self.schedule.put_back(places[handled:])
        return readable

    def _load(self, wanted: list[Place]) -> None:
        try:
            self.index.read_messages(wanted, False)
        except BrokerError as error:
            self.index.segments.damage.message_damaged(self.index.segments.path, str(error))
        finally:
            for place in wanted:
                message = place.message
                if message is not None:
                    self.paged_in += 1
                    self._count_in(place, message)

    def _drop_damaged(self, place: Place) -> None:
        self.index.segments.damage.message_unreadable(self.index.segments.path, int(place.seq_id))
        if self._events is not None:
            self._events.lost(place.seq_id, 0, 0)
        self.done(place)

    def done(self, place: Place) -> None:
        """Forgets a place that was taken: in the epoch that is filling, with everything that is published in this turn."""
        self.unacked -= 1
        self.unacked_bytes -= place.body_size
        if place.message is not None:
            self._count_out(place)
        if self._deleted:
            self.index.large.release(place)
            place.settled()
        elif place.where == RAM and place.stored is None:
            place.settled()
        else:
            self.index.ack(place)
        if len(self._resident) > 2 * self.ram_count + LOOK_AT_ONCE:
            self._resident = deque([place for place in self._resident if place.message is not None])

    def delete(self) -> None:
        """Forgets all messages that are not taken."""
        for place in self.schedule.all():
            self.index.large.release(place)
            if place.message is not None:
                self._count_out(place)
            place.settled()
            self.unacked -= 1
            self.unacked_bytes -= place.body_size
        self.schedule.clear()
        self._resident = deque()
        self._deleted = True
        self.index.listener = None
        self.index.delete()

    # -- memory ---------------------------------------------------------------------------------------------------

    def _count_in(self, place: Place, message: Message) -> None:
        self.ram_count += 1
        self.ram_bytes += len(message.content) + OVERHEAD
        self._resident.append(place)

    def _count_out(self, place: Place) -> None:
        message = place.message
        assert message is not None, "kept by: the callers"
        self.ram_count -= 1
        self.ram_bytes -= len(message.content) + OVERHEAD
        place.message = None

    def reduce_memory_use(self) -> None:
        """Drops bodies that the disk has and has others written, until RAM is within its limit or enough places were
        looked at.
        """
        resident = self._resident
        stays_until = self._clock.now_ms() + self._stays_ms
        left: i64 = min(len(resident), LOOK_AT_ONCE)
        while left > 0 and self.ram_bytes > self.ram_limit:
            left -= 1
            place = resident.popleft()
            if place.message is None:
                continue
            if (place.expiry <= stays_until and self._stays_ms > 0) or not self._drop_body(place):
                resident.append(place)
        # What is left is due soon or waits for the disk: no use in looking again at each publish.
        self._reduce_above = max(self.ram_limit, self.ram_bytes + 1_048_576)

    def _drop_body(self, place: Place) -> bool:
        """Drops a body if the disk has it; otherwise has it written, if nobody else does."""
        if place.where == RAM and place.stored is not None and place.stored.file_num > 0:
            place.body_paged()
        where = place.where
        if where == JOURNAL or where == SEGMENT or where == TRANSIENT or where == BETA:
            self._count_out(place)
            self.paged_out += 1
            return True
        message = place.message
        if where == RAM and place.stored is None and message is not None:
            if len(message.content) >= self._embed_below:
                self.index.large.put(place, message, True)
                self.index.scatter()
            else:
                self.index.page(place)
        return False

    def tick(self, now: float) -> None:
        if self.ram_bytes > self.ram_limit:
            self.reduce_memory_use()

    def ram_duration(self) -> float:
        """Infinity: the time for which messages stay says nothing about how fast they could go."""
        return float("inf")

    def set_ram_duration_target(self, duration: float) -> None:
        is_short = duration != float("inf")
        self.set_ram_limit(SHORT_RAM_BYTES if is_short else RAM_BYTES, 0 if is_short else STAYS_MS)

    def set_ram_limit(self, limit: i64, stays_ms: i64) -> None:
        """Sets the limit of bodies in RAM, in bytes; bodies that are due within `stays_ms` come on top of it."""
        self.ram_limit = limit
        self._stays_ms = stays_ms
        self._reduce_above = limit
        if self.ram_bytes > limit:
            self.reduce_memory_use()

    # -- recovery, and what others look at ------------------------------------------------------------------------

    def recovered(self, next_seq_id: i64, journal_places: list[Place]) -> None:
        """Begins with the content of the index: all places in segments, and `journal_places`. Raises OSError."""
        self.next_seq_id = next_seq_id
        index = self.index
        in_journal = {int(place.seq_id) for place in journal_places}
        places = list(journal_places)
        for num in sorted(index.segments.by_num):
            places.extend([place for place in index.segments.read(num) if int(place.seq_id) not in in_journal])
        places.sort(key=_seq_id)
        for place in places:
            self.schedule.add(place)
            self.unacked += 1
            self.unacked_bytes += place.body_size

    def stop(self, next_seq_ids: dict[QueueIndex, int]) -> None:
        next_seq_ids[self.index] = self.next_seq_id

    def note_seq_ids(self, found: dict[int, int]) -> None:
        if self.index.durable:
            found[self.index.queue_id] = int(self.next_seq_id)

    def check_with(self, taken: list[Place]) -> None:
        """Walks everything in RAM and compares it with the counters; for tests. `taken`: the places that are not `done`
        yet.
        """
        places = self.schedule.all() + taken
        assert self.schedule.count + len(taken) == len(places), "count; kept by: DelaySchedule"
        assert self.unacked == len(places), "unacked; kept by: keep, done, recovered"
        assert len({int(place.seq_id) for place in places}) == len(places), "each place is there once"
        size: i64 = 0
        count: i64 = 0
        ram_bytes: i64 = 0
        for place in places:
            size += place.body_size
            assert place.where != GONE, "what waits is not gone; kept by: done, delete"
            message = place.message
            if message is not None:
                count += 1
                ram_bytes += len(message.content) + OVERHEAD
        assert self.unacked_bytes == size, "unacked_bytes; kept by: keep, done, recovered"
        assert self.ram_count == count, f"ram_count {self.ram_count}, counted {count}"
        assert self.ram_bytes == ram_bytes, f"ram_bytes {self.ram_bytes}, counted {ram_bytes}"
        resident = [int(place.seq_id) for place in self._resident if place.message is not None]
        assert len(resident) == count, "resident; kept by: _count_in, reduce_memory_use"
        assert len(set(resident)) == count, "each is resident once; kept by: _count_in, reduce_memory_use"


class PlainMaker(PlaceMaker):
    """Makes places without the parts that only queues with consumers need."""

    def make_place(self, seq_id: i64, body_size: i64) -> Place:
        return Place(seq_id, None, body_size)


class MoreToPage(ScatterListener):
    """Goes on with paging when the last bodies have reached the disk."""

    def __init__(self, messages: DelayedMessages) -> None:
        self._messages = messages

    def scattered(self) -> None:
        if self._messages.ram_bytes > self._messages.ram_limit:
            self._messages.reduce_memory_use()


def _position(place: Place) -> tuple[int, int, int]:
    """The position on disk, so that bodies that lie together are read together."""
    entry = place.stored
    if entry is not None:
        return -1, entry.file_num, entry.offset
    return place.where, place.file_num if place.where == JOURNAL else place.seq_id, place.offset


def _seq_id(place: Place) -> int:
    return place.seq_id
