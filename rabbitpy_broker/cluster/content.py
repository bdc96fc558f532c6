"""What a block of a replicated vhost says: its definitions, if they have changed, and an epoch of its journal.

    block    0 4 size of the definitions   4 the definitions, as MessagePack: table -> rows   then the journal's payload

Definitions come before the epoch whose messages need them, and are always all of the vhost: whoever applies a block has then
exactly what the owner had, whatever was there before.

The number of the journal's block, its epoch, is where the log stood: term and position behind it in one number that grows with
both (`mark`). So the journal itself says how far it follows the log, with what it has from it, in one write.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

Rows = dict[str, list[list[Any]]]
POSITION_BITS: Final = 40


class Content(NamedTuple):
    """What a block says; `definitions` is None where they are as before. `epoch` is a piece of the block."""

    definitions: Rows | None
    epoch: memoryview


def packed(definitions: Rows | None, epoch: list[bytes]) -> bytes:
    """The block."""
    rows = b"" if definitions is None else msgspec.msgpack.encode(definitions)
    return b"".join((len(rows).to_bytes(4, "big"), rows, *epoch))


def unpacked(block: bytes) -> Content:
    """What `packed` was given."""
    behind = 4 + int.from_bytes(block[:4], "big")
    rows = msgspec.msgpack.decode(block[4:behind], type=Rows) if behind > 4 else None
    return Content(rows, memoryview(block)[behind:])


def mark(term: int, position: int) -> int:
    """The number of a journal's block behind which the log is at this position, of this term."""
    return term << POSITION_BITS | position


def unmarked(number: int) -> tuple[int, int]:
    """Term and position."""
    return number >> POSITION_BITS, number & ((1 << POSITION_BITS) - 1)
