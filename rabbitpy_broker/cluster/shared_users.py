"""Users that all nodes of a cluster have: each with tags, limits and permissions (shared_table.py has how).

Two nodes that change a user at once may do so: one gives it a vhost, the other another, a third its tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from rabbitpy_broker.cluster.registry import Registry
from rabbitpy_broker.cluster.shared_table import SharedTable
from rabbitpy_broker.users import User, UserError, Users

K = TypeVar("K")
T = TypeVar("T")
ABSENT: Final = object()


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


def merged_value(before: T, here: T, there: T) -> tuple[T, bool]:
    """What is made of `before` by two who change it at once, and whether all that was made of it `here` counts."""
    if here == before:
        return there, True
    return (here, True) if there in (before, here) else (there, False)


def merged_map(before: Mapping[K, Any], here: Mapping[K, Any], there: Mapping[K, Any]) -> tuple[dict[K, Any], bool]:
    """The same, by key."""
    merged: dict[K, Any] = {}
    counts = True
    for key in {**there, **here}:
        value, does = merged_value(before.get(key, ABSENT), here.get(key, ABSENT), there.get(key, ABSENT))
        counts = counts and does
        if value is not ABSENT:
            merged[key] = value
    return merged, counts


def by_exchange(user: Kept) -> dict[tuple[str, str], tuple[str, str]]:
    """Topic permissions by vhost and exchange."""
    return {(vhost, exchange): patterns for vhost, found in user.topics.items() for exchange, patterns in found.items()}


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

    def merged(self, before: Kept, here: Kept, there: Kept) -> tuple[Kept, bool]:
        """By password, tags, each limit, each vhost, and each vhost and exchange; a user that is deleted by either is deleted,
        and who has changed it is told.
        """
        if here.is_deleted or there.is_deleted:
            return DELETED, here.is_deleted
        if before.is_deleted:
            return there, False
        (password, algorithm), is_password = merged_value(
            *((one.password_hash, one.hashing_algorithm) for one in (before, here, there))
        )
        tags, are_tags = merged_value(before.tags, here.tags, there.tags)
        limits, are_limits = merged_map(before.limits, here.limits, there.limits)
        permissions, are_permissions = merged_map(before.permissions, here.permissions, there.permissions)
        topics, are_topics = merged_map(*(by_exchange(one) for one in (before, here, there)))
        of_vhosts: dict[str, dict[str, tuple[str, str]]] = {}
        for (vhost, exchange), patterns in topics.items():
            of_vhosts.setdefault(vhost, {})[exchange] = patterns
        value = Kept(password, algorithm, tags, limits, permissions, of_vhosts)
        return value, is_password and are_tags and are_limits and are_permissions and are_topics

    def encoded(self, value: Kept) -> bytes:
        return msgspec.json.encode(value)

    def decoded(self, value: bytes) -> Kept:
        return msgspec.json.decode(value, type=Kept)

    def say_not_shared(self, error: str) -> None:
        self.log.warning("users are not shared", error=error)

    def say_lost(self, name: str) -> None:
        self.log.warning("user changed on two nodes", user=name)
