"""Unacked against a dict of delivery tags."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol.unacked import Unacked
from rabbitpy_broker.queues.msg_status import MsgStatus

MESSAGE = Message(b"\x00\x00", b"", 0, False)


def delivery(tag: int) -> MsgStatus:
    """Every third has its body on disk only."""
    status = MsgStatus(tag, MESSAGE if tag % 3 else None)
    status.delivery_tag = tag
    return status


@given(st.lists(st.tuples(st.sampled_from(["add", "gap", "take", "upto", "back"]), st.integers(0, 50)), max_size=120))
def test_every_delivery_is_settled_once(steps: list[tuple[str, int]]) -> None:
    """Adds with and without gaps, takes in and out of order, takes of what is not there, roll-backs."""
    unacked = Unacked()
    model: dict[int, MsgStatus] = {}
    gone: list[MsgStatus] = []
    tag = 0
    for what, value in steps:
        wanted = tag - value
        if what in ("add", "gap"):
            tag += 1 if what == "add" else 1 + value
            model[tag] = delivery(tag)
            unacked.add(model[tag])
        elif what == "take":
            status = unacked.take(wanted)
            assert status is model.pop(wanted, None)
            if status is not None:
                gone.append(status)
        elif what == "upto":
            taken = unacked.take_upto(wanted)
            if wanted in model:
                expected = [model.pop(t) for t in sorted(model) if t <= wanted]
                assert taken == expected
                gone.extend(expected)
            else:
                assert taken is None
        elif gone:
            back = gone[: value + 1]
            gone = gone[value + 1 :]
            unacked.put_back(back)
            model.update({status.delivery_tag: status for status in back})
        assert unacked.count == len(model)
    assert unacked.take_all() == [model[t] for t in sorted(model)]
    assert unacked.count == 0


def test_one_old_delivery_does_not_keep_the_place_of_those_behind_it() -> None:
    unacked = Unacked()
    for tag in range(1, 100_001):
        unacked.add(delivery(tag))
        if tag > 1:
            assert unacked.take(tag) is not None
    assert unacked.count == 1
    assert len(unacked._items) < 2_000
    assert unacked.take(1) is not None
