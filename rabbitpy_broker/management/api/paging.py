"""Lists: columns, order, filter, pages; made and encoded in slices, so that a broker with many queues serves others meanwhile.

A page is found before its rows are made, unless the order asks for something that only rows have. A list is no snapshot: what
is deleted while it is made is in it or not.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from itertools import compress
from typing import Any, Final, TypeVar

import msgspec

from rabbitpy_broker.management.api.errors import bad_request
from rabbitpy_broker.management.api.kept_rows import BETWEEN, TOGETHER, MadeRow, Make, Sharing
from rabbitpy_broker.management.api.matching import Expression
from rabbitpy_broker.management.api.request import Listing, Made, MadeForAll, Request, Row
from rabbitpy_broker.management.api.shared_lists import SharedLists
from rabbitpy_broker.queues.activity import ALWAYS
from rabbitpy_broker.slices import slices

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
PAGES_TOGETHER_MAX: Final = 2**62  # a gateway asks for the pages up to the one that is wanted
CHUNK_BYTES: Final = 65_536
RUN: Final = 2_000  # items that are sorted at once
PATTERN_MAX: Final = 255  # letters of a regular expression that names are filtered by
PATTERN_S: Final = 10.0  # for all names of a list; MATCH_S for NAMES_AT_ONCE of them
NAMES_AT_ONCE: Final = 1_000

T = TypeVar("T")

_encode: Final = msgspec.json.Encoder().encode


class Page:
    """Which page is wanted. Raises ApiError 400."""

    def __init__(self, request: Request) -> None:
        query = request.query
        number, size = _whole(query["page"]), _whole(query["page_size"]) if "page_size" in query else None
        most = PAGES_TOGETHER_MAX if request.is_for_all else PAGE_SIZE_MAX
        if number < 1 or (size is not None and not 1 <= size <= most):
            shown = "undefined" if size is None else size
            raise bad_request(
                f"Invalid pagination parameters: page number {number}, page size {shown}", "invalid_pagination_parameters"
            )
        self.number = number
        self.size = PAGE_SIZE if size is None else size
        self.name = query.get("name", "")
        self.expression = _expression(self.name) if request.is_true("use_regex") and self.name else None

    def fits(self, name: str) -> bool:
        """Whether a name has the text in it that is looked for, where that is no expression."""
        return self.name.lower() in name.lower()

    @property
    def first(self) -> int:
        """Where the page begins."""
        return (self.number - 1) * self.size

    def slice_of(self, found: list[Any], count: int | None = None) -> list[Any]:
        """What is on the page, of those that were found: as many, or `count`. Raises ApiError 400 for a page behind the last, but
        the first.
        """
        start = self.first
        count = len(found) if count is None else count
        if start > count and self.number > 1:
            raise bad_request(
                f"Page out of range, page: {self.number} page size: {self.size}, len: {count}", "page_out_of_range"
            )
        return found[start : start + self.size]

    def row(self, *, shown: int, found: int, total: int) -> Row:
        """What is said of a page: how many rows are on it, on all pages, and without the filter."""
        return {
            "filtered_count": found,
            "item_count": shown,
            "page": self.number,
            "page_count": -(-found // self.size),
            "page_size": self.size,
            "total_count": total,
        }


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise bad_request("Pagination parameters are invalid") from None


def _expression(text: str) -> Expression:
    """Without a process until it is used."""
    if len(text) > PATTERN_MAX:
        raise bad_request(f"Pagination parameters are invalid: a regular expression has at most {PATTERN_MAX} letters")
    try:
        re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError):
        raise bad_request(f"Pagination parameters are invalid: {text!r} is no regular expression") from None
    return Expression(text, ignore_case=True)


class Columns:
    """The fields that are wanted, dotted; all when the query does not say."""

    def __init__(self, request: Request) -> None:
        wanted = request.query.get("columns")
        self._paths = None if wanted is None else [name.split(".") for name in wanted.split(",") if name]
        self.names = None if self._paths is None else frozenset(path[0] for path in self._paths)

    def of(self, row: Row) -> Any:
        """An object that nothing is left of is an empty list, as in RabbitMQ."""
        if self._paths is None:
            return row
        chosen: Row = {}
        for path in self._paths:
            _copy(row, path, chosen)
        return chosen or []


def _copy(row: Row, path: list[str], chosen: Row) -> None:
    key = path[0]
    if key not in row:
        return
    value = row[key]
    if len(path) == 1:
        chosen[key] = value
    elif isinstance(value, dict):
        inner = chosen.setdefault(key, {})
        if isinstance(inner, dict):
            _copy(value, path[1:], inner)


def rank(value: Any) -> tuple[int, Any]:
    """What a list is sorted by. What has no number or text in its place is sorted as 0 is; numbers come before texts."""
    if isinstance(value, str):
        return 1, value
    return 0, value if isinstance(value, int | float) else 0


def at(row: Row, path: list[str]) -> Any:
    """The value in a row that a dotted name leads to; None without one."""
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def made(request: Request, listing: Listing, lists: SharedLists) -> Made | MadeForAll:
    """The JSON of the list, with the orders and rows that `lists` has. Raises ApiError before the first part of it, or never."""
    if listing.sharing is None or "page" in request.query:
        return Made(_parts(request, listing, lists))
    return MadeForAll(listing.sharing, partial(_pieces, request, listing, listing.sharing, lists))


async def _parts(request: Request, listing: Listing, lists: SharedLists) -> AsyncIterator[bytes]:
    page = Page(request) if listing.paged and "page" in request.query else None
    items, total = await _chosen(request, listing, lists, page)
    found = len(items)
    make = _make(request, listing)
    shown = items if page is None else page.slice_of(items)
    sharing = listing.sharing
    known = lists.known_rows(sharing) if sharing is not None else None
    rows: Iterator[bytes]
    if page is None or sharing is None or known is None:
        rows = (row.row for item in shown if (row := make(item, ALWAYS, None)) is not None)
    else:
        first = page.first
        steps = range(first, first + len(shown), TOGETHER)
        rows = (row for at in steps for row in known.some(items, at, min(at + TOGETHER, first + len(shown)), sharing, make))
    async for chunk in _joined(rows, page, total, found):
        yield chunk


async def _pieces(request: Request, listing: Listing, sharing: Sharing, lists: SharedLists) -> list[bytes]:
    items, _ = await _chosen(request, listing, lists, None)
    kept = lists.rows(sharing, time.monotonic())
    return [piece for piece in await gathered(kept.pieces(items, sharing, _make(request, listing))) if piece]


async def _chosen(request: Request, listing: Listing, lists: SharedLists, page: Page | None) -> tuple[list[Any], int]:
    """The items that are asked for in the order that is asked for, of which a page is a part, and how many there are in all."""
    sort = request.query.get("sort", "")
    reverse = request.is_true("sort_reverse")
    items = await _ordered(listing, lists) if not sort else await gathered(listing.items)
    total = len(items)
    name = listing.name
    if page is not None and page.name and name is not None:
        items = await _filtered(page, items, name)
    if sort:
        path = sort.split(".")
        ranked = await ordered(await gathered(_ranked(listing, items, path)), _first, reverse=reverse)
        items = [item for _, item in ranked]
    elif reverse:
        items = items[::-1]
    return items, total


async def _ordered(listing: Listing, lists: SharedLists) -> list[Any]:
    """What there is, in the order that it has when nobody asks for another one; not to be changed."""
    if listing.order is None:
        items = await gathered(listing.items)
        return items if listing.key is None else await ordered(items, listing.key)
    order = listing.order()
    kept = lists.order(order, time.monotonic())
    if kept is None:
        kept = await gathered(listing.items)
        if listing.key is not None:
            kept = await ordered(kept, listing.key)
        if listing.order() == order:
            lists.keep_order(order, kept, time.monotonic())
    return kept


async def ordered(items: list[T], key: Callable[[T], Any], *, reverse: bool = False) -> list[T]:
    """The items by `key`, as `sorted` has them; many of them in runs, which are merged a slice at a time."""
    if len(items) <= RUN:
        return sorted(items, key=key, reverse=reverse)
    runs: list[list[T]] = []
    for start in range(0, len(items), RUN):
        runs.append(sorted(items[start : start + RUN], key=key, reverse=reverse))
        await asyncio.sleep(0)
    return await gathered(heapq.merge(*runs, key=key, reverse=reverse))


async def _filtered(page: Page, items: list[T], name: Callable[[T], str]) -> list[T]:
    """Those whose names fit. An expression is matched in a process that can be ended: nothing could interrupt it here. Raises
    ApiError 400 when it takes too long.
    """
    expression = page.expression
    found: list[T] = []
    if expression is None:
        return await gathered(item for item in items if page.fits(name(item)))
    try:
        async with asyncio.timeout(PATTERN_S):
            for start in range(0, len(items), NAMES_AT_ONCE):
                some = items[start : start + NAMES_AT_ONCE]
                found += compress(some, await expression.match_each([name(item).encode(errors="replace") for item in some]))
    except TimeoutError:
        raise bad_request("the expression takes too long") from None
    finally:
        await expression.close()
    return found


def _make(request: Request, listing: Listing) -> Make:
    """What makes the JSON of one item, if it is there."""
    columns, node = Columns(request), listing.node

    def make(item: Any, mark: int, before: MadeRow | None) -> MadeRow | None:
        for row in listing.rows((item,), columns.names):
            if node:
                row.setdefault("node", node)
            return MadeRow(_encode(columns.of(row)))
        return None

    return listing.make or make


async def gathered(steps: Iterable[T]) -> list[T]:
    """All that the steps of a walk give, in one list."""
    found: list[T] = []
    async for part in slices(steps):
        found += part
    return found


def _ranked(listing: Listing, items: Iterable[Any], path: list[str]) -> Iterator[tuple[tuple[int, Any], Any]]:
    """Each item that is there with what it is sorted by."""
    value = listing.values.get(".".join(path))
    if value is not None:
        yield from ((rank(value(item)), item) for item in items)
        return
    name = frozenset(path[:1])
    for item in items:
        for row in listing.rows((item,), name):
            yield rank(at(row, path)), item


def _first(ranked: tuple[tuple[int, Any], Any]) -> tuple[int, Any]:
    return ranked[0]


async def _joined(rows: Iterable[bytes], page: Page | None, total: int, found: int) -> AsyncIterator[bytes]:
    """At most so many bytes and a slice's worth at a time."""
    opening = b"[" if page is None else b'{"items":['
    parts: list[bytes] = []
    size = count = 0
    async for encoded in slices(rows):
        if encoded and not count:
            encoded[0] = opening + encoded[0]
        parts += encoded
        count += len(encoded)
        size += sum(map(len, encoded))
        if size >= CHUNK_BYTES:
            yield BETWEEN.join(parts)
            parts, size = [b""], 0  # the next one begins with what is between two
    closing = b"]" if page is None else b"]," + _encode(page.row(shown=count, found=found, total=total))[1:]
    yield BETWEEN.join(parts) + closing if count else opening + closing
