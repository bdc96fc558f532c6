"""What all nodes of a cluster have alike, by name: in the registry, changed by compare-and-set; each node has a copy.

    a node changes one --> its own definitions --> put PREFIX + NAME, if it has still the version that this node knows
                                               --> all others see it, and take it into their definitions

Each node goes on with its copy when the engine is away, and starts with it. What one node deletes leaves a mark in the
registry, so that a node which was away does not bring it back; what the registry has never seen is added to it.

Two nodes may change the same at once. Where a value has parts (`merged`), what each has changed of it is kept. Of one part that
both have changed, or of a value without parts, what the registry had first counts.

What must stay true: all have the same in the end, and whoever has made a change that does not count is told; nothing is told to
the registry before everything in it has been seen.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
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
        self.is_known = False  # all that the registry has was seen, and it has what this node has brought
        self._registry = registry
        self._commit = commit
        self.log = log
        self._known: dict[str, tuple[T, int]] = {}  # what the registry has, and its version
        self._losses: Counter[str] = Counter()  # how often another node's change of it has won
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

    def merged(self, before: T, here: T, there: T) -> tuple[T, bool]:
        """What is made of `before` when this node has made `here` of it and another `there`; and whether all of `here` counts."""
        return there, False

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
                        await self._tell()
                        self.is_known = True
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
        losses = {name: self._losses[name] for name in self._untold()}
        if not losses:
            return
        try:
            async with asyncio.timeout(SETTLE_S), self._lock:
                if self.is_known:
                    await self._tell()
                self._commit()
        except (ClusterError, TimeoutError) as error:
            why = error or "no answer"
            raise NotShared(f"changed on this node; other nodes follow when the engine answers ({why})") from None
        if not self.is_known:
            raise NotShared("changed on this node; other nodes follow when the engine answers")
        lost = [name for name, before in losses.items() if self._losses[name] != before]
        if lost:
            names = ", ".join(f"'{name}'" for name in sorted(lost))
            raise NotShared(f"another node has changed {names} at the same time, and that is what counts: look, and try again")

    def _untold(self) -> list[str]:
        """What is not as the registry has it."""
        here = self.values()
        return [name for name in {*self._known, *here} if self._is_untold(name, here.get(name, self.deleted))]

    def _is_untold(self, name: str, value: T) -> bool:
        return name not in self._known or self._known[name][0] != value

    async def _tell(self) -> None:
        """Raises ClusterError. Assumes: the lock is held."""
        for name in self._untold():
            while self._is_untold(name, self.value(name)):  # again, when another node has changed something else of it
                await self._put(name)

    async def _put(self, name: str) -> None:
        """Has the registry have it, or sees what the registry has. Raises ClusterError."""
        kept, before = self.value(name), self._known.get(name)
        key, value = self.prefix + quote(name, safe=""), self.encoded(kept)
        try:
            version = await self._registry.put(key, value, before[1] if before is not None else 0)
        except (Conflict, OutcomeUnknown):
            found = await self._registry.get(key)
            if found is None:
                self._known.pop(name, None)
                return
            if found.value != value:
                self._see(Change(key, found.value, found.version))
                self._commit()
                return
            version = found.version
        self._known[name] = kept, version

    def _see(self, change: Change) -> None:
        """What the registry has of a name is what this node has from now on, with what this node alone has changed of it."""
        name = unquote(change.name.removeprefix(self.prefix))
        known = self._known.get(name)
        if known is not None and change.version <= known[1]:
            return
        there = self.deleted if change.value is None else self.decoded(change.value)
        here, now = self.value(name), there
        before = known[0] if known is not None else self.deleted
        is_new_here = known is None and not self.is_known  # what a node has when it comes to a cluster gives way
        if here not in (before, there) and not is_new_here:
            now, counts = self.merged(before, here, there)
            if not counts:
                self._losses[name] += 1
                self.say_lost(name)
        self._known[name] = there, change.version
        if here != now:
            self.take(name, now)
