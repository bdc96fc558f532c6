"""A write-ahead spool: messages in files on disk, from when the broker has sent them until Spark has committed them.

    <spoolDir>/lock                                            held by the one query that writes here
    <spoolDir>/00000000000000010000-00000000000000020000.arrow    the messages of offsets 10000 to 19999

A segment is an Arrow IPC stream of one batch. Its life: written under a name that begins with a dot, synced, renamed, the
folder synced; only then are its messages acked; deleted when Spark has committed all of it. What must stay true:

- A message that is acked is in a segment that survives a power failure, or was committed by Spark.
- Segments follow each other without a gap, and never change. Where there is a gap, somebody else has deleted files.
- After a crash between the rename and the ack the broker sends these messages again: they are then in two segments, the second
  time with `redelivered` set. This is the only way in which a message comes twice.

The folder belongs to a query as its checkpoint does: it is made, kept and deleted with it. Acking a segment takes no answer
from Spark, so a slow query holds no messages unacked; when `max_bytes` wait here for Spark, no more are taken from the queue.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pyarrow as pa

from rabbitpy_broker.pipeline.amqp.messages import to_batch
from rabbitpy_broker.pipeline.amqp.receiver import Receiver, last_tag
from rabbitpy_broker.pipeline.errors import PipelineError

# Messages that come in slower than segments fill wait so long for others.
LINGER_S: Final = 0.2
# A query that was started again waits so long for the one before it to end.
LOCK_TIMEOUT_S: Final = 15.0
STOP_TIMEOUT_S: Final = 10.0
# A segment is one batch of Arrow's, whose columns hold less than 2 GiB.
SEGMENT_BYTES: Final = 64 * 1024 * 1024
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.arrow")


@dataclass(frozen=True)
class Segment:
    """The file with the messages of offsets `base` to `end`, without `end`."""

    path: str
    base: int
    end: int
    size: int


@dataclass(frozen=True)
class Slice:
    """So many messages of a segment after the first `skip`."""

    path: str
    skip: int
    count: int


class Spool:
    """The folder as its one writer, or any reader, knows it. `lock` comes before everything that changes it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._lock_file: IO[bytes] | None = None
        self._segments: list[Segment] = []
        self._changes = threading.Lock()

    def lock(self) -> None:
        """Takes the folder, reads what is in it and clears away what was not finished. Raises PipelineError."""
        if self._lock_file is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        file = (self._folder / "lock").open("ab")
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.close()
                    raise PipelineError(f"spoolDir {self._folder}: another query uses it") from None
                time.sleep(0.1)
        self._lock_file = file
        for unfinished in self._folder.glob(".*.tmp"):
            unfinished.unlink()
        self._segments = sorted(self._found(), key=lambda segment: segment.base)

    def unlock(self) -> None:
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    @property
    def base(self) -> int | None:
        """The lowest offset that is kept; None of an empty spool."""
        return self._segments[0].base if self._segments else None

    @property
    def end(self) -> int | None:
        """The offset that the next message gets; None of an empty spool."""
        return self._segments[-1].end if self._segments else None

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    def append(self, batch: pa.RecordBatch, base: int) -> Segment:
        """Writes and syncs a segment; when this returns its messages may be acked."""
        end = base + batch.num_rows
        path = self._folder / f"{base:020d}-{end:020d}.arrow"
        aside = self._folder / f".{path.name}.tmp"
        with aside.open("wb") as file:
            with pa.ipc.new_stream(file, batch.schema) as writer:
                writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        aside.rename(path)
        _sync_folder(self._folder)
        segment = Segment(str(path), base, end, size)
        with self._changes:
            self._segments.append(segment)
        return segment

    def forget(self, offset: int) -> None:
        """Deletes the segments that are wholly below the offset."""
        with self._changes:
            gone = [segment for segment in self._segments if segment.end <= offset]
            self._segments = self._segments[len(gone) :]
        for segment in gone:
            Path(segment.path).unlink(missing_ok=True)

    def limited(self, start: int, max_rows: int, max_bytes: int) -> int:
        """The end of a range from `start` within both limits, but at least one message.

        Within a segment all messages count as equally large.
        """
        end, size = start, 0.0
        for segment in self._copy():
            first = max(segment.base, start)
            if segment.end <= first:
                continue
            rows = min(segment.end - first, start + max_rows - end)
            each = segment.size / (segment.end - segment.base)
            fitting = int((max_bytes - size) / each)
            if fitting < rows:
                return max(end + fitting, start + 1)
            end += rows
            size += rows * each
            if end - start >= max_rows:
                break
        return end

    def slices(self, start: int, end: int) -> list[Slice]:
        """Where the messages from `start` to `end` are; as many of them as there are."""
        return [
            Slice(segment.path, max(start - segment.base, 0), min(end, segment.end) - max(start, segment.base))
            for segment in self._copy() or sorted(self._found(), key=lambda segment: segment.base)
            if segment.base < end and segment.end > start
        ]

    def _copy(self) -> list[Segment]:
        with self._changes:
            return list(self._segments)

    def _found(self) -> Iterator[Segment]:
        for path in self._folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name is not None:
                yield Segment(str(path), int(name[1]), int(name[2]), path.stat().st_size)


def read(slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """The messages of these slices; anywhere that the folder can be read."""
    for part in slices:
        with pa.memory_map(part.path) as file, pa.ipc.open_stream(file) as reader:
            yield reader.read_next_batch().slice(part.skip, part.count)


class Spooler:
    """A thread that brings what a receiver has into a spool, and acks it."""

    def __init__(
        self,
        receiver: Receiver,
        spool: Spool,
        base: int,
        queue: str,
        schema: pa.Schema,
        segment_rows: int,
        max_bytes: int,
    ) -> None:
        self._receiver = receiver
        self._spool = spool
        self._queue = queue
        self._schema = schema
        self._segment_rows = segment_rows
        self._max_bytes = max_bytes
        self._stopping = threading.Event()
        self._grown = threading.Event()
        self._failed: Exception | None = None
        self._is_writing = False
        self.end = base
        self._thread = threading.Thread(target=self._run, name="amqp spool", daemon=True)
        self._thread.start()

    def wait(self, offset: int, timeout_s: float) -> int:
        """Returns when the spool reaches this offset, or after the time; the spool's end. Raises what ended the thread."""
        deadline = time.monotonic() + timeout_s
        while self.end < offset and self._failed is None:
            self._grown.clear()
            remaining = deadline - time.monotonic()
            if remaining <= 0 or (self.end < offset and not self._grown.wait(remaining)):
                break
        if self._failed is not None:
            raise self._failed
        return self.end

    def is_idle(self) -> bool:
        """True when everything that the receiver had is below `end`."""
        return self._receiver.waiting() == 0 and not self._is_writing

    def stop(self) -> None:
        """Ends the thread; what it has not written stays in the queue."""
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._spool.size >= self._max_bytes:
                    self._stopping.wait(LINGER_S)
                elif self._receiver.wait(self._segment_rows, LINGER_S):
                    self._is_writing = True  # before anything is taken: see `is_idle`
                    self._write()
                    self._is_writing = False
        # The disk is full, or the receiver has ended: raised in the thread that waits for this one.
        except Exception as error:  # noqa: BLE001
            self._failed = error
            self._grown.set()

    def _write(self) -> None:
        generation, deliveries = self._receiver.take(self._segment_rows, SEGMENT_BYTES)
        if not deliveries:
            return
        batch = to_batch(deliveries, self._queue, self.end, self._schema)
        segment = self._spool.append(batch, self.end)
        self._receiver.ack(generation, last_tag(deliveries))
        self.end = segment.end
        self._grown.set()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
