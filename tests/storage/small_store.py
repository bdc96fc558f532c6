"""A store with small numbers on a disk in RAM, the plain lists that it must agree with, and what joins the two.

  SmallStore        makes or recovers a vhost's store with its queues; the only place that knows how that is done
  Ledger            what one queue must be, as plain lists and sets
  StoreAndLedgers   does everything to both, and compares

Segments hold 8 places, journal files three blocks, store files five messages, and messages from 64 bytes are large: so
short histories cross every border.

What a ledger demands after a crash:
  - every persistent message that was confirmed and not acked is there, with its content, in its place;
  - a message whose ack was synced, or that an earlier power cut has taken, is not;
  - what had been delivered is marked redelivered;
  - what was given back is known to have come back as often as was synced, and no more often than it did.
Between those lie messages of which either is right: not yet confirmed, or acked and not yet synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import CONFIRMED, SYNCING
from rabbitpy_broker.queues.memory_policy import UNLIMITED
from rabbitpy_broker.queues.msg_status import StatusMaker
from rabbitpy_broker.queues.queue_settings import PERSIST
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore
from storage.faulty_disk import Choose, CrankedThreads, MemoryDisk, every
from store_host import HostOf

SMALL = 12
LARGE = 700
EMBED_BELOW = 64
Recovered = tuple[list[int], list[int], dict[int, int]]
NEVER = 1 << 60  # an epoch that is never settled


def message(number: int, size: int, persistent: bool) -> Message:
    """The number stands in the body, and decides every byte of it."""
    body = (b"%08d" % number + bytes((number * 31 + at * 7) % 251 for at in range(size)))[:size]
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"
    content = len(header).to_bytes(4, "big") + header + b"\xce"
    header_end = len(content)
    content += b"\x03\x00\x00" + len(body).to_bytes(4, "big") + body + b"\xce"
    return Message(b"\x00\x01q", content, header_end, persistent)


def number_of(found: Message) -> int:
    return int(found.body()[:8])


class Epochs(EpochWaiter):
    """Tells the world which epochs are settled."""

    def __init__(self, settled: Callable[[int, bool], None]) -> None:
        self.settled = settled

    def epoch_settled(self, epoch: int, ok: bool) -> None:
        self.settled(epoch, ok)


class Ledger:
    """One queue. Messages are known by their numbers, which increase in publish order."""

    def __init__(self) -> None:
        self.ready: list[int] = []
        self.unacked: dict[int, object] = {}  # number -> what fetch or publish_delivered gave
        self.sent: dict[int, Message] = {}
        self.syncing: dict[int, list[int]] = {}  # epoch -> messages that it will confirm
        self.confirmed: set[int] = set()
        self.acking: dict[int, int] = {}  # acked (or dropped, purged) and not yet synced -> the epoch it is in
        self.acked: set[int] = set()  # all of them, synced or not
        self.gone: set[int] = set()  # must not return
        self.delivered: set[int] = set()
        self.must_be_redelivered: set[int] = set()
        self.may_be_redelivered: set[int] = set()
        self.requeues: dict[int, int] = {}  # how often it was given back
        self.kept_requeues: dict[int, int] = {}  # of that, synced
        self.requeueing: list[tuple[int, int, int]] = []  # epoch, message, how often

    def copy(self) -> Ledger:
        other = Ledger()
        for name, value in vars(self).items():
            setattr(other, name, value.copy())
        other.syncing = {epoch: list(numbers) for epoch, numbers in self.syncing.items()}
        return other

    def settle(self, number: int, epoch: int) -> None:
        self.acked.add(number)
        self.acking[number] = epoch

    def epoch_settled(self, epoch: int, ok: bool) -> None:
        published = self.syncing.pop(epoch, [])
        if ok:
            self.confirmed.update(published)
            for number in [number for number, acked_in in self.acking.items() if acked_in <= epoch]:
                del self.acking[number]
                self.gone.add(number)
            for requeued_in, number, times in self.requeueing:
                if requeued_in <= epoch:
                    self.kept_requeues[number] = max(times, self.kept_requeues.get(number, 0))

    def must_survive(self) -> set[int]:
        """What is promised: confirmed on disk, and nobody has it."""
        return {number for number in self.confirmed - self.acked if self.sent[number].persistent}

    def bytes_of(self, numbers: Iterable[int]) -> int:
        return sum(self.sent[number].body_size for number in numbers)


class Log:
    """Takes what the store logs, and fails when it says that messages are lost.

    `is_sound`: the disk has done nothing wrong, so nothing may be found damaged. What a power cut or a failed write has
    left of a new file can look like damage.
    """

    def __init__(self, is_sound: bool) -> None:
        self.is_sound = is_sound

    def info(self, event: str, **fields: object) -> None:
        pass

    def warning(self, event: str, **fields: object) -> None:
        pass

    def error(self, event: str, **fields: object) -> None:
        assert event != "messages lost", fields
        assert not (self.is_sound and "damaged" in event), (event, fields)


class SmallStore:
    """One vhost's store on `disk`, made or recovered, with `queues` durable queues."""

    def __init__(self, disk: MemoryDisk, threads: CrankedThreads, queues: int, is_sound: bool) -> None:
        settings = StoreSettings()
        settings.msg_store_file_size_limit = 4096
        settings.queue_index_embed_msgs_below = EMBED_BELOW
        settings.queue_index_max_journal_entries = 20
        settings.segment_entry_count = 8
        settings.journal_file_size_limit = 4 * 4096
        self.log = Log(is_sound)
        self.now = 0.0
        self._due = False
        self._threads = threads
        self._store = VHostStore(disk, threads, "/v", settings, self.log, HostOf(self._on_due))
        self.journal = self._store.journal
        self.trouble = self._store.trouble
        for messages in (self._store.persistent_messages, self._store.transient_messages):
            messages.writer.cache_limit_bytes = 2 * LARGE
        queue_ids = [number + 1 for number in range(queues)]
        self.queues: list[VariableQueue] = []
        for queue_id, found in self._store.recover(dict.fromkeys(queue_ids, StatusMaker())).items():
            assert queue_id == queue_ids[len(self.queues)]
            queue = VariableQueue(found.index, PERSIST, False, EMBED_BELOW)
            queue.recovered(found.next_seq_id, found.delta_end, found.places)
            self.queues.append(queue)

    def _on_due(self, journal: SyncGroup) -> None:
        assert journal is self.journal
        self._due = True

    def is_due(self) -> bool:
        return self._due

    def is_clean(self) -> bool:
        """True when it was not recovered by scanning."""
        return bool(self._store.clean)

    def end_turn(self) -> None:
        if self._due:
            self._due = False
            self.journal.begin_if_due()

    def tick(self) -> None:
        self.now += 1.0
        self._store.tick()
        for queue in self.queues:
            queue.tick(self.now)

    def set_target(self, queue: VariableQueue, count: int | None) -> None:
        queue.set_target_ram_count(UNLIMITED if count is None else count)
        queue.reduce_memory_use()

    def stop(self, at_most: int = 200) -> bool:
        """A clean stop; connections, and with them unacked messages, are gone already. False when its `at_most` steps
        were over before it was, or the disk failed at the end.
        """
        next_seq_ids: dict[QueueIndex, int] = {}
        for queue in self.queues:
            queue.stop(next_seq_ids)
        self._store.stop_work()
        for _ in range(at_most):
            if self._store.push():
                self._threads.run(self._store.stop(next_seq_ids).run, self._written)
                self._threads.crank_all()
                return self._is_clean
            self._threads.crank()
        return False

    def _written(self, error: Exception | None) -> None:
        self._is_clean = error is None

    def check(self) -> None:
        for queue in self.queues:
            queue.check()
        self._store.persistent_messages.check()
        self._store.transient_messages.check()


class StoreAndLedgers:
    """A store and its ledgers. Each method is one step; after each, the queues and the ledgers must agree.

    `from_op` is where the log of the disk stood before the last step: a crash may come at any operation from there on,
    for what the last step did is not promised to anybody until the step is over.
    """

    def __init__(self, queues: int = 1) -> None:
        self.disk = MemoryDisk()
        self.ledgers = [Ledger() for _ in range(queues)]
        self.next_number = 1
        self.is_sound = True
        self.from_op = 0
        self.agrees = True  # False in the middle of a step, and when one has failed
        self._start()

    def _start(self) -> None:
        self.threads = CrankedThreads()
        self.store = SmallStore(self.disk, self.threads, len(self.ledgers), self.is_sound)
        self.queues = self.store.queues
        self.waiting: set[int] = set()  # epochs for which a waiter is registered

    def _step(self) -> None:
        self.from_op = len(self.disk.log)
        self.agrees = False

    # -- what a queue's owner does -------------------------------------------------------------------------------------

    def publish(self, size: int = SMALL, persistent: bool = True, to: tuple[int, ...] = (0,)) -> int:
        """One message to each of these queues, as a fanout does it."""
        self._step()
        number = self.next_number
        self.next_number += 1
        sent = message(number, size, persistent)
        for at in to:
            outcome = self.queues[at].publish(sent)
            self.ledgers[at].ready.append(number)
            self._sent(at, sent, outcome)
        self.check()
        return number

    def publish_delivered(self, size: int = SMALL, persistent: bool = True, at: int = 0) -> int:
        self._step()
        number = self.next_number
        self.next_number += 1
        sent = message(number, size, persistent)
        queue, ledger = self.queues[at], self.ledgers[at]
        assert queue.len == 0
        status = queue.publish_delivered(sent)
        ledger.unacked[number] = status
        ledger.delivered.add(number)
        self._sent(at, sent, queue.delivered_outcome(sent))
        self.check()
        return number

    def _sent(self, at: int, sent: Message, outcome: int) -> None:
        number = number_of(sent)
        ledger = self.ledgers[at]
        ledger.sent[number] = sent
        if sent.persistent:
            assert outcome == SYNCING, "a persistent message must not be confirmed before it is synced"
            ledger.syncing.setdefault(self._wait(), []).append(number)
        else:
            assert outcome == CONFIRMED, "a transient message needs no sync"
            ledger.confirmed.add(number)

    def _wait(self) -> int:
        """Registers for the epoch that is filling, as a channel with confirms does."""
        epoch = int(self.store.journal.epoch)
        if epoch not in self.waiting:
            self.waiting.add(epoch)
            self.store.journal.wait(Epochs(self._epoch_settled))
        return epoch

    def _epoch_settled(self, epoch: int, ok: bool) -> None:
        assert epoch in self.waiting, "settled twice, or an epoch for which nobody waits"
        self.waiting.remove(epoch)
        for ledger in self.ledgers:
            ledger.epoch_settled(epoch, ok)

    def fetch(self, at: int = 0) -> int:
        self._step()
        ledger = self.ledgers[at]
        status = self.queues[at].fetch()
        number = ledger.ready.pop(0)
        found = status.message
        assert found is not None
        assert number_of(found) == number, "the oldest ready message comes first"
        sent = ledger.sent[number]
        assert (found.address, found.content, found.header_end) == (sent.address, sent.content, sent.header_end)
        assert found.persistent == sent.persistent
        if number in ledger.must_be_redelivered:
            assert status.redelivered, f"message {number} has been delivered before"
        elif number not in ledger.may_be_redelivered:
            assert not status.redelivered, f"message {number} has not been delivered before"
        assert self.queues[at].index.requeues.get(status.seq_id, 0) == ledger.requeues.get(number, 0)
        ledger.unacked[number] = status
        ledger.delivered.add(number)
        self.check()
        return number

    def ack(self, number: int, at: int = 0, wait: bool = False) -> None:
        """`wait`: somebody wants to know when the ack is synced, as tx.commit does."""
        self._settle(self.queues[at].ack, number, at, wait)

    def drop(self, number: int, at: int = 0) -> None:
        self._settle(self.queues[at].drop, number, at, False)

    def _settle(self, settle: Callable[[object], None], number: int, at: int, wait: bool) -> None:
        self._step()
        ledger = self.ledgers[at]
        status = ledger.unacked.pop(number)
        self.queues[at].index.forget_requeues(status.seq_id)
        settle(status)
        ledger.settle(number, int(self.store.journal.epoch))
        if wait:
            self._wait()
        self.check()

    def requeue(self, numbers: list[int], at: int = 0) -> None:
        self._step()
        ledger = self.ledgers[at]
        self.queues[at].requeue([ledger.unacked.pop(number) for number in numbers])
        ledger.ready = sorted([*ledger.ready, *numbers])
        ledger.must_be_redelivered.update(numbers)
        self.check()

    def give_back(self, numbers: list[int], at: int = 0, wait: bool = False) -> None:
        """A requeue that is counted, as quorum queues do. `wait`: somebody happens to wait for the same epoch."""
        self._step()
        ledger, index = self.ledgers[at], self.queues[at].index
        for number in numbers:
            seq_id = ledger.unacked[number].seq_id
            ledger.requeues[number] = ledger.requeues.get(number, 0) + 1
            assert index.count_requeue(seq_id) == ledger.requeues[number]
            index.requeue_due(seq_id)
            ledger.requeueing.append((int(self.store.journal.epoch), number, ledger.requeues[number]))
        if wait:
            self._wait()
        self.requeue(numbers, at)

    def purge(self, at: int = 0) -> None:
        self._step()
        ledger = self.ledgers[at]
        purged = self.queues[at].purge()
        assert purged == len(ledger.ready)
        for number in ledger.ready:
            ledger.settle(number, int(self.store.journal.epoch))
        ledger.ready = []
        self.check()

    def set_target(self, count: int | None, at: int = 0) -> None:
        """How many messages the queue may hold in RAM; None for any number."""
        self._step()
        self.store.set_target(self.queues[at], count)
        self.check()

    # -- what the broker does ------------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        self._step()
        self.store.end_turn()
        self.check()

    def tick(self) -> None:
        """What the broker does about once a second; the second in a row finds the queues idle."""
        self._step()
        self.store.tick()
        self.check()

    def work(self, index: int = 0) -> None:
        self._step()
        self.threads.work(index)
        self.check()

    def tell(self, index: int = 0) -> None:
        self._step()
        self.threads.tell(index)
        self.check()

    def crank(self) -> bool:
        """One step of the threads; False when they have nothing to do."""
        if self.threads.worked:
            self.tell()
        elif self.threads.waiting:
            self.work()
        else:
            return False
        return True

    def sync(self) -> None:
        """Until nothing is due and nothing under way."""
        self.end_turn()
        for _ in range(200):
            if not self.crank():
                if not self.store.is_due():
                    return
                self.end_turn()
        raise AssertionError("the store never comes to rest")

    def idle(self) -> None:
        """A few seconds in which nothing happens: acks go to the journal, the journal to the segments."""
        for _ in range(3):
            self.tick()
            self.sync()

    # -- the end of the broker -----------------------------------------------------------------------------------------

    def restart(self) -> None:
        """A clean stop, before which the connections go and their unacked messages return, and a start."""
        for at, ledger in enumerate(self.ledgers):
            if ledger.unacked:
                self.requeue(sorted(ledger.unacked), at)
        self._step()
        before = [ledger.copy() for ledger in self.ledgers]
        assert self.store.stop(), "the store never comes to rest"
        self.stopped(before)
        for at, ledger in enumerate(self.ledgers):
            for number in [number for number, epoch in ledger.acking.items() if epoch != NEVER]:
                del ledger.acking[number]
                ledger.gone.add(number)
            expected = [number for number in ledger.ready if ledger.sent[number].persistent]
            ledger.confirmed.update(expected)
            self._begin_life(at, expected, {number: ledger.requeues.get(number, 0) for number in expected})
        disk = self.disk.kill()
        found = recovered_and_counted(disk.kill(), len(self.ledgers), self.is_sound)
        for ledger, (numbers, redelivered, requeues) in zip(self.ledgers, found, strict=True):
            assert numbers == ledger.ready
            assert requeues == {number: ledger.requeues.get(number, 0) for number in numbers}
            self._check_content(ledger, numbers, redelivered)
            assert set(redelivered) <= ledger.must_be_redelivered | ledger.may_be_redelivered
        self._continue_on(disk)
        assert self.store.is_clean()

    def stopped(self, before: list[Ledger]) -> None:
        """In the middle of `restart`, when the stop is over; `before` are the ledgers from when it began."""

    def stop_cut_short(self, steps: int, choose: Choose | None = None, back: int = 0) -> None:
        """A stop that ends after so many steps, or `back` operations of the disk before that, and a start.

        By the end of its process, or, with `choose`, by a power cut.
        """
        for at, ledger in enumerate(self.ledgers):
            if ledger.unacked:
                self.requeue(sorted(ledger.unacked), at)
        self._step()
        before = [ledger.copy() for ledger in self.ledgers]
        self.store.stop(steps)
        self.ledgers = before  # nobody was told what happened meanwhile
        disk = self.disk_at(max(self.from_op, len(self.disk.log) - back))
        self._crash(disk if choose is None else disk.crash(choose), choose is not None)

    def kill(self, operations: int | None = None) -> None:
        """kill -9 after so many operations of the disk's log (all of them), and a start."""
        self._crash(self.disk_at(operations), False)

    def power_cut(self, choose: Choose, operations: int | None = None) -> None:
        """A power cut after so many operations, and a start."""
        self._crash(self.disk_at(operations).crash(choose), True)

    def disk_at(self, operations: int | None) -> MemoryDisk:
        if operations is None or operations >= len(self.disk.log):
            return self.disk.kill()
        assert operations >= self.from_op
        return self.disk.after(operations)

    def _crash(self, disk: MemoryDisk, power_lost: bool) -> None:
        if power_lost or self.disk.struck:
            self.is_sound = False
        found = self.check_recovery(disk, self.is_sound)
        for at, (ledger, (numbers, _, requeues)) in enumerate(zip(self.ledgers, found, strict=True)):
            ledger.must_be_redelivered |= ledger.delivered
            ledger.may_be_redelivered |= set(numbers)
            if power_lost:  # what is not there now is nowhere
                ledger.gone |= set(ledger.sent) - set(numbers)
                ledger.confirmed |= set(numbers)
            ledger.acked -= set(numbers)
            for number in numbers:
                ledger.acking.pop(number, None)
            for number in ledger.acking:
                ledger.acking[number] = NEVER
            self._begin_life(at, numbers, requeues)
        self._continue_on(disk)

    def _begin_life(self, at: int, numbers: list[int], requeues: dict[int, int]) -> None:
        ledger = self.ledgers[at]
        ledger.requeues = dict(requeues)
        ledger.kept_requeues = dict(requeues)
        ledger.requeueing = []
        ledger.ready = numbers
        ledger.unacked = {}
        ledger.syncing = {}

    def _continue_on(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.from_op = 0
        self._start()
        self.check()

    def check_recovery(self, disk: MemoryDisk, is_sound: bool) -> list[Recovered]:
        """Recovers from a copy of `disk` and holds the outcome against the ledgers. Returns what `recovered` does."""
        found = recovered_and_counted(disk.kill(), len(self.ledgers), is_sound)
        for ledger, (numbers, redelivered, requeues) in zip(self.ledgers, found, strict=True):
            self._check_content(ledger, numbers, redelivered)
            for number, times in requeues.items():
                assert ledger.kept_requeues.get(number, 0) <= times <= ledger.requeues.get(number, 0), f"requeues of {number}"
            there = set(numbers)
            missing = ledger.must_survive() - there
            assert not missing, f"confirmed and lost: {sorted(missing)}"
            returned = ledger.gone & there
            assert not returned, f"acked, synced and back again: {sorted(returned)}"
            transient = [number for number in numbers if not ledger.sent[number].persistent]
            assert not transient, f"transient messages that outlived the broker: {transient}"
            unmarked = (ledger.delivered & there) - set(redelivered)
            assert not unmarked, f"delivered before and not marked: {sorted(unmarked)}"
        return found

    def check_power_cuts(self, at_most: int) -> int:
        """What any power cut since the last step began could leave. Returns how many states those were."""
        states = 0
        for disk in self.disk.prefixes(self.from_op):
            self.check_recovery(disk, self.is_sound and not self.disk.struck)
            for left in every(disk, at_most):
                self.check_recovery(left, False)
                states += 1
        return states

    @staticmethod
    def _check_content(ledger: Ledger, numbers: list[int], redelivered: list[int]) -> None:
        unknown = set(numbers) - set(ledger.sent)
        assert not unknown, f"never published: {sorted(unknown)}"
        assert numbers == sorted(set(numbers)), f"order broken, or twice: {numbers}"
        unmarked = (ledger.must_be_redelivered & set(numbers)) - set(redelivered)
        assert not unmarked, f"redelivered before and not marked: {sorted(unmarked)}"

    def check(self) -> None:
        for queue, ledger in zip(self.queues, self.ledgers, strict=True):
            assert queue.len == len(ledger.ready)
            assert queue.unacked == len(ledger.unacked)
            assert queue.ready_bytes == ledger.bytes_of(ledger.ready)
            assert queue.unacked_bytes == ledger.bytes_of(ledger.unacked)
        self.store.check()
        self.agrees = True


def recovered(disk: MemoryDisk, queues: int, is_sound: bool) -> list[tuple[list[int], list[int]]]:
    """What each queue of a store on this disk holds: the numbers in order, and those that are marked redelivered."""
    return [(numbers, redelivered) for numbers, redelivered, _ in recovered_and_counted(disk, queues, is_sound)]


def recovered_and_counted(disk: MemoryDisk, queues: int, is_sound: bool) -> list[Recovered]:
    """What each queue of a store on this disk holds: the numbers in order, those that are marked redelivered, and how often
    each of them came back.
    """
    threads = CrankedThreads()
    store = SmallStore(disk, threads, queues, is_sound)
    store.check()
    found = []
    for queue in store.queues:
        numbers: list[int] = []
        redelivered: list[int] = []
        requeues: dict[int, int] = {}
        while queue.len:
            status = queue.fetch()
            number = number_of(status.message)
            body = status.message.body()
            assert body == message(number, len(body), True).body(), f"the content of message {number}"
            numbers.append(number)
            requeues[number] = queue.index.requeues.get(status.seq_id, 0)
            if status.redelivered:
                redelivered.append(number)
        store.check()
        found.append((numbers, redelivered, requeues))
    return found
