"""With pytest-django: the test's vhost is the setting AMQP_URL."""

from __future__ import annotations

import json

import pika
import pika.exceptions
import pytest
from django.db import transaction
from shop.models import EXCHANGE, Order


@pytest.fixture(autouse=True)
def told(settings, amqp_url: str) -> None:
    settings.AMQP_URL = amqp_url


@pytest.fixture
def listener(amqp_url: str):
    """A queue that hears of all orders, as a channel and its name."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, EXCHANGE, "order.*")
    yield lambda: channel.basic_get(queue, auto_ack=True)[2]
    connection.close()


@pytest.mark.django_db(transaction=True)
def test_an_order_is_told_when_it_is_committed(listener) -> None:
    with transaction.atomic():
        order = Order.objects.create(article="bread")
        assert listener() is None
    assert json.loads(listener()) == {"id": order.pk, "article": "bread"}


@pytest.mark.django_db(transaction=True)
def test_an_order_that_is_rolled_back_is_not_told(listener) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        Order.objects.create(article="bread")
        raise RuntimeError
    assert listener() is None


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_refuses_is_an_error_for_whoever_saves(amqp_broker) -> None:
    amqp_broker.trouble.nack_publishes(1)
    with pytest.raises(pika.exceptions.NackError):
        Order.objects.create(article="bread")
