"""pika's BlockingConnection, used as its users' programs use it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
import pytest
from cutting_proxy import CuttingProxy
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerAddress
from support import assert_closed, eventually

Declare = Callable[..., str]


def has_ready(channel: BlockingChannel, name: str, count: int) -> bool:
    """Polled after acks and requeues, which RabbitMQ carries out beside the channel's next method."""
    return bool(channel.queue_declare(name, passive=True).method.message_count == count)


def test_server_properties_tell_the_features_clients_look_for(connection: pika.BlockingConnection) -> None:
    """pika, and other clients after it, switch features on by these capabilities."""
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.publisher_confirms_supported


def test_publish_and_get(channel: BlockingChannel, queue: Declare) -> None:
    name = queue()
    for number in range(3):
        channel.basic_publish("", name, b"%d" % number)
    frames = [eventually(lambda: got if (got := channel.basic_get(name, auto_ack=True))[0] else None) for _ in range(3)]
    assert [body for _, _, body in frames] == [b"0", b"1", b"2"]
    assert frames[-1][0].message_count == 0
    assert channel.basic_get(name) == (None, None, None)


def test_confirmed_publishes_arrive_before_publish_returns(channel: BlockingChannel, queue: Declare) -> None:
    name = queue()
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("", name, b"%d" % number, mandatory=True)
    assert channel.queue_declare(name, passive=True).method.message_count == 50


def test_unroutable_mandatory_publish_raises_with_the_message(channel: BlockingChannel, new_name: Declare) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", new_name(), b"lost", pika.BasicProperties(message_id="m1"), mandatory=True)
    [returned] = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.properties.message_id, returned.body) == ("m1", b"lost")


def test_unroutable_publish_without_mandatory_is_confirmed(channel: BlockingChannel, new_name: Declare) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", new_name(), b"dropped")


def test_returns_reach_the_callback_without_confirms(channel: BlockingChannel, new_name: Declare) -> None:
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    channel.basic_publish("", new_name(), b"lost", mandatory=True)
    eventually(lambda: channel.connection.process_data_events(0.05) or returned)
    assert returned == [b"lost"]


def test_start_consuming_delivers_in_order_and_stops(channel: BlockingChannel, queue: Declare) -> None:
    name = queue()
    received: list[bytes] = []

    def on_message(ch: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
        received.append(body)
        ch.basic_ack(method.delivery_tag)
        if len(received) == 100:
            ch.stop_consuming()

    channel.basic_qos(prefetch_count=10)
    channel.basic_consume(name, on_message)
    for number in range(100):
        channel.basic_publish("", name, b"%d" % number)
    channel.start_consuming()
    assert received == [b"%d" % number for number in range(100)]
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_consume_generator_gives_back_what_it_prefetched(channel: BlockingChannel, queue: Declare) -> None:
    name = queue()
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", name, b"%d" % number)
    for method, _properties, body in channel.consume(name, inactivity_timeout=5):
        assert method is not None, "no delivery within 5 s"
        channel.basic_ack(method.delivery_tag)
        if body == b"9":
            break
    channel.cancel()
    eventually(lambda: has_ready(channel, name, 10))
    method, _, body = channel.basic_get(name, auto_ack=True)
    assert (body, method.redelivered) == (b"10", True)


def test_several_deliveries_acked_at_once(channel: BlockingChannel, queue: Declare) -> None:
    name = queue()
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", name, b"%d" % number)
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(10)]
    channel.basic_ack(tags[4], multiple=True)
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    eventually(lambda: has_ready(channel, name, 5))
    assert channel.basic_get(name, auto_ack=True)[2] == b"5"


def test_rejected_message_comes_back_or_goes(channel: BlockingChannel, queue: Declare) -> None:
    name = queue()
    channel.confirm_delivery()
    channel.basic_publish("", name, b"again")
    first = channel.basic_get(name)[0]
    assert not first.redelivered
    channel.basic_reject(first.delivery_tag, requeue=True)
    second = eventually(lambda: channel.basic_get(name)[0])
    assert second.redelivered
    channel.basic_reject(second.delivery_tag, requeue=False)
    assert channel.basic_get(name) == (None, None, None)


def test_properties_and_headers_round_trip(channel: BlockingChannel, queue: Declare) -> None:
    name = queue()
    properties = pika.BasicProperties(
        content_type="application/json", content_encoding="gzip", delivery_mode=2, priority=3, correlation_id="c",
        reply_to="r", expiration="60000", message_id="m", timestamp=1700000000, type="t", user_id="guest", app_id="a",
        cluster_id="l", headers={"text": "ü", "int": 7, "big": 2**40, "negative": -5, "true": True, "none": None,
                                 "list": [1, "two", {"three": 3}], "table": {"nested": {"deep": b"\x00\xff"}}},
    )
    channel.confirm_delivery()
    channel.basic_publish("", name, b"body", properties)
    got = channel.basic_get(name, auto_ack=True)[1]
    # pika reads every long string that is UTF-8 as text, other bytes stay bytes
    assert vars(got) == vars(properties)


@pytest.mark.parametrize("size", [0, 1, 131064, 131065, 1_000_000, 10_000_000])
def test_body_of_any_size(channel: BlockingChannel, queue: Declare, size: int) -> None:
    """131,064 octets fill one frame of the frame_max that RabbitMQ offers; one more octet needs a second."""
    name = queue()
    body = bytes(range(256)) * (size // 256 + 1)
    channel.confirm_delivery()
    channel.basic_publish("", name, body[:size])
    assert channel.basic_get(name, auto_ack=True)[2] == body[:size]


def test_small_frames_are_kept_in_both_directions(connect: Callable[..., Any], new_name: Declare) -> None:
    channel = connect(frame_max=4096).channel()
    name = new_name()
    channel.queue_declare(name)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"x" * 100_000)
    assert channel.basic_get(name, auto_ack=True)[2] == b"x" * 100_000


def test_cancel_notify_when_the_queue_is_deleted(connection: pika.BlockingConnection, queue: Declare) -> None:
    name = queue()
    consuming = connection.channel()
    cancelled: list[str] = []
    consuming.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = consuming.basic_consume(name, lambda *_: None)
    connection.channel().queue_delete(name)
    consuming.start_consuming()  # returns when the last consumer is gone
    assert cancelled == [tag]


def test_rpc_through_direct_reply_to(connect: Callable[..., Any], new_name: Declare) -> None:
    name = new_name()
    server, client = connect().channel(), connect().channel()
    server.queue_declare(name)

    def serve(ch: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        ch.basic_publish("", properties.reply_to, body.upper(),
                         pika.BasicProperties(correlation_id=properties.correlation_id))
        ch.basic_ack(method.delivery_tag)

    server.basic_consume(name, serve)
    replies: list[tuple[str, bytes]] = []
    client.basic_consume("amq.rabbitmq.reply-to", lambda _c, _m, p, body: replies.append((p.correlation_id, body)),
                         auto_ack=True)
    for number in range(5):
        client.basic_publish("", name, b"ask", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to",
                                                                    correlation_id=str(number)))

    def answered() -> bool:
        server.connection.process_data_events(0.02)
        client.connection.process_data_events(0.02)
        return len(replies) == 5

    eventually(answered)
    assert replies == [(str(number), b"ASK") for number in range(5)]


def test_topology_of_a_work_flow(channel: BlockingChannel, exchange: Declare, queue: Declare) -> None:
    """Topic exchange bound to a fanout exchange bound to a queue; both bindings gone, nothing arrives."""
    topic, fanout, name = exchange("topic"), exchange("fanout"), queue()
    channel.exchange_bind(fanout, topic, "orders.*")
    channel.queue_bind(name, fanout)
    channel.confirm_delivery()
    channel.basic_publish(topic, "orders.new", b"yes")
    channel.basic_publish(topic, "orders.new.late", b"no")
    assert channel.queue_declare(name, passive=True).method.message_count == 1
    channel.exchange_unbind(fanout, topic, "orders.*")
    channel.basic_publish(topic, "orders.new", b"no")
    assert channel.queue_purge(name).method.message_count == 1
    channel.queue_unbind(name, fanout)
    channel.basic_publish(fanout, "", b"no")
    assert channel.queue_delete(name).method.message_count == 0


def test_transaction(channel: BlockingChannel, queue: Declare) -> None:
    name = queue()
    channel.tx_select()
    channel.basic_publish("", name, b"undone")
    channel.tx_rollback()
    channel.basic_publish("", name, b"done")
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    channel.tx_commit()
    assert channel.basic_get(name, auto_ack=True)[2] == b"done"
    channel.tx_commit()


def test_connection_outlives_a_channel_closed_by_the_broker(
    connection: pika.BlockingConnection, new_name: Declare
) -> None:
    name = new_name()
    first = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        first.queue_declare(name, passive=True)
    assert_closed(caught.value, 404, f"no queue '{name}' in vhost '/'")
    second = connection.channel()
    assert second.queue_declare(name).method.queue == name


def test_exclusive_queue_is_locked_and_goes_with_its_connection(connect: Callable[..., Any], new_name: Declare) -> None:
    name = new_name()
    owner = connect()
    owner.channel().queue_declare(name, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connect().channel().queue_declare(name, exclusive=True)
    assert caught.value.reply_code == 405
    owner.close()
    assert connect().channel().queue_declare(name, exclusive=True).method.consumer_count == 0


def test_exclusive_queue_is_never_durable(channel: BlockingChannel, new_name: Declare) -> None:
    """RabbitMQ takes `durable` with `exclusive` and ignores it, so declaring again without it is the same queue."""
    name = new_name()
    channel.queue_declare(name, durable=True, exclusive=True)
    assert channel.queue_declare(name, durable=False, exclusive=True).method.queue == name


def test_server_named_queue(channel: BlockingChannel) -> None:
    name = channel.queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    channel.confirm_delivery()
    channel.basic_publish("", name, b"x")
    assert channel.basic_get(name, auto_ack=True)[2] == b"x"


def test_wrong_password_is_told(broker: BrokerAddress) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError) as caught:
        pika.BlockingConnection(broker.parameters(password="wrong"))
    assert "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN" in str(caught.value)


def test_unknown_vhost_is_told(broker: BrokerAddress) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        pika.BlockingConnection(broker.parameters(vhost="nowhere"))
    assert "(530) 'NOT_ALLOWED - vhost nowhere not found'" in str(caught.value)


def test_heartbeats_keep_an_idle_connection(connect: Callable[..., Any], new_name: Declare) -> None:
    """pika drops a connection on which nothing came for the interval and a little; idle for three, it must have heard."""
    connection = connect(heartbeat=1)
    connection.process_data_events(time_limit=3)
    assert connection.is_open
    assert connection.channel().queue_declare(new_name()).method.message_count == 0


def test_updated_secret_is_taken(connection: pika.BlockingConnection, broker: BrokerAddress, new_name: Declare) -> None:
    connection.update_secret(broker.password, "renewed")
    assert connection.channel().queue_declare(new_name()).method.message_count == 0


def test_worker_thread_acks_through_the_connections_thread(channel: BlockingChannel, queue: Declare) -> None:
    """pika's documented pattern for long work: another thread works, add_callback_threadsafe acks."""
    name = queue()
    threads: list[threading.Thread] = []
    acked: list[int] = []

    def ack(tag: int) -> None:
        channel.basic_ack(tag)
        acked.append(tag)
        if len(acked) == 5:
            channel.stop_consuming()

    def on_message(_channel: BlockingChannel, method: Any, _properties: Any, _body: bytes) -> None:
        work = threading.Thread(
            target=lambda: channel.connection.add_callback_threadsafe(lambda: ack(method.delivery_tag)))
        threads.append(work)
        work.start()

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(name, on_message)
    for _ in range(5):
        channel.basic_publish("", name, b"work")
    channel.start_consuming()
    for thread in threads:
        thread.join(5)
    assert acked == [1, 2, 3, 4, 5]
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_channels_open_and_close_by_the_hundred(connection: pika.BlockingConnection) -> None:
    for _ in range(3):
        channels = [connection.channel() for _ in range(100)]
        assert len({each.channel_number for each in channels}) == 100
        for each in channels:
            each.close()


def test_lost_connection_gives_its_deliveries_back(
    proxy: CuttingProxy, channel: BlockingChannel, queue: Declare
) -> None:
    """A client that vanishes without connection.close: what it held is redelivered to the next."""
    name = queue()
    channel.confirm_delivery()
    channel.basic_publish("", name, b"held")
    lost = pika.BlockingConnection(proxy.parameters())
    assert lost.channel().basic_get(name)[2] == b"held"
    assert channel.basic_get(name) == (None, None, None)
    proxy.cut()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        lost.process_data_events(5)
    method, _, body = eventually(lambda: got if (got := channel.basic_get(name, auto_ack=True))[0] else None)
    assert (method.redelivered, body) == (True, b"held")
