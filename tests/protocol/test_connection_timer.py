"""What a connection does with its one timer: heartbeats, the send timeout, and how long either end may take.

`LiveTimer` is a clock beside a connection: it calls `tick` when it was asked for, or a little later, as the loop would.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic, Channel, Connection

from rabbitpy_broker.protocol.connection import GIVE_UP
from rabbitpy_broker.protocol.node import Limits
from sans_io import CONNECTION_CLOSE, HEARTBEAT, PROTOCOL_HEADER, Peer, SansIOBroker, frame, method, publish

BEAT = frame(HEARTBEAT, 0, b"")
TO_NOWHERE = Basic.Qos()  # asks for an answer, so that something is sent


class LiveTimer:
    """Time goes by in `advance`; `sent_at` are the moments at which the peer got something."""

    def __init__(self, peer: Peer, late_s: float = 0.0) -> None:
        self.peer = peer
        self.now = 1000.0
        self.late_s = late_s
        self.given_up_at = 0.0
        self.sent_at = [self.now]
        self.beats = 0
        self._seen = 0.0
        self._due = 0.0
        self._look()

    def _look(self) -> None:
        """A timer that the connection has set anew."""
        asked = self.peer.transport.timer_s
        if asked:
            self._due = self.now + asked + self.late_s
            self.peer.transport.timer_s = 0.0

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due <= end and not self.given_up_at:
            self.now = self._due
            self._due = 0.0
            again = self.peer.connection.tick(self.now)
            if again == GIVE_UP:
                self.given_up_at = self.now
                return
            if again:
                self._due = self.now + again + self.late_s
            self.peer.broker.run()
            self._note()
            self._look()
        self.now = end

    def feed(self, data: bytes) -> None:
        self.peer.connection.receive_data(data)
        self.peer.broker.run()
        self._note()
        self._look()

    def _note(self) -> None:
        frames = self.peer.output()
        self.beats += sum(1 for one in frames if one.type == HEARTBEAT)
        if frames:
            self.sent_at.append(self.now)

    def longest_gap(self) -> float:
        moments = [*self.sent_at, self.now]
        return max(after - before for before, after in itertools.pairwise(moments))


def timed(heartbeat: int = 0, limits: Limits | None = None, late_s: float = 0.0) -> LiveTimer:
    peer = SansIOBroker(limits).peer().shake_hands(heartbeat=heartbeat)
    peer.open_channel()
    return LiveTimer(peer, late_s)


# --- heartbeats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heartbeat", [1, 2, 10, 60])
def test_idle_peer_hears_a_heartbeat_every_half_interval(heartbeat: int) -> None:
    timer = timed(heartbeat)
    for _ in range(30):
        timer.advance(heartbeat)
        timer.feed(BEAT)
    assert timer.beats == 60
    assert timer.longest_gap() == pytest.approx(heartbeat / 2)
    assert not timer.given_up_at


@given(
    heartbeat=st.sampled_from([1, 2, 10, 60]),
    pauses=st.lists(st.floats(0.01, 1.5), min_size=1, max_size=40),
    late_s=st.floats(0, 0.11),
)
def test_peer_never_waits_longer_than_half_an_interval_whatever_else_is_sent(
    heartbeat: int, pauses: list[float], late_s: float
) -> None:
    """A client that hangs up after one interval of silence must not come near that; answers at any moment do not put it off."""
    timer = timed(heartbeat, late_s=late_s)
    for pause in pauses:
        timer.advance(pause * heartbeat)
        timer.feed(method(1, TO_NOWHERE))
    assert not timer.given_up_at
    assert timer.longest_gap() <= heartbeat / 2 + late_s + 1e-9


@given(heartbeat=st.sampled_from([1, 2, 10, 60]), talks=st.floats(0, 3))
def test_silent_peer_is_given_up_after_two_intervals_and_before_three(heartbeat: int, talks: float) -> None:
    timer = timed(heartbeat)
    timer.advance(talks * heartbeat / 2)
    timer.feed(BEAT)
    spoke_at = timer.now
    timer.advance(10 * heartbeat)
    assert 2 * heartbeat <= timer.given_up_at - spoke_at <= 3 * heartbeat
    assert timer.peer.connection.close_reason == "missed heartbeats from client"


def test_peer_that_is_not_read_from_is_not_given_up_for_its_silence() -> None:
    timer = timed(heartbeat=2)
    timer.peer.broker.node.blocked = "low on memory"
    timer.peer.connection.alarm_changed()
    timer.feed(publish(1, "", "nowhere", b"x"))
    assert timer.peer.connection.blocked
    timer.peer.connection.reading = timer.peer.transport.reading  # as the socket's side notes it
    timer.advance(60)
    assert not timer.given_up_at
    assert timer.beats == 60


@pytest.mark.parametrize("taken_a_second, kept", [(40_000_000, True), (1_000_000, False)])
def test_peer_that_reads_and_reads_lives_though_it_says_nothing(taken_a_second: int, kept: bool) -> None:
    """Some clients write nothing while there is always more to read. What is little may lie in the systems' buffers."""
    timer = timed(heartbeat=2)
    for _ in range(30):
        timer.peer.connection.output.sent_bytes += taken_a_second
        timer.advance(1)
    assert (not timer.given_up_at) is kept


def test_without_heartbeats_nothing_is_sent_and_silence_is_no_fault() -> None:
    timer = timed(heartbeat=0)
    timer.advance(10_000)
    assert (timer.beats, timer.given_up_at) == (0, 0.0)


# --- output that is not taken ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heartbeat", [0, 2, 60, 60_000])
def test_peer_that_takes_nothing_is_given_up_after_the_send_timeout(heartbeat: int) -> None:
    timer = timed(heartbeat)
    timer.advance(1)
    timer.peer.transport.stuck_bytes = 5_000_000
    timer.peer.connection.writing_paused()
    timer._look()
    stuck_at = timer.now
    for _ in range(80):  # its heartbeats come all the time
        timer.feed(BEAT)
        timer.advance(0.5)
    assert 30 <= timer.given_up_at - stuck_at <= 32
    assert timer.peer.connection.close_reason == "send timeout"


def test_little_output_that_is_stuck_is_found_as_well() -> None:
    """Too little for the transport to say that it is too much."""
    timer = timed(heartbeat=60)
    timer.peer.transport.stuck_bytes = 100
    for _ in range(80):
        timer.feed(BEAT)
        timer.advance(1)
    assert 30 <= timer.given_up_at - 1000.0 <= 61


def test_output_that_is_taken_slowly_is_not_stuck() -> None:
    timer = timed(heartbeat=2)
    timer.peer.connection.writing_paused()
    timer._look()
    for left in range(5_000_000, 0, -50_000):
        timer.peer.transport.stuck_bytes = left
        timer.feed(BEAT)
        timer.advance(1.9)
    assert not timer.given_up_at


def test_no_heartbeat_is_put_behind_what_is_stuck() -> None:
    timer = timed(heartbeat=2)
    timer.peer.transport.stuck_bytes = 5_000_000
    timer.advance(3)
    assert timer.beats == 0
    timer.feed(BEAT)
    timer.peer.transport.stuck_bytes = 0
    timer.advance(1)
    assert timer.beats == 1


def test_send_timeout_may_be_off() -> None:
    limits = Limits()
    limits.send_timeout_s = 0.0
    timer = timed(heartbeat=0, limits=limits)
    timer.peer.transport.stuck_bytes = 5_000_000
    timer.peer.connection.writing_paused()
    timer._look()
    timer.advance(10_000)
    assert not timer.given_up_at


@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.booleans()), max_size=60))
def test_one_who_is_often_too_slow_has_its_heartbeats_all_the_same(steps: list[tuple[float, bool]]) -> None:
    timer = timed(heartbeat=4)
    connection = timer.peer.connection
    for pause, writable in steps:
        (connection.writing_resumed if writable else connection.writing_paused)()
        timer._look()
        timer.advance(pause)
        timer.feed(BEAT)
    timer.advance(4)
    assert timer.beats >= (timer.now - 1000.0) // 3
    assert not timer.given_up_at


# --- the handshake, and the end ----------------------------------------------------------------------------------------


def test_handshake_that_takes_too_long_is_given_up() -> None:
    peer = SansIOBroker().peer()
    peer.feed(PROTOCOL_HEADER)
    assert peer.connection.tick(10.0) == GIVE_UP
    assert peer.connection.close_reason == "handshake timeout"


@pytest.mark.parametrize("heartbeat, seconds", [(0, 30.0), (2, 2.0), (60, 30.0)])
def test_peer_has_so_long_to_answer_a_close(heartbeat: int, seconds: float) -> None:
    timer = timed(heartbeat)
    peer = timer.peer
    frames = peer.feed(method(1, Channel.Open()))  # the second on this channel
    assert [one.index() for one in frames] == [CONNECTION_CLOSE]
    assert (peer.transport.timer_s, peer.transport.closed) == (seconds, False)
    peer.feed(method(0, Connection.CloseOk()))
    assert peer.transport.closed


def test_peer_that_has_closed_has_as_long_to_hang_up() -> None:
    timer = timed(heartbeat=60)
    timer.peer.call(0, Connection.Close(200, "", 0, 0))
    assert (timer.peer.transport.timer_s, timer.peer.transport.closed) == (30.0, False)
    assert timer.peer.connection.tick(1.0) == GIVE_UP


def test_both_sides_may_close_at_once() -> None:
    timer = timed()
    timer.peer.feed(method(1, Channel.Open()))
    timer.peer.feed(method(0, Connection.Close(200, "", 0, 0)))
    assert not timer.peer.transport.closed
    timer.peer.feed(method(0, Connection.CloseOk()))
    assert timer.peer.transport.closed


def test_stranger_is_left_waiting_and_not_listened_to() -> None:
    peer = SansIOBroker().peer()
    peer.feed(PROTOCOL_HEADER)
    assert peer.feed(method(0, Connection.StartOk(response="\0guest\0wrong"))) == []
    assert (peer.transport.timer_s, peer.transport.closed) == (3.0, False)
    assert peer.feed(method(0, Connection.StartOk(response="\0guest\0guest"))) == []
    assert peer.connection.tick(3.0) == GIVE_UP


def test_frame_whose_end_is_unknown_leaves_little_time() -> None:
    timer = timed()
    frames = timer.peer.feed(b"\x01\x00\x01\xff\xff\xff\xff")
    assert [one.index() for one in frames] == [CONNECTION_CLOSE]
    assert timer.peer.transport.timer_s == 3.0
