"""How a queue comes to its confirm mode, how one sees it, and what restarts and kills leave of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pamqp.commands as amqp
import pika
import pytest

from behaviour.helpers import Inbox, fence, take_all
from behaviour.producer import BOTH, CONSUMER_ACK, LIGHT, Producer, in_mode
from behaviour.test_metrics_and_health import Figures
from broker_process import BrokerProcess, CtlFailed
from support import eventually
from wire_client import WireClient

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., WireClient]
OwnBroker = Callable[..., BrokerProcess]
ALL = ("persist", *BOTH)


@pytest.fixture(params=BOTH)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("confirm_modes"))
    yield process.start()
    process.stop()


@pytest.fixture
def own(module_broker: BrokerProcess, connect: Connect) -> Iterator[BrokerProcess]:
    """A daemon whose queue `q` and policy `p` the test may make; they are gone after it."""
    yield module_broker
    connect(to=module_broker).channel().queue_delete("q")
    if "p" in module_broker.ctl("-q", "-s", "list_policies").split():
        module_broker.ctl("clear_policy", "p")


def producer_of(broker: BrokerProcess, raw: Raw) -> Producer:
    client = raw(to=broker).open()
    client.open_channel(1)
    return Producer(client)


def set_mode(broker: BrokerProcess, mode: str) -> None:
    broker.ctl("set_policy", "p", "^q$", json.dumps({"confirm-mode": mode}))


def shown(broker: BrokerProcess, *columns: str) -> list[str]:
    """These columns of the queue `q`."""
    rows = broker.ctl("-q", "-s", "list_queues", "name", *columns).splitlines()
    return next(row.split("\t")[1:] for row in rows if row.startswith("q\t"))


# --- where the mode comes from -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("default", ALL)
def test_argument_wins_over_policy_and_policy_over_the_default(
    own_broker: OwnBroker, connect: Connect, default: str
) -> None:
    broker = own_broker(config={"confirm_mode": default})
    channel = connect(to=broker).channel()
    channel.queue_declare("q")
    assert shown(broker, "confirm_mode") == [default]
    for mode in ALL:
        set_mode(broker, mode)
        assert shown(broker, "confirm_mode") == [mode]
    channel.queue_delete("q")
    for mode in ALL:
        channel.queue_declare("q", arguments=in_mode(mode))
        assert shown(broker, "confirm_mode") == [mode]
        channel.queue_delete("q")


def test_default_mode_is_at_work_after_a_restart(own_broker: OwnBroker, connect: Connect, raw: Raw, mode: str) -> None:
    broker = own_broker(config={"confirm_mode": mode})
    connect(to=broker).channel().queue_declare("q", durable=True)
    broker.restart()
    producer = producer_of(broker, raw)
    producer.publish("q")
    producer.waits()
    connect(to=broker).channel().basic_get("q", auto_ack=True)
    producer.ends_with("ack")


def test_unknown_default_mode_is_refused(own_broker: OwnBroker) -> None:
    with pytest.raises(AssertionError) as caught:
        own_broker(config={"confirm_mode": "sometimes"})
    assert "ended with 2" in str(caught.value)
    assert "confirm_mode" in str(caught.value)


def test_unknown_mode_in_a_policy_is_refused(own: BrokerProcess) -> None:
    with pytest.raises(CtlFailed) as caught:
        set_mode(own, "sometimes")
    assert "expected persist or consumer-ack or consumer-ack-light" in caught.value.stdout + caught.value.stderr


@pytest.mark.parametrize("after", ALL)
@pytest.mark.parametrize("before", ALL)
def test_policy_that_changes_the_mode_is_for_what_comes_then(
    own: BrokerProcess, connect: Connect, raw: Raw, before: str, after: str
) -> None:
    """What waits goes on waiting, handed out or not, and each is told once; what was handed out light stays so."""
    set_mode(own, before)
    connect(to=own).channel().queue_declare("q", durable=True)
    producer = producer_of(own, raw)
    producer.publish("q", count=3)
    channel = connect(to=own).channel()
    if before == "persist":
        assert producer.next(3) == {1: "ack", 2: "ack", 3: "ack"}
    for _ in range(2):
        assert channel.basic_get("q")[0] is not None
    set_mode(own, after)
    producer.publish("q")
    if after == "persist":
        assert producer.next() == {4: "ack"}
    producer.waits()
    channel.basic_ack(1)
    fence(channel, "q")
    if before != "persist":
        assert producer.next() == {1: "ack"}
    channel.basic_nack(2, requeue=True)  # refused for a light delivery
    if before == LIGHT:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            fence(channel, "q")
        assert producer.next() == {2: "nack"}
        channel = connect(to=own).channel()
    producer.waits()
    left = 2 if before == LIGHT else 3
    for _ in range(left):
        method = channel.basic_get("q")[0]
        assert method is not None
        channel.basic_ack(method.delivery_tag)
    assert channel.basic_get("q")[0] is None
    expected = {1: "ack", 2: "nack" if before == LIGHT else "ack", 3: "ack", 4: "ack"}
    if len(producer.told) < 4:
        producer.next(4 - len(producer.told))
    assert producer.told == expected
    producer.waits()
    assert shown(own, "publishes_waiting") == ["0"]


def test_change_by_a_policy_is_logged(own_broker: OwnBroker, connect: Connect) -> None:
    broker = own_broker()
    connect(to=broker).channel().queue_declare("q")
    connect(to=broker).channel().queue_declare("r", arguments=in_mode(LIGHT))
    broker.ctl("set_policy", "p", ".*", '{"confirm-mode":"consumer-ack"}')
    broker.ctl("set_policy", "p", ".*", '{"confirm-mode":"consumer-ack","max-length":9}')
    broker.ctl("clear_policy", "p")
    changes = [(each["vhost"], each["queue"], each["mode"]) for each in broker.events("confirm mode changed")]
    assert changes == [("/", "q", "consumer-ack"), ("/", "q", "persist")]


# --- what one sees -------------------------------------------------------------------------------------------------------


def test_waiting_publishes_are_counted(own: BrokerProcess, connect: Connect, raw: Raw, mode: str) -> None:
    """Ready and handed out alike, with the age of the oldest."""
    connect(to=own).channel().queue_declare("q", arguments=in_mode(mode))
    columns = ("confirm_mode", "publishes_waiting", "oldest_publish_waiting")
    assert shown(own, *columns) == [mode, "0", ""]
    before = Figures(own)("rabbitpy_queue_publishes_waiting")
    producer = producer_of(own, raw)
    producer.publish("q", count=3)
    producer.publish("q", body=b"x" * 10_000)
    assert producer.next() == {4: "ack"}
    inbox = Inbox(connect(to=own).channel(), "q")
    inbox.wait_for(4)
    assert shown(own, "publishes_waiting") == ["3"]
    each = Figures(own, "/metrics/per-object")
    assert each("rabbitpy_queue_publishes_waiting", queue="q", vhost="/") == 3
    for name in ALL:
        expected = 1 if name == mode else 0
        assert each("rabbitpy_queue_confirm_mode_" + name.replace("-", "_"), queue="q") == expected
    assert Figures(own)("rabbitpy_queue_publishes_waiting") == before + 3
    assert Figures(own)("rabbitpy_queue_confirm_mode_" + mode.replace("-", "_")) == 1
    eventually(lambda: int(shown(own, "oldest_publish_waiting")[0]) >= 1)
    assert Figures(own)("rabbitpy_queue_oldest_publish_waiting_seconds") >= 1
    inbox.channel.basic_ack(0, multiple=True)
    assert set(producer.next(3).values()) == {"ack"}
    assert shown(own, *columns) == [mode, "0", ""]
    assert Figures(own)("rabbitpy_queue_publishes_waiting") == before
    assert Figures(own, "/metrics/per-object")("rabbitpy_queue_oldest_publish_waiting_seconds", queue="q") == 0


# --- restart and kill ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill -9"])
def test_unconfirmed_may_be_gone_and_confirmed_were_acked(
    own_broker: OwnBroker, connect: Connect, raw: Raw, mode: str, how: str
) -> None:
    """A large one is on disk, as it was confirmed by that."""
    broker = own_broker()
    connect(to=broker).channel().queue_declare("q", durable=True, arguments=in_mode(mode))
    producer = producer_of(broker, raw)
    producer.publish("q", count=5)
    producer.publish("q", body=b"L" * 10_000)
    assert producer.next() == {6: "ack"}
    inbox = Inbox(connect(to=broker).channel(), "q")
    inbox.wait_for(6)
    inbox.channel.basic_ack(2, multiple=True)
    assert producer.next(2) == {1: "ack", 2: "ack"}
    if how == "stop":
        broker.restart()
    else:
        broker.crash()
        broker.start()
    assert take_all(connect(to=broker).channel(), "q") == [b"L" * 10_000]


def test_paged_out_messages_do_not_come_back_after_a_kill(
    own_broker: OwnBroker, connect: Connect, raw: Raw, mode: str
) -> None:
    """They were written to make room, not to be kept; their publishers were told nothing."""
    broker = own_broker()
    connect(to=broker).channel().queue_declare("q", durable=True, arguments=in_mode(mode, queue_mode="lazy"))
    producer = producer_of(broker, raw)
    producer.publish("q", count=500)
    producer.waits()
    eventually(lambda: int(shown(broker, "messages_paged_out")[0]) > 0)
    broker.crash()
    broker.start()
    assert take_all(connect(to=broker).channel(), "q") == []


def test_committed_messages_survive_a_kill(own_broker: OwnBroker, connect: Connect, mode: str) -> None:
    """tx.commit-ok does not wait for consumers, so it says what it says in a persist queue."""
    broker = own_broker()
    channel = connect(to=broker).channel()
    channel.queue_declare("q", durable=True, arguments=in_mode(mode))
    channel.tx_select()
    for number in range(3):
        channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    broker.crash()
    broker.start()
    assert take_all(connect(to=broker).channel(), "q") == [b"0", b"1", b"2"]


def test_dead_letter_of_a_confirmed_message_survives_a_kill(
    own_broker: OwnBroker, connect: Connect, raw: Raw, mode: str
) -> None:
    """Its publisher was told that it is safe, and would not publish it again: so the copy is kept like that."""
    broker = own_broker()
    channel = connect(to=broker).channel()
    channel.queue_declare("dead", durable=True, arguments=in_mode(mode))
    arguments = in_mode("persist", dead_letter_exchange="", dead_letter_routing_key="dead")
    channel.queue_declare("q", durable=True, arguments=arguments)
    producer = producer_of(broker, raw)
    producer.publish("q")
    assert producer.next() == {1: "ack"}
    channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
    fence(channel, "dead")
    producer.publish("q")
    assert producer.next() == {2: "ack"}, "an epoch later"
    broker.crash()
    broker.start()
    assert take_all(connect(to=broker).channel(), "dead") == [b"x"]


def test_overdue_light_delivery_is_a_nack(own_broker: OwnBroker, connect: Connect, raw: Raw) -> None:
    """consumer_timeout closes the consumer's channel, and what it held is lost; in consumer-ack it is requeued."""
    broker = own_broker(config={"consumer_timeout": 300})
    channel = connect(to=broker).channel()
    channel.queue_declare("light", arguments=in_mode(LIGHT))
    channel.queue_declare("other", arguments=in_mode(CONSUMER_ACK))
    producer = producer_of(broker, raw)
    producer.publish("light")
    producer.publish("other")
    holder = raw(to=broker).open()
    holder.open_channel(1)
    for name in ("light", "other"):
        holder.method(1, amqp.Basic.Consume(queue=name))
    assert producer.next() == {1: "nack"}
    producer.waits()
    assert take_all(connect(to=broker).channel(), "other") == [b"x"]
    producer.ends_with("ack")
