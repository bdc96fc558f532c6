"""What a result has to say about where it comes from: machine, versions, commit, date."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
IDLE, WAITING, STEAL = 3, 4, 7  # their places among the kinds of CPU time
ABSOLUTE_PATH = re.compile(r"(?<![^\s='\"])/[^\s'\"]*")


def describe() -> dict[str, Any]:
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": {
            "cpu": proc_field("/proc/cpuinfo", "model name"),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def process_cpu_s(pid: int) -> float:
    """Of a process so far, by its own clock (clock_getcpuclockid(3)). Raises OSError when it has ended."""
    return time.clock_gettime(~pid << 3 | 2)


def proc_field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def command(tool: str) -> str:
    """The command line of this process, to be kept with its result: `python -m perf.TOOL …`, without this machine's paths."""
    return shlex.join(["python", "-m", f"perf.{tool}", *map(without_folders, sys.argv[1:])])


def without_folders(argument: str) -> str:
    """A command line's argument with each absolute path reduced: a program to VENV/bin/NAME, anything else to DIR/NAME."""

    def reduced(found: re.Match[str]) -> str:
        path = Path(found[0])
        return f"VENV/bin/{path.name}" if path.parent.name == "bin" else f"DIR/{path.name}"

    return ABSOLUTE_PATH.sub(reduced, argument)


class Stolen:
    """How much of the machine's CPU time its host took for others; only a virtual machine sees any."""

    def __init__(self) -> None:
        self._times = cpu_times()

    def share(self) -> float:
        """Since this was made or asked last, of the time of all cores: 0 to 1."""
        before, self._times = self._times, cpu_times()
        passed = [now - then for now, then in zip(self._times, before, strict=True)]
        return passed[STEAL] / sum(passed) if sum(passed) else 0.0


def busy_s() -> float:
    """CPU time that all that runs on this machine has used so far, in seconds."""
    times = cpu_times()
    return (sum(times) - times[IDLE] - times[WAITING] - times[STEAL]) / os.sysconf("SC_CLK_TCK")


def cpu_times() -> list[int]:
    """The eight exclusive kinds of /proc/stat, user to steal, in ticks of all cores; all 0 where there is no such file."""
    try:
        words = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return [0] * (STEAL + 1)
    return [int(word) for word in words[1 : STEAL + 2]]


def commit() -> str:
    """The checkout's commit, with a + when files differ from it; empty outside a checkout."""
    try:
        name = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "--no-optional-locks", "status", "--porcelain"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")


def save(tool: str, result: dict[str, Any], path: Path | None = None) -> Path:
    """Writes a result with where it comes from; by default to perf/results/TOOL-DATE.json."""
    if path is None:
        path = RESULTS / f"{tool}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"tool": tool, **describe(), **result}, indent=1) + "\n")
    return path
