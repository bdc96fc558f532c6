"""The time, handed to whoever needs it, so that a test can set it."""

from __future__ import annotations

import time

from mypy_extensions import i64, mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """The system's clock."""

    def now_ns(self) -> i64:
        """Nanoseconds since 1970: message expiries outlive the broker, so they are times of the calendar."""
        return i64(time.time_ns())

    def now_ms(self) -> i64:
        """Whole milliseconds since 1970: a time that is not above it has come."""
        return self.now_ns() // 1_000_000

    def from_ms(self) -> i64:
        """The millisecond from which a time to live or a delay is counted: rounded up, so that neither ends early."""
        return (self.now_ns() + 999_999) // 1_000_000
