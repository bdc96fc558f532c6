"""A store with streams on a disk in RAM, and readers that remember what they were told."""

from __future__ import annotations

from collections.abc import Iterable

from librt.strings import read_i16_be, read_i32_be

from rabbitpy_broker.storage.stream_chunk import StreamChunk
from rabbitpy_broker.storage.stream_log import StreamLog, StreamReaderHost
from rabbitpy_broker.storage.stream_reader import ReaderHost
from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore
from storage.faulty_disk import CrankedThreads, MemoryDisk
from storage.small_store import Log
from store_host import HostOf

ADDRESS = b"\x00\x01s"


def content(number: int, size: int = 20) -> bytes:
    """Every byte tells which message it is."""
    return (b"%08d" % number + bytes((number * 31 + at * 7) % 251 for at in range(size)))[: max(8, size)]


def entries(chunk: StreamChunk) -> list[tuple[int, bytes]]:
    """Offset and content of each message of a chunk."""
    found = []
    pos = 0
    offset = int(chunk.first_offset)
    while pos < len(chunk.data):
        size = read_i32_be(chunk.data, pos)
        address = read_i16_be(chunk.data, pos + 4)
        assert chunk.data[pos + 6 : pos + 6 + address] == ADDRESS
        found.append((offset, chunk.data[pos + 6 + address : pos + 4 + size]))
        pos += 4 + size
        offset += 1
    assert offset == chunk.end_offset
    return found


class Consumer(ReaderHost):
    """Reads on from an offset, and keeps what it got."""

    def __init__(self, log: StreamLog, offset: int = 0, values: Iterable[bytes] = (), unfiltered: bool = False) -> None:
        self.log = log
        self.offset = offset
        self.got: list[tuple[int, bytes]] = []
        self.told = 0
        self.reader = log.reader(self)
        if values:
            self.reader.set_filter(list(values), unfiltered)

    def readable(self) -> None:
        self.told += 1
        self.take()

    def take(self) -> None:
        """Everything that can be had without waiting."""
        while True:
            chunk = self.reader.chunk(self.offset)
            if chunk is None:
                return
            assert chunk.end_offset <= self.log.committed
            for offset, body in entries(chunk):
                if offset >= self.offset:
                    self.got.append((offset, body))
            self.offset = int(chunk.end_offset)


class Settled(EpochWaiter):
    def __init__(self) -> None:
        self.outcomes: list[bool] = []

    def epoch_settled(self, epoch: int, ok: bool) -> None:
        self.outcomes.append(ok)


class Told(StreamReaderHost):
    def __init__(self) -> None:
        self.times = 0

    def committed(self) -> None:
        self.times += 1


class StreamStore:
    """One vhost's store on `disk`, made or recovered, with these streams. `now_ms` is the clock.

    The numbers are small: segments of about three chunks, chunks of about three messages, journal files of three blocks.
    """

    def __init__(self, disk: MemoryDisk | None = None, streams: Iterable[int] = (1,), is_sound: bool = True) -> None:
        self.disk = disk or MemoryDisk()
        self.threads = CrankedThreads()
        self.now_ms = 1_000_000
        settings = StoreSettings()
        settings.journal_file_size_limit = 4 * 4096
        sizes = settings.streams
        sizes.chunk_bytes = 120
        sizes.move_bytes = 600
        sizes.move_chunks = 16
        sizes.batch_bytes = 2000
        sizes.kept_bytes = 200
        sizes.read_bytes = 400
        sizes.small_bytes = 200
        self._is_due = False
        self.store = VHostStore(self.disk, self.threads, "/v", settings, Log(is_sound), HostOf(self._due))
        self.store.stream_scatter.clock = lambda: self.now_ms
        self.store.recover({}, streams)
        self.logs = {queue_id: self.store.streams[queue_id] for queue_id in streams}
        for log in self.logs.values():
            log.settings.max_segment_bytes = 400

    @property
    def log(self) -> StreamLog:
        return self.logs[min(self.logs)]

    def _due(self, group: SyncGroup) -> None:
        self._is_due = True

    def is_due(self) -> bool:
        return self._is_due

    def append(self, number: int, size: int = 20, value: bytes | None = None, to: int = 1) -> int:
        return int(self.logs[to].append(ADDRESS, content(number, size), value, self.now_ms))

    def end_turn(self) -> None:
        if self._is_due:
            self._is_due = False
            self.store.journal.begin_if_due()

    def sync(self) -> None:
        """Until nothing is due and nothing under way."""
        for _ in range(300):
            self.end_turn()
            if not self.threads.crank() and not self._is_due:
                return
        raise AssertionError("the store never comes to rest")

    def idle(self) -> None:
        """A few seconds in which nothing happens."""
        for _ in range(3):
            self.now_ms += 1000
            self.store.tick()
            self.sync()

    def stop(self, at_most: int = 200) -> bool:
        """A clean stop. False when its `at_most` steps were over before it was, or the disk failed at the end."""
        self.store.stop_work()
        for _ in range(at_most):
            if self.store.push():
                self.threads.run(self.store.stop({}).run, self._written)
                self.threads.crank_all()
                return self._is_clean
            self.threads.crank()
        return False

    def _written(self, error: Exception | None) -> None:
        self._is_clean = error is None


def everything(store: StreamStore, queue_id: int) -> list[tuple[int, bytes]]:
    """All that a consumer gets that reads from the start."""
    consumer = Consumer(store.logs[queue_id])
    consumer.take()
    for _ in range(10_000):
        if not store.threads.crank():
            break
    assert consumer.reader.chunk(consumer.offset) is None and not consumer.reader.reading
    consumer.reader.close()
    return consumer.got
