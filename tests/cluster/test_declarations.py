"""What a client was told that it has declared is in the log: whoever owns the vhost next has it, messages or not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pika
import pika.exceptions
import pytest

from cluster.replicated import PATIENCE, Cluster, Replicated
from cluster.test_held_publishers import without_quorum
from management.conftest import Http
from support import eventually

pytestmark = pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")


class Asking(threading.Thread):
    """Something that a client asks for, in a thread of its own; `outcome` is "told" when it was told that it is done."""

    def __init__(self, ask: Callable[[], object]) -> None:
        super().__init__()
        self.outcome = ""
        self._ask = ask
        self.start()

    def run(self) -> None:
        try:
            self._ask()
            self.outcome = "told"
        except pika.exceptions.AMQPError:
            self.outcome = "not told"

    def finish(self) -> str:
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.outcome


def has_queue(vhost: Replicated, name: str) -> bool:
    channel = vhost.connect(vhost.owner).channel()
    try:
        channel.queue_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    return True


def is_held(cluster: Cluster, vhost: Replicated) -> bool:
    return vhost.name in cluster.nodes[vhost.owner].ctl("alarms")


def test_declarations_of_one_connection_are_answered_in_order(vhost: Replicated):
    channel = vhost.connect(vhost.owner).channel()
    for number in range(20):
        assert channel.queue_declare(f"in order {number}", durable=True).method.queue == f"in order {number}"
        channel.queue_bind(f"in order {number}", "amq.direct", "all")
    channel.basic_publish("amq.direct", "all", b"1")
    assert [channel.queue_declare(f"in order {number}", passive=True).method.message_count for number in range(20)] == [1] * 20


def test_a_declaration_that_was_told_outlives_its_owner(cluster: Cluster, vhost: Replicated):
    channel = vhost.connect(vhost.owner).channel()
    channel.queue_declare("told", durable=True)
    cluster.nodes[vhost.owner].signal(signal.SIGKILL)
    vhost.owner = vhost.find_owner(other_than=vhost.owner)
    assert has_queue(vhost, "told")


def test_what_was_declared_by_http_outlives_its_owner(cluster: Cluster, vhost: Replicated):
    http = Http(cluster.nodes[vhost.owner].management)
    assert http("PUT", f"queues/{vhost.name}/by-http", {"durable": True}).status == 201
    cluster.nodes[vhost.owner].signal(signal.SIGKILL)
    vhost.owner = vhost.find_owner(other_than=vhost.owner)
    assert has_queue(vhost, "by-http")


def test_a_declaration_is_not_told_before_the_log_has_it(cluster: Cluster, vhost: Replicated):
    before = vhost.owner
    channel = vhost.connect(before).channel()
    bystander = vhost.connect(before).channel()
    with without_quorum(cluster):
        asking = Asking(lambda: channel.queue_declare("early", durable=True))
        eventually(lambda: is_held(cluster, vhost), timeout=PATIENCE)
        assert asking.outcome == ""
        assert bystander.queue_declare("", exclusive=True).method.message_count == 0  # nothing of it is in the log
        cluster.nodes[before].signal(signal.SIGKILL)
        assert asking.finish() == "not told"
    vhost.owner = vhost.find_owner(other_than=before)
    assert vhost.connect(vhost.owner).channel().queue_declare("early", durable=True).method.queue == "early"


def test_a_declaration_that_waited_is_told_when_the_engine_is_back(cluster: Cluster, vhost: Replicated):
    channel = vhost.connect(vhost.owner).channel()
    with without_quorum(cluster):
        asking = Asking(lambda: channel.queue_declare("late", durable=True))
        eventually(lambda: is_held(cluster, vhost), timeout=PATIENCE)
        assert asking.outcome == ""
    assert asking.finish() == "told"
    assert has_queue(vhost, "late")
