"""Answers to declarations in a vhost with followers: they leave with their epoch, in order, and not at all when it is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pamqp.commands import Basic, Channel, Connection, Queue

from rabbitpy_broker.storage.sync import EpochLog
from sans_io import Peer, SansIOBroker, method


class SlowLog(EpochLog):
    """Takes an epoch when it is told to."""

    def __init__(self) -> None:
        self.epochs = 0
        self._done: list[Callable[[int, Exception | None], None]] = []

    def append(self, payload: list[bytes], done: Callable[[int, Exception | None], None]) -> None:
        self._done.append(done)

    def settle(self, error: Exception | None = None) -> None:
        """The epoch that is on its way has come, or is lost."""
        self.epochs += 1
        self._done.pop(0)(0 if error else self.epochs, error)


@pytest.fixture
def broker() -> Iterator[SansIOBroker]:
    broker = SansIOBroker()
    yield broker
    broker.close()


@pytest.fixture
def log(broker: SansIOBroker) -> SlowLog:
    log = SlowLog()
    broker.vhost.store.journal.log = log
    return log


@pytest.fixture
def peer(broker: SansIOBroker, log: SlowLog) -> Peer:
    peer = broker.connect()
    peer.call(1, Channel.Open())
    return peer


def declare(name: str, **flags: bool) -> bytes:
    return method(1, Queue.Declare(queue=name, durable=True, **flags))


def told(broker: SansIOBroker, peer: Peer, data: bytes = b"") -> list[str]:
    """What the peer is told now: names of queues, or of methods."""
    frames = peer.feed(data) if data else []
    broker.run()
    frames += peer.checker.take(peer.transport.take())
    commands = [frame.command() for frame in frames]
    return [one.queue if isinstance(one, Queue.DeclareOk) else one.name for one in commands]


def test_an_answer_waits_for_its_epoch(broker: SansIOBroker, peer: Peer, log: SlowLog) -> None:
    assert told(broker, peer, declare("a")) == []
    log.settle()
    assert told(broker, peer) == ["a"]


def test_answers_of_two_epochs_come_with_them_in_order(broker: SansIOBroker, peer: Peer, log: SlowLog) -> None:
    assert told(broker, peer, declare("a") + method(1, Basic.Qos(prefetch_count=1))) == []
    assert told(broker, peer, declare("b")) == []  # in the next epoch, since that of "a" is on its way
    assert told(broker, peer, declare("c") + method(1, Basic.Qos(prefetch_count=2))) == []
    log.settle()
    assert told(broker, peer) == ["a", "Basic.QosOk"]
    broker.threads.crank()
    log.settle()
    assert told(broker, peer) == ["b", "c", "Basic.QosOk"]


def test_others_do_not_wait(broker: SansIOBroker, peer: Peer, log: SlowLog) -> None:
    other = broker.connect()
    other.call(1, Channel.Open())
    assert told(broker, peer, declare("a")) == []
    assert told(broker, other, method(1, Basic.Qos(prefetch_count=1))) == ["Basic.QosOk"]
    log.settle()
    assert told(broker, peer) == ["a"]


def test_a_lost_epoch_is_not_told(broker: SansIOBroker, peer: Peer, log: SlowLog) -> None:
    assert told(broker, peer, declare("a")) == []
    log.settle(OSError("gone"))
    assert told(broker, peer) == ["Connection.Close"]


def test_who_is_closed_meanwhile_hears_that_alone(broker: SansIOBroker, peer: Peer, log: SlowLog) -> None:
    assert told(broker, peer, declare("a")) == []
    assert told(broker, peer, method(1, Basic.Qos(prefetch_size=7))) == ["Connection.Close"]
    log.settle()
    assert told(broker, peer) == []


def test_a_good_bye_is_answered_behind_the_answer(broker: SansIOBroker, peer: Peer, log: SlowLog) -> None:
    close = method(0, Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    assert told(broker, peer, declare("a") + close) == []
    log.settle()
    assert told(broker, peer) == ["a", "Connection.CloseOk"]


def test_a_socket_that_breaks_meanwhile_leaves_nothing(broker: SansIOBroker, peer: Peer, log: SlowLog) -> None:
    assert told(broker, peer, declare("a")) == []
    peer.lose()
    log.settle()
    broker.run()
    other = broker.connect()
    other.call(1, Channel.Open())
    assert told(broker, other, method(1, Queue.Declare(queue="a", passive=True))) == ["a"]
