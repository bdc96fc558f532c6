"""Users that all nodes of a cluster have: each with tags, limits and permissions, in the registry, changed by compare-and-set.

    a node changes a user --> its own definitions --> put user/NAME, if it has still the version that this node knows
                                                  --> all others see it, and take it into their definitions

Each node goes on with its copy when the engine is away, and starts with it. A user that one node deletes leaves a mark in the
registry, so that a node which was away does not bring it back; a user that the registry has never seen is added to it.

What must stay true: when two nodes change the same user at once, all have in the end what one of them has made of it, and the
other is told; nothing is told to the registry before everything in it has been seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from rabbitpy_broker.cluster.log import ClusterError, OutcomeUnknown
from rabbitpy_broker.cluster.registry import Change, Conflict, Registry
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.users import User, UserError, Users

PREFIX: Final = "user/"
LOOK_S: Final = 1.0
SETTLE_S: Final = 10.0


class NotShared(BrokerError):
    """A change of users has not reached the other nodes; the text says what becomes of it."""


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that there is of a user; permissions by vhost, topic permissions by vhost and exchange."""

    password_hash: str = ""
    hashing_algorithm: str = ""
    tags: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    permissions: dict[str, tuple[str, str, str]] = {}
    topics: dict[str, dict[str, tuple[str, str]]] = {}
    is_deleted: bool = False


DELETED: Final = Kept(is_deleted=True)


def kept_of(user: User | None) -> Kept:
    """`DELETED` for None."""
    if user is None:
        return DELETED
    return Kept(
        user.password_hash,
        user.hashing_algorithm,
        user.tags,
        user.limits,
        {vhost: (one.configure, one.write, one.read) for vhost, one in user.permissions.items()},
        {
            vhost: {exchange: (one.write, one.read) for exchange, one in found.items()}
            for vhost, found in user.topic_permissions.items()
            if found
        },
    )


class SharedUsers:
    """`commit` makes changes of the definitions durable; `gone` is called with users that another node has deleted."""

    def __init__(
        self, registry: Registry, users: Users, commit: Callable[[], None], gone: Callable[[User], None], log: Any
    ) -> None:
        self.is_known = False  # all that the registry has was seen
        self._registry = registry
        self._users = users
        self._commit = commit
        self._gone = gone
        self.log = log
        self._known: dict[str, tuple[Kept, int]] = {}  # what the registry has, and its version
        self._lost: set[str] = set()  # of which another node's change has won
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Until it is cancelled."""
        watch = self._registry.watch(PREFIX)
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
                        self.log.warning("users are not shared", error=told)
                    await asyncio.sleep(LOOK_S)
        finally:
            await watch.close()

    async def settle(self) -> None:
        """Returns when the registry has what this node has. Raises NotShared."""
        if not any(True for _ in self._untold()):
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

    def _untold(self) -> list[tuple[str, Kept]]:
        """The users that are not what the registry has."""
        found = []
        for name in {*self._known, *(user.name for user in self._users.all())}:
            kept = kept_of(self._users.get(name))
            if name not in self._known or self._known[name][0] != kept:
                found.append((name, kept))
        return found

    async def _tell(self) -> None:
        """Raises ClusterError. Assumes: the lock is held."""
        for name, kept in self._untold():
            key, value = PREFIX + quote(name, safe=""), msgspec.json.encode(kept)
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
        """What the registry has of a user is what this node has from now on."""
        name = unquote(change.name.removeprefix(PREFIX))
        before = self._known.get(name)
        if before is not None and change.version <= before[1]:
            return
        now = DELETED if change.value is None else msgspec.json.decode(change.value, type=Kept)
        here = kept_of(self._users.get(name))
        if before is not None and here not in (before[0], now):
            self._lost.add(name)
            self.log.warning("user changed on two nodes", user=name)
        self._known[name] = now, change.version
        if here == now:
            return
        user = self._users.get(name)
        if now.is_deleted:
            self._users.delete_user(name)
            if user is not None:
                self._gone(user)
            return
        try:
            self._users.adopt(
                name, now.password_hash, now.hashing_algorithm, now.tags, now.limits, now.permissions, now.topics
            )
        except UserError as error:
            self.log.warning("user not taken from the cluster", user=name, error=str(error))
