"""An engine: logs, objects and a registry in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rabbitpy_broker.cluster.log import ObjectStore, ReplicatedLog
from rabbitpy_broker.cluster.registry import Registry


class Engine(ABC):
    """One user's way to an engine. `start` before anything else, `stop` at the end."""

    registry: Registry
    objects: ObjectStore
    max_block: int  # bytes of the largest block that a log takes

    @abstractmethod
    async def start(self) -> None:
        """Connects, makes what the engine needs, and looks at its settings.

        Raises `StartError` with one line that says what to change, if a setting makes the guarantees untrue; `Unavailable`.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Ends the connections. What is under way has an unknown outcome."""

    @abstractmethod
    async def create_log(self, name: str) -> None:
        """Makes an empty log, or does nothing if there is one of this name. Raises `Unavailable`, and `OutcomeUnknown`."""

    @abstractmethod
    async def delete_log(self, name: str) -> None:
        """Removes a log and its entries, if there is one of this name. One that is made later begins at 0. As `create_log`."""

    @abstractmethod
    async def logs(self) -> list[str]:
        """The names of all logs. Raises `Unavailable`."""

    @abstractmethod
    def log(self, name: str) -> ReplicatedLog:
        """A handle of the log of this name; its methods raise `NoSuchLog` if there is none."""
