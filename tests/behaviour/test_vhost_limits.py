"""The limits of a vhost: connections and queues."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import eventually, full_text

Ctl = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


def limits(ctl: Ctl, vhost: str, text: str) -> None:
    ctl("set_vhost_limits", "-p", vhost, text)


def refused_queue(channel: BlockingChannel, name: str, **settings: object) -> str:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(name, **settings)
    assert caught.value.reply_code == 406
    return str(caught.value.reply_text)


def queue_text(name: str, vhost: str, limit: int) -> str:
    return full_text(406, f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached")


@pytest.mark.parametrize("limit", [0, 1])
def test_connections_are_refused_from_the_limit_on(ctl: Ctl, own_vhost: str, connect: Connect, limit: int) -> None:
    limits(ctl, own_vhost, f'{{"max-connections":{limit}}}')
    for _ in range(limit):
        connect(vhost=own_vhost)
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        connect(vhost=own_vhost)
    text = f"access to vhost '{own_vhost}' refused for user 'guest': connection limit ({limit}) is reached"
    assert full_text(530, text) in str(caught.value)


def test_a_closed_connection_makes_room(ctl: Ctl, own_vhost: str, connect: Connect) -> None:
    limits(ctl, own_vhost, '{"max-connections":1}')
    for _ in range(3):
        opened: list[pika.BlockingConnection] = []

        def try_again(opened: list[pika.BlockingConnection] = opened) -> bool:
            with contextlib.suppress(pika.exceptions.ProbableAccessDeniedError):
                opened.append(connect(vhost=own_vhost))
            return bool(opened)

        eventually(try_again)
        opened[0].close()


def test_a_lower_limit_closes_nothing(ctl: Ctl, own_vhost: str, connect: Connect) -> None:
    channel = connect(vhost=own_vhost).channel()
    channel.queue_declare("a")
    limits(ctl, own_vhost, '{"max-connections":0,"max-queues":0}')
    channel.queue_declare("a")
    channel.basic_publish("", "a", b"")
    assert channel.queue_declare("a", passive=True).method.message_count == 1


@pytest.mark.parametrize("limit", ['{"max-connections":-1,"max-queues":-1}', '{"max-connections":-7,"max-queues":-7}'])
def test_a_negative_limit_is_none(ctl: Ctl, own_vhost: str, connect: Connect, limit: str) -> None:
    limits(ctl, own_vhost, limit)
    channel = connect(vhost=own_vhost).channel()
    connect(vhost=own_vhost)
    for name in ("a", "b"):
        channel.queue_declare(name)


def test_queues_are_refused_from_the_limit_on(ctl: Ctl, own_vhost: str, connect: Connect) -> None:
    connection = connect(vhost=own_vhost)
    limits(ctl, own_vhost, '{"max-queues":1}')
    connection.channel().queue_declare("a")
    assert refused_queue(connection.channel(), "b") == queue_text("b", own_vhost, 1)
    bad = {"x-expires": -1}
    assert refused_queue(connection.channel(), "b", arguments=bad) == queue_text("b", own_vhost, 1)
    start, end = queue_text("amq.gen-", own_vhost, 1).split("amq.gen-")
    text = refused_queue(connection.channel(), "", exclusive=True)
    assert text.startswith(start + "amq.gen-")
    assert text.endswith(end)


def test_a_queue_that_is_there_may_be_declared_at_the_limit(ctl: Ctl, own_vhost: str, connect: Connect) -> None:
    channel = connect(vhost=own_vhost).channel()
    channel.queue_declare("a")
    limits(ctl, own_vhost, '{"max-queues":1}')
    channel.queue_declare("a")
    channel.queue_delete("a")
    channel.queue_declare("b")


def test_open_connections_see_changes(ctl: Ctl, own_vhost: str, connect: Connect) -> None:
    connection = connect(vhost=own_vhost)
    limits(ctl, own_vhost, '{"max-queues":0}')
    assert refused_queue(connection.channel(), "a") == queue_text("a", own_vhost, 0)
    limits(ctl, own_vhost, '{"max-connections":50}')
    connection.channel().queue_declare("a")
    limits(ctl, own_vhost, '{"max-queues":1}')
    assert refused_queue(connection.channel(), "b") == queue_text("b", own_vhost, 1)
    ctl("clear_vhost_limits", "-p", own_vhost)
    connection.channel().queue_declare("b")
