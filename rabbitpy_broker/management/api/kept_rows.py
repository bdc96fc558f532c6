"""The rows of a long list as they were made last, of which the next list takes again those that have not changed.

Compiled: each row that is taken again costs a look. What must stay true: a row that is taken again has a mark, and a mark is
equal only while the row would be, but for its end, which is made again while it is FADING and whenever its level is another one.
Whatever this overlooks is put right within ROW_S. `_made` has a place for each of `_items`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rabbitpy_broker.management.api.rates import Values
from rabbitpy_broker.queues.activity import ALWAYS, FADING

ROW_S: Final = 600.0
TOGETHER: Final = 50  # rows that are looked at, and made, in one step of a list
SOUGHT: Final = 1_000  # rows that are found again in one step, when there are other items

Marks = tuple[list[int], list[int]]


class MadeRow:
    """The JSON of an item. The first `head` bytes stay the same; at `ends_at` its end begins, -1 when it has none.

    Whoever makes rows may note where the rates of one are, of which `values` and which `shown_activity` (see `plain_rows.py`);
    and `Rows` when it was made, of which mark, and the level of its end.
    """

    def __init__(self, row: bytes, head: int = 0, ends_at: int = -1) -> None:
        self.row = row
        self.head = head
        self.ends_at = ends_at
        self.rates_at = 0
        self.rates_end = 0
        self.values: Values | None = None
        self.shown = ALWAYS
        self.mark = ALWAYS
        self.made_at = 0.0
        self.level = 0


Make = Callable[[Any, MadeRow | None], MadeRow | None]  # of an item; what it was last is given if its head still holds


class Sharing:
    """`key` is equal for requests whose answers are the same but for numbers; `state` is what they name, compared by identity.

    Rows of equal `kind` are alike in all lists. Items are pairs, of which the second is what a row is about; `marks` is what the
    rows of some items follow from, ALWAYS for one that has to be made in any case, and the levels of their ends, as
    `activity.fading` has them; `end` is the end of such a row.
    """

    def __init__(
        self,
        key: object,
        kind: object,
        state: list[Any],
        marks: Callable[[Sequence[Any]], Marks],
        end: Callable[[Any], bytes],
    ) -> None:
        self.key = key
        self.kind = kind
        self.state = state
        self.marks = marks
        self.end = end


class Rows:
    """The JSON of rows, by item, each with its mark and when it was made. `state` is what else is in them, by identity. `row_s`
    is how old a row may be that is taken again.
    """

    def __init__(self, state: list[Any], now: float, row_s: float = ROW_S) -> None:
        self.state = state
        self.used_at = now
        self.row_s = row_s
        self._items: Sequence[Any] = ()
        self._made: list[MadeRow | None] = []

    def pieces(self, items: Sequence[Any], sharing: Sharing, make: Make) -> Iterator[list[bytes]]:
        """The JSON of the items that are there, some at a time. Those with the mark ALWAYS are made in any case. Without a search
        for rows when the items are the object that they were.
        """
        if items is not self._items:
            yield from self._find_again(items)
        made = self._made
        for start in range(0, len(items), TOGETHER):
            yield _rows(items[start : start + TOGETHER], made, start, sharing, make, self.row_s)

    def _find_again(self, items: Sequence[Any]) -> Iterator[list[bytes]]:
        known: dict[object, MadeRow] = {}
        for start in range(0, len(self._items), SOUGHT):
            some = self._items[start : start + SOUGHT]
            for item, row in zip(some, self._made[start : start + SOUGHT], strict=True):
                if row is not None:
                    known[item[1]] = row
            yield []
        made: list[MadeRow | None] = []
        for start in range(0, len(items), SOUGHT):
            for item in items[start : start + SOUGHT]:
                made.append(known.get(item[1]))
            yield []
        self._items, self._made = items, made

    def emptying(self) -> Iterator[None]:
        """Lets go of all rows. A list that is being made of them may go on."""
        made, self._items, self._made = self._made, (), []
        for place in range(len(made)):
            made[place] = None
            yield


def _rows(
    items: Sequence[Any], made: list[MadeRow | None], start: int, sharing: Sharing, make: Make, row_s: float
) -> list[bytes]:
    """Those of the items that are there, taken from `made`, where their places begin at `start`, or put into it."""
    now = time.monotonic()
    marks, levels = sharing.marks(items)
    rows: list[bytes] = []
    for number, item in enumerate(items):
        mark, level, row = marks[number], levels[number], made[start + number]
        if row is not None and (mark == ALWAYS or row.made_at < now - row_s):
            row = None
        ends = level == FADING or (row is not None and row.level != level)
        if row is None or row.mark != mark or (ends and row.ends_at < 0):
            row = made[start + number] = _made(item, mark, level, row, now, make)
            if row is None:
                continue
        elif ends:
            row.row, row.level = row.row[: row.ends_at] + sharing.end(item), level
        rows.append(row.row)
    return rows


def _made(item: Any, mark: int, level: int, before: MadeRow | None, now: float, make: Make) -> MadeRow | None:
    row = make(item, before)
    if row is not None:
        row.made_at = before.made_at if before is not None and before.head else now
        row.mark, row.level = mark, level
    return row
