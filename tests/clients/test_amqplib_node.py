"""amqplib from npm: node/main.js runs its cases in one node process and prints a verdict on each."""

from __future__ import annotations

import json
import subprocess
import threading

import pytest
from cutting_proxy import CuttingProxy
from node_client import node_command

from broker_process import BrokerAddress
from support import unique

pytestmark = pytest.mark.timeout(700)  # the first run installs

RUN_TIMEOUT = 120.0


@pytest.fixture(scope="module")
def command() -> list[str]:
    return node_command("main.js")


def test_amqplib(broker: BrokerAddress, proxy: CuttingProxy, command: list[str]) -> None:
    process = subprocess.Popen(
        [*command, broker.url, unique("amqplib"), proxy.url], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(RUN_TIMEOUT, process.kill)
    watchdog.start()
    with process:
        assert process.stdout is not None and process.stderr is not None
        last = ""
        for last in process.stdout:
            if last.strip() == "cut me":
                proxy.cut()
        errors = process.stderr.read()
    watchdog.cancel()
    assert last.startswith("{"), f"no verdict, exit code {process.returncode}, last line {last!r}:\n{errors[-4000:]}"
    verdict = json.loads(last)
    assert {case: outcome for case, outcome in verdict.items() if outcome != "ok"} == {}
    assert process.returncode == 0
    assert len(verdict) >= 20
