"""The gateway: how a daemon with several workers is managed as one broker. It runs where no traffic is, beside the workers.

    management API  ->  gateway_http  ->  gateway_routes: one worker, all of them, or what is put together here
    /metrics        ->  gateway_metrics
    rabbitpy-ctl    ->  gateway_control

It listens where the configuration has the broker listen, knows the workers by their sockets (`fleet.py`), and keeps nothing but
sessions and what counters have been. What must stay true: it answers while workers are down, and says which are.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from rabbitpy_broker.config import Config, ManagementConfig, split_address
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.management.api.server import (
    BODY_MAX_BYTES,
    SHUTDOWN_S,
    http_logger,
    listen,
    server_tls,
    tell_policies,
)
from rabbitpy_broker.management.control import Request
from rabbitpy_broker.management.managed import Listener
from rabbitpy_broker.net.listener import ServerTls
from rabbitpy_broker.workers.fleet import Fleet
from rabbitpy_broker.workers.gateway_control import GatewayControl
from rabbitpy_broker.workers.gateway_front import Front
from rabbitpy_broker.workers.gateway_http import GatewayServer
from rabbitpy_broker.workers.gateway_metrics import GatewayMetrics


class Gateway:
    """Listening, once made by `start_gateway`. `management` are the API's addresses, `metrics` that of /metrics, "" without."""

    def __init__(self, fleet: Fleet, config: Config, log: Any) -> None:
        self.metrics = ""
        self._config = config
        self._log = log
        self._front = Front(fleet, config, log)
        self._tls: ServerTls | None = None
        self._control = GatewayControl(self._front, self.reload_tls, log)
        self._cleanup = AsyncExitStack()

    @property
    def management(self) -> list[str]:
        return [one.address for one in self._front.listeners if one.protocol in ("http", "https")]

    async def start(self) -> None:
        """Raises ConfigError or StartError, and then listens nowhere."""
        try:
            self._cleanup.push_async_callback(self._front.close)
            await self._start_metrics()
            await self._start_management()
            await self._control.start(self._config.node.data_path(), self._config.node.control_socket)
            self._cleanup.push_async_callback(self._control.stop)
        except BaseException:
            await self._cleanup.aclose()
            raise

    async def stop(self) -> None:
        await self._cleanup.aclose()

    async def import_definitions(self, definitions: dict[str, Any]) -> str:
        """What a definitions file holds, for all workers; returns what was done. Raises AdminError."""
        return str(await self._control.call(Request("import_definitions", [definitions])))

    async def _start_metrics(self) -> None:
        if not self._config.net.metrics_listen:
            return
        host, port = split_address(self._config.net.metrics_listen)
        metrics = GatewayMetrics(self._front)
        bound = await metrics.start(host, port)
        self._cleanup.push_async_callback(metrics.stop)
        listener = Listener("http/prometheus", host, bound)
        self.metrics = listener.address
        self._front.listeners.append(listener)

    async def _start_management(self) -> None:
        """A place that nobody has asked for, and that is taken, is no reason not to start."""
        config = self._config
        if not config.net.management_listen:
            return
        server = GatewayServer(self._front)
        app = web.Application(client_max_size=BODY_MAX_BYTES)
        app.router.add_route("*", "/{path:(?s:.*)}", server.handle)
        tell_policies(app, config)
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S, logger=http_logger()
        )
        await runner.setup()
        self._tls = server_tls(config)
        try:
            self._front.listeners += await listen(config, runner, self._tls)
        except StartError as error:
            await runner.cleanup()
            if config.net.management_listen != "auto" or config.management != ManagementConfig():
                raise
            self._log.warning("no management API", reason=str(error))
            return
        self._cleanup.push_async_callback(runner.cleanup)
        self._cleanup.push_async_callback(self._front.close)  # first: streams have no end of their own

    def reload_tls(self) -> bool:
        """Reads the gateway's certificates again; False without any. Raises ConfigError; then those that were there stay."""
        if self._tls is not None:
            self._tls.reload()
        return self._tls is not None


async def start_gateway(fleet: Fleet, config: Config, log: Any) -> Gateway:
    """A gateway that listens on the running loop. Raises ConfigError or StartError."""
    gateway = Gateway(fleet, config, log)
    await gateway.start()
    return gateway
