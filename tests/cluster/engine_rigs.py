"""The engines that the suite of the contract runs on: how a node connects to each, and how trouble is made.

Each rig stands for one engine's servers; what is made in a test has a name of its own, because the servers outlive it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.memory_engine import MemoryServers, Outcome


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
    async def break_next_append(self, engine: Engine) -> None:
        """The outcome of the engine's next append is unknown, because its connection is lost while it is under way."""

    @abstractmethod
    async def close(self) -> None:
        """Stops the servers."""


class MemoryRig(EngineRig):
    def __init__(self, *, conditional: bool) -> None:
        super().__init__()
        self.conditional = conditional
        self._servers = MemoryServers(conditional=conditional)

    def _engine(self, node: str) -> Engine:
        return self._servers.connect(node)

    async def break_next_append(self, engine: Engine) -> None:
        self._servers.plan("append", Outcome.DONE_UNTOLD)

    async def close(self) -> None:
        pass
