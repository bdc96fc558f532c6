"""/metrics and /health of the whole daemon, of the texts that the workers' own ports give.

    rabbitmq_queue_messages{queue="q",vhost="v"} 5    of one object: goes on as it is, since no object belongs to two workers
    rabbitmq_connections 3                            of the node: added up
    rabbitmq_disk_space_available_bytes 1e9           the same for all workers (`SAME`): the largest
    rabbitmq_erlang_uptime_seconds{worker="0"} 12     a sum would mean nothing (`LABELLED`): one for each worker

What must stay true: a counter of the node never falls while the daemon lives. What a worker that has ended had counted, or a
vhost that has moved, is therefore kept and added, as far as somebody has seen it; gauges are gone with them.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.management.api.asking import NoAnswer, Reply
from rabbitpy_broker.workers.fleet import Member
from rabbitpy_broker.workers.gateway_front import Front

SAME: Final = frozenset((
    "rabbitmq_alarms_file_descriptor_limit", "rabbitmq_alarms_free_disk_space_watermark", "rabbitmq_alarms_memory_used_watermark",
    "rabbitmq_build_info", "rabbitmq_disk_space_available_bytes", "rabbitmq_disk_space_available_limit_bytes",
    "rabbitmq_identity_info", "rabbitmq_stream_consumer_max_offset_lag", "rabbitpy_build_info",
))  # fmt: skip
LABELLED: Final = frozenset(("process_start_time_seconds", "rabbitmq_erlang_uptime_seconds"))
PATIENCE_S: Final = 60.0
CHUNK_CHARACTERS: Final = 262_144
ENDING: Final = "# EOF\n"  # of OpenMetrics
OF_AN_OBJECT: Final = 'vhost="'

Counts = dict[str, float]


class Family:
    """All that workers say of one name: its first lines, then its samples."""

    def __init__(self, head: list[str], name: str, kind: str) -> None:
        self.head = head
        self.name = name.removesuffix("_total")
        self.kind = kind
        self.objects: list[str] = []
        self.values: dict[str, float] = {}

    def add(self, number: int, line: str, counts: Counts) -> None:
        """One sample of a worker; counters of the node are noted in `counts`."""
        if OF_AN_OBJECT in line:
            self.objects.append(line)
            return
        series, _, text = line.rpartition(" ")
        value = float(text)
        if self.name in LABELLED:
            self.values[_with_worker(series, number)] = value
        elif self.name in SAME:
            self.values[series] = max(value, self.values.get(series, -math.inf))
        else:
            self.values[series] = value + self.values.get(series, 0.0)
            if self.kind == "counter":
                counts[series] = value

    def lines(self) -> Iterator[str]:
        yield from self.head
        for series, value in self.values.items():
            yield f"{series} {_text(value)}"
        yield from self.objects


def _with_worker(series: str, number: int) -> str:
    label = f'worker="{number}"'
    return f"{series[:-1]},{label}}}" if series.endswith("}") else f"{series}{{{label}}}"


def _text(value: float) -> str:
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(value)


class Totals:
    """What is not counted any more by those who have counted it, and what workers count: each by series, of the last scrape."""

    def __init__(self) -> None:
        self._ended: Counts = {}
        self._last: dict[int, tuple[int, Counts]] = {}  # by worker, with its pid

    def see(self, member: Member, counts: Counts) -> None:
        """A worker's counters as they are. Those that have fallen are of a new process, or lack a vhost that has moved."""
        pid, last = self._last.get(member.number, (member.pid, {}))
        for series, before in last.items():
            lost = before if pid != member.pid else before - counts.get(series, before)
            if lost > 0:
                self._ended[series] = self._ended.get(series, 0.0) + lost
        self._last[member.number] = member.pid, counts if pid != member.pid else {**last, **counts}

    def missing(self, seen: Iterable[int]) -> Counts:
        """What is to be added to the counters of the workers of this scrape."""
        found = dict(self._ended)
        for number, (_, counts) in self._last.items():
            if number not in seen:
                for series, value in counts.items():
                    found[series] = found.get(series, 0.0) + value
        return found


def merged(texts: Sequence[tuple[Member, str]], totals: Totals) -> dict[str, Family]:
    """The families of all texts by name, in the order of the first that has them. Called in a thread."""
    families: dict[str, Family] = {}
    for member, text in texts:
        counts: Counts = {}
        _read(member.number, text, families, counts)
        totals.see(member, counts)
    missing = totals.missing({member.number for member, _ in texts})
    for family in families.values():
        if family.kind == "counter":
            for series in family.values:
                family.values[series] += missing.get(series, 0.0)
    return families


def _read(number: int, text: str, families: dict[str, Family], counts: Counts) -> None:
    family: Family | None = None
    head: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split(" ")[2:4]
            family = families.get(name)
            if family is None:
                family = families[name] = Family([*head, line], name, kind)
            head = []
        elif line.startswith("#"):
            head.append(line)
        elif family is not None and line:
            family.add(number, line, counts)


class GatewayMetrics:
    """The port of the metrics, listening once `start` has returned."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._totals: dict[str, Totals] = {}  # by path
        self._runner: web.AppRunner | None = None
        self._merging = asyncio.Lock()

    async def start(self, host: str, port: int) -> int:
        """Returns the bound port. Raises StartError."""
        app = web.Application()
        for path in ("/metrics", "/metrics/per-object", "/metrics/detailed"):
            app.router.add_get(path, self._metrics)
        app.router.add_get("/health/live", self._live)
        app.router.add_get("/health/ready", self._ready)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise StartError(f"cannot listen for HTTP on {host}:{port}: {reason}") from None
        self._runner = runner
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _live(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        down = [member.number for member in self._front.fleet.members() if not member.ready]
        if down:
            return web.json_response({"status": "unavailable", "workers": down}, status=503)
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        members = [member for member in self._front.fleet.members() if member.ready]
        replies = await asyncio.gather(*(self._ask(member, request) for member in members))
        found = [(member, reply) for member, reply in zip(members, replies, strict=True) if reply is not None]
        refused = next((reply for _, reply in found if reply.status != 200), None)
        if refused is not None:
            return web.Response(status=refused.status, body=refused.body, headers=_content_type(refused))
        if not found:
            return web.json_response({"status": "unavailable"}, status=503)
        texts = [(member, reply.body.decode()) for member, reply in found]
        totals = self._totals.setdefault(request.path, Totals())
        async with self._merging:
            families = await asyncio.to_thread(merged, texts, totals)
        ending = ENDING if texts[0][1].endswith(ENDING) else ""
        response = web.StreamResponse(headers=_content_type(found[0][1]))
        await response.prepare(request)
        if request.method != "HEAD":
            await _write(request, response, families, ending, self._workers(request) if "detailed" not in request.path else [])
        return response

    async def _ask(self, member: Member, request: web.Request) -> Reply | None:
        headers = {"Accept": request.headers["Accept"]} if "Accept" in request.headers else {}
        try:
            return await self._front.client(member).ask("GET", request.raw_path, headers, metrics=True, within_s=PATIENCE_S)
        except NoAnswer as error:
            self._front.log.warning("worker not asked", worker=member.number, reason=str(error))
            return None

    def _workers(self, request: web.Request) -> list[str]:
        """What only a gateway knows."""
        placed = list(self._front.fleet.placed().values())
        members = self._front.fleet.members()
        return [
            "# HELP rabbitpy_worker_up Whether the worker runs",
            "# TYPE rabbitpy_worker_up gauge",
            *(f'rabbitpy_worker_up{{worker="{each.number}"}} {float(each.ready)}' for each in members),
            "# HELP rabbitpy_worker_vhosts Vhosts of the worker",
            "# TYPE rabbitpy_worker_vhosts gauge",
            *(f'rabbitpy_worker_vhosts{{worker="{each.number}"}} {float(placed.count(each.number))}' for each in members),
        ]


def _content_type(reply: Reply) -> Mapping[str, str]:
    return {"Content-Type": reply.headers.get("Content-Type", "text/plain")}


async def _write(
    request: web.Request, response: web.StreamResponse, families: dict[str, Family], ending: str, more: list[str]
) -> None:
    """Leaves a scraper alone that takes nothing for PATIENCE_S."""
    lines: list[str] = []
    size = 0
    try:
        for line in _all_lines(families, more):
            lines.append(line)
            size += len(line)
            if size >= CHUNK_CHARACTERS:
                async with asyncio.timeout(PATIENCE_S):
                    await response.write(("\n".join(lines) + "\n").encode())
                lines, size = [], 0
        await response.write(("\n".join(lines) + "\n" + ending).encode())
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()


def _all_lines(families: Mapping[str, Family], more: list[str]) -> Iterator[Any]:
    for family in families.values():
        yield from family.lines()
    yield from more
