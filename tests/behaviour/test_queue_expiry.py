"""x-expires: a queue that nobody uses is deleted.

Asking whether the queue is there by a declaration is a use of it, so the tests ask by a mandatory publish, which is none.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import CAPABLE, Inbox, confirming, fill, ready, take_all
from broker_process import BrokerProcess
from support import closes_channel, eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def exists(channel: BlockingChannel, queue: str) -> bool:
    try:
        channel.basic_publish("", queue, b"probe", mandatory=True)
    except pika.exceptions.UnroutableError:
        return False
    return True


def wait_until_gone(channel: BlockingChannel, queue: str, timeout: float = 10.0) -> None:
    eventually(lambda: not exists(channel, queue), timeout)


def let_pass(channel: BlockingChannel, queue: Maker, milliseconds: int) -> None:
    """Returns when a queue that expires after so many milliseconds has expired."""
    wait_until_gone(channel, queue(arguments={"x-expires": milliseconds}))


def test_unused_queue_is_deleted_after_its_time_and_not_before(channel: BlockingChannel, queue: Maker) -> None:
    start = time.monotonic()
    name = queue(arguments={"x-expires": 300})
    wait_until_gone(channel, name)
    assert time.monotonic() - start >= 0.29
    with closes_channel(404, f"no queue '{name}' in vhost '/'"):
        channel.queue_declare(name, passive=True)


def test_queue_without_it_stays(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    let_pass(channel, queue, 300)
    assert exists(channel, name)


def test_messages_in_the_queue_do_not_keep_it(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-expires": 300})
    fill(channel, name, 10)
    wait_until_gone(channel, name)


def test_publishing_is_no_use(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-expires": 500})
    start = time.monotonic()
    while exists(channel, name):
        assert time.monotonic() - start < 10


def test_bindings_go_with_the_queue(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    name, source = queue(arguments={"x-expires": 200}), exchange("fanout")
    channel.queue_bind(name, source)
    wait_until_gone(channel, name)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(source, "", b"x", mandatory=True)
    channel.queue_declare(name)
    channel.basic_publish(source, "", b"x")
    assert ready(channel, name) == 0


def test_name_is_free_again(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-expires": 200})
    fill(channel, name, 3)
    wait_until_gone(channel, name)
    assert channel.queue_declare(name).method.message_count == 0


USES: dict[str, Callable[[BlockingChannel, str, dict[str, int]], object]] = {
    "declare": lambda channel, name, arguments: channel.queue_declare(name, arguments=arguments),
    "passive declare": lambda channel, name, _: channel.queue_declare(name, passive=True),
    "get": lambda channel, name, _: channel.basic_get(name, auto_ack=True),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_use_renews_the_time(
    connect: Connect, channel: BlockingChannel, queue: Maker, use: Callable[..., object]
) -> None:
    """Used at each look for twice its time, the queue is there; left alone it goes, after its whole time."""
    arguments = {"x-expires": 1000}
    name, probe = queue(arguments=arguments), queue(arguments={"x-expires": 2000})
    used_at = time.monotonic()

    def used_until_the_probe_has_gone() -> bool:
        nonlocal used_at
        used_at = time.monotonic()
        use(channel, name, arguments)
        return not exists(channel, probe)

    eventually(used_until_the_probe_has_gone, interval=0.05)
    wait_until_gone(channel, name)
    assert time.monotonic() - used_at >= 0.99


NO_USES: dict[str, Callable[[BlockingChannel, str], object]] = {
    "bind": lambda channel, name: channel.queue_bind(name, "amq.direct", name),
    "purge": lambda channel, name: channel.queue_purge(name),
}


@pytest.mark.parametrize("act", NO_USES.values(), ids=NO_USES)
def test_other_methods_do_not(channel: BlockingChannel, queue: Maker, act: Callable[..., object]) -> None:
    name = queue(arguments={"x-expires": 600})

    def gone() -> bool:
        try:
            act(channel, name)
        except pika.exceptions.ChannelClosedByBroker:
            return True
        return False

    eventually(gone, interval=0.05)


def test_consumer_keeps_the_queue(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    consuming = connect().channel()
    name = queue(arguments={"x-expires": 500})
    inbox = Inbox(consuming, name)
    let_pass(channel, queue, 1200)
    channel.basic_publish("", name, b"x", mandatory=True)
    assert inbox.wait_for(1) == [b"x"]


@pytest.mark.parametrize("end", ["cancel", "close the channel", "close the connection"])
def test_time_counts_from_the_last_consumers_end(
    channel: BlockingChannel, connect: Connect, queue: Maker, end: str
) -> None:
    name = queue(arguments={"x-expires": 600})
    connection = connect()
    consuming = connection.channel()
    inboxes = [Inbox(consuming, name), Inbox(consuming, name)]
    let_pass(channel, queue, 700)
    ended_at = time.monotonic()
    if end == "cancel":
        for inbox in inboxes:
            consuming.basic_cancel(inbox.tag)
    elif end == "close the channel":
        consuming.close()
    else:
        connection.close()
    wait_until_gone(channel, name)
    assert time.monotonic() - ended_at >= 0.59


def test_unacked_messages_do_not_keep_the_queue(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    getting = connect().channel()
    name = queue(arguments={"x-expires": 1000})
    fill(channel, name, 1)
    tag = getting.basic_get(name)[0].delivery_tag
    wait_until_gone(channel, name)
    getting.basic_ack(tag)
    getting.basic_qos(prefetch_count=1)
    assert getting.is_open


def test_messages_are_not_dead_lettered_by_the_deletion(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(
        arguments={"x-expires": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    )
    fill(channel, name, 3)
    wait_until_gone(channel, name)
    assert take_all(channel, target) == []


def test_auto_delete_comes_first(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    name = queue(auto_delete=True, arguments={"x-expires": 600_000})
    consuming = connect().channel()
    consuming.basic_cancel(Inbox(consuming, name).tag)
    assert not exists(channel, name)


def test_auto_delete_queue_that_never_had_a_consumer_expires(channel: BlockingChannel, queue: Maker) -> None:
    wait_until_gone(channel, queue(auto_delete=True, arguments={"x-expires": 200}))


def test_exclusive_queue_expires(channel: BlockingChannel, queue: Maker) -> None:
    wait_until_gone(channel, queue(exclusive=True, arguments={"x-expires": 200}))


def test_deleted_and_declared_anew_it_has_its_whole_time(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-expires": 600})
    let_pass(channel, queue, 400)
    channel.queue_delete(name)
    declared_at = time.monotonic()
    channel.queue_declare(name, arguments={"x-expires": 600})
    wait_until_gone(channel, name)
    assert time.monotonic() - declared_at >= 0.59


def test_many_queues_expire(channel: BlockingChannel, queue: Maker) -> None:
    names = [queue(arguments={"x-expires": 200 + number}) for number in range(50)]
    for name in names:
        wait_until_gone(channel, name)


def test_consumer_that_waits_is_not_cancelled(raw: Callable[..., WireClient], channel: BlockingChannel, queue: Maker) -> None:
    client = raw().open(client_properties=CAPABLE)
    client.open_channel(1)
    name = queue(arguments={"x-expires": 500})
    client.call(1, amqp.Basic.Consume(queue=name, consumer_tag="t"), amqp.Basic.ConsumeOk)
    let_pass(channel, queue, 1000)
    client.expect_silence(1)


@pytest.mark.own
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_durable_queue_expires_after_a_restart(
    own_broker: Callable[..., BrokerProcess], connect: Connect, how: str
) -> None:
    """Nobody can use a queue of a broker that is down, so the time starts anew with the broker."""
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.queue_declare("q", durable=True, arguments={"x-expires": 5000})
    channel.queue_declare("control", durable=True)
    stopped_at = time.monotonic()
    if how == "crash":
        own.crash()
        own.start()
    else:
        own.restart()
    channel = confirming(connect(to=own))
    wait_until_gone(channel, "q", timeout=20.0)
    assert time.monotonic() - stopped_at >= 4.99
    assert exists(channel, "control")


@pytest.mark.own
def test_a_durable_queue_that_has_expired_does_not_come_back_after_a_kill(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    """Nobody asked for its deletion, so no answer waits for the commit: it has to come by itself."""
    process = own_broker()
    connection = pika.BlockingConnection(process.parameters())
    connection.channel().queue_declare("expires", durable=True, arguments={"x-expires": 1_000})
    data_dir = process.data_dir

    def is_deleted() -> bool:
        database = sqlite3.connect(data_dir / "definitions.sqlite")
        try:
            return not database.execute("SELECT name FROM queues WHERE name = 'expires'").fetchall()
        finally:
            database.close()

    assert not is_deleted()
    eventually(is_deleted)
    process.crash()
    process.start()
    again = pika.BlockingConnection(process.parameters())
    with closes_channel(404, "no queue 'expires' in vhost '/'"):
        again.channel().queue_declare("expires", passive=True)
    again.close()
