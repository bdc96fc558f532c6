"""What a client was told that it has declared is in the log: whoever owns the vhost next has it, messages or not."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions

from cluster.engine_rigs import on_one_engine
from cluster.replicated import PATIENCE, Cluster, Replicated, drained
from cluster.test_held_publishers import without_quorum
from management.conftest import Http
from support import eventually

pytestmark = on_one_engine


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


class Declaring(threading.Thread):
    """A client that declares and binds queues, one by one, and deletes each third again, until it is told that it is to end, or
    cannot go on. `told` and `gone` are the queues that it was told are there, or deleted; of the last one it knows nothing, and
    the next client has others.
    """

    def __init__(self, channel: Any, prefix: str = "amid") -> None:
        super().__init__()
        self.told: set[str] = set()
        self.gone: set[str] = set()
        self.is_over = False
        self._channel = channel
        self._prefix = prefix
        self.start()

    def run(self) -> None:
        number = 0
        try:
            while not self.is_over:
                number += 1
                name = f"{self._prefix}-{number}"
                self._channel.queue_declare(name, durable=True)
                self._channel.queue_bind(name, "amq.direct", name)
                self._channel.basic_publish("amq.direct", name, b"1", pika.BasicProperties(delivery_mode=2))
                self.told.add(name)
                if number % 3 == 0:
                    before = f"{self._prefix}-{number - 1}"
                    self.told.discard(before)
                    self._channel.queue_delete(before)
                    self.gone.add(before)
        except pika.exceptions.AMQPError:
            pass  # its owner was killed

    def finish(self) -> None:
        self.is_over = True
        self.join(PATIENCE)
        assert not self.is_alive()

    def is_kept_by(self, vhost: Replicated) -> None:
        """Whoever owns the vhost has what it was told, each with its binding and its message."""
        owner = vhost.cluster.nodes[vhost.owner]
        rows = json.loads(owner.ctl("list_queues", "-p", vhost.name, "name", "messages", "--formatter", "json"))
        found = {row["name"]: row["messages"] for row in rows}
        assert {name: found.get(name) for name in self.told} == dict.fromkeys(self.told, 1)
        assert not self.gone & set(found)
        bound = owner.ctl("list_bindings", "-p", vhost.name, "source_name", "routing_key", "-q").splitlines()
        assert {f"amq.direct\t{name}" for name in self.told} <= set(bound)


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


def test_a_deletion_that_the_log_has_not_takes_no_message_from_anybody(cluster: Cluster, vhost: Replicated):
    """It is cut short with its owner, which comes back, and owns the vhost again: what the others have is here, too."""
    before = vhost.owner
    publisher = vhost.publisher(before)
    publisher.queue_declare("kept", durable=True)
    for number in range(50):
        publisher.basic_publish("", "kept", str(number).encode(), pika.BasicProperties(delivery_mode=2))
    for server in cluster.servers.all:
        server.kill()
    asking = Asking(lambda: publisher.queue_delete("kept"))
    eventually(lambda: "kept" not in cluster.nodes[before].ctl("list_queues", "-q", "-p", vhost.name), timeout=PATIENCE)
    cluster.nodes[before].signal(signal.SIGKILL)
    assert asking.finish() == "not told"
    cluster.servers.start_again()
    vhost.owner = vhost.find_owner(other_than=before)
    cluster.start()
    eventually(lambda: vhost.position_at(before) >= vhost.position_at(vhost.owner), timeout=PATIENCE)
    cluster.nodes[vhost.owner].ctl("transfer_vhost", vhost.name, before)
    vhost.owner = vhost.find_owner(other_than=vhost.owner)
    assert vhost.owner == before
    assert [number for number, _ in drained(vhost.connect(before), "kept")] == list(range(50))


def test_declarations_amid_which_their_owner_is_killed(cluster: Cluster, vhost: Replicated):
    """Twice: the second owner's first block has all, and its next ones what has changed."""
    for prefix in ("first", "second"):
        owner = vhost.owner
        declaring = Declaring(vhost.publisher(owner), prefix)
        eventually(lambda one=declaring: len(one.told) >= 40, timeout=PATIENCE)
        cluster.nodes[owner].signal(signal.SIGKILL)
        declaring.finish()
        vhost.owner = vhost.find_owner(other_than=owner)
        declaring.is_kept_by(vhost)
        channel = vhost.connect(vhost.owner).channel()
        for name in declaring.told:
            channel.queue_delete(name)
        cluster.start()


def test_a_replica_that_comes_amid_declarations_has_them_all(cluster: Cluster, vhost: Replicated):
    owner = cluster.nodes[vhost.owner]
    new = next(name for name in cluster.nodes if name != vhost.owner)
    owner.ctl("delete_member", vhost.name, new)
    declaring = Declaring(vhost.publisher(vhost.owner))
    eventually(lambda: len(declaring.told) >= 40, timeout=PATIENCE)
    owner.ctl("add_member", vhost.name, new)
    before = len(declaring.told)
    eventually(lambda: vhost.position_at(new) > 0 and len(declaring.told) > before + 20, timeout=PATIENCE)
    declaring.finish()
    eventually(lambda: vhost.position_at(new) >= vhost.position_at(vhost.owner), timeout=PATIENCE)
    owner.ctl("transfer_vhost", vhost.name, new)
    vhost.owner = vhost.find_owner(other_than=vhost.owner)
    declaring.is_kept_by(vhost)
