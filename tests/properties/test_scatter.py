"""What a scatter makes of the journal: every place that is alive, with its message, whichever way its entry was made."""

from __future__ import annotations

import errno

from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.storage.place import JOURNAL, SEGMENT
from storage.journal_rig import JOURNAL as JOURNAL_FOLDER
from storage.journal_rig import PER_SEGMENT, JournalRig, seq_ids
from storage.small_store import LARGE, SMALL, number_of

ACKED, HANDED_OUT, IN_RAM, ON_DISK = range(4)
# An epoch: the queue, how large its messages are, and what becomes of each.
epochs = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from((SMALL, SMALL, 50, LARGE)),
        st.lists(st.sampled_from((ACKED, HANDED_OUT, IN_RAM, IN_RAM, ON_DISK, ON_DISK)), min_size=1, max_size=7),
    ),
    max_size=12,
)


@given(epochs, st.booleans())
def test_segments_have_all_that_is_alive(history: list[tuple[int, int, list[int]]], cannot_read: bool):
    """In the order of the queue; `cannot_read`: the journal cannot be read back, and memory has it all."""
    rig = JournalRig(2)
    rig.never_scatter()
    alive: list[list] = [[], []]
    for at, size, fates in history:
        places = rig.epoch(len(fates), size, at)
        for place, fate in zip(places, fates, strict=True):
            assert place.where == JOURNAL
            if fate == ACKED:
                rig.ack([place], at)
                continue
            alive[at].append(place)
            place.redelivered = fate == HANDED_OUT
            if fate == ON_DISK and not cannot_read:
                place.message = None
        rig.settle()
    if cannot_read:
        rig.disk.fail("read", errno.EIO, forever=True, path=JOURNAL_FOLDER)
    for index in rig.indexes:
        index.scatter()
    rig.settle()
    rig.disk.mend()
    rig.idle()  # until the acks are on disk, too
    for at, index in enumerate(rig.indexes):
        kept = [place for place in alive[at] if place.where == SEGMENT]
        assert seq_ids(kept) == seq_ids(alive[at])
        found = [place for num in sorted(index.segments.by_num) for place in index.segments.read(num)]
        assert [(place.seq_id, place.size, place.offset, place.body_size, place.redelivered) for place in found] == [
            (place.seq_id, place.size, place.offset, place.body_size, place.redelivered) for place in alive[at]
        ]
        for place in alive[at]:
            place.message = None
        index.read_messages(alive[at], False)
        index.read_messages(found, False)
        assert [number_of(place.message) for place in alive[at]] == seq_ids(alive[at])
        assert [number_of(place.message) for place in found] == seq_ids(alive[at])
        assert rig.after_kill(at) == seq_ids(alive[at])


@given(epochs, st.lists(st.integers(0, 20), unique=True))
def test_a_file_of_publishes_is_read_as_any_other(history: list[tuple[int, int, list[int]]], acked: list[int]):
    """Block by block, or whole with an object for each entry: the same places."""
    rig = JournalRig(1)
    rig.never_scatter()
    places = [place for _, size, fates in history for place in rig.epoch(len(fates), size)]
    large = {place.seq_id // PER_SEGMENT for place in places if place.stored is not None}
    rig.index.scatter()
    rig.settle()
    rig.ack([place for place in places if place.seq_id in acked])
    segments = rig.index.segments
    for segment in segments.by_num.values():
        plain: list = []
        whole: list = []
        is_plain = segments._read_plain(segment, False, plain)
        segments._read_any(segment, False, whole)
        if is_plain:
            assert [vars_of(place) for place in plain] == [vars_of(place) for place in whole]
        else:
            assert plain == []
            assert segment.num in large


def vars_of(place) -> tuple:
    return (place.seq_id, place.where, place.offset, place.size, place.body_size, place.expiry, place.redelivered)
