"""The contract of the registry: what all nodes must agree on and that is small. Who owns a vhost, definitions, who is alive.

It maps names to values of some KiB. Every change gives the name a new version, higher than any that any name had before, so
that a name that was deleted and made again never has a version twice. What every engine guarantees:

1. *One order.* Changes happen one after the other, and everybody sees them in that order.
2. *Durable before it returns*, as an append to a log is.
3. *Reads see what has returned*: `get` and `list`, called after a change anywhere has returned, show it or a later one. A
   `Watch` comes to show it in time.

Liveness is kept apart: a lease says that a node was alive a moment ago, by the engine's clock. It is for choosing when to act;
that only one acts is made sure by versions here and by terms in logs, never by a lease. A lease may be lost, or run out early,
when the engine changes its own leader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from rabbitpy_broker.cluster.log import ClusterError


class Conflict(ClusterError):
    """The name has another version than the one that was expected, so nothing was changed; `version` is its own, 0 if it is not
    there.
    """

    def __init__(self, name: str, version: int) -> None:
        super().__init__(f"{name} has version {version}, which was not expected")
        self.version = version


class Versioned(NamedTuple):
    """A value and the version that its last change gave it, from 1 on."""

    value: bytes
    version: int


class Change(NamedTuple):
    """A name has a new value, or was deleted (`value` is None, and `version` the last that it had)."""

    name: str
    value: bytes | None
    version: int


class Watch(ABC):
    """Shows the changes of all names with a prefix; made by `Registry.watch`, and closed by whoever made it."""

    @abstractmethod
    async def next(self, wait: float = 0) -> list[Change]:
        """What has changed since the last call, in the order of versions; the first call shows all that there is.

        Of several changes of a name only the last is shown, and a name that came and went in between may not be shown at all.
        It waits up to `wait` seconds for a change, then returns an empty list. Raises `Unavailable`; then it can be asked again
        and misses nothing.
        """

    @abstractmethod
    async def close(self) -> None:
        """Gives up what the engine holds for the watch."""


class Registry(ABC):
    """Small values by name, changed by compare-and-set, and the leases of nodes."""

    @abstractmethod
    async def get(self, name: str) -> Versioned | None:
        """The value of a name, or None. Raises `Unavailable`."""

    @abstractmethod
    async def list(self, prefix: str = "") -> dict[str, Versioned]:
        """All names that begin with `prefix`, as of one moment. Raises `Unavailable`."""

    @abstractmethod
    async def put(self, name: str, value: bytes, version: int | None = None) -> int:
        """Sets a value and returns its new version.

        It happens only if the name has this version now (0: is not there); None: whatever it has. Raises `Conflict`,
        `Unavailable` (nothing was changed), `OutcomeUnknown` (a `put` that expects a version is told apart by asking `get`,
        once another change of the same name has returned or raised `Conflict`).
        """

    @abstractmethod
    async def delete(self, name: str, version: int | None = None) -> None:
        """Removes a name, under the same condition and with the same errors; without one, a name that is not there is none to
        remove.
        """

    @abstractmethod
    def watch(self, prefix: str = "") -> Watch:
        """Shows all names with the prefix, and then their changes."""

    @abstractmethod
    async def keep_alive(self, node: str, ttl: float, info: bytes = b"") -> None:
        """Makes or renews the lease of a node: it ends `ttl` seconds from now. `info` is what others shall know of it.

        Raises `Unavailable` and `OutcomeUnknown`.
        """

    @abstractmethod
    async def leave(self, node: str) -> None:
        """Ends the lease of a node, if there is one. Raises `Unavailable` and `OutcomeUnknown`."""

    @abstractmethod
    async def alive(self) -> dict[str, bytes]:
        """The nodes whose leases have not ended, with their `info`. Raises `Unavailable`."""
