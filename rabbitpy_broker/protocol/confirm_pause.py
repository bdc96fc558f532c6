"""The pause of a channel's confirms: the time for which decided publishes may wait to be told.

Consumers that ack by turns decide publishes out of order, a few in each turn of the loop. To tell each at once would
wake the publisher for every few messages, which costs it more than the messages do. So a channel with open publishes
pauses after it was told something. Publishes that are decided during the pause are told at its end, or as soon as they
are half of the publisher's *window*, the most publishes that it had outstanding lately. A pause takes a tick of two
milliseconds, and up to ten ticks where publishes take much longer to be decided anyway: their *age* is measured on one
publish at a time.

What must stay true: no pause is longer than LONGEST_PAUSE ticks; all times are counted in ticks, so that no clock is
read.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

LONGEST_PAUSE: Final[i64] = 10  # ticks
PAUSE_SHARE: Final[i64] = 8  # a pause takes at most this part of the time that publishes take to be decided


class ConfirmPause:
    """The pause of one channel; `on` while there is one. `ticks` is the turn's count; `open_count` counts undecided
    publishes.
    """

    def __init__(self) -> None:
        self.on = False
        self._left: i64 = 0  # ticks
        self._window: i64 = 0
        self._watched: i64 = 0  # the seqno whose age is being measured; 0: none
        self._watched_since: i64 = 0  # tick
        self._age: i64 = 0  # ticks until the last watched publish was decided

    def begin(self, ticks: i64, published: i64, open_count: i64) -> None:
        """Begins a pause after confirms were told; `published` is the last publish_seqno of the channel."""
        if self._watched == 0:
            self._watched = published
            self._watched_since = ticks
        self._window = max(self._window - self._window // 8 - 1, open_count)
        self._left = min(max(self._age // PAUSE_SHARE, 1), LONGEST_PAUSE)
        self.on = True

    def decided_below(self, border: i64, ticks: i64) -> None:
        """Notes that every publish before the seqno `border` is decided."""
        if 0 < self._watched < border:
            self._age = ticks - self._watched_since
            self._watched = 0

    def can_wait(self, untold: i64, open_count: i64) -> bool:
        """True while the `untold` decided publishes are less than half of the window: the publisher can go on meanwhile."""
        self._window = max(self._window, untold + open_count)
        return 2 * untold < self._window

    def goes_on(self) -> bool:
        """Counts a tick; returns False at the end of the pause."""
        self._left -= 1
        self.on = self._left > 0
        return self.on
