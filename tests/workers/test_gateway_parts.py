"""What a reader of the event stream has while a vhost moves, and counters that lose a process or a vhost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rabbitpy_broker.management.api.merged_events import Outlet, TableTopic
from rabbitpy_broker.management.api.merging import added_up, one_behind_the_other, one_graph, one_history
from rabbitpy_broker.workers.fleet import Member, WorkerSockets
from rabbitpy_broker.workers.gateway_metrics import Totals, merged

HEAD = {"topic": "table:queues", "key": ["vhost", "name"], "columns": ["vhost", "name", "messages"]}


class Rows:
    """What a page has after everything that it was told."""

    def __init__(self) -> None:
        self.outlet = Outlet()
        self.rows: dict[tuple[Any, ...], list[Any]] = {}

    async def read(self) -> set[str]:
        if self.outlet.is_over:
            return set()
        self.outlet.push(b"")
        for event in (await self.outlet.take()).split(b"\n\n"):
            if event:
                self._apply(json.loads(event.partition(b"data: ")[2]), is_snapshot=event.startswith(b"event: snapshot"))
        return {row[1] for row in self.rows.values()}

    def _apply(self, told: dict[str, Any], *, is_snapshot: bool) -> None:
        if is_snapshot:
            self.rows = {} if told["part"] == 0 else self.rows
        for key in told.get("gone", []):
            del self.rows[tuple(key)]
        for row in told["rows"] if is_snapshot else told["added"]:
            self.rows[tuple(row[:2])] = row


def snapshot(*names: str, vhost: str) -> dict[str, Any]:
    return {**HEAD, "as_of": 0, "part": 0, "done": True, "rows": [[vhost, name, 0] for name in names]}


def delta(*, added: tuple[str, ...] = (), gone: tuple[str, ...] = (), vhost: str) -> dict[str, Any]:
    rows, keys = [[vhost, name, 0] for name in added], [[vhost, name] for name in gone]
    return {"topic": "table:queues", "as_of": 0, "changed": [], "added": rows, "gone": keys}


async def test_rows_are_there_once_whichever_worker_tells_of_a_move_first() -> None:
    for first in (0, 1):
        page = Rows()
        table: TableTopic[int] = TableTopic("table:queues", {0, 1}, page.outlet)
        table.event(0, "snapshot", snapshot("a", "b", vhost="v"))
        assert await page.read() == set()
        table.event(0, "delta", delta(added=("c",), vhost="v"))  # before the other has told what it has
        table.event(1, "snapshot", snapshot("z", vhost="w"))
        assert await page.read() == {"a", "b", "c", "z"}
        moves = [
            (0, delta(gone=("a", "b", "c"), vhost="v")),
            (1, delta(added=("a", "b", "c"), vhost="v")),
        ]
        for number, told in moves if first == 0 else moves[::-1]:
            table.event(number, "delta", told)
        assert await page.read() == {"a", "b", "c", "z"}
        table.lost(0)
        assert await page.read() == {"a", "b", "c", "z"}
        table.lost(1)
        assert await page.read() == set()
        table.event(1, "snapshot", snapshot("a", vhost="v"))
        assert await page.read() == {"a"}


async def test_a_reader_without_the_columns_of_the_key_begins_anew() -> None:
    page = Rows()
    table: TableTopic[int] = TableTopic("t", {0}, page.outlet)
    head = {**HEAD, "columns": ["messages"], "as_of": 0, "part": 0, "done": True, "rows": [[1]]}
    table.event(0, "snapshot", head)
    table.lost(0)
    assert page.outlet.is_over


def text(count: float, more: str = "") -> str:
    return f"# HELP c_total C\n# TYPE c_total counter\nc_total {count}\n# HELP g G\n# TYPE g gauge\ng {count}\n{more}"


def scrape(totals: Totals, *workers: tuple[int, int, float]) -> tuple[float, float]:
    texts = [(Member(number, WorkerSockets(Path()), pid, True), text(count)) for number, pid, count in workers]
    families = merged(texts, totals)
    return families["c_total"].values["c_total"], families["g"].values["g"]


def test_a_counter_does_not_fall_when_a_worker_ends_or_a_vhost_leaves_it() -> None:
    totals = Totals()
    assert scrape(totals, (0, 10, 5), (1, 11, 7)) == (12, 12)
    assert scrape(totals, (0, 10, 6)) == (13, 6)  # one is down
    assert scrape(totals, (0, 10, 6), (1, 12, 1)) == (14, 7)  # and has come back
    assert scrape(totals, (0, 10, 2), (1, 12, 1)) == (14, 3)  # a vhost has moved
    assert scrape(totals, (0, 10, 3), (1, 12, 2)) == (16, 5)


def test_what_is_the_same_for_all_is_not_added_up() -> None:
    kind = "# HELP rabbitmq_disk_space_available_bytes D\n# TYPE rabbitmq_disk_space_available_bytes gauge\n"
    more = [f"{kind}rabbitmq_disk_space_available_bytes {free}\n" for free in (5.0, 4.0)]
    name = "rabbitmq_erlang_uptime_seconds"
    uptime = f"# HELP {name} U\n# TYPE {name} gauge\n{name} 3\n"
    texts = [(Member(number, WorkerSockets(Path()), 1, True), text(1, each + uptime)) for number, each in enumerate(more)]
    families = merged(texts, Totals())
    assert list(families["rabbitmq_disk_space_available_bytes"].values.values()) == [5.0]
    assert list(families[name].values) == [
        f'{name}{{worker="0"}}', f'{name}{{worker="1"}}',
    ]  # fmt: skip
    row = added_up([{"disk_free": 5, "fd_used": 1, "mem_alarm": False, "io_sync_avg_time": 3},
                    {"disk_free": 5, "fd_used": 2, "mem_alarm": True, "io_sync_avg_time": 4}])  # fmt: skip
    assert row == {"disk_free": 5, "fd_used": 3, "mem_alarm": True, "io_sync_avg_time": 4}


def test_histories_are_added_up_point_by_point_and_graphs_have_a_limit() -> None:
    one = {"scope": "node", "step": 1, "times": [1, 2], "series": {"publish": [None, 1.0], "disk_free": [None, 7]}}
    other = {"scope": "node", "step": 1, "times": [1, 2], "series": {"publish": [None, 2.0], "disk_free": [None, 7]}}
    assert one_history([one, other])["series"] == {"publish": [None, 3.0], "disk_free": [None, 7]}
    graph = {"truncated": False, "nodes": [{"id": 0}, {"id": 1}], "edges": [{"from": 0, "to": 1}]}
    found = one_graph([graph, graph], 3)
    assert ([node["id"] for node in found["nodes"]], len(found["edges"]), found["truncated"]) == ([0, 1, 2], 1, True)


def test_lists_in_parts_become_one_list() -> None:
    lists = [[b"[]"], [b"[1", b",2]"], [b"[", b"3", b"]"], [b"[", b"]"], [b'["]["]']]
    assert json.loads(b"".join(one_behind_the_other(lists))) == [1, 2, 3, "]["]
    assert b"".join(one_behind_the_other([[b"[]"], [b"[", b"]"]])) == b"[]"
