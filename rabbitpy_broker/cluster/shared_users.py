"""Users that all nodes of a cluster have: each with tags, limits and permissions (shared_table.py has how)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from rabbitpy_broker.cluster.registry import Registry
from rabbitpy_broker.cluster.shared_table import SharedTable
from rabbitpy_broker.users import User, UserError, Users


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


class SharedUsers(SharedTable[Kept]):
    """`gone` is called with users that another node has deleted."""

    prefix = "user/"
    deleted = DELETED

    def __init__(
        self, registry: Registry, users: Users, commit: Callable[[], None], gone: Callable[[User], None], log: Any
    ) -> None:
        super().__init__(registry, commit, log)
        self._users = users
        self._gone = gone

    def values(self) -> dict[str, Kept]:
        return {user.name: kept_of(user) for user in self._users.all()}

    def value(self, name: str) -> Kept:
        return kept_of(self._users.get(name))

    def take(self, name: str, value: Kept) -> None:
        user = self._users.get(name)
        if value.is_deleted:
            self._users.delete_user(name)
            if user is not None:
                self._gone(user)
            return
        try:
            self._users.adopt(
                name, value.password_hash, value.hashing_algorithm, value.tags, value.limits, value.permissions, value.topics
            )
        except UserError as error:
            self.log.warning("user not taken from the cluster", user=name, error=str(error))

    def encoded(self, value: Kept) -> bytes:
        return msgspec.json.encode(value)

    def decoded(self, value: bytes) -> Kept:
        return msgspec.json.decode(value, type=Kept)

    def say_not_shared(self, error: str) -> None:
        self.log.warning("users are not shared", error=error)

    def say_lost(self, name: str) -> None:
        self.log.warning("user changed on two nodes", user=name)
