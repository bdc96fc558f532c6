"""The engines of the suite, each started once for all of its tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from cluster.engine_rigs import EngineRig, KafkaRig, MemoryRig, PostgresRig
from perf.engines import kafka, postgres

RIGS: dict[str, Callable[[], EngineRig]] = {
    "memory": lambda: MemoryRig(conditional=True),
    "memory-unconditional": lambda: MemoryRig(conditional=False),
    "postgres": PostgresRig,
    "kafka": KafkaRig,
}


def require(there: bool, what: str) -> None:
    """Skips the test, or fails it under RABBITPY_REQUIRE_CLIENTS, when a server is not installed."""
    if not there:
        missing = pytest.fail if os.environ.get("RABBITPY_REQUIRE_CLIENTS", "0") not in ("", "0") else pytest.skip
        missing(f"needs {what}, which this machine does not have")


@pytest.fixture(scope="session", params=list(RIGS))
def servers(request: pytest.FixtureRequest) -> Iterator[EngineRig]:
    if request.param == "postgres":
        require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    if request.param == "kafka":
        require(kafka.is_installable(), "Java, and Maven for Kafka's jars")
    rig = RIGS[request.param]()
    yield rig
    rig.close()


@pytest.fixture
def cluster_model_full(request: pytest.FixtureRequest) -> bool:
    """Whether the model checker is to take many minutes: `--cluster-model-full`."""
    return bool(request.config.getoption("--cluster-model-full"))
