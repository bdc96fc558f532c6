"""Single active consumer: one gets everything until it has gone."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Channel, Queue

from sans_io import Peer, SansIOBroker, method
from small_client import SmallClient, contents

SINGLE = {"x-single-active-consumer": True}


class Consumer:
    """A channel of a connection of its own, with one consumer."""

    def __init__(self, broker: SansIOBroker, arguments: dict[str, Any] | None = None, **flags: Any) -> None:
        self.peer: Peer = broker.connect()
        self.peer.open_channel(1)
        command = Basic.Consume(queue="a", consumer_tag="c", arguments=arguments or {}, **flags)
        self.answer = self.peer.call(1, command)

    def bodies(self) -> list[bytes]:
        self.got = contents(self.peer.output())
        return [one.body for one in self.got]

    def cancel(self) -> None:
        self.peer.call(1, Basic.Cancel(consumer_tag="c"))


@pytest.fixture
def broker() -> SansIOBroker:
    return SansIOBroker()


@pytest.fixture
def client(broker: SansIOBroker) -> SmallClient:
    client = SmallClient(broker)
    client.declare("a", SINGLE)
    return client


def test_the_first_consumer_gets_everything_and_the_next_follows_when_it_goes(broker, client):
    first, second = Consumer(broker), Consumer(broker)
    for number in range(3):
        client.publish("a", b"%d" % number)
    assert (first.bodies(), second.bodies()) == ([b"0", b"1", b"2"], [])
    first.cancel()
    client.publish("a", b"3")
    assert second.bodies() == [b"3"], "what the first holds stays with it"
    first.peer.lose()
    assert second.bodies() == [b"0", b"1", b"2"]


def test_a_waiting_consumer_does_not_help_one_that_has_no_room(broker, client):
    first, second = Consumer(broker), Consumer(broker)
    first.cancel()
    first.peer.call(1, Basic.Qos(prefetch_count=1))
    second.cancel()
    assert isinstance(first.peer.call(1, Basic.Consume(queue="a", consumer_tag="c")), Basic.ConsumeOk)
    assert isinstance(second.peer.call(1, Basic.Consume(queue="a", consumer_tag="c")), Basic.ConsumeOk)
    for number in range(2):
        client.publish("a", b"%d" % number)
    assert (first.bodies(), second.bodies()) == ([b"0"], [])
    assert client.ready("a") == 1
    first.peer.feed(method(1, Basic.Ack(delivery_tag=1)))
    broker.run()


def test_the_highest_priority_follows_and_among_equals_the_oldest(broker, client):
    consumers = [Consumer(broker, {"x-priority": priority}) for priority in (0, 1, 5, 5)]
    for expected in (0, 2, 3, 1):
        client.publish("a", b"m")
        assert [bool(one.bodies()) for one in consumers] == [at == expected for at in range(4)]
        consumers[expected].cancel()
        consumers[expected].peer.lose()
        for other in consumers:
            other.bodies()
        client.get_all("a")


def test_a_higher_priority_does_not_drive_out_the_active_one(broker, client):
    low = Consumer(broker, {"x-priority": 0})
    high = Consumer(broker, {"x-priority": 10})
    client.publish("a", b"m")
    assert (low.bodies(), high.bodies()) == ([b"m"], [])


def test_the_next_gets_what_the_active_one_gives_back(broker, client):
    first, second = Consumer(broker), Consumer(broker)
    client.publish("a", b"m")
    assert first.bodies() == [b"m"]
    first.peer.lose()
    assert second.bodies() == [b"m"]
    assert second.got[0].redelivered


def test_nobody_may_have_such_a_queue_for_himself(broker, client):
    answer = Consumer(broker, exclusive=True).answer
    assert isinstance(answer, Channel.Close)
    assert answer.reply_code == 403


def test_a_waiting_consumer_may_go_and_nothing_changes(broker, client):
    first, second = Consumer(broker), Consumer(broker)
    second.cancel()
    client.publish("a", b"m")
    assert first.bodies() == [b"m"]
    first.peer.lose()
    assert client.ready("a") == 1


def test_waiting_consumers_are_told_when_the_queue_is_deleted(broker, client):
    first, second = Consumer(broker), Consumer(broker)
    client.peer.call(1, Queue.Delete(queue="a"))
    for consumer in (first, second):
        (frame,) = consumer.peer.output()
        assert isinstance(frame.command(), Basic.Cancel)
