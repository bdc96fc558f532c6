"""MsgRing against a plain sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.msg_ring import MsgRing
from rabbitpy_broker.queues.msg_status import MsgStatus

MESSAGE = Message(b"\x00\x00", b"", 0, False)


@given(st.lists(st.integers(0, 30), max_size=60))
def test_requeued_entries_return_to_their_old_places(steps: list[int]) -> None:
    """0 to 9 append that many, 10 to 19 take, 20 and above put back some of what was taken, in any order."""
    ring = MsgRing()
    model: list[int] = []
    taken: list[MsgStatus] = []
    next_seq_id = 0
    for step in steps:
        if step < 10:
            for _ in range(step):
                ring.append(MsgStatus(next_seq_id, MESSAGE))
                model.append(next_seq_id)
                next_seq_id += 1
        elif step < 20:
            for _ in range(min(step - 9, len(model))):
                status = ring.popleft()
                assert status.seq_id == model.pop(0)
                taken.append(status)
        elif taken:
            back = taken[:: step - 19]
            taken = [status for status in taken if status not in back]
            model = sorted(model + [status.seq_id for status in back])
            ring.merge(sorted(back, key=lambda status: status.seq_id))
        assert len(ring) == len(model)
        head = ring.peek()
        assert (head.seq_id if head else None) == (model[0] if model else None)
    assert [status.seq_id for status in ring.clear()] == model
    assert len(ring) == 0


def test_space_before_the_head_is_given_back() -> None:
    ring = MsgRing()
    for seq_id in range(100_000):
        ring.append(MsgStatus(seq_id, MESSAGE))
        if seq_id >= 10:
            assert ring.popleft().seq_id == seq_id - 10
    assert len(ring) == 10
    assert len(ring._items) < 3_000
