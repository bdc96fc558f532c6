"""A disk that goes wrong on demand, under a daemon that does not know.

A small library, compiled here and preloaded into the daemon, stands between it (SQLite included) and the C library.
Before each call that touches a file it reads a rules file; as long as one of the rules there fits the call and the
file's path, the call fails with the rule's errno, or is held until the rule is gone. Each call that meets a rule is
noted in a second file, so that a test knows that the trouble was met and did not pass by.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* One look at the rules; each line is "calls|part of a path|errno", or "hold" for errno. -1: held. */
static int look(const char *call, const char *path)
{
    char rules[4096], word[64];
    const char *file = getenv("TROUBLE_RULES");
    if (!file) return 0;
    int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t size = syscall(SYS_read, fd, rules, sizeof rules - 1);
    syscall(SYS_close, fd);
    if (size <= 0) return 0;
    rules[size] = 0;
    snprintf(word, sizeof word, ",%s,", call);
    char *rest, *rule = strtok_r(rules, "\n", &rest);
    for (; rule; rule = strtok_r(NULL, "\n", &rest)) {
        char *part = strchr(rule, '|');
        if (!part) continue;
        *part++ = 0;
        char *what = strchr(part, '|');
        if (!what) continue;
        *what++ = 0;
        if (!strstr(rule, word) || !strstr(path, part)) continue;
        return strcmp(what, "hold") ? atoi(what) : -1;
    }
    return 0;
}

static void note(const char *call, const char *path)
{
    char name[4200], line[5000];
    snprintf(name, sizeof name, "%s.met", getenv("TROUBLE_RULES"));
    int fd = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0) return;
    int size = snprintf(line, sizeof line, "%s %s\n", call, path);
    syscall(SYS_write, fd, line, size);
    syscall(SYS_close, fd);
}

static int meet(const char *call, const char *path)
{
    int kept = errno, held = 0, code;
    while ((code = look(call, path)) == -1) {
        if (!held++) note(call, path);
        usleep(1000);
    }
    if (code > 0) note(call, path);
    errno = code > 0 ? code : kept;
    return code > 0;
}

static int meet_fd(const char *call, int fd)
{
    char link[64], path[4096];
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = kept;
    if (size <= 0) return 0;
    path[size] = 0;
    return path[0] == '/' && meet(call, path);
}

static int meet_open(const char *path, int flags)
{
    return meet("open", path) || ((flags & (O_ACCMODE | O_CREAT)) && meet("open to write", path));
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags, last) mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, last); mode = va_arg(a, int); va_end(a); }

/* Name, type of the result, parameters, arguments: fails with -1 when the call meets a rule. */
#define REPLACE(type, name, parameters, arguments, trouble) \
    type name parameters { return trouble ? -1 : NEXT(name) arguments; }
#define REPLACE_OPEN(name, parameters, arguments) \
    int name parameters { MODE(flags, flags) return meet_open(path, flags) ? -1 : NEXT(name) arguments; }
/* These return the errno. */
#define REPLACE_ALLOCATE(name, offset) \
    int name(int fd, offset at, offset size) { return meet_fd("allocate", fd) ? errno : NEXT(name)(fd, at, size); }

REPLACE_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
REPLACE_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
REPLACE_OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
REPLACE_OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))
#define OUT (int fd, const void *data, size_t size, off_t at)
#define IN (int fd, void *data, size_t size, off_t at)
REPLACE(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), meet_fd("write", fd))
REPLACE(ssize_t, pwrite, OUT, (fd, data, size, at), meet_fd("write", fd))
REPLACE(ssize_t, pwrite64, OUT, (fd, data, size, at), meet_fd("write", fd))
#define OUT_PARTS (int fd, const struct iovec *parts, int count, off_t at)
#define OUT_FLAGS (int fd, const struct iovec *parts, int count, off_t at, int flags)
REPLACE(ssize_t, pwritev, OUT_PARTS, (fd, parts, count, at), meet_fd("write", fd))
REPLACE(ssize_t, pwritev64, OUT_PARTS, (fd, parts, count, at), meet_fd("write", fd))
/* A write that is a sync too: when the sync fails, the bytes are where a write leaves them. */
#define REPLACE_SYNCED(name) ssize_t name OUT_FLAGS { \
    if (meet_fd("write", fd)) return -1; \
    if (!(flags & RWF_DSYNC) || !meet_fd("sync", fd)) return NEXT(name)(fd, parts, count, at, flags); \
    int code = errno; \
    NEXT(name)(fd, parts, count, at, flags & ~RWF_DSYNC); \
    errno = code; \
    return -1; }
REPLACE_SYNCED(pwritev2)
REPLACE_SYNCED(pwritev64v2)
REPLACE(ssize_t, pread, IN, (fd, data, size, at), meet_fd("read", fd))
REPLACE(ssize_t, pread64, IN, (fd, data, size, at), meet_fd("read", fd))
REPLACE(int, fsync, (int fd), (fd), meet_fd("sync", fd))
REPLACE(int, fdatasync, (int fd), (fd), meet_fd("sync", fd))
REPLACE(int, syncfs, (int fd), (fd), meet_fd("sync", fd))
REPLACE(int, ftruncate, (int fd, off_t size), (fd, size), meet_fd("truncate", fd))
REPLACE(int, ftruncate64, (int fd, off64_t size), (fd, size), meet_fd("truncate", fd))
REPLACE_ALLOCATE(posix_fallocate, off_t)
REPLACE_ALLOCATE(posix_fallocate64, off64_t)
REPLACE(int, unlink, (const char *path), (path), meet("remove", path))
REPLACE(int, unlinkat, (int at, const char *path, int flags), (at, path, flags), meet("remove", path))
REPLACE(int, rename, (const char *old, const char *new), (old, new), meet("rename", new))
REPLACE(int, mkdir, (const char *path, mode_t mode), (path, mode), meet("mkdir", path))
"""

GROWING = ("write", "allocate", "mkdir")  # what a full disk refuses
CHANGING = (*GROWING, "open to write", "truncate", "remove", "rename", "sync")  # what a read-only one refuses


def compile_library(folder: Path) -> Path:
    """The library to preload. Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("needs a C compiler")
    source, library = folder / "trouble.c", folder / "trouble.so"
    source.write_text(SOURCE)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"], check=True, capture_output=True
    )
    return library


class Trouble:
    """The rules for one daemon, whose environment is to have `env`."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.rules = folder / "rules"
        self.env = {"LD_PRELOAD": str(library), "TROUBLE_RULES": str(self.rules)}
        self._lines: list[str] = []

    def fail(self, calls: str | Iterable[str], path: str, code: int) -> None:
        """From now on these calls fail with this errno on paths with `path` in them. More rules may be added."""
        self._add(calls, path, str(code))

    def hold(self, calls: str | Iterable[str], path: str) -> None:
        """From now on these calls do not come back, until `end`."""
        self._add(calls, path, "hold")

    def disk_full(self, path: str = "/data/") -> None:
        self.fail(GROWING, path, errno.ENOSPC)

    def read_only(self, path: str = "/data/") -> None:
        self.fail(CHANGING, path, errno.EROFS)

    def end(self, path: str = "") -> None:
        """Everything works again, or what the rules for `path` have kept from working."""
        self._lines = [line for line in self._lines if path and f"|{path}|" not in line]
        self._write()

    def met(self, part: str = "") -> int:
        """How many calls have met a rule since `forget`; `part` is of a line such as "write /folder/data/format"."""
        try:
            lines = self.rules.with_name("rules.met").read_text().splitlines()
        except FileNotFoundError:
            return 0
        return sum(part in line for line in lines)

    def forget(self) -> None:
        """Counts anew."""
        self.rules.with_name("rules.met").unlink(missing_ok=True)

    def _add(self, calls: str | Iterable[str], path: str, action: str) -> None:
        names = (calls,) if isinstance(calls, str) else calls
        self._lines.append(f",{','.join(names)},|{path}|{action}\n")
        self._write()

    def _write(self) -> None:
        """In one step: no call sees half of the rules."""
        if not self._lines:
            self.rules.unlink(missing_ok=True)
            return
        new = self.rules.with_name("rules.new")
        new.write_text("".join(self._lines))
        new.replace(self.rules)
