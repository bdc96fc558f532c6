"""How a connection ends when its peer does not do its part: who is told, who waits for whom, and for how long.

  a fault before tuning        nothing is said, and the socket stays open for three seconds (against guessing passwords)
  a refused login, on request  connection.close, and three seconds for close-ok
  a fault after tuning         connection.close, and half a minute for close-ok, or one heartbeat interval if that is less
  a close by the client        close-ok, and as long for the client to hang up
  output that is not taken     half a minute, then the socket is closed, whatever else comes from the client

test_handshake.py and test_protocol_errors.py have the codes and the texts.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pamqp.commands as amqp
import pytest

from broker_process import BrokerProcess
from wire_client import FRAME_END, HEARTBEAT, WireClient, shortstr

Raw = Callable[..., WireClient]
Own = Callable[..., BrokerProcess]

OPEN = (10, 40)
TELL_ME = {"capabilities": {"authentication_failure_close": True}}
ENDS = (EOFError, ConnectionError)


def seconds_until_the_end(client: WireClient, limit: float = 8.0) -> float:
    """Reads until the broker closes the socket, passing over all that comes before."""
    began = time.monotonic()
    client.socket.settimeout(limit)
    with pytest.raises(ENDS):
        while True:
            client.read_exactly(1)
    return time.monotonic() - began


def started(raw: Raw) -> WireClient:
    client = raw()
    client.start()
    return client


def tuned(raw: Raw, heartbeat: int = 0) -> WireClient:
    """Up to tune-ok: connection.open is due."""
    client = started(raw)
    client.login()
    client.expect(0, amqp.Connection.Tune)
    client.tune_ok(heartbeat=heartbeat)
    return client


def asks_for_an_unknown_vhost(client: WireClient) -> None:
    client.method(0, (*OPEN, shortstr("no-such-vhost") + b"\0\0"))
    client.expect(0, amqp.Connection.Close)


def opens_a_channel_twice(client: WireClient) -> None:
    client.open_channel(1)
    client.method(1, amqp.Channel.Open())
    client.expect(0, amqp.Connection.Close)


# --- close-ok is waited for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["refused login", "unknown vhost", "hard error"])
def test_socket_stays_open_for_the_answer_to_a_close(raw: Raw, fault: str) -> None:
    """A client that reads in one thread and works in another must not see the end before it has seen the close."""
    if fault == "refused login":
        client = started(raw)
        client.login(password="wrong", client_properties=TELL_ME)
        client.expect(0, amqp.Connection.Close)
    elif fault == "unknown vhost":
        client = tuned(raw)
        asks_for_an_unknown_vhost(client)
    else:
        client = raw().open()
        opens_a_channel_twice(client)
    client.socket.settimeout(1)
    with pytest.raises(TimeoutError):
        client.read_exactly(1)
    client.method(0, amqp.Connection.CloseOk())
    assert seconds_until_the_end(client) < 1


@pytest.mark.parametrize("opened", [False, True], ids=["unknown vhost", "hard error"])
def test_close_that_is_not_answered_ends_with_the_heartbeat_interval(raw: Raw, opened: bool) -> None:
    """30 seconds where it is longer or none was agreed (tests/protocol/test_connection_timer.py)."""
    if opened:
        client = raw().open(heartbeat=2)
        opens_a_channel_twice(client)
    else:
        client = tuned(raw, heartbeat=2)
        asks_for_an_unknown_vhost(client)
    assert 1.9 < seconds_until_the_end(client) < 3.5


def test_client_that_has_closed_has_the_heartbeat_interval_to_hang_up(raw: Raw) -> None:
    client = raw().open(heartbeat=2)
    client.call(0, amqp.Connection.Close(200, "", 0, 0), amqp.Connection.CloseOk)
    assert 1.9 < seconds_until_the_end(client) < 3.5


def test_closes_that_cross_are_both_answered(raw: Raw) -> None:
    client = raw().open()
    opens_a_channel_twice(client)
    client.call(0, amqp.Connection.Close(200, "", 0, 0), amqp.Connection.CloseOk)
    client.method(0, amqp.Connection.CloseOk())
    assert seconds_until_the_end(client) < 1


# --- strangers wait ------------------------------------------------------------------------------------------------------


def wrong_password(client: WireClient) -> None:
    client.login(password="wrong")


def wrong_password_on_request(client: WireClient) -> None:
    client.login(password="wrong", client_properties=TELL_ME)


def unknown_mechanism(client: WireClient) -> None:
    client.login(mechanism="NONSENSE", response=b"", client_properties=TELL_ME)


def malformed_response(client: WireClient) -> None:
    client.login(response=b"guest", client_properties=TELL_ME)


def unknown_frame(client: WireClient) -> None:
    client.frame(4, 0, b"123")


def vhost_before_login(client: WireClient) -> None:
    client.method(0, (*OPEN, shortstr("/") + b"\0\0"))


def too_large_a_frame(client: WireClient) -> None:
    client.login(client_properties={"comment": "x" * 5000, **TELL_ME})


def bad_tuning(client: WireClient) -> None:
    client.login(client_properties=TELL_ME)
    client.expect(0, amqp.Connection.Tune)
    client.tune_ok(frame_max=100)


@pytest.mark.parametrize(
    "fault",
    [
        wrong_password, wrong_password_on_request, unknown_mechanism, malformed_response, unknown_frame,
        vhost_before_login, too_large_a_frame, bad_tuning,
    ],
)  # fmt: skip
def test_stranger_waits_three_seconds_for_the_end(raw: Raw, fault: Callable[[WireClient], None]) -> None:
    client = started(raw)
    fault(client)
    assert 2.8 < seconds_until_the_end(client) < 4.5


def test_guess_after_a_refused_login_is_not_heard(raw: Raw) -> None:
    client = started(raw)
    wrong_password(client)
    client.login()
    client.expect_nothing_more(within=1)


@pytest.mark.own
def test_strangers_that_wait_do_not_hold_up_the_shutdown(own_broker: Own, raw: Raw) -> None:
    own = own_broker()
    for _ in range(3):
        client = raw(to=own)
        client.start()
        wrong_password(client)
    client = raw(to=own).open()
    client.call(0, amqp.Connection.Close(200, "", 0, 0), amqp.Connection.CloseOk)
    began = time.monotonic()
    own.stop()
    assert time.monotonic() - began < 2.5


def test_frame_whose_end_cannot_be_found_ends_after_three_seconds(raw: Raw) -> None:
    """Behind it no close-ok can be told from the rest of the frame."""
    client = raw().open()
    client.send(b"\x01\x00\x01\xff\xff\xff\xff")
    client.expect(0, amqp.Connection.Close)
    assert 2.8 < seconds_until_the_end(client) < 4.5


def test_frames_are_limited_as_agreed_from_tune_ok_on(raw: Raw) -> None:
    client = tuned(raw)
    client.send(b"\x01\x00\x00\x00\xff\x00\x00")
    client.expect_end(501)


def test_channel_frame_before_the_connection_is_open(raw: Raw) -> None:
    client = tuned(raw)
    client.method(1, amqp.Channel.Open())
    client.expect_close(505, "type 1, all octets = <<0,20,0,10,1,48>>")


# --- output that is not taken --------------------------------------------------------------------------------------------

BODY = bytes(1_000_000)


@pytest.fixture
def beating() -> Iterator[Callable[[WireClient], threading.Event]]:
    """`beating(client)` sends heartbeats four times a second; the event it returns is set when that fails."""
    stop = threading.Event()
    threads = []

    def start(client: WireClient) -> threading.Event:
        failed = threading.Event()

        def run() -> None:
            while not stop.wait(0.25):
                try:
                    client.send(struct.pack(">BHI", HEARTBEAT, 0, 0) + FRAME_END)
                except OSError:
                    failed.set()
                    return

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return failed

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def consumer_of_a_backlog(raw: Raw, own: BrokerProcess, messages: int) -> WireClient:
    """A consumer with heartbeats of a second and a small receive buffer, to which so many megabytes are to be sent."""
    publisher = raw(to=own).open()
    publisher.open_channel(1)
    publisher.call(1, amqp.Queue.Declare(queue="backlog"), amqp.Queue.DeclareOk)
    publisher.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    for _ in range(messages):
        publisher.method(1, amqp.Basic.Publish(exchange="", routing_key="backlog"))
        publisher.header(1, len(BODY))
        for at in range(0, len(BODY), 100_000):
            publisher.body(1, BODY[at : at + 100_000])
        publisher.expect(1, amqp.Basic.Ack)
    client = raw(to=own, timeout=10)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.open(heartbeat=1)
    client.open_channel(1)
    client.method(1, amqp.Basic.Consume(queue="backlog", no_ack=True))
    return client


@pytest.mark.own
def test_client_that_takes_nothing_is_hung_up_on_though_its_heartbeats_come(
    own_broker: Own, raw: Raw, beating: Callable[[WireClient], threading.Event]
) -> None:
    own = own_broker(config={"tcp_listen_options": {"send_timeout": 2000}})
    client = consumer_of_a_backlog(raw, own, 20)
    began = time.monotonic()
    assert beating(client).wait(15)
    assert time.monotonic() - began > 2
    assert len(own.events("send timeout")) == 1


@pytest.mark.own
def test_client_that_takes_little_by_little_is_kept(
    own_broker: Own, raw: Raw, beating: Callable[[WireClient], threading.Event]
) -> None:
    own = own_broker(config={"tcp_listen_options": {"send_timeout": 1000}})
    client = consumer_of_a_backlog(raw, own, 12)
    failed = beating(client)
    took = threading.Event()
    for _ in range(20):  # five seconds
        client.read_exactly(500_000)
        took.wait(0.25)
    assert not failed.is_set()


@pytest.mark.own
def test_client_that_has_nothing_to_take_is_kept(
    own_broker: Own, raw: Raw, beating: Callable[[WireClient], threading.Event]
) -> None:
    own = own_broker(config={"tcp_listen_options": {"send_timeout": 500}})
    client = raw(to=own).open(heartbeat=1)
    assert not beating(client).wait(3)
