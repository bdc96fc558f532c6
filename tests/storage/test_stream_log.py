"""A stream in the store: offsets, what is shown when, and what readers get."""

from __future__ import annotations

import errno

from storage.stream_rig import Consumer, StreamStore, Told, content


def test_what_is_appended_has_the_next_offset_and_is_shown_when_its_epoch_is_settled():
    store = StreamStore()
    told = Told()
    store.log.on_committed = told
    consumer = Consumer(store.log)
    assert [store.append(number) for number in range(3)] == [0, 1, 2]
    consumer.take()
    assert (consumer.got, store.log.committed, told.times) == ([], 0, 0)
    store.end_turn()
    assert store.append(3) == 3
    store.threads.work()
    store.threads.tell()
    assert (store.log.committed, store.log.next_offset, told.times) == (3, 4, 1)
    consumer.take()
    assert consumer.got == [(number, content(number)) for number in range(3)]
    store.sync()
    consumer.take()
    assert consumer.got == [(number, content(number)) for number in range(4)]
    assert store.log.last_chunk_offset() == 3


def test_an_epoch_that_fails_is_written_again_with_the_same_offsets():
    store = StreamStore()
    store.disk.fail("sync", errno.EIO)
    store.append(0)
    store.sync()
    store.append(1)
    assert store.log.committed == 0
    store.store.tick()
    store.sync()
    consumer = Consumer(store.log)
    consumer.take()
    assert consumer.got == [(0, content(0)), (1, content(1))]


def test_readers_with_a_filter_pass_over_chunks_that_cannot_match():
    store = StreamStore()
    for number, value in enumerate((b"red", b"blue", None, b"red")):
        store.append(number, value=value)
        store.sync()
    store.append(4, value=b"blue")
    store.append(5)
    store.sync()
    red = Consumer(store.log, values=[b"red"])
    red.take()
    assert [offset for offset, _ in red.got] == [0, 3]
    without = Consumer(store.log, values=[b"green"], unfiltered=True)
    without.take()
    assert [offset for offset, _ in without.got] == [2, 4, 5]
