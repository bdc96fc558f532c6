"""A store with two streams on a disk in RAM, what each stream must be as a plain dict, and consumers that read them.

  StreamLedger   what one stream must be
  StreamWorld    does everything to the store and the ledgers, and compares

What a ledger demands after a crash: every message below `committed` is there, at its offset, with its content; what retention
has removed for good is not; between these and the next offset nothing is missing.
"""

from __future__ import annotations

from rabbitpy_broker.storage.inspection import Inspection
from rabbitpy_broker.storage.stream_log import StreamLog
from storage.faulty_disk import Choose, MemoryDisk, every
from storage.stream_rig import Consumer, StreamStore, content, everything


class Sent:
    """A message that was appended."""

    def __init__(self, number: int, size: int, value: bytes | None, now_ms: int) -> None:
        self.content = content(number, size)
        self.value = value
        self.at_ms = now_ms


class StreamLedger:
    """`sent` has what was appended at each offset, of what the next start may have."""

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}
        self.committed = 0
        self.first = 0  # below: gone for good
        self.may_be_first = 0

    def copy(self) -> StreamLedger:
        other = StreamLedger()
        other.sent, other.committed = dict(self.sent), self.committed
        other.first, other.may_be_first = self.first, self.may_be_first
        return other


class Watched(Consumer):
    """A consumer that holds what it gets against the ledger."""

    def __init__(self, log: StreamLog, ledger: StreamLedger, offset: int, values: list[bytes], without: bool) -> None:
        super().__init__(log, offset, values, without)
        self.ledger = ledger
        self.values = values
        self.without = without

    def take(self) -> None:
        before = self.offset
        self.got = []
        super().take()
        found = dict(self.got)
        assert len(found) == len(self.got)
        for offset in range(before, self.offset):
            sent = self.ledger.sent[offset]
            if offset in found:
                assert found[offset] == sent.content
            elif offset >= self.log.first_offset:
                assert not self.wants(sent), f"offset {offset} was passed over"

    def wants(self, sent: Sent) -> bool:
        if not self.values:
            return True
        return self.without if sent.value is None else sent.value in self.values


class StreamWorld:
    """Each method is a step, after which `check` comes.

    `from_op` is where the log of the disk stood before the last step: a crash may come at any operation from there on.
    """

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.ledgers = {1: StreamLedger(), 2: StreamLedger()}
        self.number = 0
        self.from_op = 0
        self.is_sound = True
        self.retention = dict.fromkeys(self.ledgers, (-1, -1))
        self.segment_bytes = dict.fromkeys(self.ledgers, 400)
        self.consumers: list[Watched] = []
        self.now_ms = 1_000_000
        self._start()

    def _start(self) -> None:
        self.store = StreamStore(self.disk, tuple(self.ledgers), self.is_sound)
        self.store.now_ms = self.now_ms
        for queue_id in self.ledgers:
            self._give_settings(queue_id)
        was, self.consumers = self.consumers, []
        for one in was:
            ledger = next(ledger for ledger in self.ledgers.values() if ledger is one.ledger)
            log = self.store.logs[one.log.queue_id]
            self.consumers.append(Watched(log, ledger, one.offset, one.values, one.without))

    def _give_settings(self, queue_id: int) -> None:
        settings = self.store.logs[queue_id].settings
        settings.max_length_bytes, settings.max_age_ms = self.retention[queue_id]
        settings.max_segment_bytes = self.segment_bytes[queue_id]

    def step(self) -> None:
        self.from_op = len(self.disk.log)

    # -- what a stream's owner does -------------------------------------------------------------------------------

    def append(self, count: int = 1, size: int = 20, to: int = 1, value: bytes | None = None) -> None:
        self.step()
        for _ in range(count):
            offset = self.store.append(self.number, size, value, to)
            assert offset not in self.ledgers[to].sent
            self.ledgers[to].sent[offset] = Sent(self.number, size, value, self.store.now_ms)
            self.number += 1
        self.check()

    def set_retention(self, to: int, size: int, age: int) -> None:
        self.retention[to] = (size, age)
        self._give_settings(to)

    def set_segment_size(self, to: int, size: int) -> None:
        self.segment_bytes[to] = size
        self._give_settings(to)

    def subscribe(self, to: int, part: float, values: list[bytes], without: bool) -> None:
        """From that part of the stream on."""
        ledger = self.ledgers[to]
        self.consumers.append(Watched(self.store.logs[to], ledger, int(part * ledger.committed), values, without))

    def take(self, number: int) -> None:
        if self.consumers:
            self.consumers[number % len(self.consumers)].take()

    def cancel(self, number: int) -> None:
        if self.consumers:
            self.consumers.pop(number % len(self.consumers)).reader.close()

    def check_offset_at(self, to: int, part: float) -> None:
        """Nothing that is younger lies in front of where a consumer begins, and that chunk has something that is."""
        log, ledger = self.store.logs[to], self.ledgers[to]
        at_ms = 999_000 + int(part * (self.store.now_ms - 999_000 + 1000))
        offset = log.offset_at(at_ms)
        kept = range(int(log.first_offset), int(log.committed))
        assert all(ledger.sent[one].at_ms < at_ms for one in kept if one < offset)
        if self.disk.struck == 0 and offset < log.committed:
            assert any(ledger.sent[one].at_ms >= at_ms for one in kept if one >= offset)
        elif offset >= log.committed:
            assert offset == log.next_offset

    # -- what the broker does -------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        self.step()
        self.store.end_turn()
        self.check()

    def work(self, index: int = 0) -> None:
        self.step()
        self.store.threads.work(index)
        self.check()

    def tell(self, index: int = 0) -> None:
        self.step()
        scatter = self.store.store.stream_scatter
        before = {queue_id: log.first_offset for queue_id, log in self.store.logs.items()}
        self.store.threads.tell(index)
        if not scatter.is_busy() and not scatter.is_due():  # all that was to be removed is
            for queue_id, ledger in self.ledgers.items():
                ledger.first = max(ledger.first, int(before[queue_id]))
        self.check()

    def tick(self) -> None:
        self.step()
        self.store.now_ms += 1000
        self.store.store.tick()
        self.check()

    def sync(self) -> None:
        """Until nothing is due and nothing under way."""
        self.end_turn()
        for _ in range(1000):
            if self.store.threads.worked:
                self.tell()
            elif self.store.threads.waiting:
                self.work()
            elif self.store.is_due():
                self.end_turn()
            else:
                return
        raise AssertionError("the store never comes to rest")

    def idle(self) -> None:
        """A few seconds in which nothing happens."""
        for _ in range(3):
            self.tick()
            self.sync()

    # -- the end of the broker ------------------------------------------------------------------------------------

    def restart(self) -> None:
        """A clean stop, and a start."""
        self.step()
        before = {queue_id: ledger.copy() for queue_id, ledger in self.ledgers.items()}
        assert self.store.stop()
        self.stopped(before)
        for queue_id, ledger in self.ledgers.items():
            ledger.committed = int(self.store.logs[queue_id].next_offset)
        self._continue_on(self.disk.kill())
        assert self.store.store.clean

    def stopped(self, before: dict[int, StreamLedger]) -> None:
        """In the middle of `restart`, when the stop is over; `before` are the ledgers from when it began."""

    def kill(self) -> None:
        """kill -9, and a start."""
        self._continue_on(self.disk.kill())

    def power_cut(self, choose: Choose) -> None:
        """A power cut, and a start."""
        self.is_sound = False
        self._continue_on(self.disk.crash(choose))

    def _continue_on(self, disk: MemoryDisk) -> None:
        if self.disk.struck:
            self.is_sound = False
        self.check_recovery(disk, self.is_sound)
        self.now_ms = self.store.now_ms
        self.disk = disk
        self.from_op = 0
        for queue_id, ledger in self.ledgers.items():
            ledger.may_be_first = max(ledger.may_be_first, int(self.store.logs[queue_id].first_offset))
        self._start()
        self.started()
        self.step()
        for queue_id, ledger in self.ledgers.items():
            log = self.store.logs[queue_id]
            for offset in [offset for offset in ledger.sent if offset >= log.next_offset]:
                del ledger.sent[offset]
        self.check()

    def started(self) -> None:
        """When a start is over, and what it has found is not promised to anybody yet."""

    # -- what must be true ----------------------------------------------------------------------------------------

    def check(self) -> None:
        for queue_id, ledger in self.ledgers.items():
            log = self.store.logs[queue_id]
            log.check()
            assert log.committed >= ledger.committed, "what was shown is taken back"
            ledger.committed = int(log.committed)
            ledger.may_be_first = max(ledger.may_be_first, int(log.first_offset))

    def check_everything(self) -> None:
        """When the store rests: every stream can be read, every consumer comes to its end, and memory holds nothing."""
        for one in self.consumers:
            one.take()
        self.sync()
        for one in self.consumers:
            one.take()
            assert one.reader.chunk(one.offset) is None and not one.reader.reading
            left = range(max(one.offset, int(one.log.first_offset)), int(one.log.committed))
            assert not any(one.wants(one.ledger.sent[at]) for at in left)
        for queue_id, ledger in self.ledgers.items():
            log = self.store.logs[queue_id]
            offsets = range(int(log.first_offset), int(log.committed))
            assert everything(self.store, queue_id) == [(offset, ledger.sent[offset].content) for offset in offsets]
            assert (log.memory_bytes(), log.pending_bytes, log.oldest_file()) == (0, 0, 0)

    def check_power_cuts(self, at_most: int) -> int:
        """What any power cut since the last step began could leave. Returns how many states those were."""
        states = 0
        for disk in self.disk.prefixes(self.from_op):
            self.check_recovery(disk, self.is_sound and not self.disk.struck)
            for left in every(disk, at_most):
                self.check_recovery(left, False)
                states += 1
        return states

    def check_recovery(self, disk: MemoryDisk, is_sound: bool) -> None:
        """Recovers from a copy of `disk`, and inspects one, and holds both against the ledgers."""
        inspection = Inspection(disk.kill(), "/v", 8)
        inspection.check([], self.ledgers)
        damage = [f"{one.path}: {one.text}" for one in inspection.findings if one.is_damage and "queues" in one.path]
        assert not damage, damage
        store = StreamStore(disk.kill(), tuple(self.ledgers), is_sound)
        for queue_id, ledger in self.ledgers.items():
            log = store.logs[queue_id]
            assert log.committed == log.next_offset
            assert log.committed >= ledger.committed, f"{log.committed} of {ledger.committed} committed ones are there"
            assert ledger.first <= log.first_offset <= ledger.may_be_first, "what was removed is back, or too much is gone"
            offsets = range(int(log.first_offset), int(log.committed))
            expected = [(offset, ledger.sent[offset].content) for offset in offsets]
            assert everything(store, queue_id) == expected
            assert [one.offset for one in inspection.stream_messages(queue_id)] == list(offsets)
