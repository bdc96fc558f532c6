"""Frames of AMQP as they come from a broker, read without a socket: deliveries into plain lists, all else into methods.

    deliver frame   01 channel(2) size(4) | class(2) method(2) tag(1+n) delivery tag(8) redelivered(1) exchange routing key | CE
    header frame    02 channel(2) size(4) | class(2) weight(2) body size(8) flags(2) properties                            | CE
    body frame      03 channel(2) size(4) | a part of the body                                                             | CE

A stream is read at 100,000 messages a second and more, so a message must cost about a microsecond. What makes that possible
is that neighbours differ in little: the delivery tag, the offset, the properties behind the headers (a message_id, a
timestamp), which are the message's *tail*, and size and bytes of the body. All else of a message together is its *layout*. A
layout is parsed once (`_parse`); what looks like the layout before is told by comparing bytes and read by one `unpack`
(`_run`). Tails are read column by column when there are many (`tail_columns`). A message with headers of its own is parsed
each time, which is some six times slower.

What must stay true:

- A message is read in the fast way only if every byte that says where something is has been compared.
- The offset is the value of the header `x-stream-offset`, 64 bits, found by parsing the table of headers, never by its looks.
- Delivery tags count from 1 on a channel, and there is one consumer on it: `received` is the tag of the last delivery.
- Nothing is read twice: of a message that is not complete, its bytes wait until it is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pika
import pika.data
import pika.spec

from rabbitpy_broker.pipeline.errors import PipelineError

CHANNEL: Final = 1
CONSUMER_TAG: Final = "s"
OFFSET_HEADER: Final = "x-stream-offset"

_FRAME: Final = struct.Struct(">BHI")
_FRAME_END: Final = 0xCE
_METHOD, _HEADER, _BODY = 1, 2, 3
_BASIC_DELIVER: Final = b"\x00\x3c\x00\x3c"
# Of a deliver frame: up to the delivery tag, which has one byte of consumer tag before it, and up to what comes behind.
_TAG: Final = 7 + 4 + 1 + len(CONSUMER_TAG)
_ADDRESS: Final = _TAG + 8
# Of a header frame: up to the size of the body, and up to the flags.
_BODY_SIZE: Final = 7 + 4
_FLAGS: Final = _BODY_SIZE + 8
_OFFSET_KEY: Final = bytes([len(OFFSET_HEADER)]) + OFFSET_HEADER.encode() + b"l"
# Layouts that are remembered. Where every message has its own, remembering does not pay, and must not cost memory either.
_MAX_LAYOUTS: Final = 4096


# Properties behind the headers, in the order in which they come: name, and whether it is a short string, else its bytes.
_TAIL: Final = (
    ("delivery_mode", 1), ("priority", 1), ("correlation_id", 0), ("reply_to", 0), ("expiration", 0), ("message_id", 0),
    ("timestamp", 8), ("type", 0), ("user_id", 0), ("app_id", 0), ("cluster_id", 0),
)  # fmt: skip
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _FIRST_OF_TAIL = 1 << 15, 1 << 14, 1 << 13, 1 << 12
TAIL_PROPERTIES: Final = frozenset(name for name, _ in _TAIL)


class Layout:
    """All of a message but delivery tag, offset, tail and body: what it says, and how it looks.

    `flags` say which properties there are. The pieces of its bytes, with what is between them:
    `opening` delivery tag(8) `middle` body size(8) `before` offset(8) `rest` tail `behind` size of the body frame(4)
    """

    __slots__ = ("before", "behind", "content_encoding", "content_type", "exchange", "flags", "headers", "middle", "numbers",
                 "opening", "redelivered", "rest", "routing_key", "size", "tail_at", "tail_size")  # fmt: skip

    def __init__(self, redelivered: bool, exchange: str, routing_key: str) -> None:
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.flags = 0
        self.content_type: str | bytes | None = None
        self.content_encoding: str | bytes | None = None
        self.headers: dict[str, Any] | None = None
        self.tail_at = 0  # from the flags on
        self.size = 0  # up to the body; 0 before `look`

    def look(self, opening: bytes, middle: bytes, before: bytes, rest: bytes, tail_size: int) -> None:
        self.opening, self.middle, self.before, self.rest, self.tail_size = opening, middle, before, rest, tail_size
        self.behind = bytes([_FRAME_END]) + _FRAME.pack(_BODY, CHANNEL, 0)[:3]
        # body size, offset, tail, size of the body frame, and its first byte is at `size`
        self.numbers = struct.Struct(
            f">{len(opening) + 8 + len(middle)}xQ{len(before)}xq{len(rest)}x{tail_size}s{len(self.behind)}xI"
        )
        self.size = self.numbers.size

    def read(self, data: bytes, at: int) -> int:
        """Reads flags, content type, encoding and headers, which begin at `at`; the offset, which headers then do not have."""
        flags, position = int.from_bytes(data[at : at + 2]), at + 2
        if flags & 1:
            raise PipelineError("a delivery with properties that AMQP 0-9-1 does not have")
        if flags & _CONTENT_TYPE:
            self.content_type, position = pika.data.decode_short_string(data, position)
        if flags & _CONTENT_ENCODING:
            self.content_encoding, position = pika.data.decode_short_string(data, position)
        headers: dict[str, Any] = {}
        if flags & _HEADERS:
            headers, position = pika.data.decode_table(data, position)
        offset = headers.pop(OFFSET_HEADER, None)
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise PipelineError("a delivery without an offset: the queue is not a stream (x-queue-type=stream)")
        self.flags, self.headers, self.tail_at = flags, headers or None, position - at
        return int(offset)


def tail_columns(flags: int, tails: Sequence[bytes]) -> dict[str, list[Any]]:
    """The properties in tails of messages with these flags, by name; absent where no message has it. Numbers are numbers, and
    strings are bytes. Raises PipelineError when they do not fit.
    """
    columns: dict[str, list[Any]] = {}
    ends = [0] * len(tails)
    try:
        for number, (name, size) in enumerate(_TAIL):
            if not flags & (_FIRST_OF_TAIL >> number):
                continue
            starts = ends
            if size == 0:
                ends = [start + 1 + tail[start] for tail, start in zip(tails, starts, strict=True)]
                columns[name] = [
                    tail[start + 1 : end] for tail, start, end in zip(tails, starts, ends, strict=True)
                ]
            else:
                ends = [start + size for start in starts]
                columns[name] = [
                    int.from_bytes(tail[start : start + size]) for tail, start in zip(tails, starts, strict=True)
                ]
    except IndexError:
        ends = [-1]
    if ends != list(map(len, tails)):
        raise PipelineError("the broker sent properties that do not fit their flags")
    return columns


class Messages(NamedTuple):
    """Four lists that go together."""

    offsets: list[int]
    bodies: list[bytes]
    layouts: list[Layout]
    tails: list[bytes]


class Frames:
    """`feed` it with what comes; take deliveries from the lists `offsets`, `bodies`, `layouts` and `tails`, which go together,
    with `take`, and methods from `methods`.
    """

    def __init__(self) -> None:
        self.received = 0  # deliveries on this channel, taken or not
        self.offsets: list[int] = []
        self.bodies: list[bytes] = []
        self.layouts: list[Layout] = []
        self.tails: list[bytes] = []
        self.bytes = 0  # of `bodies`
        self.methods: list[Any] = []  # pika.spec's, connection's and channel's together
        self._known: dict[bytes, Layout] = {}
        self._names: dict[bytes, tuple[str, str]] = {}  # exchange and routing key, by their bytes
        self._last: Layout | None = None
        self._waiting: list[bytes] = []  # of what is not complete
        self._waiting_bytes = 0
        self._wanted = 0  # so many of them there must be before it pays to look

    def take(self) -> Messages:
        """The deliveries since it was called last."""
        taken = Messages(self.offsets, self.bodies, self.layouts, self.tails)
        self.offsets, self.bodies, self.layouts, self.tails = [], [], [], []
        self.bytes = 0
        return taken

    def feed(self, data: bytes) -> None:
        """Reads everything that is complete. Raises PipelineError for what is no AMQP."""
        if self._waiting:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._waiting_bytes < self._wanted:
                return
            data = b"".join(self._waiting)
            self._waiting.clear()
        position = 0
        self._wanted = 0
        while True:
            if self._last is not None:
                position = self._run(data, position, self._last)
            behind = self._parse(data, position)
            if behind == position:
                break
            position = behind
        if position < len(data):
            self._waiting.append(data[position:])
            self._waiting_bytes = len(data) - position

    def _run(self, data: bytes, start: int, layout: Layout) -> int:
        """Reads messages of this layout from `start` on, as many as come one after the other; the end of the last."""
        opening, middle, before, rest, behind = layout.opening, layout.middle, layout.before, layout.rest, layout.behind
        to_middle = len(opening) + 8
        to_before = to_middle + len(middle) + 8
        to_rest = to_before + len(before) + 8
        to_behind = to_rest + len(rest) + layout.tail_size
        size, numbers, matches = layout.size, layout.numbers.unpack_from, data.startswith
        add_offset, add_body, add_tail = self.offsets.append, self.bodies.append, self.tails.append
        at, limit, count, total = start, len(data) - size, 0, 0
        while (
            at < limit
            and matches(opening, at)
            and matches(middle, at + to_middle)
            and matches(before, at + to_before)
            and matches(rest, at + to_rest)
            and matches(behind, at + to_behind)
        ):
            body_size, offset, tail, frame_size = numbers(data, at)
            body = at + size
            end = body + frame_size
            if body_size != frame_size or end >= len(data) or data[end] != _FRAME_END:
                break
            add_offset(offset)
            add_body(data[body:end])
            add_tail(tail)
            count += 1
            total += frame_size
            at = end + 1
        self.layouts += [layout] * count
        self.received += count
        self.bytes += total
        return at

    def _parse(self, data: bytes, start: int) -> int:
        """Reads one frame, or all frames of one delivery; their end, or `start` when they are not complete."""
        end = self._frame_end(data, start)
        if end == start:
            return start
        kind = data[start]
        if kind == _METHOD and data[start + 7 : start + 11] == _BASIC_DELIVER:
            return self._delivery(data, start, end)
        if kind == _METHOD:
            found = pika.spec.methods.get(int.from_bytes(data[start + 7 : start + 11]))
            if found is None:
                raise PipelineError("the broker sent a method that AMQP 0-9-1 does not have")
            method = found()
            method.decode(data, start + 11)
            self.methods.append(method)
        elif kind in (_HEADER, _BODY):
            raise PipelineError("the broker sent content without a delivery")
        return end  # else a heartbeat

    def _frame_end(self, data: bytes, start: int) -> int:
        """The end of the frame at `start`, or `start` when it is not complete."""
        if len(data) < start + _FRAME.size:
            return start
        end = start + _FRAME.size + int.from_bytes(data[start + 3 : start + 7]) + 1
        if end > len(data):
            self._wanted = end - start
            return start
        if data[end - 1] != _FRAME_END:
            raise PipelineError("the broker sent a frame without its end")
        return end

    def _delivery(self, data: bytes, start: int, header: int) -> int:
        """The same of a delivery whose header frame begins at `header`."""
        first_body = self._frame_end(data, header)
        if first_body == header:
            return start
        size = int.from_bytes(data[header + _BODY_SIZE : header + _FLAGS])
        pieces: list[bytes] = []
        end, missing = first_body, size
        while missing > 0:
            piece = end
            end = self._frame_end(data, piece)
            if end == piece:
                self._wanted = piece + missing + _FRAME.size + 1 - start
                return start
            pieces.append(data[piece + _FRAME.size : end - 1])
            missing -= len(pieces[-1])
        offset, layout = self._layout(data, start, header, first_body)
        if len(pieces) == 1 and layout.size:
            self._last = layout
        self.offsets.append(offset)
        self.bodies.append(b"".join(pieces))
        self.layouts.append(layout)
        self.tails.append(data[header + _FLAGS + layout.tail_at : first_body - 1])
        self.received += 1
        self.bytes += size
        return end

    def _layout(self, data: bytes, start: int, header: int, end: int) -> tuple[int, Layout]:
        """The offset and the layout of the message whose deliver and header frames are data[start:end]."""
        at = data.find(_OFFSET_KEY, header + _FLAGS, end)
        offset_at = at + len(_OFFSET_KEY)
        # What is the same in both frames up to the offset: so the same key has its offset, if it is one, in the same place.
        key = b"".join(
            (data[start : start + _TAG], data[start + _ADDRESS : header + _BODY_SIZE], data[header + _FLAGS : offset_at])
        )  # fmt: skip
        layout = self._known.get(key) if at >= 0 else None
        if layout is None or data[offset_at + 8 : header + _FLAGS + layout.tail_at] != layout.rest:
            layout = self._new_layout(data, start, header)
            offset = layout.read(data, header + _FLAGS)
            # Else something that looks like the header comes before it: always parsed.
            if at >= 0 and data[offset_at : offset_at + 8] == offset.to_bytes(8, signed=True):
                tail_at = header + _FLAGS + layout.tail_at
                layout.rest = data[offset_at + 8 : tail_at]
                if len(self._known) >= _MAX_LAYOUTS:
                    self._known.clear()
                self._known[key] = layout
            return offset, layout
        if not layout.size:  # seen for the second time: it may come again
            layout.look(
                data[start : start + _TAG],
                data[start + _ADDRESS : header + _BODY_SIZE],
                data[header + _FLAGS : offset_at],
                layout.rest,
                end - 1 - (header + _FLAGS + layout.tail_at),
            )
        return int.from_bytes(data[offset_at : offset_at + 8], signed=True), layout

    def _new_layout(self, data: bytes, start: int, header: int) -> Layout:
        """What the deliver frame says."""
        address = start + _ADDRESS
        names = data[address + 1 : header - 1]
        if names not in self._names:
            if len(self._names) >= _MAX_LAYOUTS:
                self._names.clear()
            exchange, routing = pika.data.decode_short_string(names, 0)
            self._names[names] = exchange, pika.data.decode_short_string(names, routing)[0]
        return Layout(bool(data[address]), *self._names[names])
