"""Disks of a cluster that are full: an owner's, a follower's, and those of the engine's servers."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.engine_rigs import require
from cluster.replicated import PATIENCE, Cluster, Replicated
from cluster.stubborn import Stubborn
from cluster.test_hand_over import assert_nothing_lost, declare, lines
from durability.trouble import GROWING, Trouble, compile_library
from perf.engines import postgres
from perf.engines.postgres import PostgresServers
from perf.engines.servers import Place, running
from support import eventually

NODES = ("one", "two", "three")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """That everybody may use: the engine's servers have a user of their own."""
    folder = Path(tempfile.mkdtemp(prefix="rabbitpy-full-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def troubles(folder: Path) -> dict[str, Trouble]:
    """Of the disks of each node, and of all of the engine's servers."""
    library = compile_library(folder)
    library.chmod(0o755)
    found: dict[str, Trouble] = {}
    for name in (*NODES, "servers"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
        found[name] = Trouble(library, folder / name)
    return found


@pytest.fixture(scope="module")
def engine_servers(folder: Path, troubles: dict[str, Trouble]) -> Iterator[PostgresServers]:
    require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    (folder / "postgres").mkdir()
    inside = ("env", *(f"{name}={value}" for name, value in troubles["servers"].env.items()))
    servers = PostgresServers(folder / "postgres", [Place(inside=inside)] * 3)
    with running(servers):
        yield servers


@pytest.fixture(scope="module")
def cluster(
    engine_servers: PostgresServers, troubles: dict[str, Trouble], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("nodes"), engine_servers, engine_servers.url)
    for name, node in cluster.nodes.items():
        node.env.update(troubles[name].env)
    try:
        cluster.start()
        yield cluster
    finally:
        for trouble in troubles.values():
            trouble.end()
        cluster.stop()


@pytest.fixture(autouse=True)
def healed(troubles: dict[str, Trouble]) -> Iterator[None]:
    yield
    for trouble in troubles.values():
        trouble.end()
        trouble.forget()


def test_an_owner_whose_disk_is_full_holds_publishers_until_another_has_the_vhost(
    cluster: Cluster, vhost: Replicated, troubles: dict[str, Trouble]
):
    """It says so; what it has confirmed is in the log, and an operator can give the vhost to another node."""
    declare(vhost)
    owner = cluster.nodes[vhost.owner]
    with Stubborn(cluster, vhost).going_on() as stubborn:
        stubborn.goes_on()
        troubles[vhost.owner].disk_full()
        eventually(lambda: "Free disk space alarm" in owner.ctl("alarms"), timeout=PATIENCE)
        assert vhost.find_owner() == vhost.owner
        owner.ctl("transfer_vhost", vhost.name)
        new = vhost.find_owner(other_than=vhost.owner)
        stubborn.goes_on()
        troubles[vhost.owner].end()
        eventually(lambda: "Free disk space alarm" not in owner.ctl("alarms"), timeout=PATIENCE)
        eventually(lambda: vhost.position_at(vhost.owner) >= vhost.position_at(new) - 100, timeout=PATIENCE)
    assert_nothing_lost(vhost, stubborn)


def test_a_follower_whose_disk_is_full_is_behind_and_says_so(
    cluster: Cluster, vhost: Replicated, troubles: dict[str, Trouble]
):
    """The owner goes on. When there is room it gets level, and has what was confirmed meanwhile."""
    declare(vhost)
    name = next(name for name in NODES if name != vhost.owner)
    node = cluster.nodes[name]
    with Stubborn(cluster, vhost).going_on() as stubborn:
        stubborn.goes_on()
        troubles[name].disk_full()
        eventually(lambda: lines(node, "replicated vhost", vhost.name), timeout=PATIENCE)
        stopped_at = vhost.position_at(name)
        stubborn.goes_on()
        met = troubles[name].met()
        eventually(lambda: troubles[name].met() > met + 2, timeout=PATIENCE)  # it tries again
        stubborn.goes_on()
        assert vhost.find_owner() == vhost.owner
        assert len(lines(node, "replicated vhost", vhost.name)) <= 2, "it says the same once"
    troubles[name].end()
    eventually(lambda: vhost.position_at(name) >= vhost.position_at(vhost.owner) > stopped_at, timeout=PATIENCE)
    cluster.nodes[vhost.owner].ctl("transfer_vhost", vhost.name, name)
    assert vhost.find_owner(other_than=vhost.owner) == name
    assert_nothing_lost(vhost, stubborn)


def test_publishers_are_held_while_the_servers_have_no_room(
    cluster: Cluster, vhost: Replicated, troubles: dict[str, Trouble], engine_servers: PostgresServers
):
    """PostgreSQL ends when it cannot write its log; nothing is confirmed until it is started again, with room."""
    declare(vhost)
    owner = cluster.nodes[vhost.owner]
    with Stubborn(cluster, vhost).going_on() as stubborn:
        stubborn.goes_on()
        troubles["servers"].fail(GROWING, "/postgres/", errno.ENOSPC)
        eventually(lambda: vhost.name in owner.ctl("alarms"), timeout=PATIENCE)
        confirmed = stubborn.confirmed
        eventually(lambda: vhost.name in owner.ctl("alarms"), timeout=PATIENCE)
        assert stubborn.confirmed == confirmed
        eventually(lambda: not engine_servers.primary.running, timeout=PATIENCE)  # it takes its time
        troubles["servers"].end()
        engine_servers.start_again()
        stubborn.goes_on()
    assert_nothing_lost(vhost, stubborn)
