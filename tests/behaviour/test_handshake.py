"""The way into a connection: protocol header, server properties, authentication, vhost."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pamqp.commands as amqp
import pamqp.encode
import pika
import pika.exceptions
import pytest

from support import full_text
from wire_client import PROTOCOL_HEADER, WireClient, longstr, shortstr

START_OK, OPEN, SECURE_OK = (10, 11), (10, 40), (10, 21)

REFUSED = "Login was refused using authentication mechanism {}. For details see the broker logfile."
TELL_ME = {"capabilities": {"authentication_failure_close": True}}

CAPABILITIES = {
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
}


def amqplain(user: str, password: str) -> bytes:
    """AMQPLAIN's response: a field table without its length."""
    return bytes(pamqp.encode.field_table({"LOGIN": user, "PASSWORD": password})[4:])


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x08\x00",
        b"AMQP\x00\x00\x09\x02",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"GET / HT",
        b"\x00" * 8,
    ],
    ids=["0-8", "0-9-2", "1.0", "1.0 sasl", "http", "zeros"],
)
def test_wrong_protocol_header_is_answered_by_the_right_one(
    raw: Callable[..., WireClient], header: bytes
) -> None:
    client = raw()
    client.send(header)
    assert client.read_exactly(8) == PROTOCOL_HEADER
    client.expect_eof()


def test_protocol_header_may_arrive_octet_by_octet(raw: Callable[..., WireClient]) -> None:
    client = raw()
    for octet in PROTOCOL_HEADER:
        client.send(bytes([octet]))
    client.expect(0, amqp.Connection.Start)


def test_start_offers_version_mechanisms_and_locales(raw: Callable[..., WireClient]) -> None:
    start = raw().start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert set(start.mechanisms.split()) >= {"PLAIN", "AMQPLAIN"}
    assert start.locales == "en_US"


def test_server_properties_name_the_product_and_its_capabilities(raw: Callable[..., WireClient]) -> None:
    client = raw()
    client.start()
    properties = client.server_properties
    version = tuple(int(part) for part in properties["version"].split(".")[:2])
    assert version >= (3, 10), "clients switch features on by this number"
    assert all(properties[key] for key in ("product", "platform", "cluster_name"))
    capabilities = properties["capabilities"]
    assert capabilities.keys() >= CAPABILITIES
    assert all(capabilities[name] is True for name in CAPABILITIES)


@pytest.mark.parametrize(
    "mechanism, response", [("PLAIN", b"\0guest\0guest"), ("AMQPLAIN", amqplain("guest", "guest"))]
)
def test_good_login_is_answered_by_tune(
    raw: Callable[..., WireClient], mechanism: str, response: bytes
) -> None:
    client = raw()
    client.start()
    client.login(mechanism=mechanism, response=response)
    client.expect(0, amqp.Connection.Tune)


@pytest.mark.parametrize(
    "mechanism, response",
    [
        ("PLAIN", b"\0guest\0wrong"),
        ("PLAIN", b"\0nobody-of-that-name\0guest"),
        ("AMQPLAIN", amqplain("guest", "wrong")),
    ],
    ids=["wrong password", "unknown user", "amqplain"],
)
def test_refused_login_is_explained_to_clients_that_asked_for_it(
    raw: Callable[..., WireClient], mechanism: str, response: bytes
) -> None:
    client = raw()
    client.start()
    client.login(mechanism=mechanism, response=response, client_properties=TELL_ME)
    client.expect_close(403, REFUSED.format(mechanism))


def test_refused_login_just_closes_the_socket_of_other_clients(raw: Callable[..., WireClient]) -> None:
    client = raw()
    client.start()
    client.login(password="wrong")
    client.expect_eof()


@pytest.mark.parametrize("response", [b"", b"guest", b"\0guest", b"\0"])
def test_malformed_plain_response_ends_the_negotiation(
    raw: Callable[..., WireClient], response: bytes
) -> None:
    client = raw()
    client.start()
    client.login(response=response, client_properties=TELL_ME)
    client.expect_end(403, 501, 502)


def test_unknown_mechanism_is_refused(raw: Callable[..., WireClient]) -> None:
    client = raw()
    client.start()
    client.login(mechanism="NONSENSE", response=b"", client_properties=TELL_ME)
    client.expect_end(403, 503, 504)


def test_pika_sees_a_refused_login_as_an_authentication_error(
    connect: Callable[..., pika.BlockingConnection],
) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError) as caught:
        connect(password="wrong")
    assert full_text(403, REFUSED.format("PLAIN")) in str(caught.value)


def test_pika_sees_an_unknown_vhost_as_access_denied(connect: Callable[..., pika.BlockingConnection]) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        connect(vhost="no-such-vhost")
    assert full_text(530, "vhost no-such-vhost not found") in str(caught.value)


def test_unknown_vhost_is_refused(raw: Callable[..., WireClient]) -> None:
    client = raw()
    client.start()
    client.login()
    client.expect(0, amqp.Connection.Tune)
    client.tune_ok()
    client.method(0, (*OPEN, shortstr("no-such-vhost") + b"\0\0"))
    client.expect_close(530, "vhost no-such-vhost not found", *OPEN)


def test_whole_handshake_may_be_sent_without_waiting(raw: Callable[..., WireClient]) -> None:
    """Nothing in it depends on an answer, and some clients send it in one piece."""
    client = raw()
    client.send(PROTOCOL_HEADER)
    client.login()
    client.tune_ok()
    client.method(0, (*OPEN, shortstr("/") + b"\0\0"))
    client.method(1, amqp.Channel.Open())
    client.expect(0, amqp.Connection.Start)
    client.expect(0, amqp.Connection.Tune)
    client.expect(0, amqp.Connection.OpenOk)
    client.expect(1, amqp.Channel.OpenOk)


def test_oversized_client_properties_end_the_negotiation(raw: Callable[..., WireClient]) -> None:
    """Frames are limited to 4096 octets until frame_max is agreed."""
    client = raw()
    client.start()
    client.login(client_properties={"comment": "x" * 5000, **TELL_ME})
    client.expect_end(501)


def test_client_properties_below_the_limit_are_taken(raw: Callable[..., WireClient]) -> None:
    client = raw()
    client.start()
    client.login(client_properties={"comment": "x" * 3900, "connection_name": "big"})
    client.expect(0, amqp.Connection.Tune)


def test_update_secret_is_answered(raw: Callable[..., WireClient]) -> None:
    client = raw().open()
    client.method(0, (10, 70, longstr("guest") + shortstr("rotation")))
    client.expect(0, amqp.Connection.UpdateSecretOk)


def test_client_may_close_at_any_time(raw: Callable[..., WireClient]) -> None:
    client = raw().open()
    client.open_channel(1)
    client.call(0, amqp.Connection.Close(200, "bye", 0, 0), amqp.Connection.CloseOk)


def test_methods_sent_after_close_are_ignored(raw: Callable[..., WireClient]) -> None:
    client = raw().open()
    client.open_channel(1)
    client.method(0, amqp.Connection.Close(200, "bye", 0, 0))
    client.method(1, amqp.Queue.Declare(queue="no-such-queue", passive=True))
    client.expect(0, amqp.Connection.CloseOk)
    client.expect_nothing_more()


def test_socket_closed_in_the_middle_of_the_handshake_harms_nobody(
    raw: Callable[..., WireClient], connect: Callable[..., pika.BlockingConnection]
) -> None:
    silent, after_header, after_start_ok = raw(), raw(), raw()
    silent.close()
    after_header.start()
    after_header.close()
    after_start_ok.start()
    after_start_ok.login()
    after_start_ok.close()
    assert connect().channel().is_open


def test_half_a_start_ok_is_waited_for(raw: Callable[..., WireClient]) -> None:
    client = raw()
    client.start()
    arguments = (
        struct.pack(">HH", *START_OK)
        + b"\0\0\0\0"
        + shortstr("PLAIN")
        + longstr(b"\0guest\0guest")
        + shortstr("en_US")
    )
    data = struct.pack(">BHI", 1, 0, len(arguments)) + arguments + b"\xce"
    for octet in data:
        client.send(bytes([octet]))
    client.expect(0, amqp.Connection.Tune)
