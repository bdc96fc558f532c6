"""The rows of a long list as they were made last, of which the next list and its pages take again those that have not changed.

    items   |------------------|------------------|--------
    blocks  row,row,row,...    row,row,row,...    row,...     one bytes object of each, given to the list as it is

A block that nothing has changed in is given again; of another one what lies between two changes is copied at once.

Compiled: each row that is taken again costs a look. What must stay true: a row that is taken again has a mark, and a mark and its
moment are equal only while the row would be, but for its end, which is made again while it is FADING and whenever its level is
another one. Whatever this overlooks is put right within ROW_S. A block has a place for each of its items; while it is being made
it has nothing, so that what is left off midway is made anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from rabbitpy_broker.management.api.rates import Values
from rabbitpy_broker.queues.activity import ALWAYS
from rabbitpy_broker.queues.rates import AT_REST, FADING

ROW_S: Final = 600.0
TOGETHER: Final = 50  # rows that are looked at, and made, in one step of a list
BLOCK: Final = 5 * TOGETHER  # rows, about half a MB
BETWEEN: Final = b",\n"  # two rows: each has a line of its own, as JSON has no line's end in its texts
_BETWEEN: Final[i64] = len(BETWEEN)


@mypyc_attr(allow_interpreted_subclasses=True)
class Marks:
    """What rows follow from. `look` finds it of one item, which is a pair, of which the second is what a row is about: `mark`,
    ALWAYS for a row that has to be made in any case; the `moment` that it is of; the `level` of its end, as `activity.fading` has
    it. `end` is the end of such a row.
    """

    def __init__(self) -> None:
        self.mark: i64 = ALWAYS
        self.moment = 0.0
        self.level: i64 = AT_REST

    def look(self, item: Any) -> None:
        """Of an item whose row is made in any case."""

    def end(self, item: Any) -> bytes:
        """None has an end."""
        raise NotImplementedError


class MadeRow:
    """The JSON of an item: `row`, or b"" while it is in a `block`, `at` there, of `size` bytes. The first `head` bytes stay the
    same; at `ends_at` its end begins, -1 when it has none.

    Whoever makes rows may note where the rates of one are, and of which `values` (see `plain_rows.py`); and `Rows` when it was
    made, of which mark and moment, and the level of its end. `block` is there only for whoever makes a row of what it was.
    """

    def __init__(self, row: bytes, head: i64 = 0, ends_at: i64 = -1) -> None:
        self.mark: i64 = ALWAYS  # what each look asks for first: it lies together
        self.moment = 0.0
        self.made_at = 0.0
        self.level: i64 = AT_REST
        self.row = row
        self.size: i64 = 0
        self.at: i64 = 0
        self.ends_at = ends_at
        self.head = head
        self.rates_at: i64 = 0
        self.rates_end: i64 = 0
        self.values: Values | None = None
        self.block = b""

    def part(self, start: i64, stop: i64) -> bytes:
        """The bytes of what it was from `start` to `stop`."""
        if self.row:
            return self.row[start:stop]
        return self.block[self.at + start : self.at + stop]

    def is_now(self, row: bytes, head: i64, ends_at: i64) -> None:
        """Has it be another one."""
        self.row, self.head, self.ends_at = row, head, ends_at


# The row of an item with a mark; what it was is given if its head still holds, and may be given back. None for an item that has
# gone.
Make = Callable[[Any, int, MadeRow | None], MadeRow | None]


class Sharing:
    """`key` is equal for requests whose answers are the same but for numbers; `state` is what they name, compared by identity.

    Rows of equal `kind` are alike in all lists, and follow from what `marks` finds.
    """

    def __init__(self, key: object, kind: object, state: list[Any], marks: Marks) -> None:
        self.key = key
        self.kind = kind
        self.state = state
        self.marks = marks


class _Block:
    """The rows of some items, and their JSON, each with BETWEEN behind it."""

    def __init__(self, rows: list[MadeRow | None]) -> None:
        self.rows = rows
        self.json = b""


_NO_BLOCK: Final = _Block([None] * BLOCK)


class _Making:
    """A block that is being made of what it was."""

    def __init__(self, block: _Block) -> None:
        self._block = block
        self._rows, self._old = block.rows, block.json
        block.rows, block.json = [None] * len(block.rows), b""
        self._view = memoryview(self._old)
        self._parts: list[Any] = []  # bytes, and views of what it was
        self._size: i64 = 0
        self._from: i64 = 0  # of what it was, what is to be taken next
        self._to: i64 = 0

    def rows(self, items: Sequence[Any], start: i64, sharing: Sharing, make: Make, row_s: float) -> None:
        """The rows of some of its items, whose places begin at `start`."""
        now = time.monotonic()
        oldest = now - row_s
        marks, rows = sharing.marks, self._rows
        at = start
        for item in items:
            marks.look(item)
            row = rows[at]
            if row is not None and (marks.mark == ALWAYS or row.made_at < oldest):
                row = None
            if row is not None and row.mark == marks.mark and row.moment == marks.moment:
                if marks.level != FADING and row.level == marks.level:
                    if row.row:
                        self._add(row)
                    else:
                        self._take(row, row.size + _BETWEEN)
                    at += 1
                    continue
                if row.ends_at >= 0:
                    self._end_anew(row, marks.end(item))
                    row.level = marks.level
                    at += 1
                    continue
            rows[at] = self._made(item, marks, row, now, make)
            at += 1

    def _made(self, item: Any, marks: Marks, before: MadeRow | None, now: float, make: Make) -> MadeRow | None:
        """The row of an item that has changed; None if it has gone."""
        mark, moment, level = marks.mark, marks.moment, marks.level
        made_at = now
        if before is not None:
            before.block = self._old
            if before.head:
                made_at = before.made_at
        row = make(item, int(mark), before)
        if row is not None:
            row.block = b""
            row.made_at, row.mark, row.moment, row.level = made_at, mark, moment, level
            self._add(row)
        return row

    def end(self) -> bytes:
        """The block as it is now."""
        if self._parts or self._size != len(self._old):
            self._copy()
            self._old = b"".join(self._parts)
        self._block.rows, self._block.json = self._rows, self._old
        return self._old

    def _take(self, row: MadeRow, size: i64) -> None:
        """The first bytes of a row as they were."""
        if row.at != self._to:
            self._copy()
            self._from = row.at
        self._to = row.at + size
        if row.at != self._size:
            row.at = self._size
        self._size += size

    def _end_anew(self, row: MadeRow, end: bytes) -> None:
        if row.row:
            row.row = row.row[: row.ends_at] + end
            self._add(row)
            return
        self._take(row, row.ends_at)
        self._copy()
        self._parts += (end, BETWEEN)
        self._size += len(end) + _BETWEEN
        row.size = row.ends_at + len(end)

    def _add(self, row: MadeRow) -> None:
        """A row with bytes of its own."""
        self._copy()
        self._parts += (row.row, BETWEEN)
        row.at, row.size = self._size, len(row.row)
        row.row = b""
        self._size += row.size + _BETWEEN

    def _copy(self) -> None:
        if self._to > self._from:
            self._parts.append(self._view[self._from : self._to])
        self._from = 0
        self._to = 0


class Rows:
    """The JSON of rows, by item, each with its mark and when it was made. `state` is what else is in them, by identity. `row_s`
    is how old a row may be that is taken again. `took_s` is what it took to make the last list of what there was before, in
    seconds of the thread's CPU time; 0.0 for one that was made of nothing.
    """

    def __init__(self, state: list[Any], now: float, row_s: float = ROW_S) -> None:
        self.state = state
        self.used_at = now
        self.row_s = row_s
        self.took_s = 0.0
        self._items: Sequence[Any] = ()
        self._blocks: list[_Block] = []

    def pieces(self, items: Sequence[Any], sharing: Sharing, make: Make) -> Iterator[bytes]:
        """The JSON of the items that are there, each with BETWEEN behind it, some at a time; b"" from a step in which there is
        none. Those with the mark ALWAYS are made in any case. Without a search for rows when the items are the object that they
        were.
        """
        is_first = not self._blocks
        if items is not self._items:
            yield from self._find_again(items)
        start, took_s = 0, 0.0
        for block in self._blocks[:]:
            making, stop = _Making(block), min(start + BLOCK, len(items))
            for at in range(start, stop, TOGETHER):
                if at > start:
                    yield b""
                begun = time.thread_time()
                making.rows(items[at : min(at + TOGETHER, stop)], at - start, sharing, make, self.row_s)
                took_s += time.thread_time() - begun
            start = stop
            begun = time.thread_time()
            piece = making.end()
            took_s += time.thread_time() - begun
            yield piece
        self.took_s = 0.0 if is_first else took_s

    def some(self, items: Sequence[Any], start: int, stop: int, sharing: Sharing, make: Make) -> list[bytes]:
        """The JSON of the items from `start` to `stop` that are there; what is made is not kept."""
        blocks: list[_Block] = self._blocks if items is self._items else []
        oldest = time.monotonic() - self.row_s
        marks = sharing.marks
        found: list[bytes] = []
        for number, item in enumerate(items[start:stop]):
            marks.look(item)
            at, mark = start + number, marks.mark
            block = blocks[at // BLOCK] if blocks else _NO_BLOCK
            row = block.rows[at % BLOCK]
            is_known = row is not None and mark != ALWAYS and row.made_at >= oldest
            if row is not None and is_known and row.mark == mark and row.moment == marks.moment:
                json = row.row or block.json[row.at : row.at + row.size]
                if marks.level != FADING and row.level == marks.level:
                    found.append(json)
                    continue
                if row.ends_at >= 0:
                    found.append(json[: row.ends_at] + marks.end(item))
                    continue
            row = make(item, int(mark), None)
            if row is not None:
                found.append(row.row)
        return found

    def _find_again(self, items: Sequence[Any]) -> Iterator[bytes]:
        known: dict[object, MadeRow] = {}
        start = 0
        for block in self._blocks:
            for number, row in enumerate(block.rows):
                if row is not None:
                    if not row.row:
                        row.row = block.json[row.at : row.at + row.size]
                    known[self._items[start + number][1]] = row
            start += len(block.rows)
            yield b""
        blocks: list[_Block] = []
        for start in range(0, len(items), BLOCK):
            blocks.append(_Block([known.get(item[1]) for item in items[start : start + BLOCK]]))
            yield b""
        self._items, self._blocks = items, blocks

    def emptying(self) -> Iterator[None]:
        """Lets go of all rows. A list that is being made of them may go on."""
        blocks, self._items, self._blocks = self._blocks, (), []
        while blocks:
            blocks.pop()
            yield
