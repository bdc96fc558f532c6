"""Users: who may log in, what each may do with the exchanges and queues of each vhost, and how much it may open.

Passwords are kept as RabbitMQ keeps them, so that definitions can be exchanged with it: base64 of 4 bytes of salt and
the digest of salt and password. SHA-256 is what new passwords get; SHA-512 and MD5 are understood. One round of a fast
digest is little against whoever has the file: it lies in a directory that only the broker's own user may read.

Permissions are regular expressions over names, one each for configure, write and read, searched anywhere in the name
unless anchored; the empty one matches only the empty name, so no resource at all. The default exchange is checked under
the name "amq.default".

Topic permissions go further for one topic exchange: they are searched in the routing keys published to it (write) and in
the binding keys bound to it (read). An exchange without them is open as far as the permissions are. In their patterns
{username} and {vhost} stand for the user's name and the vhost's; {client_id} is the client's of MQTT, so with us it
stands for itself.

What must stay true:
- a `User` is one object for as long as the user exists, changed in place, and connections hold it: its `version` grows
  with every change to it, and a deleted user may do nothing;
- `connections` and `channels` count what it has open, also while it is deleted; the protocol keeps them;
- a log-in takes as long for a user that does not exist as for one that does.

A regular expression with nested repetition, such as `(a+)+$`, can take time exponential in the length of the name, and
Python's `re` knows no time limit: such a pattern stops the whole broker for as long as it is matched. Names are at most
255 bytes, results are cached, and only who may set permissions, an administrator, can set one; clients cannot.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.errors import BrokerError, StartError
from rabbitpy_broker.limits import NO_LIMIT, USER_LIMITS, check_limits
from rabbitpy_broker.log import NoLog

HASHING_ALGORITHM: Final = "rabbit_password_hashing_sha256"
_DIGESTS: Final = {
    HASHING_ALGORITHM: "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
_SALT_BYTES: Final = 4
# Names per permission and operation: bounded, because reply queues have a new name for each client.
_CACHE_ENTRIES: Final = 1024


class UserError(BrokerError):
    """A change to users or permissions that makes no sense; the text says why."""


class BackendFault(BrokerError):
    """Whoever knows what a user may do does not say it. `backend` is RabbitMQ's name for it."""

    def __init__(self, backend: str, text: str) -> None:
        super().__init__(f"backend {backend} returned an error: {text}")


def hash_password(password: str, hashing_algorithm: str = HASHING_ALGORITHM) -> str:
    """A hash of the password under a salt of its own."""
    return _hash(os.urandom(_SALT_BYTES), password, hashing_algorithm)


def verify_password(password: str, password_hash: str, hashing_algorithm: str) -> bool:
    """Whether the hash is of this password; an empty or malformed hash is of none."""
    try:
        salt = base64.b64decode(password_hash, validate=True)[:_SALT_BYTES]
    except (binascii.Error, ValueError):
        return False
    if len(salt) < _SALT_BYTES or hashing_algorithm not in _DIGESTS:
        return False
    return hmac.compare_digest(_hash(salt, password, hashing_algorithm).encode(), password_hash.encode())


def _hash(salt: bytes, password: str, hashing_algorithm: str) -> str:
    digest = hashlib.new(_DIGESTS[hashing_algorithm], salt + password.encode("utf-8", "surrogatepass"))
    return base64.b64encode(salt + digest.digest()).decode("ascii")


class Permission:
    """What a user may do in one vhost. Raises UserError for a pattern that is no regular expression."""

    __slots__ = ("_matches", "configure", "read", "write")

    def __init__(self, configure: str, write: str, read: str) -> None:
        self.configure = configure
        self.write = write
        self.read = read
        self._matches = {
            "configure": _Pattern(configure),
            "write": _Pattern(write),
            "read": _Pattern(read),
        }

    def may(self, operation: str, name: str) -> bool:
        """Whether `operation` ("configure", "write" or "read") is allowed on the exchange or queue of that name."""
        return self._matches[operation].matches(name or "amq.default")


class TopicPermission:
    """What a user may do with the routing keys of one topic exchange. Raises UserError as `Permission` does."""

    __slots__ = ("_matches", "read", "write")

    def __init__(self, write: str, read: str, user: str, vhost: str) -> None:
        self.write = write
        self.read = read
        self._matches = {
            "write": _Pattern(_expand(write, user, vhost)),
            "read": _Pattern(_expand(read, user, vhost)),
        }

    def may(self, operation: str, key: str) -> bool:
        """Whether `operation` ("write" or "read") is allowed with this routing key or binding key."""
        return self._matches[operation].matches(key)


def _expand(pattern: str, user: str, vhost: str) -> str:
    return pattern.replace("{username}", user).replace("{vhost}", vhost)


class _Pattern:
    __slots__ = ("_cache", "_search")

    def __init__(self, pattern: str) -> None:
        try:
            self._search = re.compile(pattern or "^$").search
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(f"{pattern!r} is no regular expression: {error}") from None
        self._cache: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        known = self._cache.get(name)
        if known is None:
            known = self._search(name) is not None
            if len(self._cache) >= _CACHE_ENTRIES:
                self._cache.clear()
            self._cache[name] = known
        return known


class User:
    """One user; `permissions` has an entry for each vhost that it may enter, `topic_permissions` those of each vhost by
    exchange. A limit is -1 when there is none. Changed by `Users` only, but for the counts.
    """

    __slots__ = (
        "__weakref__",
        "channels",
        "connections",
        "hashing_algorithm",
        "limits",
        "max_channels",
        "max_connections",
        "name",
        "password_hash",
        "permissions",
        "tags",
        "topic_permissions",
        "version",
    )

    def __init__(self, name: str, password_hash: str, hashing_algorithm: str, tags: tuple[str, ...]) -> None:
        self.name = name
        self.password_hash = password_hash
        self.hashing_algorithm = hashing_algorithm
        self.tags = tags
        self.permissions: dict[str, Permission] = {}
        self.topic_permissions: dict[str, dict[str, TopicPermission]] = {}
        self.limits: dict[str, int] = {}
        self.max_connections = NO_LIMIT
        self.max_channels = NO_LIMIT
        self.connections = 0
        self.channels = 0
        self.version = 0

    def __repr__(self) -> str:
        return f"User({self.name!r})"

    is_ours = True  # one of `Users`, and not somebody whom another back end knows

    # -- what it may do, which a user from elsewhere answers in its own way. Each may raise AnswerAwaited and BackendFault.

    def may_enter(self, vhost: str) -> bool:
        """Whether the user may open connections to the vhost."""
        return vhost in self.permissions

    def may(self, vhost: str, operation: str, kind: str, name: str) -> bool:
        """Whether the user may do `operation` (configure, write, read) with the queue or exchange, as `kind` says."""
        permission = self.permissions.get(vhost)
        return permission is not None and permission.may(operation, name)

    def may_use_key(self, vhost: str, operation: str, exchange: str, key: str) -> bool:
        """Whether the user may publish (write) to a topic exchange, or bind to it (read), with this key."""
        permissions = self.topic_permissions.get(vhost)
        permission = permissions.get(exchange) if permissions else None
        return permission is None or permission.may(operation, key)

    def update_secret(self, secret: str) -> None:
        """Takes a new password or token. Raises UserError. A password counts at log-in only, so there is nothing to renew."""

    def expired(self, now: float) -> str:
        """Why the user may do nothing any more at this time, seconds since 1970; "" is for ever."""
        return ""

    def as_kept(self) -> object:
        """All that the definitions have of it."""
        permissions = {vhost: (one.configure, one.write, one.read) for vhost, one in self.permissions.items()}
        topics = {
            vhost: {exchange: (one.write, one.read) for exchange, one in of_vhost.items()}
            for vhost, of_vhost in self.topic_permissions.items()
            if of_vhost
        }
        return self.password_hash, self.hashing_algorithm, self.tags, self.limits, permissions, topics

    def keep_limits(self, limits: dict[str, int]) -> None:
        """For `Users`: these limits and no other."""
        self.limits = limits
        self.max_connections = limits.get("max-connections", NO_LIMIT)
        self.max_channels = limits.get("max-channels", NO_LIMIT)


class Users:
    """All users. Changes reach the definitions at once and the disk with the next commit.

    Each change is told to the log.

    Users in `loopback_users` may log in from this machine only. Raises StartError when the definitions hold a
    permission that cannot be used.
    """

    def __init__(self, definitions: Definitions, loopback_users: Collection[str] = ("guest",), log: Any = None) -> None:
        self._definitions = definitions
        self.log = log or NoLog()
        self._loopback_users = frozenset(loopback_users)
        self._users: dict[str, User] = {}
        self._nobody = User("", hash_password("nobody"), HASHING_ALGORITHM, ())
        self._load()

    def _load(self) -> None:
        for name, password_hash, hashing_algorithm, tags in self._definitions.users():
            self._users[name] = User(
                name, password_hash, hashing_algorithm, tuple(filter(None, tags.split(",")))
            )
        for name, vhost, configure, write, read in self._definitions.permissions():
            try:
                self._users[name].permissions[vhost] = Permission(configure, write, read)
            except UserError as error:
                raise StartError(f"permissions of user '{name}' in vhost '{vhost}': {error}") from None
        for name, vhost, exchange, write, read in self._definitions.topic_permissions():
            try:
                permission = TopicPermission(write, read, name, vhost)
            except UserError as error:
                raise StartError(f"topic permissions of user '{name}' in vhost '{vhost}': {error}") from None
            self._users[name].topic_permissions.setdefault(vhost, {})[exchange] = permission
        for name, limits in self._definitions.user_limits():
            self._users[name].keep_limits(json.loads(limits))

    def create_defaults(
        self,
        user: str,
        password: str,
        vhost: str,
        tags: Iterable[str] = ("administrator",),
        configure: str = ".*",
        write: str = ".*",
        read: str = ".*",
    ) -> bool:
        """Makes this vhost, and this user with these permissions on it, if there is neither vhost nor user yet."""
        if self._users or self._definitions.vhosts():
            return False
        self._definitions.add_vhost(vhost)
        self.put_user(user, password, tags)
        self.set_permissions(user, vhost, configure, write, read)
        return True

    # -- logging in -----------------------------------------------------------------------------------------------

    def authenticate(self, name: str, password: str, from_loopback: bool) -> User | None:
        """The user, or None when name or password are wrong or the user may not come from there."""
        user = self.log_in(name, password)
        return None if self.is_loopback_only(name) and not from_loopback else user

    def log_in(self, name: str, password: str | None) -> User | None:
        """The user, or None when name or password are wrong. No password: the name has been proved in another way.

        A blank password never logs in, as in RabbitMQ, whatever the hash.
        """
        user = self._users.get(name)
        if password is None:
            return user
        known = user or self._nobody
        verified = verify_password(password, known.password_hash, known.hashing_algorithm)
        return user if verified and password else None

    def is_loopback_only(self, name: str) -> bool:
        """Whether a user of this name may come from this machine only."""
        return name in self._loopback_users

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def all(self) -> list[User]:
        return list(self._users.values())

    # -- changes --------------------------------------------------------------------------------------------------

    def put_user(self, name: str, password: str, tags: Iterable[str] = ()) -> User:
        """Makes a user, or gives the one of that name this password and these tags."""
        return self.put_user_hash(name, hash_password(password), HASHING_ALGORITHM, tags)

    def put_user_hash(
        self, name: str, password_hash: str, hashing_algorithm: str, tags: Iterable[str] = ()
    ) -> User:
        """Like `put_user`, for a password that is known by its hash only. An empty hash is no password's."""
        if not name:
            raise UserError("a user needs a name")
        if hashing_algorithm not in _DIGESTS:
            raise UserError(f"unknown hashing algorithm '{hashing_algorithm}'")
        kept = _checked_tags(name, tags)
        user = self._users.get(name)
        if user is None:
            user = self._users[name] = User(name, password_hash, hashing_algorithm, kept)
            self.log.info("auth.user_created", user=name, tags=list(kept))
        elif (user.password_hash, user.hashing_algorithm, user.tags) != (password_hash, hashing_algorithm, kept):
            user.password_hash, user.hashing_algorithm, user.tags = password_hash, hashing_algorithm, kept
            self.log.info("auth.user_changed", user=name, what="password and tags", tags=list(kept))
        self._changed(user)
        return user

    def _changed(self, user: User) -> None:
        user.version += 1
        self._definitions.put_user(user.name, user.password_hash, user.hashing_algorithm, ",".join(user.tags))

    def _known(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise UserError(f"User '{name}' does not exist")
        return user

    def change_password(self, name: str, password: str) -> None:
        """Raises UserError for an unknown user. Connections that have logged in stay."""
        user = self._known(name)
        user.password_hash, user.hashing_algorithm = hash_password(password), HASHING_ALGORITHM
        self._changed(user)
        self.log.info("auth.user_changed", user=name, what="password", tags=list(user.tags))

    def clear_password(self, name: str) -> None:
        """From now on no password is the user's. Raises UserError for an unknown user."""
        user = self._known(name)
        user.password_hash = ""
        self._changed(user)
        self.log.info("auth.user_changed", user=name, what="password cleared", tags=list(user.tags))

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        """Gives the user these tags and no others. Raises UserError for an unknown user or a bad tag."""
        user = self._known(name)
        user.tags = _checked_tags(name, tags)
        self._changed(user)
        self.log.info("auth.user_changed", user=name, what="tags", tags=list(user.tags))

    def set_limits(self, name: str, limits: Mapping[str, object]) -> None:
        """Sets each limit that is named. Raises UserError for an unknown user, LimitError for a bad limit."""
        user = self._known(name)
        self._keep_limits(user, {**user.limits, **check_limits("user-limits", USER_LIMITS, limits)})

    def clear_limits(self, name: str, limit: str = "all") -> None:
        """Takes this limit or all of them away; no error when it was not there. Raises UserError for an unknown user."""
        user = self._known(name)
        self._keep_limits(
            user, {key: value for key, value in user.limits.items() if limit not in (key, "all")}
        )

    def _keep_limits(self, user: User, limits: dict[str, int]) -> None:
        user.keep_limits(limits)
        user.version += 1
        if limits:
            self._definitions.put_user_limits(user.name, json.dumps(limits))
        else:
            self._definitions.delete_user_limits(user.name)

    def delete_user(self, name: str) -> None:
        """Deletes a user; connections of it may do nothing from now on. An absent one is no error."""
        user = self._users.pop(name, None)
        if user is None:
            return
        user.permissions.clear()
        user.topic_permissions.clear()
        user.keep_limits({})
        user.tags = ()
        user.version += 1
        self._definitions.delete_user(name)
        self.log.info("auth.user_deleted", user=name)

    def set_permissions(self, name: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Raises UserError for an unknown user or a bad pattern. Whether the vhost exists is the caller's to know."""
        user = self._known(name)
        before = user.permissions.get(vhost)
        user.permissions[vhost] = Permission(configure, write, read)
        user.version += 1
        self._definitions.put_permission(name, vhost, configure, write, read)
        if before is None or (before.configure, before.write, before.read) != (configure, write, read):
            self.log.info(
                "auth.permissions_changed", user=name, vhost=vhost, configure=configure, write=write, read=read
            )

    def clear_permissions(self, name: str, vhost: str) -> None:
        """Shuts a user out of a vhost; no error when it was."""
        user = self._users.get(name)
        if user is not None and user.permissions.pop(vhost, None) is not None:
            user.version += 1
            self._definitions.delete_permission(name, vhost)
            self.log.info("auth.permissions_cleared", user=name, vhost=vhost)

    def set_topic_permissions(self, name: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Like `set_permissions`, for the routing keys of one topic exchange, which need not exist."""
        user = self._known(name)
        user.topic_permissions.setdefault(vhost, {})[exchange] = TopicPermission(write, read, name, vhost)
        user.version += 1
        self._definitions.put_topic_permission(name, vhost, exchange, write, read)
        self.log.info("auth.topic_permissions_changed", user=name, vhost=vhost, exchange=exchange, write=write, read=read)

    def clear_topic_permissions(self, name: str, vhost: str, exchange: str | None = None) -> None:
        """Opens this exchange, or all of the vhost, to every routing key; no error when it was open.

        Raises UserError for an unknown user.
        """
        user = self._known(name)
        permissions = user.topic_permissions.get(vhost, {})
        for cleared in [exchange] if exchange is not None else list(permissions):
            if permissions.pop(cleared, None) is not None:
                user.version += 1
                self._definitions.delete_topic_permission(name, vhost, cleared)
                self.log.info("auth.topic_permissions_cleared", user=name, vhost=vhost, exchange=cleared)
        if not permissions:
            user.topic_permissions.pop(vhost, None)

    def adopt(
        self,
        name: str,
        password_hash: str,
        hashing_algorithm: str,
        tags: tuple[str, ...],
        limits: dict[str, int],
        permissions: Mapping[str, tuple[str, str, str]],
        topics: Mapping[str, Mapping[str, tuple[str, str]]],
    ) -> None:
        """Makes a user exactly what another node has of it. Raises UserError for a pattern that cannot be used; then nothing is
        changed.
        """
        made = {vhost: Permission(*patterns) for vhost, patterns in permissions.items()}
        of_topics = {
            vhost: {exchange: TopicPermission(*patterns, name, vhost) for exchange, patterns in found.items()}
            for vhost, found in topics.items()
        }
        user = self._users.setdefault(name, User(name, password_hash, hashing_algorithm, tags))
        user.password_hash, user.hashing_algorithm, user.tags = password_hash, hashing_algorithm, tags
        user.permissions, user.topic_permissions = made, of_topics
        definitions = self._definitions
        definitions.delete_user(name)
        self._changed(user)
        self._keep_limits(user, dict(limits))
        for vhost, one in made.items():
            definitions.put_permission(name, vhost, one.configure, one.write, one.read)
        for vhost, found in of_topics.items():
            for exchange, topic in found.items():
                definitions.put_topic_permission(name, vhost, exchange, topic.write, topic.read)
        self.log.info("auth.user_changed", user=name, what="on another node", tags=list(tags))

    def read_again(self) -> list[User]:
        """Takes what somebody else has changed in the definitions; returns those that are gone, which may do nothing any more.

        A user that has not changed stays as it is. Raises StartError as the constructor does.
        """
        now = Users(self._definitions, self._loopback_users)._users
        gone = [self._users.pop(name) for name in list(self._users) if name not in now]
        for user in gone:
            user.permissions.clear()
            user.topic_permissions.clear()
            user.keep_limits({})
            user.tags = ()
            user.version += 1
        for name, read in now.items():
            user = self._users.setdefault(name, read)
            if user is not read and user.as_kept() != read.as_kept():
                user.password_hash, user.hashing_algorithm, user.tags = read.password_hash, read.hashing_algorithm, read.tags
                user.permissions, user.topic_permissions = read.permissions, read.topic_permissions
                user.keep_limits(read.limits)
                user.version += 1
        return gone

    def forget_vhost(self, vhost: str) -> None:
        """Drops all permissions on a vhost that is deleted."""
        for name in self._users:
            self.clear_permissions(name, vhost)
            self.clear_topic_permissions(name, vhost)


def _checked_tags(name: str, tags: Iterable[str]) -> tuple[str, ...]:
    """The tags in their order, each once."""
    kept = tuple(dict.fromkeys(tags))
    if any("," in tag or not tag for tag in kept):
        raise UserError(f"a tag of user '{name}' is empty or has a comma in it")
    return kept
