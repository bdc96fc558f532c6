"""Publishers and consumers of a cluster: each a thread that stays with a node while it answers, and else goes to another.

Most of them are those of perf.kill, quick and on bare sockets; one publisher and one consumer are pika's. None gives up before
it is told to stop. A client that hears nothing for as long as it is patient closes its connection without a word, as heartbeats
would have it do. What a publisher has not been told of then stays unknown: it is not published again, since the ledger could
not tell the two. What was under way on the connection that was given up may arrive behind what is sent on the next one: order is
promised for a channel, so that a publisher has another name for each connection.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import select
import threading
import time
import zlib
from abc import abstractmethod
from collections.abc import Callable, Sequence

import pika
import pika.exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from perf.cluster_kill.ledger import ClusterLedger
from perf.kill.ledger import Violation
from perf.kill.traffic import POOL, STYLES, Consumer, Publisher, Target, TrafficPeer, message_size
from perf.load.client import Address, Refused

HANDSHAKE_S = 3.0
PATIENCE_S = (2.0, 6.0)  # of a client that hears nothing
RETRY_S = (0.05, 0.4)
IDLE = 3  # times as patient is a consumer to which nothing may have come


class Story:
    """What the clients of a round share: where the nodes are, when to stop, and what went wrong first."""

    def __init__(self, addresses: Sequence[Address], ledger: ClusterLedger) -> None:
        self.addresses = list(addresses)
        self.ledger = ledger
        self.stopping = threading.Event()
        self.violation: Violation | None = None
        self._lock = threading.Lock()

    def break_off(self, violation: Violation) -> None:
        with self._lock:
            self.violation = self.violation or violation
        self.stopping.set()

    def check(self) -> None:
        """Raises the first violation."""
        if self.violation is not None:
            raise self.violation


class Peer(threading.Thread):
    """A client that goes from node to node."""

    def __init__(self, story: Story, seed: str) -> None:
        super().__init__(daemon=True)
        self.story = story
        self.random = random.Random(seed)

    def run(self) -> None:
        stopping = self.story.stopping
        while not stopping.is_set():
            try:
                self.session(self.random.choice(self.story.addresses))
            except Violation as violation:
                self.story.break_off(violation)
            except (Refused, OSError, pika.exceptions.AMQPError, AMQPConnectorException):
                pass  # trouble is what this is about
            stopping.wait(self.random.uniform(*RETRY_S))

    @abstractmethod
    def session(self, address: Address) -> None:
        """Works with one node until it ends, is silent for too long, or it is time to stop. Raises what `run` expects."""


class QuickPeer(Peer):
    """One of perf.kill's, `connect` makes it. `pause_s`: between two turns."""

    def __init__(self, story: Story, seed: str, pause_s: float, connect: Callable[[Address, str], TrafficPeer]) -> None:
        super().__init__(story, seed)
        self.pause_s = pause_s
        self.connect = connect

    def session(self, address: Address) -> None:
        peer = self.connect(address, f"{self.random.random()}")
        peer.stopping = True  # a node may close its connections whenever it is no owner any more
        try:
            serve(peer, self.story.stopping, self.random.uniform(*PATIENCE_S), self.pause_s)
        finally:
            peer.close()


def serve(peer: TrafficPeer, stopping: threading.Event, patience_s: float, pause_s: float) -> None:
    """Until it ends, has said nothing for so long, or is to stop."""
    poller = select.poll()
    heard = time.monotonic()
    while peer.open and not stopping.is_set():
        peer.refill()
        peer.write()
        poller.register(peer, select.POLLIN | (select.POLLOUT if peer.waiting else 0))
        if any(mask & ~select.POLLOUT for _, mask in poller.poll(50)):
            peer.read()
            heard = time.monotonic()
        waits_for_something = not isinstance(peer, Publisher) or peer.unconfirmed
        limit = patience_s if isinstance(peer, Publisher) else IDLE * patience_s
        if waits_for_something and time.monotonic() - heard > limit:
            return
        stopping.wait(pause_s)


def quick_publisher(story: Story, name: str, targets: Sequence[Target], window: int, pause_s: float, seed: str) -> Peer:
    connections = itertools.count(1)

    def connect(address: Address, seed: str) -> TrafficPeer:
        return Publisher(address, f"{name}.{next(connections)}", story.ledger, targets, window, seed, timeout=HANDSHAKE_S)

    return QuickPeer(story, seed, pause_s, connect)


def quick_consumer(story: Story, queue: str, style: str, prefetch: int, seed: str) -> Peer:
    def connect(address: Address, seed: str) -> TrafficPeer:
        return Consumer(address, queue, story.ledger, style, prefetch, seed, timeout=HANDSHAKE_S)

    return QuickPeer(story, seed, 0.0, connect)


class PikaPeer(Peer):
    def session(self, address: Address) -> None:
        parameters = pika.ConnectionParameters(
            address.host, address.port, address.vhost, pika.PlainCredentials(address.user, address.password),
            heartbeat=4, socket_timeout=HANDSHAKE_S, stack_timeout=HANDSHAKE_S, blocked_connection_timeout=PATIENCE_S[1],
        )  # fmt: skip
        connection = pika.BlockingConnection(parameters)
        try:
            self.work(connection)
        finally:
            with contextlib.suppress(pika.exceptions.AMQPError):
                if connection.is_open:
                    connection.close()

    @abstractmethod
    def work(self, connection: pika.BlockingConnection) -> None: ...


class PikaPublisher(PikaPeer):
    """One message at a time, each waited for."""

    def __init__(self, story: Story, name: str, target: Target, seed: str) -> None:
        super().__init__(story, seed)
        self.name = name
        self.target = target
        self.connections = itertools.count(1)

    def work(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        name = f"{self.name}.{next(self.connections)}"
        while not self.story.stopping.is_set():
            self.publish(channel, name)
            connection.process_data_events(0.01)

    def publish(self, channel: pika.adapters.blocking_connection.BlockingChannel, name: str) -> None:
        size = message_size(self.random)
        body = POOL[:size]
        ledger = self.story.ledger
        message = ledger.publish(name, self.target.queues, size, zlib.crc32(body))
        properties = pika.BasicProperties(delivery_mode=2, message_id=message.id)
        try:
            channel.basic_publish(self.target.exchange, self.target.routing_key, body, properties)
        except pika.exceptions.NackError:
            ledger.nack(message)
        else:
            ledger.confirm(message)


class PikaConsumer(PikaPeer):
    """Acks each message when it has come, and leaves after a while."""

    def __init__(self, story: Story, queue: str, seed: str) -> None:
        super().__init__(story, seed)
        self.queue = queue

    def work(self, connection: pika.BlockingConnection) -> None:
        ledger, queue = self.story.ledger, self.queue
        last: dict[str, int] = {}
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self.random.choice((1, 10, 100)))
        until = time.monotonic() + self.random.uniform(3, 15)

        for method, properties, body in channel.consume(queue, inactivity_timeout=0.2):
            if method is not None:
                place = ledger.deliver(
                    queue, str(properties.message_id), len(body), zlib.crc32(body), method.redelivered, last
                )
                ledger.ack(queue, place)
                channel.basic_ack(method.delivery_tag)
            if self.story.stopping.is_set() or time.monotonic() > until:
                return


def random_style(rng: random.Random) -> str:
    return rng.choice([style for style in STYLES if style != "never"])
