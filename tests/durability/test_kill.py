"""kill -9 under load on one data directory, in short; `python -m perf.kill --rounds 200` is the long form."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from broker_process import broker_command

pytestmark = pytest.mark.own

ROOT = Path(__file__).parents[2]
ROUNDS = 6

# Small limits: in a few seconds the journal is scattered, store files are filled and merged, and queues go to the disk.
CONFIG = """
queue_index_max_journal_entries = 500
msg_store_file_size_limit = 1048576
"""


def kill(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "small.toml").write_text(CONFIG)
    return subprocess.run(
        [sys.executable, "-m", "perf.kill", "--config", str(folder / "small.toml"),
         "--folder", str(folder / "broker"), "--json", str(folder / "result.json"), *options],
        cwd=ROOT, capture_output=True, text=True, timeout=170,
    )  # fmt: skip


@pytest.mark.parametrize("options, least", [((), 100), (("--check-invariants",), 20)], ids=["plain", "invariants"])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_promises_are_kept_over_kills_under_load(tmp_path: Path, options: tuple[str, ...], least: int, kind: str) -> None:
    """Also by a broker that compares after each turn what it has with what must be true of it, and does much less that way."""
    command = shlex.join([*broker_command(), *options])
    load = ("--rounds", str(ROUNDS), "--seed", "5", "--seconds-per-round", "0.7", "--queue-type", kind)
    done = kill(tmp_path, *load, "--broker", command)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "result.json").read_text())["summary"]
    assert summary["rounds"] == ROUNDS
    assert summary["kills"] >= ROUNDS // 2
    assert min(summary["confirmed"], summary["acked"], summary["recovered"], summary["offsets"]) > least


def test_broker_that_forgets_is_found_out(tmp_path: Path) -> None:
    """The same, with a broker that starts without its messages."""
    forgetful = tmp_path / "forgetful"
    forgetful.write_text(
        f'#!/bin/sh\nrm -rf {shlex.quote(str(tmp_path))}/broker/data/vhosts\nexec {shlex.join(broker_command())} "$@"\n'
    )
    forgetful.chmod(0o755)
    done = kill(
        tmp_path, "--rounds", "3", "--seed", "1", "--seconds-per-round", "0.3", "--no-check",
        "--broker", shlex.quote(str(forgetful)),
    )  # fmt: skip
    assert done.returncode == 1
    assert "VIOLATION in round 2 of seed 1:" in done.stderr
    assert "came up with 0 messages and owes" in done.stderr
    assert "confirmed" in done.stderr
    assert (tmp_path / "broker" / "data").is_dir()


# The broker as it is started, but for what it is compared with: after some turns that is broken.
BROKEN_LATER = """
import itertools
import runpy
import rabbitpy_broker.broker as broker

turns, sound = itertools.count(), broker.check_invariants

def check_invariants(*everything):
    sound(*everything)
    assert next(turns) < 20, "what was made up for the test"

broker.check_invariants = check_invariants
runpy.run_module("rabbitpy_broker", run_name="__main__")
"""


def test_broker_that_finds_an_invariant_broken_is_reported_as_that(tmp_path: Path) -> None:
    script = tmp_path / "broken_later.py"
    script.write_text(BROKEN_LATER)
    command = shlex.join([sys.executable, str(script), "--check-invariants"])
    done = kill(tmp_path, "--rounds", "3", "--seed", "2", "--seconds-per-round", "1", "--broker", command)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "VIOLATION in round" in done.stderr
    assert "exit code 70: an invariant was broken:" in done.stderr
    assert "what was made up for the test" in done.stderr
