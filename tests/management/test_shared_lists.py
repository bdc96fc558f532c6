"""A long list is made once for all who ask within the statistics interval, and names what there is whenever it is asked for."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pika
import pytest

from broker_process import BrokerProcess
from management.conftest import Http
from rabbitpy_broker.management.api.kept_rows import BETWEEN, BLOCK, TOGETHER, MadeRow, Marks, Rows, Sharing
from rabbitpy_broker.management.api.paging import RUN, ordered
from rabbitpy_broker.management.api.shared_lists import (
    KEPT_MAX,
    LONG,
    UNUSED,
    KeptList,
    SharedLists,
)
from rabbitpy_broker.queues.activity import ALWAYS
from rabbitpy_broker.queues.rates import AT_REST, FADING, SLOW
from support import eventually

QUEUE = {"vhost": "/", "durable": False, "auto_delete": False, "arguments": {}}
MESSAGE = {"properties": {}, "routing_key": "q1", "payload": "hello", "payload_encoding": "string"}


def sharing_of(key: object, state: list[object]) -> Sharing:
    return Sharing(key, "kind", state, Marks())


def test_numbers_are_of_the_interval_and_names_of_now(own_broker: Callable[..., BrokerProcess]) -> None:
    http = Http(own_broker({"collect_statistics_interval": 3_600_000}).management)

    def listed(path: str = "queues") -> dict[str, dict[str, object]]:
        return {row["name"]: row for row in http.get(path)}

    def publish() -> None:
        assert http("POST", "exchanges/%2F/amq.default/publish", MESSAGE).json == {"routed": True}

    names = {f"q{number}" for number in range(LONG + 1)}
    assert http("POST", "definitions", {"queues": [{"name": name, **QUEUE} for name in names]}).status in (
        201,
        204,
    )
    assert set(listed()) == names
    publish()
    assert listed()["q1"]["messages"] == 0
    assert listed("queues/%2F?columns=name,messages")["q1"]["messages"] == 1  # another list
    assert http.get("queues?page=1&page_size=1&name=q1000")["items"][0]["messages"] == 0
    assert http.get("queues/%2F/q1")["messages"] == 1
    assert http("PUT", "queues/%2F/new", {}).status == 201
    assert set(listed()) == names | {"new"}
    assert listed()["q1"]["messages"] == 1
    assert http("DELETE", "queues/%2F/new").status == 204
    assert http("PUT", "queues/%2F/other", {}).status == 201  # as many as before
    assert set(listed()) == names | {"other"}
    assert listed()["q1"]["policy"] is None
    assert http("PUT", "policies/%2F/all", {"pattern": "^q1$", "definition": {"max-length": 7}}).status == 201
    assert listed()["q1"]["policy"] == "all"
    assert http("PUT", "users/somebody", {"password": "somebody", "tags": "management"}).status == 201
    assert http.get("queues", user="somebody") == []  # whose vhosts are others


def test_a_page_of_a_long_list_is_of_now(own_broker: Callable[..., BrokerProcess]) -> None:
    http = Http(own_broker({"collect_statistics_interval": 3_600_000}).management)
    queues = [{"name": f"q{number}", **QUEUE} for number in range(LONG + 1)]
    assert http("POST", "definitions", {"queues": queues}).status in (201, 204)
    for messages in (0, 1):
        assert http.get("queues?page=1&page_size=500&name=q1")["items"][0]["messages"] == messages
        http("POST", "exchanges/%2F/amq.default/publish", MESSAGE)


def test_a_row_is_made_anew_when_something_of_it_changes(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker({"collect_statistics_interval": 100})
    http = Http(broker.management)
    queues = [{"name": f"q{number}", **QUEUE} for number in range(LONG + 1)]
    assert http("POST", "definitions", {"queues": queues}).status in (201, 204)

    def row() -> dict[str, Any]:
        return next(row for row in http.get("queues") if row["name"] == "q1")

    assert row()["messages"] == row()["messages"] == 0
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.basic_publish("", "q1", b"hello")
        eventually(lambda: (found := row())["messages"] == 1 and found["message_bytes"] == 5)
        eventually(lambda: row()["messages_details"]["rate"] == 0)  # it is at rest
        channel.queue_purge("q1")
        eventually(lambda: row()["messages"] == 0)
        tag = channel.basic_consume("q1", lambda *_: None, exclusive=True)
        eventually(lambda: (found := row())["consumers"] == 1 and found["exclusive_consumer_tag"] == tag)
        channel.basic_cancel(tag)
        eventually(lambda: (found := row())["consumers"] == 0 and found["exclusive_consumer_tag"] is None)
    eventually(lambda: http.get("queues") == in_pages(http) == in_pages(http, ""))


def in_pages(http: Http, sort: str = "&sort=name") -> list[Any]:
    """The list as pages have it: sorted, each of them is made anew."""
    return [row for page in (1, 2, 3) for row in http.get(f"queues?page={page}&page_size=500{sort}")["items"]]


def whole(pieces: Iterable[bytes]) -> bytes:
    """The rows in one line."""
    return b"".join(pieces).replace(BETWEEN, b",")[:-1]


class MarksOf(Marks):
    """What a test has set."""

    def __init__(self, rows: Marked) -> None:
        super().__init__()
        self.rows = rows

    def look(self, item: tuple[int, str]) -> None:
        name = item[1]
        self.mark, self.moment = self.rows.marks[name], self.rows.moments.get(name, 0.0)
        self.level = self.rows.levels.get(name, 0)

    def end(self, item: tuple[int, str]) -> bytes:
        return self.rows.ends[item[1]]


class Marked:
    """Rows whose marks a test sets: `NAME=END`, and what was made of them."""

    def __init__(self, marks: dict[str, int]) -> None:
        self.marks = marks
        self.ends = dict.fromkeys(marks, b"0")
        self.moments: dict[str, float] = {}
        self.levels: dict[str, int] = {}
        self.headed: set[str] = set()
        self.made: list[str] = []
        self.items = [(0, name) for name in marks]
        self.rows = Rows([], 0.0)
        self._sharing = Sharing("key", "kind", [], MarksOf(self))

    def _make(self, item: tuple[int, str], mark: int, before: MadeRow | None) -> MadeRow | None:
        name = item[1]
        head = b"" if before is None else before.part(0, before.head)
        assert mark == self.marks[name]
        self.made.append(f"rest of {name}" if head else name)
        if name == "gone":
            return None
        found = (head or name.encode()) + b"=" + self.ends[name]
        return MadeRow(found, len(name) if name in self.headed else 0, len(name) + 1)

    def listed(self) -> bytes:
        self.made.clear()
        return whole(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        return self.rows.pieces(self.items, self._sharing, self._make)

    def some(self, start: int, stop: int) -> list[bytes]:
        return self.rows.some(self.items, start, stop, self._sharing, self._make)


def test_rows_with_an_equal_mark_are_taken_again() -> None:
    rows = Marked({"a": 1, "b": 1, "busy": ALWAYS, "gone": 1})
    assert rows.listed() == b"a=0,b=0,busy=0"
    rows.marks["b"] = 2
    assert rows.listed() == b"a=0,b=0,busy=0"
    assert rows.made == ["b", "busy", "gone"]
    rows.moments["a"] = 0.5
    rows.listed()
    assert rows.made == ["a", "busy", "gone"]


def test_of_a_row_with_a_head_the_rest_is_made_until_it_is_old() -> None:
    rows = Marked({"a": 1, "b": 1})
    rows.headed = {"a"}
    assert rows.listed() == b"a=0,b=0"
    rows.marks, rows.ends["a"] = {"a": 2, "b": 2}, b"5"
    assert rows.listed() == b"a=5,b=0"
    assert rows.made == ["rest of a", "b"]
    rows.rows.row_s = -1.0
    assert rows.listed() == b"a=5,b=0"
    assert rows.made == ["a", "b"]


def test_of_a_row_that_fades_only_the_end_is_made() -> None:
    rows = Marked({"a": 1, "b": 1})
    rows.listed()
    rows.levels["a"] = FADING
    for end in (b"1.5", b"0.25"):
        rows.ends["a"] = rows.ends["b"] = end
        assert rows.listed() == b"a=" + end + b",b=0"
    for level, end in ((SLOW, b"0.125"), (AT_REST, b"0")):
        rows.levels["a"], rows.ends["a"] = level, end
        assert rows.listed() == b"a=" + end + b",b=0"
        rows.ends["a"] = b"7"
        assert rows.listed() == b"a=" + end + b",b=0"  # it is another one only with another level
    assert not rows.made


def test_many_rows_are_listed_in_several_pieces() -> None:
    rows = Marked({f"q{number}": number for number in range(3 * TOGETHER + 1)})
    assert rows.listed() == b",".join(b"q%d=0" % number for number in range(3 * TOGETHER + 1))
    assert len(list(rows.pieces())) == 4


def test_a_list_is_whole_though_its_rows_are_let_go_of_meanwhile() -> None:
    rows = Marked({f"q{number}": number for number in range(2 * BLOCK)})
    listed = rows.listed()
    pieces = rows.pieces()
    begun = next(pieces)
    for _ in rows.rows.emptying():
        pass
    assert whole([begun, *pieces]) == listed
    assert rows.listed() == listed
    assert len(rows.made) == 2 * BLOCK


def test_a_block_that_nothing_has_changed_in_is_given_again() -> None:
    rows = Marked({f"q{number}": number for number in range(2 * BLOCK)})
    before = list(filter(None, rows.pieces()))
    rows.marks["q0"] = 7
    now = list(filter(None, rows.pieces()))
    assert now == before
    assert [one is other for one, other in zip(now, before, strict=True)] == [False, True]


@pytest.mark.parametrize("steps", [1, 3, 5, 6])
def test_a_list_that_is_left_off_midway_spoils_no_row(steps: int) -> None:
    rows = Marked({f"q{number}": number for number in range(2 * BLOCK)})
    rows.ends |= dict.fromkeys(list(rows.ends)[::3], b"longer")
    before = rows.listed()
    rows.marks |= dict.fromkeys(list(rows.marks)[::5], -7)
    rows.ends |= dict.fromkeys(list(rows.ends)[::5], b"")
    pieces = rows.pieces()
    for _ in range(steps):
        next(pieces)
    del pieces
    expected = b",".join(b"%b=%b" % (name.encode(), end) for name, end in rows.ends.items())
    assert rows.listed() == expected != before


def test_lists_of_rows_that_change_come_and_go_are_what_they_would_be_anew() -> None:
    chance = random.Random(7)
    names = [f"q{number}" for number in range(3 * BLOCK)]
    rows = Marked(dict.fromkeys(names, 1))
    rows.headed = set(names[::2])
    for _ in range(60):
        for name in chance.sample(names, chance.choice((0, 1, 7, 300))):
            rows.ends[name] = b"%d" % chance.randrange(10 ** chance.choice((0, 3, 9)))
            if chance.random() < 0.5:
                rows.marks[name] = chance.choice((ALWAYS, rows.marks[name] + 1, rows.marks[name] + 2))
            else:
                rows.levels[name] = FADING
        if chance.random() < 0.3:
            rows.items = [(0, name) for name in chance.sample(names, chance.randrange(len(names)))]
        elif chance.random() < 0.2:
            pieces = rows.pieces()
            for _ in range(chance.randrange(12)):
                next(pieces, b"")
        expected = [b"%b=%b" % (name.encode(), rows.ends[name]) for _, name in rows.items]
        start = chance.randrange(len(expected) + 1)
        assert rows.some(start, start + 20) == expected[start : start + 20]
        assert rows.listed() == b",".join(expected)
        assert rows.some(start, start + 20) == expected[start : start + 20]
        rows.levels.clear()


def test_a_page_takes_rows_of_the_last_list_again() -> None:
    rows = Marked({f"q{number}": number for number in range(2 * BLOCK)})
    rows.listed()
    before = list(rows.pieces())
    rows.marks["q251"], rows.ends["q251"] = 7, b"now"
    rows.levels["q252"], rows.ends["q252"] = FADING, b"less"
    rows.made.clear()
    assert rows.some(249, 253) == [b"q249=0", b"q250=0", b"q251=now", b"q252=less"]
    assert rows.made == ["q251"]
    rows.made.clear()
    rows.items = list(rows.items)
    assert rows.some(249, 251) == [b"q249=0", b"q250=0"]
    assert rows.made == ["q249", "q250"]
    rows.levels.clear()
    assert before != list(rows.pieces()), "what a page has made is not kept"


def test_a_page_of_rows_that_are_being_made_has_them_made_for_itself() -> None:
    rows = Marked({f"q{number}": number for number in range(BLOCK)})
    rows.listed()
    pieces = rows.pieces()
    next(pieces)
    rows.made.clear()
    assert rows.some(0, 2) == [b"q0=0", b"q1=0"]
    assert rows.made == ["q0", "q1"]
    assert whole(pieces) == b",".join(b"q%d=0" % number for number in range(BLOCK))


@pytest.mark.parametrize("count", [1, BLOCK, 2 * BLOCK + 1])
def test_rows_are_found_again_when_there_are_other_items(count: int) -> None:
    rows = Marked({f"q{number}": number for number in range(count)})
    rows.listed()
    rows.items = [(1, "new"), *reversed(rows.items[: count - 1])]
    rows.marks["new"], rows.ends["new"] = 7, b"0"
    assert rows.listed() == b",".join(b"%b=0" % name.encode() for _, name in rows.items)
    assert rows.made == ["new"]
    assert rows.listed().startswith(b"new=0")
    assert not rows.made


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_list_is_compressed_once(monkeypatch: pytest.MonkeyPatch, is_installed: bool) -> None:
    if not is_installed:
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    kept = KeptList([], 0.0, [b"1" + BETWEEN] * 100_000)
    packed = asyncio.run(kept.compressed())
    assert gzip.decompress(b"".join(packed)) == b"[" + (b"1" + BETWEEN) * 99_999 + b"1]"
    assert asyncio.run(kept.compressed()) is packed


def test_an_order_is_kept_while_it_is_used() -> None:
    lists, items = SharedLists(5.0), [1, 2]
    lists.keep_order("key", items, 10.0)
    assert lists.order("key", 25.0) is items
    lists.tidy(25.0 + UNUSED * 5.0 - 0.1)
    assert lists.order("key", 25.0) is items
    lists.tidy(25.0 + UNUSED * 5.0)
    assert lists.order("key", 25.0) is None
    for number in range(KEPT_MAX + 1):
        lists.keep_order(number, items, 0.0)
    assert lists.order(0, 0.0) is None


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [0, 1, RUN, RUN + 1, 3 * RUN + 7])
def test_many_items_are_sorted_in_runs_as_sorted_does(count: int, reverse: bool) -> None:
    items = [(number * 7919 % 1_000 // 10, number) for number in range(count)]

    def key(item: tuple[int, int]) -> int:
        return item[0]

    assert asyncio.run(ordered(items, key, reverse=reverse)) == sorted(items, key=key, reverse=reverse)


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_a_list_is_given_in_parts_whatever_is_forgotten_meanwhile(count: int) -> None:
    kept = KeptList([], 0.0, [b"%d%b" % (number, BETWEEN) for number in range(count)])
    size, parts = kept.size, kept.parts()
    begun = next(parts)
    for _ in kept.emptying():
        pass
    given = begun + b"".join(parts)
    assert json.loads(given) == list(range(count))
    assert size == len(given)
    assert b"".join(kept.parts()) == b"[]"  # nothing is kept


def pieces_of(kept: KeptList | None) -> list[bytes] | None:
    return None if kept is None else kept.pieces


def test_a_list_that_took_long_is_kept_for_longer() -> None:
    lists, sharing = SharedLists(5.0, 4), sharing_of("key", [object()])
    rows, items = lists.rows(sharing, 10.0), [1, 2]
    lists.keep_order("order", items, 10.0)
    rows.took_s = 1.0
    lists.keep(sharing, 10.0, [b"1,"])
    assert pieces_of(lists.find(sharing, 14.9)) == [b"1,"]
    assert lists.find(sharing, 15.0) is None
    rows.took_s = 2.5
    lists.keep(sharing, 20.0, [b"2,"])
    assert pieces_of(lists.find(sharing, 29.9)) == [b"2,"]
    assert lists.find(sharing, 30.0) is None
    lists.keep(Sharing("quick", "other kind", [], Marks()), 21.0, [b"3,"])
    lists.tidy(30.0 + UNUSED * 5.0 - 0.1)
    assert lists.order("order", 60.0) is items
    assert lists.rows(sharing, 60.0) is rows, "it will be asked for again"


def test_it_is_told_how_long_a_list_took_that_was_not_made_of_nothing() -> None:
    rows = Marked({f"q{number}": number for number in range(3 * TOGETHER)})
    rows.listed()
    assert rows.rows.took_s == 0.0
    began = time.thread_time()
    rows.listed()
    assert 0.0 < rows.rows.took_s <= time.thread_time() - began


def test_a_list_is_kept_for_less_than_the_interval() -> None:
    lists, sharing = SharedLists(5.0), sharing_of("key", [object()])
    lists.keep(sharing, 10.0, [b"1,"])
    assert pieces_of(lists.find(sharing, 14.9)) == [b"1,"]
    assert lists.find(sharing_of("other", sharing.state), 14.9) is None
    assert lists.find(sharing_of("key", [object()]), 14.9) is None
    assert lists.find(sharing, 15.0) is None
    lists.keep(sharing, 20.0, [b"2,"])
    lists.tidy(25.0)
    assert lists.find(sharing, 20.0) is None


def test_few_are_kept() -> None:
    lists = SharedLists(5.0)
    for number in range(KEPT_MAX + 1):
        lists.keep(sharing_of(number, []), 0.0, [b"%d" % number])
    assert lists.find(sharing_of(0, []), 0.0) is None
    assert pieces_of(lists.find(sharing_of(KEPT_MAX, []), 0.0)) == [b"%d" % KEPT_MAX]


def test_rows_are_kept_while_they_are_used() -> None:
    lists, sharing = SharedLists(5.0), sharing_of("key", [])
    rows = lists.rows(sharing, 10.0)
    lists.tidy(10.0 + UNUSED * 5.0 - 0.1)
    assert lists.rows(sharing_of("longer", []), 29.0) is rows
    assert lists.rows(sharing_of("key", [object()]), 29.0) is not rows  # other policies
    lists.tidy(29.0 + UNUSED * 5.0)
    assert not lists._rows
