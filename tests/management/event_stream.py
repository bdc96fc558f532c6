"""The event stream as a page in a browser reads it, and the tables that it keeps with it."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from typing import Any, Self

from management.conftest import Http
from support import eventually


class EventStream:
    """Everything that comes is applied to `tables` and `objects`."""

    def __init__(
        self, http_: Http, *topics: str, user: str = "guest", last: str = "", headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.tables: dict[str, dict[Any, dict[str, Any]]] = {}
        self.objects: dict[str, dict[str, Any] | None] = {}
        self.lines: list[dict[str, Any]] = []
        self.last_id = last
        self.end = ""
        self.kinds: list[str] = []
        self.delta_rows: list[int] = []  # how many were in each delta of a table
        self._keys: dict[str, tuple[list[str], list[str]]] = {}
        self._connection = http.client.HTTPConnection(http_.address, timeout=20)
        asked = urllib.parse.urlencode({"topics": ",".join(topics), **(query or {})})
        given = {**(http_.login(user) if headers is None else headers), "Accept": "text/event-stream"}
        self._connection.request("GET", f"/api/events?{asked}", headers={**given, **({"Last-Event-ID": last} if last else {})})
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def close(self) -> None:
        self._connection.close()
        self._answer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next(self) -> None:
        """Applies the next event, or takes the id of a tick."""
        kind, data = "", ""
        while True:
            line = self._answer.readline()
            assert line, "the stream has ended"
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                data = value
            elif name == "id":
                self.last_id = value
                return
            elif not name and data:
                self._apply(kind, json.loads(data))
                return

    def until(self, condition: Any) -> Any:
        """Reads until a condition holds."""
        while True:
            found = condition()
            if found:
                return found
            self.next()

    def marked(self) -> str:
        """Reads until the id of a tick has come."""
        before = self.last_id
        self.until(lambda: self.last_id != before)
        return self.last_id

    def _apply(self, kind: str, data: dict[str, Any]) -> None:
        self.kinds.append(kind)
        topic = data.get("topic", "")
        if kind == "end":
            self.end = data["reason"]
        elif kind == "log":
            self.lines += data["lines"]
        elif kind == "gone":
            self.objects[topic] = None
        elif topic.startswith("table:"):
            self._apply_table(kind, topic, data)
        elif kind == "snapshot":
            self.objects[topic] = data["value"]
        else:
            self.objects[topic] = {**(self.objects[topic] or {}), **data["value"]}

    def _apply_table(self, kind: str, topic: str, data: dict[str, Any]) -> None:
        if kind == "snapshot":
            self._keys[topic] = data["key"], data["columns"]
            if data["part"] == 0:
                self.tables[topic] = {}
        else:
            self.delta_rows.append(sum(len(data[part]) for part in ("gone", "added", "changed")))
        key, columns = self._keys[topic]
        rows = self.tables[topic]
        for gone in data.get("gone", []):
            rows.pop(tuple(gone), None)
        for cells in data["rows"] if kind == "snapshot" else data["added"]:
            row = dict(zip(columns, cells, strict=True))
            rows[tuple(row[name] for name in key)] = row
        for place, values in data.get("changed", []):
            assert values.keys() <= set(columns)
            rows[tuple(place)].update(values)

    def resume_with(self, other: EventStream) -> None:
        """Takes over what another stream had told, as a browser does that connects again."""
        self.tables, self.objects, self._keys = other.tables, other.objects, other._keys


def table(http_: Http, kind: str, user: str = "guest") -> dict[Any, dict[str, Any]]:
    """The rows of a table by their keys."""
    found = http_.get(f"table/{kind}", user=user)
    rows = [dict(zip(found["columns"], cells, strict=True)) for cells in found["rows"]]
    return {tuple(row[name] for name in found["key"]): row for row in rows}


def same(stream: EventStream, topic: str, expected: Any) -> None:
    """Reads on until the stream's table is the one that is asked for in the usual way."""

    def is_same() -> bool:
        return topic in stream.tables and without_rates(stream.tables[topic]) == without_rates(expected())

    def read() -> bool:
        if is_same():
            return True
        stream.next()
        return is_same()

    eventually(read, 20)


def without_rates(rows: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Rates are those of different moments."""
    return {
        key: {name: value for name, value in row.items() if not name.endswith("_rate") and name != "idle_since"}
        for key, row in rows.items()
    }
