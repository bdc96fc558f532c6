"""Blocks of a replicated vhost's log, compressed as a whole: what is not there need not be sent, written and synced by the
engine's servers, nor be read from them by followers.

A frame of zstd (RFC 8878) at its lowest level, with its size and a checksum. What becomes hardly smaller stays as it was, which
costs a few tenths of a millisecond for a MB that is random. Large blocks are compressed in a thread: nobody waits meanwhile.

What must stay true: what is decompressed is what was compressed, or `DamagedBlock` is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rabbitpy_broker.cluster.log import ClusterError

LEAST: Final = 4 << 10  # bytes: a block below is left as it is
AT_ONCE: Final = 64 << 10  # bytes: so many are compressed in the loop, as they take less than it does to wake a thread
MOST: Final = 64 << 20  # bytes: a block above is left as it is, as others wait for the threads
LEVEL: Final = 1
WORTH_IT: Final = 1.125  # how many times its frame a block is at least: readers have to decompress it

_threads: Final = ThreadPoolExecutor(2, "log-blocks")


class DamagedBlock(ClusterError):
    """A block cannot be decompressed: what the engine gave is not what it was given, or there is no memory for it."""


class Compression:
    """Of the blocks of one log; one call at a time."""

    def __init__(self) -> None:
        import zstandard  # an extra, as the engines are: whoever has a log has one

        self._compressor = zstandard.ZstdCompressor(LEVEL, write_checksum=True, write_content_size=True)
        self._decompressor = zstandard.ZstdDecompressor()
        self._parameters = zstandard.get_frame_parameters
        self._error = zstandard.ZstdError

    async def compressed(self, block: bytes) -> bytes | None:
        """The block's frame; None if that is not worth it, or cannot be had: the block says the same."""
        if not LEAST <= len(block) <= MOST:
            return None
        try:
            frame = await _made(self._compressor.compress, block, len(block))
        except (self._error, MemoryError, RuntimeError):  # RuntimeError: there is no other thread
            return None
        return frame if len(frame) * WORTH_IT <= len(block) else None

    async def decompressed(self, frame: bytes) -> bytes:
        """The block. Raises DamagedBlock."""
        try:
            size = self._parameters(frame).content_size
            if not LEAST <= size <= MOST:  # zstd takes a block of no bytes for whole, whatever comes behind its head
                raise DamagedBlock(f"says that it has {size} bytes")
            block = await _made(self._whole, frame, size)
        except (self._error, MemoryError, RuntimeError) as error:
            raise DamagedBlock(str(error) or type(error).__name__) from None
        if len(block) != size:
            raise DamagedBlock(f"has {len(block)} bytes of {size}")
        return block

    def _whole(self, frame: bytes) -> bytes:
        return self._decompressor.decompress(frame, allow_extra_data=False)


async def _made(make: Callable[[bytes], bytes], data: bytes, size: int) -> bytes:
    """What it makes of the data; in a thread if `size`, the bytes that are not compressed, is large."""
    if size <= AT_ONCE:
        return make(data)
    return await asyncio.get_running_loop().run_in_executor(_threads, make, data)
