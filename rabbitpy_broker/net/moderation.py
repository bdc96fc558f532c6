"""Short rests of a busy loop, in which input gathers: what network cards call interrupt moderation.

Clients that write each message by itself (the Java client does) keep the loop busy with reads of a message or two. Each
read has its price whatever it brings: the poll, the read, and a write for every connection that has to be told
something. Each of those writes wakes a client, which then has less of the processor to make the next message with. A
rest after each turn makes ten small turns into one. But for a client that waits for each answer a rest is lost time,
and for a client that sends at its own pace it is only latency. Nobody can see from outside which kind a client is. So
rests are tried, and kept up only while they pay:

  WATCHING  the loop works as ever. A window with many small reads and a busy thread, `gap` after the last try
                --> RESTING
  RESTING   a rest after each turn.
                a window brings less than WORTH times the bytes              --> WATCHING
                the TRIAL, its first windows, less than GAIN times the bytes --> WATCHING
                SPELL windows are over                                       --> WATCHING
            After a trial that failed `gap` is doubled, after one that did not it is the shortest again.

What must stay true: without many small reads there is no rest; rests that do not pay are over after the trial, those
that cost much after one window; only a loop that is the broker's alone rests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 0.05
MANY_READS_PER_S: Final = 5_000
SMALL_READ_BYTES: Final = 16_384
BUSY: Final = 0.4  # part of a core
GAIN: Final = 1.05
WORTH: Final = 0.75  # less than GAIN, for windows differ by chance
TRIAL: Final = 4  # windows
SPELL: Final = 20  # windows
SHORTEST_GAP: Final = 2  # windows
LONGEST_GAP: Final = 256


class Moderation:
    """`read` is to be called with each read's bytes, `after_turn` at the end of each turn, on the loop's thread.

    A rest takes `rest_s`; with 0 there is none. `rests` counts them.
    """

    def __init__(
        self,
        rest_s: float,
        clock: Callable[[], float] = time.monotonic,
        cpu_time: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rest_s = rest_s
        self._clock = clock
        self._cpu_time = cpu_time
        self._sleep = sleep
        self.resting = False
        self.rests = 0
        self._gap = SHORTEST_GAP  # windows to watch before the next try
        self._windows = 0  # since it watches, or since it rests
        self._reads = 0
        self._bytes = 0
        self._since = clock()
        self._cpu_since = cpu_time()
        self._bytes_per_s = 0.0  # without rests; of the windows watched, the later ones count for more
        self._trial_bytes_per_s = 0.0  # with rests

    def read(self, size: int) -> None:
        """Counts a read of `size` bytes."""
        self._reads += 1
        self._bytes += size

    def after_turn(self) -> None:
        """Rests, if rests pay now."""
        if not self.rest_s:
            return
        elapsed = self._clock() - self._since
        if elapsed >= WINDOW_S:
            self._end_of_window(elapsed)
        if self.resting:
            self.rests += 1
            self._sleep(self.rest_s)

    def _end_of_window(self, elapsed: float) -> None:
        cpu_time = self._cpu_time()
        bytes_per_s = self._bytes / elapsed
        self._windows += 1
        if self.resting:
            self._judge(bytes_per_s)
        else:
            self._bytes_per_s = bytes_per_s if self._windows == 1 else (self._bytes_per_s + bytes_per_s) / 2
            busy = cpu_time - self._cpu_since >= BUSY * elapsed
            many = self._reads >= MANY_READS_PER_S * elapsed and self._bytes < SMALL_READ_BYTES * self._reads
            if busy and many and self._windows >= self._gap:
                self.resting = True
                self._windows = 0
                self._trial_bytes_per_s = 0.0
        self._reads = self._bytes = 0
        self._since += elapsed
        self._cpu_since = cpu_time

    def _judge(self, bytes_per_s: float) -> None:
        """Judges a window with rests that is over."""
        fell = bytes_per_s < WORTH * self._bytes_per_s
        if self._windows <= TRIAL:
            self._trial_bytes_per_s += bytes_per_s / TRIAL
            if fell or (self._windows == TRIAL and self._trial_bytes_per_s < GAIN * self._bytes_per_s):
                self._watch(min(2 * self._gap, LONGEST_GAP))
        elif fell or self._windows == SPELL:
            self._watch(SHORTEST_GAP)

    def _watch(self, gap: int) -> None:
        self.resting = False
        self._gap = gap
        self._windows = 0
