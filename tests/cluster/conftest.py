"""The engines of the suite, each started once for all of its tests, and clusters of brokers on them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.engine_rigs import EngineRig, KafkaRig, MemoryRig, PostgresRig, require
from cluster.replicated import Cluster, Replicated
from perf.engines import postgres
from perf.engines.postgres import PostgresServers
from perf.engines.servers import Servers, running
from support import unique

RIGS: dict[str, Callable[[], EngineRig]] = {
    "memory": lambda: MemoryRig(conditional=True),
    "memory-unconditional": lambda: MemoryRig(conditional=False),
    "postgres": PostgresRig,
}


@pytest.fixture(scope="session")
def kafka_rig() -> Iterator[KafkaRig]:
    """One Kafka for all tests of a run, as it takes long to start. A test that stops nodes starts them again."""
    rig = KafkaRig()
    yield rig
    rig.close()


@pytest.fixture(scope="session", params=[*RIGS, "kafka"])
def servers(request: pytest.FixtureRequest) -> Iterator[EngineRig]:
    if request.param == "kafka":
        yield request.getfixturevalue("kafka_rig")
        return
    rig = RIGS[request.param]()
    yield rig
    rig.close()


@pytest.fixture(scope="module", params=["postgres", "kafka"])
def engine_servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """The servers of each engine, for brokers."""
    if request.param == "kafka":
        yield request.getfixturevalue("kafka_rig").servers
        return
    require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="rabbitpy-postgres-"))  # pytest's own is closed to the user of the servers
    servers = PostgresServers(folder)
    with running(servers):
        yield servers
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cluster(engine_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers, for each engine. A broker that a test stops is started again by the next test's `vhost`."""
    url = engine_servers.url
    if url.startswith("kafka:"):
        url = f"{url.removesuffix('rabbitpy')}{unique('cluster')}?flush=false"  # syncs take most of the time
    cluster = Cluster(tmp_path_factory.mktemp("nodes"), engine_servers, url)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def vhost(cluster: Cluster) -> Iterator[Replicated]:
    """A vhost on all nodes of the cluster."""
    vhost = Replicated(cluster)
    yield vhost
    vhost.close()


@pytest.fixture
def cluster_model_full(request: pytest.FixtureRequest) -> bool:
    """Whether the model checker is to take many minutes: `--cluster-model-full`."""
    return bool(request.config.getoption("--cluster-model-full"))
