"""kill -9 of the owner that hands over, or of the node that is to take over, between each two of their steps."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from threading import Thread

import pytest

from broker_process import BrokerProcess, CtlFailed
from cluster.points import GIVER, TAKER, PointedBroker
from cluster.replicated import PATIENCE, Cluster, Replicated, publish
from cluster.stubborn import Stubborn
from cluster.test_hand_over import assert_nothing_lost, declare
from perf.engines.servers import Servers
from support import eventually, unique

LEASE_MS = 2000
SOON_S = 30.0  # for an owner behind a kill: a lease, and what a machine with busy cores adds
FEW = {"postgres": (("given",), ("claimed",)), "kafka": (("closed",), ())}  # all with --cluster-model-full


@pytest.fixture(scope="module")
def cluster(engine_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    url = engine_servers.url
    if url.startswith("kafka:"):
        url = f"{url.removesuffix('rabbitpy')}{unique('kills')}?flush=false"
    cluster = Cluster(tmp_path_factory.mktemp("nodes"), engine_servers, url)
    for name, node in cluster.nodes.items():
        node.config["cluster"]["lease"] = LEASE_MS
        cluster.nodes[name] = PointedBroker(node.directory, node.config)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def points(url: str, full: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (GIVER, TAKER) if full else FEW["kafka" if url.startswith("kafka:") else "postgres"]


def begin(node: BrokerProcess, *command: str) -> Thread:
    """Gives a command whose answer may not come."""

    def give() -> None:
        try:
            node.ctl(*command)
        except (CtlFailed, subprocess.TimeoutExpired):
            pass  # who was to answer is killed

    thread = Thread(target=give)
    thread.start()
    return thread


def owners(cluster: Cluster, vhost: Replicated) -> list[str]:
    return [name for name, node in cluster.nodes.items() if node.alive() and cluster.is_open_at(vhost.name, name)]


def await_all(cluster: Cluster, vhost: Replicated) -> None:
    for name in cluster.nodes:
        eventually(lambda name=name: set(cluster.nodes) <= vhost.nodes_seen_by(name), timeout=PATIENCE)


def test_a_kill_between_any_two_steps(cluster: Cluster, vhost: Replicated, cluster_model_full: bool):
    """Soon there is one owner, and what was confirmed before, meanwhile and behind it is there, once."""
    declare(vhost)
    of_giver, of_taker = points(cluster.url, cluster_model_full)
    with Stubborn(cluster, vhost).going_on() as stubborn:
        for point in (*of_giver, *of_taker):
            giver = vhost.find_owner()
            taker = next(name for name in cluster.nodes if name != giver)
            stubborn.goes_on()
            dying = cluster.nodes[giver if point in of_giver else taker]
            assert isinstance(dying, PointedBroker)
            dying.die_at(point)
            asked = begin(cluster.nodes[giver], "transfer_vhost", vhost.name, taker)
            eventually(dying.has_died, timeout=PATIENCE)
            died = time.monotonic()
            eventually(lambda: len(owners(cluster, vhost)) == 1, timeout=PATIENCE)
            assert time.monotonic() - died < SOON_S, point
            stubborn.goes_on()
            dying.start()
            asked.join()
            await_all(cluster, vhost)
            stubborn.goes_on()
            assert len(owners(cluster, vhost)) == 1, point
    assert_nothing_lost(vhost, stubborn)


@pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")
def test_a_kill_of_both(cluster: Cluster, vhost: Replicated):
    """The giver when the record has changed, and the taker when it has claimed: the third node takes over, with all of it."""
    declare(vhost)
    giver = vhost.owner
    taker, third = (name for name in cluster.nodes if name != giver)
    publish(vhost.publisher(giver), "orders", range(20))
    for name, point in ((giver, "given"), (taker, "claimed")):
        node = cluster.nodes[name]
        assert isinstance(node, PointedBroker)
        node.die_at(point)
    asked = begin(cluster.nodes[giver], "transfer_vhost", vhost.name, taker)
    for name in (giver, taker):
        node = cluster.nodes[name]
        assert isinstance(node, PointedBroker)
        eventually(node.has_died, timeout=PATIENCE)
    asked.join()
    assert vhost.find_owner() == third
    channel = vhost.publisher(third)
    publish(channel, "orders", range(20, 25))
    assert channel.queue_declare("orders", passive=True).method.message_count == 25
