"""Long lists that monitors ask for again and again. A list is made once for all who ask within `collect_statistics_interval`, as
often as RabbitMQ's own figures change, or within `management.db_cache_multiplier` times as long as it took; of the next one only
the rows are made that differ from those before (`kept_rows.py`). It is compressed once, in a thread, half a MB at a time, so that
the loop is seldom asked for its lock. And the order of what is listed is found once, for whole lists and for pages.

What must stay true:
- a list that is given again names what there is, nothing that has gone, and the policies that apply; only its numbers are old,
  by less than that. Short lists are made for each who asks, so that their numbers are of now;
- an order that is used again has all that there is.
"""

from __future__ import annotations

import asyncio
import importlib
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from rabbitpy_broker.management.api.kept_rows import BETWEEN, Rows, Sharing
from rabbitpy_broker.slices import in_slices

LONG: Final = 1_000  # items
OF_PAGES: Final = frozenset(("page", "page_size", "name", "use_regex", "pagination"))  # what a query says of pages only
KEPT_MAX: Final = 4
UNUSED: Final = 4  # intervals after which rows are let go
COMPRESSION: Final = 1


@dataclass
class KeptList:
    """The JSON of a list in pieces, of rows that each have BETWEEN behind them; and of all of it, compressed, when somebody has
    wanted that.
    """

    state: list[Any]
    until: float  # monotonic, in seconds: when it is too old
    pieces: list[bytes] = field(repr=False)
    packed: list[bytes] | None = field(default=None, repr=False)

    @cached_property
    def size(self) -> int:
        """In bytes, with brackets, before any are forgotten."""
        return max(sum(map(len, self.pieces)) + 2 - len(BETWEEN), 2)

    def parts(self) -> Iterator[bytes]:
        """The JSON of the list, whatever is forgotten meanwhile."""
        return _parts(self.pieces[:])

    async def compressed(self) -> list[bytes]:
        """As gzip."""
        if self.packed is None:
            self.packed = await compressed(self.parts())
        return self.packed

    def emptying(self) -> Iterator[None]:
        """Forgets it."""
        self.pieces, pieces = [], self.pieces
        while pieces:
            pieces.pop()
            yield


def packing() -> Any:
    """What compresses: the library `isal` where it is installed, which takes a fifth of zlib's time."""
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:
        return zlib


def _parts(pieces: list[bytes]) -> Iterator[bytes]:
    yield b"["
    yield from pieces[:-1]
    if pieces:
        yield pieces[-1][: -len(BETWEEN)]
    yield b"]"


async def compressed(parts: Iterator[bytes]) -> list[bytes]:
    """As gzip, in a thread."""
    return await asyncio.to_thread(_compressed, parts)


def _compressed(parts: Iterator[bytes]) -> list[bytes]:
    packer = packing().compressobj(COMPRESSION, zlib.DEFLATED, 31)
    return [part for part in (*map(packer.compress, parts), packer.flush()) if part]


@dataclass
class _Order:
    items: list[Any] = field(repr=False)
    used_at: float


class SharedLists:
    """The latest of them. `now` is monotonic, in seconds."""

    def __init__(self, interval_s: float, multiplier: int = 0) -> None:
        self._interval_s = interval_s
        self._multiplier = multiplier
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

    def keep(self, sharing: Sharing, begun: float, pieces: list[bytes]) -> KeptList:
        """Gives a list to whoever asks next."""
        rows = self._rows.get(sharing.kind)
        kept_s = max(self._interval_s, self._multiplier * (rows.took_s if rows is not None else 0.0))
        self._leave(self._kept, sharing.key)
        while len(self._kept) >= KEPT_MAX:
            self._leave(self._kept, next(iter(self._kept)))
        until = begun + kept_s
        kept = self._kept[sharing.key] = KeptList(sharing.state, until, pieces)
        if rows is not None:
            rows.used_at = until  # they are the next list's
        for order in self._orders.values():
            order.used_at = max(order.used_at, until)
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

    def known_rows(self, sharing: Sharing) -> Rows | None:
        """Those of the list before, for a page; without them being used for that."""
        rows = self._rows.get(sharing.kind)
        return rows if rows is not None and _same(rows.state, sharing.state) else None

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
        for key in [key for key, kept in self._kept.items() if kept.until <= now]:
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
