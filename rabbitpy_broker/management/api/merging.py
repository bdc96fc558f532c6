"""What several have answered to the same request, put together as if one broker had answered: the workers of a daemon, or the
nodes of a cluster. Plain values in and out.

Lists are united and put in order again; figures are added up, but for those of which a sum would mean nothing: the disk that all
workers share, and what is the same for all. What must stay true: nothing that only one of them has is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rabbitpy_broker.management.api.kept_rows import BETWEEN
from rabbitpy_broker.management.api.paging import PAGES_TOGETHER_MAX, Columns, Page, at, rank
from rabbitpy_broker.management.api.request import Request, Row
from rabbitpy_broker.management.api.tables import Key

SHARED: Final = frozenset((  # figures that are not added up
    "disk_free", "disk_free_limit", "net_ticktime", "page", "proc_total", "processors", "run_queue", "timestamp", "uptime",
    "limit",
))  # fmt: skip
MEANS: Final = "_avg_time"
LINE_SPAN: Final = 4_096  # ids of the same millisecond
LINE_WORKERS: Final = 16


# -- lists -----------------------------------------------------------------------------------------------------------


class ListPlan(NamedTuple):
    """A list of all: the fields that order it when nobody asks for another order, and whether it has pages; `distinct` where each
    has rows of vhosts that are not its own.
    """

    order: tuple[str, ...]
    paged: bool = False
    distinct: bool = False


NAMED: Final = ListPlan(("vhost", "name"), paged=True)
OF_BINDING: Final = ("vhost", "source", "destination_type", "destination", "routing_key", "properties_key")
OF_CHANNEL: Final = ("vhost", "connection_details.name", "number")
OF_PARAMETER: Final = ("vhost", "component", "name")
LISTS: Final = {
    "queues": NAMED,
    "queues/detailed": NAMED,
    "exchanges": NAMED,
    "connections": NAMED,
    "connections/username/:user": ListPlan(()),
    "channels": ListPlan(OF_CHANNEL, paged=True),
    "consumers": ListPlan(()),
    "bindings": ListPlan(OF_BINDING),
    "parameters": ListPlan(OF_PARAMETER),
    "parameters/:component": ListPlan(OF_PARAMETER),
    "policies": ListPlan(("priority",)),
    "operator-policies": ListPlan(("priority",)),
    "vhost-limits": ListPlan(()),
    "permissions": ListPlan(("vhost", "user"), distinct=True),
    "topic-permissions": ListPlan(("vhost", "user"), distinct=True),
    "users/:user/permissions": ListPlan(("vhost", "user"), distinct=True),
    "users/:user/topic-permissions": ListPlan(("vhost", "user"), distinct=True),
}


def page_of(request: Request, plan: ListPlan) -> Page | None:
    """The page that is asked for; None for a whole list. Raises ApiError 400."""
    return Page(request) if plan.paged and "page" in request.query else None


def query_for_each(request: Request, plan: ListPlan, page: Page | None) -> dict[str, str]:
    """What each is asked for: the rows up to the end of the page, with what they are put in order by."""
    query = dict(request.query)
    if page is not None:
        query |= {"page": "1", "page_size": str(min(page.number * page.size, PAGES_TOGETHER_MAX))}
    if "columns" in query:
        query["columns"] = ",".join([query["columns"], *plan.order, query.get("sort", "")])
    return query


def one_answer(request: Request, plan: ListPlan, page: Page | None, answers: Sequence[Any]) -> Any:
    """A page, or a whole list, of what each has answered."""
    if page is not None:
        return one_page(request, page, answers, plan.order)
    return one_list(request, answers, plan.order, distinct=plan.distinct)


def one_behind_the_other(lists: Sequence[Sequence[bytes]]) -> list[bytes]:
    """The JSON of one list, of that of several, each of which is in parts."""
    found: list[bytes] = []
    for parts in lists:
        inner = [part for part in parts if part]
        inner[0] = inner[0][1:]
        inner[-1] = inner[-1][:-1]
        if any(inner):
            found += [BETWEEN, *inner] if found else inner
    return [b"[", *found, b"]"]


def order_of(names: Sequence[str]) -> Callable[[Row], Key]:
    """What rows are ordered by: fields, by their dotted names."""
    paths = [name.split(".") for name in names]
    return lambda row: tuple(rank(at(row, path)) for path in paths)


def key_for(request: Request, order: Sequence[str]) -> Callable[[Row], Key] | None:
    """What a request has rows put in order by; None for the order in which they come."""
    sort = request.query.get("sort", "")
    return order_of([sort]) if sort else order_of(order) if order else None


def sorted_rows(request: Request, rows: list[Row], order: Sequence[str]) -> list[Row]:
    """All rows in the order that the request asks for."""
    key, reverse = key_for(request, order), request.is_true("sort_reverse")
    if key is not None:
        return sorted(rows, key=key, reverse=reverse)
    return rows[::-1] if reverse else rows


def one_list(request: Request, lists: Sequence[list[Row]], order: Sequence[str], *, distinct: bool = False) -> list[Any]:
    """The rows of all; `distinct` where several may have the same row."""
    rows = [row for each in lists for row in each]
    if distinct:
        rows = _distinct(rows)
    columns = Columns(request)
    return [columns.of(row) for row in sorted_rows(request, rows, order)]


def one_page(request: Request, page: Page, pages: Sequence[Row], order: Sequence[str]) -> Row:
    """One page, of the rows up to its end that each has. Raises ApiError 400 for a page behind the last."""
    rows = [row for each in pages for row in each["items"]]
    found, total = (sum(each[name] for each in pages) for name in ("filtered_count", "total_count"))
    shown = page.slice_of(sorted_rows(request, rows, order), found)
    columns = Columns(request)
    return {"items": [columns.of(row) for row in shown], **page.row(shown=len(shown), found=found, total=total)}


def _distinct(rows: Iterable[Row]) -> list[Row]:
    return list({msgspec.json.encode(row, order="sorted"): row for row in rows}.values())


# -- figures ---------------------------------------------------------------------------------------------------------


def added_up(rows: Sequence[Row]) -> Row:
    """The numbers of objects of the same shape, added up; of anything else the first one's."""
    total: Row = {}
    for row in rows:
        _add(total, row)
    for name in total:
        if name.endswith(MEANS) and isinstance(total[name], int | float):
            total[name] = max(row.get(name, 0) for row in rows)
    return total


def _add(total: Row, row: Row) -> None:
    for name, value in row.items():
        if name not in total or total[name] is None:
            total[name] = _copied(value)
        elif name.removesuffix("_details") in SHARED:
            continue
        else:
            total[name] = _sum(name, total[name], value)


def _sum(name: str, one: Any, other: Any) -> Any:
    if isinstance(one, bool) or isinstance(other, bool):
        return one or other if name.endswith("_alarm") else one
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    if isinstance(one, dict) and isinstance(other, dict):
        _add(one, other)
    elif name == "samples" and isinstance(one, list) and isinstance(other, list):
        return _samples(one, other)
    return one


def _samples(one: list[Row], other: list[Row]) -> list[Row]:
    """Workers look at their counters at times of their own: the latest of one are added to the latest of the other."""
    return [
        {**mine, "sample": mine["sample"] + (theirs["sample"] if theirs else 0)}
        for mine, theirs in zip(one, [*other, *[None] * len(one)], strict=False)
    ]


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, list) else value


def in_percent(sizes: Row) -> Row:
    """Sizes as shares of their sum."""
    total = sum(size for size in sizes.values() if isinstance(size, int)) or 1
    return {name: round(100 * size / total) for name, size in sizes.items() if isinstance(size, int)}


def one_overview(values: Sequence[Row]) -> Row:
    """Of the event stream's topic: totals and rates added up, alarms united."""
    first = values[0]
    nodes = [value["node"] for value in values if value.get("node") is not None]
    return {
        "totals": added_up([value["totals"] for value in values]),
        "rates": {name: round(rate, 2) for name, rate in added_up([value["rates"] for value in values]).items()},
        "node": added_up(nodes) if nodes else first["node"],
        "alarms": sorted({alarm for value in values for alarm in value["alarms"]}),
        "blocked": next((value["blocked"] for value in values if value["blocked"]), first["blocked"]),
    }


def one_alarms(values: Sequence[Row]) -> Row:
    """Of the event stream's topic."""
    return {"alarms": _distinct(alarm for value in values for alarm in value["alarms"])}


def one_history(rows: Sequence[Row]) -> Row:
    """Point by point; what nobody knows is None."""
    first = rows[0]
    series: dict[str, list[float | None]] = {}
    for name, points in first["series"].items():
        columns = [row["series"].get(name, []) for row in rows]
        if name in SHARED:
            series[name] = next((each for each in columns if any(point is not None for point in each)), points)
        else:
            places = range(len(points))
            series[name] = [_known_sum(column[place] for column in columns if place < len(column)) for place in places]
    return {**first, "series": series}


def _known_sum(points: Iterable[float | None]) -> float | None:
    known = [point for point in points if point is not None]
    return round(math.fsum(known), 3) if known else None


# -- other shapes ----------------------------------------------------------------------------------------------------


def one_table(tables: Sequence[Row]) -> Row:
    """Rows by columns."""
    return {**tables[0], "rows": [row for table in tables for row in table["rows"]]}


def with_node(table: Row, node: str) -> Row:
    """The same with a column more, which tells alike rows of several nodes apart."""
    return {
        **table,
        "key": [*table["key"], "node"],
        "columns": [*table["columns"], "node"],
        "rows": [[*row, node] for row in table["rows"]],
    }


def one_graph(graphs: Sequence[Row], limit: int) -> Row:
    """The nodes of each are numbered anew. Those beyond the limit are left out, and edges that lead there."""
    nodes: list[Row] = []
    edges: list[Row] = []
    truncated = any(graph["truncated"] for graph in graphs)
    for graph in graphs:
        numbers: dict[int, int] = {}
        for node in graph["nodes"]:
            if len(nodes) >= limit:
                truncated = True
                break
            numbers[node["id"]] = len(nodes)
            nodes.append({**node, "id": len(nodes)})
        for edge in graph["edges"]:
            if edge["from"] in numbers and edge["to"] in numbers:
                edges.append({**edge, "from": numbers[edge["from"]], "to": numbers[edge["to"]]})
    return {**graphs[0], "nodes": nodes, "edges": edges, "truncated": truncated}


def line_id(number: int, entry: Row) -> int:
    """An id of a log line or an audit entry that no other worker's has, and that grows with time."""
    place = entry["id"] % (LINE_SPAN // LINE_WORKERS)
    return int(entry["at"]) * LINE_SPAN + number % LINE_WORKERS * (LINE_SPAN // LINE_WORKERS) + int(place)


def one_log(lists: Sequence[tuple[int, list[Row]]]) -> list[Row]:
    """Lines or entries by the number of their worker; the oldest first."""
    found = [{**entry, "id": line_id(number, entry)} for number, entries in lists for entry in entries]
    return sorted(found, key=lambda entry: entry["id"])
