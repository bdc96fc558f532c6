"""Segment files: what is written is read, and what is damaged is left out and nothing else."""

from __future__ import annotations

import pytest
from librt.strings import BytesWriter

from rabbitpy_broker.storage.records import (
    ACK,
    DELIVER,
    PUBLISH_HEAD,
    REDELIVERED,
    read_message,
    sealed,
    stored_size,
    write_message,
    write_publish_head,
    write_ranges,
)
from rabbitpy_broker.storage.segment import (
    BLOCK_HEAD,
    HEADER_SIZE,
    BlockCounts,
    Parsed,
    Segment,
    block,
    check_file_header,
    file_header,
    live_entries,
    parse,
    restore,
    walk,
)
from storage.faulty_disk import MemoryDisk
from storage.small_store import message, number_of

PATH = "/segment"
QUEUE_ID = 0xFEDC_BA98_7654_3210
NUM = 3
COUNT = 8
FIRST = NUM * COUNT


class Built:
    """A segment file, block by block; `ends` is where each block ends."""

    def __init__(self) -> None:
        self.data = file_header(QUEUE_ID, NUM, False)
        self.ends = [len(self.data)]

    def add(self, publishes: list[int], acks: list[int] = (), delivers: list[int] = (), flags: int = 0) -> Built:
        out = BytesWriter()
        counts = BlockCounts()
        for seq_id in publishes:
            sent = message(seq_id, 10 + seq_id, True)
            write_publish_head(out, flags, seq_id, seq_id * 1000, sent.body_size, stored_size(sent))
            write_message(out, sent)
            counts.publishes += 1
            counts.published_bytes += sent.body_size
        for seq_id in acks:
            counts.acks += 1
            counts.acked_bytes += 10 + seq_id
        write_ranges(out, ACK, list(acks))
        write_ranges(out, DELIVER, list(delivers))
        self.data += b"".join(block([out.getvalue()], counts))
        self.ends.append(len(self.data))
        return self

    def parse(self) -> Parsed:
        return parse(self.data, PATH, QUEUE_ID, NUM)

    def flip(self, at: int) -> None:
        self.data = self.data[:at] + bytes([self.data[at] ^ 0x01]) + self.data[at + 1 :]

    def walk(self) -> tuple[BlockCounts, int] | None:
        disk = MemoryDisk()
        disk.open(PATH, create=True).write_at(0, self.data)
        return walk(disk, PATH, QUEUE_ID, NUM)

    def live(self) -> dict[int, object]:
        return live_entries(Segment(NUM, COUNT), self.parse())


@pytest.fixture
def built() -> Built:
    """Three blocks: 24..27, 28..30, and acks of 24, 25 and 28."""
    return Built().add([24, 25, 26, 27]).add([28, 29, 30]).add([], [24, 25, 28], [26])


# -- round trip -------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(built):
    parsed = built.parse()
    assert (parsed.header, parsed.damage, parsed.torn, parsed.blocks) == ("", [], 0, 3)
    assert parsed.size == len(built.data)
    live = built.live()
    assert list(live) == [26, 27, 29, 30]
    for seq_id, entry in live.items():
        found = read_message(built.data, entry.data, entry.data + entry.size)
        assert number_of(found) == seq_id
        assert found.content == message(seq_id, 10 + seq_id, True).content
        assert (entry.expiry, entry.body_size) == (seq_id * 1000, 10 + seq_id)


def test_delivered_places_are_redelivered(built):
    assert {seq_id: entry.flags for seq_id, entry in built.live().items()} == {26: REDELIVERED, 27: 0, 29: 0, 30: 0}
    segment = Segment(NUM, COUNT)
    segment.delivered = {29}  # and what only memory knows
    segment.mark_acked(30)
    live = live_entries(segment, built.parse())
    assert {seq_id: entry.flags for seq_id, entry in live.items()} == {26: REDELIVERED, 27: 0, 29: REDELIVERED}


def test_flags_of_an_entry_stay():
    live = Built().add([24], flags=REDELIVERED).live()
    assert live[24].flags == REDELIVERED


def test_neighbours_are_acked_in_one_range():
    built = Built().add([24, 25, 26, 27]).add([], [24, 25, 26, 30])
    entries = built.parse().entries[4:]
    assert [(entry.kind, entry.seq_id, entry.count) for entry in entries] == [(ACK, 24, 3), (ACK, 30, 1)]


def test_a_file_with_a_header_only_is_empty():
    built = Built()
    assert built.parse().entries == []
    assert (built.parse().size, built.parse().torn) == (HEADER_SIZE, 0)
    counts, size = built.walk()
    assert (counts.publishes, size) == (0, HEADER_SIZE)


def test_bits_of_a_segment_are_its_own():
    segment = Segment(NUM, COUNT)
    assert not any(segment.is_acked(FIRST + at) for at in range(COUNT))
    segment.mark_acked(FIRST)
    segment.mark_acked(FIRST + COUNT - 1)
    assert [at for at in range(COUNT) if segment.is_acked(FIRST + at)] == [0, COUNT - 1]


# -- heads ------------------------------------------------------------------------------------------------------------


def test_heads_say_what_reading_finds(built):
    counts, size = built.walk()
    assert size == len(built.data)
    segment = Segment(NUM, COUNT)
    restore(segment, built.parse())
    assert (counts.publishes, counts.acks, counts.stored) == (7, 3, 0)
    assert segment.live == counts.publishes - counts.acks == len(built.live())
    assert segment.live_bytes == counts.published_bytes - counts.acked_bytes
    assert segment.live_bytes == sum(entry.body_size for entry in built.live().values())
    assert segment.size == size
    assert [at for at in range(FIRST, FIRST + COUNT) if segment.is_acked(at)] == [24, 25, 28]


def test_counts_of_a_head_take_large_numbers():
    counts = BlockCounts()
    counts.publishes, counts.acks, counts.stored = 16_384, 16_383, 16_000
    counts.published_bytes, counts.acked_bytes = 1 << 40, (1 << 40) - 1
    built = Built()
    built.data += b"".join(block([], counts))
    found, _ = built.walk()
    assert [found.publishes, found.acks, found.stored] == [16_384, 16_383, 16_000]
    assert [found.published_bytes, found.acked_bytes] == [1 << 40, (1 << 40) - 1]


def test_restore_counts_an_entry_once():
    """A block that was written twice: after a scatter that failed, and when an ack came twice."""
    built = Built().add([24, 25]).add([24, 25, 26]).add([], [25]).add([], [25])
    segment = Segment(NUM, COUNT)
    restore(segment, built.parse())
    assert segment.live == 2
    assert segment.live_bytes == 34 + 36
    assert list(built.live()) == [24, 26]


def test_an_ack_of_what_is_not_in_the_file_counts_for_nothing():
    segment = Segment(NUM, COUNT)
    restore(segment, Built().add([24]).add([], [29]).parse())
    assert segment.live == 1
    assert not segment.is_acked(29)


# -- damage -----------------------------------------------------------------------------------------------------------


def test_every_byte_of_a_head_is_checked(built):
    """No block behind a damaged head is read, those before it are."""
    sound, start = built.data, built.ends[1]
    for at in range(start, start + BLOCK_HEAD):
        built.data = sound
        built.flip(at)
        parsed = built.parse()
        assert [entry.seq_id for entry in parsed.entries] == [24, 25, 26, 27]
        assert (parsed.size, parsed.torn) == (start, len(sound) - start)
        assert built.walk() is None


def test_every_byte_of_a_payload_is_checked(built):
    """The block is left out, and named; those behind it are read."""
    sound, start = built.data, built.ends[1] + BLOCK_HEAD
    for at in range(start, built.ends[2]):
        built.data = sound
        built.flip(at)
        parsed = built.parse()
        assert list(built.live()) == [26, 27]
        (damage,) = parsed.damage
        assert (damage.path, damage.offset, damage.size) == (PATH, start, built.ends[2] - start)
        assert parsed.torn == 0


def test_every_byte_of_the_header_is_checked(built):
    sound = built.data
    for at in range(HEADER_SIZE):
        built.data = sound
        built.flip(at)
        parsed = built.parse()
        assert parsed.header == "its header is damaged"
        assert len(parsed.entries) == 10  # the blocks have checksums of their own
        assert built.walk() is None


def test_damage_in_the_last_block_is_a_torn_tail(built):
    """A write that was cut short looks the same: whoever knows decides."""
    built.flip(built.ends[2] + BLOCK_HEAD)
    parsed = built.parse()
    assert parsed.damage == []
    assert (parsed.size, parsed.torn) == (built.ends[2], built.ends[3] - built.ends[2])


def test_a_file_that_is_cut_off_ends_before(built):
    whole = built.data
    for length in range(len(whole)):
        built.data = whole[:length]
        parsed = built.parse()
        sound = max([end for end in built.ends if end <= length], default=length)
        assert (parsed.size, parsed.torn) == (sound, length - sound)
        assert parsed.damage == []
        assert (parsed.header == "") == (length >= HEADER_SIZE)
        assert (built.walk() is None) == (length not in built.ends)


def test_entries_that_make_no_sense_are_damage(built):
    built.data += b"".join(block([b"\x0f"], BlockCounts()))
    built.add([31])
    parsed = built.parse()
    (damage,) = parsed.damage
    assert "kind" in damage.reason
    assert 31 in built.live()


def test_a_header_tells_whose_file_it_is():
    head = file_header(QUEUE_ID, NUM, False)
    assert len(head) == HEADER_SIZE
    assert check_file_header(head, QUEUE_ID, NUM) == ""
    assert check_file_header(head, QUEUE_ID - 1, NUM) == "it belongs to another queue or segment"
    assert check_file_header(head, QUEUE_ID, NUM + 1) == "it belongs to another queue or segment"
    assert check_file_header(head[:-1], QUEUE_ID, NUM) == "its header is damaged"
    assert file_header(QUEUE_ID, NUM, True) != head


def test_a_header_of_a_newer_format_is_named():
    head = file_header(QUEUE_ID, NUM, False)[:-4]
    newer = sealed(head[:4] + (2).to_bytes(4, "big") + head[8:])
    assert "format version 2" in check_file_header(newer, QUEUE_ID, NUM)


def test_the_head_of_a_publish_has_its_size():
    out = BytesWriter()
    write_publish_head(out, 0, 1, 2, 3, 4)
    assert len(out) == PUBLISH_HEAD
