"""What all nodes of a cluster have alike, by name: in the registry, changed by compare-and-set; each node has a copy.

    a node changes one --> its own definitions --> put PREFIX + NAME, if it has still the version that this node knows
                                               --> all others see it, and take it into their definitions

Each node goes on with its copy when the engine is away, and starts with it. What one node deletes leaves a mark in the
registry, so that a node which was away does not bring it back; what the registry has never seen is added to it.

What must stay true: when two nodes change the same at once, all have in the end what one of them has made of it, and the other is
told; nothing is told to the registry before everything in it has been seen.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, unquote

from rabbitpy_broker.cluster.log import ClusterError, OutcomeUnknown
from rabbitpy_broker.cluster.registry import Change, Conflict, Registry
from rabbitpy_broker.errors import BrokerError

LOOK_S: Final = 1.0
SETTLE_S: Final = 10.0
T = TypeVar("T")


class NotShared(BrokerError):
    """A change has not reached the other nodes; the text says what becomes of it."""


class SharedTable(ABC, Generic[T]):
    """`prefix` is that of its names in the registry, `deleted` the value of what was deleted; values are compared.

    `commit` makes changes of the definitions durable.
    """

    prefix: str
    deleted: T

    def __init__(self, registry: Registry, commit: Callable[[], None], log: Any) -> None:
        self.is_known = False  # all that the registry has was seen
        self._registry = registry
        self._commit = commit
        self.log = log
        self._known: dict[str, tuple[T, int]] = {}  # what the registry has, and its version
        self._lost: set[str] = set()  # of which another node's change has won
        self._lock = asyncio.Lock()

    @abstractmethod
    def values(self) -> dict[str, T]:
        """All that this node has."""

    @abstractmethod
    def value(self, name: str) -> T:
        """What this node has; `deleted` if it has none."""

    @abstractmethod
    def take(self, name: str, value: T) -> None:
        """Has this node have it, or, where it is `deleted`, have it no more."""

    @abstractmethod
    def encoded(self, value: T) -> bytes:
        """As the registry keeps it."""

    @abstractmethod
    def decoded(self, value: bytes) -> T:
        """What `encoded` has made, perhaps by another version."""

    @abstractmethod
    def say_not_shared(self, error: str) -> None:
        """To the log: nothing is shared, for this reason, until it is over."""

    @abstractmethod
    def say_lost(self, name: str) -> None:
        """To the log: two nodes have changed it at once."""

    async def run(self) -> None:
        """Until it is cancelled."""
        watch = self._registry.watch(self.prefix)
        told = ""
        try:
            while True:
                try:
                    changes = await watch.next(LOOK_S if self.is_known else 0.0)
                    async with self._lock:
                        for change in changes:
                            self._see(change)
                        if changes:
                            self._commit()
                        self.is_known = True
                        await self._tell()
                    told = ""
                except BrokerError as error:
                    if str(error) != told:
                        told = str(error)
                        self.say_not_shared(told)
                    await asyncio.sleep(LOOK_S)
        finally:
            await watch.close()

    async def settle(self) -> None:
        """Returns when the registry has what this node has. Raises NotShared."""
        if not self._untold():
            return
        try:
            async with asyncio.timeout(SETTLE_S), self._lock:
                self._lost.clear()
                if self.is_known:
                    await self._tell()
                self._commit()
        except (ClusterError, TimeoutError) as error:
            why = error or "no answer"
            raise NotShared(f"changed on this node; other nodes follow when the engine answers ({why})") from None
        if not self.is_known:
            raise NotShared("changed on this node; other nodes follow when the engine answers")
        if self._lost:
            names = ", ".join(f"'{name}'" for name in sorted(self._lost))
            raise NotShared(f"another node has changed {names} at the same time, and that is what counts: look, and try again")

    def _untold(self) -> list[tuple[str, T]]:
        """What is not as the registry has it."""
        found = []
        here = self.values()
        for name in {*self._known, *here}:
            value = here.get(name, self.deleted)
            if name not in self._known or self._known[name][0] != value:
                found.append((name, value))
        return found

    async def _tell(self) -> None:
        """Raises ClusterError. Assumes: the lock is held."""
        for name, kept in self._untold():
            key, value = self.prefix + quote(name, safe=""), self.encoded(kept)
            before = self._known.get(name)
            try:
                version = await self._registry.put(key, value, before[1] if before is not None else 0)
            except (Conflict, OutcomeUnknown):
                found = await self._registry.get(key)
                if found is None or found.value != value:
                    if found is not None:
                        self._see(Change(key, found.value, found.version))
                    continue
                version = found.version
            self._known[name] = kept, version

    def _see(self, change: Change) -> None:
        """What the registry has of a name is what this node has from now on."""
        name = unquote(change.name.removeprefix(self.prefix))
        before = self._known.get(name)
        if before is not None and change.version <= before[1]:
            return
        now = self.deleted if change.value is None else self.decoded(change.value)
        here = self.value(name)
        if before is not None and here not in (before[0], now):
            self._lost.add(name)
            self.say_lost(name)
        self._known[name] = now, change.version
        if here != now:
            self.take(name, now)
