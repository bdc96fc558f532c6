"""The pulse of an open connection: whether its peer lives and takes its output, found out by the looks of a timer alone.

No read and no write notes its time. A look compares the bytes received and taken by now with those of the last look.
The look that saw a change counts as its time, so that nobody is given up too early:

  SILENT   nothing was received for two heartbeat intervals or more, and less than three (spec 4.2.7)
  STUCK    output has waited for the send timeout or longer, and the socket has taken none of it

A peer that has taken more than the systems' buffers between us can hold has read, and so lives: some clients write no
heartbeats while there is always more to read (the Java client's NIO mode).

A heartbeat is due at every look, at least one in half an interval, whatever else was sent: a peer that hangs up when it
has read nothing for one interval must never come near that. No heartbeat is put behind output that waits.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

FINE: Final[i64] = 0
SILENT: Final[i64] = 1
STUCK: Final[i64] = 2

LOOK_AFTER_S: Final = 1.0  # when to look whether output above its mark is stuck
LOOKS: Final = 4.0  # in one send timeout, while output waits
BUFFERED_MAX: Final[i64] = 67_108_864  # bytes; Linux's sockets hold 6 MiB at most unless they are told otherwise


class Pulse:
    """`heartbeat_s` and `send_timeout_s` in seconds, 0 for none. Times are of any clock that only goes forward, and not 0."""

    def __init__(self, heartbeat_s: i64, send_timeout_s: float) -> None:
        self._heartbeat_s = float(heartbeat_s)
        self._send_timeout_s = send_timeout_s
        self._heard_at = 0.0  # the look that last found something received
        self._received: i64 = -1  # bytes, by then
        self._taken_then: i64 = 0  # bytes of output, by then
        self._stalled_at = 0.0  # the look since which output waits and none is taken; 0: none waits
        self._taken: i64 = 0  # bytes that the socket had taken then
        self._hurried = False
        self.verdict: i64 = FINE
        self.heartbeat_due = False

    def period_s(self) -> float:
        """The seconds between two looks at a peer that needs no closer look; 0: no looks are needed."""
        if self._heartbeat_s == 0.0:
            return self._send_timeout_s
        half = self._heartbeat_s / 2.0
        return min(half, self._send_timeout_s) if self._send_timeout_s > 0.0 else half

    def look(self, now: float, received: i64, may_be_silent: bool, sent: i64, unsent: i64) -> float:
        """Sets `verdict` and `heartbeat_due`; returns the seconds until the next look, 0 for none.

        `received` and `sent` are the connection's bytes so far; `unsent` is the part of `sent` that still waits for the
        socket.
        """
        self._hurried = False
        self.heartbeat_due = False
        taken = sent - unsent
        if received != self._received or may_be_silent or taken - self._taken_then > BUFFERED_MAX:
            self._heard_at = now
            self._received = received
            self._taken_then = taken
        if self._heartbeat_s > 0.0 and now - self._heard_at >= 2.0 * self._heartbeat_s:
            self.verdict = SILENT
            return 0.0
        if unsent == 0:
            self._stalled_at = 0.0
            self.heartbeat_due = self._heartbeat_s > 0.0
            return self.period_s()
        if self._stalled_at == 0.0 or taken != self._taken:
            self._stalled_at = now
            self._taken = taken
        left_s = self._send_timeout_s - (now - self._stalled_at)
        if self._send_timeout_s == 0.0:
            return self.period_s()
        if left_s <= 0.0:
            self.verdict = STUCK
            return 0.0
        return min(self.period_s(), self._send_timeout_s / LOOKS, left_s)

    def hurry_s(self) -> float:
        """The seconds until the next look because more output waits than should; 0 when the next look stays as it was.

        It answers so once until the next look, so that a peer that is often too slow for a moment does not put it off
        for ever.
        """
        if self._hurried or self._stalled_at > 0.0 or self._send_timeout_s == 0.0:
            return 0.0
        self._hurried = True
        return min(LOOK_AFTER_S, self._send_timeout_s / LOOKS, self.period_s())
