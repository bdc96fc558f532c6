"""The tool that measures delayed messages, on small numbers: it runs, and what it checks can fail."""

from __future__ import annotations

import array
import json
import shlex
import subprocess
import sys
from pathlib import Path

from broker_process import broker_command

ROOT = Path(__file__).parents[2]

from perf import delayed


def test_delayed_messages_come_in_order_and_on_time_beside_other_traffic():
    command = [sys.executable, "-m", "perf.delayed", "--quick", "--broker", shlex.join(broker_command())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["faults"] == []
    assert result["received"] == result["messages"] == delayed.QUICK["messages"]
    assert 0 <= result["late_at_least_ms"]["p50"] <= result["late_at_most_ms"]["p50"]
    assert result["load_beside"]["received_per_s"] > 0
    assert "1,000 delayed messages" in done.stderr


def judged(numbers: list[int], came: list[float]) -> dict[str, int]:
    wanted = array.array("d", [1_000.0, 1_010.0, 1_020.0])
    found = delayed.judge(wanted, array.array("d", [2.0]), array.array("Q", numbers), array.array("d", came))
    return {key: found[key] for key in ("missing", "twice", "early", "disorder")}


def test_what_is_as_it_should_be_is_no_fault():
    assert judged([0, 1, 2], [1_001.0, 1_012.0, 1_020.0]) == {"missing": 0, "twice": 0, "early": 0, "disorder": 0}


def test_each_fault_is_seen():
    assert judged([0, 1], [1_001.0, 1_012.0])["missing"] == 1
    assert judged([0, 1, 1, 2], [1_001.0, 1_012.0, 1_012.0, 1_020.0])["twice"] == 1
    assert judged([0, 1, 2], [998.0, 1_012.0, 1_020.0])["early"] == 1
    assert judged([0, 2, 1], [1_001.0, 1_020.0, 1_021.0])["disorder"] == 1
