"""Long lists that monitors ask for again and again. A list is made once for all who ask within `collect_statistics_interval`, as
often as RabbitMQ's own figures change; and of the next one only the rows are made that differ from those before.

What must stay true:
- a list that is given again names what there is, nothing that has gone, and the policies that apply; only its numbers are old,
  by less than the interval. Short lists are made for each who asks, so that their numbers are of now;
- a row that is taken again has a mark, and a mark is equal only while the row would be. Whatever this overlooks is put right
  within ROW_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

LONG: Final = 1_000  # items
KEPT_MAX: Final = 4
ROW_S: Final = 60.0
UNUSED: Final = 4  # intervals after which rows are let go


class Rows:
    """The JSON of rows, by item, each with its mark and when it was made. `state` is what else is in them, by identity."""

    def __init__(self, state: list[Any], now: float) -> None:
        self.state = state
        self.used_at = now
        self._made: dict[object, tuple[object, float, bytes]] = {}

    def pieces(
        self, items: Iterable[Any], mark: Callable[[Any], object | None], make: Callable[[Any], bytes | None]
    ) -> Iterator[bytes]:
        """The JSON of each item that is there. Without a mark it is made in any case."""
        now, before = time.monotonic(), self._made
        made: dict[object, tuple[object, float, bytes]] = {}
        for item in items:
            marked = mark(item)
            kept = before.get(item[1]) if marked is not None else None
            if kept is None or kept[0] != marked or kept[1] < now - ROW_S:
                encoded = make(item)
                if encoded is None:
                    continue
                kept = marked, now, encoded
            if marked is not None:
                made[item[1]] = kept
            yield kept[2]
        self._made = made


@dataclass
class Sharing:
    """`key` is equal for requests whose answers are the same but for numbers; `state` is what they name, compared by identity.

    Rows of equal `kind` are alike in all lists. Items are pairs, of which the second is what a row is about; `mark` is what the
    row of an item follows from, None for one that has to be made in any case.
    """

    key: object
    kind: object
    state: list[Any]
    mark: Callable[[Any], object | None]


@dataclass
class _Kept:
    state: list[Any]
    made_at: float  # monotonic, in seconds, when the list was begun
    parts: list[bytes] = field(repr=False)


class SharedLists:
    """The latest of them. `now` is monotonic, in seconds."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._kept: dict[object, _Kept] = {}
        self._rows: dict[object, Rows] = {}

    def find(self, sharing: Sharing, now: float) -> list[bytes] | None:
        """The JSON of such a list, if it is young enough and still names what there is."""
        self.tidy(now)
        kept = self._kept.get(sharing.key)
        return kept.parts if kept is not None and _same(kept.state, sharing.state) else None

    def keep(self, sharing: Sharing, begun: float, parts: list[bytes]) -> None:
        """Gives a list to whoever asks next."""
        self._kept.pop(sharing.key, None)
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[sharing.key] = _Kept(sharing.state, begun, parts)

    def rows(self, sharing: Sharing, now: float) -> Rows:
        """Those of the list before, for the next one."""
        rows = self._rows.get(sharing.kind)
        if rows is None or not _same(rows.state, sharing.state):
            self._rows.pop(sharing.kind, None)
            while len(self._rows) >= KEPT_MAX:
                del self._rows[next(iter(self._rows))]
            rows = self._rows[sharing.kind] = Rows(sharing.state, now)
        rows.used_at = now
        return rows

    def tidy(self, now: float | None = None) -> None:
        """Lets go of what is too old; to be called now and then."""
        now = time.monotonic() if now is None else now
        for key in [key for key, kept in self._kept.items() if kept.made_at <= now - self._interval_s]:
            del self._kept[key]
        for kind in [kind for kind, rows in self._rows.items() if rows.used_at <= now - UNUSED * self._interval_s]:
            del self._rows[kind]


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(mine is yours for mine, yours in zip(one, other, strict=True))
