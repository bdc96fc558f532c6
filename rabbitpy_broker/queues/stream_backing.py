"""What a stream has in the place of a backing queue: nothing that is ready or unacked, since its messages stay.

So nobody who shares memory among queues, or holds publishers until a queue is shorter, has anything to do with a stream.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.events.journal import QueueEvents
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import AckWaits, BackingQueue, Figures
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.stream_log import StreamLog


class StreamBacking(BackingQueue):
    """See BackingQueue. What is missing here is never asked of a stream."""

    def __init__(self, log: StreamLog) -> None:
        super().__init__()
        self.log = log

    def delete(self) -> None:
        self.log.delete()

    def record(self, events: QueueEvents) -> None:
        pass

    def tick(self, now: float) -> None:
        pass

    def ram_duration(self) -> float:
        return float("inf")

    def set_ram_duration_target(self, duration: float) -> None:
        pass

    def stop(self, next_seq_ids: dict[QueueIndex, int]) -> None:
        pass  # the store stops the log

    def note_seq_ids(self, found: dict[int, int]) -> None:
        pass  # the last segment always tells the next offset

    def set_lazy(self, lazy: bool) -> None:
        pass

    def set_confirm_mode(self, mode: i64) -> None:
        pass

    def head(self) -> Message | None:
        return None

    def publishes_waiting(self) -> i64:
        return 0

    def add_waits(self, waits: AckWaits) -> None:
        pass

    def add_figures(self, figures: Figures) -> None:
        pass

    def count_owing(self) -> i64:
        return 0

    def check(self) -> None:
        assert self.len == 0, "a stream has nothing that is ready"
        assert self.unacked == 0, "a stream has nothing that is unacked"
