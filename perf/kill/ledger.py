"""What is known of every message: which promises the broker has made for it, and whether it keeps them.

A *session* lasts from one start of the broker to its end. A message has a *place* in each queue that it was routed to. In each
queue, and for each publisher, the places are

    ahead    not delivered in this session, in the order of their numbers
    seen     delivered in this session, not acked
    acked    acked in this session

What is held against the broker, the moment it shows:

- Places come in the order of their numbers. When a number comes, those before it that are still ahead are gone for good;
  one of them that the broker owed is *lost*. A place is owed when its message was confirmed and no ack was sent for it.
  A message that came through one restart must come through the next as well, confirmed or not: it is on disk.
- A place that was delivered before is delivered with redelivered set; in one session only after a requeue.
- What is gone does not come back: what the queue has gone past, what was acked and settled by a clean stop, and
  transient messages after any stop.

An ack that was under way when the broker was killed may have been lost: its place goes back to ahead, but is not owed.
Where several consumers share a queue, their deliveries arrive here in any order. Then only each consumer's own order
is checked, and the next session with one consumer finds what is missing.

In a *stream* a message has an offset, and nothing is acked:

- An offset that was shown means the same message for ever, after every restart too, and no message has two.
- A consumer gets offsets without gaps, but where retention was faster than it was. Another may still have what it has skipped.
- A stream comes up with every offset that was shown, and its offsets hold every publisher's messages in order; one that was
  confirmed and is not there when a later one of its publisher is, is lost.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator

UNKNOWN, CONFIRMED, NACKED = "unknown", "confirmed", "nacked"
# Messages that are done with are kept for a while, for the story of one that returns.
CLOSED_KEPT = 50_000


class Violation(Exception):
    """The broker has broken a promise; the text says which, and tells the message's history."""


class Message:
    __slots__ = (
        "crc", "events", "id", "number", "outcome", "persistent", "publisher", "session", "size", "skipped_by",
    )  # fmt: skip

    def __init__(
        self, publisher: str, number: int, session: int, size: int, crc: int, persistent: bool
    ) -> None:
        self.publisher = publisher
        self.number = number
        self.session = session
        self.size = size
        self.crc = crc
        self.persistent = persistent
        self.id = f"{publisher} {number} {session} {size} {crc:08x}"
        self.outcome = UNKNOWN
        self.skipped_by = ""  # the queue that went past it before it was confirmed
        self.events: list[tuple[int, float, str, str]] = []


class Place:
    __slots__ = ("acked", "deliveries", "message", "recovered", "requeued")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.deliveries = 0
        self.requeued = False  # given back in this session, and not delivered since
        self.acked = False  # an ack was sent in an earlier session
        self.recovered = False  # delivered in a later session than it was published in


class Track:
    """The places of one publisher's messages in one queue."""

    __slots__ = ("acked", "ahead", "seen")

    def __init__(self) -> None:
        self.ahead: OrderedDict[int, Place] = OrderedDict()
        self.seen: dict[int, Place] = {}
        self.acked: dict[int, Place] = {}

    def places(self) -> Iterator[Place]:
        yield from self.ahead.values()
        yield from self.seen.values()
        yield from self.acked.values()


class StreamTrack:
    """One stream. `shown` has the message at each offset that a consumer was given; all of them up to `frontier`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shown: dict[int, Message] = {}
        self.frontier = 0
        self.ahead: dict[str, OrderedDict[int, Message]] = {}  # by publisher: not shown below the frontier
        self._offsets: dict[str, int] = {}  # by message id, of those that are shown
        self._forgiven: set[str] = set()  # publishers whose next message may come behind a gap that retention has made

    def published(self, message: Message) -> None:
        self.ahead.setdefault(message.publisher, OrderedDict())[message.number] = message

    def top(self) -> int:
        """The offset behind the last that was shown."""
        return max(self.shown, default=self.frontier - 1) + 1

    def skipped(self, first: int, end: int, history: Ledger) -> None:
        """A consumer has come from before `first` to `end` at once."""
        if first <= self.frontier < end:
            self._forgiven.update(self.ahead)
            self.frontier = end
            self._advance(history)
        for offset in [offset for offset in self.shown if offset < end]:
            self._offsets.pop(self.shown.pop(offset).id, None)

    def deliver(self, offset: int, message_id: str, size: int, crc: int, history: Ledger) -> Message:
        """A delivery has arrived."""
        message = self.shown.get(offset)
        if message is None:
            if message_id in self._offsets:
                raise Violation(f"{self.name}: {message_id!r} has offset {self._offsets[message_id]}, and {offset} too")
            publisher, number, *_ = (*message_id.split(" "), "", "")
            ahead = self.ahead.get(publisher, OrderedDict())
            message = ahead.get(int(number) if number.isdecimal() else 0)
            if message is None:
                if offset < self.frontier:  # forgotten here, as retention had it
                    return Message(publisher, int(number), 0, size, crc, True)
                raise Violation(f"{self.name} delivered what it cannot have: {message_id!r} at {offset}")
            self._offsets[message_id] = offset
            self.shown[offset] = message
            history.note_offset(message, self.name, offset)
            self._advance(history)
        if message.id != message_id or message.size != size or message.crc != crc:
            raise Violation(
                f"changed in {self.name} at {offset}: {message_id!r}, {size} bytes, checksum {crc:08x}\n"
                f"{history.history(message)}"
            )
        return message

    def _advance(self, history: Ledger) -> None:
        while self.frontier in self.shown:
            message = self.shown[self.frontier]
            ahead = self.ahead[message.publisher]
            if message.number not in ahead:
                raise Violation(
                    f"order broken in {self.name} at offset {self.frontier}\n{history.history(message)}"
                )
            while True:
                first, passed = ahead.popitem(last=False)
                if first == message.number:
                    break
                self._is_passed(passed, history)
            self._forgiven.discard(message.publisher)
            self.frontier += 1

    def _is_passed(self, message: Message, history: Ledger) -> None:
        if message.publisher in self._forgiven:
            return
        if message.outcome == CONFIRMED:
            raise Violation(f"lost: {self.name} has no offset for it\n{history.history(message)}")
        if message.outcome == UNKNOWN and message.session == history.session:
            message.skipped_by = self.name

    def finish(self, history: Ledger) -> None:
        """Everything that is there has been delivered."""
        for ahead in self.ahead.values():
            for message in ahead.values():
                if message.outcome == CONFIRMED and message.publisher not in self._forgiven:
                    raise Violation(f"lost: never came out of {self.name}\n{history.history(message)}")


class Ledger:
    def __init__(self, queues: Iterable[str], streams: Iterable[str] = ()) -> None:
        self.session = 0
        self.streams = {stream: StreamTrack(stream) for stream in streams}
        self.tracks: dict[str, dict[str, Track]] = {queue: {} for queue in queues}
        self.shared: frozenset[str] = frozenset()  # queues with several consumers in this session
        self.stopping = False  # connections end one by one, and what one had unacked may go to another
        self.numbers: dict[str, int] = {}
        self.closed: OrderedDict[str, Message] = OrderedDict()
        self.published = self.confirmed = self.nacked = self.delivered = self.acked = self.returned = 0
        self._started = time.monotonic()

    # --- sessions ----------------------------------------------------------------------------------------------------

    def start_session(self) -> None:
        self.session += 1
        self.shared = frozenset()
        self.stopping = False

    def end_session(self, how: str, acks_settled: bool = False) -> None:
        """The broker has ended. `acks_settled`: it ended cleanly, and had answered a call made after the last ack."""
        for queue, tracks in self.tracks.items():
            for track in tracks.values():
                if acks_settled:
                    for place in track.acked.values():
                        self._close(place, queue, "acked and settled")
                    track.acked.clear()
                for place in track.acked.values():
                    place.acked = True
                places = list(track.places())
                places.sort(key=lambda place: place.message.number)
                track.ahead.clear()
                track.seen.clear()
                track.acked.clear()
                for place in places:
                    place.requeued = False
                    if not place.message.persistent:
                        self._close(place, queue, f"transient, {how}")
                        continue
                    if place.message.session == self.session or place.deliveries:
                        self._note(place.message, how, queue)
                    track.ahead[place.message.number] = place

    def bounds(self, queue: str) -> tuple[int, int]:
        """How many messages the queue owes, and how many it may hold, before the first delivery of a session."""
        places = [place for track in self.tracks[queue].values() for place in track.places()]
        return sum(self._owed(place) for place in places), len(places)

    def recovered(self, queue: str, count: int) -> None:
        """The broker says that it came up with `count` messages in the queue."""
        owed, most = self.bounds(queue)
        if count < owed:
            first = next(
                place
                for track in self.tracks[queue].values()
                for place in track.ahead.values()
                if self._owed(place)
            )
            raise Violation(
                f"{queue} came up with {count} messages and owes {owed}; one of those:\n{self.history(first.message)}"
            )
        if count > most:
            raise Violation(f"{queue} came up with {count} messages and can have {most} at most")

    def finish(self) -> None:
        """Everything that is there has been delivered."""
        for stream in self.streams.values():
            stream.finish(self)
        for queue, tracks in self.tracks.items():
            for track in tracks.values():
                for place in track.ahead.values():
                    if self._owed(place):
                        raise Violation(f"lost: never came out of {queue}\n{self.history(place.message)}")

    # --- publishing --------------------------------------------------------------------------------------------------

    def publish(
        self, publisher: str, queues: Iterable[str], size: int, crc: int, persistent: bool = True
    ) -> Message:
        number = self.numbers.get(publisher, 0) + 1
        self.numbers[publisher] = number
        message = Message(publisher, number, self.session, size, crc, persistent)
        for queue in queues:
            if queue in self.streams:
                self.streams[queue].published(message)
            else:
                self._track(queue, publisher).ahead[number] = Place(message)
            self._note(message, "published", queue)
        self.published += 1
        return message

    def confirm(self, message: Message) -> None:
        message.outcome = CONFIRMED
        self.confirmed += 1
        self._note(message, "confirmed")
        if message.skipped_by:
            raise Violation(
                f"lost: confirmed, but {message.skipped_by} went past it\n{self.history(message)}"
            )

    def nack(self, message: Message) -> None:
        message.outcome = NACKED
        self.nacked += 1
        self._note(message, "nacked by the broker")

    # --- consuming ---------------------------------------------------------------------------------------------------

    def deliver(
        self, queue: str, message_id: str, size: int, crc: int, redelivered: bool, last: dict[str, int]
    ) -> Place:
        """A delivery has arrived. `last` belongs to its consumer: the highest number that was new to it, per publisher."""
        publisher, number_text, *_ = (*message_id.split(" "), "", "")
        number = int(number_text) if number_text.isdecimal() else 0
        self.delivered += 1
        track = self._track(queue, publisher)
        place = track.seen.get(number) or track.ahead.get(number) or track.acked.get(number)
        flag = "delivered, redelivered" if redelivered else "delivered"
        if place is None:
            raise Violation(f"{queue} {flag} what it cannot have: {message_id!r}\n{self._story(message_id)}")
        message = place.message
        self._note(message, flag, queue)
        if message.id != message_id or message.size != size or message.crc != crc:
            raise Violation(
                f"changed in {queue}: {message_id!r}, {size} bytes, checksum {crc:08x}\n{self.history(message)}"
            )
        handed_on = self.stopping and queue in self.shared
        if number in track.acked:
            if not handed_on:
                raise Violation(f"{queue} delivered again what was acked\n{self.history(message)}")
            track.seen[number] = track.acked.pop(number)
        elif number in track.seen:
            if not (place.requeued or handed_on):
                raise Violation(f"{queue} delivered twice what was not given back\n{self.history(message)}")
            place.requeued = False
        else:
            self._come_to(queue, track, number)
            track.seen[number] = place
        if place.deliveries and not redelivered:
            raise Violation(f"{queue} delivered a second time without redelivered\n{self.history(message)}")
        if not redelivered:
            if number <= last.get(publisher, 0):
                raise Violation(
                    f"order broken in {queue}: after number {last[publisher]}\n{self.history(message)}"
                )
            last[publisher] = number
        place.deliveries += 1
        place.recovered = place.recovered or message.session < self.session
        if place.acked:
            place.acked = (
                False  # the ack did not arrive: the broker has the message as if it had never been sent
            )
            self.returned += 1
        return place

    def _come_to(self, queue: str, track: Track, number: int) -> None:
        """Takes `number` out of ahead, and what was due before it."""
        if queue in self.shared:
            del track.ahead[number]
            return
        while True:
            first, place = track.ahead.popitem(last=False)
            if first == number:
                return
            if self._owed(place):
                raise Violation(f"lost: {queue} went past it, to {number}\n{self.history(place.message)}")
            if place.message.session == self.session and place.message.outcome == UNKNOWN:
                place.message.skipped_by = queue
            self._close(place, queue, "gone: the queue went past it")

    def ack(self, queue: str, place: Place) -> None:
        """An ack is on its way to the broker."""
        track = self._track(queue, place.message.publisher)
        del track.seen[place.message.number]
        track.acked[place.message.number] = place
        self.acked += 1
        self._note(place.message, "acked", queue)

    def requeue(self, queue: str, place: Place) -> None:
        place.requeued = True
        self._note(place.message, "requeued", queue)

    def note_offset(self, message: Message, stream: str, offset: int) -> None:
        self._note(message, f"offset {offset} in", stream)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _track(self, queue: str, publisher: str) -> Track:
        tracks = self.tracks[queue]
        track = tracks.get(publisher)
        if track is None:
            track = tracks[publisher] = Track()
        return track

    def _owed(self, place: Place) -> bool:
        message = place.message
        if place.acked:
            return False
        return place.recovered or (
            message.outcome == CONFIRMED and (message.persistent or message.session == self.session)
        )

    def _note(self, message: Message, what: str, queue: str = "") -> None:
        message.events.append((self.session, time.monotonic() - self._started, what, queue))

    def _close(self, place: Place, queue: str, why: str) -> None:
        self._note(place.message, why, queue)
        self.closed[place.message.id] = place.message
        if len(self.closed) > CLOSED_KEPT:
            self.closed.popitem(last=False)

    def _story(self, message_id: str) -> str:
        if message_id in self.closed:
            return self.history(self.closed[message_id])
        return "  not known: never published, or gone for long"

    def history(self, message: Message) -> str:
        kind = "persistent" if message.persistent else "transient"
        lines = [
            f"  {message.publisher} number {message.number}, {message.size} bytes, {kind}, {message.outcome}"
        ]
        lines += [
            f"    {seconds:10.4f} s  session {session}  {what} {queue}".rstrip()
            for session, seconds, what, queue in message.events
        ]
        return "\n".join(lines)
