"""A list of a whole cluster in the order that somebody asks for, a page of it, or its table, of what each node has answered.

Each row of an answer has a line of its own, and is read and ranked a slice at a time: tens of MB that are decoded at once would
hold the loop up, in a thread as well. A row that is wanted whole stays the bytes that it came as. What must stay true: it is what
`merging.one_answer` makes of the same answers, and an answer with several rows in a line, as older nodes give it, says the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from rabbitpy_broker.management.api.kept_rows import BETWEEN
from rabbitpy_broker.management.api.merging import ListPlan, key_for
from rabbitpy_broker.management.api.paging import Columns, Page, gathered, ordered
from rabbitpy_broker.management.api.raw_json import decoded, entries, fields
from rabbitpy_broker.management.api.request import Request, Row
from rabbitpy_broker.management.api.tables import Key
from rabbitpy_broker.slices import in_slices

LIST: Final = b"["
PAGE: Final = b'{"items":['
COUNTS: Final = b'],"filtered_count":'  # of a page, behind its rows: there it stands for the last time
TOGETHER: Final = 30  # rows in a part of the answer

Ranked = tuple[Key | None, bytes]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


async def united(request: Request, plan: ListPlan, page: Page | None, answers: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Its JSON, in parts. Raises ApiError 400 for a page behind the last one."""
    key, columns = key_for(request, plan.order), Columns(request)
    counts: list[Row] = []
    rows: list[Ranked] = []
    for parts in answers:
        rows += await gathered(_ranked(_rows(parts, None if page is None else counts), key, columns))
    reverse = request.is_true("sort_reverse")
    if key is not None:
        rows = await ordered(rows, _first, reverse=reverse)
    elif reverse:
        rows.reverse()
    if page is None:
        return [LIST, *await gathered(_joined(rows)), b"]"]
    found, total = (sum(each[name] for each in counts) for name in ("filtered_count", "total_count"))
    shown = page.slice_of(rows, found)
    said = page.row(shown=len(shown), found=found, total=total)
    await in_slices(_taken(rows))  # thousands of rows are not freed at once
    return [PAGE, *await gathered(_joined(shown)), b"]," + _encode(said)[1:]]


async def united_table(answers: Sequence[tuple[str, Sequence[bytes]]], *, with_node: bool) -> list[bytes]:
    """The JSON of all nodes' tables as one, in parts; `with_node`: with a column more, which tells alike rows of several nodes
    apart.
    """
    head: Row = {}
    rows: list[bytes] = []
    for node, parts in answers:
        found = fields(b"".join(parts))
        await asyncio.sleep(0)
        those = entries(found.pop("rows"))
        await asyncio.sleep(0)
        cell = _encode(node)
        rows += await gathered(_with_cell(bytes(row), cell) if with_node else bytes(row) for row in those)
        if not head:
            head = {name: decoded(value) for name, value in found.items()}
    if with_node:
        head = {**head, "key": [*head["key"], "node"], "columns": [*head["columns"], "node"]}
    some = (b",".join(rows[start : start + TOGETHER]) for start in range(0, len(rows), TOGETHER))
    joined = await gathered(part if number == 0 else b"," + part for number, part in enumerate(some))
    return [_encode(head)[:-1] + b',"rows":[', *joined, b"]}"]


def _with_cell(row: bytes, cell: bytes) -> bytes:
    return b"%b,%b]" % (row[:-1], cell) if row != b"[]" else b"[%b]" % cell


def _first(ranked: Ranked) -> Any:
    return ranked[0]


def _ranked(rows: Iterator[tuple[bytes, Row]], key: Callable[[Row], Key] | None, columns: Columns) -> Iterator[Ranked]:
    for json, row in rows:
        yield None if key is None else key(row), json if columns.names is None else _encode(columns.of(row))


def _rows(parts: Sequence[bytes], counts: list[Row] | None) -> Iterator[tuple[bytes, Row]]:
    """The rows of a list; those of a page, what it says of which is added to `counts`."""
    lines, opening = _lines(parts), LIST if counts is None else PAGE
    line = next(lines)
    if not line.startswith(opening):
        raise msgspec.DecodeError("no list")
    line = line[len(opening) :]
    for following in lines:
        yield from _read(line)
        line = following
    end = line.rfind(b"]" if counts is None else COUNTS)
    if counts is not None:
        counts.append(_decode(b"{" + line[end + 2 :]))
    yield from _read(line[:end])


def _read(line: bytes) -> Iterator[tuple[bytes, Row]]:
    rows = _decode(b"[%b]" % line)
    if len(rows) == 1:
        yield line, rows[0]
    else:
        yield from ((_encode(row), row) for row in rows)


def _lines(parts: Sequence[bytes]) -> Iterator[bytes]:
    """What lies between the separators of rows, wherever it was cut."""
    begun: list[bytes] = []
    for part in parts:
        begun.append(part)
        if b"\n" in part:  # which JSON has in no text
            *lines, rest = b"".join(begun).split(BETWEEN)
            yield from lines
            begun = [rest]
    yield b"".join(begun)


def _joined(rows: list[Ranked]) -> Iterator[bytes]:
    """The JSON of rows, with separators; they are taken out of the list."""
    for some in _taken(rows):
        yield BETWEEN.join([json for _, json in some]) + (BETWEEN if rows else b"")


def _taken(rows: list[Ranked]) -> Iterator[list[Ranked]]:
    """All rows, which are taken out of the list, some at a time."""
    rows.reverse()
    while rows:
        some = rows[: -TOGETHER - 1 : -1]
        del rows[-TOGETHER:]
        yield some
