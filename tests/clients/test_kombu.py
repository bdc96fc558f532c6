"""py-amqp through kombu: producers, consumers, SimpleQueue, mixins, reconnecting; and py-amqp itself where kombu hides it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import kombu
import pytest
from cutting_proxy import CuttingProxy
from kombu.common import eventloop, ignore_errors, maybe_declare
from kombu.mixins import ConsumerMixin, ConsumerProducerMixin
from kombu.pools import producers

from broker_process import BrokerAddress
from support import eventually

NewName = Callable[[str], str]


@pytest.fixture
def kombu_connection(broker: BrokerAddress) -> Iterator[kombu.Connection]:
    with kombu.Connection(broker.url, connect_timeout=10) as connection:
        yield connection
    kombu.pools.reset()


def amqp_connection(broker: BrokerAddress) -> amqp.Connection:
    return amqp.Connection(f"{broker.host}:{broker.port}", broker.user, broker.password, virtual_host=broker.vhost,
                           connect_timeout=10, read_timeout=10)


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_producer_to_consumer(
    kombu_connection: kombu.Connection, new_name: NewName, serializer: str, compression: str | None
) -> None:
    exchange = kombu.Exchange(new_name("kombu"), "topic", durable=True)
    queue = kombu.Queue(new_name("kombu"), exchange, routing_key="task.#", durable=True)
    received: list[Any] = []

    def on_message(body: Any, message: kombu.Message) -> None:
        received.append((body, message.headers["attempt"], message.delivery_info["routing_key"]))
        message.ack()

    producer = kombu_connection.Producer(serializer=serializer)
    for number in range(10):
        producer.publish({"number": number}, exchange=exchange, routing_key="task.new", declare=[queue],
                         headers={"attempt": number}, compression=compression)
    with kombu_connection.Consumer(queue, callbacks=[on_message], accept=[serializer], prefetch_count=3):
        while len(received) < 10:
            kombu_connection.drain_events(timeout=10)
    assert received == [({"number": number}, number, "task.new") for number in range(10)]
    bound = queue(kombu_connection.default_channel)
    assert bound.get() is None


def test_confirmed_publish_through_a_pool(broker: BrokerAddress, new_name: NewName) -> None:
    """confirm_publish makes every publish wait for its confirm, so a passive declare sees them all."""
    queue = kombu.Queue(new_name("kombu"))
    with (
        kombu.Connection(broker.url, transport_options={"confirm_publish": True}) as connection,
        producers[connection].acquire(block=True) as producer,
    ):
        maybe_declare(queue, producer.channel)
        for number in range(20):
            producer.publish(number, routing_key=queue.name, retry=True)
        assert queue(producer.channel).queue_declare(passive=True).message_count == 20
    kombu.pools.reset()


def test_simple_queue(kombu_connection: kombu.Connection, new_name: NewName) -> None:
    name = new_name("kombu")
    with kombu_connection.SimpleQueue(name) as simple:
        for number in range(5):
            simple.put({"number": number})
        eventually(lambda: simple.qsize() == 5)
        message = simple.get(timeout=5)
        assert message.payload == {"number": 0}
        message.requeue()
        again = simple.get(timeout=5)
        again.ack()
        rest = [simple.get(timeout=5) for _ in range(4)]
        for each in rest:
            each.ack()
        # the requeued message may come after those that SimpleQueue had prefetched
        assert sorted(m.payload["number"] for m in [again, *rest]) == list(range(5))
        with pytest.raises(simple.Empty):
            simple.get(block=False)


def test_simple_buffer_is_transient(
    broker: BrokerAddress, kombu_connection: kombu.Connection, new_name: NewName
) -> None:
    """Its queue is exclusive and auto-delete: it goes with the consumer, or with the connection at the latest."""
    name = new_name("kombu")
    with kombu_connection.SimpleBuffer(name) as buffer:
        buffer.put("x")
        assert buffer.get(timeout=5).payload == "x"
    with kombu.Connection(broker.url) as other, pytest.raises(amqp.exceptions.NotFound, match="no queue"):
        other.default_channel.queue_declare(name, passive=True)


def test_simple_queue_counts_clears_and_times_out(kombu_connection: kombu.Connection, new_name: NewName) -> None:
    with kombu_connection.SimpleQueue(new_name("kombu")) as simple:
        with pytest.raises(simple.Empty):
            simple.get_nowait()
        for number in range(7):
            simple.put(number, headers={"number": number})
        eventually(lambda: len(simple) == 7)
        first = simple.get_nowait()
        assert (first.payload, first.headers) == (0, {"number": 0})
        first.reject()
        assert simple.qsize() == 6
        assert simple.clear() == 6
        assert simple.qsize() == 0
        started = time.monotonic()
        with pytest.raises(simple.Empty):
            simple.get(timeout=0.2)
        assert time.monotonic() - started >= 0.2
        simple.put("after")
        message = simple.get(timeout=5)
        assert message.payload == "after"
        message.ack()


def test_simple_queue_leaves_what_it_did_not_ack(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("kombu")
    with kombu.Connection(broker.url) as first, first.SimpleQueue(name) as simple:
        for number in range(3):
            simple.put(number)
        simple.get(timeout=5).ack()
        assert simple.get(timeout=5).payload == 1
    with kombu.Connection(broker.url) as second, second.SimpleQueue(name) as simple:
        messages = [simple.get(timeout=5) for _ in range(2)]
        assert [(message.payload, message.delivery_info["redelivered"]) for message in messages] == [(1, True), (2, True)]


class Collector(ConsumerMixin):
    """Collects `wanted` bodies and stops."""

    def __init__(self, connection: kombu.Connection, queue: kombu.Queue, wanted: int) -> None:
        self.connection = connection
        self.queue = queue
        self.wanted = wanted
        self.bodies: list[Any] = []
        self.ready = threading.Event()

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        return [consumer(self.queue, callbacks=[self.on_body], prefetch_count=2)]

    def on_consume_ready(self, connection: Any, channel: Any, consumers: Any, **_: Any) -> None:
        self.ready.set()

    def on_connection_revived(self) -> None:
        self.ready.clear()

    def on_body(self, body: Any, message: kombu.Message) -> None:
        message.ack()
        self.bodies.append(body)
        self.should_stop = len(self.bodies) >= self.wanted


def test_consumer_mixin_comes_back_after_a_cut(proxy: CuttingProxy, broker: BrokerAddress, new_name: NewName) -> None:
    """The mixin's run() connects again by itself, and its queue, exclusive to it before, is declared anew."""
    queue = kombu.Queue(new_name("kombu"), durable=False, auto_delete=True)
    with kombu.Connection(proxy.url) as consuming, kombu.Connection(broker.url) as publishing:
        collector = Collector(consuming, queue, 2)
        thread = threading.Thread(target=collector.run, daemon=True)
        thread.start()
        producer = publishing.Producer()
        try:
            assert collector.ready.wait(10)
            producer.publish("before", routing_key=queue.name)
            eventually(lambda: collector.bodies == ["before"])
            collector.ready.clear()
            proxy.cut()
            assert collector.ready.wait(15)
            producer.publish("after", routing_key=queue.name)
            thread.join(15)
        finally:
            collector.should_stop = True
        assert collector.bodies == ["before", "after"]


class Squares(ConsumerProducerMixin):
    """Answers each number with its square to the queue named by reply_to."""

    def __init__(self, connection: kombu.Connection, queue: kombu.Queue) -> None:
        self.connection = connection
        self.queue = queue

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        return [consumer(self.queue, on_message=self.on_request, prefetch_count=1)]

    def on_request(self, message: kombu.Message) -> None:
        self.producer.publish(message.payload**2, exchange="", routing_key=message.properties["reply_to"],
                              correlation_id=message.properties["correlation_id"], retry=True)
        message.ack()


def test_rpc_through_consumer_producer_mixin(broker: BrokerAddress, new_name: NewName) -> None:
    queue = kombu.Queue(new_name("kombu"))
    with kombu.Connection(broker.url) as serving, kombu.Connection(broker.url) as calling:
        server = Squares(serving, queue)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            answers: dict[str, int] = {}

            def on_answer(message: kombu.Message) -> None:
                answers[message.properties["correlation_id"]] = message.payload

            channel = calling.channel()
            callback = kombu.Queue(new_name("kombu"), exclusive=True, auto_delete=True)(channel)
            callback.declare()
            queue(channel).declare()
            for number in range(5):
                calling.Producer().publish(number, routing_key=queue.name, reply_to=callback.name,
                                           correlation_id=str(number))
            with kombu.Consumer(channel, callback, on_message=on_answer, no_ack=True):
                for _ in eventloop(calling, timeout=10, ignore_timeouts=False):
                    if len(answers) == 5:
                        break
            assert answers == {str(number): number**2 for number in range(5)}
        finally:
            server.should_stop = True
            thread.join(15)


def test_producer_retries_on_a_cut_connection(proxy: CuttingProxy, broker: BrokerAddress, new_name: NewName) -> None:
    queue = kombu.Queue(new_name("kombu"))
    with kombu.Connection(proxy.url) as connection, kombu.Connection(broker.url) as checking:
        queue(checking.default_channel).declare()
        producer = connection.Producer()
        producer.publish("first", routing_key=queue.name)
        bound = queue(checking.default_channel)
        assert eventually(lambda: bound.get(no_ack=True)).payload == "first"
        proxy.cut()
        policy = {"max_retries": 20, "interval_start": 0, "interval_step": 0.05, "interval_max": 0.2}

        def published_again() -> bool:
            # the first publish into a socket the peer has closed may be taken by the operating system and lost
            producer.publish("second", routing_key=queue.name, retry=True, retry_policy=policy)
            return proxy.accepted > 1

        eventually(published_again)
        assert eventually(lambda: bound.get(no_ack=True)).payload == "second"


def test_priority_and_expiration_reach_the_consumer(kombu_connection: kombu.Connection, new_name: NewName) -> None:
    queue = kombu.Queue(new_name("kombu"), max_priority=5)(kombu_connection.default_channel)
    queue.declare()
    kombu_connection.Producer().publish("x", routing_key=queue.name, priority=3, expiration=60)
    message = eventually(lambda: queue.get(no_ack=True))
    assert (message.properties["priority"], message.properties["expiration"]) == (3, "60000")


def test_consumer_is_told_that_its_queue_is_gone(
    kombu_connection: kombu.Connection, new_name: NewName
) -> None:
    """The broker's basic.cancel surfaces as ConsumerCancelled, which kombu counts as a recoverable channel error."""
    queue = kombu.Queue(new_name("kombu"))(kombu_connection.channel())
    queue.declare()
    consumer = kombu_connection.Consumer(queue, callbacks=[lambda *_: None])
    consumer.consume()
    deleting = kombu_connection.channel()
    with pytest.raises(amqp.exceptions.ConsumerCancelled):
        # surfaces in whichever method reads it from the socket
        deleting.queue_delete(queue.name)
        kombu_connection.drain_events(timeout=5)
    assert issubclass(amqp.exceptions.ConsumerCancelled, kombu_connection.recoverable_connection_errors)
    with ignore_errors(kombu_connection):
        consumer.cancel()


def test_return_callback_of_a_mandatory_publish(kombu_connection: kombu.Connection, new_name: NewName) -> None:
    returned: list[tuple[int, str]] = []

    def on_return(error: amqp.exceptions.ChannelError, _exchange: str, key: str, _message: amqp.Message) -> None:
        returned.append((error.reply_code, key))

    producer = kombu_connection.Producer(on_return=on_return)
    key = new_name("nowhere")
    producer.publish("lost", routing_key=key, mandatory=True)
    while not returned:
        kombu_connection.drain_events(timeout=5)
    assert returned == [(312, key)]


def test_heartbeat_check(broker: BrokerAddress) -> None:
    """py-amqp counts what it received; heartbeat_check raises when the broker was silent for two intervals."""
    with kombu.Connection(broker.url, heartbeat=2) as connection:
        connection.connect()
        for _ in range(12):
            # short, because a heartbeat that arrives starts the time anew, and checks must not be late
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.4)
            connection.heartbeat_check(rate=2)
        connection.default_channel.queue_declare(exclusive=True)


def test_errors_have_their_class(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("amqp")
    with amqp_connection(broker) as connection:
        with pytest.raises(amqp.exceptions.NotFound, match=f"no queue '{name}' in vhost '/'"):
            connection.channel().queue_declare(name, passive=True)
        connection.channel().queue_declare(name, durable=False, auto_delete=False)
        with pytest.raises(amqp.exceptions.PreconditionFailed, match="inequivalent arg 'durable'"):
            connection.channel().queue_declare(name, durable=True, auto_delete=False)
        with pytest.raises(amqp.exceptions.AccessRefused, match="reserved prefix"):
            connection.channel().queue_declare("amq.mine")
    with pytest.raises(amqp.exceptions.AccessRefused, match="Login was refused using authentication mechanism AMQPLAIN"):
        amqp.Connection(f"{broker.host}:{broker.port}", "guest", "wrong", connect_timeout=10).connect()


def test_immediate_is_refused(broker: BrokerAddress, new_name: NewName) -> None:
    """540 closes the connection, as RabbitMQ has done since it dropped the flag."""
    connection = amqp_connection(broker)
    connection.connect()
    channel = connection.channel()
    channel.basic_publish(amqp.Message("x"), routing_key=new_name("nowhere"), immediate=True)
    with pytest.raises(amqp.exceptions.AMQPNotImplementedError, match="NOT_IMPLEMENTED - immediate=true"):
        connection.drain_events(timeout=5)


@pytest.mark.parametrize("mechanism", [amqp.sasl.PLAIN, amqp.sasl.AMQPLAIN])
def test_both_login_mechanisms(broker: BrokerAddress, mechanism: Any) -> None:
    with amqp.Connection(f"{broker.host}:{broker.port}", authentication=(mechanism(broker.user, broker.password),),
                         virtual_host=broker.vhost, connect_timeout=10) as connection:
        assert connection.channel().queue_declare(exclusive=True).message_count == 0


def test_transaction_confirm_and_flow_of_py_amqp(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("amqp")
    with amqp_connection(broker) as connection:
        channel = connection.channel()
        channel.queue_declare(name, auto_delete=False)
        channel.tx_select()
        channel.basic_publish(amqp.Message("undone"), routing_key=name)
        channel.tx_rollback()
        channel.basic_publish(amqp.Message("done", application_headers={"n": 1}), routing_key=name)
        channel.tx_commit()
        message = channel.basic_get(name)
        assert (message.body, message.headers) == ("done", {"n": 1})
        channel.basic_recover(requeue=True)
        again = eventually(lambda: channel.basic_get(name))
        assert again.delivery_info["redelivered"]
        channel.basic_ack(again.delivery_tag)
        channel.tx_commit()
        channel.flow(True)
        confirming = connection.channel()
        confirming.confirm_select()
        confirming.basic_publish_confirm(amqp.Message("confirmed"), routing_key=name, mandatory=True)
        assert confirming.queue_purge(name) == 1
