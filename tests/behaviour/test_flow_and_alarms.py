"""channel.flow, and what an alarm does: those who publish are blocked and told, everybody else goes on.

The memory alarm comes and goes with what the queues hold; the disk alarm is on from the start when the limit is larger
than any disk.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest

from behaviour.helpers import CAPABLE, confirming
from broker_process import BrokerProcess
from support import eventually
from wire_client import HEARTBEAT, WireClient

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., WireClient]

def ready(client: WireClient) -> int:
    """The ready messages of queue q."""
    declared = client.call(1, amqp.Queue.Declare(queue="q", passive=True), amqp.Queue.DeclareOk)
    return int(declared.message_count)


MIB = 1024 * 1024
NO_MEMORY = {"vm_memory_high_watermark": 1024 * 1024, "memory_monitor_interval": 50}
NO_DISK = {"disk_free_limit": 2**60, "memory_monitor_interval": 50}


def test_active_flow_is_answered(wire: WireClient) -> None:
    answer = wire.call(1, amqp.Channel.Flow(active=True), amqp.Channel.FlowOk)
    assert answer.active is True


def open_client(raw: Raw, own: BrokerProcess, heartbeat: int = 0) -> WireClient:
    client = raw(to=own, timeout=10).open(client_properties=CAPABLE, heartbeat=heartbeat)
    client.open_channel(1)
    return client


# --- an alarm that stays -------------------------------------------------------------------------------------------------


@pytest.mark.own
@pytest.mark.parametrize(
    "config, reason",
    [
        (NO_MEMORY, {"memory"}),
        (NO_DISK, {"disk"}),
        ({**NO_MEMORY, **NO_DISK}, {"memory", "disk"}),
    ],
    ids=["memory", "disk", "both"],
)
def test_who_publishes_is_told_why_it_is_blocked(
    own_broker: Own, raw: Raw, config: dict[str, int], reason: set[str]
) -> None:
    """The alarm is older than the connection."""
    own = own_broker(config=config)
    client = open_client(raw, own)
    client.publish(1, "", "nowhere", b"x")
    blocked = client.expect(0, amqp.Connection.Blocked)
    assert blocked.reason.startswith("low on ")
    assert set(blocked.reason.removeprefix("low on ").split(" & ")) == reason


@pytest.mark.own
def test_who_does_not_publish_is_not_blocked(own_broker: Own, raw: Raw) -> None:
    own = own_broker(config=NO_DISK)
    client = open_client(raw, own)
    for _ in range(3):
        client.call(1, amqp.Queue.Declare(queue="q"), amqp.Queue.DeclareOk)
        client.call(1, amqp.Basic.Get(queue="q"), amqp.Basic.GetEmpty)
        client.call(1, amqp.Queue.Delete(queue="q"), amqp.Queue.DeleteOk)
    client.expect_silence(1)


PUBLISH_TO_Q = amqp.Basic.Publish(exchange="", routing_key="q")


@pytest.mark.own
@pytest.mark.parametrize("sent", ["whole", "the header", "a piece of the body"])
def test_message_that_comes_during_an_alarm_is_not_taken(own_broker: Own, raw: Raw, sent: str) -> None:
    """The connection is stopped between header and body, or between two pieces of a body, and told at once."""
    own = own_broker(config=NO_DISK)
    client, other = open_client(raw, own), open_client(raw, own)
    other.call(1, amqp.Queue.Declare(queue="q"), amqp.Queue.DeclareOk)
    client.method(1, PUBLISH_TO_Q)
    client.header(1, 5)
    if sent == "whole":
        client.body(1, b"12345")
    elif sent == "a piece of the body":
        client.body(1, b"12")
    client.expect(0, amqp.Connection.Blocked)
    client.method(1, amqp.Basic.Qos())
    client.expect_nothing_more()
    assert ready(other) == 0
    own.ctl("set_disk_free_limit", "1")
    client.expect(0, amqp.Connection.Unblocked)
    if sent != "whole":
        # Nothing was lost of what came in between: qos is a fault in the middle of a content.
        client.expect_close(505, "expected content body, got non content body frame instead", 60, 40)
        assert ready(other) == 0
        return
    client.expect(1, amqp.Basic.QosOk)
    assert ready(other) == 1


@pytest.mark.own
def test_message_without_a_body_is_the_last_one_that_an_alarm_lets_in(own_broker: Own, raw: Raw) -> None:
    own = own_broker(config=NO_DISK)
    client, other = open_client(raw, own), open_client(raw, own)
    other.call(1, amqp.Queue.Declare(queue="q"), amqp.Queue.DeclareOk)
    client.publish(1, "", "q", b"")
    client.expect(0, amqp.Connection.Blocked)
    client.publish(1, "", "q", b"")
    client.expect_nothing_more()
    assert ready(other) == 1


@pytest.mark.own
def test_alarm_stops_a_message_whose_body_has_begun(own_broker: Own, raw: Raw) -> None:
    own = own_broker()
    client, other = open_client(raw, own), open_client(raw, own)
    other.call(1, amqp.Queue.Declare(queue="q"), amqp.Queue.DeclareOk)
    client.method(1, PUBLISH_TO_Q)
    client.header(1, 4)
    client.body(1, b"12")
    client.open_channel(2)  # so the broker has had all of that
    own.ctl("set_disk_free_limit", str(2**60))
    client.body(1, b"3")
    client.expect(0, amqp.Connection.Blocked)
    client.body(1, b"4")
    client.expect_nothing_more()
    assert ready(other) == 0
    own.ctl("set_disk_free_limit", "1")
    client.expect(0, amqp.Connection.Unblocked)
    client.expect_silence(1)
    other.method(1, amqp.Basic.Get(queue="q", no_ack=True))
    assert other.expect_content(1, amqp.Basic.GetOk).body == b"1234"


@pytest.mark.own
def test_method_of_a_publish_alone_does_not_block(own_broker: Own, raw: Raw) -> None:
    own = own_broker(config=NO_DISK)
    client = open_client(raw, own)
    client.method(1, PUBLISH_TO_Q)
    client.open_channel(2)
    client.header(1, 1)
    client.expect(0, amqp.Connection.Blocked)


@pytest.mark.own
def test_client_without_the_capability_is_blocked_in_silence(own_broker: Own, raw: Raw) -> None:
    own = own_broker(config=NO_DISK)
    client = raw(to=own).open()
    client.open_channel(1)
    client.publish(1, "", "nowhere", b"x")
    eventually(lambda: metric(own, "rabbitpy_connections_blocked") == 1)
    client.method(1, amqp.Basic.Qos())
    client.expect_nothing_more()


@pytest.mark.own
def test_blocked_connection_still_gets_deliveries(own_broker: Own, raw: Raw) -> None:
    own = own_broker()
    client, other = open_client(raw, own), open_client(raw, own)
    other.call(1, amqp.Queue.Declare(queue="q"), amqp.Queue.DeclareOk)
    other.publish(1, "", "q", b"body")
    other.method(1, amqp.Basic.Get(queue="q"))
    held = other.expect_content(1, amqp.Basic.GetOk).method.delivery_tag
    own.ctl("set_disk_free_limit", str(2**60))
    client.call(1, amqp.Basic.Consume(queue="q", no_ack=True), amqp.Basic.ConsumeOk)
    client.publish(1, "", "nowhere", b"x")
    client.expect(0, amqp.Connection.Blocked)
    other.method(1, amqp.Basic.Reject(held, requeue=True))
    assert client.expect_content(1, amqp.Basic.Deliver).body == b"body"


@pytest.mark.own
def test_blocked_connection_keeps_its_heartbeats(own_broker: Own, raw: Raw) -> None:
    """It is not read from, so its silence proves nothing; the broker must not drop it."""
    own = own_broker(config=NO_DISK)
    client = open_client(raw, own, heartbeat=1)
    client.publish(1, "", "nowhere", b"x")
    client.expect(0, amqp.Connection.Blocked)
    for _ in range(8):
        assert client.read_frame().type == HEARTBEAT
        client.frame(HEARTBEAT, 0)


@pytest.mark.own
def test_blocked_connection_does_not_hold_up_the_shutdown(own_broker: Own, raw: Raw) -> None:
    own = own_broker(config=NO_DISK)
    client = open_client(raw, own)
    client.publish(1, "", "nowhere", b"x")
    client.expect(0, amqp.Connection.Blocked)
    own.stop()


@pytest.mark.own
def test_pika_sees_that_it_is_blocked(own_broker: Own, connect: Connect) -> None:
    own = own_broker(config=NO_DISK)
    connection = connect(to=own)
    reasons: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: reasons.append(frame.method.reason))
    connection.channel().basic_publish("", "nowhere", b"x")
    eventually(lambda: connection.process_data_events(0) or reasons)
    assert reasons == ["low on disk"]
    own.stop()  # pika would wait for the answer to its close, which is not read


# --- an alarm that comes and goes ----------------------------------------------------------------------------------------


@pytest.fixture
def tight(own_broker: Own) -> Callable[..., BrokerProcess]:
    """`tight()` is a broker that has 48 MiB more memory than it needs when it is idle, and pages nothing out."""

    def start(**config: int) -> BrokerProcess:
        idle = metric(own_broker(), "rabbitmq_process_resident_memory_bytes")
        watermark = int(idle) + 48 * MIB
        settings = {"vm_memory_high_watermark_paging_ratio": 1000.0, "memory_monitor_interval": 50}
        return own_broker(config={"vm_memory_high_watermark": watermark, **settings, **config})

    return start


def metric(own: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{own.metrics}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.split("{")[0].split(" ")[0] == name))


def publish_until_blocked(client: WireClient, queue: str) -> int:
    """Publishes a MiB at a time, each confirmed, until connection.blocked comes; how many were confirmed."""
    client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    body = bytes(100_000)
    for confirmed in range(2000):
        client.method(1, amqp.Basic.Publish(exchange="", routing_key=queue))
        client.header(1, 10 * len(body))
        for _ in range(10):
            client.body(1, body)
        channel, answer = client.read_command()
        if isinstance(answer, amqp.Connection.Blocked):
            assert (channel, answer.reason) == (0, "low on memory")
            return confirmed
        assert isinstance(answer, amqp.Basic.Ack)
    raise AssertionError("2 GB were taken without an alarm")


@pytest.mark.own
def test_publisher_goes_on_when_the_memory_is_free_again(tight: Callable[..., BrokerProcess], raw: Raw, connect: Connect) -> None:
    own = tight()
    other = confirming(connect(to=own))
    other.queue_declare("q")
    client = open_client(raw, own)
    publish_until_blocked(client, "q")
    assert metric(own, "rabbitmq_alarms_memory_used_watermark") == 1
    assert metric(own, "rabbitpy_connections_blocked") == 1
    assert "alarm cleared" not in own.log_text()
    # Another connection, which does not publish, makes room.
    assert other.queue_purge("q").method.message_count > 10
    answers = [client.read_command() for _ in range(2)]
    assert {type(answer) for _, answer in answers} == {amqp.Connection.Unblocked, amqp.Basic.Ack}
    client.publish(1, "", "q", b"goes on")
    client.expect(1, amqp.Basic.Ack)
    assert metric(own, "rabbitmq_alarms_memory_used_watermark") == 0
    assert metric(own, "rabbitpy_connections_blocked") == 0


@pytest.mark.own
def test_connection_that_publishes_nothing_hears_nothing_of_it(
    tight: Callable[..., BrokerProcess], raw: Raw, connect: Connect
) -> None:
    own = tight()
    other = confirming(connect(to=own))
    other.queue_declare("q")
    watcher, client = open_client(raw, own), open_client(raw, own)
    publish_until_blocked(client, "q")
    watcher.expect_silence(1)
    other.queue_purge("q")
    eventually(lambda: metric(own, "rabbitmq_alarms_memory_used_watermark") == 0)
    watcher.expect_silence(1)


@pytest.mark.own
@pytest.mark.parametrize("order", [("memory", "disk"), ("disk", "memory")])
def test_both_alarms_must_be_over(own_broker: Own, raw: Raw, order: tuple[str, str]) -> None:
    on = {"memory": ("set_vm_memory_high_watermark", "0"), "disk": ("set_disk_free_limit", str(2**60))}
    off = {"memory": ("set_vm_memory_high_watermark", "0.9"), "disk": ("set_disk_free_limit", "1")}
    own = own_broker()
    client = open_client(raw, own)
    for alarm in order:
        own.ctl(*on[alarm])
    client.publish(1, "", "nowhere", b"x")
    assert client.expect(0, amqp.Connection.Blocked).reason == "low on disk & memory"
    own.ctl(*off[order[0]])
    client.expect_nothing_more()
    own.ctl(*off[order[1]])
    client.socket.settimeout(10)
    client.expect(0, amqp.Connection.Unblocked)
