"""What a block of a replicated vhost says: what has changed in its definitions, and an epoch of its journal.

    block    0 4 size of the definitions, and CHANGED if they are changes   4 the definitions, as MessagePack
             then the journal's payload

    definitions   table -> rows: all of them; an owner's first block has them
    changes       in order, each the table and a row as it is from now on, or the columns by which rows of it are gone

Definitions come before the epoch whose messages need them. What must stay true: whoever applies an owner's blocks from its first
one on, or from a later one on what another had who did so, has exactly what the owner had, whatever was there before. Blocks may
be applied again, and definitions may be ahead of the log where they come from (`Definitions`): the last change of a row counts.

A block with changes ends with an entry of a kind of its own (`blocks.py`), so that older nodes do not read it.

The number of the journal's block, its epoch, is where the log stood: term and position behind it in one number that grows with
both (`mark`). So the journal itself says how far it follows the log, with what it has from it, in one write.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from rabbitpy_broker.definitions import Change, Rows

CHANGED: Final = 1 << 31
POSITION_BITS: Final = 40


class Content(NamedTuple):
    """What a block says: all definitions, or what has changed of them, or neither. `epoch` is a piece of the block."""

    definitions: Rows | list[Change] | None
    epoch: memoryview


def packed(definitions: Rows | list[Change] | None, epoch: list[bytes]) -> bytes:
    """The block."""
    encoded = b"" if definitions is None else msgspec.msgpack.encode(definitions)
    size = len(encoded) | CHANGED if isinstance(definitions, list) else len(encoded)
    return b"".join((size.to_bytes(4, "big"), encoded, *epoch))


def unpacked(block: bytes) -> Content:
    """What `packed` was given."""
    size = int.from_bytes(block[:4], "big")
    behind = 4 + (size & ~CHANGED)
    definitions: Rows | list[Change] | None = None
    if size & CHANGED:
        definitions = msgspec.msgpack.decode(block[4:behind], type=list[Change])
    elif size:
        definitions = msgspec.msgpack.decode(block[4:behind], type=Rows)
    return Content(definitions, memoryview(block)[behind:])


def mark(term: int, position: int) -> int:
    """The number of a journal's block behind which the log is at this position, of this term."""
    return term << POSITION_BITS | position


def unmarked(number: int) -> tuple[int, int]:
    """Term and position."""
    return number >> POSITION_BITS, number & ((1 << POSITION_BITS) - 1)
