"""The memory of this process: how much it uses, how much it could ever have, and what it does with memory that is free.

What is used is resident memory, what the kernel kills for. What is available is the smaller of the machine's and what a
control group (a container) allows, because 40 % of the machine may be more than a container ever gets.

Memory that is free inside the process is resident until somebody gives it back. glibc does when it is asked; other
allocators (mimalloc in a free-threaded Python, jemalloc, musl's) cannot be asked, or give it back when they like. `give_back`
therefore does it itself: what an allocator hands out and nobody has written to yet, but is resident, was free.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None)
_malloc_trim: Final = getattr(_LIBC, "malloc_trim", None)  # glibc's
_mallopt: Final = getattr(_LIBC, "mallopt", None)
# mallopt(3)
M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3
KEPT_FREE: Final = 32 << 20  # bytes
HEAP_STEP: Final = 1 << 20  # bytes
LARGEST_IN_HEAP: Final = 32 << 20  # bytes; what glibc comes to by itself, at most

_mincore: Final[Any] = getattr(_LIBC, "mincore", None) if sys.platform == "linux" else None
_madvise: Final[Any] = getattr(_LIBC, "madvise", None)
_take: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("PyObject_Malloc", ctypes.pythonapi))
_free: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyObject_Free", ctypes.pythonapi))
MADV_DONTNEED: Final = 4  # madvise(2)
# Bytes: long stretches first, since they are quick, then what lies between blocks that are in use (a page of mimalloc's has
# 64 KiB). An allocator writes a little into small blocks: where many lay side by side, the last round takes that back.
BLOCK_SIZES: Final = (1 << 20, 160 << 10, 16 << 10, 1 << 20)
# musl's keeps what was a block of one class for others of it: the classes that have whole pages inside.
BLOCK_SIZES_OF_MUSL: Final = (131_040, 104_816, 87_344, 65_504, 52_400, 43_664, 32_736, 26_176, 21_808, 16_352)
MISSES_OF_MUSL: Final = 32  # as the next, where the classes are kept apart
MISSES: Final = 1024  # blocks in a row that were not resident: those that follow are new memory, too


class _SymbolInfo(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _base_of(function: Any) -> int | None:
    """Where the library that has this function begins in memory."""
    info = _SymbolInfo()
    found = _LIBC.dladdr(function, ctypes.byref(info)) if hasattr(_LIBC, "dladdr") else 0
    return info.base if found else None


def _allocator_can_be_asked() -> bool:
    """Whether Python's blocks are glibc's, which has a call for giving memory back: not with another one loaded before it."""
    if _malloc_trim is None or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    return _base_of(_LIBC.malloc) == _base_of(_malloc_trim)


_CAN_BE_ASKED: Final = _allocator_can_be_asked()


def mapped_files() -> int:
    """Bytes of `used` that are mapped from files: programs and libraries; 0 where nothing tells."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return 0
    found = re.search(r"^RssFile:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 of mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    )  # fmt: skip


def allocated_unused() -> int:
    """Bytes that glibc has from the system and that nobody uses; 0 where the allocator does not tell."""
    mallinfo2 = getattr(_LIBC, "mallinfo2", None)
    if mallinfo2 is None or not _CAN_BE_ASKED:
        return 0
    mallinfo2.restype = _MallocInfo
    return int(mallinfo2().fordblks)


def used() -> int:
    """Bytes of resident memory of this process; where there is no /proc, the most that it ever had."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    except FileNotFoundError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # getrusage(2): kilobytes, on macOS bytes


def keep_free() -> None:
    """Has some memory that becomes free stay with this process, since the next messages need it at once.

    glibc gives back whatever is more than 128 KiB at the end of its heap. A broker whose queues run empty in each turn would
    return and fetch its pages all the time, which costs up to a fifth of the CPU time at 1,500 bytes. It tunes itself only
    after larger blocks than those were freed, and no more when one of these three was set.
    """
    if _mallopt is not None:
        _mallopt(M_TRIM_THRESHOLD, KEPT_FREE)
        _mallopt(M_TOP_PAD, HEAP_STEP)
        _mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)


def give_back() -> None:
    """Gives memory that is free inside this process back to the system: what was paged out counts as used until then.

    With allocators other than glibc's that takes up to a quarter of a second for each gigabyte that is free, and some hundredths
    when there is none.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)
    if _mincore is not None and not _CAN_BE_ASKED:
        if _malloc_trim is None:
            for size in BLOCK_SIZES_OF_MUSL:
                _discard_free_blocks(size, MISSES_OF_MUSL)
        for size in BLOCK_SIZES:
            _discard_free_blocks(size, MISSES)


def _discard_free_blocks(size: int, misses_max: int) -> None:
    """Takes free blocks of this size from Python's allocator, has the system take their pages, and lets go of the blocks.

    The pages lie wholly inside of a block, and what is in a block that was just taken is nobody's: an allocator keeps what it
    needs to know outside of it, or writes it there after the block was freed.
    """
    page = resource.getpagesize()
    residency = ctypes.create_string_buffer(size // page)
    blocks: list[int] = []
    most = used() // size  # more cannot be free and resident
    misses = 0
    while misses < misses_max and len(blocks) < most:
        block = _take(size)
        if block is None:
            break
        blocks.append(block)
        begin = -(-block // page) * page
        pages = (block + size - begin) // page
        extent = ctypes.c_void_p(begin), ctypes.c_size_t(pages * page)
        is_known = pages > 0 and _mincore(*extent, residency) == 0
        # An allocator may have written a little into a block that is new.
        if is_known and residency.raw[:pages].count(b"\x01") > max(1, pages // 8):
            _madvise(*extent, MADV_DONTNEED)
            misses = 0
        else:
            misses += 1
    for block in blocks:
        _free(block)


def available(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup"), machine_bytes: int | None = None
) -> int:
    """Bytes that this process could ever have: the machine's memory, or less if a control group says so."""
    if machine_bytes is None:
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine_bytes, *_cgroup_limits(proc, cgroup)])


def _cgroup_limits(proc: Path, cgroup: Path) -> list[int]:
    """The limits of our control group and all above it (cgroups(7)); version 2 first, then the memory controller of 1."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, file = cgroup, "memory.max"
        elif "memory" in controllers.split(","):
            root, file = cgroup / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's, with nothing there; its own group then is the root.
        group = root / path.lstrip("/")
        for directory in (group, *group.parents):
            limit = _read_limit(directory / file)
            if limit is not None:
                limits.append(limit)
            if directory == root:
                break
    return limits


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" is no limit
