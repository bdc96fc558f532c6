"""StreamUnacked against a dict of delivery tags."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.protocol.stream_unacked import Run, StreamUnacked
from rabbitpy_broker.queues.consumers import Consumer
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.wire.field_table import field_table
from sans_io import SansIOBroker


def stream() -> StreamQueue:
    """Nobody asks it for anything here."""
    broker = SansIOBroker()
    made = broker.vhost.declare_queue("s", True, False, False, field_table({"x-queue-type": "stream"}), None)
    assert isinstance(made, StreamQueue)
    return made


QUEUE = stream()


def someone() -> Consumer:
    return Consumer("c", False, False, 0)


def tags(runs: list[Run]) -> dict[int, object]:
    found: dict[int, object] = {}
    for run in runs:
        assert run.first < run.end
        for tag in range(run.first, run.end):
            assert tag not in found
            found[tag] = run.consumer
    return found


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "gap", "take", "upto", "back"]), st.integers(0, 30), st.integers(0, 1)), max_size=100
    )
)
def test_every_delivery_is_settled_once(steps: list[tuple[str, int, int]]) -> None:
    """Runs of two consumers with and without gaps, takes in and out of order, takes of what is not there, roll-backs."""
    consumers = [someone(), someone()]
    unacked = StreamUnacked()
    model: dict[int, object] = {}
    gone: list[Run] = []
    next_tag = 1
    for what, value, number in steps:
        wanted = next_tag - value
        if what in ("add", "gap"):
            first = next_tag + (value if what == "gap" else 0)
            next_tag = first + 1 + value
            unacked.add(QUEUE, consumers[number], first, next_tag)
            model.update(dict.fromkeys(range(first, next_tag), consumers[number]))
        elif what == "take":
            assert unacked.has(wanted) == (wanted in model)
            run = unacked.take(wanted)
            assert (run is not None) == (wanted in model)
            if run is not None:
                assert tags([run]) == {wanted: model.pop(wanted)}
                gone.append(run)
        elif what == "upto":
            taken = unacked.take_upto(wanted)
            assert tags(taken) == {tag: model.pop(tag) for tag in sorted(model) if tag <= wanted}
            gone.extend(taken)
        else:
            unacked.put_back(gone)
            model.update(tags(gone))
            gone = []
        assert unacked.count == len(model)
        oldest = unacked.oldest()
        assert (oldest.first if oldest is not None else None) == min(model, default=None)
        assert tags(unacked.all()) == model
    assert tags(unacked.take_all()) == model
    assert unacked.count == 0


def test_deliveries_that_are_settled_in_order_are_one_run() -> None:
    unacked = StreamUnacked()
    consumer = someone()
    for tag in range(1, 10_000, 10):
        unacked.add(QUEUE, consumer, tag, tag + 10)
    assert len(unacked.all()) == 1
    for tag in range(1, 5_000):
        unacked.take(tag)
    assert [(run.first, run.end) for run in unacked.all()] == [(5_000, 10_001)]
