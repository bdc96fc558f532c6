"""The engines that the suite of the contract runs on: how a node connects to each, and how trouble is made.

Each rig stands for one engine's servers; what is made in a test has a name of its own, because the servers outlive it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from cluster.breaking_proxy import BreakingProxy
from perf.engines import postgres
from perf.engines.postgres import PostgresServers
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.memory_engine import MemoryServers, Outcome
from rabbitpy_broker.cluster.postgres.engine import PostgresEngine


class EngineRig(ABC):
    """An engine's servers. `conditional`: it refuses an append that would not count; else it appends it, and it is misplaced."""

    conditional: bool

    def __init__(self) -> None:
        self._connected: list[Engine] = []

    async def connect(self, node: str = "a") -> Engine:
        """A started engine, which is stopped at the end of the test."""
        engine = self._engine(node)
        self._connected.append(engine)
        await engine.start()
        return engine

    async def disconnect(self) -> None:
        while self._connected:
            await self._connected.pop().stop()

    @abstractmethod
    def _engine(self, node: str) -> Engine: ...

    @abstractmethod
    async def connect_breakable(self) -> Engine:
        """As `connect`, for `break_append`."""

    @abstractmethod
    def break_append(self, block: bytes) -> None:
        """The outcome of the next append of this block is unknown: it is done, and the connection is lost before the answer."""

    @abstractmethod
    def kill_leader(self) -> None:
        """Kill -9 to the server that takes writes; returns when another takes them."""

    @abstractmethod
    def close(self) -> None:
        """Stops the servers."""


class MemoryRig(EngineRig):
    def __init__(self, *, conditional: bool) -> None:
        super().__init__()
        self.conditional = conditional
        self._servers = MemoryServers(conditional=conditional)

    def _engine(self, node: str) -> Engine:
        return self._servers.connect(node)

    async def connect_breakable(self) -> Engine:
        return await self.connect()

    def break_append(self, block: bytes) -> None:
        self._servers.plan("append", Outcome.DONE_UNTOLD)

    def kill_leader(self) -> None:
        """The servers in memory are one that never dies."""

    def close(self) -> None:
        pass


def require(there: bool, what: str) -> None:
    """Skips the test, or fails it under RABBITPY_REQUIRE_CLIENTS, when a server is not installed."""
    if not there:
        missing = pytest.fail if os.environ.get("RABBITPY_REQUIRE_CLIENTS", "0") not in ("", "0") else pytest.skip
        missing(f"needs {what}, which this machine does not have")


class PostgresRig(EngineRig):
    """Three servers, each with a proxy before it for engines that can be broken."""

    conditional = True

    def __init__(self) -> None:
        super().__init__()
        require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
        self._folder = Path(tempfile.mkdtemp(prefix="rabbitpy-postgres-"))
        self.servers = PostgresServers(self._folder)
        self._proxies: list[BreakingProxy] = []
        try:
            self.servers.start()
        except BaseException:
            self.close()
            raise

    def _engine(self, node: str) -> Engine:
        return PostgresEngine(self.servers.url)

    async def connect_breakable(self) -> Engine:
        self._proxies = [BreakingProxy("127.0.0.1", server.port) for server in self.servers.servers]
        url = self.servers.url
        for proxy, server in zip(self._proxies, self.servers.servers, strict=True):
            await proxy.start()
            url = url.replace(f":{server.port}", f":{proxy.port}")
        engine = PostgresEngine(url)
        self._connected.append(engine)
        await engine.start()
        return engine

    async def disconnect(self) -> None:
        await super().disconnect()
        await asyncio.gather(*(proxy.stop() for proxy in self._proxies))
        self._proxies.clear()

    def break_append(self, block: bytes) -> None:
        for proxy in self._proxies:
            proxy.trap = block

    def kill_leader(self) -> None:
        self.servers.primary.kill()
        self.servers.promote()

    def close(self) -> None:
        self.servers.stop()
        shutil.rmtree(self._folder)
