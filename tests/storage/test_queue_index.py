"""The queue index: from the journal to segments and out of them, and what a failure on the way leaves."""

from __future__ import annotations

import errno

import pytest

from rabbitpy_broker.queues.msg_status import MsgStatus, StatusMaker
from rabbitpy_broker.queues.queue_settings import PERSIST
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.storage.place import GONE, JOURNAL, PAGING, SEGMENT, TRANSIENT
from storage.faulty_disk import all_lost, every
from storage.journal_rig import JOURNAL as JOURNAL_FOLDER
from storage.journal_rig import MAX_ENTRIES, PER_SEGMENT, JournalRig, seq_ids
from storage.small_store import EMBED_BELOW, LARGE, SMALL, message, number_of

SEGMENT_0, SEGMENT_1 = "00000000.segment", "00000001.segment"


def wheres(places: list[MsgStatus]) -> set[int]:
    return {int(place.where) for place in places}


def scattered(count: int, size: int = SMALL) -> tuple[JournalRig, list[MsgStatus]]:
    """A rig with places in segments, and none in the journal."""
    rig = JournalRig()
    places = rig.epoch(count, size)
    rig.index.scatter()
    rig.settle()
    assert wheres(places) == {SEGMENT}
    return rig, places


def read_back(rig: JournalRig, places: list[MsgStatus]) -> list[int]:
    """The numbers of the messages, read from disk."""
    for place in places:
        place.message = None
    rig.index.read_messages(places, False)
    return [number_of(place.message) for place in places]


def paged(rig: JournalRig, count: int, at: int = 0) -> list[MsgStatus]:
    """Transient places on their way to a transient segment."""
    places = []
    for _ in range(count):
        seq_id = rig.next_seq_ids[at]
        rig.next_seq_ids[at] += 1
        sent = message(seq_id, SMALL, False)
        place = MsgStatus(seq_id, sent, sent.body_size)
        rig.indexes[at].page(place)
        places.append(place)
    return places


# -- the three occasions ----------------------------------------------------------------------------------------------


def test_too_many_entries_in_the_journal():
    rig = JournalRig()
    places = rig.epoch(MAX_ENTRIES)
    assert rig.segments() == []
    assert wheres(places) == {JOURNAL}
    places += rig.epoch(1)
    assert wheres(places) == {SEGMENT}
    assert rig.segments() == [SEGMENT_0, SEGMENT_1, "00000002.segment"]
    assert (rig.index.journal_live, rig.index.oldest_file()) == (0, 0)
    assert rig.after_kill() == seq_ids(places)


def test_what_is_acked_does_not_count_as_too_many():
    rig = JournalRig()
    for _ in range(10):
        rig.ack(rig.epoch(MAX_ENTRIES // 2))
    assert rig.store.scatter.scatters == 0
    assert rig.segments() == []


def test_a_queue_that_idles():
    rig = JournalRig(2)
    places = rig.epoch(3)
    rig.tick()
    rig.settle()
    assert rig.segments() == []  # it was busy since the tick before
    rig.epoch(at=1)
    rig.tick()
    rig.settle()
    assert rig.segments() == [SEGMENT_0]
    assert rig.segments(1) == []
    assert wheres(places) == {SEGMENT}


def test_memory_that_is_short():
    """VariableQueue asks for it, or pages a transient message."""
    rig = JournalRig()
    places = rig.epoch(3)
    rig.index.scatter()
    rig.settle()
    assert wheres(places) == {SEGMENT}
    more = rig.epoch(1)
    paged(rig, 1)
    rig.settle()
    assert wheres(more) == {SEGMENT}


def test_nothing_counts_before_it_is_synced():
    rig = JournalRig()
    places = rig.epoch(3)
    rig.index.scatter()
    rig.threads.crank()  # written
    assert rig.segments() == [SEGMENT_0]
    assert wheres(places) == {JOURNAL}
    assert rig.index.oldest_file() == 1
    for disk in every(rig.disk, 50):
        assert rig.after_kill(disk=disk) == seq_ids(places)
    rig.threads.crank()  # synced
    assert wheres(places) == {SEGMENT}
    assert rig.index.oldest_file() == 0


def test_segments_are_cut_at_their_borders():
    rig, places = scattered(2 * PER_SEGMENT + 1)
    assert {num: int(segment.live) for num, segment in rig.index.segments.by_num.items()} == {0: 8, 1: 8, 2: 1}
    assert [seq_ids(rig.index.segments.read(num)) for num in range(3)] == [
        list(range(8)), list(range(8, 16)), [16],
    ]  # fmt: skip
    assert rig.index.segments.read(3) == []
    assert [int(rig.index.segments.boundary(seq_id)) for seq_id in (0, 7, 8)] == [8, 8, 16]
    assert read_back(rig, places) == seq_ids(places)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_messages_are_read_back_from_where_they_are(size):
    rig = JournalRig()
    places = rig.epoch(12, size)
    assert read_back(rig, places) == seq_ids(places)  # the journal
    rig.index.scatter()
    rig.settle()
    assert read_back(rig, places) == seq_ids(places)
    assert rig.after_kill() == seq_ids(places)


def test_neighbours_are_read_at_once():
    rig, places = scattered(PER_SEGMENT)
    before = rig.index.segments.reads
    assert read_back(rig, places) == seq_ids(places)
    assert rig.index.segments.reads - before == 1


def test_a_message_that_was_dropped_goes_to_its_segment_all_the_same():
    rig = JournalRig()
    places = rig.epoch(4)
    for place in places:
        place.message = None
    rig.index.scatter()
    rig.settle()
    assert wheres(places) == {SEGMENT}
    assert [place.message for place in places] == [None] * 4
    assert read_back(rig, places) == seq_ids(places)


# -- acks -------------------------------------------------------------------------------------------------------------


def test_what_is_acked_in_the_journal_meets_no_segment():
    rig = JournalRig()
    places = rig.epoch(10)
    rig.ack(places[:9])
    rig.index.scatter()
    rig.settle()
    assert rig.segments() == [SEGMENT_1]
    assert seq_ids(rig.index.segments.read(1)) == [9]


def test_acks_reach_the_segment_with_the_next_scatter():
    rig, places = scattered(4)
    rig.ack(places[1:3])
    assert seq_ids(rig.index.segments.read(0)) == [0, 3]  # memory knows
    assert rig.index.has_journal_entries()
    rig.idle()
    assert not rig.index.has_journal_entries()
    rig.publish()
    rig.idle()
    assert rig.after_kill() == [0, 3, 4]
    segment = rig.index.segments.by_num[0]
    assert (segment.live, segment.live_bytes) == (3, 3 * SMALL)


def test_the_journal_is_kept_until_the_segment_knows_of_the_acks():
    rig, places = scattered(4)
    rig.ack(places[:1])
    assert rig.index.oldest_file() == rig.journal.files.num
    rig.idle()
    assert rig.index.oldest_file() == 0


def test_what_is_acked_while_it_is_scattered_is_acked():
    rig = JournalRig()
    places = rig.epoch(4)
    rig.index.scatter()
    rig.threads.work()
    rig.ack(places[:2])
    rig.settle()
    assert rig.index.segments.by_num[0].live == 2
    assert rig.index.oldest_file() > 0
    rig.idle()
    assert rig.after_kill() == [2, 3]
    assert rig.index.oldest_file() == 0


def test_a_segment_goes_when_all_in_it_is_acked():
    rig, places = scattered(12)
    rig.ack(places[:7])
    rig.idle()
    assert rig.segments() == [SEGMENT_0, SEGMENT_1]
    rig.ack(places[7:8])
    rig.idle()
    assert rig.segments() == [SEGMENT_1]
    assert list(rig.index.segments.by_num) == [1]
    assert rig.after_kill() == [8, 9, 10, 11]


def test_a_segment_goes_when_all_in_it_is_acked_while_it_is_written():
    rig = JournalRig()
    places = rig.epoch(4)
    rig.index.scatter()
    rig.threads.work()
    rig.ack(places)
    assert rig.segments() == [SEGMENT_0]
    rig.settle()
    rig.idle()
    assert rig.segments() == []
    assert rig.after_kill() == []


def test_a_segment_that_is_made_again_is_not_removed_by_an_older_removal():
    rig, places = scattered(4)
    rig.ack(places)
    assert rig.index.segments.by_num == {}
    more = rig.epoch(2)  # in the same segment
    rig.index.scatter()  # before anybody came to remove the file
    rig.settle()
    rig.idle()
    assert rig.segments() == [SEGMENT_0]
    assert read_back(rig, more) == [4, 5]
    assert rig.after_kill() == [4, 5]


def test_a_segment_is_removed_before_it_is_made_again():
    rig, places = scattered(4)
    rig.ack(places)
    rig.tick()
    (more,) = rig.publish(1)  # while the removal is under way
    rig.turn()
    rig.index.scatter()
    rig.settle()
    rig.idle()
    assert more.where == SEGMENT
    assert read_back(rig, [more]) == [4]
    assert rig.after_kill() == [4]


def test_acked_messages_of_a_segment_that_cannot_be_removed_do_not_return():
    """Not even when the journal has been written over again and again since."""
    rig, places = scattered(4)
    rig.disk.fail("remove", errno.EIO, path="/queues/")
    rig.ack(places)
    rig.idle()
    assert rig.disk.struck == 1
    for _ in range(30):
        last = rig.epoch()
        rig.ack(last)
    rig.idle()
    assert rig.after_kill() == []


def test_acked_messages_of_a_removed_segment_do_not_return_with_its_name():
    """A removal is safe only when the folder is synced."""
    rig, places = scattered(4)
    rig.ack(places)
    rig.idle()
    assert rig.segments() == []
    for _ in range(30):
        rig.ack(rig.epoch())
    rig.idle()
    assert rig.after_kill(disk=rig.disk.crash(all_lost)) == []


# -- a scatter that fails ---------------------------------------------------------------------------------------------

failures = pytest.mark.parametrize(
    "kind, code",
    [("write", errno.ENOSPC), ("sync", errno.EIO), ("sync_dir", errno.EIO), ("open", errno.EMFILE)],
)


@failures
def test_a_failed_scatter_is_tried_again_at_a_tick(kind, code):
    rig = JournalRig()
    places = rig.epoch(12)
    rig.disk.fail(kind, code, path="/queues/")
    rig.index.scatter()
    rig.settle()
    assert rig.disk.struck == 1
    assert wheres(places) == {JOURNAL}
    assert seq_ids(rig.index.in_journal) == seq_ids(places)
    assert rig.index.oldest_file() == 1
    assert len(rig.troubles) == 1
    assert rig.after_kill() == seq_ids(places)
    rig.tick()
    rig.settle()
    assert wheres(places) == {SEGMENT}
    assert rig.troubles[1:] == [""]
    assert read_back(rig, places) == seq_ids(places)
    assert rig.after_kill() == seq_ids(places)


@failures
def test_epochs_go_on_while_a_scatter_fails(kind, code):
    rig = JournalRig()
    places = rig.epoch(3)
    rig.disk.fail(kind, code, path="/queues/", forever=True)
    rig.index.scatter()
    rig.settle()
    rig.wait("a")
    places += rig.epoch(3)
    assert rig.told == [("a", 2, True)]
    rig.tick()
    rig.settle()
    assert rig.after_kill() == seq_ids(places)
    rig.disk.mend()
    rig.idle()
    assert wheres(places) == {SEGMENT}
    assert rig.log.events("disk failed", "disk works again") == ["disk failed", "disk works again"]


@failures
def test_acks_of_a_failed_scatter_are_written_by_the_next(kind, code):
    rig, places = scattered(4)
    rig.ack(places[:1])
    rig.disk.fail(kind, code, path="/queues/")
    rig.index.scatter()
    rig.settle()
    rig.ack(places[1:2])
    assert rig.index.oldest_file() > 0
    rig.idle()
    assert rig.index.oldest_file() == 0
    assert rig.after_kill() == [2, 3]


@pytest.mark.parametrize("before", [0, 2], ids=["new file", "behind others"])
def test_what_a_failed_scatter_has_left_does_not_return_after_its_ack(before):
    """The blocks were written and the sync failed; then everything in them is acked, and the journal moves on."""
    rig = JournalRig()
    kept = rig.epoch(before) if before else []
    rig.idle()
    places = rig.epoch(3)
    rig.disk.fail("sync", errno.EIO, path="/queues/")
    rig.index.scatter()
    rig.settle()
    assert rig.disk.struck == 1
    assert wheres(places) == {JOURNAL}
    rig.ack(places)
    rig.idle()
    for _ in range(30):  # files of the journal are written over
        rig.ack(rig.epoch())
    rig.idle()
    assert rig.after_kill() == seq_ids(kept)


# -- transient places -------------------------------------------------------------------------------------------------


def test_paged_places_go_to_a_file_of_their_own():
    rig = JournalRig()
    kept = rig.epoch(2)
    places = paged(rig, 3)
    assert wheres(places) == {PAGING}
    rig.settle()
    assert wheres(places) == {TRANSIENT}
    assert rig.segments() == [SEGMENT_0, "00000000.transient"]
    assert read_back(rig, places) == seq_ids(places)
    assert seq_ids(rig.index.segments.read(0)) == [0, 1, 2, 3, 4]
    assert rig.published() == seq_ids(kept)
    assert rig.after_kill() == seq_ids(kept)
    rig.ack(kept + places)
    rig.idle()
    assert rig.segments() == []


def test_a_queue_that_is_not_durable_pages_too():
    rig = JournalRig()
    index = rig.store.new_index(77, False, StatusMaker())
    sent = message(0, SMALL, False)
    place = MsgStatus(0, sent, SMALL)
    index.page(place)
    rig.settle()
    assert place.where == TRANSIENT
    assert rig.disk.list_dir(index.segments.path) == ["00000000.transient"]
    index.ack(place)
    rig.tick()
    rig.settle()
    assert rig.disk.list_dir(index.segments.path) == []


def test_paged_places_of_a_failed_scatter_are_paged_by_the_next():
    rig = JournalRig()
    rig.disk.fail("write", errno.ENOSPC, path="/queues/")
    places = paged(rig, 3)
    rig.settle()
    assert wheres(places) == {PAGING}
    rig.ack(places[:1])
    rig.tick()
    rig.settle()
    assert [place.where for place in places] == [GONE, TRANSIENT, TRANSIENT]
    assert read_back(rig, places[1:]) == [1, 2]


def test_the_highest_place_in_segments_is_known_over_scatters_and_stops():
    rig, _ = scattered(4)
    assert rig.index.segments.highest == 3
    places = rig.epoch(12)
    assert rig.index.segments.highest == 3
    rig.index.scatter()
    rig.settle()
    assert rig.index.segments.highest == 15
    rig.ack(places)
    rig.store.stop_work()
    while not rig.store.push():
        assert rig.threads.crank()
    rig.store.stop({rig.index: 16}).run()
    assert rig.highest_after_start() == 15


# -- delivered --------------------------------------------------------------------------------------------------------


def test_deliveries_are_remembered():
    rig, places = scattered(4)
    rig.index.segments.delivered(places[1])
    assert [place.redelivered for place in rig.index.segments.read(0)] == [False, True, False, False]
    assert rig.index.segments.by_num[0].new_delivers == [1]
    rig.index.scatter()
    rig.settle()
    assert rig.index.segments.by_num[0].new_delivers == []
    rig.index.segments.by_num[0].delivered.clear()  # what the file says
    assert [place.redelivered for place in rig.index.segments.read(0)] == [False, True, False, False]


def test_what_goes_to_its_segment_redelivered_stays_so():
    rig = JournalRig()
    places = rig.epoch(3)
    places[2].redelivered = True
    rig.index.scatter()
    rig.settle()
    assert [place.redelivered for place in rig.index.segments.read(0)] == [False, False, True]


def test_expiry_comes_back():
    rig = JournalRig()
    (place,) = rig.publish()
    place.expiry = 1_700_000_000_123
    rig.settle()
    rig.index.scatter()
    rig.settle()
    assert [found.expiry for found in rig.index.segments.read(0)] == [1_700_000_000_123]


# -- the end of many --------------------------------------------------------------------------------------------------


def test_purge_settles_all_but_what_is_held():
    rig, places = scattered(12)
    in_journal = rig.epoch(4)
    held = [places[3], in_journal[1]]
    for place in places + in_journal:
        if place not in held:
            place.settled()
    rig.index.purge(held, 0, 16, rig.index.segments.plan_purge(held))
    rig.settle()
    rig.idle()
    assert rig.after_kill() == [3, 13]
    assert rig.segments() == [SEGMENT_0, SEGMENT_1]
    rig.ack(held)
    rig.idle()
    assert rig.after_kill() == []
    assert rig.segments() == []


def test_purge_that_cannot_read_a_segment_changes_nothing():
    """One message of it is unacked, so the others must be known by their numbers."""
    rig = JournalRig()
    queue = VariableQueue(rig.index, PERSIST, False, EMBED_BELOW)
    for number in range(4):
        queue.publish(message(number, SMALL, True))
    held = queue.fetch()
    rig.settle()
    rig.index.scatter()
    rig.settle()
    rig.disk.fail("read", errno.EIO, path="/queues/")
    with pytest.raises(OSError, match="Input/output error"):
        queue.purge()
    assert (queue.len, queue.unacked) == (3, 1)
    queue.check()
    assert queue.purge() == 3
    queue.check()
    rig.settle()
    rig.idle()
    assert rig.after_kill() == [0]
    queue.ack(held)
    rig.settle()
    rig.idle()
    assert rig.after_kill() == []


def test_delete_removes_the_folder():
    rig, _ = scattered(12)
    rig.publish(3)
    rig.index.delete()
    rig.settle()
    rig.idle()
    assert not rig.disk.exists(rig.index.segments.path)
    assert rig.journal.users == {}
    assert rig.journal.is_settled()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_delete_while_a_scatter_is_under_way(steps):
    rig = JournalRig()
    rig.epoch(12)
    rig.index.scatter()
    for _ in range(steps):
        rig.threads.crank()
    rig.index.delete()
    rig.settle()
    rig.idle()
    assert not rig.disk.exists(rig.index.segments.path)
    assert rig.journal.is_settled()


def test_a_folder_that_cannot_be_removed_is_tried_again():
    rig, _ = scattered(4)
    rig.disk.fail("remove", errno.EIO, path="/queues/")
    rig.index.delete()
    rig.settle()
    rig.idle()
    assert rig.disk.struck == 1
    assert not rig.disk.exists(rig.index.segments.path)


# -- damage and other reading trouble ---------------------------------------------------------------------------------


def damaged(rig: JournalRig, at: int) -> bytes:
    """Flips a byte of the first segment; its content then."""
    path = f"{rig.index.segments.path}/{SEGMENT_0}"
    file = rig.disk.open(path)
    file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1]))
    file.close()
    return rig.read_file(path)


def test_what_is_sound_in_a_damaged_segment_is_read_and_the_file_kept_aside():
    rig, _ = scattered(3)
    rig.epoch(3)
    rig.index.scatter()
    rig.settle()
    content = damaged(rig, 32 + 44 + 30)  # in the payload of the first block
    assert seq_ids(rig.index.segments.read(0)) == [3, 4, 5]
    (name,) = rig.disk.list_dir("/v/damaged")
    assert rig.read_file(f"/v/damaged/{name}") == content
    (line,) = [fields for event, fields in rig.log.lines if event == "segment damaged"]
    assert line["path"].endswith(SEGMENT_0)
    assert line["offset"] == 32 + 44
    assert len(rig.store.damage.found) == 1


def test_a_segment_that_cannot_be_read_now_is_read_later():
    rig, places = scattered(3)
    rig.disk.fail("read", errno.EIO, path="/queues/")
    with pytest.raises(OSError, match="Input/output error"):
        rig.index.segments.read(0)
    assert seq_ids(rig.index.segments.read(0)) == seq_ids(places)
    assert rig.store.damage.found == []


def test_a_journal_that_cannot_be_read_delays_the_scatter_and_loses_nothing():
    rig = JournalRig(2)
    places = rig.epoch(3)
    for place in places:
        place.message = None
    others = rig.epoch(3, at=1)
    rig.disk.fail("read", errno.EIO, path=JOURNAL_FOLDER, forever=True)
    rig.index.scatter()
    rig.indexes[1].scatter()
    rig.settle()
    assert wheres(places) == {JOURNAL}
    rig.disk.mend()
    rig.idle()
    assert wheres(places + others) == {SEGMENT}
    assert read_back(rig, places) == seq_ids(places)
