"""What a node tells of itself with its lease."""

from __future__ import annotations

from typing import Self

import msgspec


class NodeInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where clients and other nodes reach it, as HOST:PORT; `link` is "" for one that takes no clients from others.

    `positions` says of each vhost that it has a replica of how far it is in the log; `maintenance`, that it is drained;
    `log_version`, which version of logs it reads (`blocks.py`).
    """

    amqp: list[str] = []
    link: str = ""
    maintenance: bool = False
    positions: dict[str, int] = {}
    log_version: int = 1

    def packed(self) -> bytes:
        """As the registry keeps it."""
        return msgspec.json.encode(self)

    @classmethod
    def unpacked(cls, info: bytes) -> Self:
        """What `packed` has made, perhaps by another version."""
        return msgspec.json.decode(info, type=cls)
