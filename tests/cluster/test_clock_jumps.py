"""Clocks of nodes and of the engine's servers that jump by an hour: leases rest on clocks that only go on."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from cluster.engine_rigs import require
from cluster.replicated import PATIENCE, Cluster, Replicated, drained, publish
from cluster.stubborn import Stubborn
from cluster.test_hand_over import assert_nothing_lost, declare
from cluster.wrong_clock import WrongClock, compile_library
from perf.engines import postgres
from perf.engines.postgres import PostgresServers
from perf.engines.servers import Place, Servers, running
from rabbitpy_broker.cluster.postgres.names import SeenLeases
from support import eventually

LEASE_MS = 2000
HOUR = 3600
SOON_S = 30.0  # for an owner behind a kill: a lease, and what a machine with busy cores adds


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """That everybody may enter: the engine's servers have a user of their own."""
    folder = Path(tempfile.mkdtemp(prefix="rabbitpy-clocks-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return compile_library(folder)


@pytest.fixture(scope="module")
def server_clock(folder: Path, library: Path) -> WrongClock:
    """Of PostgreSQL's servers."""
    return WrongClock(library, folder / "servers")


@pytest.fixture(scope="module")
def engine_servers(folder: Path, server_clock: WrongClock) -> Iterator[Servers]:
    """PostgreSQL's, which tell when a lease ends; on Kafka the nodes do."""
    require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    (folder / "postgres").mkdir()
    inside = ("env", *(f"{name}={value}" for name, value in server_clock.env.items()))
    servers = PostgresServers(folder / "postgres", [Place(inside=inside)] * 3)
    with running(servers):
        yield servers


@pytest.fixture(scope="module")
def clocks(library: Path, folder: Path) -> dict[str, WrongClock]:
    """Of the nodes."""
    return {name: WrongClock(library, folder / name) for name in ("one", "two", "three")}


@pytest.fixture(scope="module")
def cluster(
    engine_servers: Servers, clocks: dict[str, WrongClock], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("nodes"), engine_servers, engine_servers.url)
    for name, node in cluster.nodes.items():
        node.config["cluster"]["lease"] = LEASE_MS
        node.env.update(clocks[name].env)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def owned(cluster: Cluster, vhost: Replicated) -> int:
    """How often somebody has begun to own it."""
    return sum(
        line["vhost"] == vhost.name for node in cluster.nodes.values() if node.alive() for line in node.events("vhost owned")
    )


def goes_on_for_two_leases(stubborn: Stubborn) -> None:
    until = time.monotonic() + 2 * LEASE_MS / 1000
    stubborn.goes_on()
    eventually(lambda: time.monotonic() > until, timeout=PATIENCE)
    stubborn.goes_on()


def is_taken_over(cluster: Cluster, vhost: Replicated) -> str:
    """The owner is killed: the name of the next."""
    former = vhost.find_owner()
    cluster.nodes[former].crash()
    died = time.monotonic()
    owner = vhost.find_owner(other_than=former)
    assert time.monotonic() - died < SOON_S
    return owner


def test_a_node_whose_clock_jumps_is_no_better_and_no_worse(
    cluster: Cluster, vhost: Replicated, clocks: dict[str, WrongClock]
):
    """Neither an owner's nor a follower's moves the vhost, nor does it keep it from being taken over."""
    declare(vhost)
    owner = vhost.owner
    follower = next(name for name in cluster.nodes if name != owner)
    with Stubborn(cluster, vhost).going_on() as stubborn:
        stubborn.goes_on()
        clocks[owner].jump(HOUR)
        clocks[follower].jump(-HOUR)
        goes_on_for_two_leases(stubborn)
        clocks[owner].jump(-HOUR)
        clocks[follower].jump(HOUR)
        stubborn.goes_on()
        assert owned(cluster, vhost) == 1
        is_taken_over(cluster, vhost)
        stubborn.goes_on()
    assert_nothing_lost(vhost, stubborn)
    for clock in clocks.values():
        clock.jump(0)


def test_the_servers_clock_jumps(cluster: Cluster, vhost: Replicated, server_clock: WrongClock):
    """Forward ends nobody's lease, back has the lease of an owner that is killed then end no later than any other's."""
    declare(vhost)
    with Stubborn(cluster, vhost).going_on() as stubborn:
        stubborn.goes_on()
        server_clock.jump(HOUR)
        goes_on_for_two_leases(stubborn)
        assert owned(cluster, vhost) == 1
        cluster.nodes[vhost.owner].signal(signal.SIGSTOP)  # it renews no more, and its lease is still there
        server_clock.jump(-HOUR)
        vhost.find_owner(other_than=vhost.owner)
        cluster.nodes[vhost.owner].signal(signal.SIGCONT)
        stubborn.goes_on()
    assert_nothing_lost(vhost, stubborn)
    server_clock.jump(0)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_a_former_owner_that_wakes_at_another_time_delivers_and_confirms_nothing(
    cluster: Cluster, vhost: Replicated, clocks: dict[str, WrongClock], seconds: int
):
    """As of a machine that was suspended: its lease has not come back, whatever time it is."""
    node = cluster.nodes[vhost.owner]
    publisher = vhost.publisher(vhost.owner)
    publisher.queue_declare("work", durable=True)
    publish(publisher, "work", range(5))
    channel = vhost.connect(vhost.owner).channel()
    channel.basic_qos(prefetch_count=1)
    came: list[int] = []
    channel.basic_consume("work", lambda _channel, _method, _properties, body: came.append(int(body)))
    eventually(lambda: channel.connection.process_data_events(0.05) or came)
    node.signal(signal.SIGSTOP)
    try:
        channel.basic_ack(1)
        successor = vhost.find_owner(other_than=vhost.owner)
        assert [number for number, _ in drained(vhost.connect(successor), "work")] == list(range(5))
        clocks[vhost.owner].jump(seconds)
    finally:
        node.signal(signal.SIGCONT)
    with pytest.raises(pika.exceptions.AMQPError):
        publish(publisher, "work", [5])
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        while True:
            channel.connection.process_data_events(1.0)
    assert closed.value.reply_code == 320
    assert came == [0]
    clocks[vhost.owner].jump(0)


# -- what is seen of leases in PostgreSQL --------------------------------------------------------------------------------------


class Seeing:
    """A node that looks at one lease each second."""

    def __init__(self) -> None:
        self.leases = SeenLeases()
        self.leases.lasts_s = 5.0
        self.now = 100.0

    def alive(self, ends: int, left: float) -> bool:
        self.now += 1
        return bool(self.leases.alive([{"node": "a", "info": b"", "ends": ends, "left": left}], self.now, self.now))


def test_a_server_that_is_set_forward_ends_no_lease():
    node = Seeing()
    assert node.alive(1, 4.5)
    assert node.alive(1, 3.5 - HOUR), "it was renewed half a second before we looked first"
    assert node.alive(2, 4.5 - HOUR), "it was renewed since, and then the clock was set"
    for _ in range(4):
        assert node.alive(2, -HOUR)
    assert not node.alive(2, -HOUR)


def test_a_server_that_is_set_back_prolongs_no_lease():
    node = Seeing()
    assert node.alive(1, 4.5)
    for _ in range(5):
        alive = node.alive(2, 4.5 + HOUR)
    assert alive
    assert not node.alive(2, HOUR)
    assert node.alive(3, 4.0), "it is back"


def test_a_lease_that_ends_when_it_says_so():
    node = Seeing()
    assert node.alive(1, 1.5)
    assert node.alive(1, 0.5)
    assert not node.alive(1, -0.5)
    assert not node.alive(1, -1.5)
    assert node.alive(2, 4.9)
    assert not Seeing().alive(1, -0.1)
