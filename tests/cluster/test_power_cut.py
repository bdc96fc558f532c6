"""The power of an engine's three servers is cut at once, in short: `python -m perf.power_cut` is the long form.

And three that were broken on purpose, which it has to find out. It needs root, and file systems on loop devices.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.engine_rigs import require
from perf import power_cut
from perf.engines import kafka, postgres

pytestmark = pytest.mark.own

ROOT = Path(__file__).parents[2]
IS_THERE = {"postgres": postgres.is_installed, "kafka": kafka.is_installable}

# The servers sync nothing, and the engine does not look.
NO_SYNC = """
import runpy
import perf.engines.postgres as servers
import rabbitpy_broker.cluster.postgres.engine as engine

servers.SETTINGS += "fsync = off\\n"
engine.broken_promise = lambda version, settings: None

runpy.run_module("perf.power_cut", run_name="__main__")
"""


def cut(engine: str, *program: str) -> subprocess.CompletedProcess[str]:
    require(IS_THERE[engine](), f"the servers of {engine}")
    hindrance = power_cut.hindrance()
    require(not hindrance, f"a power cut ({hindrance})")
    return subprocess.run(
        [sys.executable, *program, engine, "--rounds", "1"], cwd=ROOT, capture_output=True, text=True, timeout=170
    )


@pytest.mark.parametrize("engine", ["postgres", "kafka"])
def test_what_an_engine_has_told_survives_a_power_cut(engine: str) -> None:
    done = cut(engine, "-m", "perf.power_cut")
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) appends and version (\d+) told, 0 lost", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) > 0
    assert int(found[2]) > 0


def test_servers_that_do_not_sync_are_found_out() -> None:
    done = cut("postgres", "-c", NO_SYNC)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search("of what was told is lost|a server cannot be started", done.stderr), done.stderr
