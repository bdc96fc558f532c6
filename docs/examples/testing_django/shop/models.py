"""An order is told to the broker when its transaction has been committed, and not before."""

from __future__ import annotations

import json
from typing import Any

import pika
from django.conf import settings
from django.db import models, transaction

EXCHANGE = "shop"


class Order(models.Model):
    """One order."""

    article = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.article

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)
        transaction.on_commit(self.tell)

    def tell(self) -> None:
        """Publishes the order, and waits until the broker has it."""
        connection = pika.BlockingConnection(pika.URLParameters(settings.AMQP_URL))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        body = json.dumps({"id": self.pk, "article": self.article}).encode()
        channel.basic_publish(EXCHANGE, "order.saved", body, pika.BasicProperties(delivery_mode=2))
        connection.close()
