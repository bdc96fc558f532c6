"""A vhost's journal and queue indexes with small numbers, on a disk in RAM and threads that work when they are told to.

Segments hold 8 places; a journal file three blocks, that is three epochs of small messages; 20 entries of one queue in
the journal are too many. The rig plays queues and turn: it makes places, calls `begin_if_due` for who asked for it, and
can tell what a start after kill -9 would find.
"""

from __future__ import annotations

from typing import Any

from rabbitpy_broker.queues.msg_status import MsgStatus, StatusMaker
from rabbitpy_broker.storage.journal_scan import Replay, replay
from rabbitpy_broker.storage.records import ACK, PUBLISH, read_entries
from rabbitpy_broker.storage.sync import EpochWaiter
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore
from storage.faulty_disk import CrankedThreads, MemoryDisk
from storage.small_store import EMBED_BELOW, SMALL, message, number_of
from store_host import HostOf

BLOCKS = 3  # that fit into a journal file
PER_SEGMENT = 8
MAX_ENTRIES = 20
JOURNAL = "/v/journal"


class Log:
    """Remembers what was logged: (event, fields)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = error = info

    def events(self, *names: str) -> list[str]:
        return [event for event, _ in self.lines if not names or event in names]


class Waiter(EpochWaiter):
    def __init__(self, told: list[tuple[str, int, bool]], name: str) -> None:
        self.told = told
        self.name = name

    def epoch_settled(self, epoch: int, ok: bool) -> None:
        self.told.append((self.name, int(epoch), ok))


def settings() -> StoreSettings:
    small = StoreSettings()
    small.msg_store_file_size_limit = 4096
    small.queue_index_embed_msgs_below = EMBED_BELOW
    small.queue_index_max_journal_entries = MAX_ENTRIES
    small.segment_entry_count = PER_SEGMENT
    small.journal_file_size_limit = (1 + BLOCKS) * 4096
    return small


class JournalRig:
    """`queues` queues with the ids 1, 2, ... in `indexes`; `told` is what waiters were told, `troubles` what the broker was."""

    def __init__(self, queues: int = 1) -> None:
        self.disk = MemoryDisk()
        self.threads = CrankedThreads()
        self.log = Log()
        self.troubles: list[str] = []
        host = HostOf(self._on_due, self.troubles.append)
        self.store = VHostStore(self.disk, self.threads, "/v", settings(), self.log, host)
        self.store.recover({})
        self.journal = self.store.journal
        self.due = 0
        self.told: list[tuple[str, int, bool]] = []
        self.indexes = [self.store.new_index(number + 1, True, StatusMaker()) for number in range(queues)]
        self.index = self.indexes[0]
        self.next_seq_ids = [0] * queues

    def _on_due(self, group: object) -> None:
        assert group is self.journal
        self.due += 1

    def never_scatter(self) -> None:
        """However many entries a queue has in the journal."""
        for index in self.indexes:
            index.max_entries = 1 << 40

    # -- what a queue does --------------------------------------------------------------------------------------------

    def publish(self, count: int = 1, size: int = SMALL, at: int = 0) -> list[MsgStatus]:
        """Places with a message whose number is the seq_id."""
        places = []
        for _ in range(count):
            seq_id = self.next_seq_ids[at]
            self.next_seq_ids[at] += 1
            sent = message(seq_id, size, True)
            place = MsgStatus(seq_id, sent, sent.body_size)
            if size >= EMBED_BELOW:
                self.store.large.put(place, sent, False)
            self.indexes[at].publish(place)
            places.append(place)
        return places

    def ack(self, places: list[MsgStatus], at: int = 0) -> None:
        for place in places:
            self.indexes[at].ack(place)

    def wait(self, name: str = "") -> None:
        self.journal.wait(Waiter(self.told, name))

    # -- what the broker does -----------------------------------------------------------------------------------------

    def turn(self) -> None:
        assert self.due <= 1, "the journal marks itself once"
        if self.due:
            self.due = 0
            self.journal.begin_if_due()

    def tick(self) -> None:
        self.store.tick()

    def settle(self) -> None:
        """Until nobody does anything."""
        self.turn()
        for _ in range(200):
            if not self.threads.crank():
                if not self.due:
                    return
                self.turn()
        raise AssertionError("never comes to rest")

    def epoch(self, count: int = 1, size: int = SMALL, at: int = 0) -> list[MsgStatus]:
        """Publishes in an epoch of their own."""
        places = self.publish(count, size, at)
        self.settle()
        return places

    def idle(self) -> None:
        for _ in range(3):
            self.tick()
            self.settle()

    # -- what is on disk ----------------------------------------------------------------------------------------------

    def replay(self) -> Replay:
        return replay(self.disk, JOURNAL)

    def journal_files(self) -> dict[str, int]:
        """File number by name, of those on disk."""
        return {found.path.rpartition("/")[2]: int(found.num) for found in self.replay().files}

    def entries(self, queue_id: int = 1) -> list[tuple[int, int, int]]:
        """(kind, seq_id, count) of all that the journal's files have of a queue, in file order."""
        found = []
        for file in self.replay().files:
            data = self.read_file(file.path)
            pos = 4096
            while pos < len(data) and data[pos : pos + 4] == b"RPJB" and data[pos + 16 : pos + 24] == file.nonce:
                end = pos + 32 + int.from_bytes(data[pos + 4 : pos + 8], "big")
                at = pos + 32
                while at < end:
                    size = int.from_bytes(data[at + 8 : at + 12], "big")
                    if int.from_bytes(data[at : at + 8], "big") == queue_id:
                        found += read_entries(data, at + 12, at + 12 + size)
                    at += 12 + size
                pos = -(-end // 4096) * 4096
        return [(int(entry.kind), int(entry.seq_id), int(entry.count)) for entry in found]

    def published(self, queue_id: int = 1) -> list[int]:
        return [seq_id for kind, seq_id, _ in self.entries(queue_id) if kind == PUBLISH]

    def acked(self, queue_id: int = 1) -> list[int]:
        found: list[int] = []
        for kind, seq_id, count in self.entries(queue_id):
            if kind == ACK:
                found += range(seq_id, seq_id + count)
        return found

    def read_file(self, path: str) -> bytes:
        file = self.disk.open(path)
        data = file.read_at(0, file.size())
        file.close()
        return data

    def segments(self, at: int = 0) -> list[str]:
        return self.disk.list_dir(self.indexes[at].segments.path)

    def after_kill(self, at: int = 0, disk: MemoryDisk | None = None) -> list[int]:
        """The seq_ids that a start finds in a queue, whose messages are whole."""
        disk = (disk or self.disk).kill()
        log = Log()
        store = VHostStore(disk, CrankedThreads(), "/v", settings(), log)
        found = store.recover({index.queue_id: StatusMaker() for index in self.indexes})
        queue = found[self.indexes[at].queue_id]
        places = [place for num in sorted(queue.index.segments.by_num) for place in queue.index.segments.read(num)]
        places += queue.places
        queue.index.read_messages(places, False)
        for place in places:
            assert number_of(place.message) == place.seq_id
        assert queue.messages == len(places)
        assert not [line for line in log.lines if "damaged" in line[0] or "lost" in line[0]], log.lines
        return [int(place.seq_id) for place in places]


    def highest_after_start(self) -> int:
        """Behind which no place of the first queue is in a segment, as a start finds it."""
        store = VHostStore(self.disk.kill(), CrankedThreads(), "/v", settings(), Log())
        found = store.recover({index.queue_id: StatusMaker() for index in self.indexes})
        return int(found[self.index.queue_id].index.segments.highest)


def seq_ids(places: list[MsgStatus]) -> list[int]:
    return [int(place.seq_id) for place in places]
