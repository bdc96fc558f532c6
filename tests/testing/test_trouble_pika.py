"""Each kind of trouble as pika meets it."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rabbitpy_broker.testing import Broker
from rabbitpy_broker.testing.disks import KeptDisk
from support import eventually

OpenChannel = Callable[..., BlockingChannel]
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def ready(broker: Broker, queue: str = "q") -> int:
    return {one.name: one.ready for one in broker.queues()}[queue]


def test_a_connection_is_dropped_at_a_publish_that_is_lost(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("q")
    tested.trouble.drop("basic.publish", nth=3)
    channel.basic_publish("", "q", b"1")
    channel.basic_publish("", "q", b"2")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.basic_publish("", "q", b"3")
    assert ready(tested) == 2


def test_a_connection_is_dropped_after_a_publish_that_has_arrived(tested: Broker, open_channel: OpenChannel):
    """The publisher cannot know that it was taken."""
    channel = open_channel(confirms=True)
    channel.queue_declare("q")
    tested.trouble.drop("basic.publish", lost=False)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.basic_publish("", "q", b"1")
    tested.assert_published("", "q", body=b"1")
    assert ready(tested) == 1


def test_a_connection_is_dropped_at_the_brokers_confirm(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("q")
    tested.trouble.drop("basic.ack", by="broker")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.basic_publish("", "q", b"1")
    assert ready(tested) == 1


def test_all_connections_are_dropped_or_those_of_one_name(tested: Broker, open_channel: OpenChannel):
    one = open_channel(client_properties={"connection_name": "one"})
    other = open_channel(client_properties={"connection_name": "other"})
    tested.trouble.drop(of="one")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        one.queue_declare("q")
    other.queue_declare("q")
    tested.trouble.drop()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        other.queue_declare("q")


def test_no_such_method_is_an_error(tested: Broker):
    with pytest.raises(ValueError, match=r"no method 'basic\.publsh'"):
        tested.trouble.drop("basic.publsh")


def test_a_half_open_connection_hears_nothing(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True, blocked_connection_timeout=None)
    channel.queue_declare("q")
    trouble = tested.trouble.half_open()
    heard: list[object] = []
    channel.connection.call_later(0.1, lambda: heard.append("timer"))
    channel.connection.process_data_events(0.2)
    assert heard == ["timer"]
    assert channel.is_open
    trouble.end()
    channel.queue_declare("heard")
    assert [queue.name for queue in tested.queues()] == ["heard", "q"]


def test_what_is_written_to_a_half_open_connection_arrives_when_the_network_is_back(tested: Broker, open_channel: OpenChannel):
    consumer = open_channel(client_properties={"connection_name": "consumer"})
    consumer.queue_declare("q")
    got: list[bytes] = []
    consumer.basic_consume("q", lambda _channel, _method, _properties, body: got.append(body), auto_ack=True)
    trouble = tested.trouble.half_open(of="consumer")
    consumer.basic_publish("", "q", b"its own")
    other = open_channel(confirms=True)
    for number in range(3):
        other.basic_publish("", "q", b"%d" % number)
    consumer.connection.process_data_events(0.05)
    assert got == []
    trouble.end()
    eventually(lambda: consumer.connection.process_data_events(0.01) or len(got) == 4)
    assert got == [b"0", b"1", b"2", b"its own"]


def test_bytes_that_take_their_time(tested: Broker, open_channel: OpenChannel):
    channel = open_channel()
    with tested.trouble.delay(0.1):
        began = time.monotonic()
        channel.queue_declare("slow")
        assert time.monotonic() - began >= 0.19  # there and back; a loop counts in milliseconds
        for number in range(5):
            channel.basic_publish("", "slow", b"%d" % number)
        assert channel.basic_get("slow", auto_ack=True)[2] == b"0"
    assert [channel.basic_get("slow", auto_ack=True)[2] for _ in range(4)] == [b"1", b"2", b"3", b"4"]


def test_a_frame_breaks_off_in_its_middle(tested: Broker, open_channel: OpenChannel):
    channel = open_channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x" * 1_000)
    tested.assert_published("", "q")
    tested.trouble.cut(after_bytes=500)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.basic_get("q")
    eventually(lambda: ready(tested) == 1)
    assert open_channel().basic_get("q", auto_ack=True)[2] == b"x" * 1_000


def test_a_cut_sends_the_bytes_before_it(tested: Broker):
    tested.trouble.cut(after_bytes=10)
    with socket.create_connection((tested.host, tested.port), timeout=5) as raw:
        raw.sendall(b"AMQP\x00\x00\x09\x01")
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := raw.recv(100):
                got += more
    assert len(got) == 10
    assert got[0] == 1  # of connection.start


def test_logins_are_refused(tested: Broker, open_channel: OpenChannel):
    tested.trouble.refuse_logins(2)
    for _ in range(2):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
            open_channel()
    open_channel()


def test_publishes_are_nacked(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"before", PERSISTENT)
    tested.trouble.nack_publishes(2)
    for _ in range(2):
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"nacked", PERSISTENT)
    channel.basic_publish("", "q", b"after", PERSISTENT)
    assert ready(tested) == 2
    assert [queue.name for queue in tested.queues()] == ["q"]


def test_a_large_publish_to_an_exchange_is_nacked(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.topic", "a.#")
    tested.trouble.nack_publishes(1)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("amq.topic", "a.b", b"x" * 500_000)
    channel.basic_publish("amq.topic", "a.b", b"x" * 500_000)
    assert ready(tested) == 1


def test_publishes_are_returned(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.direct", "key")
    tested.trouble.return_publishes(1)
    with pytest.raises(pika.exceptions.UnroutableError) as returned:
        channel.basic_publish("amq.direct", "key", b"x", mandatory=True)
    message = returned.value.messages[0]
    assert (message.method.exchange, message.method.routing_key, message.body) == ("amq.direct", "key", b"x")
    assert message.method.reply_code == 312
    channel.basic_publish("amq.direct", "key", b"x", mandatory=True)
    assert ready(tested) == 1


@pytest.mark.parametrize("name", ["block", "fill_disk"])
def test_publishers_are_blocked_by_an_alarm(tested: Broker, open_channel: OpenChannel, name: str):
    channel = open_channel(blocked_connection_timeout=None)
    channel.queue_declare("q")
    told: list[str] = []
    channel.connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    channel.connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    with getattr(tested.trouble, name)():
        channel.basic_publish("", "q", b"x")
        eventually(lambda: channel.connection.process_data_events(0.01) or told)
        assert told == ["low on memory" if name == "block" else "low on disk"]
        assert ready(tested) == 0
        assert "is blocked" in tested.report()
    eventually(lambda: channel.connection.process_data_events(0.01) or len(told) == 2)
    tested.assert_published("", "q")
    assert ready(tested) == 1


def test_what_needs_space_fails_on_a_full_disk(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True, blocked_connection_timeout=0.2)
    channel.queue_declare("q", durable=True)
    tested.trouble.fill_disk()
    with pytest.raises((pika.exceptions.ConnectionBlockedTimeout, pika.exceptions.AMQPConnectionError)):
        channel.basic_publish("", "q", b"x", PERSISTENT)


def test_a_consumer_is_cancelled(tested: Broker, open_channel: OpenChannel):
    channel = open_channel()
    channel.queue_declare("q")
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda method: cancelled.append(method.method.consumer_tag))
    channel.basic_consume("q", lambda *_: None, consumer_tag="mine")
    assert tested.trouble.cancel_consumers("q") == 1
    eventually(lambda: channel.connection.process_data_events(0.01) or cancelled)
    assert cancelled == ["mine"]
    assert tested.queues()[0].consumers == []


def test_an_acked_message_comes_again(tested: Broker, open_channel: OpenChannel):
    channel = open_channel()
    channel.queue_declare("q")
    tested.trouble.redeliver(1, queue="q")
    channel.basic_publish("", "q", b"x")
    seen: list[tuple[bytes, bool]] = []

    def work(_channel, method, _properties, body):
        seen.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume("q", work)
    eventually(lambda: channel.connection.process_data_events(0.01) or len(seen) == 2)
    assert seen == [(b"x", False), (b"x", True)]
    tested.assert_acked("q", body=b"x")
    tested.assert_drained("q")


@pytest.fixture(params=["memory", "directory"])
def somewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A broker in memory, and one on a directory."""
    with Broker(tmp_path / "data" if request.param == "directory" else None) as broker:
        yield broker


def channel_of(broker: Broker) -> BlockingChannel:
    channel = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()
    channel.confirm_delivery()
    return channel


@pytest.mark.parametrize("power_cut", [True, False])
def test_what_was_confirmed_outlives_any_number_of_kills(somewhere: Broker, power_cut: bool):
    channel_of(somewhere).queue_declare("q", durable=True)
    for number in range(3):
        channel = channel_of(somewhere)
        channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        channel.basic_publish("", "q", b"large" * 50_000, PERSISTENT)
        method, _, body = channel.basic_get("q")
        channel.basic_ack(method.delivery_tag)
        somewhere.assert_acked("q", body=body)
        somewhere.clock.advance(2)  # acks are written about once a second
        somewhere.restart() if number == 1 else somewhere.kill(power_cut=power_cut)
        somewhere.start_again()
        assert number + 1 <= ready(somewhere) <= 2 * (number + 1)
    assert channel_of(somewhere).basic_get("q", auto_ack=True)[2]


def test_a_power_cut_keeps_what_was_confirmed_and_no_more(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("transient")
    for body in (b"small", b"large" * 10_000):
        channel.basic_publish("", "durable", body, PERSISTENT)
    channel.basic_publish("", "durable", b"not persistent", pika.BasicProperties(delivery_mode=1))
    channel.basic_publish("", "transient", b"x", PERSISTENT)
    port = tested.port
    tested.kill()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.queue_declare("durable", passive=True)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        open_channel()
    tested.start_again()
    assert tested.port == port
    channel = open_channel()
    assert [queue.name for queue in tested.queues()] == ["durable"]
    bodies = [channel.basic_get("durable", auto_ack=True)[2] for _ in range(2)]
    assert bodies == [b"small", b"large" * 10_000]
    assert channel.basic_get("durable")[2] is None


def test_an_ack_that_was_not_synced_is_undone_by_a_power_cut(tested: Broker, open_channel: OpenChannel):
    """Whatever the cut takes, each message is there once or more."""
    channel = open_channel(confirms=True)
    channel.queue_declare("q", durable=True)
    for number in range(10):
        channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
    for _ in range(3):
        method, _, _ = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag, multiple=True)
    tested.assert_acked("q", count=3)
    tested.kill()
    tested.start_again()
    assert 7 <= ready(tested) <= 10
    channel = open_channel(confirms=True)
    channel.basic_publish("", "q", b"more", PERSISTENT)
    tested.restart()
    assert 8 <= ready(tested) <= 11


def test_a_restart_keeps_what_is_durable(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("transient")
    channel.basic_publish("", "durable", b"x", PERSISTENT)
    tested.restart()
    with pytest.raises(pika.exceptions.AMQPConnectionError, match="CONNECTION_FORCED"):
        channel.queue_declare("durable", passive=True)
    assert [queue.name for queue in tested.queues()] == ["durable"]
    assert open_channel().basic_get("durable", auto_ack=True)[2] == b"x"


def test_a_kill_in_a_directory_leaves_its_files(tmp_path):
    with Broker(tmp_path) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"x", PERSISTENT)
        broker.kill()
        broker.start_again()
        assert ready(broker) == 1
        broker.trouble.fill_disk()
        assert "alarms: disk" in broker.report()
        broker.trouble.end_all()
        assert "alarms" not in broker.report()


def test_trouble_that_has_ended_is_over(tested: Broker, open_channel: OpenChannel):
    tested.trouble.nack_publishes()
    tested.trouble.refuse_logins()
    tested.trouble.delay(10)
    tested.trouble.redeliver()
    tested.trouble.block()
    tested.trouble.end_all()
    channel = open_channel(confirms=True)
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    method, _, _ = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag)
    tested.assert_drained("q")


def test_a_power_cut_takes_from_a_directory_what_was_not_synced(tmp_path: Path):
    folder = str(tmp_path / "store")
    disk = KeptDisk()
    disk.begin(folder)
    disk.make_dir(folder)
    for name in ("kept", "grown", "renamed", "removed"):
        file = disk.open(f"{folder}/{name}", create=True)
        file.write_at(0, b"synced")
        file.sync()
        file.close()
    disk.sync_dir(folder)

    grown = disk.open(f"{folder}/grown")
    grown.write_at(3, b"and not")
    disk.open(f"{folder}/new", create=True).write_synced(0, [b"a name ", b"that is lost"])
    disk.rename(f"{folder}/renamed", f"{folder}/otherwise")
    disk.remove(f"{folder}/removed")
    long = disk.open(f"{folder}/kept")
    long.allocate(1_000)
    long.sync()
    assert sorted(path.name for path in Path(folder).iterdir()) == ["grown", "kept", "new", "otherwise"]

    disk.power_cut()
    left = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    expected = dict.fromkeys(("grown", "renamed", "removed"), b"synced")
    assert left == {**expected, "kept": b"synced".ljust(1_000, b"\0")}
    disk.begin(folder)
    disk.remove(f"{folder}/removed")
    disk.sync_dir(folder)
    disk.power_cut()
    assert sorted(path.name for path in Path(folder).iterdir()) == ["grown", "kept", "renamed"]
    assert disk.size(f"{folder}/kept") == 1_000
