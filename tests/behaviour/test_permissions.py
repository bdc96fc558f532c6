"""Configure, write and read: which right each operation needs on which exchange or queue.

The user of these tests has exactly the rights that a name begins with: "cw-..." may be configured and written to, "n-..."
nothing at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import full_text, unique
from wire_client import WireClient

Maker = Callable[..., str]


@pytest.fixture(scope="module")
def limited(make_user: Maker) -> str:
    return make_user(
        unique("limited"),
        "secret",
        configure="^[a-z]*c[a-z]*-",
        write="^[a-z]*w[a-z]*-",
        read="^[a-z]*r[a-z]*-",
    )


@pytest.fixture
def theirs(limited: str, raw: Callable[..., WireClient]) -> WireClient:
    """A client of the limited user."""
    client = raw().open(user=limited, password="secret")
    client.open_channel(1)
    return client


def make_queue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)


def make_exchange(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout")


def refused(kind: str, name: str, user: str) -> str:
    return f"access to {kind} '{name}' in vhost '/' refused for user '{user}'"


def outcome(client: WireClient) -> tuple[str, amqp.Channel.Close | None]:
    """What the next answer is: "" or the text of a close. A method without an answer is followed by one that has one."""
    command = client.read_command()[1]
    if not isinstance(command, amqp.Channel.Close):
        return "", None
    client.method(1, amqp.Channel.CloseOk())
    client.open_channel(1)
    return command.reply_text, command


QUEUE_OPERATIONS = [
    ("declare", "c", lambda name: amqp.Queue.Declare(queue=name), (50, 10)),
    ("delete", "c", lambda name: amqp.Queue.Delete(queue=name), (50, 40)),
    ("purge", "r", lambda name: amqp.Queue.Purge(queue=name), (50, 30)),
    ("consume", "r", lambda name: amqp.Basic.Consume(queue=name), (60, 20)),
    ("get", "r", lambda name: amqp.Basic.Get(queue=name), (60, 70)),
]
EXCHANGE_OPERATIONS = [
    ("declare", "c", lambda name: amqp.Exchange.Declare(exchange=name, exchange_type="fanout"), (40, 10)),
    ("delete", "c", lambda name: amqp.Exchange.Delete(exchange=name), (40, 20)),
]
OPERATIONS = [
    *(("queue", make_queue, *operation) for operation in QUEUE_OPERATIONS),
    *(("exchange", make_exchange, *operation) for operation in EXCHANGE_OPERATIONS),
]


@pytest.mark.parametrize(
    "kind, prepare, operation, right, method, ids", OPERATIONS, ids=[f"{o[0]}.{o[2]}" for o in OPERATIONS]
)
def test_operation_needs_its_right_and_no_other(
    theirs: WireClient,
    limited: str,
    channel: BlockingChannel,
    new_name: Maker,
    kind: str,
    prepare: Callable[[BlockingChannel, str], None],
    operation: str,
    right: str,
    method: Callable[[str], amqp.Frame],
    ids: tuple[int, int],
) -> None:
    for rights in ("n", "c", "w", "r", "cw", "cr", "wr", "cwr"):
        name = new_name(rights)
        prepare(channel, name)
        theirs.method(1, method(name))
        text, close = outcome(theirs)
        if right in rights:
            assert text == ""
        else:
            assert close is not None, f"{operation} of {name} was allowed"
            assert (text, close.class_id, close.method_id) == (
                full_text(403, refused(kind, name, limited)),
                *ids,
            )


def test_publish_needs_write_on_the_exchange(
    theirs: WireClient, limited: str, channel: BlockingChannel, new_name: Maker
) -> None:
    for rights in ("n", "c", "r", "cr"):
        name = new_name(rights)
        make_exchange(channel, name)
        theirs.publish(1, name, "key")
        theirs.expect_channel_close(1, 403, refused("exchange", name, limited), 60, 40)
        theirs.open_channel(1)
    name = new_name("w")
    make_exchange(channel, name)
    theirs.publish(1, name, "key")
    theirs.expect_silence(1)


def test_publish_to_the_default_exchange_is_checked_as_amq_default(theirs: WireClient, limited: str) -> None:
    theirs.publish(1, "", "key")
    theirs.expect_channel_close(1, 403, refused("exchange", "amq.default", limited), 60, 40)


@pytest.mark.parametrize(
    "method, ids", [(amqp.Queue.Bind, (50, 20)), (amqp.Queue.Unbind, (50, 50))], ids=["bind", "unbind"]
)
def test_binding_needs_write_on_the_queue_and_read_on_the_exchange(
    theirs: WireClient,
    limited: str,
    channel: BlockingChannel,
    new_name: Maker,
    method: type[amqp.Frame],
    ids: tuple[int, int],
) -> None:
    for queue_rights, exchange_rights in itertools.product(("cr", "w"), ("cw", "r")):
        queue, exchange = new_name(queue_rights), new_name(exchange_rights)
        make_queue(channel, queue)
        make_exchange(channel, exchange)
        theirs.method(1, method(queue=queue, exchange=exchange, routing_key="key"))
        if queue_rights != "w":
            theirs.expect_channel_close(1, 403, refused("queue", queue, limited), *ids)
            theirs.open_channel(1)
        elif exchange_rights != "r":
            theirs.expect_channel_close(1, 403, refused("exchange", exchange, limited), *ids)
            theirs.open_channel(1)
        else:
            assert outcome(theirs)[0] == ""


@pytest.mark.parametrize(
    "method, ids", [(amqp.Exchange.Bind, (40, 30)), (amqp.Exchange.Unbind, (40, 40))], ids=["bind", "unbind"]
)
def test_binding_exchanges_needs_write_on_the_destination_and_read_on_the_source(
    theirs: WireClient,
    limited: str,
    channel: BlockingChannel,
    new_name: Maker,
    method: type[amqp.Frame],
    ids: tuple[int, int],
) -> None:
    for destination_rights, source_rights in itertools.product(("cr", "w"), ("cw", "r")):
        destination, source = new_name(destination_rights), new_name(source_rights)
        make_exchange(channel, destination)
        make_exchange(channel, source)
        theirs.method(1, method(destination=destination, source=source, routing_key="key"))
        if destination_rights != "w":
            theirs.expect_channel_close(1, 403, refused("exchange", destination, limited), *ids)
            theirs.open_channel(1)
        elif source_rights != "r":
            theirs.expect_channel_close(1, 403, refused("exchange", source, limited), *ids)
            theirs.open_channel(1)
        else:
            assert outcome(theirs)[0] == ""


def test_passive_declare_needs_no_right(
    theirs: WireClient, channel: BlockingChannel, new_name: Maker
) -> None:
    queue, exchange = new_name("n"), new_name("n")
    make_queue(channel, queue)
    make_exchange(channel, exchange)
    theirs.call(1, amqp.Queue.Declare(queue=queue, passive=True), amqp.Queue.DeclareOk)
    theirs.call(1, amqp.Exchange.Declare(exchange=exchange, passive=True), amqp.Exchange.DeclareOk)


def test_alternate_exchange_needs_write_on_it_and_read_on_the_exchange(
    theirs: WireClient, limited: str, new_name: Maker
) -> None:
    def declare(name: str, alternate: str) -> amqp.Frame:
        return amqp.Exchange.Declare(
            exchange=name, exchange_type="fanout", arguments={"alternate-exchange": alternate}
        )

    unreadable, readable, unwritable = new_name("cw"), new_name("cr"), new_name("cr")
    theirs.method(1, declare(unreadable, "w-alternate"))
    theirs.expect_channel_close(1, 403, refused("exchange", unreadable, limited), 40, 10)
    theirs.open_channel(1)
    theirs.method(1, declare(readable, unwritable))
    theirs.expect_channel_close(1, 403, refused("exchange", unwritable, limited), 40, 10)
    theirs.open_channel(1)
    theirs.call(1, declare(readable, "w-alternate"), amqp.Exchange.DeclareOk)


def test_dead_letter_exchange_needs_write_on_it_and_read_on_the_queue(
    theirs: WireClient, limited: str, new_name: Maker
) -> None:
    def declare(name: str, exchange: str) -> amqp.Frame:
        return amqp.Queue.Declare(queue=name, arguments={"x-dead-letter-exchange": exchange})

    unreadable, readable, unwritable = new_name("cw"), new_name("cr"), new_name("cr")
    theirs.method(1, declare(unreadable, "w-dead"))
    theirs.expect_channel_close(1, 403, refused("queue", unreadable, limited), 50, 10)
    theirs.open_channel(1)
    theirs.method(1, declare(readable, unwritable))
    theirs.expect_channel_close(1, 403, refused("exchange", unwritable, limited), 50, 10)
    theirs.open_channel(1)
    theirs.call(1, declare(readable, "w-dead"), amqp.Queue.DeclareOk)


def test_server_given_name_needs_the_right_too(theirs: WireClient, limited: str) -> None:
    theirs.method(1, amqp.Queue.Declare(queue="", exclusive=True))
    close = theirs.expect(1, amqp.Channel.Close)
    assert close.reply_code == 403
    assert close.reply_text.startswith("ACCESS_REFUSED - access to queue 'amq.gen-")


def test_refused_queue_is_not_made(theirs: WireClient, wire: WireClient) -> None:
    name = unique("n")
    theirs.method(1, amqp.Queue.Declare(queue=name))
    theirs.expect(1, amqp.Channel.Close)
    wire.method(1, amqp.Queue.Declare(queue=name, passive=True))
    wire.expect_channel_close(1, 404, f"no queue '{name}' in vhost '/'", 50, 10)


def test_user_may_not_write_in_the_name_of_another(
    theirs: WireClient, limited: str, channel: BlockingChannel, new_name: Maker
) -> None:
    name = new_name("w")
    make_exchange(channel, name)
    theirs.method(1, amqp.Basic.Publish(exchange=name, routing_key="key"))
    theirs.header(1, 0, properties=b"\x00\x10\x05guest")
    text = f"user_id property set to 'guest' but authenticated user was '{limited}'"
    theirs.expect_channel_close(1, 406, text, 60, 40)


def test_empty_patterns_allow_nothing(make_user: Maker, raw: Callable[..., WireClient]) -> None:
    name = make_user(unique("outsider"), "secret", configure="", write="", read="")
    client = raw().open(user=name, password="secret")
    client.open_channel(1)
    client.method(1, amqp.Queue.Declare(queue="anything"))
    client.expect_channel_close(1, 403, refused("queue", "anything", name), 50, 10)


def test_user_without_permission_on_the_vhost_is_kept_out(
    make_user: Maker, connect: Callable[..., pika.BlockingConnection]
) -> None:
    name = make_user(unique("stranger"), "secret", vhost=None)
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        connect(user=name, password="secret")
    assert full_text(530, f"access to vhost '/' refused for user '{name}'") in str(caught.value)
