"""What stands in the entries of a replicated vhost's log: fences, and what the owner has appended, in parts if it is large.

    entry  0 1 kind   1 the rest
    FENCE  the node that has taken over       PART  a piece of a block that goes on       LAST  the last piece, or all of it
    CHANGES  as LAST, of a block that has changes of definitions: since version 2 (`SINCE_CHANGES`)
    COMPRESSED  as LAST or CHANGES, of a block that is compressed (`compression.py`): since version 3 (`SINCE_COMPRESSED`)
    GIVEN  the node that is to take over: its owner's last entry
    ENDED  the node at which the vhost goes on without a log (conversion.py): nothing behind it is ever read

A block that a fence cuts short is no block: its owner appends it again behind the fence, or nobody does.

VERSION is that of all of this and of what blocks say (`content.py`). What a node of this version cannot read has a kind that is
not among these, whatever changes: so that it stops in front of it, and neither passes over it nor takes it for something else.
"""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.cluster.log import ClusterError, Entry

VERSION: Final = 3  # told to other nodes
SINCE_CHANGES: Final = 2
SINCE_COMPRESSED: Final = 3
FENCE: Final = 0
PART: Final = 1
LAST: Final = 2
GIVEN: Final = 3
ENDED: Final = 4
CHANGES: Final = 5
COMPRESSED: Final = 6
NEWEST: Final = COMPRESSED


class NewerBlock(ClusterError):
    """An entry of a later version of this broker: nothing behind it can be read by this node."""

    def __init__(self, position: int, kind: int) -> None:
        super().__init__(
            f"its log has at position {position} what a newer version has written (kind {kind}; this one reads version "
            f"{VERSION}): upgrade this node, it has lost nothing and takes over nothing until then"
        )


class Ended(ClusterError):
    """The log ends here for everybody: the vhost is a plain one of this node from now on."""

    def __init__(self, node: str) -> None:
        super().__init__(f"the vhost is not replicated any more, and is on node '{node}' alone")
        self.node = node


def fence(node: str) -> bytes:
    """What a node appends with a new term before anything else."""
    return bytes((FENCE,)) + node.encode()


def given(node: str) -> bytes:
    """What an owner appends last that hands its vhost over to this node."""
    return bytes((GIVEN,)) + node.encode()


def ended(node: str) -> bytes:
    """What an owner appends last that keeps its vhost for itself."""
    return bytes((ENDED,)) + node.encode()


def parts(block: bytes, max_size: int, last: int = LAST) -> list[bytes]:
    """The entries for a block, one at least, none of them above `max_size` bytes; the last of this kind."""
    step = max_size - 1
    pieces = [block[start : start + step] for start in range(0, len(block), step)] or [b""]
    return [bytes((PART,)) + piece for piece in pieces[:-1]] + [bytes((last,)) + pieces[-1]]


class Assembly:
    """Puts blocks together again out of the entries that count. `is_partial`: it holds the beginning of one; `is_compressed`: the
    one that it gave last is.

    `given_to` is the node that is to take over, since the last entry said so; or "".
    """

    def __init__(self) -> None:
        self.given_to = ""
        self.is_compressed = False
        self._pieces: list[bytes] = []

    @property
    def is_partial(self) -> bool:
        return bool(self._pieces)

    def add(self, entry: Entry) -> bytes | None:
        """The block that the entry completes, if it does. Raises NewerBlock, Ended; then it has not been added."""
        kind = entry.block[0]
        if kind > NEWEST:
            raise NewerBlock(entry.position, kind)
        if kind == ENDED:
            raise Ended(entry.block[1:].decode())
        self.given_to = entry.block[1:].decode() if kind == GIVEN else ""
        if kind in (FENCE, GIVEN):
            self._pieces.clear()
            return None
        self._pieces.append(entry.block[1:])
        if kind == PART:
            return None
        self.is_compressed = kind == COMPRESSED
        block = b"".join(self._pieces)
        self._pieces.clear()
        return block
