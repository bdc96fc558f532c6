"""The audit finds exactly the faults that were put into a journal, and none where a broker kept its promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.journals import Boot
from rabbitpy_broker.events import layout

pytest.importorskip("pyspark")


def violations(spark: Any, folder: Path, tmp_path: Path) -> tuple[set[tuple[Any, ...]], Any]:
    from rabbitpy_broker.pipeline.journal.audit import audit

    found = audit(spark, str(folder), str(tmp_path / "lifecycle"))
    rows = found.violations.select("check", "boot", "queue", "seq_id", "publish").collect()
    return {tuple(row) for row in rows}, found.counts.first()


def test_a_life_without_faults(spark: Any, tmp_path: Path):
    """Everything that may happen to a message, over a stop and a kill."""
    folder = tmp_path / "events"
    first = Boot(folder)
    q, gone = first.queue("q", 1), first.queue("gone", 2)
    first.publish(q, *range(10))
    first.deliver(q, *range(6))
    first.ack(q, 0, 2)
    first.settle(q, layout.REQUEUE, 1, 3)
    first.deliver(q, 1, 3, redelivered=True)
    first.settle(q, layout.NACK, 1)
    q.settle(layout.EXPIRE, 6, 0, layout.EXPIRED, 1)
    q.dead_letter(6, 0, first.journal.publish("/", "", journals_message()), layout.EXPIRED)
    gone.route(0, 0, 10, True, True)
    gone.deleted(1)
    first.publish(q, 10, confirm=False)
    first.origin.publish(first.exchange, journals_message(), True, 12)
    first.origin.not_routed(True, layout.UNROUTABLE)
    first.origin.confirm(12, 12, True)
    first.stop()
    second = Boot(folder)
    q = second.queue("q", 1)
    q.recover(3, 3, 0, layout.GAMMA)
    q.recover(7, 4, 0, layout.DELTA)
    second.deliver(q, 3, 4, 5, redelivered=True)
    second.deliver(q, 7)
    second.ack(q, 3, 5)
    q.state(9, 0, layout.GAMMA)
    second.stop(clean=False)  # killed: 4 and 7 are back, 8 to 10 were never handed out, and 5 though it was acked
    third = Boot(folder)
    q = third.queue("q", 1)
    q.recover(4, 2, 0, layout.GAMMA)
    q.recover(7, 4, 0, layout.GAMMA)
    third.deliver(q, 4, 5, 7, redelivered=True)
    q.purge(3, 0)
    third.publish(q, 11, 12)
    third.deliver(q, 11)
    third.stop()
    found, counts = violations(spark, folder, tmp_path)
    assert found == set()
    assert (counts.messages, counts.unknown) == (12 + 7 + 8, 0)


def journals_message() -> Any:
    from pipeline.journals import message

    return message()


def test_every_fault_is_found_and_nothing_else(spark: Any, tmp_path: Path):
    folder = tmp_path / "events"
    first = Boot(folder)
    names = ("unrouted", "early", "twice", "unflagged", "after", "settled", "order", "skipped", "lost", "sound")
    queues = {name: first.queue(name, number) for number, name in enumerate(names, 1)}
    expected: set[tuple[Any, ...]] = set()

    def expect(check: str, queue: str | None, seq_id: int, publish: int) -> None:
        expected.add((check, 1, queue, seq_id, publish))

    first.publish(queues["sound"], 0, 1)  # publishes 1 and 2
    first.deliver(queues["sound"], 0, 1)
    first.ack(queues["sound"], 0, 1)

    first.origin.publish(first.exchange, journals_message(), False, 3)
    first.origin.confirm(3, 3, True)
    expect("unrouted", None, -1, 3)

    first.origin.publish(first.exchange, journals_message(), False, 4)
    first.origin.confirm(4, 4, True)
    queues["early"].route(0, 0, 10, True, True)
    expect("early_confirm", "early", 0, 4)

    first.seqno = 4
    first.publish(queues["twice"], 0)  # 5
    queues["twice"].route(0, 0, 10, True, True)
    expect("doubled", "twice", 0, 5)

    first.publish(queues["unflagged"], 0, 1)  # 6, 7
    first.deliver(queues["unflagged"], 0, 1, 0)
    first.ack(queues["unflagged"], 0, 1)
    expect("doubled", "unflagged", 0, 6)

    first.publish(queues["after"], 0)  # 8
    first.deliver(queues["after"], 0)
    first.ack(queues["after"], 0)
    first.deliver(queues["after"], 0, redelivered=True)
    expect("after_end", "after", 0, 8)

    first.publish(queues["settled"], 0)  # 9
    first.ack(queues["settled"], 0)
    expect("settled_undelivered", "settled", 0, 9)

    first.publish(queues["order"], 0, 1, 2, 3)  # 10 to 13
    first.deliver(queues["order"], 0, 2, 1, 3)
    first.ack(queues["order"], 0, 1, 2, 3)
    expect("reordered", "order", 1, 11)

    first.publish(queues["skipped"], 0, 1, 2, 3)  # 14 to 17
    first.deliver(queues["skipped"], 0, 2)
    first.ack(queues["skipped"], 0, 2)
    expect("undelivered", "skipped", 1, 15)

    first.publish(queues["lost"], 0, 1, 2)  # 18 to 20
    first.publish(queues["lost"], 3, confirm=False)  # nobody was promised anything
    first.stop(clean=False)
    expect("lost", "lost", 1, 19)

    second = Boot(folder)
    lost, skipped = second.queue("lost", 9), second.queue("skipped", 8)
    second.queue("twice", 3).recover(0, 1, 0, layout.GAMMA)
    second.queue("early", 2).recover(0, 1, 0, layout.GAMMA)
    lost.recover(0, 1, 0, layout.GAMMA)
    lost.recover(2, 1, 0, layout.GAMMA)
    skipped.recover(1, 1, 0, layout.GAMMA)
    skipped.recover(3, 1, 0, layout.GAMMA)
    second.stop()
    found, counts = violations(spark, folder, tmp_path)
    assert found == expected
    assert counts.unknown == 0


def test_what_cannot_be_known_is_not_held_against_the_broker(spark: Any, tmp_path: Path):
    """Events that were lost, segments that were removed, and a machine that went down with the broker."""
    folder = tmp_path / "events"
    first = Boot(folder)
    q = first.queue("q")
    first.publish(q, 0, 1, 2)
    first.stop(clean=False)
    path = folder / layout.segment_name(1)
    header = layout.unpack_header(path.read_bytes())
    path.write_bytes(layout.pack_header(header._replace(machine_boot_id=bytes(16))) + path.read_bytes()[layout.HEADER_SIZE :])
    second = Boot(folder)  # on a machine that was started anew, where only 2 is left
    q = second.queue("q")
    q.recover(2, 1, 0, layout.GAMMA)
    second.publish(q, 3)
    second.stop()
    third = Boot(folder)  # whose first segment is gone
    q = third.queue("q")
    q.recover(2, 2, 0, layout.GAMMA)
    third.files._segment_size = 1  # the next flush fills the segment
    third.journal.flush()
    third.deliver(q, 2, 3)
    third.stop()
    (folder / layout.segment_name(3)).unlink()
    found, counts = violations(spark, folder, tmp_path)
    assert found == set()
    assert counts.unknown == 2, "2 and 3 were there before what is left begins"
