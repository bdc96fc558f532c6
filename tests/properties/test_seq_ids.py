"""Acked seq_ids kept as ranges, against a list of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from rabbitpy_broker.storage.records import ACK, read_entries
from rabbitpy_broker.storage.seq_ids import SeqIds

orders = st.lists(st.integers(0, 40), unique=True) | st.integers(0, 30).map(lambda count: list(range(5, 5 + count)))


def kept(order: list[int]) -> SeqIds:
    ids = SeqIds()
    for seq_id in order:
        ids.append(seq_id)
    return ids


def written(ids: SeqIds) -> list[int]:
    out = BytesWriter()
    ids.write(out, ACK)
    data = out.getvalue()
    found = []
    for entry in read_entries(data, 0, len(data)):
        assert entry.kind == ACK
        found.extend(range(entry.seq_id, entry.seq_id + entry.count))
    return found


@given(orders)
def test_each_is_written_once_in_its_order(order: list[int]):
    ids = kept(order)
    assert ids.count == len(order)
    assert written(ids) == order


@given(orders)
def test_the_terms_have_neighbours_as_one(order: list[int]):
    terms = kept(order).terms()
    pairs = list(zip(terms[::2], terms[1::2], strict=True))
    assert [at for first, count in pairs for at in range(first, first + count)] == sorted(order)
    assert all(a + b < c for (a, b), (c, _) in pairwise(pairs))


@given(orders, st.integers(0, 40), orders)
def test_those_of_a_write_that_failed_come_first_again(order: list[int], cut: int, later: list[int]):
    later = [seq_id + 100 for seq_id in later]
    ids = kept(order[cut:])
    ids.put_before(kept(order[:cut]))
    for seq_id in later:
        ids.append(seq_id)
    assert written(ids) == order + later
    assert ids.count == len(order) + len(later)


def test_acks_in_order_are_one_range():
    assert kept(list(range(7, 5_007))).ranges() == [(7, 5_007)]
