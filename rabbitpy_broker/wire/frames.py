"""Bytes to frames: a reader that moves over the bytes of the socket and says where each frame begins.

  frame     kind 1, channel number 2, size of the payload 4, payload, 0xCE
  publish   a method frame basic.publish, a header frame and, where there is a body, one body frame, all on one channel

It copies only the rest of a read that is not a whole frame yet, and knows no connection. Nearly all traffic is whole
publishes; `publish_at` takes such a publish in one step.

What must stay true: a frame is given only when it has arrived whole and ends with 0xCE; its payload is not larger than
`frame_limit`; `publish_at` takes only publishes that reading frame by frame would take without an error.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from rabbitpy_broker.errors import FRAME_ERROR, FramingLost
from rabbitpy_broker.wire.frame_text import frame_text
from rabbitpy_broker.wire.properties import MALFORMED, check_header

METHOD_FRAME: Final[i64] = 1
HEADER_FRAME: Final[i64] = 2
BODY_FRAME: Final[i64] = 3
HEARTBEAT_FRAME: Final[i64] = 8
FRAME_END: Final[i64] = 0xCE

CLASS_BASIC: Final[i64] = 0x003C0000  # with the weight, which is 0


class FrameReader:
    """`frame_limit` is in bytes of a whole frame, `max_body` of a message's body.

    After `frame_at`: `kind`, `number`, and `after`, the position behind the frame. After `publish_at`: `header_end`;
    `mode`, the answer of `check_header`; and `after`, the position behind the publish.
    """

    def __init__(self, frame_limit: i64, max_body: i64) -> None:
        self.frame_limit = frame_limit
        self.kind: i64 = 0
        self.number: i64 = 0
        self.after: i64 = 0
        self.header_end: i64 = 0
        self.mode: i64 = 0
        self._max_body = max_body
        self._needed: i64 = 8
        self._kept: list[bytes] = []
        self._kept_size: i64 = 0

    # -- what is not whole yet ------------------------------------------------------------------------------------

    def join(self, data: bytes) -> bytes | None:
        """The kept bytes with the new ones behind them; None, and all bytes are kept, when they are known to be too few."""
        if self._kept_size == 0:
            return data
        self._kept.append(data)
        self._kept_size += len(data)
        if self._kept_size < self._needed:
            return None
        data = b"".join(self._kept)
        self._kept = []
        self._kept_size = 0
        return data

    def keep(self, data: bytes, pos: i64) -> None:
        """Keeps the bytes behind `pos` for the next read."""
        size: i64 = len(data)
        if pos < size:
            self._kept = [data[pos:] if pos > 0 else data]
            self._kept_size = size - pos

    def keep_all(self, data: bytes) -> None:
        """Keeps the new bytes, and looks at none of them."""
        self._kept.append(data)
        self._kept_size += len(data)

    def kept(self) -> bytes:
        """What is not whole yet, or has not been looked at."""
        return b"".join(self._kept)

    def need(self, size: i64) -> None:
        """Says that the bytes need not be looked at before there are `size` of them."""
        self._needed = size

    def drop(self) -> None:
        """Forgets the kept bytes."""
        self._kept = []
        self._kept_size = 0

    # -- frames ---------------------------------------------------------------------------------------------------

    def frame_at(self, data: bytes, pos: i64, size: i64) -> bool:
        """Reads the frame at `pos`; False when it is not whole. Raises FramingLost."""
        if size - pos < 7:
            self._needed = 7
            return False
        begin: i64 = i64(read_i32_be(data, pos))
        length: i64 = i64(read_i32_be(data, pos + 3)) & 0xFFFFFFFF
        self.kind = begin >> 24 & 0xFF
        self.number = begin >> 8 & 0xFFFF
        if length > self.frame_limit:
            raise self._too_large(length)
        after = pos + length + 8
        if after > size:
            self._needed = after - pos
            return False
        if i64(data[after - 1]) != FRAME_END:
            raise self._unended(data, pos, after)
        self.after = after
        return True

    def _too_large(self, length: i64) -> FramingLost:
        text = f"type {self.kind}, all octets = <<>>"
        return FramingLost(FRAME_ERROR, f"{text}: {{frame_too_large,{length},{self.frame_limit - 8}}}")

    def _unended(self, data: bytes, pos: i64, after: i64) -> FramingLost:
        text = frame_text(self.kind, data[pos + 7 : after - 1])
        return FramingLost(FRAME_ERROR, f"{text}: {{invalid_frame_end_marker,{data[after - 1]}}}")

    def publish_at(self, data: bytes, pos: i64, size: i64) -> bool:
        """Takes the whole publish whose method frame stands at `pos`.

        Assumes: `frame_at` has read that frame, and it is a basic.publish.

        Ensures: True: header and body frame are whole, well-formed and of the same channel; `header_end`, `mode` and
        `after` describe them. False: some frame is missing, or the publish is not of this form; nothing is changed, and
        reading frame by frame finds out what is wrong.
        """
        end = self.after
        number = self.number
        if size - end < 22 or end - pos < 18 or i64(data[end - 2]) > 1:
            return False
        if i64(read_i32_be(data, end)) >> 8 != HEADER_FRAME << 16 | number:
            return False
        length: i64 = i64(read_i32_be(data, end + 3))
        header_end: i64 = end + length + 8
        limit = self.frame_limit
        if length < 14 or length > limit - 8 or header_end > size or i64(data[header_end - 1]) != FRAME_END:
            return False
        if i64(read_i32_be(data, end + 7)) != CLASS_BASIC:
            return False
        body_size: i64 = read_i64_be(data, end + 11)
        after = header_end
        if body_size != 0:
            if body_size < 0 or size - header_end < 8 or body_size > limit - 8:
                return False
            if i64(read_i32_be(data, header_end)) >> 8 != BODY_FRAME << 16 | number:
                return False
            if i64(read_i32_be(data, header_end + 3)) != body_size:
                return False
            after = header_end + body_size + 8
            if after > size or i64(data[after - 1]) != FRAME_END or body_size > self._max_body:
                return False
        mode = check_header(data, end + 7, header_end - 1)
        if mode == MALFORMED:
            return False
        self.header_end = header_end
        self.mode = mode
        self.after = after
        return True
