"""Messages that wait for an ack, paged out to a disk that spoils some of them: the publishers of just these are nacked."""

from __future__ import annotations

import pytest
from pamqp import commands

from rabbitpy_broker.storage.vhost_store import StoreSettings
from sans_io import METHOD, Frame, SansIOBroker, method, parts_of, publish

PER_SEGMENT = 8


def is_delivery(frame: Frame) -> bool:
    return frame.type == METHOD and isinstance(frame.command(), commands.Basic.Deliver)


@pytest.mark.parametrize("mode", ["consumer-ack", "consumer-ack-light"])
def test_a_damaged_segment_of_delta_is_told_once(mode: str) -> None:
    small = StoreSettings()
    small.segment_entry_count = PER_SEGMENT
    broker = SansIOBroker(settings=small)
    publisher = broker.connect()
    publisher.open_channel(1)
    publisher.call(1, commands.Confirm.Select())
    publisher.call(1, commands.Queue.Declare(queue="q", durable=True, arguments={"x-confirm-mode": mode}))
    for number in range(60):
        publisher.feed(publish(1, "", "q", b"message %d." % number))
    queue = broker.vhost.queues["q"]
    for part in parts_of(queue.backing):
        part.set_ram_duration_target(0.0)
    broker.vhost.tick(1.0)
    broker.run()
    assert parts_of(queue.backing)[0].delta_count > 3 * PER_SEGMENT
    spoiled = next(file for file in broker.disk._content.files.values() if b"message 30." in bytes(file.data))
    lost = {number for number in range(60) if b"message %d." % number in bytes(spoiled.data)}
    assert len(lost) == PER_SEGMENT
    spoiled.write(40, bytes(len(spoiled.data) - 40))
    taker = broker.connect()
    taker.open_channel(1)
    taker.feed(method(1, commands.Basic.Qos(prefetch_count=1)))
    frames = taker.feed(method(1, commands.Basic.Consume(queue="q")))
    got = 0
    while tags := [each.command().delivery_tag for each in frames if is_delivery(each)]:
        got += 1
        frames = taker.feed(method(1, commands.Basic.Ack(tags[0])))
    assert got == 60 - PER_SEGMENT
    told: dict[int, str] = {}
    for each in publisher.output():
        answer = each.command()
        tag = answer.delivery_tag
        tags = [number for number in range(1, tag + 1) if number not in told] if answer.multiple else [tag]
        for number in tags:
            assert number not in told, f"{number} is told twice"
            told[number] = answer.name
    assert {number - 1 for number, outcome in told.items() if outcome == "Basic.Nack"} == lost
    assert len(told) == 60
    assert queue.backing.publishes_waiting() == 0
    queue.backing.check()
    broker.close()
