"""The history of the node and of its vhosts: ten minutes by the second, a day by the minute, kept over restarts in one file.

A row has the time, what lengths and levels were then, and how much counters had grown since the row before: so a restart, after
which counters begin at 0, is only a gap. A row of the day is made of the last minute's.

    file: MAGIC | crc32 of the rest, 4 bytes, little endian | zlib of MessagePack: {scope: [names, fine rows, coarse rows]}

What must stay true: a file that is not whole is no reason not to start, it begins anew; there are never more than VHOSTS_MAX
vhosts with a history, and never more rows than FINE_ROWS and COARSE_ROWS.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import time
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rabbitpy_broker.management.api.errors import bad_request, not_found
from rabbitpy_broker.management.api.rates import LENGTHS, NODE, QUEUE, VHOST, WHOLE, Series, Values
from rabbitpy_broker.management.api.request import Request, Row
from rabbitpy_broker.management.api.state import Api, Kept
from rabbitpy_broker.slices import in_slices

FILE: Final = "history"
MAGIC: Final = b"rabbitpy-history 1\n"
FINE_S: Final = 1
COARSE_S: Final = 60
FINE_ROWS: Final = 600
COARSE_ROWS: Final = 1_440
VHOSTS_MAX: Final = 32
CLOCK_BACK_MS: Final = 60_000
POINTS_MAX: Final = 2_000
LEVELS: Final = frozenset((*LENGTHS, *NODE))  # what is no counter
NODE_SCOPE: Final = "node"
QUEUE_STEP_S: Final = 5


class Rows:
    """Rows of one width, the oldest dropped when there are too many. The first column is the time in ms since 1970."""

    def __init__(self, width: int, rows_max: int) -> None:
        self.width = width + 1
        self.times = array("q")
        self.values = array("q")
        self._max = rows_max

    def add(self, at_ms: int, row: list[int]) -> None:
        self.times.append(at_ms)
        self.values.extend(row)
        spare = len(self.times) - self._max
        if spare > self._max // 10:  # some at a time: the rest is moved
            del self.times[:spare]
            del self.values[: spare * (self.width - 1)]

    def packed(self) -> list[bytes]:
        return [_swapped(self.times), _swapped(self.values)]

    def unpack(self, packed: Any) -> None:
        """Raises ValueError for what is no rows of this width."""
        times, values = (_read(part) for part in packed)
        if len(values) != len(times) * (self.width - 1) or list(times) != sorted(times):
            raise ValueError("no rows")
        self.times, self.values = times[-self._max :], values[-self._max * (self.width - 1) :]


def _swapped(numbers: array[int]) -> bytes:
    """Little endian on any machine."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _read(part: Any) -> array[int]:
    numbers = array("q")
    numbers.frombytes(part)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class Scope:
    """The history of the node, or of one vhost."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.fine = Rows(len(names), FINE_ROWS)
        self.coarse = Rows(len(names), COARSE_ROWS)
        self._levels = [name in LEVELS for name in names]
        self._before: Values | None = None
        self._minute: list[int] = [0] * len(names)
        self._minute_ends = 0

    def add(self, at_ms: int, values: Values) -> None:
        """What the counters and levels are now. A clock that has been set back a little makes a gap, by more a new beginning."""
        if self.fine.times and at_ms <= self.fine.times[-1]:
            if at_ms > self.fine.times[-1] - CLOCK_BACK_MS:
                return
            self.fine, self.coarse = Rows(len(self.names), FINE_ROWS), Rows(len(self.names), COARSE_ROWS)
        before = self._before or values
        self._before = values
        row = [
            value if level else max(value - was, 0) for value, was, level in zip(values, before, self._levels, strict=True)
        ]
        self.fine.add(at_ms, row)
        minute = [now if level else kept + now for kept, now, level in zip(self._minute, row, self._levels, strict=True)]
        self._minute = minute
        if not self._minute_ends:
            self._minute_ends = at_ms + COARSE_S * 1000
        if at_ms >= self._minute_ends:
            self.coarse.add(at_ms, minute)
            self._minute = [0] * len(self.names)
            self._minute_ends = at_ms + COARSE_S * 1000

    def filling(self, times: list[int], step_s: int, series: dict[str, list[float | None]]) -> Iterator[None]:
        """Fills `series`, a point at a time: levels are those at the end of a step, counters are per second."""
        covered = bool(self.fine.times) and (times[0] - step_s - FINE_S) * 1000 >= self.fine.times[0]
        rows = self.fine if step_s < COARSE_S or covered else self.coarse
        width = len(self.names)
        for place, end_s in enumerate(times):
            first = bisect_right(rows.times, (end_s - step_s) * 1000)
            last = bisect_right(rows.times, end_s * 1000)
            if first < last:
                seconds = self._seconds(rows, first, last)
                for column, name in enumerate(self.names):
                    found = rows.values[first * width + column : last * width : width]
                    series[name][place] = found[-1] if self._levels[column] else round(sum(found) / seconds, 3)
            yield

    def _seconds(self, rows: Rows, first: int, last: int) -> float:
        """The time in which the rows from `first` to before `last` grew."""
        usual = FINE_S if rows is self.fine else COARSE_S
        if first == 0:
            return float(max(last - first, 1) * usual)
        gap = (rows.times[last - 1] - rows.times[first - 1]) / 1000
        # After a restart the first row has grown since that, and not since the row before it.
        return max(min(gap, (last - first) * usual * 6.0), 0.1)


class History(Kept):
    """Of one broker. `path` is its file."""

    def __init__(self, path: Path, log: Any) -> None:
        self._path = path
        self._log = log
        self._scopes: dict[str, Scope] = {}

    def load(self) -> None:
        """Takes what an earlier run has left; what is damaged is left aside. Reads the file."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warning("history not read", path=str(self._path), error=str(error))
            return
        try:
            self._take(content)
        except (ValueError, TypeError, struct.error, zlib.error, msgspec.DecodeError) as error:
            self._scopes.clear()
            self._log.warning("history is damaged and begins anew", path=str(self._path), error=str(error))

    def _take(self, content: bytes) -> None:
        if not content.startswith(MAGIC):
            raise ValueError("no history")
        (checksum,) = struct.unpack_from("<I", content, len(MAGIC))
        packed = content[len(MAGIC) + 4 :]
        if zlib.crc32(packed) != checksum:
            raise ValueError("the checksum is wrong")
        found = msgspec.msgpack.decode(zlib.decompress(packed))
        for name, (names, fine, coarse) in found.items():
            scope = self._scope(name)
            if scope is not None and tuple(names) == scope.names:  # else it is of another version, which counts otherwise
                scope.fine.unpack(fine)
                scope.coarse.unpack(coarse)

    def _scope(self, name: str) -> Scope | None:
        """That of the node, or of `vhost:NAME`; None for a vhost that is one too many."""
        scope = self._scopes.get(name)
        if scope is None and len(self._scopes) <= VHOSTS_MAX:
            scope = self._scopes[name] = Scope(WHOLE if name == NODE_SCOPE else VHOST)
        return scope

    def add(self, whole: Values, vhosts: Mapping[str, Values]) -> None:
        """What the node and its vhosts have counted; vhosts that are gone are forgotten."""
        now = int(time.time() * 1000)
        node = self._scope(NODE_SCOPE)
        assert node is not None, "it is the first one"
        node.add(now, whole)
        for name, values in vhosts.items():
            scope = self._scope(f"vhost:{name}")
            if scope is not None:
                scope.add(now, values)
        if len(self._scopes) > len(vhosts) + 1:
            kept = {NODE_SCOPE, *(f"vhost:{name}" for name in vhosts)}
            self._scopes = {name: scope for name, scope in self._scopes.items() if name in kept}

    def scope(self, name: str) -> Scope | None:
        return self._scopes.get(name)

    def pack(self) -> dict[str, Any]:
        """What `save` writes: copies, so that a thread may have them."""
        return {name: [scope.names, scope.fine.packed(), scope.coarse.packed()] for name, scope in self._scopes.items()}

    def save(self, packed: dict[str, Any]) -> None:
        """Writes the file, unless the broker is in memory: it has no folder. Called in a thread; a disk that does not take it is
        no harm.
        """
        if not self._path.parent.exists():
            return
        content = zlib.compress(msgspec.msgpack.encode(packed), 1)
        beside = self._path.with_suffix(".new")
        try:
            beside.touch(mode=0o600)
            beside.write_bytes(MAGIC + struct.pack("<I", zlib.crc32(content)) + content)
            beside.replace(self._path)
        except OSError as error:
            self._log.warning("history not written", path=str(self._path), error=str(error))
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


# -- /history --------------------------------------------------------------------------------------------------------


async def of_node(api: Api, request: Request) -> Row:
    return await _answer(api, request, NODE_SCOPE, WHOLE)


async def of_vhost(api: Api, request: Request) -> Row:
    name = request.names["vhost"]
    if name not in api.vhosts:
        raise not_found()
    return await _answer(api, request, f"vhost:{name}", VHOST)


async def _answer(api: Api, request: Request, name: str, names: tuple[str, ...]) -> Row:
    times, step_s = _points(request, FINE_S)
    series: dict[str, list[float | None]] = {column: [None] * len(times) for column in names}
    scope = api.kept.scope(name)
    if scope is not None:
        await in_slices(scope.filling(times, step_s, series))
    return {"scope": name, "step": step_s, "times": times, "series": series}


async def of_queue(api: Api, request: Request) -> Row:
    """From when the sampler first looked at it, ten minutes at most."""
    vhost = api.vhosts.get(request.names["vhost"])
    queue = vhost.queues.get(request.names["queue"]) if vhost is not None else None
    if queue is None:
        raise not_found()
    times, step_s = _points(request, QUEUE_STEP_S)
    series: dict[str, list[float | None]] = {column: [None] * len(times) for column in QUEUE}
    found = api.sampler.of(queue)
    if found is not None:
        await in_slices(_filling(found, times, step_s, series))
    return {"scope": f"queue:{queue.vhost}/{queue.name}", "step": step_s, "times": times, "series": series}


def _filling(found: Series, times: list[int], step_s: int, series: dict[str, list[float | None]]) -> Iterator[None]:
    for place, end_s in enumerate(times):
        if found.begun <= end_s <= found.checked + step_s:
            for column, name in enumerate(QUEUE):
                now = found.at(end_s, column)
                series[name][place] = now if name in LEVELS else round((now - found.at(end_s - step_s, column)) / step_s, 3)
        yield


def _points(request: Request, step_default: int) -> tuple[list[int], int]:
    """The ends of the steps, and how long each is, in seconds. Raises ApiError 400."""
    since_s, until_s, step_s = _span(request, step_default)
    return list(range(since_s + step_s, until_s + 1, step_s)) or [until_s], step_s


def _span(request: Request, step_default: int) -> tuple[int, int, int]:
    """From when, to when, and how far apart, in seconds. Raises ApiError 400."""
    now = int(time.time())
    until_s = _number(request, "to", now)
    since_s = _number(request, "from", until_s - 600)
    step_s = _number(request, "step", step_default)
    if step_s < 1 or since_s >= until_s or until_s - since_s > POINTS_MAX * step_s:
        raise bad_request(f"from must be before to, step at least 1, and there are at most {POINTS_MAX} steps")
    return since_s, until_s, step_s


def _number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        raise bad_request(f"{name} must be a number of seconds")
    return int(text)
