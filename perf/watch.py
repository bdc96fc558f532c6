"""Looks at a broker while something is done to it: resident memory, bytes on disk, and whatever counters are handed in.

A thread looks four times a second for the peak of the memory, and puts down a row now and then: each second at first, and
half as often whenever there are more rows than anybody reads.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from perf.brokers import Broker

INTERVAL = 0.25
MAX_ROWS = 120


class Watch:
    """`with Watch(broker, counters) as watch:` around the phase; then `rows` and `peak_mib` are those of the phase."""

    def __init__(self, broker: Broker, counters: Callable[[], dict[str, Any]] = dict) -> None:
        self.broker = broker
        self.counters = counters
        self.rows: list[dict[str, Any]] = []
        self._peak_kib = 0
        self._row_seconds = 1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def peak_mib(self) -> float:
        return mib(self._peak_kib << 10)

    @property
    def end_mib(self) -> float:
        return float(self.rows[-1]["rss_mib"])

    def _run(self) -> None:
        due = 0.0
        while not self._ended.wait(INTERVAL):
            rss_kib = self.broker.rss_kib()
            self._peak_kib = max(self._peak_kib, rss_kib)
            now = time.monotonic() - self._started
            if now >= due:
                self._row(now, rss_kib)
                due = now + self._row_seconds - INTERVAL / 2
        rss_kib = self.broker.rss_kib()
        self._peak_kib = max(self._peak_kib, rss_kib)
        self._row(time.monotonic() - self._started, rss_kib)

    def _row(self, now: float, rss_kib: int) -> None:
        if len(self.rows) >= MAX_ROWS:
            self.rows = self.rows[::2]
            self._row_seconds *= 2
        row = {
            "second": round(now, 1),
            "rss_mib": mib(rss_kib << 10),
            "disk_mib": mib(disk_bytes(self.broker)),
        }
        self.rows.append(row | self.counters())


def mib(count: int) -> float:
    return round(count / 2**20, 1)


def folder_of(broker: Broker) -> Path:
    """The scratch folder of a broker that was started here; its data lies in `data`."""
    assert broker.session is not None
    return Path(f"/proc/{broker.session}/cwd").readlink()


def disk_bytes(broker: Broker) -> int:
    """What the broker's data takes of the disk, allocated space included; 0 where it is out of reach."""
    if broker.session is None:
        return 0
    total = 0
    try:
        folder = folder_of(broker) / "data"
    except OSError:  # it has ended
        return 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_blocks * 512
            except FileNotFoundError:  # deleted since it was listed
                continue
    return total


def add_rates(rows: list[dict[str, Any]], key: str) -> None:
    """Adds to each row how fast its counter grew since the row before."""
    before_s, before = 0.0, 0
    for row in rows:
        row[f"{key}_per_s"] = round((row[key] - before) / max(row["second"] - before_s, 0.001))
        before_s, before = row["second"], row[key]


def use_disk(folder: Path) -> str:
    """Has brokers put their data below this folder; returns its file system, and refuses one in memory."""
    found = file_system(folder.resolve())
    if found.startswith("tmpfs"):
        raise click.ClickException(f"{folder} is in memory (tmpfs); name a folder on a disk with --dir")
    tempfile.tempdir = str(folder.resolve())
    return found


def file_system(folder: Path) -> str:
    """The type and options of the file system that holds the folder."""
    best, found = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if folder.is_relative_to(mount) and len(mount) >= len(best):
            best, found = mount, f"{kind} ({options})"
    return found


def dir_option(tool: Callable[..., None]) -> Callable[..., None]:
    """--dir, for tools whose brokers need a disk."""
    return click.option(
        "--dir",
        "folder",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=tempfile.gettempdir(),
        help="A folder on the disk to measure; what is put there is removed at the end.",
    )(tool)
