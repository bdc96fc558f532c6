"""Confirms against a plain account of which publish_seqno was promised what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.message import ConfirmWaiter
from rabbitpy_broker.protocol.confirms import Confirms
from rabbitpy_broker.protocol.turn import Turn, Writer


def told(frames: bytes) -> list[tuple[bool, int, bool]]:
    """Every (is ack, delivery_tag, multiple) of the frames of 21 octets."""
    assert len(frames) % 21 == 0
    out = []
    for at in range(0, len(frames), 21):
        frame = frames[at : at + 21]
        assert frame[:10] == b"\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00"
        assert frame[20] == 0xCE
        out.append((frame[10] == 80, int.from_bytes(frame[11:19], "big"), frame[19] == 1))
    return out


STEPS = st.lists(
    st.tuples(st.sampled_from(["confirmed", "waiting", "rejected", "settle", "lose", "send"]), st.integers(0, 20)),
    max_size=80,
)


@given(STEPS)
def test_each_publish_is_told_once_and_rightly(steps: list[tuple[str, int]]) -> None:
    turn = Turn(lambda: None, lambda: True)
    writer = Writer(turn)
    confirms = Confirms(writer, 7)
    owed: dict[int, bool] = {}  # settled, still to be told: True for ack
    waiting: dict[int, ConfirmWaiter] = {}
    open_tags: set[int] = set()
    seqno = 0

    def read() -> None:
        for is_ack, tag, multiple in told(writer.out.getvalue()):
            tags = {t for t in open_tags if t <= tag} if multiple else {tag}
            assert tags, "a confirm that tells nothing new"
            for each in tags:
                assert owed.pop(each) is is_ack
                open_tags.remove(each)
        writer.out.truncate(0)

    for what, value in [*steps, ("send", 0)]:
        if what in ("confirmed", "waiting", "rejected"):
            seqno += 1
            open_tags.add(seqno)
        if what == "confirmed":
            confirms.publish_confirmed()
            owed[seqno] = True
        elif what == "rejected":
            confirms.publish_rejected()
            owed[seqno] = False
        elif what == "waiting":
            waiting[seqno] = confirms.publish_waiting(1)
        elif what in ("settle", "lose") and waiting:
            chosen = sorted(waiting)[value % len(waiting)]
            waiting.pop(chosen).settled(what == "settle")
            owed[chosen] = what == "settle"
        elif what == "send":
            confirms.send_confirms()
            read()
            assert not owed
    assert open_tags == set(waiting)


def test_a_publish_to_two_queues_waits_for_both() -> None:
    writer = Writer(Turn(lambda: None, lambda: True))
    confirms = Confirms(writer, 7)
    waiter = confirms.publish_waiting(2)
    waiter.settled(True)
    confirms.send_confirms()
    assert writer.out.getvalue() == b""
    waiter.settled(False)
    confirms.send_confirms()
    assert told(writer.out.getvalue()) == [(False, 1, False)]
