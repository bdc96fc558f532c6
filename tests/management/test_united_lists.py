"""Lists of a whole cluster in another order, and pages of them: what is read line by line is what would be decoded at once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.management.api.kept_rows import BETWEEN
from rabbitpy_broker.management.api.merging import NAMED, ListPlan, one_answer, one_table, page_of, with_node
from rabbitpy_broker.management.api.paging import Page
from rabbitpy_broker.management.api.request import Request
from rabbitpy_broker.management.api.united_lists import TOGETHER, united, united_table
from rabbitpy_broker.users import User

HOSTILE = ("", "a", "],", '],"filtered_count":9}', ",\n", "},{", "]", "\u2028", "é" * 9)
UNORDERED = ListPlan((), paged=True)


def asked(query: dict[str, str]) -> Request:
    return Request("GET", {}, query, {}, b"", User("guest", "", "", ()), "127.0.0.1", is_for_all=False)


def rows_of(chance: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{chance.choice(HOSTILE)}{number}",
            "vhost": chance.choice(("/", "other")),
            "messages": chance.choice((0, 1, chance.randrange(1_000))),
            "arguments": chance.choice(({}, {"x": [1], "filtered_count": 3}, {chance.choice(HOSTILE): [chance.choice(HOSTILE)]})),
            "message_stats": chance.choice(({}, {"publish_details": {"rate": chance.random()}})),
        }
        for number in range(count)
    ]


def as_told(rows: list[dict[str, Any]], chance: random.Random, *, is_page: bool, lines: bool) -> list[bytes]:
    """What a node answers, cut anywhere; rows in `lines`, or as older nodes have them."""
    between = BETWEEN if lines else b","
    told = b"[" + between.join(map(msgspec.json.encode, rows)) + b"]"
    if is_page:
        said = {"filtered_count": len(rows), "item_count": len(rows), "page": 1, "total_count": len(rows) + 7}
        told = b'{"items":' + told + b"," + msgspec.json.encode(said)[1:]
    cuts = sorted(chance.sample(range(len(told) + 1), min(len(told), chance.choice((0, 1, 5, 100)))))
    return [told[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(told)], strict=True)]


QUERIES = (
    {"sort": "messages"},
    {"sort": "messages", "sort_reverse": "true"},
    {"sort": "message_stats.publish_details.rate", "columns": "name,messages"},
    {"sort_reverse": "true"},
    {"sort": "nothing", "columns": "arguments.x"},
    {"page": "1"},
    {"page": "2", "page_size": "3", "sort": "name"},
    {"page": "1", "page_size": "500", "columns": "vhost,name", "sort_reverse": "true"},
)


@pytest.mark.parametrize("query", QUERIES, ids=repr)
@pytest.mark.parametrize("plan", [NAMED, UNORDERED], ids=["ordered", "as they come"])
def test_it_is_what_all_answers_make_when_they_are_decoded_at_once(query: dict[str, str], plan: ListPlan) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        request = asked(query)
        page = page_of(request, plan)
        answers = [
            as_told(rows_of(chance, chance.choice((0, 1, 2, 40))), chance, is_page=page is not None, lines=chance.random() < 0.7)
            for _ in range(3)
        ]
        assert line_by_line(request, plan, page, answers) == at_once(request, plan, page, answers)


def line_by_line(request: Request, plan: ListPlan, page: Page | None, answers: list[list[bytes]]) -> Any:
    """What it is, or what is wrong with it."""
    try:
        return msgspec.json.decode(b"".join(asyncio.run(united(request, plan, page, answers))))
    except ApiError as error:
        return str(error)


def at_once(request: Request, plan: ListPlan, page: Page | None, answers: list[list[bytes]]) -> Any:
    try:
        return one_answer(request, plan, page, [msgspec.json.decode(b"".join(parts)) for parts in answers])
    except ApiError as error:
        return str(error)


def test_a_long_list_is_made_in_slices() -> None:
    """Others have their turn meanwhile."""
    chance = random.Random(1)
    answers = [as_told(rows_of(chance, 3_000), chance, is_page=False, lines=True) for _ in range(3)]
    request = asked({"sort": "messages"})

    async def made() -> tuple[list[bytes], int]:
        turns = 0
        making = asyncio.ensure_future(united(request, NAMED, None, answers))
        while not making.done():
            await asyncio.sleep(0)
            turns += 1
        return await making, turns

    parts, turns = asyncio.run(made())
    assert len(msgspec.json.decode(b"".join(parts))) == 9_000
    assert turns > 9_000 / 1_000, "a slice has a thousand steps at most"
    assert max(map(len, parts)) < 100_000


def table_of(chance: random.Random, count: int, columns: list[str]) -> dict[str, Any]:
    cells = ("", "]", "],[", '"rows":[', {"rows": []}, [], None, 0.5, chance.choice(HOSTILE))
    rows = [[chance.choice(cells) for _ in columns] for _ in range(count)]
    return {"kind": "queues", "key": ["vhost", "name"], "columns": columns, "as_of": chance.randrange(9), "rows": rows}


def cut(text: bytes, chance: random.Random) -> list[bytes]:
    at = sorted(chance.sample(range(len(text)), 3))
    return [text[start:stop] for start, stop in zip([0, *at], [*at, len(text)], strict=True)]


@pytest.mark.parametrize("with_column", [True, False], ids=["with the node", "without"])
@pytest.mark.parametrize("columns", [["vhost", "name", "messages"], ["name"], []], ids=len)
def test_a_table_is_what_all_tables_make_when_they_are_decoded_at_once(columns: list[str], with_column: bool) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        nodes = {name: table_of(chance, chance.choice((0, 1, 2, 3 * TOGETHER + 1)), columns) for name in ("a", 'b"]', "c")}
        told = [(name, cut(msgspec.json.encode(table), chance)) for name, table in nodes.items()]
        found = b"".join(asyncio.run(united_table(told, with_node=with_column)))
        tables = [with_node(table, name) if with_column else table for name, table in nodes.items()]
        assert msgspec.json.decode(found) == one_table(tables)
