"""connection.update-secret: a client renews its password or token without reconnecting."""

from __future__ import annotations

from collections.abc import Callable

import pika

from behaviour.helpers import confirming, take_all
from wire_client import METHOD, WireClient, longstr, shortstr

Maker = Callable[..., str]

UPDATE_SECRET, UPDATE_SECRET_OK = (10, 70), b"\x00\x0a\x00\x47"


def update_secret(client: WireClient, secret: bytes, reason: str = "it was about to expire") -> None:
    client.method(0, (*UPDATE_SECRET, longstr(secret) + shortstr(reason)))
    answer = client.read_frame()
    assert (answer.type, answer.channel, answer.payload) == (METHOD, 0, UPDATE_SECRET_OK)


def test_connection_and_its_channels_go_on(wire: WireClient, queue: Maker) -> None:
    name = queue()
    for secret in (b"guest", b"a new one", b"\x00\xff" * 500):
        update_secret(wire, secret)
        wire.publish(1, "", name, b"x")
    wire.expect_silence(1)


def test_open_content_on_a_channel_is_not_disturbed(
    wire: WireClient, connection: pika.BlockingConnection, queue: Maker
) -> None:
    name = queue()
    wire.method(1, (60, 40, b"\x00\x00" + shortstr("") + shortstr(name) + b"\x00"))
    wire.header(1, 6)
    wire.body(1, b"one")
    update_secret(wire, b"guest")
    wire.body(1, b"two")
    wire.expect_silence(1)
    assert take_all(confirming(connection), name) == [b"onetwo"]


def test_pika_may_update_its_secret(connection: pika.BlockingConnection) -> None:
    connection.update_secret("guest", "because")
    assert connection.channel().is_open
