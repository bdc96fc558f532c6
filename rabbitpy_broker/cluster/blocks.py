"""What stands in the entries of a replicated vhost's log: fences, and what the owner has appended, in parts if it is large.

    entry  0 1 kind   1 the rest
    FENCE  the node that has taken over       PART  a piece of a block that goes on       LAST  the last piece, or all of it

A block that a fence cuts short is no block: its owner appends it again behind the fence, or nobody does.
"""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.cluster.log import Entry

FENCE: Final = 0
PART: Final = 1
LAST: Final = 2


def fence(node: str) -> bytes:
    """What a node appends with a new term before anything else."""
    return bytes((FENCE,)) + node.encode()


def parts(block: bytes, max_size: int) -> list[bytes]:
    """The entries for a block, one at least, none of them above `max_size` bytes."""
    step = max_size - 1
    pieces = [block[start : start + step] for start in range(0, len(block), step)] or [b""]
    return [bytes((PART,)) + piece for piece in pieces[:-1]] + [bytes((LAST,)) + pieces[-1]]


class Assembly:
    """Puts blocks together again out of the entries that count. `is_partial`: it holds the beginning of one."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    @property
    def is_partial(self) -> bool:
        return bool(self._pieces)

    def add(self, entry: Entry) -> bytes | None:
        """The block that the entry completes, if it does."""
        kind = entry.block[0]
        if kind == FENCE:
            self._pieces.clear()
            return None
        self._pieces.append(entry.block[1:])
        if kind == PART:
            return None
        block = b"".join(self._pieces)
        self._pieces.clear()
        return block
