"""The turn: a fault in one place does not keep the others from being finished, and nothing comes before its commit."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Channel, Queue

from fake_syncs import FakeSyncs
from fake_turns import FakeTurns
from rabbitpy_broker.protocol.confirms import Confirms
from rabbitpy_broker.protocol.output import LOST, Output, Transport
from rabbitpy_broker.protocol.turn import Turn
from sans_io import SansIOBroker, method, publish

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def test_without_a_report_faults_are_raised() -> None:
    broker = SansIOBroker()
    _break(broker)
    with pytest.raises(NotImplementedError):
        broker.turn.run()


def _break(broker: SansIOBroker) -> None:
    """A connection's output is due, and its transport cannot write."""
    output = broker.peer().connection.output
    output.transport = Transport()
    output.out.write(HEARTBEAT)
    output.due()


def test_a_fault_in_one_writer_leaves_the_others_their_output() -> None:
    broker = SansIOBroker()
    faults = broker.turns.faults = []
    peer = broker.peer()
    _break(broker)
    before = len(peer.transport.written)
    peer.connection.output.out.write(HEARTBEAT)
    peer.connection.output.due()
    broker.turn.run()
    assert [type(fault) for fault in faults] == [NotImplementedError]
    assert len(peer.transport.written) > before


def test_a_fault_in_the_commit_counts_as_a_failed_commit() -> None:
    turns = FakeTurns(commits=(OSError(28, "No space left on device"),))
    turn = Turn(turns)
    turn.commit_due = True
    turn.run()
    assert turn.commit_due
    assert len(turns.faults) == 1


def test_a_sync_begins_once_and_before_the_output_is_written() -> None:
    broker = SansIOBroker()
    peer = broker.peer()
    syncs = FakeSyncs()
    written: list[int] = []
    syncs.on_begin = lambda: written.append(len(peer.transport.written))
    peer.connection.output.out.write(HEARTBEAT)
    peer.connection.output.due()
    broker.turn.sync_due(syncs)
    broker.run()
    peer.connection.output.due()
    broker.run()
    assert (syncs.begun, written, len(peer.transport.written)) == ([1], [0], 1)


def test_a_sync_does_not_begin_before_the_definitions_are_committed() -> None:
    """A message whose queue is not in the definitions would be nobody's after a crash."""
    turn = Turn(FakeTurns(commits=(False, False)))
    syncs = FakeSyncs()
    turn.commit_due = True
    turn.sync_due(syncs)
    turn.run()
    turn.run()
    assert syncs.begun == []
    turn.run()
    assert syncs.begun == [1]


def test_a_fault_in_one_sync_leaves_the_others_to_begin() -> None:
    turns = FakeTurns()
    turn = Turn(turns)
    bad, good = FakeSyncs(), FakeSyncs()
    bad.faulty = True
    turn.sync_due(bad)
    turn.sync_due(good)
    turn.run()
    assert [type(fault) for fault in turns.faults] == [OSError]
    assert good.begun == [1]


def test_a_sync_that_is_marked_while_one_begins_begins_in_the_next_turn() -> None:
    turns = FakeTurns()
    turn = Turn(turns)
    syncs = FakeSyncs()
    turn.sync_due(syncs)
    syncs.on_begin = lambda: turn.sync_due(syncs)
    turn.run()
    assert (syncs.begun, turns.asked) == ([1], 2)
    syncs.on_begin = lambda: None
    turn.run()
    assert syncs.begun == [1, 2]


def test_confirms_of_a_closed_channel_are_not_sent() -> None:
    output = Output(Turn(FakeTurns()), None, LOST, 0, 0)
    confirms = Confirms(output, 1, FakeSyncs())
    confirms.publish_confirmed()
    confirms.close()
    confirms.send_confirms()
    assert len(output.out) == 0


def test_a_peer_that_does_not_read_is_not_answered_without_end() -> None:
    """Gets are taken until as much is unsent as fits, then its input waits; it goes on when the peer reads."""
    broker = SansIOBroker()
    peer = broker.connect()
    peer.call(1, Channel.Open())
    peer.feed(method(1, Queue.Declare(queue="q")))
    peer.feed(publish(1, "", "q", bytes(100_000)) * 200)
    peer.connection.writing_paused()
    got = 0
    for _ in range(200):
        got += len(peer.feed(method(1, Basic.Get(queue="q", no_ack=True))))
    assert peer.transport.reading is False
    ready = broker.vhost.queues["q"].backing.len
    assert 100 < ready < 200, "some were given, not all"
    peer.connection.writing_resumed()
    peer.feed(b"")
    assert peer.transport.reading is True
    assert broker.vhost.queues["q"].backing.len < ready
