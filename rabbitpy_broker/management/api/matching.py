"""What somebody looks for among messages: conditions on a message, all of which must hold.

    {"text": "4711"}                              in the body, as UTF-8; `"case": false` for any case
    {"headers": {"tenant": "a", "try": 2}}        headers with these values
    {"properties": {"message_id": "m"}}           properties with these values
    {"json": {"order.items[0].sku": "x"}}         a body that is JSON has these values at these paths
    {"json": [{"path": "total", "op": ">", "value": 10}]}       op: = != > >= < <= contains exists
    {"regex": "order-[0-9]+"}                     in the body; see below
    {"exchange": "x"}, {"routing_key": "k"}, {"redelivered": true}, {"expired": true}, {"reason": "rejected"}

Of a body the first LOOKED_AT bytes are looked at. An expression is matched by a process of its own, which is ended when it takes
too long over one body: Python's own can take for ever, and nothing could interrupt it here.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from rabbitpy_broker.management.api.browse import address, deaths, properties
from rabbitpy_broker.management.api.errors import bad_request
from rabbitpy_broker.management.api.request import Row
from rabbitpy_broker.queues.browse import Seen

LOOKED_AT: Final = 65_536
PATTERN_MAX: Final = 256
PATHS_MAX: Final = 20
MATCH_S: Final = 0.5  # for one body
START_S: Final = 10.0
KEYS: Final = frozenset(
    ("text", "case", "headers", "properties", "json", "regex", "exchange", "routing_key", "redelivered", "expired", "reason")
)
OPS: Final = ("=", "!=", ">", ">=", "<", "<=", "contains", "exists")
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d{1,9})\]")
_WORKER: Final = """
import re, sys
into, out = sys.stdin.buffer, sys.stdout.buffer
def number():
    return int.from_bytes(into.read(4), "big")
def text():
    return into.read(number()).decode("utf-8", "replace")
pattern = re.compile(text(), int(sys.argv[1]))
while count := number():
    out.write(bytes(pattern.search(text()) is not None for _ in range(count)))
    out.flush()
"""


class Expression:
    """An expression, and the process that matches it, which is there from the first match until `close`.

    The process is sent the expression, then batches: their number of texts, and each text, every one after its length.
    """

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        self._pattern = pattern
        self._flags = int(re.IGNORECASE) if ignore_case else 0
        self._process: asyncio.subprocess.Process | None = None

    async def matches(self, text: bytes) -> bool:
        """Raises ApiError 400 when it takes too long."""
        return (await self.match_each([text]))[0]

    async def match_each(self, texts: Sequence[bytes]) -> list[bool]:
        """Whether each of some texts matches. Raises ApiError 400 when all of them together take longer than MATCH_S."""
        process = self._process
        if process is None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", _WORKER, str(self._flags),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            await self._ask(process, [b""], START_S, _after_length(self._pattern.encode()))
        return await self._ask(process, texts, MATCH_S)

    async def _ask(
        self, process: asyncio.subprocess.Process, texts: Sequence[bytes], within_s: float, before: bytes = b""
    ) -> list[bool]:
        into, out = process.stdin, process.stdout
        assert into is not None, "kept by: it is a pipe"
        assert out is not None, "kept by: it is a pipe"
        try:
            into.write(before + len(texts).to_bytes(4, "big") + b"".join(map(_after_length, texts)))
            async with asyncio.timeout(within_s):
                return [answer == 1 for answer in await out.readexactly(len(texts))]
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            raise bad_request("the expression takes too long") from None

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _after_length(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


class Where:
    """Conditions, checked. Raises ApiError 400 for what is none."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, dict) or not set(given) <= KEYS:
            raise bad_request(f"conditions are an object with keys among {', '.join(sorted(KEYS))}")
        self._given = given
        self._text = self._string("text")
        self._headers = self._object("headers")
        self._properties = self._object("properties")
        self._paths = _paths(given.get("json", []))
        pattern = self._string("regex")
        if len(pattern.encode()) > PATTERN_MAX:
            raise bad_request(f"an expression has at most {PATTERN_MAX} bytes")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise bad_request(f"regex: {error}") from None
        self.expression = Expression(pattern) if pattern else None

    def _string(self, key: str) -> str:
        value = self._given.get(key, "")
        if not isinstance(value, str):
            raise bad_request(["not_string", key])
        return value

    def _object(self, key: str) -> Row:
        value = self._given.get(key, {})
        if not isinstance(value, dict):
            raise bad_request(f"{key} must be an object")
        return value

    @property
    def body_bytes(self) -> int:
        """How much of a body it looks at."""
        return LOOKED_AT if self._text or self._paths or self.expression is not None else 0

    def holds(self, seen: Seen, now_ms: int) -> bool:
        """All but the expression, which is asked for what passes here."""
        given, content = self._given, seen.content
        if "redelivered" in given and bool(seen.redelivered) != given["redelivered"]:
            return False
        if "expired" in given and bool(0 < seen.expiry <= now_ms) != given["expired"]:
            return False
        if content is None:
            return not set(given) - {"redelivered", "expired"}
        exchange, key = address(content.address)
        if given.get("exchange", exchange) != exchange or given.get("routing_key", key) != key:
            return False
        if (self._headers or self._properties or "reason" in given) and not self._holds_of_header(properties(content)):
            return False
        body = content.body[:LOOKED_AT]
        return self._has_text(body) and self._has_paths(body)

    def _holds_of_header(self, shown: Row) -> bool:
        headers = shown.get("headers", {})
        if any(not _equal(headers.get(name), value) for name, value in self._headers.items()):
            return False
        if any(not _equal(shown.get(name), value) for name, value in self._properties.items()):
            return False
        reason = self._given.get("reason")
        return reason is None or any(death["reason"] == reason for death in deaths(shown))

    def _has_text(self, body: bytes) -> bool:
        if not self._text:
            return True
        if self._given.get("case", True):
            return self._text.encode() in body
        return self._text.casefold() in body.decode("utf-8", "replace").casefold()

    def _has_paths(self, body: bytes) -> bool:
        if not self._paths:
            return True
        try:
            value = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            return False
        return all(_compare(*_at(value, steps), op, wanted) for steps, op, wanted in self._paths)


def _paths(given: Any) -> list[tuple[list[str | int], str, Any]]:
    if isinstance(given, dict):
        given = [{"path": path, "value": value} for path, value in given.items()]
    if not isinstance(given, list) or len(given) > PATHS_MAX:
        raise bad_request(f"json is an object of paths and values, or a list of at most {PATHS_MAX} conditions")
    found = []
    for one in given:
        if not isinstance(one, dict) or not isinstance(one.get("path"), str) or one.get("op", "=") not in OPS:
            raise bad_request(f"a condition on JSON has path, value, and op among {' '.join(OPS)}")
        found.append((_steps(one["path"]), one.get("op", "="), one.get("value")))
    return found


def _steps(path: str) -> list[str | int]:
    """`a.b[0]`, with or without `$.` before it."""
    path = path.removeprefix("$").removeprefix(".")
    return [int(index) if index else name for name, index in _STEP.findall(path)]


def _at(value: Any, steps: list[str | int]) -> tuple[bool, Any]:
    """Whether there is something at the path, and what."""
    for step in steps:
        is_key = isinstance(step, str) and isinstance(value, dict) and step in value
        is_index = isinstance(step, int) and isinstance(value, list) and step < len(value)
        if not is_key and not is_index:
            return False, None
        value = value[step]
    return True, value


def _equal(value: Any, wanted: Any) -> bool:
    """As JSON has it: true is not 1."""
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _compare(there: bool, value: Any, op: str, wanted: Any) -> bool:
    if op == "exists":
        return there == (wanted is not False)
    if op == "!=":
        return not (there and _equal(value, wanted))
    if not there:
        return False
    if op == "=":
        return _equal(value, wanted)
    if op == "contains":
        return wanted in value if isinstance(value, list) else isinstance(value, str) and str(wanted) in value
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (value, wanted))
    if not numbers and not (isinstance(value, str) and isinstance(wanted, str)):
        return False
    if op in (">", ">="):
        return bool(value > wanted or (op == ">=" and value == wanted))
    return bool(value < wanted or (op == "<=" and value == wanted))
