"""A vhost becomes replicated, and plain again, while clients publish; and is one of the two when a node is killed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess, CtlFailed
from cluster.engine_rigs import on_one_engine
from cluster.pipelined import MANDATORY_EACH, Pipelined
from cluster.replicated import PATIENCE, Cluster, Replicated, drained, publish
from cluster.stubborn import Stubborn
from cluster.test_checkpoints import directory
from cluster.test_cluster_status import asked
from cluster.test_hand_over import assert_nothing_lost, lines
from cluster.test_own_lease import asleep
from durability.trouble import Trouble, compile_library
from perf.engines.servers import Servers
from support import eventually, unique

pytestmark = on_one_engine

PERSISTENT = pika.BasicProperties(delivery_mode=2)
SIZES = (0, 10, 3_000, 5_000, 200_000)  # some go to the journal, some to the message store

QUEUES: dict[str, dict[str, Any]] = {
    "work": {},
    "due": {},
    "dead": {},
    "short": {"x-message-ttl": 500, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "ranked": {"x-max-priority": 3},
    "history": {"x-queue-type": "stream"},
    "outstanding 0": {},
    "outstanding 1": {},
}


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Trouble:
    """Of the disk of node one."""
    folder = tmp_path_factory.mktemp("trouble")
    return Trouble(compile_library(folder), folder)


@pytest.fixture(scope="module")
def cluster(engine_servers: Servers, trouble: Trouble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("nodes"), engine_servers, engine_servers.url)
    cluster.nodes["one"].env.update(trouble.env)
    try:
        cluster.start()
        yield cluster
    finally:
        trouble.end()
        cluster.stop()


class Plain(Replicated):
    """A vhost of node one, which is not replicated yet; `kept` has what its queues are to have: name -> bodies."""

    def __init__(self, cluster: Cluster) -> None:
        self.name = unique("converted")
        self.cluster = cluster
        self.connections = []
        self.owner = "one"
        self.kept: dict[str, list[bytes]] = {}
        cluster.start()
        for name in cluster.nodes:
            eventually(lambda name=name: set(cluster.nodes) <= self.nodes_seen_by(name), timeout=PATIENCE)
        self.node.ctl("add_vhost", self.name)
        self.node.ctl("set_permissions", "-p", self.name, "guest", ".*", ".*", ".*")

    @property
    def node(self) -> BrokerProcess:
        return self.cluster.nodes["one"]

    def fill(self, seed: int) -> None:
        """Publishes to queues of all kinds, acks some, and leaves what a restart lets go."""
        dice = random.Random(seed)
        connection = self.connect("one")
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("topics", "topic", durable=True)
        for queue, kind in (("classic", "classic"), ("quorum", "quorum"), ("stream", "stream")):
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
            channel.queue_bind(queue, "topics", f"{queue}.#")
            bodies = [f"{queue} {number} ".encode() + dice.randbytes(dice.choice(SIZES)) for number in range(40)]
            for body in bodies:
                channel.basic_publish("topics", f"{queue}.x", body, PERSISTENT)
            self.kept[queue] = bodies
        for queue in ("classic", "quorum"):
            gone = dice.randrange(1, 20)
            for _ in range(gone):
                method, _, body = channel.basic_get(queue)
                assert method is not None and body == self.kept[queue].pop(0)
                channel.basic_ack(method.delivery_tag)
        channel.basic_publish("", "classic", b"transient")
        channel.queue_declare("mine", exclusive=True)
        self.node.ctl("set_policy", "-p", self.name, "long", "^classic$", '{"max-length": 100000}')
        connection.close()

    def check(self, name: str) -> None:
        """The vhost at this node has what is kept, in order, and takes it: nothing of that is acked."""
        channel = self.connect(name).channel()
        channel.queue_declare("classic", durable=True, passive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            self.connect(name).channel().queue_declare("mine", passive=True)
        for queue in ("classic", "quorum"):
            found = []
            while (got := channel.basic_get(queue))[0] is not None:
                found.append(got[2])
            assert found == self.kept[queue]
        channel.basic_qos(prefetch_count=100)
        bodies: list[bytes] = []
        for method, _, body in channel.consume("stream", arguments={"x-stream-offset": "first"}):
            bodies.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(bodies) == len(self.kept["stream"]):
                break
        assert bodies == self.kept["stream"]
        self.connections[-2].close()
        assert "long" in self.cluster.nodes[name].ctl("list_policies", "-p", self.name)

    def replace_most(self, name: str) -> None:
        """At this node: more than the first checkpoint has."""
        channel = self.publisher(name)
        for number in range(60):
            new = str(number).encode().ljust(200_000)
            channel.basic_publish("", "classic", new, PERSISTENT)
            self.kept["classic"].append(new)
            method, _, body = channel.basic_get("classic")
            assert method is not None and body == self.kept["classic"].pop(0)
            channel.basic_ack(method.delivery_tag)
        channel.connection.close()

    def restored(self, file: Path, replicas: str) -> Plain:
        """Another vhost, of a backup of this one."""
        copy = Plain.__new__(Plain)
        kept = {queue: list(bodies) for queue, bodies in self.kept.items()}
        copy.__dict__.update(self.__dict__, name=unique("copy"), connections=[], kept=kept)
        self.node.ctl("restore_vhost", copy.name, str(file), "--replicas", replicas)
        self.node.ctl("set_permissions", "-p", copy.name, "guest", ".*", ".*", ".*")
        return copy

    def is_plain(self) -> bool:
        """At node one, and nothing is left of it elsewhere."""
        others = [node for name, node in self.cluster.nodes.items() if name != "one" and node.alive()]
        row = asked(self.node, f"vhosts/{self.name}")[1]
        return "replicas" not in row.get("metadata", {"replicas": 0}) and all(self.rows(node) == [] for node in others)

    def rows(self, node: BrokerProcess) -> list[dict[str, Any]]:
        status = json.loads(node.ctl("cluster_status", "--formatter", "json"))
        return [one for one in status["replicated_vhosts"] if one["name"] == self.name]

    def is_replicated(self) -> bool:
        """On all nodes, each level with the log, and one of them owns it."""
        rows = self.rows(self.cluster.nodes["two"])
        return bool(rows and rows[0]["owner"]) and [one["lag"] for one in rows[0]["replicas"]] == [0, 0, 0]

    def begin(self, *command: str) -> Thread:
        """Gives a command whose answer may not come."""

        def give() -> None:
            try:
                self.node.ctl(*command)
            except CtlFailed:
                pass  # the node was killed

        thread = Thread(target=give)
        thread.start()
        return thread

    def kill_owner(self) -> None:
        owner = self.find_owner()
        self.cluster.nodes[owner].crash()
        self.owner = self.find_owner(other_than=owner)


@pytest.fixture
def plain(cluster: Cluster, trouble: Trouble) -> Iterator[Plain]:
    plain = Plain(cluster)
    yield plain
    trouble.end()
    trouble.forget()
    plain.close()


@pytest.mark.parametrize("seed", [1])
def test_all_that_a_restart_keeps_is_there_before_and_after(cluster: Cluster, plain: Plain, seed: int, tmp_path: Path):
    """At the owner, at the one that takes over when that is killed, and at one node again; a second time, too, when there are
    checkpoints as ever. A backup of the time in between has it all.
    """
    plain.fill(seed)
    plain.node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    plain.check("one")
    eventually(plain.is_replicated, timeout=PATIENCE)
    plain.kill_owner()
    plain.check(plain.owner)
    cluster.start()
    eventually(plain.is_replicated, timeout=PATIENCE)
    cluster.nodes[plain.find_owner()].ctl("transfer_vhost", plain.name, "one")
    plain.node.ctl("unreplicate_vhost", plain.name)
    plain.check("one")
    eventually(plain.is_plain, timeout=PATIENCE)
    plain.node.ctl("backup_vhost", plain.name, str(tmp_path / "file"))
    copies = [plain.restored(tmp_path / "file", replicas) for replicas in ("0", "3")]
    plain.node.crash()
    plain.node.start()
    plain.check("one")
    plain.node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    eventually(plain.is_replicated, timeout=PATIENCE)
    plain.replace_most(plain.find_owner())
    eventually(lambda: any(lines(node, "checkpoint", plain.name) for node in cluster.nodes.values()), timeout=PATIENCE)
    plain.kill_owner()
    plain.check(plain.owner)
    cluster.start()
    for copy in copies:
        copy.check(copy.find_owner())
        copy.close()


def test_a_publisher_is_closed_and_comes_back(cluster: Cluster, plain: Plain):
    """The API does the same as the commands."""
    plain.connect("one").channel().queue_declare("orders", durable=True)
    with Stubborn(cluster, plain).going_on() as stubborn:
        stubborn.goes_on()
        assert asked(plain.node, f"vhosts/{plain.name}", {"replicas": 3}, "PUT")[0] == 204
        stubborn.goes_on()
        assert any(f"vhost '{plain.name}' becomes a replicated one" in text for text in stubborn.texts)
        assert asked(plain.node, f"vhosts/{plain.name}", {"replicas": 0}, "PUT")[0] == 204
        stubborn.goes_on()
        assert any("stays with node 'one' alone" in text for text in stubborn.texts)
        eventually(plain.is_plain, timeout=PATIENCE)
        plain.node.ctl("replicate_vhost", plain.name, "--replicas", "2")
        stubborn.goes_on()
    assert_nothing_lost(plain, stubborn)


def test_what_cannot_be_converted_stays_as_it_is(cluster: Cluster, plain: Plain):
    node, other = plain.node, cluster.nodes["two"]
    connection = plain.connect("one")
    with pytest.raises(CtlFailed, match="nodes that have a vhost of that name which is not replicated: three, two"):
        node.ctl("replicate_vhost", "/", "--replicas", "3")
    with pytest.raises(CtlFailed, match="4 replicas need as many nodes, and there are 3"):
        node.ctl("replicate_vhost", plain.name, "--replicas", "4")
    with pytest.raises(CtlFailed, match="--replicas is needed"):
        node.ctl("replicate_vhost", plain.name)
    with pytest.raises(CtlFailed, match="does not own it"):
        node.ctl("unreplicate_vhost", plain.name)
    connection.process_data_events()
    assert connection.is_open
    node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    with pytest.raises(CtlFailed, match="it is replicated"):
        node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    eventually(plain.is_replicated, timeout=PATIENCE)
    with pytest.raises(CtlFailed, match="node 'one' owns it"):
        other.ctl("unreplicate_vhost", plain.name)


@pytest.mark.parametrize("step", ["the note is written", "the checkpoint is stored"])
def test_a_node_that_is_killed_before_it_is_decided_has_the_vhost_as_it_was(
    cluster: Cluster, plain: Plain, trouble: Trouble, step: str
):
    """And the command can be given again."""
    plain.fill(3)
    calls, held = ("rename", "/log_position") if step == "the note is written" else ("read", "/checkpoint/")
    trouble.hold(calls, held)
    thread = plain.begin("replicate_vhost", plain.name, "--replicas", "3")
    eventually(lambda: trouble.met(held), timeout=PATIENCE)
    plain.node.crash()
    thread.join()
    trouble.end()
    plain.node.start()
    eventually(lambda: cluster.is_open_at(plain.name, "one") and plain.is_plain(), timeout=PATIENCE)
    plain.check("one")
    plain.node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    eventually(plain.is_replicated, timeout=PATIENCE)
    plain.kill_owner()
    plain.check(plain.owner)


def test_a_node_that_is_killed_when_it_is_decided_has_it_replicated(cluster: Cluster, plain: Plain, trouble: Trouble):
    """Another node has taken the vhost over meanwhile, and what is confirmed there is not lost when it comes back."""
    plain.fill(4)
    trouble.hold("read", "/checkpoint/")
    thread = plain.begin("replicate_vhost", plain.name, "--replicas", "3")
    eventually(lambda: trouble.met("/checkpoint/"), timeout=PATIENCE)
    trouble.hold(("write", "sync"), "definitions.sqlite")
    trouble.end("/checkpoint/")
    eventually(lambda: len(plain.rows(cluster.nodes["two"])) == 1, timeout=PATIENCE)
    plain.node.crash()
    thread.join()
    trouble.end()
    plain.owner = plain.find_owner(other_than="one")
    plain.publisher(plain.owner).basic_publish("", "classic", b"of the other", PERSISTENT)
    plain.kept["classic"].append(b"of the other")
    plain.node.start()
    eventually(plain.is_replicated, timeout=PATIENCE)
    assert not cluster.is_open_at(plain.name, "one")
    plain.check(plain.owner)
    cluster.nodes[plain.owner].ctl("transfer_vhost", plain.name, "one")
    plain.check("one")


def test_a_log_that_has_ended_is_taken_over_by_nobody(cluster: Cluster, plain: Plain, trouble: Trouble):
    """The owner is killed before its own definitions say that the vhost is plain, and others find that it does not live."""
    plain.fill(5)
    plain.node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    eventually(plain.is_replicated, timeout=PATIENCE)
    trouble.hold(("write", "sync"), "definitions.sqlite")
    thread = plain.begin("unreplicate_vhost", plain.name)
    eventually(lambda: trouble.met("definitions"), timeout=PATIENCE)
    plain.node.crash()
    thread.join()
    trouble.end()
    eventually(lambda: "one" not in plain.nodes_seen_by("two") | plain.nodes_seen_by("three"), timeout=PATIENCE)
    plain.node.start()
    eventually(plain.is_plain, timeout=PATIENCE)
    assert not any(cluster.is_open_at(plain.name, name) for name in ("two", "three"))
    assert not any(line["vhost"] == plain.name for name in ("two", "three") for line in cluster.nodes[name].events("vhost owned"))
    plain.check("one")


def test_what_is_refused_while_a_vhost_is_converted(cluster: Cluster, plain: Plain, trouble: Trouble, tmp_path: Path):
    """It is on its way to the engine meanwhile; then it is replicated, and has everything."""
    plain.fill(7)
    node, other = plain.node, cluster.nodes["two"]
    node.ctl("backup_vhost", plain.name, str(tmp_path / "before"))
    definitions = tmp_path / "definitions"
    node.ctl("export_definitions", str(definitions))
    trouble.hold("read", "/checkpoint/")
    thread = plain.begin("replicate_vhost", plain.name, "--replicas", "3")
    eventually(lambda: trouble.met("/checkpoint/"), timeout=PATIENCE)
    refused = [
        (node, "something is done with it already", ["replicate_vhost", plain.name, "--replicas", "2"]),
        (node, "something is done with it already", ["unreplicate_vhost", plain.name]),
        (other, "this node does not have it", ["replicate_vhost", plain.name, "--replicas", "3"]),
        (other, "this node does not own it", ["unreplicate_vhost", plain.name]),
        (node, "it is being made replicated", ["backup_vhost", plain.name, str(tmp_path / "file")]),
        (other, "this node has no replica of it", ["backup_vhost", plain.name, str(tmp_path / "file")]),
        (node, "there is one", ["restore_vhost", plain.name, str(tmp_path / "before"), "--replicas", "0"]),
        (other, "there is", ["restore_vhost", plain.name, str(tmp_path / "before"), "--replicas", "0"]),
        (node, "it is being made replicated", ["delete_vhost", plain.name]),
        (other, "node 'one' is making it", ["delete_vhost", plain.name]),
        (other, "no other node", ["transfer_vhost", plain.name]),
        (other, "there is", ["add_vhost", plain.name, "--replicas", "2"]),
        (node, "it is replicated, or about to be", ["import_definitions", str(definitions)]),
    ]
    for at, text, arguments in refused:
        with pytest.raises(CtlFailed, match=text):
            at.ctl(*arguments)
    assert not (tmp_path / "file").exists()
    trouble.end()
    thread.join()
    eventually(plain.is_replicated, timeout=PATIENCE)
    node.ctl("import_definitions", str(definitions))
    node.ctl("export_definitions", str(definitions))
    (metadata,) = [one for one in json.loads(definitions.read_text())["vhosts"] if one["name"] == plain.name]
    assert metadata["metadata"]["replicas"] == 3
    node.ctl("backup_vhost", plain.name, str(tmp_path / "after"))
    copy = plain.restored(tmp_path / "after", "2")
    copy.check(copy.find_owner())
    copy.close()
    node.ctl("unreplicate_vhost", plain.name)
    plain.check("one")


def test_a_former_owner_that_sleeps_through_the_end_of_the_log(cluster: Cluster, plain: Plain):
    """And a follower that does: they confirm nothing, and have no such vhost, when they wake."""
    plain.connect("one").channel().queue_declare("orders", durable=True)
    plain.node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    eventually(plain.is_replicated, timeout=PATIENCE)
    channel = plain.publisher("one")
    publish(channel, "orders", range(10))
    with asleep(plain.node):
        owner = plain.find_owner(other_than="one")
        (third,) = set(cluster.nodes) - {"one", owner}
        publish(plain.publisher(owner), "orders", range(10, 20))
        with asleep(cluster.nodes[third]):
            cluster.nodes[owner].ctl("unreplicate_vhost", plain.name)
            publish(plain.publisher(owner), "orders", range(20, 30))
    with pytest.raises(pika.exceptions.AMQPError):
        publish(channel, "orders", [1000])
    for name in ("one", third):
        eventually(lambda name=name: not directory(cluster.nodes[name], plain).exists(), timeout=PATIENCE)
        assert not cluster.is_open_at(plain.name, name)
        with pytest.raises(pika.exceptions.AMQPError):
            plain.connect(name)
    cluster.nodes[owner].crash()
    cluster.nodes[owner].start()
    assert [number for number, _ in drained(plain.connect(owner), "orders")] == list(range(30))


def test_what_is_under_way_is_not_lost(cluster: Cluster, plain: Plain):
    """Transactions, unacked messages, delays, dead letters, confirms that are outstanding: there and back."""
    node = plain.node
    channel = plain.publisher("one")
    for queue, arguments in QUEUES.items():
        channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_bind("due", "later")
    for number in range(10):
        channel.basic_publish("", "history", str(number).encode(), PERSISTENT)
    node.ctl("store_offset", "-p", plain.name, "reader", "history", "7")
    for number in range(12):
        channel.basic_publish("", "ranked", str(number).encode(), pika.BasicProperties(delivery_mode=2, priority=number % 3))
    publish(channel, "work", range(10))
    channel.connection.close()
    delayed, expired = 0, 0
    for to, command in enumerate((["replicate_vhost", plain.name, "--replicas", "3"], ["unreplicate_vhost", plain.name])):
        channel = plain.publisher("one")
        for _ in range(20):
            channel.basic_publish("later", "", str(delayed).encode(), after(50 * (delayed % 20) + 1))
            delayed += 1
        channel.basic_publish("later", "", b"-1", after(3_600_000))
        publish(channel, "short", range(expired, expired + 50))
        expired += 50
        transaction = plain.connect("one").channel()
        transaction.tx_select()
        transaction.basic_publish("", "work", b"-1", PERSISTENT)
        acked, _, body = transaction.basic_get("work")
        assert acked is not None and body == b"0"
        transaction.basic_ack(acked.delivery_tag)
        holding = plain.connect("one").channel()
        held = [holding.basic_get("work")[2] for _ in range(3)]
        assert held == [b"1", b"2", b"3"]
        with Pipelined(node, plain.name, f"outstanding {to}").publishing() as pipelined:
            pipelined.goes_on()
            node.ctl(*command)
        assert plain.name in pipelined.reason
        found = [number for number, _ in drained(plain.connect("one"), f"outstanding {to}")]
        assert found == sorted(set(found))
        assert {number for number in pipelined.confirmed if number % MANDATORY_EACH} <= set(found) <= set(range(pipelined.sent))
        assert pipelined.returned >= len([number for number in pipelined.confirmed if number % MANDATORY_EACH == 0])
        for one in (transaction, holding):
            with pytest.raises(pika.exceptions.AMQPError):
                one.basic_get("work")
        if to == 0:
            eventually(plain.is_replicated, timeout=PATIENCE)
            plain.kill_owner()
            cluster.start()
            eventually(plain.is_replicated, timeout=PATIENCE)
            cluster.nodes[plain.find_owner()].ctl("transfer_vhost", plain.name, "one")
    connection = plain.connect("one")
    counted: list[tuple[int, bool]] = []
    eventually(lambda: counted.extend(drained(connection, "due")) or len(counted) >= delayed, timeout=PATIENCE)
    assert sorted(number for number, _ in counted) == list(range(delayed))
    counted.clear()
    eventually(lambda: counted.extend(drained(connection, "dead")) or len(counted) >= expired, timeout=PATIENCE)
    assert sorted(number for number, _ in counted) == list(range(expired))
    work = drained(connection, "work")
    assert [number for number, _ in work] == list(range(10))
    assert all(redelivered for _, redelivered in work[:4])
    assert [number % 3 for number, _ in drained(connection, "ranked")] == [2] * 4 + [1] * 4 + [0] * 4
    assert "7" in node.ctl("query_offset", "-q", "-p", plain.name, "reader", "history").split()


def after(milliseconds: int) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=2, headers={"x-delay": milliseconds})
