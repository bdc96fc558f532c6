"""When a channel's confirms may wait: the pause between one telling and the next.

Consumers that ack in turns settle publishes out of order, a few in each turn. To tell each at once would wake the publisher
for every few messages, which costs it more than the messages do. So a channel with open publishes that was told something
then has a pause: what is settled meanwhile is told at its end, or as soon as it is half of the publisher's *window*, which
is the most that it had outstanding lately. A pause takes a tick of two milliseconds, and up to ten ticks where publishes
take much longer than that to be settled anyway: their *age* is that of one publish watched after the other.

What must stay true: no pause is longer than LONGEST_PAUSE ticks; all times are counted in ticks, so that no clock is read.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

LONGEST_PAUSE: Final[i64] = 10  # ticks
PAUSE_SHARE: Final[i64] = 8  # of the time that publishes take to be settled, at most one part in so many


class ConfirmPause:
    """The pause of one channel; `on` while there is one. `ticks` is the turn's count, `open_count` of publishes not settled."""

    def __init__(self) -> None:
        self.on = False
        self._left: i64 = 0  # ticks
        self._window: i64 = 0
        self._watched: i64 = 0  # a seqno, to see in how many ticks it is settled with all before it; 0 for none
        self._watched_since: i64 = 0  # tick
        self._age: i64 = 0  # ticks that the last one watched took

    def begin(self, ticks: i64, published: i64, open_count: i64) -> None:
        """A pause begins after a telling; `published` is the channel's last publish_seqno."""
        if self._watched == 0:
            self._watched = published
            self._watched_since = ticks
        self._window = max(self._window - self._window // 8 - 1, open_count)
        self._left = min(max(self._age // PAUSE_SHARE, 1), LONGEST_PAUSE)
        self.on = True

    def decided_below(self, border: i64, ticks: i64) -> None:
        """Every publish before the seqno `border` is settled."""
        if 0 < self._watched < border:
            self._age = ticks - self._watched_since
            self._watched = 0

    def can_wait(self, untold: i64, open_count: i64) -> bool:
        """True while the settled that are `untold` are less than half of the window: the publisher has work left."""
        self._window = max(self._window, untold + open_count)
        return 2 * untold < self._window

    def goes_on(self) -> bool:
        """Another tick is over. False at the end of the pause."""
        self._left -= 1
        self.on = self._left > 0
        return self.on
