"""Messages that go round between the queue that they are rejected from and the one that they wait in to be tried again, while
their vhost becomes replicated, changes its owner and becomes plain: each is in one place at any time, and none is let go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from cluster.engine_rigs import on_one_engine
from cluster.replicated import PATIENCE, Cluster, drained, publish
from cluster.stubborn import GoingOn
from cluster.test_conversion import Plain
from support import eventually

pytestmark = on_one_engine

MESSAGES = 40
WAIT_MS = 100


class Rejecting(GoingOn):
    """A consumer of `work` that rejects all that it gets, at whichever node has the vhost; `times` says how often each number."""

    def __init__(self, cluster: Cluster, vhost: Plain) -> None:
        super().__init__()
        self.times: Counter[int] = Counter()
        self._cluster = cluster
        self._vhost = vhost

    def _run(self) -> None:
        while not self._is_over.is_set():
            for node in list(self._cluster.nodes.values()):
                try:
                    self._reject(node)
                except (pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError):
                    pass  # the vhost is not here, or not any more

    def _reject(self, node: BrokerProcess) -> None:
        if not node.alive():
            return
        connection = pika.BlockingConnection(node.parameters(vhost=self._vhost.name))
        try:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=7)
            for method, _, body in channel.consume("work", inactivity_timeout=0.1):
                if self._is_over.is_set():
                    return
                if method is not None:
                    channel.basic_reject(method.delivery_tag, requeue=False)
                    self.times[int(body)] += 1
        finally:
            if connection.is_open:
                connection.close()

    def goes_round(self) -> None:
        """Returns when each message has come twice more, so that it was in both queues meanwhile."""
        before = {number: self.times[number] for number in range(MESSAGES)}
        eventually(lambda: all(self.times[number] >= times + 2 for number, times in before.items()), timeout=PATIENCE)


@pytest.fixture
def plain(cluster: Cluster) -> Iterator[Plain]:
    """A vhost of node one."""
    plain = Plain(cluster)
    yield plain
    plain.close()


def test_messages_that_go_round_outlive_conversion_and_take_over(cluster: Cluster, plain: Plain):
    channel = plain.publisher("one")
    channel.exchange_declare("again", "direct", durable=True)
    for queue, arguments in (
        ("work", {"x-dead-letter-exchange": "again", "x-dead-letter-routing-key": "wait"}),
        ("wait", {"x-message-ttl": WAIT_MS, "x-dead-letter-exchange": "again", "x-dead-letter-routing-key": "work"}),
    ):
        channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.queue_bind(queue, "again", queue)
    publish(channel, "work", range(MESSAGES))
    channel.connection.close()
    with Rejecting(cluster, plain).going_on() as rejecting:
        rejecting.goes_round()
        plain.node.ctl("replicate_vhost", plain.name, "--replicas", "3")
        rejecting.goes_round()
        eventually(lambda: all(plain.position_at(name) > 0 for name in cluster.nodes), timeout=PATIENCE)
        plain.kill_owner()
        rejecting.goes_round()
        cluster.nodes[plain.owner].ctl("unreplicate_vhost", plain.name)
        rejecting.goes_round()
        cluster.nodes[plain.owner].crash()
        cluster.nodes[plain.owner].start()
        rejecting.goes_round()
    cluster.start()
    connection = plain.connect(plain.owner)
    found: list[int] = []

    def are_all_there() -> bool:
        found.extend(number for number, _ in drained(connection, "work"))
        return len(found) >= MESSAGES

    eventually(are_all_there, timeout=PATIENCE)
    assert sorted(found) == list(range(MESSAGES))
    for queue in ("work", "wait"):
        assert connection.channel().queue_declare(queue, passive=True).method.message_count == 0
