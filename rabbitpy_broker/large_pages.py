"""Large pages for memory of this process that is there to stay.

Who goes through thousands of queues touches memory all over, and with pages of 4 KiB most of such a touch is the processor's
search for the page. Linux (6.1 and later) puts a stretch of memory into one page of 2 MiB when it is asked to, by madvise(2) with
MADV_COLLAPSE: that copies it, some ms for each, while whoever touches it waits.

What must stay true: it is asked for nothing but stretches of which nearly all is resident, so that memory in use does not grow;
and for nothing at all where the system's administrator has said `never`.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path
from typing import Any, Final

SYSTEM: Final = Path("/sys/kernel/mm/transparent_hugepage")
MAPS: Final = Path("/proc/self/maps")
LARGEST: Final = 4 << 20  # bytes; with small pages of 64 KiB a large one has 512 MiB, of which none fills up
MADV_COLLAPSE: Final = 25  # madvise(2)
NEARLY_ALL: Final = 0.9
SMALL: Final = 128 << 20  # bytes of resident memory up to which they are not worth their time

_LIBC: Final = ctypes.CDLL(None)
_madvise: Final[Any] = getattr(_LIBC, "madvise", None)
_mincore: Final[Any] = getattr(_LIBC, "mincore", None)
# Private memory that is no file's: nameless, the heap, or named by who took it.
_OWN: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ \S+ 0 *(\[heap\]|\[anon:.*\])?$", re.MULTILINE)


def page_size(system: Path = SYSTEM) -> int:
    """In bytes; 0 where there are none to be had."""
    if _madvise is None or _mincore is None:
        return 0
    try:
        size = int((system / "hpage_pmd_size").read_text())
        if "[never]" in (system / "enabled").read_text() or size > LARGEST:
            return 0
    except (OSError, ValueError):
        return 0
    return size


class Growth:
    """Tells when memory has grown by a quarter and stays about what it is: what comes and goes is not worth the copying."""

    def __init__(self) -> None:
        self._known = 0
        self._before = 0

    def has_settled(self, resident: int) -> bool:
        """Whether it just has; to be asked now and then, with the bytes that are resident."""
        is_steady = abs(resident - self._before) <= resident // 16
        self._before, self._known = resident, min(self._known, resident)
        if not is_steady or resident <= max(SMALL, self._known + self._known // 4):
            return False
        self._known = resident
        return True


def stretches(size: int, maps: Path = MAPS) -> list[int]:
    """Addresses of memory that fills a page of this size, or would; those that are in one already among them."""
    found: list[int] = []
    for own in _OWN.finditer(maps.read_text(errors="replace")):
        begin, end = int(own[1], 16), int(own[2], 16)
        found += [address for address in range(-(-begin // size) * size, end - size + 1, size) if _is_full(address, size)]
    return found


def _is_full(address: int, size: int) -> bool:
    pages = size // mmap.PAGESIZE
    residency = ctypes.create_string_buffer(pages)
    is_known = _mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), residency) == 0
    return is_known and residency.raw.count(b"\x01") >= NEARLY_ALL * pages


def put_into_one(address: int, size: int) -> bool:
    """Puts a stretch into one page. False when it is not full any more, when there is no page to be had now, or none by this
    system.
    """
    if not _is_full(address, size):  # else all of what has been given back since would be in use again
        return False
    return int(_madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_COLLAPSE)) == 0
