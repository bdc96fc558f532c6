"""Orders with pika: a publisher that waits for confirms, a worker that stores each order once."""

from __future__ import annotations

import contextlib

import pika
import pika.exceptions

EXCHANGE, QUEUE, PARKED = "orders", "orders.new", "orders.parked"


def declare(channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
    """Makes what both sides need; what cannot be worked on goes to PARKED."""
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    channel.queue_declare(PARKED, durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": PARKED, "x-message-ttl": 86_400_000}
    channel.queue_declare(QUEUE, durable=True, arguments=arguments)
    channel.queue_bind(QUEUE, EXCHANGE, "order.new")


class Publisher:
    """Publishes, and again on a new connection when one is lost: an order may arrive twice, and is never lost."""

    def __init__(self, url: str) -> None:
        self._parameters = pika.URLParameters(url)
        self._channel = self._connect()

    def _connect(self) -> pika.adapters.blocking_connection.BlockingChannel:
        channel = pika.BlockingConnection(self._parameters).channel()
        channel.confirm_delivery()
        declare(channel)
        return channel

    def publish(self, order: str) -> None:
        """Returns when the broker has it. Raises NackError or UnroutableError when it does not want it."""
        properties = pika.BasicProperties(delivery_mode=2, message_id=order)
        try:
            self._channel.basic_publish(EXCHANGE, "order.new", order.encode(), properties, mandatory=True)
        except pika.exceptions.AMQPConnectionError:
            self._channel = self._connect()
            self.publish(order)

    def close(self) -> None:
        with contextlib.suppress(pika.exceptions.AMQPConnectionError):  # it may be lost
            self._channel.connection.close()


class Worker:
    """Stores orders. One that comes a second time is acked and not stored again; a bad one is rejected."""

    def __init__(self, url: str) -> None:
        self.stored: list[str] = []
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        declare(self._channel)
        self._channel.basic_qos(prefetch_count=10)
        self._channel.basic_consume(QUEUE, self._work)

    def _work(self, _channel: object, method: pika.spec.Basic.Deliver, _properties: object, body: bytes) -> None:
        order = body.decode()
        if not order.isdigit():
            self._channel.basic_reject(method.delivery_tag, requeue=False)
            return
        if order not in self.stored:
            self.stored.append(order)
        self._channel.basic_ack(method.delivery_tag)

    def work(self, seconds: float = 0.05) -> None:
        """Works on what comes within the time."""
        self._connection.process_data_events(seconds)

    def close(self) -> None:
        self._connection.close()
