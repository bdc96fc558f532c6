"""The scatter of streams."""

from __future__ import annotations

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.journal import Journal
from rabbitpy_broker.storage.stream_log import StreamLog, StreamMover
from rabbitpy_broker.storage.stream_segments import StreamSegment
from rabbitpy_broker.storage.sync import Threads
from rabbitpy_broker.storage.trouble import Trouble


class StreamScatter(StreamMover):
    """Moves nothing yet."""

    def __init__(self, disk: Disk, threads: Threads, journal: Journal, trouble: Trouble) -> None:
        self.disk = disk
        self.threads = threads
        self.journal = journal
        self.trouble = trouble

    def move(self, log: StreamLog) -> None:
        pass

    def remove(self, log: StreamLog, segments: list[StreamSegment]) -> None:
        pass

    def forget(self, log: StreamLog) -> None:
        pass
