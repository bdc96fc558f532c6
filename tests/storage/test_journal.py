"""The journal: epochs and who waits for them, its files and their reuse, and what it does when the disk refuses."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable

import pytest

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.storage.journal import ACKS_MAX, FILES_MAX
from rabbitpy_broker.storage.place import GONE, JOURNAL, PENDING, RELOG, SEGMENT, WRITING
from rabbitpy_broker.storage.sync import EpochLog
from storage.faulty_disk import all_lost, nothing_lost
from storage.journal_rig import BLOCKS, JournalRig, seq_ids
from storage.small_store import LARGE

# -- epochs -----------------------------------------------------------------------------------------------------------


def test_one_epoch_is_under_way_at_a_time():
    rig = JournalRig()
    first = rig.publish()
    rig.turn()
    second = rig.publish(2)
    rig.turn()
    rig.turn()
    assert len(rig.threads.waiting) == 1
    assert [place.where for place in first + second] == [WRITING, PENDING, PENDING]
    rig.threads.work()
    assert [place.where for place in first + second] == [WRITING, PENDING, PENDING]
    rig.threads.tell()
    assert [place.where for place in first + second] == [JOURNAL, PENDING, PENDING]
    rig.turn()
    assert len(rig.threads.waiting) == 1
    rig.settle()
    assert [place.where for place in first + second] == [JOURNAL] * 3
    assert rig.journal.epochs == 2
    assert rig.published() == [0, 1, 2]


def test_waiters_are_told_once_and_in_order():
    rig = JournalRig()
    rig.publish()
    rig.wait("a")
    rig.wait("b")
    rig.turn()
    rig.publish()
    rig.wait("c")
    assert rig.told == []
    rig.threads.crank()
    assert rig.told == [("a", 1, True), ("b", 1, True)]
    rig.turn()
    rig.wait("d")
    rig.threads.crank()
    rig.settle()
    rig.idle()
    assert rig.told == [("a", 1, True), ("b", 1, True), ("c", 2, True), ("d", 3, True)]


def test_who_waits_for_nothing_is_told_without_a_write():
    rig = JournalRig()
    before = len(rig.disk.log)
    rig.wait("a")
    rig.settle()
    assert rig.told == [("a", 1, True)]
    assert len(rig.disk.log) == before


def test_the_journal_marks_itself_once():
    rig = JournalRig(2)
    rig.publish(3)
    rig.publish(3, at=1)
    rig.wait()
    assert rig.due == 1
    rig.turn()
    rig.publish()
    assert rig.due == 1


def test_one_block_and_one_sync_for_all_queues():
    rig = JournalRig(5)
    rig.epoch()
    before = len(rig.disk.log)
    for at in range(5):
        rig.publish(3, at=at)
    rig.settle()
    kinds = [op.kind for op in rig.disk.log[before:]]
    assert kinds.count("sync") == 1
    assert rig.replay().files[0].blocks == 2
    for at in range(1, 5):
        assert rig.published(at + 1) == [0, 1, 2]
        assert rig.after_kill(at) == [0, 1, 2]


def test_blocks_begin_where_no_torn_write_spoils_another():
    rig = JournalRig()
    for _ in range(BLOCKS):
        rig.epoch()
    data = rig.read_file(rig.replay().files[0].path)
    assert [data[at : at + 4] for at in range(0, len(data), 4096)] == [b"RPJF", *[b"RPJB"] * BLOCKS]


def test_large_messages_are_synced_before_the_block_that_refers_to_them():
    rig = JournalRig()
    rig.epoch()
    before = len(rig.disk.log)
    (place,) = rig.epoch(size=LARGE)
    steps = [(op.kind, op.path.split("/")[2]) for op in rig.disk.log[before:]]
    stored = steps.index(("sync", "msg_store_persistent"))
    assert max(at for at, step in enumerate(steps) if step == ("write", "msg_store_persistent")) < stored
    assert stored < steps.index(("write", "journal")) < steps.index(("sync", "journal"))
    assert place.where == JOURNAL
    assert rig.after_kill() == [0, 1]


def test_an_epoch_of_more_than_a_file_gets_a_file_of_its_own():
    rig = JournalRig()
    rig.never_scatter()
    rig.epoch()
    rig.epoch(400)  # about 40 KiB
    rig.epoch()
    assert [int(found.blocks) for found in rig.replay().files] == [1, 1, 1]
    assert rig.after_kill() == list(range(402))


# -- elision and acks -------------------------------------------------------------------------------------------------


def test_what_is_acked_before_its_epoch_begins_is_not_written():
    rig = JournalRig()
    places = rig.publish(4)
    rig.ack(places[1:3])
    rig.settle()
    assert rig.published() == [0, 3]
    assert rig.acked() == []
    assert rig.journal.elided == 2


def test_an_epoch_of_elided_messages_writes_nothing_and_tells():
    rig = JournalRig()
    places = rig.publish(3, LARGE)
    rig.wait("a")
    rig.ack(places)
    before = len(rig.disk.log)
    rig.settle()
    assert rig.told == [("a", 1, True)]
    assert len(rig.disk.log) == before


def test_what_is_acked_while_its_epoch_is_under_way_gets_an_ack():
    rig = JournalRig()
    places = rig.publish(3)
    rig.turn()
    rig.ack(places[:2])
    assert [place.where for place in places] == [GONE, GONE, WRITING]
    rig.settle()
    assert rig.published() == [0, 1, 2]
    rig.tick()
    rig.settle()
    assert rig.acked() == [0, 1]
    assert rig.after_kill() == [2]


def test_acks_do_not_begin_an_epoch_and_ride_with_the_next():
    rig = JournalRig(2)
    places = rig.epoch(5)
    rig.ack(places[:3])
    rig.settle()
    assert rig.journal.epochs == 1
    assert rig.acked() == []
    rig.epoch(at=1)
    assert rig.journal.epochs == 2
    assert rig.acked() == [0, 1, 2]
    assert rig.after_kill() == [3, 4]


def test_a_tick_sends_acks_off():
    rig = JournalRig()
    rig.ack(rig.epoch(5)[:2])
    rig.tick()
    rig.settle()
    assert rig.acked() == [0, 1]


def test_many_acks_begin_an_epoch():
    rig = JournalRig()
    rig.never_scatter()
    rig.journal.files.size_limit = 1 << 24
    places = rig.epoch(int(ACKS_MAX))
    rig.ack(places[:-1])
    rig.settle()
    assert rig.acked() == []
    rig.ack(places[-1:])
    rig.settle()
    assert rig.acked() == seq_ids(places)


def test_who_waits_begins_an_epoch_with_acks():
    rig = JournalRig()
    rig.ack(rig.epoch(2))
    rig.wait("commit")
    rig.settle()
    assert rig.told == [("commit", 2, True)]
    assert rig.acked() == [0, 1]


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_full_file_is_followed_by_another():
    rig = JournalRig()
    for _ in range(2 * BLOCKS + 1):
        rig.epoch()
    found = rig.replay()
    assert [int(each.num) for each in found.files] == [1, 2, 3]
    assert [int(each.blocks) for each in found.files] == [BLOCKS, BLOCKS, 1]
    assert [int(each.previous) for each in found.files] == [0, 1, 2]
    assert [int(each.previous_end) for each in found.files[1:]] == [int(each.end) for each in found.files[:2]]
    assert rig.journal.files.count() == 3
    assert rig.after_kill() == list(range(2 * BLOCKS + 1))


def test_files_that_nobody_needs_are_reused_oldest_first():
    rig = JournalRig()
    for _ in range(2 * BLOCKS):
        rig.ack(rig.epoch())
    assert rig.journal_files() == {"0000.journal": 1, "0001.journal": 2}
    slots = [rig.journal_files()]
    for _ in range(5 * BLOCKS):
        rig.ack(rig.epoch())
        if rig.journal_files() != slots[-1]:
            slots.append(rig.journal_files())
    names = set(slots[-1])
    assert len(names) <= 3
    for before, now in itertools.pairwise(slots):
        if set(before) == set(now):  # no slot is new, so one was written over: the oldest
            (reused,) = [name for name in names if now[name] != before[name]]
            assert before[reused] == min(before.values())
            assert now[reused] == max(before.values()) + 1
    assert len(rig.after_kill()) == 1  # whose ack is due


def test_a_file_is_kept_while_one_place_needs_it():
    rig = JournalRig(2)
    (kept,) = rig.epoch()
    rig.never_scatter()
    for _ in range(2 * BLOCKS):
        rig.ack(rig.epoch(at=1), at=1)
    rig.journal.trim()
    assert rig.index.oldest_file() == 1
    assert rig.journal.files.count() == 3
    rig.ack([kept])
    rig.journal.trim()
    assert rig.index.oldest_file() == 0
    assert rig.journal.files.count() == 1


def test_old_blocks_of_a_reused_file_are_not_read():
    rig = JournalRig()
    while len(rig.journal_files()) < 2 or min(rig.journal_files().values()) == 1:
        rig.ack(rig.epoch())
    newest = rig.replay().files[-1]
    data = rig.read_file(newest.path)
    stale = [at for at in range(4096, len(data), 4096) if data[at : at + 4] == b"RPJB"][int(newest.blocks) :]
    assert stale, "nothing of the file's earlier use is left"
    assert len(rig.after_kill()) == 1  # whose ack is due


def test_the_queues_that_need_the_oldest_of_too_many_files_are_scattered_and_no_others():
    rig = JournalRig(3)
    (old,) = rig.epoch()
    for _ in range(int(FILES_MAX) * BLOCKS - 1):
        rig.ack(rig.epoch(at=1), at=1)
    rig.settle()
    assert rig.segments(0) == []
    (young,) = rig.epoch(at=2)
    while rig.store.scatter.scatters == 0:
        rig.ack(rig.epoch(at=1), at=1)
        assert rig.journal.files.count() <= FILES_MAX + 1
    assert rig.segments(0) == ["00000000.segment"]
    assert rig.segments(1) == rig.segments(2) == []
    assert (old.where, young.where) == (SEGMENT, JOURNAL)
    assert rig.journal.files.count() <= FILES_MAX
    assert rig.after_kill(0) == [0]
    assert rig.after_kill(2) == [0]


def test_the_last_of_the_acks_are_not_written_over_before_the_publishes():
    """Files 1 and 2 have publishes, file 3 their acks. Whatever of them is still on disk: the acks are."""
    rig = JournalRig(2)
    rig.never_scatter()
    places = []
    for _ in range(2 * BLOCKS):
        places += rig.epoch()
    rig.ack(places)
    for _ in range(BLOCKS):
        rig.epoch(at=1)
    assert rig.acked() == seq_ids(places)
    assert rig.after_kill() == []
    for _ in range(2 * BLOCKS):  # more files are set aside than are kept for reuse
        rig.ack(rig.epoch(at=1), at=1)
        for disk in (rig.disk.kill(), rig.disk.crash(nothing_lost), rig.disk.crash(all_lost)):
            assert rig.after_kill(disk=disk) == [], "acked, synced and back again"


def test_many_files_that_become_superfluous_at_once_leave_no_hole():
    """A crash before they are removed finds the acks of what it finds."""
    rig = JournalRig()
    rig.never_scatter()
    places = []
    for _ in range(int(FILES_MAX) * BLOCKS - 1):
        places += rig.epoch()
    rig.ack(places)
    last = []
    while rig.journal.files.count() >= FILES_MAX:  # until a new file begins
        rig.ack(last)
        last = rig.epoch()
    assert rig.after_kill() == seq_ids(last)


def test_a_file_that_cannot_be_removed_leaves_no_hole():
    rig = JournalRig()
    rig.never_scatter()
    places = []
    for _ in range(int(FILES_MAX) * BLOCKS - 1):
        places += rig.epoch()
    rig.ack(places)
    last = rig.epoch()
    assert rig.acked() == seq_ids(places)
    rig.disk.fail("remove", errno.EIO, forever=True)
    for _ in range(3 * BLOCKS):
        rig.ack(last)
        last = rig.epoch()
        rig.tick()
        rig.settle()
        assert not set(rig.after_kill()) & set(seq_ids(places)), "acked, synced and back again"
    assert rig.disk.struck
    rig.disk.mend()
    rig.idle()
    assert not rig.store.trouble.epoch
    assert rig.after_kill() == seq_ids(last)


# -- a disk that refuses ----------------------------------------------------------------------------------------------

failures = pytest.mark.parametrize("kind, code", [("write", errno.ENOSPC), ("sync", errno.EIO)])


@failures
def test_waiters_of_a_failed_epoch_are_told(kind, code):
    rig = JournalRig()
    rig.epoch()
    rig.disk.fail(kind, code, path="/journal/")
    places = rig.publish(2)
    rig.wait("a")
    rig.turn()
    rig.wait("b")  # for the next epoch
    rig.threads.crank()
    assert rig.told == [("a", 2, False)]
    assert rig.journal.epoch_failures == 1
    assert [place.where for place in places] == [RELOG, RELOG]
    rig.settle()
    assert rig.told == [("a", 2, False)]  # not before a tick
    rig.tick()
    rig.settle()
    assert rig.told == [("a", 2, False), ("b", 3, True)]
    assert [place.where for place in places] == [JOURNAL, JOURNAL]


@failures
def test_after_a_failure_a_new_file_begins_and_nothing_is_lost(kind, code):
    rig = JournalRig()
    before = rig.epoch(2)
    rig.disk.fail(kind, code, path="/journal/")
    failed = rig.epoch(2)
    file_nums = {int(place.file_num) for place in before}
    end = rig.read_file("/v/journal/0000.journal")
    meanwhile = rig.epoch(2)
    assert rig.after_kill()[:2] == seq_ids(before)
    rig.tick()
    rig.settle()
    assert file_nums.isdisjoint({int(place.file_num) for place in failed + meanwhile})
    assert rig.read_file("/v/journal/0000.journal") == end
    assert rig.after_kill() == seq_ids(before + failed + meanwhile)
    assert rig.after_kill(disk=rig.disk.crash(all_lost)) == seq_ids(before + failed + meanwhile)


@failures
def test_the_broker_is_told_of_trouble_and_of_its_end_once(kind, code):
    rig = JournalRig()
    rig.epoch()
    rig.disk.fail(kind, code, path="/journal/", forever=True)
    rig.epoch()
    for _ in range(4):
        rig.tick()
        rig.settle()
    assert rig.disk.struck == 5
    assert len(rig.troubles) == 1
    assert rig.troubles[0]
    assert rig.log.events("disk failed", "disk works again") == ["disk failed"]
    rig.disk.mend()
    rig.tick()
    rig.settle()
    assert rig.troubles[1:] == [""]
    assert rig.log.events("disk failed", "disk works again") == ["disk failed", "disk works again"]


def test_an_empty_block_finds_out_that_the_disk_works_again():
    rig = JournalRig()
    rig.epoch()
    rig.disk.fail("sync", errno.EIO, path="/journal/")
    places = rig.publish(2)
    rig.wait("a")
    rig.turn()
    rig.ack(places)  # nothing of it is due any more but acks
    rig.threads.crank()
    assert rig.store.trouble.epoch
    rig.idle()
    assert rig.troubles[-1] == ""
    assert rig.told == [("a", 2, False)]
    assert rig.after_kill() == [0]


def test_it_finds_out_as_well_when_the_queue_in_trouble_is_deleted():
    rig = JournalRig()
    rig.disk.fail("sync", errno.EIO, path="/journal/")
    rig.epoch()
    assert rig.store.trouble.epoch
    rig.index.delete()
    rig.idle()
    assert rig.troubles[-1] == ""


def test_what_a_failed_epoch_may_have_left_gets_an_ack():
    """The sync failed, but the block is there: the message must not come back after it was acked."""
    rig = JournalRig()
    rig.epoch()
    rig.disk.fail("sync", errno.EIO, path="/journal/")
    (place,) = rig.epoch()
    assert place.where == RELOG
    assert rig.after_kill() == [0, 1]
    rig.ack([place])
    rig.epoch()
    rig.tick()
    rig.settle()
    assert rig.acked() == [1]
    assert rig.published() == [0, 1, 2]  # and it is not written again
    assert rig.after_kill() == [0, 2]


@failures
def test_acks_of_a_failed_epoch_are_written_again(kind, code):
    rig = JournalRig()
    places = rig.epoch(3)
    rig.disk.fail(kind, code, path="/journal/")
    rig.ack(places[:1])
    rig.tick()
    rig.settle()
    rig.ack(places[1:2])
    assert rig.journal.epoch_failures == 1
    rig.tick()
    rig.settle()
    assert rig.after_kill() == [2]
    assert rig.after_kill(disk=rig.disk.crash(all_lost)) == [2]


@failures
def test_purges_of_a_failed_epoch_are_written_again(kind, code):
    rig = JournalRig()
    places = rig.epoch(3)
    rig.disk.fail(kind, code, path="/journal/")
    for place in places:
        place.settled()
    rig.index.purge([], 0, 3, rig.index.segments.plan_purge([]))
    rig.tick()
    rig.settle()
    assert rig.journal.epoch_failures == 1
    rig.tick()
    rig.settle()
    assert rig.after_kill() == []


@pytest.mark.parametrize("kind", ["open", "resize", "write", "sync", "sync_dir"])
def test_a_file_whose_beginning_fails_is_removed(kind):
    rig = JournalRig()
    rig.disk.fail(kind, errno.ENOSPC, path="/journal")
    places = rig.epoch(2)
    assert rig.disk.struck == 1
    assert [place.where for place in places] == [RELOG, RELOG]
    rig.tick()
    rig.settle()
    rig.tick()
    rig.settle()
    assert len(rig.disk.list_dir("/v/journal")) == 1
    assert rig.after_kill() == [0, 1]
    assert not rig.store.trouble.epoch


def test_a_failed_flush_of_the_message_store_fails_the_epoch():
    rig = JournalRig()
    rig.epoch()
    rig.disk.fail("sync", errno.EIO, path="/msg_store_persistent/")
    rig.wait("a")
    large = rig.epoch(2, LARGE)
    assert rig.told == [("a", 2, False)]
    rig.tick()
    rig.settle()
    assert [place.where for place in large] == [JOURNAL, JOURNAL]
    assert rig.after_kill() == [0, 1, 2]
    assert rig.after_kill(disk=rig.disk.crash(all_lost)) == [0, 1, 2]


def test_failures_of_a_deleted_queue_are_forgotten():
    rig = JournalRig(2)
    rig.disk.fail("sync", errno.EIO, path="/journal/")
    rig.publish(2)
    rig.publish(2, at=1)
    rig.turn()
    rig.index.delete()
    rig.settle()
    rig.tick()
    rig.settle()
    assert rig.published(2)[-2:] == [0, 1]
    assert rig.journal.users == {2: rig.indexes[1]}
    assert rig.journal.is_settled()


# -- a log before the files -------------------------------------------------------------------------------------------


class AnsweredLog(EpochLog):
    """Says of an epoch what the test has it say."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self._done: list[Callable[[int, Exception | None], None]] = []

    def begin(self) -> None:
        pass

    def append(self, payload: list[bytes], done: Callable[[int, Exception | None], None]) -> None:
        self.appended.append(b"".join(payload))
        self._done.append(done)

    def answer(self, error: Exception | None = None) -> None:
        self._done.pop()(len(self.appended), error)


@pytest.fixture
def logged() -> tuple[JournalRig, AnsweredLog]:
    rig, log = JournalRig(), AnsweredLog()
    rig.journal.log = log
    return rig, log


def publish_and_wait(rig: JournalRig, name: str) -> list[MsgStatus]:
    """In an epoch that begins now, if it may."""
    places = rig.publish(2)
    rig.wait(name)
    rig.turn()
    return places


def test_waiters_are_told_when_the_log_has_it_and_not_before(logged: tuple[JournalRig, AnsweredLog]):
    rig, log = logged
    places = publish_and_wait(rig, "a")
    assert not rig.threads.crank(), "the files have nothing that the log has not"
    assert rig.told == []
    log.answer()
    assert rig.told == [("a", 1, True)]
    assert {place.where for place in places} == {WRITING}
    assert rig.after_kill() == []
    rig.settle()
    assert {place.where for place in places} == {JOURNAL}
    assert rig.after_kill() == seq_ids(places)


def test_the_next_epoch_goes_to_the_log_while_the_files_are_written(logged: tuple[JournalRig, AnsweredLog]):
    rig, log = logged
    first = publish_and_wait(rig, "a")
    publish_and_wait(rig, "b")
    assert len(log.appended) == 1
    log.answer()
    rig.turn()
    assert len(log.appended) == 2
    log.answer()
    assert rig.told == [("a", 1, True), ("b", 2, True)]
    publish_and_wait(rig, "c")
    assert len(log.appended) == 2, "one waits for the files at most"
    assert not rig.journal.is_settled()
    rig.threads.crank()
    assert rig.after_kill() == seq_ids(first)
    rig.turn()
    assert len(log.appended) == 3
    log.answer()
    rig.settle()
    assert rig.journal.is_settled()
    assert rig.after_kill() == [0, 1, 2, 3, 4, 5]


@failures
@pytest.mark.parametrize("answered_first", [True, False])
def test_behind_an_epoch_that_the_files_do_not_take_they_take_none(kind, code, answered_first, logged):
    """And all of it is in the log and the files in the end; who was told stays told."""
    rig, log = logged
    publish_and_wait(rig, "a")
    log.answer()
    rig.disk.fail(kind, code, path="/journal/")
    publish_and_wait(rig, "b")
    if answered_first:
        log.answer()
    rig.threads.crank()
    if not answered_first:
        assert rig.journal.epoch_failures == 0
        log.answer()
    assert rig.journal.epoch_failures == 2
    assert not rig.threads.crank()
    assert not {2, 3} & set(rig.after_kill())
    rig.tick()
    rig.turn()
    log.answer()
    rig.settle()
    assert rig.told == [("a", 1, True), ("b", 2, True)]
    assert rig.after_kill() == [0, 1, 2, 3]
    assert rig.published() == [0, 1, 2, 3], "in their order"


def test_what_the_log_refuses_is_told_and_in_no_file(logged: tuple[JournalRig, AnsweredLog]):
    rig, log = logged
    places = publish_and_wait(rig, "a")
    log.answer()
    publish_and_wait(rig, "b")
    log.answer(BrokerError("deposed"))
    assert rig.told == [("a", 1, True), ("b", 2, False)]
    rig.settle()
    assert rig.after_kill() == seq_ids(places)
    assert rig.store.trouble.epoch
