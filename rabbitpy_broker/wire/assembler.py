"""A method and its content, put together from frames: one value with three states.

  METHOD   nothing is open: the next frame is a method
  HEADER   a basic.publish has come: the next frame is its content header
  BODY     a header has come: body frames until its body size is reached

Every other frame is a 505, with the text RabbitMQ gives. Publishes that lie complete in one read never come here
(`protocol/connection.py` takes them whole). Publishes that are cut across reads, or whose body has several frames, do.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i64_be
from mypy_extensions import i64

from rabbitpy_broker.errors import (
    FRAME_ERROR,
    PRECONDITION_FAILED,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    ChannelClosed,
    ConnectionClosed,
)
from rabbitpy_broker.message import Message
from rabbitpy_broker.wire.properties import MALFORMED, PERSISTENT, TO_CHECK, check_header

METHOD: Final[i64] = 0
HEADER: Final[i64] = 1
BODY: Final[i64] = 2


class Assembler:
    """The assembler of one channel. `publish` opens it; `header` and `body` return the Message when it is complete."""

    def __init__(self) -> None:
        self.state: i64 = METHOD
        self.address = b""
        self.flags: i64 = 0
        self._header = b""
        self._persistent = False
        self.to_check = False  # the header has properties with rules, see properties.TO_CHECK
        self._missing: i64 = 0
        self._parts: list[bytes] = []

    def publish(self, address: bytes, flags: i64) -> None:
        """A basic.publish has come; `flags` are its bits (1 mandatory, 2 immediate)."""
        self.address = address
        self.flags = flags
        self.state = HEADER

    def expect_method(self) -> None:
        """Called before any method: raises 505 when content is due."""
        if self.state == HEADER:
            raise ConnectionClosed(
                UNEXPECTED_FRAME, "expected content header for class 60, got non content header frame instead"
            )
        if self.state == BODY:
            raise ConnectionClosed(UNEXPECTED_FRAME, "expected content body, got non content body frame instead")

    def header(self, payload: bytes, max_message_size: i64) -> Message | None:
        """A content header frame's payload, of 14 octets at least, has come.

        Raises a soft 406 when the body would be too large.
        """
        if self.state == METHOD:
            raise ConnectionClosed(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        if self.state == BODY:
            raise ConnectionClosed(UNEXPECTED_FRAME, "expected content body, got non content body frame instead")
        class_id: i64 = i64(read_i16_be(payload, 0)) & 0xFFFF
        if class_id != 60:
            raise ConnectionClosed(
                UNEXPECTED_FRAME, f"expected content header for class 60, got one for class {class_id} instead"
            )
        if payload[2:4] != b"\x00\x00":  # the weight
            raise ConnectionClosed(
                UNEXPECTED_FRAME, "expected content header for class 60, got non content header frame instead"
            )
        mode = check_header(payload, 0, len(payload))
        if mode == MALFORMED:
            raise ConnectionClosed(SYNTAX_ERROR, "malformed content header")
        size: i64 = read_i64_be(payload, 4)
        self._header = len(payload).to_bytes(4, "big") + payload + b"\xce"
        self._persistent = mode & PERSISTENT != 0
        self.to_check = mode & TO_CHECK != 0
        self._missing = size
        self._parts = []
        if size < 0 or size > max_message_size:
            self.state = METHOD
            size_text = int.from_bytes(payload[4:12], "big")
            raise ChannelClosed(
                PRECONDITION_FAILED,
                f"message size {size_text} is larger than configured max size {max_message_size}",
            )
        self.state = BODY
        return self._finish() if size == 0 else None

    def body(self, payload: bytes) -> Message | None:
        """A body frame's payload has come."""
        if self.state == METHOD:
            raise ConnectionClosed(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        if self.state == HEADER:
            raise ConnectionClosed(
                UNEXPECTED_FRAME, "expected content header for class 60, got non content header frame instead"
            )
        size: i64 = len(payload)
        if size > self._missing:
            raise ConnectionClosed(FRAME_ERROR, "content body is larger than its header announced")
        if size > 0:  # an empty body frame of eight octets must not cost a list entry
            self._parts.append(payload)
        self._missing -= size
        return self._finish() if self._missing == 0 else None

    def _finish(self) -> Message:
        header = self._header
        content = header
        if self._parts:
            size = sum([len(part) for part in self._parts])
            content = b"".join([header, b"\x03\x00\x00", size.to_bytes(4, "big"), *self._parts, b"\xce"])
        message = Message(self.address, content, len(header), self._persistent)
        self.state = METHOD
        self._parts = []
        self._header = b""
        return message
