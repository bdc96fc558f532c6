"""What a node tells of itself with its lease."""

from __future__ import annotations

from typing import Self

import msgspec


class NodeInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where clients and other nodes reach it, as HOST:PORT; `link` is "" for one that takes no clients from others."""

    amqp: list[str] = []
    link: str = ""

    def packed(self) -> bytes:
        """As the registry keeps it."""
        return msgspec.json.encode(self)

    @classmethod
    def unpacked(cls, info: bytes) -> Self:
        """What `packed` has made, perhaps by another version."""
        return msgspec.json.decode(info, type=cls)
