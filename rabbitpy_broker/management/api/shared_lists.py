"""Long lists that several monitors ask for are made once for all of them, as often as RabbitMQ's own figures change: every
`collect_statistics_interval`.

What must stay true: a list that is given again names what there is, nothing that has gone, and the policies that apply; only
its numbers are old, by less than the interval. Short lists are made for each who asks, so that their numbers are of now.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

LONG: Final = 1_000  # items
KEPT_MAX: Final = 4


@dataclass
class Sharing:
    """`key` is equal for requests whose answers are the same but for numbers; `state` is what they name, compared by identity."""

    key: object
    state: list[Any]

    def is_as(self, other: Sharing) -> bool:
        return len(self.state) == len(other.state) and all(
            one is two for one, two in zip(self.state, other.state, strict=True)
        )


@dataclass
class _Kept:
    sharing: Sharing
    made_at: float  # monotonic, in seconds, when the list was begun
    parts: list[bytes] = field(repr=False)


class SharedLists:
    """The latest of them. `now` is monotonic, in seconds."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._kept: dict[object, _Kept] = {}

    def find(self, sharing: Sharing, now: float) -> list[bytes] | None:
        """The JSON of such a list, if it is young enough and still names what there is."""
        self.tidy(now)
        kept = self._kept.get(sharing.key)
        return kept.parts if kept is not None and kept.sharing.is_as(sharing) else None

    def keep(self, sharing: Sharing, begun: float, parts: list[bytes]) -> None:
        """Gives a list to whoever asks next."""
        self._kept.pop(sharing.key, None)
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[sharing.key] = _Kept(sharing, begun, parts)

    def tidy(self, now: float | None = None) -> None:
        """Lets go of what is too old; to be called now and then."""
        oldest = (time.monotonic() if now is None else now) - self._interval_s
        for key in [key for key, kept in self._kept.items() if kept.made_at <= oldest]:
            del self._kept[key]
