"""Long lists that monitors ask for again and again. A list is made once for all who ask within `collect_statistics_interval`, as
often as RabbitMQ's own figures change; of the next one only the rows are made that differ from those before. It is compressed
once, in a thread, a few MB at a time, so that the loop is seldom asked for its lock. And the order of what is listed is found
once, for whole lists and for pages.

What must stay true:
- a list that is given again names what there is, nothing that has gone, and the policies that apply; only its numbers are old,
  by less than the interval. Short lists are made for each who asks, so that their numbers are of now;
- a row that is taken again has a mark, and a mark is equal only while the row would be, but for its end. Whatever this overlooks
  is put right within ROW_S;
- an order that is used again has all that there is.
"""

from __future__ import annotations

import asyncio
import importlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rabbitpy_broker.slices import in_slices

LONG: Final = 1_000  # items
KEPT_MAX: Final = 4
ROW_S: Final = 600.0
UNUSED: Final = 4  # intervals after which rows are let go
TOGETHER: Final = 50  # rows that are looked at, and made, in one step of a list
SHARED_CHUNK_BYTES: Final = 2_097_152
COMPRESSION: Final = 1

Marks = tuple[Sequence[object | None], Sequence[bool]]
Make = Callable[[Any, bytes], tuple[bytes, int] | None]


@dataclass(slots=True)
class _Made:
    """A row as it was made last. `head` is how long that is which stays the same, made at `made_at`; `ends_at` where its end
    begins, -1 when it has none; `fading`: it has changed by itself.
    """

    mark: object
    made_at: float
    row: bytes = field(repr=False)
    head: int
    ends_at: int
    fading: bool


class Rows:
    """The JSON of rows, by item, each with its mark and when it was made. `state` is what else is in them, by identity."""

    def __init__(self, state: list[Any], now: float) -> None:
        self.state = state
        self.used_at = now
        self._made: dict[object, _Made] = {}

    def pieces(self, items: Sequence[Any], sharing: Sharing, make: Make) -> Iterator[bytes]:
        """The JSON of the items that are there, some at a time, between them commas. Without a mark it is made in any case.

        `make` gives that of an item and how long its head is; it is given the head, if that is known, or b"".
        """
        before, made = self._made, dict[object, _Made]()
        for start in range(0, len(items), TOGETHER):
            some, now = items[start : start + TOGETHER], time.monotonic()
            rows: list[bytes] = []
            for item, mark, fading in zip(some, *sharing.marks(some), strict=True):
                row = None if mark is None else before.get(item[1])
                if row is not None and row.made_at < now - ROW_S:
                    row = None
                if row is None or row.mark != mark or ((fading or row.fading) and row.ends_at < 0):
                    row = _made(item, mark, row, now, sharing, make)
                    if row is None:
                        continue
                    row.fading = fading
                elif fading or row.fading:
                    row.row, row.fading = row.row[: row.ends_at] + sharing.end(item), fading
                rows.append(row.row)
                if mark is not None:
                    made[item[1]] = row
            if rows:
                yield b",".join(rows)
        self._made = made

    def emptying(self) -> Iterator[None]:
        """Lets go of all rows."""
        while self._made:
            self._made.popitem()
            yield


def _made(item: Any, mark: object, before: _Made | None, now: float, sharing: Sharing, make: Make) -> _Made | None:
    found = make(item, b"" if before is None else before.row[: before.head])
    if found is None:
        return None
    row, head = found
    ending = sharing.end(item)
    made_at = before.made_at if before is not None and before.head else now
    return _Made(mark, made_at, row, head, len(row) - len(ending) if row.endswith(ending) else -1, fading=False)


@dataclass
class Sharing:
    """`key` is equal for requests whose answers are the same but for numbers; `state` is what they name, compared by identity.

    Rows of equal `kind` are alike in all lists. Items are pairs, of which the second is what a row is about; `marks` is what the
    rows of some items follow from, None for one that has to be made in any case, and whether their ends change by themselves;
    `end` is the end of such a row, `make` makes one as `Rows.pieces` wants it, where that costs less than the list's own way.
    """

    key: object
    kind: object
    state: list[Any]
    marks: Callable[[Sequence[Any]], Marks]
    end: Callable[[Any], bytes]
    make: Make | None = None


@dataclass
class KeptList:
    """The JSON of a list, in parts; and compressed, when somebody has wanted that."""

    state: list[Any]
    made_at: float  # monotonic, in seconds, when the list was begun
    parts: list[bytes] = field(repr=False)
    packed: list[bytes] | None = field(default=None, repr=False)

    async def compressed(self) -> list[bytes]:
        """As gzip."""
        if self.packed is None:
            self.packed = await asyncio.to_thread(_compressed, self.parts)
        return self.packed

    def emptying(self) -> Iterator[None]:
        """Forgets its parts. Whoever is being sent it has lists of his own."""
        self.parts, parts = [], self.parts[:]
        while parts:
            parts.pop()
            yield


def _packing() -> Any:
    """What compresses: the library `isal` where it is installed, which takes a fifth of zlib's time."""
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:
        return zlib


def _compressed(parts: list[bytes]) -> list[bytes]:
    packer = _packing().compressobj(COMPRESSION, zlib.DEFLATED, 31)
    return [part for part in (*map(packer.compress, parts), packer.flush()) if part]


@dataclass
class _Order:
    items: list[Any] = field(repr=False)
    used_at: float


class SharedLists:
    """The latest of them. `now` is monotonic, in seconds."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.lock = asyncio.Lock()  # held by whoever makes one, for all who want the same
        self._kept: dict[object, KeptList] = {}
        self._rows: dict[object, Rows] = {}
        self._orders: dict[object, _Order] = {}
        self._leaving: list[KeptList | Rows] = []

    def find(self, sharing: Sharing, now: float) -> KeptList | None:
        """Such a list, if it is young enough and still names what there is."""
        self.tidy(now)
        kept = self._kept.get(sharing.key)
        return kept if kept is not None and _same(kept.state, sharing.state) else None

    def keep(self, sharing: Sharing, begun: float, parts: list[bytes]) -> KeptList:
        """Gives a list to whoever asks next."""
        self._leave(self._kept, sharing.key)
        while len(self._kept) >= KEPT_MAX:
            self._leave(self._kept, next(iter(self._kept)))
        kept = self._kept[sharing.key] = KeptList(sharing.state, begun, parts)
        return kept

    def rows(self, sharing: Sharing, now: float) -> Rows:
        """Those of the list before, for the next one."""
        rows = self._rows.get(sharing.kind)
        if rows is None or not _same(rows.state, sharing.state):
            self._leave(self._rows, sharing.kind)
            while len(self._rows) >= KEPT_MAX:
                self._leave(self._rows, next(iter(self._rows)))
            rows = self._rows[sharing.kind] = Rows(sharing.state, now)
        rows.used_at = now
        return rows

    def order(self, key: object, now: float) -> list[Any] | None:
        """The items that were in this order before."""
        order = self._orders.get(key)
        if order is None:
            return None
        order.used_at = now
        return order.items

    def keep_order(self, key: object, items: list[Any], now: float) -> None:
        """Items in the order that `key` stands for; whoever gets them again does not change them."""
        self._orders.pop(key, None)
        while len(self._orders) >= KEPT_MAX:
            del self._orders[next(iter(self._orders))]
        self._orders[key] = _Order(items, now)

    def tidy(self, now: float | None = None) -> None:
        """Lets go of what is too old; to be called now and then."""
        now = time.monotonic() if now is None else now
        for key in [key for key, kept in self._kept.items() if kept.made_at <= now - self._interval_s]:
            self._leave(self._kept, key)
        for kind in [kind for kind, rows in self._rows.items() if rows.used_at <= now - UNUSED * self._interval_s]:
            self._leave(self._rows, kind)
        for key in [key for key, order in self._orders.items() if order.used_at <= now - UNUSED * self._interval_s]:
            del self._orders[key]

    def _leave(self, kept: dict[Any, KeptList] | dict[Any, Rows], key: object) -> None:
        found = kept.pop(key, None)
        if found is not None:
            self._leaving.append(found)

    async def let_go(self) -> None:
        """Frees what is not kept any more, a slice at a time: it may be tens of thousands of rows, or tens of MB."""
        leaving, self._leaving = self._leaving, []
        for one in leaving:
            await in_slices(one.emptying())


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(mine is yours for mine, yours in zip(one, other, strict=True))
