"""An owner's store, the log of its epochs, and a follower's store, all on disks in RAM; and what the log says, as plain dicts.

The follower's directory must be what the log says up to where it stands, whatever became of the follower meanwhile: exactly, for
it decides nothing. When it takes over, the former owner is killed, follows, and may take over later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rabbitpy_broker.queues.msg_status import StatusMaker
from rabbitpy_broker.queues.queue_settings import PERSIST
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.storage.followed_store import FollowedStore
from rabbitpy_broker.storage.log_note import LogNote
from rabbitpy_broker.storage.records import PUBLISH, read_entries
from rabbitpy_broker.storage.restoring import Unpacking, restored_definitions, switch
from rabbitpy_broker.storage.snapshot import SnapshotJob
from rabbitpy_broker.storage.sync import EpochLog, EpochWaiter, SyncGroup
from rabbitpy_broker.storage.vhost_store import StoreSettings
from storage.faulty_disk import Choose, CrankedThreads, MemoryDisk
from storage.small_store import Log, message, number_of
from store_host import HostOf

QUEUES = (1, 2)
EMBED_ALL = 1 << 40


def settings() -> StoreSettings:
    """Numbers so small that short histories cross every border."""
    found = StoreSettings()
    found.queue_index_embed_msgs_below = EMBED_ALL
    found.queue_index_max_journal_entries = 20
    found.followed_max_journal_entries = 30
    found.segment_entry_count = 8
    found.journal_file_size_limit = 3 * 4096
    return found


class Said:
    """What blocks of a log say: of each queue the places that are alive, each with its body."""

    def __init__(self) -> None:
        self.alive: dict[int, dict[int, bytes]] = {queue_id: {} for queue_id in QUEUES}
        self.requeues: dict[int, dict[int, int]] = {queue_id: {} for queue_id in QUEUES}
        self.used = dict.fromkeys(QUEUES, 0)

    def take(self, block: bytes) -> None:
        pos = 0
        while pos < len(block):
            queue_id = int.from_bytes(block[pos : pos + 8], "big")
            end = pos + 12 + int.from_bytes(block[pos + 8 : pos + 12], "big")
            alive, requeues = self.alive[queue_id], self.requeues[queue_id]
            for entry in read_entries(block, pos + 12, end):
                first, behind = int(entry.seq_id), int(entry.seq_id + entry.count)
                if entry.kind == PUBLISH:
                    assert first in alive or first >= self.used[queue_id], "a seq_id was used twice"
                    alive[first] = block[entry.data + entry.size - entry.body_size - 1 : entry.data + entry.size - 1]
                elif entry.times:
                    requeues.update(dict.fromkeys(range(first, behind), int(entry.times)))
                else:
                    for seq_id in range(first, behind):
                        alive.pop(seq_id, None)
                        requeues.pop(seq_id, None)
                self.used[queue_id] = max(self.used[queue_id], behind)
            pos = end


class Recorder(EpochLog):
    """Takes an owner's epochs as the log would, when it is told to."""

    def __init__(self, blocks: list[bytes], term: int) -> None:
        self.blocks = blocks
        self.term = term
        self.is_taking = False
        self._pending: tuple[list[bytes], Callable[[int, Exception | None], None]] | None = None

    def begin(self) -> None:
        pass

    def append(self, payload: list[bytes], done: Callable[[int, Exception | None], None]) -> None:
        assert self._pending is None, "there is one at a time"
        self._pending = payload, done

    def take(self) -> bool:
        """Takes what is on its way, and says so. False when there is nothing."""
        if self._pending is None:
            return False
        (payload, done), self._pending = self._pending, None
        if payload:
            self.blocks.append(b"".join(payload))
        self.is_taking = True
        done(self.term << 40 | len(self.blocks) if payload else 0, None)
        self.is_taking = False
        return True


class Told(EpochWaiter):
    """Somebody who waits for an owner's epoch, and must hear of it when the log takes it, whatever becomes of its files."""

    def __init__(self, log: Recorder) -> None:
        self.log = log
        self.times = 0

    def epoch_settled(self, epoch: int, ok: bool) -> None:
        assert ok
        assert self.log.is_taking
        self.times += 1
        assert self.times == 1


class Owner:
    """Queues on a store that was handed over."""

    def __init__(self, store: FollowedStore, blocks: list[bytes], term: int) -> None:
        self.store = store
        self.queues: dict[int, VariableQueue] = {}
        for queue_id, found in store.recover(dict.fromkeys(QUEUES, StatusMaker())).items():
            queue = VariableQueue(found.index, PERSIST, False, EMBED_ALL)
            queue.recovered(found.next_seq_id, found.delta_end, found.places)
            self.queues[queue_id] = queue
        self.log = Recorder(blocks, term)
        store.own(self.log, self.next_seq_ids)
        self.held: dict[int, list] = {queue_id: [] for queue_id in QUEUES}

    def next_seq_ids(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for queue in self.queues.values():
            queue.note_seq_ids(found)
        return found


class Node:
    """A disk, and what runs on it."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.threads = CrankedThreads()
        self.is_sound = True
        self.position = 0
        self.store: FollowedStore

    def open(self) -> None:
        """Recovers it, as a follower; its journal says where it stands."""
        self.threads = CrankedThreads()
        self.store = FollowedStore(
            self.disk, self.threads, "/v", settings(), Log(self.is_sound), HostOf(self._due)
        )
        number = self.store.recover_followed(dict.fromkeys(QUEUES, StatusMaker()), [])
        self.position = number & ((1 << 40) - 1)

    def _due(self, journal: SyncGroup) -> None:
        self.is_due = True

    is_due = False


class World:
    """See above. `blocks` is the log; a position is the number of blocks before it."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.term = 1
        self.number = 0
        self.leader, self.follower = Node(), Node()
        self.leader.open()
        self.follower.open()
        self.owner = Owner(self.leader.store, self.blocks, self.term)
        self.waiting: list[Told] = []

    # -- the owner ----------------------------------------------------------------------------------------------------

    def publish(self, queue_id: int, count: int, size: int) -> None:
        for _ in range(count):
            self.number += 1
            self.owner.queues[queue_id].publish(message(self.number, size, True))
        self.waiting.append(Told(self.owner.log))
        self.leader.store.journal.wait(self.waiting[-1])

    def fetch(self, queue_id: int, count: int) -> None:
        queue = self.owner.queues[queue_id]
        for _ in range(min(count, int(queue.len))):
            self.owner.held[queue_id].append(queue.fetch())

    def ack(self, queue_id: int, numbers: Iterable[int]) -> None:
        held = self.owner.held[queue_id]
        for number in sorted({number for number in numbers if number < len(held)}, reverse=True):
            status = held.pop(number)
            self.owner.queues[queue_id].index.forget_requeues(status.seq_id)
            self.owner.queues[queue_id].ack(status)

    def give_back(self, queue_id: int) -> None:
        queue, held = self.owner.queues[queue_id], self.owner.held[queue_id]
        for status in held:
            queue.index.count_requeue(status.seq_id)
            queue.index.requeue_due(status.seq_id)
        queue.requeue(held)
        self.owner.held[queue_id] = []

    def purge(self, queue_id: int) -> None:
        self.owner.queues[queue_id].purge()

    def epoch(self, *, fails: int = 0) -> None:
        """Everything so far gets into the log; the owner's disk fails `fails` times when it is to take it too."""
        for code in [28] * fails:
            self.leader.disk.fail("write", code)
            self._settle()
            self.leader.disk.mend()
        self._settle()
        if self.leader.store.trouble.epoch:  # by a fault that was there before, of an epoch that was under way
            self.leader.disk.mend()
            self._settle()
        assert all(told.times == 1 for told in self.waiting)

    def owner_step(self, what: str) -> None:
        """One step of an epoch: it begins, the log has it, a thread writes it, or comes back; or the disk is to fail next."""
        threads = self.leader.threads
        if what == "begin":
            self.leader.store.journal.begin_if_due()
        elif what == "log":
            self.owner.log.take()
        elif what == "work":
            if threads.waiting:
                threads.work()
        elif what == "tell":
            if threads.worked:
                threads.tell()
        elif what == "fail":
            self.leader.disk.fail("write", 28)
        else:
            self.leader.disk.mend()

    def _settle(self) -> None:
        journal = self.leader.store.journal
        journal.tick()
        journal.begin_if_due()
        while self.owner.log.take() or self.leader.threads.crank():
            journal.begin_if_due()

    def owner_ticks(self) -> None:
        self.leader.store.tick()
        self._settle()

    # -- the follower -------------------------------------------------------------------------------------------------

    def follow(self, count: int) -> None:
        """Copies and applies so many blocks."""
        node = self.follower
        for block in self.blocks[node.position : node.position + count]:
            told: list[bool] = []
            copied = node.store.copy(block, self._number(node.position + 1), told.append)
            while not told:
                assert node.threads.crank()
            assert told == [True]
            for _ in node.store.applying(copied):
                pass
            node.position += 1
        self.check()

    def _number(self, position: int) -> int:
        return self.term << 40 | position

    def follower_ticks(self) -> None:
        for _ in self.follower.store.ticking_followed():
            pass
        self.check()

    def crank_follower(self, count: int) -> None:
        for _ in range(count):
            self.follower.threads.crank()
        self.check()

    def kill_follower(self, choose: Choose | None = None) -> None:
        """And start it again."""
        node = self.follower
        before = node.position
        node.disk = node.disk.kill() if choose is None else node.disk.crash(choose)
        node.is_sound = node.is_sound and choose is None
        node.open()
        assert node.position == before, "a block is synced when it was copied"
        self.check()

    def stop_follower(self) -> None:
        """Cleanly, and start it again."""
        node = self.follower
        node.store.stop_work()
        node.threads.crank_all()
        if not node.store.journal.is_settled():
            self.kill_follower()
            return
        note, terms = node.store.note(self._number(node.position)), node.store.stop_following()
        note.run()
        terms.run()
        node.disk = node.disk.kill()
        before = node.position
        node.open()
        assert node.store.clean
        assert node.position == before
        self.check()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[int, SnapshotJob]:
        """Of the follower, at its position; no thread is in the middle of anything."""
        store = self.follower.store
        note = LogNote(self._number(self.follower.position), store.next_seq_ids())
        job = SnapshotJob(self.follower.disk, "/v", note, store.journal.files.paths(), b"definitions")
        job.run()
        return self.follower.position, job

    def take_over(self, choose: Choose | None = None) -> None:
        """The follower reads the rest and becomes the owner; the owner is killed, or its power is cut, and follows."""
        self.follow(len(self.blocks))
        self.waiting = []
        self.leader, self.follower = self.follower, self.leader
        former = self.follower
        former.disk.mend()
        former.disk = former.disk.kill() if choose is None else former.disk.crash(choose)
        former.is_sound = former.is_sound and choose is None
        former.open()
        assert self.follower.position <= len(self.blocks)
        self.term += 1
        self.owner = Owner(self.leader.store, self.blocks, self.term)
        self._check_owner()
        self.check()

    # -- what must be true --------------------------------------------------------------------------------------------

    def said(self, position: int) -> Said:
        said = Said()
        for block in self.blocks[:position]:
            said.take(block)
        return said

    def check(self) -> None:
        """Counts in memory are those of what the log says, and seq_ids that were used are known."""
        node = self.follower
        said = self.said(node.position)
        used = node.store.next_seq_ids()
        for queue_id in QUEUES:
            index, alive = node.store.journal.users[queue_id], said.alive[queue_id]
            segments = index.segments.by_num.values()
            assert index.journal_live + sum(one.live for one in segments) == len(alive)
            assert used[queue_id] >= said.used[queue_id], "a seq_id would be used twice"
            assert {seq_id: index.requeues[seq_id] for seq_id in index.requeues if seq_id in alive} == said.requeues[queue_id]

    def check_disk(self) -> None:
        """What a kill now would leave, read by whoever takes over then; the owner may be behind, and never ahead."""
        node = left_by_a_kill(self.follower)
        assert node.position == self.follower.position
        check_contents(Owner(node.store, [], 1), self.said(node.position))
        node = left_by_a_kill(self.leader)
        assert node.position <= len(self.blocks)
        check_contents(Owner(node.store, [], 1), self.said(node.position))

    def _check_owner(self) -> None:
        said = self.said(len(self.blocks))
        for queue_id, queue in self.owner.queues.items():
            assert queue.len == len(said.alive[queue_id])
            assert queue.ready_bytes == sum(map(len, said.alive[queue_id].values()))
            queue.check()


def left_by_a_kill(node: Node) -> Node:
    found = Node()
    found.disk = node.disk.kill()
    found.is_sound = node.is_sound
    found.open()
    return found


def unpacked(disk: MemoryDisk, parts: Iterable[bytes]) -> None:
    """What a node that is empty, or behind, loads from a snapshot."""
    unpacking = Unpacking(disk, "/v")
    unpacking.begin()
    for part in parts:
        unpacking.feed(part)
    unpacking.finish()


def opened(disk: MemoryDisk, *, is_sound: bool = True) -> tuple[bool, Node]:
    """A node as it starts on a disk, and whether it has become what a snapshot had."""
    definitions = restored_definitions(disk, "/v")
    if definitions is not None:
        assert definitions == b"definitions"
        switch(disk, "/v")
    node = Node()
    node.disk, node.is_sound = disk, is_sound
    node.open()
    return definitions is not None, node


def check_contents(owner: Owner, said: Said) -> None:
    """Takes every message out of the queues."""
    for queue_id, queue in owner.queues.items():
        bodies: list[bytes] = []
        while queue.len:
            status = queue.fetch()
            assert status.redelivered
            assert number_of(status.message) > 0
            bodies.append(status.message.body())
        assert bodies == [said.alive[queue_id][seq_id] for seq_id in sorted(said.alive[queue_id])]
