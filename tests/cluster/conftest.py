"""The engines of the suite, each started once for all of its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster.engine_rigs import EngineRig, KafkaRig, MemoryRig, PostgresRig

RIGS: dict[str, Callable[[], EngineRig]] = {
    "memory": lambda: MemoryRig(conditional=True),
    "memory-unconditional": lambda: MemoryRig(conditional=False),
    "postgres": PostgresRig,
    "kafka": KafkaRig,
}


@pytest.fixture(scope="session", params=list(RIGS))
def servers(request: pytest.FixtureRequest) -> Iterator[EngineRig]:
    rig = RIGS[request.param]()
    yield rig
    rig.close()


@pytest.fixture
def cluster_model_full(request: pytest.FixtureRequest) -> bool:
    """Whether the model checker is to take many minutes: `--cluster-model-full`."""
    return bool(request.config.getoption("--cluster-model-full"))
