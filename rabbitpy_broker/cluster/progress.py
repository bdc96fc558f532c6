"""How far logs have come, and since when: what the lag of a follower in seconds is told by.

Each node notes once a second where the owner of a vhost says that its log is. A follower at a position is behind for as long as
the log is known to have been further. Nodes tell of themselves once a second, so up to two seconds are seen of a busy vhost whose
followers are level. No clock is compared with another's.

What must stay true: a vhost takes no more than `SAMPLES_MAX` notes, and only one while its followers are level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

SAMPLES_MAX: Final = 3600  # an hour of a busy vhost: who is further behind is told to be an hour behind


class Progress:
    """Of all vhosts, each known by a key of its own."""

    def __init__(self) -> None:
        self._notes: dict[str, deque[tuple[float, int]]] = {}

    def note(self, key: str, position: int, needed: int, now: float) -> None:
        """The log is at `position` now; `needed` is where the last of its followers is."""
        notes = self._notes.setdefault(key, deque(maxlen=SAMPLES_MAX))
        if not notes or notes[-1][1] < position:
            notes.append((now, position))
        while len(notes) > 1 and notes[0][1] <= needed:
            notes.popleft()

    def end(self, key: str) -> int | None:
        """Where the log was known to be last."""
        notes = self._notes.get(key)
        return notes[-1][1] if notes else None

    def behind_s(self, key: str, position: int, now: float) -> float:
        """For how long the log has been further than `position`; 0 if it is not known to be."""
        for when, end in self._notes.get(key, ()):
            if end > position:
                return now - when
        return 0.0

    def keep(self, keys: Collection[str]) -> None:
        """Forgets all others."""
        for key in set(self._notes) - set(keys):
            del self._notes[key]
