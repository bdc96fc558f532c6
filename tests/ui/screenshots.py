"""Makes the pictures of the documentation: a broker with some traffic, and the pages of the UI in Chromium.

`.venv/bin/python tests/ui/screenshots.py docs/images` makes ui_overview.png and others; with `--all` it takes every page
in both themes, 360 and 1,440 pixels wide; with `--cluster` it makes ui_cluster.png, of three nodes on PostgreSQL.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "clients"), str(HERE.parent.parent)]

import pika
from external import installed, run_install
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess
from cluster.replicated import Cluster
from management.conftest import Http
from perf.engines.postgres import PostgresServers
from perf.engines.servers import running
from support import eventually

PINS = [HERE / "package.json", HERE / "package-lock.json"]
WARM_UP_S = 20.0
LONG_NAME = "a.queue.with.a.name.that.is.as.long.as.names.of.generated.queues.are-7f0c1d1e4c1b4a0f"
NODES = ("broker-1", "broker-2", "broker-3")
CUSTOMERS = ("Ada", "Grace", "Edsger", "Barbara", "Donald")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("into", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--pages", default="", help="with --all: only these, by their names in addresses.mjs")
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--seconds", type=float, default=WARM_UP_S, help="traffic before the first picture")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    modules = installed("ui", PINS, lambda directory: run_install(install, directory)) / "node_modules"

    def take(broker: BrokerProcess) -> None:
        settings = {
            "base": f"http://{broker.management}/", "modules": str(modules), "chromium": "/usr/bin/chromium",
            "sandbox": os.geteuid() != 0, "into": str(given.into), "all": given.all, "pages": given.pages,
            "cluster": given.cluster,
        }  # fmt: skip
        env = {**os.environ, "UI_TEST": json.dumps(settings)}
        subprocess.run(["node", str(HERE / "screenshots.mjs")], env=env, check=True)

    (of_cluster if given.cluster else of_broker)(take, given.seconds)
    for file in sorted(given.into.glob("*.png")):
        print(f"{file.stat().st_size // 1024:5} KiB  {file}")


def of_broker(take: Callable[[BrokerProcess], None], seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder))
        broker.start()
        try:
            declare(broker)
            stop = threading.Event()
            threads = start_traffic(broker, stop)
            time.sleep(seconds)
            take(broker)
            stop.set()
            for thread in threads:
                thread.join(10)
        finally:
            broker.stop()


def of_cluster(take: Callable[[BrokerProcess], None], seconds: float) -> None:
    """Three nodes, of which each owns a vhost and has copies of the others; messages come to all three."""
    servers_folder = Path(tempfile.mkdtemp(prefix="rabbitpy-postgres-"))
    servers = PostgresServers(servers_folder)
    with tempfile.TemporaryDirectory() as folder, running(servers):
        cluster = Cluster(Path(folder), servers, servers.url, NODES)
        try:
            cluster.start()
            first = cluster.nodes[NODES[0]]
            eventually(lambda: len(json.loads(first.ctl("cluster_status", "--formatter", "json"))["running_nodes"]) == 3)
            stop = threading.Event()
            threads = []
            for vhost, owner in zip(("shop", "billing", "telemetry"), NODES, strict=True):
                node = cluster.nodes[owner]
                node.ctl("add_vhost", vhost, "--replicas", "3")
                node.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
                threads.append(threading.Thread(target=publish_orders, args=(node, vhost, stop)))
            for thread in threads:
                thread.start()
            time.sleep(seconds)
            take(first)
            stop.set()
            for thread in threads:
                thread.join(10)
        finally:
            cluster.stop()
    shutil.rmtree(servers_folder)


def publish_orders(broker: BrokerProcess, vhost: str, stop: threading.Event) -> None:
    with pika.BlockingConnection(broker.parameters(vhost=vhost)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
        number = 0
        while not stop.wait(0.02):
            number += 1
            channel.basic_publish("", "orders", order(number), pika.BasicProperties(delivery_mode=2))


def declare(broker: BrokerProcess) -> None:
    http = Http(broker.management)
    connection = pika.BlockingConnection(broker.parameters())
    channel = connection.channel()
    for name, kind in (("orders", "topic"), ("events", "fanout"), ("dead", "direct"), ("imports", "headers")):
        arguments = {"alternate-exchange": "events"} if name == "orders" else {}
        channel.exchange_declare(name, kind, durable=True, arguments=arguments)
    letters = {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "orders"}
    queues = {
        "orders.eu": letters, "orders.us": letters, "invoices": {"x-max-length": 100_000},
        "emails": {"x-message-ttl": 86_400_000}, "thumbnails": {"x-max-priority": 5}, "audit.log": {}, "dead.orders": {},
        "webhooks": {"x-single-active-consumer": True},
        "payments": {"x-queue-type": "quorum", "x-delivery-limit": 5}, "celery": {}, "reports": {},
        "refunds": {"x-queue-type": "quorum", "x-delivery-limit": 8, **letters},
        "clicks": {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 2_000_000_000},
    }  # fmt: skip
    for name, given in queues.items():
        channel.queue_declare(name, durable=True, arguments=given)
    for number in range(40):
        channel.queue_declare(f"tenant.{number:03d}.jobs", durable=True)
    for name in ("eu", "us"):
        channel.queue_bind(f"orders.{name}", "orders", f"order.{name}.#")
    for name in ("invoices", "payments"):
        channel.queue_bind(name, "orders", "order.*.paid")
    for name in ("emails", "audit.log", "webhooks"):
        channel.queue_bind(name, "events")
    channel.queue_bind("dead.orders", "dead", "orders")
    channel.queue_bind("thumbnails", "imports", "", {"x-match": "all", "kind": "image"})
    declare_visits(channel)
    connection.close()
    for path, body in (
        ("policies/%2F/tenants", {"pattern": "^tenant\\.", "definition": {"max-length": 10_000}, "apply-to": "queues"}),
        ("vhosts/staging", {"description": "for the next release"}),
        ("permissions/staging/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("queues/staging/orders.eu", {"durable": True}),
        (f"queues/staging/{LONG_NAME}", {"durable": True}),
        ("users/monitor", {"password": "monitor", "tags": "monitoring"}),
        ("permissions/%2F/monitor", {"configure": "^$", "write": "^$", "read": ".*"}),
    ):
        assert http("PUT", path, body).status < 300, path
    fill(broker)


def declare_visits(channel: BlockingChannel) -> None:
    """A super stream of three partitions."""
    channel.exchange_declare("visits", "x-super-stream", durable=True, arguments={"x-super-stream": True})
    for number in range(3):
        channel.queue_declare(f"visits-{number}", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind(f"visits-{number}", "visits", str(number), {"x-stream-partition-order": number})


def order(number: int) -> bytes:
    chosen = random.Random(number)
    items = [{"sku": f"A-{chosen.randrange(40)}", "quantity": chosen.randrange(1, 5), "price": 9.9} for _ in range(2)]
    customer = {"name": chosen.choice(CUSTOMERS), "country": chosen.choice(("DE", "FR", "US"))}
    return json.dumps({"id": 4700 + number, "customer": customer, "items": items, "paid": number % 3 == 0}).encode()


def fill(broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(broker.parameters())
    channel = connection.channel()
    for number in range(600):
        place = ("eu", "us")[number % 2]
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, message_id=f"m-{4700 + number}", timestamp=int(time.time()),
            app_id="shop", headers={"tenant": f"t{number % 7}", "trace": f"{random.Random(number).getrandbits(64):016x}"},
        )  # fmt: skip
        channel.basic_publish("orders", f"order.{place}.{'paid' if number % 3 == 0 else 'new'}", order(number), properties)
    task = base64.b64encode(json.dumps([[4711], {"retry": True}, {"callbacks": None, "errbacks": None}]).encode())
    headers = {"task": "shop.tasks.send_invoice", "id": "0b1c9f0e", "origin": "gen1@web-1", "retries": 0}
    encoded = pika.BasicProperties(content_type="application/json", content_encoding="base64", headers=headers)
    channel.basic_publish("", "celery", task, encoded)
    packed = pika.BasicProperties(content_type="application/json", content_encoding="gzip")
    channel.basic_publish("", "reports", gzip.compress(order(1)), packed)
    for number in range(4000):
        body = json.dumps({"page": f"/item/{number % 97}", "user": number % 311}).encode()
        channel.basic_publish("", "clicks", body, pika.BasicProperties(content_type="application/json"))
        channel.basic_publish("visits", f"user-{number % 311}", body, pika.BasicProperties(content_type="application/json"))
    for number in range(6):
        channel.basic_publish("", "refunds", order(number), pika.BasicProperties(content_type="application/json"))
    for times in range(3):
        taken = [channel.basic_get("refunds")[0] for _ in range(6 - 2 * times)]
        for method in taken:
            if method is not None:
                channel.basic_nack(method.delivery_tag, requeue=True)
    for _ in range(14):
        method, _, _ = channel.basic_get("orders.eu")
        if method is not None:
            channel.basic_nack(method.delivery_tag, requeue=False)
    connection.close()


def start_traffic(broker: BrokerProcess, stop: threading.Event) -> list[threading.Thread]:
    workers = [("emails", 1, 0.01), ("emails", 2, 0.01), ("orders.us", 1, 0.02), ("audit.log", 1, 0.002), ("webhooks", 1, 0.004),
               ("webhooks", 2, 0.004), ("payments", 1, 0.03)]  # fmt: skip
    threads = [threading.Thread(target=consume, args=(broker, stop, *worker), daemon=True) for worker in workers]
    threads.append(threading.Thread(target=hold, args=(broker, stop), daemon=True))
    threads.append(threading.Thread(target=publish, args=(broker, stop), daemon=True))
    for tag, offset, pace in (("dashboard", "next", 0.0), ("nightly report", "first", 0.02), ("search index", 2500, 0.008)):
        threads.append(threading.Thread(target=read_stream, args=(broker, stop, tag, offset, pace), daemon=True))
    for thread in threads:
        thread.start()
    return threads


def open_channel(broker: BrokerProcess, name: str) -> tuple[pika.BlockingConnection, BlockingChannel]:
    connection = pika.BlockingConnection(broker.parameters(client_properties={"connection_name": name}))
    return connection, connection.channel()


def consume(broker: BrokerProcess, stop: threading.Event, queue: str, number: int, delay: float) -> None:
    connection, channel = open_channel(broker, f"worker {queue} {number}")
    channel.basic_qos(prefetch_count=20)
    for method, _, _ in channel.consume(queue, inactivity_timeout=0.2):
        if method is not None:
            time.sleep(delay)
            channel.basic_ack(method.delivery_tag)
        if stop.is_set():
            break
    connection.close()


def hold(broker: BrokerProcess, stop: threading.Event) -> None:
    connection, channel = open_channel(broker, "worker invoices 1")
    channel.basic_qos(prefetch_count=25)
    channel.basic_consume("invoices", lambda *_: None, consumer_tag="invoices-1")
    while not stop.is_set():
        connection.process_data_events(0.2)
    connection.close()


def read_stream(broker: BrokerProcess, stop: threading.Event, tag: str, offset: str | int, pace: float) -> None:
    connection, channel = open_channel(broker, tag)
    channel.basic_qos(prefetch_count=50)
    given = {"x-stream-offset": offset}
    for method, _, _ in channel.consume("clicks", inactivity_timeout=0.2, arguments=given):
        if method is not None:
            time.sleep(pace)
            channel.basic_ack(method.delivery_tag)
        if stop.is_set():
            break
    connection.close()


def publish(broker: BrokerProcess, stop: threading.Event) -> None:
    connection, channel = open_channel(broker, "shop web-1")
    number = 0
    while not stop.is_set():
        number += 1
        plain = pika.BasicProperties(content_type="application/json")
        channel.basic_publish("events", "", json.dumps({"event": number}).encode(), plain)
        if number % 3 == 0:
            place = random.choice(("eu", "us", "us"))
            channel.basic_publish("orders", f"order.{place}.{random.choice(('new', 'paid'))}", order(number), plain)
        channel.basic_publish("", "clicks", b'{"page": "/", "user": %d}' % (number % 311), plain)
        if number % 9 == 0:
            channel.basic_publish("", f"tenant.{random.randrange(12):03d}.jobs", b"job %d" % number)
        connection.process_data_events(0)
        time.sleep(0.012 + 0.01 * random.random())
    connection.close()


if __name__ == "__main__":
    main()
