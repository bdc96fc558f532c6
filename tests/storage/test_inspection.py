"""Looking at a stopped store: it finds what the next start would have, no damage after a crash, and all damage otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.storage.finding import Finding
from rabbitpy_broker.storage.inspection import Inspection
from rabbitpy_broker.storage.records import sealed
from rabbitpy_broker.storage.segment import BlockCounts, block
from storage.faulty_disk import MemoryDisk
from storage.small_store import LARGE, SMALL, StoreAndLedgers, number_of, recovered

QUEUES = 2
QUEUE_IDS = [number + 1 for number in range(QUEUES)]

Found = list[tuple[list[int], list[int]]]


def inspect(disk: MemoryDisk) -> Inspection:
    return Inspection(disk, "/v", 8)


def found_by(inspection: Inspection) -> Found:
    """As `recovered`: the numbers in each queue, and those that are redelivered."""
    found: Found = []
    for queue_id in QUEUE_IDS:
        numbers: list[int] = []
        redelivered: list[int] = []
        for place, message in inspection.messages(queue_id):
            if message is not None:
                numbers.append(number_of(message))
                assert message.body_size == place.body_size
                if place.redelivered:
                    redelivered.append(numbers[-1])
        found.append((numbers, redelivered))
    return found


def damage_in(disk: MemoryDisk) -> list[Finding]:
    inspection = inspect(disk)
    inspection.check(QUEUE_IDS)
    return [finding for finding in inspection.findings if finding.is_damage]


def texts(findings: list[Finding]) -> list[str]:
    return [f"{finding.path} at {finding.offset}: {finding.text}" for finding in findings]


class Inspected(StoreAndLedgers):
    """A world that is inspected as it is after kill -9 at every operation, and after every clean stop."""

    inspections = 0

    def check(self) -> None:
        super().check()
        for disk in self.disk.prefixes(self.from_op):
            self.inspect(disk)

    def _continue_on(self, disk: MemoryDisk) -> None:
        self.inspect(disk)
        super()._continue_on(disk)

    def inspect(self, disk: MemoryDisk) -> None:
        self.inspections += 1
        before = len(disk.log)
        assert texts(damage_in(disk)) == []
        assert found_by(inspect(disk)) == recovered(disk.kill(), QUEUES, self.is_sound)
        assert len(disk.log) == before, "an inspection changed something"


def live_through(world: StoreAndLedgers, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        at = rng.randrange(QUEUES)
        ledger = world.ledgers[at]
        step = rng.choice(("publish", "publish", "fanout", "fetch", "ack", "ack", "requeue", "purge", "target", "sync",
                           "sync", "idle", "crank", "crank", "restart", "kill"))  # fmt: skip
        if step == "publish":
            for _ in range(rng.randrange(1, 9)):
                world.publish(rng.choice((SMALL, SMALL, LARGE)), rng.random() < 0.8, (at,))
        elif step == "fanout":
            world.publish(LARGE, True, tuple(range(QUEUES)))
        elif step == "fetch":
            for _ in range(min(len(ledger.ready), rng.randrange(1, 9))):
                world.fetch(at)
        elif step == "ack":
            for number in sorted(ledger.unacked)[:: rng.randrange(1, 3)]:
                world.ack(number, at)
        elif step == "requeue" and ledger.unacked:
            world.requeue(sorted(ledger.unacked)[::2], at)
        elif step == "purge" and rng.random() < 0.2:
            world.purge(at)
        elif step == "target":
            world.set_target(rng.choice((0, 0, 3, None)), at)
        elif step == "sync":
            world.sync()
        elif step == "idle":
            world.idle()
        elif step == "crank":
            world.end_turn()
            world.crank()
        elif step == "restart" and rng.random() < 0.5:
            world.restart()
        elif step == "kill" and rng.random() < 0.5:
            world.kill(rng.randrange(world.from_op, len(world.disk.log) + 1))


@pytest.mark.parametrize("seed", range(6))
def test_crashes_and_clean_stops_leave_no_damage_and_what_is_found_is_what_the_next_start_has(
    seed: int,
) -> None:
    world = Inspected(QUEUES)
    live_through(world, random.Random(seed), 30)
    world.idle()
    world.restart()
    assert world.inspections > 50


# -- damage -----------------------------------------------------------------------------------------------------------


def history() -> StoreAndLedgers:
    """Small and large messages of both queues in segments, in the journal and in the message store; some are acked."""
    world = StoreAndLedgers(QUEUES)
    for at in range(QUEUES):
        for size in (SMALL, LARGE) * 6:
            world.publish(size, True, (at,))
    world.idle()
    for _ in range(5):
        world.ack(world.fetch())
    world.publish(LARGE, True, (0, 1))
    world.sync()
    return world


def killed() -> MemoryDisk:
    world = history()
    for _ in range(7):  # blocks in several files
        for size in (LARGE, SMALL, SMALL):
            world.publish(size, True, (0,))
        world.sync()
    world.publish(SMALL, True, (1,))  # in the journal only
    world.sync()
    return world.disk.kill()


def stopped() -> MemoryDisk:
    world = history()
    world.store.stop()
    return world.disk.kill()


STATES = pytest.mark.parametrize("make", [killed, stopped], ids=lambda make: make.__name__)


def files(disk: MemoryDisk, *suffixes: str) -> list[str]:
    folders = ["/v", "/v/journal", "/v/msg_store_persistent"]
    folders += [f"/v/queues/{name}" for name in disk.list_dir("/v/queues")]
    paths = [f"{folder}/{name}" for folder in folders for name in disk.list_dir(folder)]
    return [path for path in paths if path.endswith(suffixes)]


def read(disk: MemoryDisk, path: str) -> bytes:
    file = disk.open(path)
    data = file.read_at(0, file.size())
    file.close()
    return data


def write(disk: MemoryDisk, path: str, offset: int, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.write_at(offset, data)
    file.close()


def cut(disk: MemoryDisk, path: str, size: int) -> None:
    file = disk.open(path)
    file.truncate(size)
    file.close()


def flip(disk: MemoryDisk, path: str, offset: int) -> None:
    write(disk, path, offset, bytes([read(disk, path)[offset] ^ 0x10]))


@STATES
def test_the_histories_have_what_is_damaged_below(make: Callable[[], MemoryDisk]) -> None:
    disk = make()
    inspection = inspect(disk)
    inspection.check(QUEUE_IDS)
    counts = inspection.counts
    assert texts(inspection.findings) == []
    assert inspection.is_clean == (make is stopped)
    assert counts.queues == QUEUES
    assert counts.messages == sum(len(numbers) for numbers, _ in found_by(inspect(disk)))
    assert counts.bytes > counts.messages * SMALL
    assert counts.segments == len(files(disk, ".segment")) >= 4
    assert counts.journal_files == len(files(disk, ".journal")) > 0
    assert counts.stored_messages > counts.garbage
    if make is killed:
        assert counts.garbage > 0


@STATES
def test_no_byte_goes_bad_unseen(make: Callable[[], MemoryDisk]) -> None:
    """Damage is named with its file, or every message is still there.

    But for the end of what a killed broker was writing to: that is a torn tail. And a damaged large message is missed
    by the segment or journal file that refers to it.
    """
    sound = make()
    expected = [numbers for numbers, _ in found_by(inspect(sound))]
    named = unharmed = torn = 0
    for path in files(sound, ".segment", ".store", ".journal", "recovery_terms"):
        data = read(sound, path)
        used = [offset for offset in range(len(data)) if any(data[offset : offset + 64])]
        for offset in used[::11]:
            disk = sound.kill()
            flip(disk, path, offset)
            damage = damage_in(disk)
            if damage:
                assert path.endswith(".store") or path in [finding.path for finding in damage], texts(damage)
                named += 1
            elif [numbers for numbers, _ in found_by(inspect(disk))] == expected:
                unharmed += 1
            else:
                inspection = inspect(disk)
                inspection.check(QUEUE_IDS)
                assert [one for one in inspection.findings if one.path == path and "torn" in one.text], (
                    path,
                    offset,
                )
                torn += 1
    assert named > 100
    assert torn == 0 if make is stopped else torn > 0
    assert unharmed > 0


def first_segment(disk: MemoryDisk) -> str:
    return files(disk, ".segment")[0]


@STATES
def test_a_lost_store_file_is_missed_by_every_place(make: Callable[[], MemoryDisk]) -> None:
    disk = make()
    for path in files(disk, ".store"):
        disk.remove(path)
    missed = [
        finding for finding in damage_in(disk) if "which the message store does not have" in finding.text
    ]
    inspection = inspect(disk)
    found = [message for queue_id in QUEUE_IDS for _, message in inspection.messages(queue_id)]
    assert len(missed) == found.count(None) > 5
    for finding in missed:
        data = read(disk, finding.path)
        assert data[finding.offset] & 0x2F == 0x21, "offset is that of a stored publish entry"
    assert len([finding for finding in inspection.findings if finding.is_damage]) == len(missed)


def test_a_lost_segment_is_missed_by_the_terms() -> None:
    disk = stopped()
    path = first_segment(disk)
    disk.remove(path)
    assert f"{path} at -1: it is missing; the recovery terms name it" in texts(damage_in(disk))


@pytest.mark.parametrize("lost", [1, 30])
def test_a_segment_that_is_cut_is_damaged(lost: int) -> None:
    disk = stopped()
    path = first_segment(disk)
    cut(disk, path, disk.size(path) - lost)
    assert [finding for finding in damage_in(disk) if finding.path == path and "unreadable" in finding.text]


def test_a_segment_that_no_scatter_was_writing_to_has_no_torn_tail() -> None:
    """Only the last segment of a queue, and those that the journal mentions, may have one."""
    world = StoreAndLedgers(QUEUES)
    for _ in range(24):
        world.publish(SMALL)
    world.idle()
    world.restart()  # a journal without entries
    paths = files(world.disk, ".segment")
    assert len(paths) == 3
    for path in paths:
        disk = world.disk.kill()
        disk.remove("/v/recovery_terms")
        cut(disk, path, disk.size(path) - 1)
        assert bool(damage_in(disk)) == (path != paths[-1])


def test_a_lost_journal_file_is_missed_by_the_next() -> None:
    disk = killed()
    nums = sorted(files(disk, ".journal"), key=lambda path: read(disk, path)[8:16])
    disk.remove(nums[-2])
    assert ["is missing" in text for text in texts(damage_in(disk))] == [True]


def test_a_journal_without_blocks_at_its_end_has_lost_them_if_another_file_follows() -> None:
    disk = killed()
    nums = sorted(files(disk, ".journal"), key=lambda path: read(disk, path)[8:16])
    cut(disk, nums[-2], 4096)
    assert f"{nums[-2]} at 4096: its end is missing" in texts(damage_in(disk))


def test_a_journal_file_that_was_never_written_to_is_a_note() -> None:
    disk = killed()
    write(disk, "/v/journal/0099.journal", 0, bytes(3 * 4096))
    inspection = inspect(disk)
    inspection.check(QUEUE_IDS)
    assert [(finding.path, finding.is_damage) for finding in inspection.findings] == [
        ("/v/journal/0099.journal", False)
    ]


def block_with(payload: bytes, publishes: int, acks: int) -> bytes:
    counts = BlockCounts()
    counts.publishes = publishes
    counts.acks = acks
    return b"".join(block([payload], counts))


def ack(first: int, count: int) -> bytes:
    return b"\x02" + first.to_bytes(8, "big") + count.to_bytes(4, "big")


@pytest.mark.parametrize(
    "payload, acks, text",
    [
        (ack(7, 1), 2, "the head says 0 publishes of 0 bytes, 0 of them stored, and 2 acks"),
        (ack(8, 1), 1, "seq_ids 8 to 8 do not belong to this segment"),
        (ack(0, 1), 1, "seq_id 0 is acked twice"),
    ],
    ids=["counts", "range", "twice"],
)
def test_a_sound_block_that_makes_no_sense_is_damage(payload: bytes, acks: int, text: str) -> None:
    world = history()
    world.idle()
    disk = world.disk.kill()
    path = first_segment(disk)
    end = disk.size(path)
    write(disk, path, end, block_with(payload, 0, acks))
    assert [line for line in texts(damage_in(disk)) if line.startswith(f"{path} at {end}: {text}")]


def test_an_ack_of_what_was_never_published_is_damage() -> None:
    world = StoreAndLedgers(QUEUES)
    world.publish(SMALL)
    world.idle()
    disk = world.disk.kill()
    path = first_segment(disk)
    end = disk.size(path)
    write(disk, path, end, block_with(ack(5, 1), 0, 1))
    assert texts(damage_in(disk)) == [f"{path} at {end}: seq_id 5 is acked and was never published"]


def test_a_place_that_is_published_twice_is_damage() -> None:
    disk = killed()
    path = first_segment(disk)
    data = read(disk, path)
    end = len(data)
    write(disk, path, end, data[32:])
    assert [line for line in texts(damage_in(disk)) if "is published twice" in line and path in line]


def test_what_a_stopped_scatter_has_left_of_a_segment_is_a_note() -> None:
    disk = stopped()
    before = found_by(inspect(disk))
    path = first_segment(disk)
    end = disk.size(path)
    write(disk, path, end, read(disk, path)[32:])
    inspection = inspect(disk)
    inspection.check(QUEUE_IDS)
    assert [(one.path, one.offset, one.is_damage) for one in inspection.findings] == [(path, end, False)]
    assert found_by(inspect(disk)) == before


def test_a_journal_that_is_not_as_the_terms_say_is_damage_and_the_next_start_scans() -> None:
    """Shorter than it was, and a file is missing: what is left is what a start has then, all of it redelivered."""
    disk = stopped()
    last = inspect(disk).scan.journal.files[-1]
    cut(disk, last.path, int(last.end) - 4096)
    assert any("it ends here, and had " in line for line in texts(damage_in(disk)))
    assert found_by(inspect(disk)) == recovered(disk.kill(), QUEUES, False)
    disk.remove(last.path)
    assert any("is missing; the recovery terms name it" in line for line in texts(damage_in(disk)))
    assert found_by(inspect(disk)) == recovered(disk.kill(), QUEUES, False)


def test_terms_that_do_not_agree_are_damage() -> None:
    disk = stopped()
    terms = msgspec.msgpack.decode(read(disk, "/v/recovery_terms")[:-4])
    queue = terms["queues"]["0000000000000001"]
    queue[0] = 3  # next_seq_id
    queue[2][-1][1] += 1  # messages
    queue[2][-1][5] = [1000, 2]  # acked
    queue[4] += [2000, 1]  # places in the journal
    terms["messages"][3][0][4] += 1  # ref_count
    terms["messages"][3][1][2] += 1  # offset
    cut(disk, "/v/recovery_terms", 0)
    write(disk, "/v/recovery_terms", 0, sealed(msgspec.msgpack.encode(terms)))
    found = "\n".join(texts(damage_in(disk)))
    for text in (
        "the next seq_id is to be 3",
        "messages: ",
        "acked messages: 0, and the recovery terms say 2",
        "seq_id 2000 is missing; the recovery terms name it",
        " places, and ",
        "should begin here",
    ):
        assert text in found, found


@STATES
def test_what_a_start_clears_away_is_a_note(make: Callable[[], MemoryDisk]) -> None:
    disk = make()
    disk.make_dir("/v/queues/00000000000000ff")
    write(disk, "/v/queues/00000000000000ff/00000000.segment", 0, b"anything")
    write(disk, "/v/queues/0000000000000001/00000000.transient", 0, b"anything")
    write(disk, "/v/msg_store_persistent/00000063.store.merging", 0, b"anything")
    write(disk, "/v/msg_store_persistent/00000064.store", 0, bytes(40))
    inspection = inspect(disk)
    inspection.check(QUEUE_IDS)
    assert [finding.is_damage for finding in inspection.findings] == [False, False, False]


def test_a_newer_segment_is_refused() -> None:
    disk = stopped()
    path = first_segment(disk)
    head = bytearray(read(disk, path)[:28])
    head[7] = 2
    write(disk, path, 0, sealed(bytes(head)))
    with pytest.raises(StartError, match="format version 2"):
        inspect(disk).check(QUEUE_IDS)


def test_a_start_that_reads_a_newer_segment_refuses_it_as_well() -> None:
    disk = killed()
    path = first_segment(disk)
    head = bytearray(read(disk, path)[:28])
    head[7] = 2
    write(disk, path, 0, sealed(bytes(head)))
    before = read(disk, path)
    for look in (lambda: inspect(disk).check(QUEUE_IDS), lambda: recovered(disk, QUEUES, False)):
        with pytest.raises(StartError, match="format version 2"):
            look()
    assert read(disk, path) == before


def test_a_file_that_has_no_name_of_a_segment_is_damage_and_no_start_fails() -> None:
    disk = killed()
    expected = found_by(inspect(disk))
    write(disk, "/v/queues/0000000000000001/first.segment", 0, b"anything")
    assert texts(damage_in(disk)) == ["/v/queues/0000000000000001/first.segment at -1: no segment has such a name"]
    assert recovered(disk, QUEUES, True) == expected


def test_places_of_another_segment_are_damage_and_do_not_count() -> None:
    world = history()
    world.idle()
    disk = world.disk.kill()
    expected = found_by(inspect(disk))
    path = first_segment(disk)
    end = disk.size(path)
    stranger = b"\x21" + (999).to_bytes(8, "big") + bytes(8) + (5000).to_bytes(4, "big") + (16).to_bytes(4, "big")
    write(disk, path, end, block_with(stranger + bytes(16), 1, 0))
    assert any("seq_id 999 does not belong to this segment" in line for line in texts(damage_in(disk)))
    assert found_by(inspect(disk)) == expected == recovered(disk, QUEUES, True)


def test_newer_terms_are_refused() -> None:
    disk = stopped()
    cut(disk, "/v/recovery_terms", 0)
    write(disk, "/v/recovery_terms", 0, sealed(msgspec.msgpack.encode({"version": 3})))
    with pytest.raises(StartError, match="format version 3"):
        inspect(disk).check(QUEUE_IDS)


def test_a_vhost_without_a_store_is_a_note() -> None:
    inspection = inspect(MemoryDisk())
    inspection.check(QUEUE_IDS)
    assert [(finding.path, finding.is_damage) for finding in inspection.findings] == [("/v", False)]
    assert found_by(inspect(MemoryDisk())) == [([], []), ([], [])]
