"""Damaged and missing files of streams: what they cost, and who says so. And what a start reads of a stream that is sound."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from rabbitpy_broker.storage.inspection import Inspection
from storage.faulty_disk import Content, MemoryDisk
from storage.stream_rig import Consumer, StreamStore, content, everything

FOLDER = "/v/queues/0000000000000001"


def stream_of(messages: int, size: int = 20) -> StreamStore:
    """A stream in segments alone, three messages in a chunk, two chunks in a segment."""
    store = StreamStore(is_sound=False)
    for number in range(messages):
        store.append(number, size)
        if number % 3 == 2:
            store.now_ms += 10
            store.sync()
    store.sync()
    store.idle()
    assert store.log.memory_bytes() == 0
    return store


def stopped(messages: int = 60) -> MemoryDisk:
    store = stream_of(messages)
    assert store.stop()
    return store.disk.kill()


def names(disk: MemoryDisk, ending: str) -> list[str]:
    return [f"{FOLDER}/{name}" for name in disk.list_dir(FOLDER) if name.endswith(ending)]


def overwrite(disk: MemoryDisk, path: str, offset: int, data: bytes) -> None:
    file = disk.open(path)
    file.write_at(offset, data)
    file.sync()
    file.close()


def cut(disk: MemoryDisk, path: str, size: int) -> None:
    file = disk.open(path)
    file.truncate(size)
    file.sync()
    file.close()


def damage_in(disk: MemoryDisk) -> list[str]:
    inspection = Inspection(disk.kill(), "/v", 8)
    inspection.check([], [1])
    return [f"{one.path.removeprefix(FOLDER)} at {one.offset}: {one.text}" for one in inspection.findings if one.is_damage]


def read(disk: MemoryDisk) -> list[tuple[int, bytes]]:
    return everything(StreamStore(disk.kill(), is_sound=False), 1)


ALL = [(number, content(number)) for number in range(60)]


def test_a_sound_stream_is_sound():
    disk = stopped()
    assert damage_in(disk) == []
    assert read(disk) == ALL
    assert len(names(disk, ".stream")) > 4


# -- indexes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 2, -1])
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "short", "wrong", "wrong record"])
def test_an_index_that_is_not_as_it_should_be_costs_nothing_and_is_made_again(which: int, how: str):
    disk = stopped()
    path = names(disk, ".index")[which]
    if how == "missing":
        disk.remove(path)
    elif how == "empty":
        cut(disk, path, 0)
    elif how == "cut":
        cut(disk, path, disk.size(path) - 7)
    elif how == "short":
        cut(disk, path, disk.size(path) - 36)
    elif how == "wrong":
        overwrite(disk, path, 0, bytes(100))
    else:
        overwrite(disk, path, 40, b"\xff\xff")
    assert len(damage_in(disk)) == 1
    store = StreamStore(disk, is_sound=False)
    for at in range(60):
        consumer = Consumer(store.log, at)
        consumer.take()
        store.sync()
        assert consumer.got == ALL[at:]
    assert [store.log.offset_at(at_ms) <= 3 * ((at_ms - 1_000_000) // 10 + 1) for at_ms in range(1_000_000, 1_000_200, 7)]
    store.append(60)
    store.sync()
    store.idle()
    assert store.stop()
    assert damage_in(store.disk) == []
    assert read(store.disk) == [*ALL, (60, content(60))]


# -- segments ---------------------------------------------------------------------------------------------------------


def test_a_damaged_chunk_is_passed_over_and_told_once():
    disk = stopped()
    path = names(disk, ".stream")[1]
    overwrite(disk, path, 32 + 40 + 10, b"\xff\xff")
    found = damage_in(disk)
    assert found == [f"{path.removeprefix(FOLDER)} at 32: 127 unreadable bytes: its checksum is wrong"]
    store = StreamStore(disk, is_sound=False)
    lost = {6, 7, 8}
    for _ in range(2):
        assert everything(store, 1) == [one for one in ALL if one[0] not in lost]
    for at in range(60):
        consumer = Consumer(store.log, at)
        consumer.take()
        store.sync()
        assert consumer.got == [one for one in ALL[at:] if one[0] not in lost]
    assert [one.path for one in store.store.damage.found] == [path]


def test_a_damaged_segment_is_kept_when_retention_lets_it_go():
    disk = stopped()
    path = names(disk, ".stream")[0]
    overwrite(disk, path, 60, b"\xff\xff")
    store = StreamStore(disk, is_sound=False)
    everything(store, 1)
    store.log.settings.max_length_bytes = 1000
    store.idle()
    assert store.log.first_offset > 6
    assert disk.list_dir("/v/damaged") == [f"0000000000000001-{path.rpartition('/')[2]}"]
    assert names(disk, ".index") == [name.replace(".stream", ".index") for name in names(disk, ".stream")]


def test_a_lost_segment_is_passed_over():
    disk = stopped()
    paths = names(disk, ".stream")
    disk.remove(paths[2])
    first, end = (int(paths[number].rpartition("/")[2].removesuffix(".stream")) for number in (2, 3))
    assert damage_in(disk) == [f" at -1: the messages with offsets {first} to {end - 1} are missing"]
    assert read(disk) == [one for one in ALL if not first <= one[0] < end]


@pytest.mark.parametrize("pending", [0, 2])
def test_a_stream_that_has_lost_all_of_its_files_goes_on_with_the_next_offset(pending: int):
    store = stream_of(9)
    for number in range(pending):
        store.append(9 + number)
    store.sync()
    assert store.stop()
    disk = store.disk.kill()
    disk.remove_tree(FOLDER)
    assert damage_in(disk) != []
    store = StreamStore(disk, is_sound=False)
    assert (store.log.first_offset, store.log.next_offset) == (9, 9 + pending)
    assert store.append(9 + pending) == 9 + pending
    store.sync()
    store.idle()
    assert everything(store, 1) == ALL[9 : 10 + pending]
    assert store.stop()
    assert read(store.disk) == ALL[9 : 10 + pending]


def test_a_segment_that_goes_while_it_is_read_is_passed_over():
    disk = stopped()
    store = StreamStore(disk, is_sound=False)
    paths = names(disk, ".stream")
    disk.remove(paths[1])
    end = int(paths[2].rpartition("/")[2].removesuffix(".stream"))
    assert everything(store, 1) == [one for one in ALL if one[0] < 6 or one[0] >= end]
    assert [one.reason for one in store.store.damage.found] == ["it is missing"]


@pytest.mark.parametrize("which", [1, -2])
def test_a_segment_that_is_gone_with_its_index_does_not_hold_up_moves(which: int):
    disk = stopped()
    path = names(disk, ".stream")[which]
    disk.remove(path)
    disk.remove(path.replace(".stream", ".index"))
    store = StreamStore(disk, is_sound=False)
    everything(store, 1)
    for number in range(60, 90):
        store.append(number)
    store.sync()
    store.idle()
    assert not store.store.trouble.streams
    assert store.log.memory_bytes() == 0
    assert store.stop()
    assert [one for one in read(store.disk) if one[0] >= 60] == [(number, content(number)) for number in range(60, 90)]


@pytest.mark.parametrize("clean", [True, False])
def test_a_last_segment_that_lost_its_end_does_not_have_an_offset_given_twice(clean: bool):
    disk = stopped()
    path = names(disk, ".stream")[-1]
    cut(disk, path, disk.size(path) - 5)
    if not clean:
        disk.remove("/v/recovery_terms")
        for name in disk.list_dir("/v/journal"):  # which still has it all
            disk.remove(f"/v/journal/{name}")
    assert damage_in(disk) != []
    store = StreamStore(disk, is_sound=False)
    assert store.log.next_offset == 60
    assert store.append(60) == 60
    store.sync()
    store.idle()
    expected = [*ALL[:57], (60, content(60))]
    assert everything(store, 1) == expected
    assert store.stop()
    assert read(store.disk) == expected


def test_no_byte_of_a_stream_goes_bad_unseen():
    """A check finds it, and no consumer is given anything that was never published."""
    whole = stopped(24)
    sound = ALL[:24]
    for path in [*names(whole, ".stream"), *names(whole, ".index")]:
        for at in range(0, whole.size(path), 5):
            disk = whole.kill()
            file = disk.open(path)
            byte = file.read_at(at, 1)[0]
            file.close()
            overwrite(disk, path, at, bytes([byte ^ 0x10]))
            assert damage_in(disk), f"{path} at {at}"
            found = read(disk)
            assert set(found) <= set(sound)
            assert len(found) >= 21 if path.endswith(".stream") else found == sound, f"{path} at {at}"


def test_a_read_that_fails_is_tried_again_at_a_tick():
    disk = stopped()
    store = StreamStore(disk, is_sound=False)
    consumer = Consumer(store.log)
    disk.fail("read", errno.EIO, path=".stream")
    consumer.take()
    store.sync()
    assert (consumer.got, consumer.reader.reading) == ([], False)
    assert "Input/output error" in consumer.reader.error
    consumer.take()
    assert not consumer.reader.reading
    store.idle()
    assert consumer.got == ALL
    assert store.store.damage.found == []


# -- what a start costs -----------------------------------------------------------------------------------------------


class CountingDisk(MemoryDisk):
    """Counts what is read of the stream."""

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self.reads = 0
        self.read_bytes = 0
        self._of_stream = {self._find(f"{FOLDER}/{name}") for name in self.list_dir(FOLDER)}

    def read(self, node: int, offset: int, size: int) -> bytes:
        data = super().read(node, offset, size)
        if node in self._of_stream:
            self.reads += 1
            self.read_bytes += len(data)
        return data


def grown(lengths: list[int]) -> Iterator[MemoryDisk]:
    """One stream at several lengths, after kill -9."""
    store = StreamStore()
    number = 0
    for length in lengths:
        while number < length:
            store.append(number)
            number += 1
            if number % 5 == 0:
                store.sync()
        store.idle()
        yield store.disk.kill()


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_reads_as_much_of_a_long_stream_as_of_a_short_one(clean: bool):
    found = []
    for disk in grown([100, 800]):
        if clean:
            store = StreamStore(disk)
            assert store.stop()
        counting = CountingDisk(disk.kill()._content)
        store = StreamStore(counting)
        assert store.store.clean == clean
        found.append((counting.reads, counting.read_bytes, store.log.memory_bytes()))
        assert store.log.segment_count() > 8
    (reads, read_bytes, memory), (more_reads, more_bytes, more_memory) = found
    assert more_reads <= reads + 2
    assert more_bytes <= read_bytes + 600
    assert more_memory <= memory + 600
