"""A broker with something in it, and a browser that is driven by node: playwright-core with the Chromium of the system.

The scripts beside this file print one JSON object as their last line, case -> "ok" or what went wrong. npm's packages are
pinned by package-lock.json and installed once into a cache, as those of tests/clients are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "clients"))  # external.py: installing from npm

from external import installed, require_tools, run_client, run_install, verdicts

from broker_process import BrokerProcess
from ui.world import fill

SCRIPT_TIMEOUT = 240.0


def bad(verdict: dict[str, str]) -> dict[str, str]:
    return {case: outcome for case, outcome in verdict.items() if outcome != "ok"}


def chromium() -> str:
    require_tools("node", "npm", "chromium")
    return "/usr/bin/chromium"


@pytest.fixture(scope="session")
def modules() -> Path:
    """The folder node_modules with what package-lock.json pins."""
    require_tools("node", "npm")
    pins = [HERE / name for name in ("package.json", "package-lock.json")]
    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    return installed("ui", pins, lambda directory: run_install(install, directory)) / "node_modules"


@pytest.fixture(scope="module")
def ui_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("ui"))
    broker.start()
    try:
        with fill(broker):
            yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def run_script(modules: Path) -> Callable[..., dict[str, str]]:
    """`run_script("pages.mjs", broker, settings...)` gives the verdict of a script that drives the browser."""

    def run(script: str, broker: BrokerProcess, **settings: Any) -> dict[str, str]:
        given = {
            "base": f"http://{broker.management}/", "amqp": broker.port, "modules": str(modules), "chromium": chromium(),
            "sandbox": os.geteuid() != 0, **settings,
        }
        done = run_client(["node", str(HERE / script)], {"UI_TEST": json.dumps(given)}, SCRIPT_TIMEOUT)
        verdict = verdicts(done)
        assert done.returncode == 0, f"{verdict}\n{done.stderr[-4000:]}"
        return verdict

    return run
