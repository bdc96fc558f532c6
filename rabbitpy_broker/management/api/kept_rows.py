"""The rows of a long list as they were made last, of which the next list takes again those that have not changed.

Compiled: each row that is taken again costs a look. What must stay true: a row that is taken again has a mark, and a mark is
equal only while the row would be, but for its end, which is made again while it is FADING and whenever its level is another one.
Whatever this overlooks is put right within ROW_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rabbitpy_broker.queues.activity import FADING

ROW_S: Final = 600.0
TOGETHER: Final = 50  # rows that are looked at, and made, in one step of a list

Marks = tuple[Sequence[object | None], Sequence[int]]
MadeRow = tuple[bytes, int, int]  # its JSON, how long its head is, and where its end begins, -1 without one
Make = Callable[[Any, bytes], MadeRow | None]  # of an item; the head is given if it is known, else b""


class Sharing:
    """`key` is equal for requests whose answers are the same but for numbers; `state` is what they name, compared by identity.

    Rows of equal `kind` are alike in all lists. Items are pairs, of which the second is what a row is about; `marks` is what the
    rows of some items follow from, None for one that has to be made in any case, and the levels of their ends, as
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


class _Made:
    """A row as it was made last. `head` is how long that is which stays the same, made at `made_at`; `ends_at` where its end
    begins, -1 when it has none; `level` is that of its end.
    """

    def __init__(self, mark: object, made_at: float, row: bytes, head: int, ends_at: int, level: int) -> None:
        self.mark = mark
        self.made_at = made_at
        self.row = row
        self.head = head
        self.ends_at = ends_at
        self.level = level


class Rows:
    """The JSON of rows, by item, each with its mark and when it was made. `state` is what else is in them, by identity. `row_s`
    is how old a row may be that is taken again.
    """

    def __init__(self, state: list[Any], now: float, row_s: float = ROW_S) -> None:
        self.state = state
        self.used_at = now
        self.row_s = row_s
        self._made: dict[object, _Made] = {}

    def pieces(self, items: Sequence[Any], sharing: Sharing, make: Make) -> Iterator[list[bytes]]:
        """The JSON of the items that are there, some at a time. Without a mark it is made in any case."""
        before = self._made
        made: dict[object, _Made] = {}
        for start in range(0, len(items), TOGETHER):
            yield _rows(items[start : start + TOGETHER], before, made, sharing, make, self.row_s)
        self._made = made

    def emptying(self) -> Iterator[None]:
        """Lets go of all rows."""
        while self._made:
            self._made.popitem()
            yield


def _rows(
    items: Sequence[Any],
    before: dict[object, _Made],
    made: dict[object, _Made],
    sharing: Sharing,
    make: Make,
    row_s: float,
) -> list[bytes]:
    """Those of the items that are there, taken from `before` or made; they are in `made` then, if they have a mark."""
    now = time.monotonic()
    marks, levels = sharing.marks(items)
    rows: list[bytes] = []
    for item, mark, level in zip(items, marks, levels, strict=True):
        about = item[1]
        row = None if mark is None else before.get(about)
        if row is not None and row.made_at < now - row_s:
            row = None
        ends = level == FADING or (row is not None and row.level != level)
        if row is None or row.mark != mark or (ends and row.ends_at < 0):
            row = _made(item, mark, level, row, now, make)
            if row is None:
                continue
        elif ends:
            row.row, row.level = row.row[: row.ends_at] + sharing.end(item), level
        rows.append(row.row)
        if mark is not None:
            made[about] = row
    return rows


def _made(item: Any, mark: object, level: int, before: _Made | None, now: float, make: Make) -> _Made | None:
    found = make(item, b"" if before is None else before.row[: before.head])
    if found is None:
        return None
    row, head, ends_at = found
    made_at = before.made_at if before is not None and before.head else now
    return _Made(mark, made_at, row, head, ends_at, level)
