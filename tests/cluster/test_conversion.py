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
from cluster.replicated import PATIENCE, Cluster, Replicated
from cluster.stubborn import Stubborn
from cluster.test_checkpoints import first_of_log
from cluster.test_cluster_status import asked
from cluster.test_hand_over import assert_nothing_lost
from durability.trouble import Trouble, compile_library
from perf.engines.servers import Servers
from support import eventually, unique

pytestmark = pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")

PERSISTENT = pika.BasicProperties(delivery_mode=2)
SIZES = (0, 10, 3_000, 5_000, 200_000)  # some go to the journal, some to the message store


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

    def restored(self, file: Path, replicas: str) -> Plain:
        """Another vhost, of a backup of this one."""
        copy = Plain.__new__(Plain)
        copy.__dict__.update(self.__dict__, name=unique("copy"), connections=[], kept={queue: list(bodies) for queue, bodies in self.kept.items()})
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
def test_all_that_a_restart_keeps_is_there_before_and_after(cluster: Cluster, plain: Plain, seed: int):
    """At the owner, at the one that takes over when that is killed, and at one node again; a second time, too."""
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
    plain.node.crash()
    plain.node.start()
    plain.check("one")
    plain.node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    eventually(plain.is_replicated, timeout=PATIENCE)
    plain.kill_owner()
    plain.check(plain.owner)


def test_a_publisher_is_closed_and_comes_back(cluster: Cluster, plain: Plain):
    """The API does the same as the commands."""
    plain.connect("one").channel().queue_declare("orders", durable=True)
    with Stubborn(cluster, plain).publishing() as stubborn:
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


def test_backed_up_as_a_plain_one_and_replicated_again(cluster: Cluster, plain: Plain, tmp_path: Path):
    """Of the backup, a plain and a replicated one; and the one that goes on, whose log is trimmed behind checkpoints as ever."""
    plain.fill(6)
    plain.node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    plain.node.ctl("unreplicate_vhost", plain.name)
    eventually(plain.is_plain, timeout=PATIENCE)
    plain.node.ctl("backup_vhost", plain.name, str(tmp_path / "file"))
    copies = [plain.restored(tmp_path / "file", replicas) for replicas in ("0", "3")]
    plain.node.crash()
    plain.node.start()
    plain.node.ctl("replicate_vhost", plain.name, "--replicas", "3")
    plain.owner = plain.find_owner()
    channel = plain.publisher(plain.owner)
    for number in range(40):
        body = f"again {number}".encode().ljust(100_000)
        channel.basic_publish("", "classic", body, PERSISTENT)
        plain.kept["classic"].append(body)
        method, _, body = channel.basic_get("classic")
        assert body == plain.kept["classic"].pop(0)
        channel.basic_ack(method.delivery_tag)
    channel.connection.close()
    eventually(lambda: first_of_log(plain) > 1, timeout=PATIENCE, interval=0.2)
    plain.kill_owner()
    plain.check(plain.owner)
    cluster.start()
    for copy in copies:
        copy.check("one")
        copy.close()
