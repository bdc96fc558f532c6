"""amqplib from npm: node/main.js runs its cases in one node process and prints a verdict on each."""

from __future__ import annotations

import pytest
from cutting_proxy import CuttingProxy
from external import run_and_cut
from node_client import node_command

from broker_process import BrokerAddress
from support import unique

pytestmark = pytest.mark.timeout(700)  # the first run installs

RUN_TIMEOUT = 120.0


@pytest.fixture(scope="module")
def command() -> list[str]:
    return node_command("main.js")


def test_amqplib(broker: BrokerAddress, proxy: CuttingProxy, command: list[str]) -> None:
    verdict = run_and_cut([*command, broker.url, unique("amqplib"), proxy.url], proxy, RUN_TIMEOUT)
    assert len(verdict) >= 22
