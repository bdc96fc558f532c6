"""A stream of bytes cut into frames, for whoever watches a connection from beside it.

    client   "AMQP" 0 0 9 1, then frames          broker   frames
    frame    type(1) channel(2) size(4) payload CE

What is no AMQP, or no frame that the broker would take, comes out as it is: its broker is to answer it, not we. What must stay
true: what comes out, put together, is what came in, in order, but for the last frame while it is not whole.
"""

from __future__ import annotations

from typing import Final, NamedTuple

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
RAW: Final = 0  # no frame

PROTOCOL_HEADER_BYTES: Final = 8
FRAME_OVERHEAD: Final = 8
FRAME_MAX_BYTES: Final = 1_048_576

START_OK: Final = 0x000A000B
PUBLISH: Final = 0x003C0028
ACK: Final = 0x003C0050
REJECT: Final = 0x003C005A
NACK: Final = 0x003C0078

# The methods by the names of the specification, for those who name one as the place of some trouble.
CLASSES: Final = {
    10: ("connection", {
        10: "start", 11: "start-ok", 20: "secure", 21: "secure-ok", 30: "tune", 31: "tune-ok", 40: "open", 41: "open-ok",
        50: "close", 51: "close-ok", 60: "blocked", 61: "unblocked", 70: "update-secret", 71: "update-secret-ok"}),
    20: ("channel", {10: "open", 11: "open-ok", 20: "flow", 21: "flow-ok", 40: "close", 41: "close-ok"}),
    40: ("exchange", {
        10: "declare", 11: "declare-ok", 20: "delete", 21: "delete-ok", 30: "bind", 31: "bind-ok", 40: "unbind",
        51: "unbind-ok"}),
    50: ("queue", {
        10: "declare", 11: "declare-ok", 20: "bind", 21: "bind-ok", 30: "purge", 31: "purge-ok", 40: "delete", 41: "delete-ok",
        50: "unbind", 51: "unbind-ok"}),
    60: ("basic", {
        10: "qos", 11: "qos-ok", 20: "consume", 21: "consume-ok", 30: "cancel", 31: "cancel-ok", 40: "publish", 50: "return",
        60: "deliver", 70: "get", 71: "get-ok", 72: "get-empty", 80: "ack", 90: "reject", 100: "recover-async",
        110: "recover", 111: "recover-ok", 120: "nack"}),
    85: ("confirm", {10: "select", 11: "select-ok"}),
    90: ("tx", {10: "select", 11: "select-ok", 20: "commit", 21: "commit-ok", 30: "rollback", 31: "rollback-ok"}),
}  # fmt: skip
NAMES: Final = {
    number << 16 | method: f"{name}.{method_name}"
    for number, (name, methods) in CLASSES.items()
    for method, method_name in methods.items()
}


class Frame(NamedTuple):
    """One frame, `raw` with its envelope; RAW is the kind of bytes that are none."""

    kind: int
    channel: int
    raw: bytes

    @property
    def payload(self) -> bytes:
        """What is in it."""
        return self.raw[7:-1]

    @property
    def method(self) -> int:
        """The number of its method, 0 for a frame of another kind."""
        return int.from_bytes(self.raw[7:11], "big") if self.kind == METHOD else 0

    @property
    def name(self) -> str:
        """`basic.publish`; "" for a frame of another kind."""
        return NAMES.get(self.method, "")


class FrameCutter:
    """Of one direction of one connection. `has_header`: the stream begins with a protocol header."""

    def __init__(self, *, has_header: bool) -> None:
        self._rest = b""
        self._wants_header = has_header
        self._gave_up = False

    def cut(self, data: bytes) -> list[Frame]:
        """The frames that are whole by now."""
        if self._gave_up:
            return [Frame(RAW, 0, data)]
        data, self._rest = self._rest + data, b""
        frames: list[Frame] = []
        at = 0
        if self._wants_header:
            if not data.startswith(b"AMQP"[: len(data)]):
                return self._give_up(data)
            if len(data) < PROTOCOL_HEADER_BYTES:
                self._rest = data
                return []
            self._wants_header = False
            frames.append(Frame(RAW, 0, data[:PROTOCOL_HEADER_BYTES]))
            at = PROTOCOL_HEADER_BYTES
        while len(data) - at >= FRAME_OVERHEAD:
            size = int.from_bytes(data[at + 3 : at + 7], "big")
            end = at + FRAME_OVERHEAD + size
            if size > FRAME_MAX_BYTES or (end <= len(data) and data[end - 1] != 0xCE):
                return frames + self._give_up(data[at:])
            if end > len(data):
                break
            frames.append(Frame(data[at], int.from_bytes(data[at + 1 : at + 3], "big"), data[at:end]))
            at = end
        self._rest = data[at:]
        return frames

    def _give_up(self, data: bytes) -> list[Frame]:
        self._gave_up = True
        return [Frame(RAW, 0, data)] if data else []
