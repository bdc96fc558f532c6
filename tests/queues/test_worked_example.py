"""The worked examples of docs/variable-queue.md, run: the tables there must show what a queue really does."""

from __future__ import annotations

from pathlib import Path

from rabbitpy_broker.queues.msg_status import MsgStatus, StatusMaker
from rabbitpy_broker.queues.queue_settings import PERSIST
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.storage.sync import SyncGroup
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore
from storage.faulty_disk import CrankedThreads, MemoryDisk
from storage.small_store import Log, message
from store_host import HostOf

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "variable-queue.md"
SMALL = 100
LARGE = 5_000


class Example:
    """One durable queue whose segments hold 8 places; each `note` is a row of the table."""

    def __init__(self, lazy: bool = False) -> None:
        settings = StoreSettings()
        settings.segment_entry_count = 8
        self.threads = CrankedThreads()
        store = VHostStore(MemoryDisk(), self.threads, "/v", settings, Log(is_sound=True), HostOf(self._on_due))
        store.recover({})
        self.journal = store.journal
        self._due: list[SyncGroup] = []
        self.index = store.new_index(1, True, StatusMaker())
        self.queue = VariableQueue(self.index, PERSIST, lazy, int(settings.queue_index_embed_msgs_below))
        self.unacked: list[MsgStatus] = []
        self.published = 0
        self.rows: list[str] = []

    def _on_due(self, group: SyncGroup) -> None:
        self._due.append(group)

    def publish(self, count: int, size: int = SMALL, persistent: bool = True) -> None:
        for _ in range(count):
            self.queue.publish(message(self.published, size, persistent))
            self.published += 1

    def end_turn(self) -> None:
        """The epoch that is due is written, synced and settled, and so is what follows from it."""
        while self._due:
            self._due.pop().begin_if_due()
            self.threads.crank_all()

    def settle_disk(self) -> None:
        self.end_turn()
        self.threads.crank_all()

    def tick(self) -> None:
        self.journal.tick()
        for _ in self.journal.ticking_users():
            pass
        self.threads.crank_all()
        self.queue.tick(1.0)

    def fetch(self, count: int) -> None:
        self.unacked.extend(self.queue.fetch() for _ in range(count))

    def ack_all(self) -> None:
        for status in self.unacked:
            self.queue.ack(status)
        self.unacked = []

    def note(self, step: str) -> None:
        queue = self.queue
        queue.check()
        alpha, beta, gamma, delta = queue.state_counts()
        in_segments = sum(int(segment.live) for segment in self.index.segments.by_num.values())
        cells = [
            *(queue.q1.count(), queue.q2.count(), queue.delta_count, queue.q3.count(), queue.q4.count()),
            *(alpha, beta, gamma, delta, queue.unacked),
            queue.ram_msg_count + queue.ram_unacked_count,
            *(self.index.journal_live, in_segments),
        ]
        self.rows.append(f"| {step} | " + " | ".join(str(int(cell)) for cell in cells) + " |")


def table_after(heading: str) -> list[str]:
    """The rows of the first table below a heading, without its head."""
    text = DOCUMENT.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n#")[0]
    return [line for line in text.splitlines() if line.startswith("|")][2:]


def compare(example: Example, heading: str) -> None:
    assert example.rows == table_after(heading), "the table should be:\n" + "\n".join(example.rows)


def test_a_queue_that_outgrows_its_memory() -> None:
    example = Example()
    queue = example.queue
    example.publish(2_000)
    example.note("1. publish 2,000 messages")
    example.end_turn()
    example.note("2. their epoch is settled")
    queue.set_target_ram_count(400)
    queue.reduce_memory_use()
    example.note("3. the target falls to 400")
    example.settle_disk()
    queue.reduce_memory_use()
    example.note("4. the journal has been scattered")
    example.publish(1_000)
    example.note("5. publish 1,000 more")
    example.end_turn()
    queue.reduce_memory_use()
    example.note("6. their epoch is settled")
    example.settle_disk()
    queue.reduce_memory_use()
    example.note("7. scattered again")
    example.fetch(300)
    example.note("8. fetch 300")
    queue.reduce_memory_use()
    example.note("9. memory is looked at")
    example.fetch(700)
    example.note("10. fetch 700")
    queue.reduce_memory_use()
    example.note("11. memory is looked at")
    queue.requeue(example.unacked[:100])
    del example.unacked[:100]
    example.note("12. requeue the first 100")
    example.ack_all()
    example.note("13. ack the other 900")
    example.fetch(2_100)
    example.note("14. fetch the other 2,100")
    example.ack_all()
    example.tick()
    example.note("15. ack them; a tick")
    example.publish(100)
    example.fetch(100)
    example.ack_all()
    example.end_turn()
    example.note("16. publish 100, fetch and ack them before the epoch begins")
    assert example.journal.elided == 100
    compare(example, "### A queue that outgrows its memory")


def test_each_state_in_a_lazy_queue() -> None:
    example = Example(lazy=True)
    example.publish(1, SMALL, persistent=True)
    example.publish(1, SMALL, persistent=True)
    example.publish(1, SMALL, persistent=False)
    example.publish(1, LARGE, persistent=True)
    example.publish(1, LARGE, persistent=False)
    example.note("1. publish the five")
    example.end_turn()
    example.note("2. their epoch is settled")
    example.queue.reduce_memory_use()
    example.note("3. memory is looked at")
    example.settle_disk()
    example.note("4. the disk has done what was asked")
    compare(example, "### Every state at once")
