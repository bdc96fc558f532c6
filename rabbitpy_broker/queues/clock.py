"""What time it is, handed to whoever needs it, so that a test can crank it."""

from __future__ import annotations

import time

from mypy_extensions import i64, mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """The system's clock."""

    def now_ms(self) -> i64:
        """Milliseconds since 1970: message expiries outlive the broker, so they are times of the calendar."""
        return i64(time.time_ns() // 1_000_000)
