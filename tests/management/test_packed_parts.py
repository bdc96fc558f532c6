"""Streams whose parts are compressed once for all: each is one gzip member, whatever the others are told meanwhile."""

from __future__ import annotations

import gzip
import zlib

from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.management.api.packed_parts import (
    HEADER,
    SHARED_FROM_BYTES,
    SHARED_MAX,
    PackedParts,
    PackedStream,
)

short = st.binary(max_size=200)
long = st.tuples(st.binary(min_size=1, max_size=20), st.integers(SHARED_FROM_BYTES, 4 * SHARED_FROM_BYTES)).map(
    lambda made: made[0] * made[1]
)


@given(st.lists(short | long, min_size=1, max_size=12), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11)), max_size=40))
def test_each_stream_has_what_it_was_told_as_soon_as_it_was(parts: list[bytes], told: list[tuple[int, int]]) -> None:
    shared = PackedParts()
    streams = [PackedStream(shared, shared=number != 3) for number in range(4)]
    readers = [zlib.decompressobj(31) for _ in range(4)]
    sent, said = [[HEADER] for _ in range(4)], [b""] * 4
    assert all(reader.decompress(HEADER) == b"" for reader in readers)
    for number, place in told:
        part = parts[place % len(parts)]
        packed = streams[number].next(part)
        assert readers[number].decompress(packed) == part
        sent[number].append(packed)
        said[number] += part
    for number in range(4):
        end = streams[number].end()
        assert readers[number].decompress(end) == b"" and readers[number].eof
        assert gzip.decompress(b"".join([*sent[number], end])) == said[number]


def test_a_long_part_is_compressed_once_for_all() -> None:
    shared = PackedParts()
    one, other = PackedStream(shared, shared=True), PackedStream(shared, shared=True)
    part = b'{"messages":1}' * SHARED_FROM_BYTES
    packed = one.next(part)
    assert len(packed) < len(part) / 10
    other.next(b"an event of its own")
    assert other.next(part) is packed
    for number in range(SHARED_MAX):
        one.next(part + b"%d" % number)
    again = other.next(part)
    assert again is not packed and len(again) == len(packed)


def test_what_one_alone_is_told_is_not_remembered() -> None:
    shared = PackedParts()
    one, alone = PackedStream(shared, shared=True), PackedStream(shared, shared=False)
    part = b'{"messages":1}' * SHARED_FROM_BYTES
    packed = one.next(part)
    for number in range(SHARED_MAX):
        alone.next(part + b"%d" % number)
    assert alone.next(part) is not packed
    assert one.next(part) is packed
