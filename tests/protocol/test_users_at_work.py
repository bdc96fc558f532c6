"""What a change to a user or to limits does to connections that are open, and the counts that limits go by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue

from rabbitpy_broker.users import TopicPermission, User, Users
from sans_io import METHOD, Peer, SansIOBroker, content, method, publish


@pytest.fixture
def broker() -> Iterator[SansIOBroker]:
    broker = SansIOBroker()
    yield broker
    broker.close()


@pytest.fixture
def users(broker: SansIOBroker) -> Users:
    return broker.node.users


@pytest.fixture
def guest(users: Users) -> User:
    guest = users.get("guest")
    assert guest is not None
    return guest


@pytest.fixture
def peer(broker: SansIOBroker) -> Peer:
    peer = broker.connect()
    peer.open_channel()
    peer.call(1, Exchange.Declare(exchange="topics", exchange_type="topic"))
    return peer


def refusal(peer: Peer, data: bytes) -> str:
    """The text of the close that the data is answered with, "" for none; the channel is opened again."""
    frames = [one.command() for one in peer.feed(data) if one.type == METHOD]
    closes = [command for command in frames if isinstance(command, Channel.Close)]
    if not closes:
        return ""
    peer.feed(method(1, Channel.CloseOk()))
    peer.open_channel()
    return closes[0].reply_text


def at_once(exchange: str, key: str) -> bytes:
    return publish(1, exchange, key)


def in_pieces(exchange: str, key: str) -> bytes:
    """A publish with two body frames, which goes the long way."""
    return method(1, Basic.Publish(exchange=exchange, routing_key=key)) + content(1, b"x" * 100, frame_max=64)


@pytest.mark.parametrize("way", [at_once, in_pieces])
def test_a_route_that_is_known_is_asked_for_anew_after_a_change(
    users: Users, peer: Peer, way: Callable[[str, str], bytes]
) -> None:
    text = "ACCESS_REFUSED - access to topic 'x' in exchange 'topics' in vhost '/' refused for user 'guest'"
    for _ in range(2):
        assert refusal(peer, way("topics", "x")) == ""
    users.set_topic_permissions("guest", "/", "topics", "^a", "^b")
    for _ in range(2):
        assert refusal(peer, way("topics", "x")) == text
    users.set_topic_permissions("guest", "/", "topics", "^x", "^b")
    assert refusal(peer, way("topics", "x")) == ""
    users.clear_topic_permissions("guest", "/")
    assert refusal(peer, way("topics", "y")) == ""


def test_a_topic_permission_is_asked_once_for_an_address(users: Users, guest: User, peer: Peer) -> None:
    users.set_topic_permissions("guest", "/", "topics", "^x", "")
    assert refusal(peer, publish(1, "topics", "x", b"") * 3) == ""
    # Behind the back of the user's version: who asked again would be refused.
    guest.topic_permissions["/"]["topics"] = TopicPermission("^a", "", "guest", "/")
    assert refusal(peer, publish(1, "topics", "x", b"")) == ""


def test_the_default_exchange_and_internal_ones_are_as_before(users: Users, peer: Peer) -> None:
    users.set_topic_permissions("guest", "/", "", "^$", "^$")
    users.set_topic_permissions("guest", "/", "amq.rabbitmq.trace", "^$", "^$")
    assert refusal(peer, publish(1, "", "x", b"")) == ""
    text = "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'"
    assert refusal(peer, publish(1, "amq.rabbitmq.trace", "x", b"")) == text


def counts(broker: SansIOBroker, guest: User) -> tuple[int, int, int]:
    return broker.vhost.connections, guest.connections, guest.channels


def test_what_is_open_is_counted_and_every_end_is_seen(broker: SansIOBroker, guest: User) -> None:
    peers = [broker.connect() for _ in range(4)]
    assert counts(broker, guest) == (4, 4, 0)
    for peer in peers:
        for number in (1, 2, 3):
            peer.open_channel(number)
    assert counts(broker, guest) == (4, 4, 12)
    peers[0].call(1, Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    assert counts(broker, guest) == (4, 4, 11)
    peers[1].call(1, Queue.Declare(queue="absent", passive=True))
    peers[1].feed(method(1, Channel.CloseOk()))
    assert counts(broker, guest) == (4, 4, 10)
    peers[1].call(2, Queue.Declare(queue="absent", passive=True))  # and no close-ok
    peers[0].call(0, Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    assert counts(broker, guest) == (3, 3, 8)
    peers[1].lose()
    assert counts(broker, guest) == (2, 2, 6)
    peers[2].feed(method(1, Basic.Publish(immediate=True)) + b"\x09" * 8)  # no frame type
    assert counts(broker, guest) == (1, 1, 3)
    peers[2].lose()
    peers[3].lose()
    assert counts(broker, guest) == (0, 0, 0)


def test_who_was_refused_or_never_logged_in_is_not_counted(broker: SansIOBroker, users: Users, guest: User) -> None:
    users.set_limits("guest", {"max-connections": 1, "max-channels": 1})
    peer = broker.connect()
    refused = broker.peer()
    with pytest.raises(AssertionError):
        refused.shake_hands()
    peer.open_channel()
    assert counts(broker, guest) == (1, 1, 1)
    refused.lose()
    broker.peer().lose()
    assert counts(broker, guest) == (1, 1, 1)
    answer = peer.call(2, Channel.Open())
    assert isinstance(answer, Connection.Close)
    assert counts(broker, guest) == (0, 0, 0)


def test_a_deleted_user_is_counted_to_its_end_and_a_new_one_from_nothing(
    broker: SansIOBroker, users: Users, guest: User, peer: Peer
) -> None:
    users.delete_user("guest")
    new = users.put_user("guest", "guest")
    users.set_permissions("guest", "/", ".*", ".*", ".*")
    other = broker.connect()
    other.open_channel()
    assert (guest.connections, guest.channels) == (1, 1)
    assert (new.connections, new.channels) == (1, 1)
    peer.lose()
    assert (guest.connections, guest.channels) == (0, 0)
    assert (new.connections, new.channels) == (1, 1)


@pytest.mark.parametrize("configured, given, may_have", [(0, None, 3), (2, None, 2), (2, 1, 1), (1, -1, 3), (0, 0, 0)])
def test_the_limit_of_the_vhost_comes_before_the_configured_one(
    broker: SansIOBroker, peer: Peer, configured: int, given: int | None, may_have: int
) -> None:
    broker.vhost.queue_max = configured
    if given is not None:
        broker.vhost.limits.set({"max-queues": given})
    for number in range(3):
        text = f"PRECONDITION_FAILED - cannot declare queue 'q{number}': queue limit in vhost '/' ({may_have}) is reached"
        refused = refusal(peer, method(1, Queue.Declare(queue=f"q{number}")))
        assert refused == ("" if number < may_have else text)
