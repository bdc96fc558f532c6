"""Merging files of the message store while messages come, go and are read."""

from __future__ import annotations

import errno
import itertools

import pytest

from rabbitpy_broker.message import StoreEntry
from rabbitpy_broker.storage.compaction import choose_pair
from rabbitpy_broker.storage.store_file import HEADER_SIZE, RECORD_HEAD, WINDOW_RECORDS, StoreFile
from storage.faulty_disk import all_lost
from storage.store_rig import FOLDER, Rig

NEW = "00000004.store"


def half_empty(rig: Rig, size: int = 100) -> list[StoreEntry]:
    """Two closed files with one live message each, among garbage, and a current one. The removals are settled next."""
    per_file = (rig.limit - HEADER_SIZE) // (RECORD_HEAD + rig.publish(0, size).size)
    for number in range(1, 2 * per_file):
        rig.publish(number, size)
    rig.publish(99, size)
    assert rig.epoch()
    assert len(rig.files()) == 3
    entries = rig.live()
    kept = [entries[1], entries[per_file + 1]]
    for entry in entries[: 2 * per_file]:
        if entry not in kept:
            rig.store.release(entry)
    return kept


def begun(rig: Rig) -> list[StoreEntry]:
    """The same, up to a compaction that has begun."""
    kept = half_empty(rig)
    assert rig.epoch()
    assert rig.threads.waiting
    return kept


def file(file_num: int, total: int, valid: int) -> StoreFile:
    made = StoreFile(file_num, file_num)
    made.total_bytes = total
    made.valid_bytes = valid
    return made


# -- which files ------------------------------------------------------------------------------------------------------


def test_nothing_is_merged_while_half_is_in_use():
    assert choose_pair([file(1, 1000, 450), file(2, 1000, 450)], 1000) != []
    assert choose_pair([file(1, 1000, 490), file(2, 1000, 490)], 1000) == []
    assert choose_pair([file(1, 1000, 10)], 1000) == []


def test_neighbours_that_fit_into_one_file_are_merged():
    files = [file(4, 1000, 100), file(1, 1000, 600), file(2, 1000, 200), file(3, 1000, 300)]
    assert [found.file_num for found in choose_pair(files, 1000)] == [3, 4]
    files[3].is_stuck = True
    assert [found.file_num for found in choose_pair(files, 1000)] == [2, 4]


def test_files_too_full_to_fit_are_left():
    assert choose_pair([file(1, 3000, 990), file(2, 1000, 10)], 1000) == []


# -- the merge --------------------------------------------------------------------------------------------------------


def test_two_files_become_one():
    rig = Rig()
    kept = begun(rig)
    rig.threads.crank_all()
    assert rig.store.garbage.compactions == 1
    assert {entry.file_num for entry in kept} == {4}
    assert NEW in rig.files()
    assert "00000001.store" not in rig.files()
    assert "00000002.store" not in rig.files()
    assert rig.disk.size(f"{FOLDER}/{NEW}") == HEADER_SIZE + sum(RECORD_HEAD + entry.size for entry in kept)
    rig.check_all()
    rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_the_new_file_takes_the_place_of_the_old_ones():
    """Also after a restart, when only the files can tell."""
    rig = Rig()
    begun(rig)
    rig.threads.crank_all()
    positions = {int(found.file_num): int(found.position) for found in rig.store.folder.files.values()}
    assert positions[4] == 1
    rig.recover(rig.disk.crash(all_lost), rig.durable)
    assert {int(found.file_num): int(found.position) for found in rig.store.folder.files.values()} == positions


def test_the_file_being_written_is_not_merged():
    rig = Rig()
    for number in range(6):
        rig.publish(number)
    assert rig.epoch()
    for entry in rig.live()[1:]:
        rig.store.release(entry)
    assert rig.epoch()
    assert not rig.threads.waiting


def test_messages_are_readable_at_every_step():
    rig = Rig()
    kept = begun(rig)
    steps = 0
    while rig.threads.waiting or rig.threads.worked:
        if rig.threads.waiting:
            rig.threads.work()
        rig.store.folder.opened.close_all()
        for entry in kept:
            rig.read(entry)
        rig.store.check()
        if rig.threads.worked:
            rig.threads.tell()
        rig.store.folder.opened.close_all()
        for entry in kept:
            rig.read(entry)
        rig.store.check()
        steps += 1
    assert steps > 3
    assert {entry.file_num for entry in kept} == {4}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_message_released_at_any_step_is_gone_and_the_others_are_not(victim: int):
    rig = Rig()
    begun(rig)
    steps = 0
    while rig.threads.crank():
        steps += 1
    for at in range(steps):
        rig = Rig()
        kept = begun(rig)
        for _ in range(at):
            rig.threads.crank()
        durable = rig.durable
        rig.store.release(kept[victim])
        rig.threads.crank_all()
        rig.store.check()
        rig.read(kept[1 - victim])
        assert rig.store.lookup(kept[victim].msg_id) is None
        after = Rig(rig.disk.crash(all_lost))
        after.contents = rig.contents
        after.recover(after.disk, durable)  # the ack has not been synced: the index still refers to it
        assert rig.epoch()
        rig.threads.crank_all()
        rig.check_all()
        rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_everything_released_meanwhile_leaves_nothing():
    rig = Rig()
    kept = begun(rig)
    rig.threads.crank()
    for entry in kept:
        rig.store.release(entry)
    assert rig.epoch()
    rig.threads.crank_all()
    assert rig.files() == ["00000003.store"]
    assert rig.log.lines == []


def test_the_new_file_stays_while_entries_are_moved_to_it():
    """In the transient store, where garbage goes at once: all that was moved so far is released between two slices."""
    rig = Rig(limit=1_000_000, transient=True)
    kept = many_small(rig)
    while rig.threads.crank() and not any(entry.file_num > 3 for entry in kept):
        pass
    for entry in kept:
        if entry.file_num > 3:
            rig.store.release(entry)
    rest = [entry for entry in kept if entry.ref_count]
    assert 0 < len(rest) < len(kept)
    rig.threads.crank_all()
    rig.store.check()
    for entry in rest:
        rig.read(entry)


def test_flushes_go_on_beside_it():
    rig = Rig()
    begun(rig)
    number = 1000
    while rig.threads.crank():
        rig.publish(number)
        number += 1
        assert rig.epoch()
    rig.check_all()
    rig.recover(rig.disk.crash(all_lost), rig.durable)


def many_small(rig: Rig) -> list[StoreEntry]:
    """Two files of a MB with thousands of messages to move."""
    number = 0
    while len(rig.files()) < 3:
        for _ in range(4_000):
            rig.publish(number, 30)
            number += 1
        assert rig.epoch()
    live = [entry for entry in rig.live() if entry.file_num < 3]
    for at, entry in enumerate(live):
        if at % 5 < 3:
            rig.store.release(entry)
    kept = [entry for at, entry in enumerate(live) if at % 5 >= 3]
    assert len(kept) > 3 * WINDOW_RECORDS
    assert rig.epoch()
    return kept


def test_entries_are_switched_in_slices():
    rig = Rig(limit=1_000_000)
    kept = many_small(rig)
    moved = [0]
    while rig.threads.crank():
        now = sum(entry.file_num > 3 for entry in kept)
        if now != moved[-1]:
            moved.append(now)
            rig.read(kept[now - 1])
            rig.read(kept[min(now, len(kept) - 1)])
    assert moved[-1] == len(kept)
    assert all(later - earlier <= WINDOW_RECORDS for earlier, later in itertools.pairwise(moved))
    rig.check_all()


@pytest.mark.parametrize("kind", ["open", "read", "write", "sync", "rename", "sync_dir"])
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_failed_compaction_loses_nothing(kind: str, skip: int):
    rig = Rig()
    begun(rig)
    rig.disk.fail(kind, errno.EIO, skip=skip)
    rig.threads.crank_all()
    rig.disk.mend()
    rig.store.check()
    assert rig.store.garbage.compactions == (0 if rig.disk.struck else 1)
    if rig.disk.struck:
        assert rig.log.events()[0] == "message store not compacted"
        assert rig.files() == ["00000001.store", "00000002.store", "00000003.store"]
    rig.check_all()
    assert rig.disk.open_files < 12
    rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_a_damaged_record_keeps_its_file():
    rig = Rig()
    kept = begun(rig)
    rig.overwrite("00000001.store", kept[0].offset + 50, b"\xff\xff")
    rig.threads.crank_all()
    assert kept[0].file_num == 1
    assert rig.log.events() == ["message store damaged"]
    rig.read(kept[1])
    assert "00000002.store" not in rig.files()
    rig.store.check()
    rig.store.garbage.look_again_at = 0
    rig.store.compact_if_due()
    assert not rig.threads.waiting
    rig.store.release(kept[0])
    assert rig.epoch()
    rig.threads.crank_all()
    assert "00000001.store" not in rig.files()


def test_stopping_in_the_middle_loses_nothing():
    rig = Rig()
    begun(rig)
    steps = 0
    while rig.threads.crank():
        steps += 1
    for at in range(steps):
        rig = Rig()
        begun(rig)
        for _ in range(at):
            rig.threads.crank()
        terms = rig.store.save_terms()
        if at % 2:
            rig.threads.crank_all()
        rig._open()
        assert rig.store.load_terms(terms)
        rig.check_all()
        assert not [name for name in rig.files() if name.endswith(".merging")]
        rig.recover(rig.disk.crash(all_lost), rig.durable)


def test_one_compaction_follows_another():
    rig = Rig()
    for number in range(60):
        rig.publish(number)
    assert rig.epoch()
    for at, entry in enumerate(rig.live()):
        if at % 5:
            rig.store.release(entry)
    assert rig.epoch()
    rig.threads.crank_all()
    assert rig.store.garbage.compactions > 2
    in_use = sum(valid for _, valid, _ in rig.store.file_summary())
    assert in_use >= sum(total for _, _, total in rig.store.file_summary()) / 2 - rig.limit
    rig.check_all()
