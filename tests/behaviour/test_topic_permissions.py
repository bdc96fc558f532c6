"""Topic permissions: which routing keys a user may publish to a topic exchange, and which it may bind there."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import full_text

Ctl = Callable[..., str]
Theirs = Callable[[], BlockingChannel]


@pytest.fixture
def theirs(own_vhost: str, own_user: str, connect: Callable[..., pika.BlockingConnection]) -> Theirs:
    """`theirs()` is a new channel, in confirm mode, of one connection of the user."""
    connection = connect(user=own_user, password="secret", vhost=own_vhost)
    channel = connection.channel()
    channel.exchange_declare("topics", "topic")
    channel.exchange_declare("others", "topic")
    channel.exchange_declare("direct", "direct")
    channel.queue_declare("q")

    def new_channel() -> BlockingChannel:
        confirming = connection.channel()
        confirming.confirm_delivery()
        return confirming

    return new_channel


def refused(operation: Callable[[], object]) -> str:
    """The text of the 403 that the operation ends in."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        operation()
    assert caught.value.reply_code == 403
    return str(caught.value.reply_text)


def text_for(key: str, exchange: str, vhost: str, user: str) -> str:
    return full_text(403, f"access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' refused for user '{user}'")


def test_write_is_for_publishing(ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str) -> None:
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "^a", "^b")
    theirs().basic_publish("topics", "a.1", b"")
    for key in ("b.1", ""):
        text = refused(lambda key=key: theirs().basic_publish("topics", key, b""))
        assert text == text_for(key, "topics", own_vhost, own_user)


@pytest.mark.differs("RabbitMQ checks the routing key alone, so that CC and BCC lead past the permission")
@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_write_is_for_each_key_of_a_message(
    ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str, header: str
) -> None:
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "^a", "^b")
    properties = pika.BasicProperties(headers={header: ["a.2", "b.1"]})
    text = refused(lambda: theirs().basic_publish("topics", "a.1", b"", properties))
    assert text == text_for("b.1", "topics", own_vhost, own_user)


@pytest.mark.parametrize("operation", ["queue_bind", "queue_unbind", "exchange_bind", "exchange_unbind"])
def test_read_is_for_binding(ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str, operation: str) -> None:
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "^a", "^b")
    destination = "q" if operation.startswith("queue") else "others"
    getattr(theirs(), operation)(destination, "topics", "b.#")
    for key in ("a.1", "#"):
        text = refused(lambda key=key: getattr(theirs(), operation)(destination, "topics", key))
        assert text == text_for(key, "topics", own_vhost, own_user)


def test_the_queues_own_name_is_a_binding_key_too(ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str) -> None:
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "^a", "^b")
    channel = theirs()
    channel.queue_declare("last")
    text = refused(lambda: channel.queue_bind("", "topics", ""))
    assert text == text_for("last", "topics", own_vhost, own_user)


def test_the_key_is_checked_before_the_queue_is_looked_for(
    ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str
) -> None:
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "^a", "^b")
    text = refused(lambda: theirs().queue_bind("absent", "topics", "a"))
    assert text == text_for("a", "topics", own_vhost, own_user)


def test_other_exchanges_types_and_users_are_free(
    ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str, connect: Callable[..., pika.BlockingConnection]
) -> None:
    for exchange in ("topics", "direct"):
        ctl("set_topic_permissions", "-p", own_vhost, own_user, exchange, "^a", "^b")
    for exchange in ("others", "direct", ""):
        theirs().basic_publish(exchange, "x", b"")
    for exchange in ("others", "direct"):
        theirs().queue_bind("q", exchange, "x")
    guest = connect(vhost=own_vhost).channel()
    guest.confirm_delivery()
    guest.basic_publish("topics", "x", b"")


def test_only_the_exchange_published_to_is_checked(ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str) -> None:
    channel = theirs()
    channel.exchange_declare("alternate", "fanout", arguments={"alternate-exchange": "topics"})
    channel.exchange_bind("topics", "others", "#")
    channel.queue_bind("q", "topics", "#")
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "^a", "^b")
    for exchange in ("alternate", "others"):
        theirs().basic_publish(exchange, "x", b"")
    assert theirs().queue_declare("q", passive=True).method.message_count == 2


def test_names_stand_in_the_patterns(ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str) -> None:
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "^{username}-{vhost}-{client_id}$", "")
    key = f"{own_user}-{own_vhost}-{{client_id}}"
    theirs().basic_publish("topics", key, b"")
    text = refused(lambda: theirs().basic_publish("topics", "{username}", b""))
    assert text == text_for("{username}", "topics", own_vhost, own_user)


def test_the_empty_pattern_allows_the_empty_key_only(
    ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str
) -> None:
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "", "")
    theirs().basic_publish("topics", "", b"")
    assert refused(lambda: theirs().basic_publish("topics", "a", b"")) == text_for(
        "a", "topics", own_vhost, own_user
    )


def test_an_open_connection_sees_changes(ctl: Ctl, theirs: Theirs, own_vhost: str, own_user: str) -> None:
    theirs().basic_publish("topics", "x", b"")
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "^a", "^a")
    text = refused(lambda: theirs().basic_publish("topics", "x", b""))
    assert text == text_for("x", "topics", own_vhost, own_user)
    ctl("set_topic_permissions", "-p", own_vhost, own_user, "topics", "^x", "^a")
    theirs().basic_publish("topics", "x", b"")
    ctl("clear_topic_permissions", "-p", own_vhost, own_user, "topics")
    theirs().basic_publish("topics", "y", b"")
