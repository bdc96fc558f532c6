"""What a node tells of itself with its lease."""

from __future__ import annotations

from typing import NamedTuple, Self

import msgspec


class Listening(NamedTuple):
    """A port of a node: the protocol by RabbitMQ's name, the host without brackets."""

    protocol: str
    host: str
    port: int


class NodeInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where clients and other nodes reach it, as HOST:PORT; `link` is "" for one that takes no clients from others.

    `positions` says of each vhost that it has a replica of before which position of the log it has everything on its disk, or, of
    what it owns, in the log. `figures` are those of its row in /api/nodes, by their names, but for zeros; none of a node without
    the management API. `held` are the vhosts whose publishers it holds; `maintenance`: it is drained; `log_version` says
    which logs it reads (`blocks.py`); `slow_append_ms` is not 0 while its appends take long. `users` has
    connections and channels of users that have a limit. `conversions`: of vhosts that
    other nodes are making replicated, by incarnation, whether it has a plain one of that name. `answers`: other nodes may
    ask its management API over its link.
    """

    amqp: list[str] = []
    link: str = ""
    version: str = ""
    rabbitmq_version: str = ""
    python: str = ""
    cores: int = 0
    alarms: list[str] = []
    held: list[str] = []
    maintenance: bool = False
    listeners: list[Listening] = []
    positions: dict[str, int] = {}
    log_version: int = 1
    conversions: dict[str, bool] = {}
    users: dict[str, tuple[int, int]] = {}
    figures: dict[str, int] = {}
    slow_append_ms: int = 0
    answers: bool = False

    def packed(self) -> bytes:
        """As the registry keeps it."""
        return msgspec.json.encode(self)

    @classmethod
    def unpacked(cls, info: bytes) -> Self:
        """What `packed` has made, perhaps by another version."""
        return msgspec.json.decode(info, type=cls)
