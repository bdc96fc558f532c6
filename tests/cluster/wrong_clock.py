"""A clock that jumps, under processes that do not know: what they take for the time of day is so many seconds off.

A small library, compiled here and preloaded, adds what a file says to the time of day (CLOCK_REALTIME, time, gettimeofday). The
clocks that only go on are left alone, as they are when a machine's clock is set.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cluster.engine_rigs import require

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off(void)
{
    char text[32];
    const char *file = getenv("WRONG_CLOCK");
    int fd = file ? syscall(SYS_openat, AT_FDCWD, file, O_RDONLY) : -1;
    if (fd < 0) return 0;
    long size = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    text[size > 0 ? size : 0] = 0;
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    long done = syscall(SYS_clock_gettime, clock, now);
    if (!done && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += off();
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *there)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (there) *there = exact.tv_sec;
    return exact.tv_sec;
}
"""


def compile_library(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    require(compiler is not None, "a C compiler")
    assert compiler is not None
    source, library = folder / "wrong_clock.c", folder / "wrong_clock.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, source], check=True, capture_output=True)
    library.chmod(0o755)
    return library


class WrongClock:
    """Of some processes, whose environment is to have `env`; everybody may read the folder."""

    def __init__(self, library: Path, file: Path) -> None:
        self.file = file
        self.env = {"LD_PRELOAD": str(library), "WRONG_CLOCK": str(file)}

    def jump(self, seconds: int) -> None:
        """So much later it is from now on than it is; negative: earlier."""
        new = self.file.with_suffix(".new")
        new.write_text(str(seconds))
        new.chmod(0o644)
        new.replace(self.file)
