"""The memory of this process: how much it uses, how much it could ever have, and what it does with memory that is free.

What is used is resident memory, what the kernel kills for. What is available is the smaller of the machine's and what a
control group (a container) allows, because 40 % of the machine may be more than a container ever gets.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Final

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
    """Gives memory that is free inside this process back to the system: what was paged out counts as used until then."""
    if _malloc_trim is not None:
        _malloc_trim(0)


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
