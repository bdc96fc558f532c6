"""amqp091-go, RabbitMQ's client for Go: go/main.go runs its cases in one process and prints a verdict on each."""

from __future__ import annotations

import pytest
from external import run_client, verdicts
from go_client import go_command

from broker_process import BrokerAddress
from support import unique

pytestmark = pytest.mark.timeout(700)  # the first run fetches and builds

CASES = 17


@pytest.fixture(scope="module")
def command() -> list[str]:
    return go_command()


def test_amqp091_go(broker: BrokerAddress, command: list[str]) -> None:
    done = run_client([*command, broker.url, unique("amqp091")], timeout=120.0)
    verdict = verdicts(done)
    assert {case: outcome for case, outcome in verdict.items() if outcome != "ok"} == {}, done.stderr
    assert done.returncode == 0
    assert len(verdict) == CASES
