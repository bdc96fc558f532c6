"""amqplib from npm: node/main.js runs its cases in one node process and prints a verdict on each."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from external import HERE, installed, require_tools, run_install

from broker_process import BrokerAddress
from support import unique

pytestmark = pytest.mark.timeout(700)  # the first run installs

SCRIPT = HERE / "node" / "main.js"
RUN_TIMEOUT = 120.0


def install(directory: Path) -> None:
    run_install(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], directory)


@pytest.fixture(scope="module")
def node_modules() -> Path:
    require_tools("node", "npm")
    sources = [HERE / "node" / "package.json", HERE / "node" / "package-lock.json"]
    return installed("amqplib", sources, install) / "node_modules"


def test_amqplib(broker: BrokerAddress, proxy: CuttingProxy, node_modules: Path) -> None:
    process = subprocess.Popen(
        ["node", str(SCRIPT), broker.url, unique("amqplib"), proxy.url], env={**os.environ, "NODE_PATH": str(node_modules)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
