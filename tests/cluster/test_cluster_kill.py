"""Brokers, an engine and the network in trouble under load, in short: `python -m perf.cluster_kill` is the long form.

And two brokers that were broken on purpose, which it has to find out.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from broker_process import broker_command, ctl_command
from cluster.engine_rigs import require
from perf.engines import kafka, postgres

pytestmark = pytest.mark.own

ROOT = Path(__file__).parents[2]
IS_THERE = {"postgres": postgres.is_installed, "kafka": kafka.is_installable}

BROKEN = """
import asyncio
import runpy
import rabbitpy_broker.cluster.{module} as module

{what}

runpy.run_module("rabbitpy_broker", run_name="__main__")
"""

# What the journal writes is told at once, and gets into the log a second later.
CONFIRMS_EARLY = BROKEN.format(
    module="owner_log",
    what="""
async def append_late(log, block, last, done):
    before, log.before = getattr(log, "before", None), asyncio.current_task()
    due = log._loop.time() + (0 if isinstance(done, module.partial) else 1)  # definitions are waited for
    log.told = getattr(log, "told", log.writer.position) + 1
    done(module.mark(log.writer.term, log.told), None)
    if before is not None:
        await before
    await asyncio.sleep(due - log._loop.time())
    await log.writer.append(block, last)
    if not log._due and log._building is None:
        log._settled()

module.OwnerLog._append = append_late
""",
)

# Every owner has the same term: a former one is not told from the new one, neither by the engine nor by readers.
NO_FENCE = BROKEN.format(
    module="ownership",
    what="""
claim = module.OwnerRecord.claim

async def same_term(record, node, after):
    await claim(record, node, after)
    return 1

module.OwnerRecord.claim = same_term
""",
)


def cluster_kill(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """In a folder that the user of the engine's servers can reach, which pytest's are not."""
    return subprocess.run(
        [sys.executable, "-m", "perf.cluster_kill", "--ctl", shlex.join(ctl_command()), "--json", str(folder / "result.json"),
         *options],
        cwd=ROOT, capture_output=True, text=True, timeout=170,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ["postgres", "kafka"])
def test_promises_are_kept_in_a_round_of_trouble(tmp_path: Path, engine: str) -> None:
    require(IS_THERE[engine](), f"the servers of {engine}")
    done = cluster_kill(
        tmp_path, "--rounds", "1", "--seed", "12", "--seconds-per-round", "4", "--engine", engine,
        "--broker", shlex.join(broker_command()),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "result.json").read_text())["summary"]
    assert summary["rounds"] == 1
    assert summary["confirmed"] > 50
    assert summary["troubles"]


@pytest.mark.parametrize(
    "source, trouble", [(CONFIRMS_EARLY, "broker killed"), (NO_FENCE, "broker stopped")], ids=["confirms early", "no fence"]
)
def test_broker_that_breaks_its_promise_is_found_out(tmp_path: Path, source: str, trouble: str) -> None:
    require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    script = tmp_path / "broken.py"
    script.write_text(source)
    done = cluster_kill(
        tmp_path, "--rounds", "6", "--seed", "3", "--seconds-per-round", "3", "--trouble", trouble,
        "--broker", shlex.join([sys.executable, str(script)]),
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "VIOLATION in round" in done.stderr, done.stderr
    lost = "lost: never came out of|delivered what it cannot have|order broken|NOT_FOUND"  # definitions come late to the log, too
    assert re.search(lost, done.stderr), done.stderr
