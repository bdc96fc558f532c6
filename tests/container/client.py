"""The client of run.py: `client.py declare URL` makes durable things, `client.py find URL` fails when one of them is gone."""

from __future__ import annotations

import sys

import pika

EXCHANGE, QUEUE, KEY = "survivors", "survivor", "key"


def main(wish: str, url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    if wish == "declare":
        channel.exchange_declare(EXCHANGE, "direct", durable=True)
        channel.queue_declare(QUEUE, durable=True)
        channel.queue_bind(QUEUE, EXCHANGE, KEY)
    else:
        channel.exchange_declare(EXCHANGE, passive=True)
        channel.queue_declare(QUEUE, passive=True)
        channel.confirm_delivery()
        channel.basic_publish(EXCHANGE, KEY, b"over the binding", mandatory=True)
        _, _, body = channel.basic_get(QUEUE, auto_ack=True)
        if body != b"over the binding":
            sys.exit(f"the binding is gone: got {body!r}")
    connection.close()
    print(f"ok: {wish} exchange, queue and binding")


main(*sys.argv[1:])
