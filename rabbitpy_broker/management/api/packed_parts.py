"""gzip for answers that go on: each part of them is compressed by itself, and once for all who are told the same.

A reader can take a part as soon as it comes, as in any stream that is flushed. A full flush (RFC 1951, 3.2.3) lets no part refer
to one before it, so that parts of one compressor may be put together in any order, and one compressor does for all streams.

It is zlib's, whatever else is installed: ISA-L leaves the upper halves of the vector registers in use, and on some processors
floating-point numbers then take seven times as long, until they are cleared, in the thread that it ran in, which would be the
loop's (docs/performance.md). Long lists are compressed in another thread (`shared_lists.py`).

What must stay true: all parts of a stream, with HEADER before them and `end` behind them, are one gzip member (RFC 1952).
"""

from __future__ import annotations

import zlib
from typing import Final

HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, of an unknown system
_LAST: Final = b"\x03\x00"  # an empty block that says it is the last
LEVEL: Final = 1
SHARED_FROM_BYTES: Final = 1_024
SHARED_MAX: Final = 8  # that are remembered


class PackedParts:
    """Compresses parts for all streams. Long ones that are shared are remembered, until SHARED_MAX others have come."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._known: dict[bytes, bytes] = {}

    def of(self, part: bytes, *, shared: bool) -> bytes:
        """A part, compressed. `shared`: others will ask for the same object, and get this without a second look at its bytes."""
        if not shared or len(part) < SHARED_FROM_BYTES:
            return self._packed(part)
        packed = self._known.get(part)
        if packed is None:
            while len(self._known) >= SHARED_MAX:
                del self._known[next(iter(self._known))]
            packed = self._known[part] = self._packed(part)
        return packed

    def _packed(self, part: bytes) -> bytes:
        return self._packer.compress(part) + self._packer.flush(zlib.Z_FULL_FLUSH)


class PackedStream:
    """One answer: HEADER, what `next` gives for each part, `end`. `shared`: its long parts are told to others as well."""

    def __init__(self, parts: PackedParts, *, shared: bool) -> None:
        self._parts = parts
        self._shared = shared
        self._crc = 0
        self._size = 0

    def next(self, part: bytes) -> bytes:
        """The next part."""
        self._crc = zlib.crc32(part, self._crc)
        self._size += len(part)
        return self._parts.of(part, shared=self._shared)

    def end(self) -> bytes:
        """What ends the member: the checksum and the length of all that was packed."""
        return _LAST + self._crc.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little")
