"""The message store on a disk that fails, tears and forgets."""

from __future__ import annotations

import errno
import random

import pytest

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.records import sealed, stored_size
from rabbitpy_broker.storage.store_file import HEADER_SIZE, RECORD_HEAD, WINDOW_BYTES, DamagedError
from rabbitpy_broker.storage.store_scan import StoreScan
from storage.faulty_disk import CrankedThreads, MemoryDisk, all_lost, every, nothing_lost
from storage.store_rig import FOLDER, LIMIT, Log, Rig, message

FIRST = "00000001.store"
SECOND = "00000002.store"


# -- life of a message ------------------------------------------------------------------------------------------------


def test_a_fanout_writes_once():
    rig = Rig()
    entry = rig.publish(1, times=10)
    assert entry.ref_count == 10
    assert rig.epoch()
    assert rig.store.writer.writes == 1
    assert rig.disk.size(f"{FOLDER}/{FIRST}") == HEADER_SIZE + RECORD_HEAD + entry.size
    for _ in range(9):
        rig.store.release(entry)
        rig.read(entry)
    rig.store.release(entry)
    assert rig.store.lookup(entry.msg_id) is None


def test_an_unwritten_message_is_read_from_ram():
    rig = Rig()
    published = message(1, 100)
    entry = rig.store.publish(published)
    assert rig.store.has_unwritten()
    assert rig.store.read(entry) is published
    assert rig.store.lookup(entry.msg_id) is entry


def test_a_message_released_before_the_flush_is_never_written():
    rig = Rig()
    elided, kept = rig.publish(1), rig.publish(2)
    rig.store.release(elided)
    assert rig.epoch()
    assert rig.store.elided_writes == 1
    assert rig.store.writer.writes == 1
    assert rig.disk.size(f"{FOLDER}/{FIRST}") == HEADER_SIZE + RECORD_HEAD + kept.size
    rig.store.release(rig.publish(3))
    assert not rig.store.has_unwritten()
    assert rig.store.begin_flush() is None


def test_a_message_released_during_its_flush_becomes_garbage():
    rig = Rig()
    gone, kept = rig.publish(1), rig.publish(2)
    rig.begin()
    rig.store.release(gone)
    rig.store.check()
    rig.write()
    rig.settle()
    rig.store.check()
    assert rig.store.file_summary() == [
        (1, RECORD_HEAD + kept.size, HEADER_SIZE + 2 * RECORD_HEAD + gone.size + kept.size)
    ]
    rig.read(kept)


def test_a_message_that_was_removed_can_be_published_again():
    rig = Rig()
    published = message(1, 100)
    first = rig.store.publish(published)
    assert rig.epoch()
    rig.store.release(first)
    second = rig.store.publish(published)
    assert second is not first
    assert second.msg_id != first.msg_id
    assert rig.epoch()
    assert rig.store.read(second).content == published.content


def test_a_message_that_was_read_back_is_not_written_again():
    """A dead-lettered message keeps its place in the store."""
    rig = Rig()
    entry = rig.publish(1)
    assert rig.epoch()
    assert rig.store.publish(rig.read(entry)) is entry
    assert entry.ref_count == 2
    assert not rig.store.has_unwritten()


def test_the_two_stores_do_not_meet_in_a_message():
    disk, threads = MemoryDisk(), CrankedThreads()
    persistent = MessageStore(disk, threads, "/p", LIMIT, False, Log())
    transient = MessageStore(disk, threads, "/t", LIMIT, True, Log())
    published = message(1, 100)
    entries = persistent.publish(published), transient.publish(published)
    assert entries[0].msg_id != entries[1].msg_id
    assert (published.stored, published.stored_transient) == entries


def test_releasing_too_often_is_a_fault():
    rig = Rig()
    entry = rig.publish(1)
    rig.store.release(entry)
    with pytest.raises(AssertionError):
        rig.store.release(entry)
    with pytest.raises(DamagedError):
        rig.store.read(entry)


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_full_file_is_followed_by_a_new_one():
    rig = Rig()
    entries = [rig.publish(number, 300) for number in range(8)]
    assert rig.epoch()
    assert [entry.file_num for entry in entries] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert all(rig.disk.size(f"{FOLDER}/{name}") <= LIMIT for name in rig.files())
    rig.check_all()


def test_a_message_above_the_limit_has_a_file_of_its_own():
    rig = Rig()
    sizes = [50, 5 * LIMIT, 50]
    entries = [rig.publish(number, size) for number, size in enumerate(sizes)]
    assert rig.epoch()
    assert [entry.file_num for entry in entries] == [1, 2, 3]
    rig.check_all()


def test_messages_of_many_windows_are_written_and_found():
    rig = Rig(limit=8 * WINDOW_BYTES)
    for number, size in enumerate([10, 700_000, 700_000, 3 * WINDOW_BYTES, 20, 400_000]):
        rig.publish(number, size)
    assert rig.epoch()
    assert rig.files() == [FIRST]
    rig.check_all()
    rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_flushes_append_to_the_current_file():
    rig = Rig()
    for number in range(3):
        rig.publish(number)
        assert rig.epoch()
    assert rig.files() == [FIRST]
    rig.check_all()


def test_a_settled_message_survives_a_power_cut():
    rig = Rig()
    rig.publish(1)
    rig.publish(2, 2_000)
    assert rig.epoch()
    assert not rig.disk.has_unsafe()
    rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_the_transient_store_never_syncs_and_begins_empty():
    rig = Rig(transient=True)
    made = len(rig.disk.log)
    entry = rig.publish(1)
    assert rig.epoch()
    assert not {op.kind for op in rig.disk.log[made:]} & {"sync", "sync_dir"}
    rig.read(entry)
    again = Rig(rig.disk.kill(), transient=True)
    assert again.files() == []
    assert again.store.lookup(entry.msg_id) is None


def test_the_cache_is_bounded_in_bytes():
    size = stored_size(message(0, 100))
    rig = Rig(cache=3 * size, limit=100_000)
    entries = [rig.publish(number) for number in range(10)]
    assert rig.epoch()
    assert [entry.message is not None for entry in entries] == [False] * 7 + [True] * 3
    rig.check_all()
    assert (rig.store.reads, rig.store.cache_hits) == (7, 3)
    for number in range(1000):
        rig.store.release(rig.publish(number))
        passing = rig.publish(number)
        assert rig.epoch()
        rig.store.release(passing)
    assert len(rig.store.writer.cached) <= 3


def test_few_files_are_kept_open():
    rig = Rig(limit=200)
    entries = [rig.publish(number, 150) for number in range(40)]
    assert rig.epoch()
    for entry in entries:
        rig.read(entry)
    assert rig.disk.open_files < 12
    rig.store.close()
    assert rig.disk.open_files == 0


def test_counters():
    rig = Rig()
    entries = [rig.publish(number) for number in range(3)]
    rig.store.release(entries.pop())
    assert rig.epoch()
    rig.read(entries[0])
    assert rig.store.counters() == {
        "messages": 2,
        "bytes": 2 * entries[0].size,
        "unwritten": 0,
        "files": 1,
        "writes": 2,
        "elided_writes": 1,
        "reads": 1,
        "cache_hits": 0,
        "compactions": 0,
    }


# -- removal of files -------------------------------------------------------------------------------------------------


def two_files(rig: Rig) -> None:
    for number in range(4):
        rig.publish(number, 300)
    assert rig.epoch()
    assert rig.files() == [FIRST, SECOND]


def test_a_file_of_garbage_goes_when_the_removals_are_settled():
    rig = Rig()
    two_files(rig)
    for entry in [entry for entry in rig.live() if entry.file_num == 1]:
        rig.store.release(entry)
    rig.threads.crank_all()
    assert rig.files() == [FIRST, SECOND]
    rig.begin()
    rig.write()
    assert rig.files() == [FIRST, SECOND]
    rig.settle()
    rig.threads.crank_all()
    assert rig.files() == [SECOND]
    rig.recover(rig.disk.kill(), rig.durable)


def test_removals_during_an_epoch_wait_for_the_next_one():
    rig = Rig()
    two_files(rig)
    rig.begin()
    for entry in [entry for entry in rig.live() if entry.file_num == 1]:
        rig.store.release(entry)
    rig.write()
    rig.settle()
    rig.threads.crank_all()
    assert rig.files() == [FIRST, SECOND]
    rig.recover(rig.disk.kill(), rig.durable)


def test_removals_wait_while_epochs_fail():
    rig = Rig()
    two_files(rig)
    for entry in [entry for entry in rig.live() if entry.file_num == 1]:
        rig.store.release(entry)
    rig.publish(9)
    rig.disk.fail("sync", errno.EIO)
    assert not rig.epoch()
    rig.threads.crank_all()
    assert FIRST in rig.files()
    assert rig.epoch()
    rig.threads.crank_all()
    assert FIRST not in rig.files()


def test_a_flush_of_messages_that_all_went_meanwhile_leaves_no_file_for_long():
    rig = Rig()
    entries = [rig.publish(number, 300) for number in range(4)]
    rig.begin()
    for entry in entries:
        rig.store.release(entry)
    rig.write()
    rig.settle()
    assert rig.epoch()
    rig.threads.crank_all()
    assert rig.files() == [SECOND]  # it is still written to


def test_the_transient_store_removes_garbage_at_once():
    rig = Rig(transient=True)
    two_files(rig)
    for entry in [entry for entry in rig.live() if entry.file_num == 1]:
        rig.store.release(entry)
    rig.threads.crank_all()
    assert rig.files() == [SECOND]


def test_a_file_that_cannot_be_removed_goes_at_the_next_start():
    rig = Rig()
    two_files(rig)
    for entry in [entry for entry in rig.live() if entry.file_num == 1]:
        rig.store.release(entry)
    rig.disk.fail("remove", errno.EROFS)
    assert rig.epoch()
    rig.threads.crank_all()
    assert rig.disk.struck == 1
    assert rig.log.events() == ["message store file not removed"]
    assert rig.files() == [FIRST, SECOND]
    rig.restart()
    assert rig.files() == [SECOND]


# -- disk trouble -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "skip"),
    [("open", 0), ("open", 1), ("write", 0), ("write", 1), ("sync", 0), ("sync", 1), ("sync_dir", 0)],
)
def test_what_a_failed_flush_held_is_written_to_another_file(kind: str, skip: int):
    """Into a file that has settled messages and two new ones; none of what had been settled suffers."""
    rig = Rig()
    rig.publish(1)
    assert rig.epoch()
    rig.store.close()  # so that files are opened anew
    for number in range(2, 7):
        rig.publish(number, 300)
    gone = rig.publish(7)
    rig.disk.fail(kind, errno.ENOSPC, skip=skip)
    rig.begin()
    with pytest.raises(OSError, match="No space left"):
        rig.write()
    rig.store.release(gone)
    rig.settle(False)
    rig.store.check()
    assert [entry.file_num for entry in rig.live()] == [1, 0, 0, 0, 0, 0]
    for entry in rig.live():
        rig.read(entry)
    assert rig.epoch()
    assert min(entry.file_num for entry in rig.live()[1:]) > 3
    rig.check_all()
    rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_nothing_that_a_failed_sync_covered_is_relied_on():
    """The kernel drops what it could not write: another sync succeeds, and the disk has nothing."""
    rig = Rig()
    rig.publish(1)
    rig.disk.fail("sync", errno.EIO)
    assert not rig.epoch()
    assert rig.epoch()
    rig.publish(2)
    assert rig.epoch()
    rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_a_flush_that_was_written_stays_written_when_the_epoch_fails_elsewhere():
    rig = Rig()
    entry = rig.publish(1)
    rig.begin()
    rig.write()
    rig.settle(False)
    assert entry.file_num == 1
    assert not rig.store.has_unwritten()
    rig.read(entry)


def test_a_flush_that_never_ran_is_flushed_again():
    rig = Rig()
    rig.publish(1)
    assert rig.epoch()
    rig.publish(2)
    rig.begin()
    rig.settle(False)
    rig.store.check()
    assert rig.epoch()
    rig.check_all()
    assert rig.disk.open_files <= 4


def test_a_full_disk_gets_its_space_back():
    rig = Rig()
    rig.publish(1)
    assert rig.epoch()
    size = rig.disk.size(f"{FOLDER}/{FIRST}")
    rig.publish(2, 300)
    rig.publish(3, 600)
    rig.disk.fail("sync", errno.ENOSPC)
    assert not rig.epoch()
    assert rig.files() == [FIRST]
    assert rig.disk.size(f"{FOLDER}/{FIRST}") == size


def test_running_out_of_file_descriptors_loses_nothing():
    rig = Rig()
    entry = rig.publish(1)
    assert rig.epoch()
    rig.disk.fail("open", errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        rig.store.read(entry)
    rig.read(entry)
    rig.store.check()


def test_a_damaged_record_is_named():
    rig = Rig()
    entries = [rig.publish(number) for number in range(3)]
    assert rig.epoch()
    rig.overwrite(FIRST, entries[1].offset + RECORD_HEAD + 50, b"\xff\xff")
    rig.overwrite(FIRST, entries[2].offset + 4, b"\xff")
    rig.read(entries[0])
    with pytest.raises(DamagedError) as caught:
        rig.store.read(entries[1])
    assert (caught.value.path, caught.value.offset) == (f"{FOLDER}/{FIRST}", entries[1].offset)
    assert caught.value.msg_id == entries[1].msg_id
    assert entries[1].msg_id.hex() in str(caught.value)
    with pytest.raises(DamagedError, match="head"):
        rig.store.read(entries[2])


def test_another_messages_record_is_not_taken_for_it():
    rig = Rig()
    entries = [rig.publish(number) for number in range(2)]
    assert rig.epoch()
    entries[0].offset = entries[1].offset
    with pytest.raises(DamagedError, match="another message"):
        rig.store.read(entries[0])


def test_the_end_of_a_file_in_a_record_is_damage():
    rig = Rig()
    entry = rig.publish(1)
    assert rig.epoch()
    file = rig.disk.open(f"{FOLDER}/{FIRST}")
    file.truncate(entry.offset + 60)
    file.close()
    with pytest.raises(DamagedError):
        rig.store.read(entry)


# -- recovery ---------------------------------------------------------------------------------------------------------


def test_what_no_index_refers_to_is_dropped_with_its_files():
    rig = Rig()
    two_files(rig)
    kept = rig.live()[3]
    rig.recover(rig.disk.kill(), {kept.msg_id: 2})
    assert rig.files() == [SECOND]
    assert rig.store.lookup(kept.msg_id).ref_count == 2
    assert rig.recovery.add_ref(b"?" * 16) is None
    rig.publish(10)
    assert rig.epoch()
    rig.check_all()


def test_a_torn_tail_is_cut_and_reported():
    rig = Rig()
    entries = [rig.publish(number) for number in range(3)]
    assert rig.epoch()
    size = rig.disk.size(f"{FOLDER}/{FIRST}")
    for cut in range(1, RECORD_HEAD + entries[2].size):
        disk = rig.disk.kill()
        file = disk.open(f"{FOLDER}/{FIRST}")
        file.truncate(size - cut)
        file.close()
        after = Rig(disk)
        after.contents = rig.contents
        after.recover(disk, {entry.msg_id: 1 for entry in entries[:2]})
        assert after.log.lines == [
            (
                "warning",
                "message store: torn records cut",
                {
                    "file": f"{FOLDER}/{FIRST}",
                    "offset": entries[2].offset,
                    "bytes": RECORD_HEAD + entries[2].size - cut,
                },
            )
        ]
        assert after.disk.size(f"{FOLDER}/{FIRST}") == entries[2].offset


@pytest.mark.parametrize("part", ["magic", "size", "msg_id", "message"])
def test_damage_in_the_middle_costs_one_message(part: str):
    rig = Rig()
    entries = [rig.publish(number) for number in range(4)]
    assert rig.epoch()
    before = rig.disk.size(f"{FOLDER}/{FIRST}")
    at = {"magic": 0, "size": 5, "msg_id": 12, "message": RECORD_HEAD + 70}[part]
    rig.flip(FIRST, entries[1].offset + at)
    rig.recover(rig.disk.kill(), {entries[number].msg_id: 1 for number in (0, 2, 3)}, (entries[1].msg_id,))
    record = RECORD_HEAD + entries[1].size
    level, event, fields = rig.log.lines[0]
    assert (level, event, fields["offset"], fields["bytes"]) == (
        "error",
        "message store damaged",
        entries[1].offset,
        record,
    )
    assert rig.disk.size(f"{FOLDER}/damaged/{FIRST}") == before
    assert rig.disk.size(f"{FOLDER}/{FIRST}") == before
    named = [line for line in rig.log.lines if line[1] == "message damaged"]
    assert [line[2]["msg_id"] for line in named] == ([entries[1].msg_id.hex()] if part == "message" else [])
    again = Rig(rig.disk.kill())
    again.contents = rig.contents
    again.recover(again.disk, rig.durable, (entries[1].msg_id,))
    assert again.disk.list_dir(f"{FOLDER}/damaged") == [FIRST]


def test_a_damaged_header_costs_nothing():
    rig = Rig()
    rig.publish(1)
    assert rig.epoch()
    rig.overwrite(FIRST, 10, b"\xff")
    rig.recover(rig.disk.kill(), rig.durable)
    assert [(level, fields["offset"], fields["bytes"]) for level, _, fields in rig.log.lines] == [
        ("warning", 0, HEADER_SIZE)
    ]
    rig.recover(rig.disk.kill(), rig.durable)
    assert rig.log.lines == []


def test_damage_at_the_end_is_no_torn_tail_when_a_message_is_missed():
    rig = Rig()
    entries = [rig.publish(number) for number in range(2)]
    assert rig.epoch()
    before = rig.disk.size(f"{FOLDER}/{FIRST}")
    rig.overwrite(FIRST, entries[1].offset + 100, b"\xff")
    rig.recover(rig.disk.kill(), {entries[0].msg_id: 1}, (entries[1].msg_id,))
    assert rig.log.events() == ["message store damaged"]
    assert rig.disk.size(f"{FOLDER}/damaged/{FIRST}") == before
    assert rig.disk.size(f"{FOLDER}/{FIRST}") == entries[1].offset


def test_a_stretch_of_noise_is_skipped():
    """Noise with the magic of records in it, longer than a window, between sound records."""
    rig = Rig(limit=8 * WINDOW_BYTES)
    first, noise, last = rig.publish(1), rig.publish(2, 2 * WINDOW_BYTES), rig.publish(3)
    assert rig.epoch()
    rng = random.Random(4)
    data = bytearray(rng.randbytes(noise.size + RECORD_HEAD))
    for _ in range(1000):
        at = rng.randrange(len(data) - 4)
        data[at : at + 4] = b"RPSR"
    rig.overwrite(FIRST, noise.offset, bytes(data))
    rig.recover(rig.disk.kill(), {first.msg_id: 1, last.msg_id: 1})


def test_a_file_that_was_only_begun_is_no_damage():
    for content in (b"", b"RPSF", bytes(HEADER_SIZE), bytes(500)):
        rig = Rig()
        rig.publish(1)
        assert rig.epoch()
        file = rig.disk.open(f"{FOLDER}/{SECOND}", create=True)
        file.write_at(0, content)
        file.close()
        rig.recover(rig.disk.kill(), rig.durable)
        assert rig.files() == [FIRST]
        assert not [line for line in rig.log.lines if line[0] == "error"]


def test_a_file_of_the_future_is_refused():
    rig = Rig()
    rig.publish(1)
    assert rig.epoch()
    header = rig.disk.open(f"{FOLDER}/{FIRST}").read_at(0, HEADER_SIZE)
    rig.overwrite(FIRST, 0, sealed(header[:4] + b"\x00\x00\x00\x02" + header[8:28]))
    with pytest.raises(StartError, match="version 2"):
        Rig(rig.disk.kill()).store.recover_by_scan()


def test_a_message_in_two_files_is_one_message():
    rig = Rig()
    entry = rig.publish(1)
    assert rig.epoch()
    data = rig.disk.open(f"{FOLDER}/{FIRST}").read_at(0, 10_000)
    copy = rig.disk.open(f"{FOLDER}/{SECOND}", create=True)
    copy.write_at(0, data[:HEADER_SIZE])
    copy.write_at(HEADER_SIZE, data[HEADER_SIZE:])
    copy.close()
    rig.recover(rig.disk.kill(), rig.durable)
    assert rig.store.lookup(entry.msg_id).file_num == 2
    assert rig.files() == [SECOND]


def test_what_a_kill_left_unsynced_is_safe_once_it_is_relied_on():
    """The indexes of a killed broker may refer to what it was about to sync; after the next start that counts."""
    rig = Rig()
    rig.publish(1)
    rig.publish(2, 1_500)
    assert rig.epoch()
    count = [op.kind for op in rig.disk.log].index("sync")
    rig.recover(rig.disk.after(count).kill(), rig.durable)
    rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_terms_that_somebody_else_refused_are_forgotten_by_a_scan():
    rig = Rig()
    two_files(rig)
    refs = dict(rig.durable)
    terms = rig.store.save_terms()
    rig._open()
    assert rig.store.load_terms(terms)
    recovery = rig.store.recover_by_scan()
    for msg_id in refs:
        assert recovery.add_ref(msg_id).ref_count == 1
    assert rig.store.recovered(recovery) == 0
    rig.check_all()


def test_recovery_tells_how_far_it_is():
    rig = Rig()
    two_files(rig)
    told: list[int] = []
    Rig(rig.disk.kill()).store.recover_by_scan(told.append)
    assert sum(told) == sum(rig.disk.size(f"{FOLDER}/{name}") for name in rig.files())


def test_a_clean_restart_reads_no_file_and_goes_on_in_the_last_one():
    rig = Rig()
    for number in range(3):
        rig.publish(number, 300)
    rig.publish(8, 50, times=3)
    assert rig.epoch()
    rig.store.release(rig.live()[0])
    assert rig.epoch()
    terms = rig.store.save_terms()
    summary = rig.store.file_summary()
    rig._open()
    rig.disk.fail({"read", "open"}, errno.EIO, forever=True)
    assert rig.store.load_terms(terms)
    rig.disk.mend()
    assert rig.store.file_summary() == summary
    rig.check_all()
    files = rig.files()
    rig.publish(9, 50)
    assert rig.epoch()
    assert rig.files() == files
    rig.check_all()
    rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_terms_that_do_not_fit_the_files_are_refused():
    rig = Rig()
    two_files(rig)
    terms = rig.store.save_terms()
    assert isinstance(terms, list)
    version, next_file_num, files, entries = terms
    wrong: list[object] = [
        None,
        [],
        [version + 1, next_file_num, files, entries],
        [version, next_file_num, files[:1], entries],
        [version, next_file_num, [*files, [77, 77, 40]], entries],
        [version, next_file_num, [[1, 1, 5000], files[1]], entries],
        [version, next_file_num, files, [[b"x" * 16, 1, 900, 400, 1]]],
        [version, next_file_num, files, [[b"x" * 16, 1, 32, 40, 0]]],
        [version, next_file_num, files, [["x", "y"]]],
    ]
    for bad in wrong:
        rig._open()
        assert not rig.store.load_terms(bad)
        rig.store.recover_by_scan()
        assert len(rig.live()) == 4
    rig._open()
    assert rig.store.load_terms(terms)


def test_files_that_the_terms_do_not_know_are_removed():
    rig = Rig()
    two_files(rig)
    terms = rig.store.save_terms()
    for name in ("00000009.store", "00000008.store.merging"):
        rig.disk.open(f"{FOLDER}/{name}", create=True).close()
    rig._open()
    assert rig.store.load_terms(terms)
    assert rig.files() == [FIRST, SECOND]


# -- scan -------------------------------------------------------------------------------------------------------------


def test_a_scan_finds_every_message_and_every_kind_of_damage():
    rig = Rig()
    two_files(rig)
    entries = rig.live()
    scan = StoreScan(rig.disk, FOLDER, {})
    scan.read()
    assert [kind for _, kind, _ in scan.findings()] == ["count", "count"]
    assert {msg_id: entry.size for msg_id, entry in scan.entries.items()} == {entry.msg_id: entry.size for entry in entries}

    rig.overwrite(FIRST, 3, b"?")
    rig.overwrite(FIRST, entries[0].offset + 100, b"???")
    rig.overwrite(SECOND, entries[3].offset + 100, b"???")
    rig.disk.open(f"{FOLDER}/00000003.store.merging", create=True).close()
    before = len(rig.disk.log)
    scan = StoreScan(rig.disk, FOLDER, {})
    scan.read()
    texts = [(name[-14:], kind) for name, kind, _ in scan.findings()]
    assert texts == [
        (FIRST, "damaged"),  # header
        (FIRST, "damaged"),  # hole
        (FIRST, "damaged"),  # the message in it
        (FIRST, "count"),
        (SECOND, "torn tail"),
        (SECOND, "count"),
        (".store.merging", "leftover"),
    ]
    assert set(scan.entries) == {entries[1].msg_id, entries[2].msg_id}
    assert len(rig.disk.log) == before


# -- crashes ----------------------------------------------------------------------------------------------------------


def test_whatever_operation_the_power_fails_at_no_settled_message_is_lost():
    """A history of flushes, removals, failures and compactions, and a power cut after each operation in it."""
    rig = Rig(limit=700)
    rng = random.Random(11)
    due: list[tuple[int, list[dict[bytes, int]]]] = [
        (0, [{}])
    ]  # from this operation on these may be asked for
    for step in range(60):
        for _ in range(rng.randrange(4)):
            rig.publish(step, rng.choice([20, 60, 200, 900]))
        if step % 7 == 3:
            rig.disk.fail(rng.choice(["write", "sync"]), errno.EIO, skip=rng.randrange(2))
        rig.begin()
        for entry in rig.live():
            if rng.random() < 0.3:
                rig.store.release(entry)
        try:
            rig.write()
        except OSError:
            rig.settle(False)
        else:
            due.append((len(rig.disk.log), [rig.durable, rig._begun]))
            rig.settle()
            due.append((len(rig.disk.log), [rig.durable]))
        rig.disk.mend()
        for _ in range(rng.randrange(4)):
            rig.threads.crank()
        rig.store.check()
    assert rig.store.garbage.compactions >= 2
    asked = [snapshots for _, snapshots in due]
    starts = [start for start, _ in due]
    at = 0
    checked = 0
    for count, disk in enumerate(rig.disk.prefixes()):
        while at + 1 < len(starts) and starts[at + 1] <= count:
            at += 1
        for crashed in [disk.crash(all_lost), disk.crash(nothing_lost), *every(disk, 2)]:
            for refs in asked[at]:
                after = Rig(crashed.kill(), limit=700)
                after.contents = rig.contents
                after.recover(after.disk, refs)
                checked += 1
    assert checked > 3 * len(rig.disk.log)
