"""The HTTP side of the broker: metrics for Prometheus, and health for whoever supervises the process.

    GET /metrics              sums over all queues, channels and connections
    GET /metrics/per-object   one series for each of them
    GET /metrics/detailed     ?family=queue_coarse_metrics&family=...[&vhost=...]: chosen families, per object
    GET /health/live          200 as long as the loop answers
    GET /health/ready         200 while clients are taken, else 503

A scrape is a walk over all that there is, in slices (`slices.py`): the loop is never held, and no more text is made than
the scraper takes. One that takes nothing for PATIENCE_S is left alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from rabbitpy_broker import metrics
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.metrics import BrokerStats
from rabbitpy_broker.slices import slices
from rabbitpy_broker.workers.fleet import listen_on

PATIENCE_S: Final = 60.0

# Called with True when single objects are wanted, with False when the sums are enough.
StatsProvider = Callable[[bool], Awaitable[BrokerStats]]


class HttpServer:
    """The running server; `port` is the bound one. Made by `start_http`."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self.port = port
        self._runner = runner

    async def stop(self) -> None:
        """Closes the port; a request that is being answered gets a moment to be finished."""
        await self._runner.cleanup()


async def start_http(
    host: str, port: int, stats_provider: StatsProvider, is_ready: Callable[[], bool]
) -> HttpServer:
    """Serves on the running loop; port 0 picks a free one. Raises StartError when the address cannot be had."""
    runner = await _runner(stats_provider, is_ready)
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        # Event loops wrap the system's text in one of their own; a name that does not resolve has none of the system's.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise StartError(f"cannot listen for HTTP on {host}:{port}: {reason}") from None
    return HttpServer(runner, runner.addresses[0][1])


async def start_http_on(path: Path, stats_provider: StatsProvider, is_ready: Callable[[], bool]) -> HttpServer:
    """The same on a Unix socket; the port is 0. Raises StartError."""
    runner = await _runner(stats_provider, is_ready)
    try:
        await web.SockSite(runner, listen_on(path)).start()
    except OSError as error:
        await runner.cleanup()
        raise StartError(f"cannot listen for HTTP on {path}: {error.strerror}") from None
    return HttpServer(runner, 0)


async def _runner(stats_provider: StatsProvider, is_ready: Callable[[], bool]) -> web.AppRunner:
    routes = _Routes(stats_provider, is_ready)
    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", routes.summed),
            web.get("/metrics/per-object", routes.per_object),
            web.get("/metrics/detailed", routes.detailed),
            web.get("/health/live", routes.live),
            web.get("/health/ready", routes.ready),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    return runner


class _Routes:
    def __init__(self, stats_provider: StatsProvider, is_ready: Callable[[], bool]) -> None:
        self._stats = stats_provider
        self._is_ready = is_ready

    async def summed(self, request: web.Request) -> web.StreamResponse:
        return await _metrics(request, metrics.SummedView(await self._stats(False)))

    async def per_object(self, request: web.Request) -> web.StreamResponse:
        return await _metrics(request, metrics.PerObjectView(await self._stats(True)))

    async def detailed(self, request: web.Request) -> web.StreamResponse:
        families = request.query.getall("family", [])
        unknown = sorted(set(families) - metrics.FAMILIES)
        if unknown:
            return web.json_response(
                {"error": f"unknown family {unknown[0]}", "families": sorted(metrics.FAMILIES)}, status=400
            )
        vhosts = request.query.getall("vhost", [])
        return await _metrics(request, metrics.DetailedView(await self._stats(True), families, vhosts))

    async def live(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        if self._is_ready():
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "unavailable"}, status=503)


async def _metrics(request: web.Request, view: metrics.View) -> web.StreamResponse:
    text, content_type = metrics.render(view, request.headers.get("Accept", ""))
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    try:
        async for part in slices(text):
            async with asyncio.timeout(PATIENCE_S):
                await response.write("".join(part).encode())  # returns when there is room for more
    except (ConnectionError, TimeoutError):  # the scraper has gone, or takes nothing
        if request.transport is not None:
            request.transport.abort()
    return response
