"""Reading what the disk has of a queue without leaving a trace there: a browse's way to segments, journal and message stores.

The queue's own reads count themselves, keep damage aside and count off what is lost. These do nothing of that. They work on
places that nobody else knows, open their files in the loop (an open file outlives its removal) and read them in a thread.

What must stay true: nothing here changes a place of the queue, a segment, a store, a file or a count; what is damaged is told
to whoever reads, and to nobody else.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64, mypyc_attr

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.message import Message
from rabbitpy_broker.storage.files import DiskFile
from rabbitpy_broker.storage.place import BETA, JOURNAL, SEGMENT, TRANSIENT, Place
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.records import (
    ACK,
    DELIVER,
    MESSAGE_HEAD,
    PUBLISH,
    REDELIVERED,
    STORED,
    Entry,
    FormatError,
    checksum,
    read_entries,
    read_message,
)
from rabbitpy_broker.storage.segment import (
    BLOCK_HEAD,
    HEADER_SIZE,
    Segment,
    check_file_header,
    read_block_head,
)
from rabbitpy_broker.storage.store_file import RECORD_HEAD, decode_record

WHOLE_BYTES: Final[i64] = 1_048_576  # of a larger message only the beginning is read, if no more is wanted
HEADERS_BYTES: Final[i64] = 262_144  # address and content header of any message
SPAN_BYTES: Final[i64] = 1_048_576  # with one read
SPAN_GAP: Final[i64] = 4_096


@mypyc_attr(allow_interpreted_subclasses=True)
class Job:
    """Some reading for a thread. `bytes_read` is how much it was."""

    def __init__(self) -> None:
        self.bytes_read: i64 = 0

    def run(self) -> None:
        """Reads. Raises nothing that a disk can do: what could not be read is told by whoever made the job."""
        raise NotImplementedError


# -- the places of a segment ------------------------------------------------------------------------------------------


class PeekedPlace(Place):
    """A place as a segment has it. `msg_id`: where a message store has the message."""

    msg_id: bytes = b""


class Hole:
    """A part of a segment that cannot be read: what is in it comes behind `after`."""

    def __init__(self, after: i64, reason: str) -> None:
        self.after = after
        self.reason = reason


class SegmentPeek(Job):
    """What the files of a segment have, without what they say is acked. Made in the loop, run in a thread.

    `places` is in the queue's order. What was acked, or handed out, since the files were written the segment itself knows.
    """

    def __init__(self, index: QueueIndex, segment: Segment) -> None:
        super().__init__()
        self.segment = segment
        self.size = segment.size
        self.transient_size = segment.transient_size
        self.places: list[PeekedPlace] = []
        self.holes: list[Hole] = []
        self._queue_id = index.segments.queue_id
        self._files: list[tuple[DiskFile, bool]] = []
        self._found: dict[int, PeekedPlace] = {}
        self._last: i64 = segment.first_seq_id - 1
        for transient in (False, True):
            if (self.transient_size if transient else self.size) > 0:
                path = index.segments.path_of(segment.num, transient)
                try:
                    self._files.append((index.segments.disk.open(path), transient))
                except OSError as error:
                    self.holes.append(Hole(self._last, str(error)))

    def is_of(self, segment: Segment) -> bool:
        """Whether it is still all that the segment's files have."""
        return self.segment is segment and self.size == segment.size and self.transient_size == segment.transient_size

    def run(self) -> None:
        for file, transient in self._files:
            try:
                self._read(file, transient)
            except OSError as error:
                self._hole(str(error))
            finally:
                file.close()
        self._files = []
        self.places = [self._found[seq_id] for seq_id in sorted(self._found)]
        self._found = {}

    def _hole(self, reason: str) -> None:
        self.holes.append(Hole(self._last, reason))

    def _read(self, file: DiskFile, transient: bool) -> None:
        """Reads a file block by block. Raises OSError."""
        size: i64 = self.transient_size if transient else self.size
        self._last = self.segment.first_seq_id - 1
        fault = check_file_header(file.read_at(0, int(HEADER_SIZE)), self._queue_id, int(self.segment.num))
        if fault:
            self._hole(fault)
            return
        pos: i64 = HEADER_SIZE
        while pos < size:
            counts = read_block_head(file.read_at(int(pos), int(BLOCK_HEAD)), 0)
            pos += BLOCK_HEAD
            if counts is None or pos + counts.payload > size:
                self._hole("the head of a block is damaged")
                return
            payload: bytes = file.read_at(int(pos), int(counts.payload))
            self.bytes_read += len(payload)
            if len(payload) != counts.payload or checksum(payload) != counts.checksum:
                self._hole("a block whose checksum is wrong")
            else:
                self._take(payload, pos, transient)
            pos += counts.payload

    def _take(self, payload: bytes, base: i64, transient: bool) -> None:
        """Takes the entries of a block, whose payload begins at `base` in its file."""
        try:
            entries = read_entries(payload, 0, len(payload))
        except FormatError as error:
            self._hole(str(error))
            return
        for entry in entries:
            if entry.kind == PUBLISH:
                self._publish(payload, entry, base, transient)
            elif entry.kind == ACK:
                for seq_id in range(entry.seq_id, entry.seq_id + entry.count):
                    self._found.pop(seq_id, None)
            elif entry.kind == DELIVER:
                for seq_id in range(entry.seq_id, entry.seq_id + entry.count):
                    place = self._found.get(seq_id)
                    if place is not None:
                        place.redelivered = True

    def _publish(self, payload: bytes, entry: Entry, base: i64, transient: bool) -> None:
        place = PeekedPlace(entry.seq_id, None, entry.body_size)
        place.redelivered = bool(entry.flags & REDELIVERED)
        place.found(TRANSIENT if transient else SEGMENT, 0, base + entry.data, entry.size, entry.expiry)
        if entry.flags & STORED:
            place.msg_id = payload[entry.data : entry.data + entry.size]
            place.in_transient_store = transient
        self._found[entry.seq_id] = place
        self._last = max(self._last, entry.seq_id)


# -- messages ---------------------------------------------------------------------------------------------------------


class Content:
    """A message without its frames. `body` may be its beginning only; then `message` is None, and `body_size` what it has."""

    def __init__(self, address: bytes, header: bytes, body: bytes, body_size: i64, persistent: bool) -> None:
        self.address = address
        self.header = header
        self.body = body
        self.body_size = body_size
        self.persistent = persistent
        self.message: Message | None = None


def content_of(message: Message, cut: i64) -> Content:
    """At most `cut` bytes of its body; all for -1."""
    body = b""
    if message.body_size > 0:
        start = message.header_end + 7
        end = start + message.body_size
        if 0 <= cut < message.body_size:
            end = start + cut
        body = message.content[start:end]
    content = Content(message.address, message.header_payload(), body, message.body_size, message.persistent)
    content.message = message
    return content


class MessageRead:
    """One message that is to be read. Afterwards `content` is there, or `fault` says why it is not.

    `journal_file`: the journal's file that it is read from, 0 for none. Whoever asked looks whether that file is still there.
    """

    def __init__(self, file: DiskFile, place: Place, offset: i64, size: i64, msg_id: bytes) -> None:
        self.file = file
        self.offset = offset
        self.size = size
        self.body_size = place.body_size
        self.msg_id = msg_id
        self.stored = place.stored
        self.transient = place.in_transient_store
        self.journal_file: i64 = place.file_num if place.where == JOURNAL and not msg_id else 0
        self.content: Content | None = None
        self.fault = ""

    def take(self, data: bytes, begin: i64, cut: i64) -> None:
        """Its bytes stand in `data` from `begin` on."""
        try:
            self._take(data, begin, cut)
        except BrokerError as error:
            self.fault = str(error)

    def _take(self, data: bytes, begin: i64, cut: i64) -> None:
        end = begin + self.size
        if end > len(data):
            self._take_beginning(data, begin, cut)
        elif self.msg_id:
            message = decode_record(data[begin:end], self.file.path, self.offset, self.msg_id)
            if self.transient:  # so that whoever publishes it once more does not write it once more
                message.stored_transient = self.stored
            else:
                message.stored = self.stored
            self.content = content_of(message, cut)
        else:
            self.content = content_of(read_message(data, begin, end), cut)

    def _take_beginning(self, data: bytes, begin: i64, cut: i64) -> None:
        """What is there of a message that was not read to its end. Raises FormatError."""
        if self.msg_id:
            if data[begin + 8 : begin + 24] != self.msg_id:
                raise FormatError("the record of another message")
            begin += RECORD_HEAD
        if len(data) < begin + MESSAGE_HEAD:
            raise FormatError("a message that is cut off")
        start = begin + MESSAGE_HEAD + (i64(read_i16_be(data, begin)) & 0xFFFF)
        header_end = start + (i64(read_i32_be(data, begin + 2)) & 0xFFFFFFFF)
        if header_end + 7 > len(data) or header_end < start + 19:
            raise FormatError("a message whose parts do not fit")
        body = data[header_end + 7 : header_end + 7 + max(cut, 0)]
        address = data[begin + MESSAGE_HEAD : start]
        self.content = Content(address, data[start + 4 : header_end - 1], body, self.body_size, data[begin + 6] == 1)


class MessageReads(Job):
    """Messages of one queue, to be read with at most `cut` bytes of each body (-1: all). `add` in the loop, run in a thread."""

    def __init__(self, index: QueueIndex, cut: i64) -> None:
        super().__init__()
        self.reads: list[MessageRead] = []
        self._index = index
        self._cut = cut
        self._files: dict[str, DiskFile] = {}

    def add(self, place: Place) -> MessageRead:
        """Has the message of a place read that is not in memory. Raises OSError when the disk does not have its file."""
        stored = place.stored
        if stored is not None:
            store = self._index.large.store_of(place)
            if stored.file_num == 0 or stored.ref_count == 0:
                raise OSError("the message store has it no more")
            path = store.folder.path_of(stored.file_num)
            read = MessageRead(self._open(path), place, stored.offset, RECORD_HEAD + stored.size, stored.msg_id)
        else:
            read = MessageRead(self._open(self._path_of(place)), place, place.offset, place.size, b"")
        self.reads.append(read)
        return read

    def _path_of(self, place: Place) -> str:
        segments = self._index.segments
        if place.where == JOURNAL:
            return self._index.journal.files.path_of(place.file_num)
        if place.where not in (SEGMENT, TRANSIENT, BETA):
            raise OSError("the disk does not have the message yet")
        return segments.path_of(place.seq_id // segments.entry_count, place.where == TRANSIENT)

    def _open(self, path: str) -> DiskFile:
        file = self._files.get(path)
        if file is None:
            file = self._index.segments.disk.open(path)
            self._files[path] = file
        return file

    def close(self) -> None:
        """The files, if it is not to be run."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def run(self) -> None:
        try:
            self.reads.sort(key=_position)
            at: i64 = 0
            while at < len(self.reads):
                at = self._read_span(at)
        finally:
            self.close()

    def _wanted(self, read: MessageRead) -> i64:
        """How many bytes of it are read."""
        if self._cut < 0 or read.size <= WHOLE_BYTES:
            return read.size
        return min(read.size, HEADERS_BYTES + self._cut)

    def _read_span(self, at: i64) -> i64:
        """Reads one message and those that follow it closely; returns the first that it did not read."""
        first = self.reads[at]
        low = first.offset
        high = low + self._wanted(first)
        end = at + 1
        while end < len(self.reads):
            read = self.reads[end]
            near = read.file is first.file and high <= read.offset <= high + SPAN_GAP
            if not near or read.offset + self._wanted(read) - low > SPAN_BYTES:
                break
            high = read.offset + self._wanted(read)
            end += 1
        fault = ""
        data = b""
        try:
            data = first.file.read_at(int(low), int(high - low))
        except OSError as error:
            fault = str(error)
        if not fault and len(data) < high - low:
            fault = f"{first.file.path} ends before it"
        self.bytes_read += len(data)
        for read in self.reads[at:end]:
            if fault:
                read.fault = fault
            else:
                read.take(data, read.offset - low, self._cut)
        return end


def _position(read: MessageRead) -> tuple[str, int]:
    return read.file.path, read.offset
