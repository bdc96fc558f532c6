"""What does the store of streams cost by itself: an append, a read, the start of a long stream?

    python -m perf.stream_store --gigabytes 100

  append   messages are appended to one stream in epochs of `--epoch` messages; the time of the appends and of the loop's part
           of an epoch, without a disk: threads write to nowhere. And the same with the disk, moves to segments included.
  read     the stream that the second of these has left is read from its first offset on, by one reader and in threads.
  start    a stream of that many gigabytes is made of sparse files: each segment has its header, its last chunks and a
           sound index. Then a store is started on it, after a crash and after a clean stop. What it reads and holds must not
           depend on the length.

Exit code 1 when a start on the long stream takes more than a second longer than on a short one.
"""

from __future__ import annotations

import gc
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.stream_chunk import StreamChunk
from rabbitpy_broker.storage.stream_files import (
    HEADER_SIZE,
    ChunkParts,
    index_header,
    index_record,
    segment_header,
    segment_stem,
)
from rabbitpy_broker.storage.stream_reader import ReaderHost
from rabbitpy_broker.storage.sync import StoreHost, SyncGroup, Threads
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore

ADDRESS = b"\x00\x06stream"
SEGMENT_BYTES = 500_000_000
CHUNK_BYTES = 1_048_576
SLOWER_BY_S = 1.0


class Silent:
    """A logger that says nothing."""

    def info(self, event: str, **fields: Any) -> None:
        pass

    warning = error = info


class Host(StoreHost):
    """Begins an epoch when it is told to."""

    def __init__(self) -> None:
        self.due: SyncGroup | None = None

    def sync_due(self, group: SyncGroup) -> None:
        self.due = group

    def before_epoch(self) -> None:
        pass

    def disk_trouble(self, reason: str) -> None:
        if reason:
            raise SystemExit(f"the disk has failed: {reason}")

    def turn(self) -> None:
        group, self.due = self.due, None
        if group is not None:
            group.begin_if_due()


class RealThreads(Threads):
    """Two threads; what they are done with waits for `come_back`."""

    def __init__(self) -> None:
        self.under_way = 0
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._done: SimpleQueue[Any] = SimpleQueue()
        for _ in range(2):
            threading.Thread(target=self._work, daemon=True).start()

    def run(self, job: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self.under_way += 1
        self._jobs.put((job, done))

    def _work(self) -> None:
        while True:
            job, done = self._jobs.get()
            error = None
            try:
                job()
            except OSError as raised:
                error = raised
            self._done.put((done, error))

    def come_back(self, wait: bool) -> None:
        """What is done is told; with `wait` at least one job."""
        while self.under_way and (wait or not self._done.empty()):
            done, error = self._done.get()
            self.under_way -= 1
            done(error)
            wait = False


class Nowhere(DiskFile):
    def __init__(self, path: str) -> None:
        super().__init__(path, -1)

    def write_at(self, offset: int, data: bytes) -> None:
        pass

    def write_parts(self, offset: int, parts: list[bytes]) -> None:
        pass

    def write_synced(self, offset: int, parts: list[bytes]) -> None:
        pass

    def read_at(self, offset: int, size: int) -> bytes:
        return b""

    def size(self) -> int:
        return 0

    def allocate(self, size: int) -> None:
        pass

    def truncate(self, size: int) -> None:
        pass

    def sync(self) -> None:
        pass

    def start_sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class NoDisk(Disk):
    """Takes everything and keeps nothing."""

    def open(self, path: str, create: bool = False) -> DiskFile:
        return Nowhere(path)

    def exists(self, path: str) -> bool:
        return False

    def size(self, path: str) -> int:
        return 0

    def list_dir(self, path: str) -> list[str]:
        return []

    def make_dir(self, path: str) -> None:
        pass

    def add_dir(self, path: str) -> None:
        pass

    def remove(self, path: str) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass


class Store:
    """One vhost's store with one stream."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.host = Host()
        self.threads = RealThreads()
        self.store = VHostStore(disk, self.threads, path, StoreSettings(), Silent(), self.host)
        began = time.monotonic()
        self.store.recover({}, [1])
        self.start_s = time.monotonic() - began
        self.log = self.store.streams[1]

    def rest(self) -> None:
        """Until nothing is due and nothing under way, everything in segments."""
        for _ in range(3):
            self.store.tick()
            self.host.turn()
            while self.threads.under_way:
                self.threads.come_back(True)
                self.host.turn()

    def stop(self) -> None:
        self.store.stop_work()
        while not self.store.push():
            self.threads.come_back(True)
        self.store.stop({}).run()


def content(size: int) -> bytes:
    header = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x00\x00"
    framed = len(header).to_bytes(4, "big") + header + b"\xce"
    return framed + b"\x03\x00\x00" + size.to_bytes(4, "big") + bytes(size) + b"\xce"


def append(store: Store, messages: int, epoch: int, body: bytes) -> tuple[float, float]:
    """Seconds of the appends alone, and of everything until it is in segments."""
    began = time.monotonic()
    appending = 0.0
    log = store.log
    for _ in range(messages // epoch):
        before = time.perf_counter()
        for _ in range(epoch):
            log.append(ADDRESS, body, None, 1_700_000_000_000)
        appending += time.perf_counter() - before
        store.host.turn()
        store.threads.come_back(False)
        store.host.turn()
    store.rest()
    return appending, time.monotonic() - began


class Counting(ReaderHost):
    def __init__(self) -> None:
        self.told = False

    def readable(self) -> None:
        self.told = True


def read(store: Store) -> float:
    """Seconds in which a reader has come from the first offset to the last."""
    host = Counting()
    reader = store.log.reader(host)
    began = time.monotonic()
    offset = store.log.first_offset
    while offset < store.log.committed:
        chunk = reader.chunk(offset)
        if chunk is None:
            store.threads.come_back(True)
        else:
            offset = chunk.end_offset
    reader.close()
    return time.monotonic() - began


def make_long(folder: Path, gigabytes: int) -> int:
    """A stream of sparse files; returns the number of its segments. Each has its header and its last chunk."""
    queue = folder / "queues" / f"{1:016x}"
    queue.mkdir(parents=True)
    chunks = SEGMENT_BYTES // CHUNK_BYTES
    segments = max(1, gigabytes * 1_000_000_000 // SEGMENT_BYTES)
    body = b"\x00\x00\x00\x06\x00\x02\x00\x00\xce\xce"
    for number in range(segments):
        first = number * chunks
        stem = segment_stem(str(queue), first)
        index = index_header(1, first)
        position = int(HEADER_SIZE)
        for chunk in range(chunks - 1):
            index += index_record(first + chunk, 1_700_000_000_000, position, CHUNK_BYTES, 1)
            position += CHUNK_BYTES
        last = ChunkParts(StreamChunk(body, first + chunks - 1, 1, 1_700_000_000_000, b""))
        with Path(f"{stem}.stream").open("wb") as file:
            file.write(segment_header(1, first))
            file.seek(position)
            file.writelines(last.encoded())
        Path(f"{stem}.index").write_bytes(index + last.record(position))
    return segments


Start = tuple[int, float, float, int]


def is_slower(long: Start, short: Start) -> bool:
    """Whether a start on a long stream takes longer, beyond what a busy machine adds."""
    return max(long[1], long[2]) > max(short[1], short[2]) + SLOWER_BY_S


def started(gigabytes: int) -> Start:
    """Segments, seconds of a start after a crash and of one after a clean stop, KiB of memory that both needed."""
    with tempfile.TemporaryDirectory(prefix="rabbitpy-") as name:
        folder = Path(name) / "vhost"
        segments = make_long(folder, gigabytes)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        crashed = Store(Disk(), str(folder))
        assert crashed.log.committed == segments * (SEGMENT_BYTES // CHUNK_BYTES)
        crashed.stop()
        clean = Store(Disk(), str(folder))
        assert clean.store.clean
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return segments, crashed.start_s, clean.start_s, after - before


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--messages", default=1_000_000, show_default=True)
@click.option("--size", default=1_024, show_default=True, help="Bytes of a body.")
@click.option("--epoch", default=1_000, show_default=True, help="Messages of an epoch.")
@click.option("--gigabytes", default=100, show_default=True)
@click.option("--quick", is_flag=True, help="A few messages, to see that it runs.")
def main(messages: int, size: int, epoch: int, gigabytes: int, quick: bool) -> None:
    if quick:
        messages, gigabytes = 5_000, 2
    body = content(size)
    table = Table("what", "messages/s", "ns a message", title=f"{messages:,} messages of {size:,} bytes")

    def row(what: str, seconds: float) -> None:
        table.add_row(what, f"{messages / seconds:,.0f}", f"{seconds / messages * 1e9:,.0f}")

    appending, whole = append(Store(NoDisk(), "/nowhere"), messages, epoch, body)
    row("append", appending)
    row("append and epochs, to nowhere", whole)
    with tempfile.TemporaryDirectory(prefix="rabbitpy-") as name:
        store = Store(Disk(), f"{name}/vhost")
        row("append and epochs and segments, on disk", append(store, messages, epoch, body)[1])
        row("read from segments", read(store))
    Console().print(table)
    short, long = started(1), started(gigabytes)
    starts = Table("segments", "after a crash", "after a clean stop", "memory", title="start of a stream")
    for segments, crashed, clean, kib in (short, long):
        starts.add_row(f"{segments:,}", f"{crashed * 1000:.1f} ms", f"{clean * 1000:.1f} ms", f"{kib:,} KiB")
    Console().print(starts)
    sys.exit(1 if is_slower(long, short) else 0)


if __name__ == "__main__":
    main()
