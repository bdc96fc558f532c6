"""A rolling upgrade of a cluster under load: each node in turn is drained, stopped, and started again."""

from __future__ import annotations

import threading

import pika
import pika.exceptions

from cluster.replicated import Cluster, Replicated
from cluster.stubborn import Stubborn


class Reader:
    """A consumer that acks, and goes on with any node when it is closed. `numbers` are the messages, in order, as they came."""

    def __init__(self, cluster: Cluster, vhost: Replicated) -> None:
        self.numbers: list[int] = []
        self._cluster = cluster
        self._vhost = vhost
        self._last = -1
        self.is_level = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def until(self, last: int) -> None:
        """Reads up to this number, and ends."""
        self._last = last
        self.thread.join(120)
        assert self.is_level.is_set()

    def _run(self) -> None:
        while not self.is_level.is_set():
            for node in list(self._cluster.nodes.values()):
                if node.alive() and not self.is_level.is_set():
                    try:
                        self._read(pika.BlockingConnection(node.parameters(vhost=self._vhost.name)))
                    except (pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError):
                        pass

    def _read(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        for method, _, body in channel.consume("orders", inactivity_timeout=0.2):
            if method is not None:
                self.numbers.append(int(body))
                channel.basic_ack(method.delivery_tag)
            if self._last >= 0 and self._last in self.numbers:
                self.is_level.set()
                connection.close()
                return


def test_nothing_is_lost_while_one_node_after_the_other_is_upgraded(cluster: Cluster, vhost: Replicated):
    """And the order is kept."""
    vhost.connect(vhost.owner).channel().queue_declare("orders", durable=True)
    reader = Reader(cluster, vhost)
    with Stubborn(cluster, vhost).going_on() as stubborn:
        reader.thread.start()
        stubborn.goes_on()
        for node in cluster.nodes.values():
            for step in (lambda node=node: node.ctl("drain"), node.stop, node.start):
                step()
                stubborn.goes_on()
                print(f"longest time without a confirm: {stubborn.take_gap():.2f} s")
    reader.until(stubborn.confirmed - 1)
    firsts = list(dict.fromkeys(reader.numbers))
    assert firsts[: stubborn.confirmed] == list(range(stubborn.confirmed))
