"""Who spends the machine's CPU time while a replicated vhost is measured: brokers, the engine's processes by their kind, and all
else.

Times of processes are those of their own clocks; that of the machine, and of processes that have ended, are `/proc`'s, in
ticks of 10 ms. `client` is this process with those that it has started and that have ended: the load generator, and a quarter
of a second in which it starts. `other` is whatever is not told apart, the kernel's threads too.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from perf import machine

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
SERVER_PROCESS: Final = re.compile(
    r"^postgres: (walsender|walreceiver|startup|checkpointer|background writer|walwriter|autovacuum)"
)
SESSION: Final = re.compile(r"^postgres: .* [\d.]+\((\d+)\) ")
KAFKA: Final = "kafka.Kafka"


class Shares:
    """Made before what is measured; `brokers` is the role of each broker's process, by its pid."""

    def __init__(self, brokers: Mapping[int, str]) -> None:
        self._brokers = dict(brokers)
        self._times = process_times()
        self._busy = machine.busy_s()

    def so_far(self) -> dict[str, float]:
        """CPU seconds by role since this was made, and of "all"."""
        sessions = session_owners(self._brokers)
        found: dict[str, float] = defaultdict(float)
        for pid, seconds in process_times().items():
            if role := role_of(pid, self._brokers, sessions):
                found[role] += seconds - self._times.get(pid, 0.0)
        busy = machine.busy_s() - self._busy
        return {**found, "other": busy - sum(found.values()), "all": busy}


def per_gb(times: Mapping[str, float], size: int) -> dict[str, float]:
    """CPU seconds for a GB, of those for `size` bytes; the largest first, without what has spent none."""
    largest = sorted(times.items(), key=lambda item: -item[1])
    return {role: round(seconds / size * 1e9, 2) for role, seconds in largest if seconds > 0}


def process_times() -> dict[int, float]:
    """CPU seconds of each process so far, by its own clock, and those of its children that have ended, by the kernel's ticks."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            found[pid] = machine.process_cpu_s(pid) + sum(map(int, words[13:15])) * TICK_S
        except OSError:  # it has ended meanwhile
            continue
    return found


def role_of(pid: int, brokers: Mapping[int, str], sessions: Mapping[int, str]) -> str:
    """A broker's, of those given; that of a process of the engine; "client" for this one; or ""."""
    if pid in brokers:
        return brokers[pid]
    if pid == os.getpid():
        return "client"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    if found := SERVER_PROCESS.match(words):
        return found[1]
    if found := SESSION.match(words):
        return f"session of {sessions.get(int(found[1]), 'client')}"
    return "kafka" if KAFKA in words else ""


def session_owners(brokers: Mapping[int, str]) -> dict[int, str]:
    """The role of the broker that has a connection, by the port at its own end."""
    ports = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        ports[words[9]] = int(words[1].rpartition(":")[2], 16)
    found = {}
    for pid, role in brokers.items():
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
                inode = str(link.readlink()).removeprefix("socket:[").removesuffix("]")
                if inode in ports:
                    found[ports[inode]] = role
    return found
