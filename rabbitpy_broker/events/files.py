"""The files of the event journal: segments that are appended to, their sidecars with names, and which of them are kept.

A segment is closed at `segment_size` bytes, and the next one begins; a start of the broker always begins a new one.
Then the oldest closed segments are removed until the others fit `max_size` and none is older than `max_age_s`. A thread
does it, for removing a file of that size takes the file system long. Every sidecar has the names of all that is alive
when its segment begins, so each segment can be read by itself.

Writes go to the operating system at once and are never synced: they outlive the process, not the machine. A write that
fails loses its events, not the broker: the log says so once, and the segment that the next sound write begins has
AFTER_GAP in its header.

What must stay true: a name is written before the first record with its id; a segment is CLOSED before the next is made.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.events.journal import EventSink
from rabbitpy_broker.events.layout import (
    AFTER_GAP,
    CLEAN,
    CLOSED,
    HEADER_SIZE,
    RECORD_SIZE,
    SUFFIX,
    Header,
    names_name,
    pack_header,
    segment_name,
)

MACHINE_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
OFF: Final = "off.names"  # the broker ran without its event journal after the segments up to the number in it


def machine_boot_id() -> bytes:
    """16 bytes that tell one boot of this machine from another; zeros where the system has no such id."""
    try:
        return bytes.fromhex(MACHINE_BOOT_ID.read_text(encoding="ascii").strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


class EventFiles(EventSink):
    """The files of one folder. Sizes in bytes, ages in seconds, 0 for no limit. `log` is a structlog logger."""

    def __init__(self, folder: Path, segment_size: int, max_size: int, max_age_s: float, log: Any) -> None:
        self.folder = folder
        self._segment_size = segment_size
        self._max_size = max_size
        self._max_age_s = max_age_s
        self._log = log
        self._boot_id = os.urandom(16)
        self._machine = machine_boot_id()
        self._boot = 0
        self._number = 0
        self._made_at_ns = 0
        self._flags = 0
        self._fd = -1
        self._names_fd = -1
        self._size = 0
        self._alive: dict[int, bytes] = {}
        self._new_names: list[bytes] = []
        self._failed = False
        self._remover: threading.Thread | None = None

    def open(self) -> None:
        """Makes the folder and the first segment of this boot. Raises StartError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            numbers = self._numbers()
            self._number = numbers[-1] if numbers else 0
            self._boot = self._number + 1
            off = self.folder / OFF
            self._begin(AFTER_GAP if off.exists() else 0)
            off.unlink(missing_ok=True)
            self._remove_old(self._number)
        except OSError as error:
            raise StartError(f"event journal: {error}") from None

    def _numbers(self) -> list[int]:
        """The numbers of the segments that are there, in order."""
        stems = (path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    # -- what the journal asks for --------------------------------------------------------------------------------

    def name(self, number: int, kind: str, vhost: str, name: str, more: dict[str, object]) -> None:
        line = {"id": number, "kind": kind, "vhost": vhost, "name": name, **more}
        raw = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        self._alive[number] = raw
        self._new_names.append(raw)

    def forget(self, number: int) -> None:
        self._alive.pop(number, None)

    def write(self, records: bytes) -> None:
        try:
            if self._failed:
                self._begin(AFTER_GAP)
            if self._new_names:
                _write(self._names_fd, b"".join(self._new_names))
                self._new_names.clear()
            _write(self._fd, records)
            self._size += len(records)
            if self._failed:
                self._failed = False
                self._log.info("event journal goes on", segment=self._number)
            if self._size >= self._segment_size:
                self._close_segment(CLOSED)
                self._begin(0)
                self._start_removing()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Closes the last segment after an orderly stop: no more records come."""
        if self._remover is not None:
            self._remover.join()
            self._remove_or_warn(self._number)
        if self._failed:
            return
        try:
            self._close_segment(CLOSED | CLEAN)
        except OSError as error:
            self._fail(error)

    # -- segments -------------------------------------------------------------------------------------------------

    def _begin(self, flags: int) -> None:
        self._number += 1
        self._made_at_ns = time.time_ns()
        self._flags = flags
        self._size = HEADER_SIZE
        self._new_names = []
        names = self.folder / names_name(self._number)
        segment = self.folder / segment_name(self._number)
        mode = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            # The names first: whoever finds the segment finds them too.
            self._names_fd = os.open(names, mode, 0o600)
            _write(self._names_fd, b"".join(self._alive.values()))
            self._fd = os.open(segment, mode, 0o600)
            self._write_header()
        except OSError:
            self._close_files()
            segment.unlink(missing_ok=True)
            names.unlink(missing_ok=True)
            self._number -= 1
            raise

    def _write_header(self) -> None:
        header = Header(
            self._number, self._boot, self._made_at_ns, self._boot_id, self._machine, self._flags
        )
        data = pack_header(header)
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError("the header was not written whole")
        os.lseek(self._fd, self._size, os.SEEK_SET)

    def _close_segment(self, flags: int) -> None:
        self._flags |= flags
        self._write_header()
        self._close_files()

    def _close_files(self) -> None:
        for fd in (self._fd, self._names_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._names_fd = -1

    def _fail(self, error: OSError) -> None:
        """Gives the segment up after a failed write. Its whole records stay, for they may have been read; a segment
        without any goes.
        """
        if not self._failed:
            self._log.error("events lost", path=str(self.folder), error=str(error))
        self._failed = True
        try:
            if self._fd >= 0:
                size = os.fstat(self._fd).st_size
                os.ftruncate(self._fd, size - size % RECORD_SIZE)
                self._close_files()
                if size < HEADER_SIZE + RECORD_SIZE:
                    (self.folder / segment_name(self._number)).unlink()
                    (self.folder / names_name(self._number)).unlink()
                    self._number -= 1
        except OSError as again:
            self._log.warning("event journal not closed", path=str(self.folder), error=str(again))
            self._fd = self._names_fd = -1

    def _start_removing(self) -> None:
        """Starts a thread that removes old segments, unless one runs; the next segment asks again."""
        if self._remover is None or not self._remover.is_alive():
            self._remover = threading.Thread(
                target=self._remove_or_warn, args=(self._number,), name="old events", daemon=True
            )
            self._remover.start()

    def _remove_or_warn(self, current: int) -> None:
        try:
            self._remove_old(current)
        except OSError as error:
            self._log.warning("old events not removed", path=str(self.folder), error=str(error))

    def _remove_old(self, current: int) -> None:
        """Removes the oldest segments that are too many or too old; never the current one, which is written."""
        sizes: list[tuple[int, int, float]] = []
        for number in self._numbers():
            stat = (self.folder / segment_name(number)).stat()
            sizes.append((number, stat.st_size, stat.st_mtime))
        total = sum(size for _, size, _ in sizes)
        now = time.time()
        for number, size, changed_at in sizes:
            too_much = self._max_size > 0 and total > self._max_size
            too_old = self._max_age_s > 0 and now - changed_at > self._max_age_s
            if number >= current or not (too_much or too_old):
                break
            (self.folder / segment_name(number)).unlink(missing_ok=True)
            (self.folder / names_name(number)).unlink(missing_ok=True)
            total -= size


def note_off(folder: Path) -> None:
    """Notes that the broker starts without its event journal: the segments there do not go on where they ended. Raises
    StartError.
    """
    if any(folder.glob(f"*{SUFFIX}")):
        try:
            (folder / OFF).touch(mode=0o600)
        except OSError as error:
            raise StartError(f"event journal: {error}") from None


def _write(fd: int, data: bytes) -> None:
    """Writes all of the data. Raises OSError."""
    written = os.write(fd, data) if data else 0
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])
