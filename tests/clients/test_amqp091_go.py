"""amqp091-go, RabbitMQ's client for Go: go/main.go runs its cases in one process and prints a verdict on each."""

from __future__ import annotations

from pathlib import Path

import pytest
from external import HERE, installed, require_tools, run_client, run_install, verdicts

from broker_process import BrokerAddress
from support import unique

pytestmark = pytest.mark.timeout(700)  # the first run fetches and builds

CASES = 15


def install(directory: Path) -> None:
    run_install(["go", "build", "-mod=readonly", "-o", "client", "."], directory)


@pytest.fixture(scope="module")
def program() -> Path:
    require_tools("go")
    sources = [HERE / "go" / name for name in ("go.mod", "go.sum", "main.go")]
    return installed("amqp091-go", sources, install) / "client"


def test_amqp091_go(broker: BrokerAddress, program: Path) -> None:
    done = run_client([str(program), broker.url, unique("amqp091")], timeout=120.0)
    verdict = verdicts(done)
    assert {case: outcome for case, outcome in verdict.items() if outcome != "ok"} == {}, done.stderr
    assert done.returncode == 0
    assert len(verdict) == CASES
