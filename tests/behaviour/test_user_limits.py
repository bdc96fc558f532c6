"""The limits of a user: connections and channels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pika
import pika.exceptions
import pytest

from support import eventually, full_text

Ctl = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def log_in(own_vhost: str, own_user: str, connect: Connect) -> Callable[[], pika.BlockingConnection]:
    """`log_in()` is a new connection of the user."""
    return lambda: connect(user=own_user, password="secret", vhost=own_vhost)


LogIn = Callable[[], pika.BlockingConnection]


@pytest.mark.parametrize("limit", [0, 1])
def test_connections_are_refused_from_the_limit_on(ctl: Ctl, own_user: str, log_in: LogIn, limit: int) -> None:
    ctl("set_user_limits", own_user, f'{{"max-connections":{limit}}}')
    for _ in range(limit):
        log_in()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        log_in()
    text = f"connection refused for user '{own_user}': user connection limit ({limit}) is reached"
    assert full_text(530, text) in str(caught.value)


def test_a_closed_connection_makes_room(ctl: Ctl, own_user: str, log_in: LogIn) -> None:
    ctl("set_user_limits", own_user, '{"max-connections":1}')
    for _ in range(3):
        opened: list[pika.BlockingConnection] = []

        def try_again(opened: list[pika.BlockingConnection] = opened) -> bool:
            with contextlib.suppress(pika.exceptions.ProbableAccessDeniedError):
                opened.append(log_in())
            return bool(opened)

        eventually(try_again)
        opened[0].close()


def test_the_limit_of_the_vhost_is_looked_at_first(
    ctl: Ctl, own_vhost: str, own_user: str, log_in: LogIn
) -> None:
    ctl("set_user_limits", own_user, '{"max-connections":0}')
    ctl("set_vhost_limits", "-p", own_vhost, '{"max-connections":0}')
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="access to vhost"):
        log_in()


@pytest.mark.parametrize("limit", [0, 2])
def test_channels_are_refused_from_the_limit_on(ctl: Ctl, own_user: str, log_in: LogIn, limit: int) -> None:
    ctl("set_user_limits", own_user, f'{{"max-channels":{limit}}}')
    for _ in range(limit):  # counted over all connections
        log_in().channel()
    connection = log_in()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.channel()
    text = f"number of channels opened for user '{own_user}' has reached the maximum allowed user limit of ({limit})"
    assert (caught.value.reply_code, caught.value.reply_text) == (530, full_text(530, text))


@pytest.mark.parametrize("end", ["channel", "connection", "error"])
def test_a_channel_that_ends_makes_room(ctl: Ctl, own_user: str, log_in: LogIn, end: str) -> None:
    ctl("set_user_limits", own_user, '{"max-channels":1}')
    connection = log_in()
    channel = connection.channel()
    if end == "channel":
        channel.close()
    elif end == "connection":
        connection.close()
    else:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare("absent", passive=True)

    def try_again() -> bool:
        with contextlib.suppress(pika.exceptions.ConnectionClosedByBroker):
            log_in().channel()
            return True
        return False

    eventually(try_again)


def test_changes_count_at_once_and_close_nothing(ctl: Ctl, own_user: str, log_in: LogIn) -> None:
    connection = log_in()
    channel = connection.channel()
    ctl("set_user_limits", own_user, '{"max-connections":0}')
    ctl("set_user_limits", own_user, '{"max-channels":0}')
    channel.queue_declare("q")
    ctl("clear_user_limits", own_user, "max-channels")
    connection.channel()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        log_in()
    ctl("set_user_limits", own_user, '{"max-connections":-1}')
    log_in().channel()
