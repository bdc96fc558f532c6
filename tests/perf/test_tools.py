"""The tools that compare and weigh brokers, on small numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerAddress

ROOT = Path(__file__).parents[2]

from perf import machine, side_by_side
from perf.perftest import figures

OUTPUT = """id: test-1, time 1.003 s, sent: 1614 msg/s, received: 1350 msg/s
test stopped (Reached time limit)
id: test-1, sending rate avg: 2206 msg/s
id: test-1, receiving rate avg: 2,201 msg/s
id: test-1, consumer latency min/median/75th/95th/99th 852/32386/60311/120155/137897 µs
id: test-1, confirm latency min/median/75th/95th/99th 1/7/16/32/53 ms
"""


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"perf.{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
    )


def test_connections_are_opened_and_weighed(broker: BrokerAddress):
    done = tool("connections", "--url", broker.url, "--count", "25", "--processes", "2")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["connections"] == 25
    assert result["opened_per_s"] > 0


def test_kept_connections_are_told_from_lost_ones(broker: BrokerAddress):
    options = ["--heartbeat", "2", "--intervals", "1", "--client", "pika-blocking", "--role", "idle"]
    done = tool("idle", "--url", broker.url, *options, "--json")
    assert done.returncode == 0, done.stderr
    connection = json.loads(done.stdout)["connections"][0]
    assert (connection["place"], connection["kept"], connection["hung_up"]) == ("pika-blocking-2s-idle", True, "")
    assert connection["heartbeats"]["broker"] > 0 and connection["heartbeats"]["client"] > 0


def test_bindings_are_made_while_traffic_flows(broker: BrokerAddress):
    done = tool(
        "bindings",
        "--url",
        broker.url,
        "--count",
        "200",
        "--secs",
        "1",
        "--load",
        "-s 20 -r 500 --interpreted",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bindings"] == 200
    assert len(result["phases"]) == 6
    assert all(phase["received_per_s"] > 0 for phase in result["phases"].values())


def test_streams_are_read_and_compared_with_a_fanout(broker: BrokerAddress):
    done = tool("streams", "--url", broker.url, "--messages", "1000", "--consumers", "2", "--size", "100")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    phases = [*result["backlog"].values(), result["tail"], result["fanout"]]
    assert len(phases) == 5
    assert all(phase["per_s"] > 0 for phase in phases)


def test_many_queues_are_compared_with_few(broker: BrokerAddress):
    options = ["--queues", "12", "--connections", "2", "--secs", "1", "--load", "-s 20 -r 500 --interpreted"]
    done = tool("many_queues", "--url", broker.url, *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["many_queues"]["received_per_s"] > 0


def test_readers_of_the_management_api_are_weighed():
    small = ["--queues", "1100", "--changing", "100", "--seconds", "0.5", "--warm", "0.5", "--pairs", "1"]
    alone, loaded = tool("management", *small, "--cpu"), tool("management", *small, "--load", "-s 20 -r 500 --interpreted")
    assert (alone.returncode, loaded.returncode) == (0, 0), alone.stderr + loaded.stderr
    kinds = [line.partition("[")[0].strip() for line in alone.stdout.splitlines()]
    assert kinds == ["cpu, changing queues only", "cpu, with pages", "cpu, with monitors", "cpu, with both"]
    with_all = next(line for line in loaded.stdout.splitlines() if line.startswith("msg/s with all of them"))
    assert float(with_all.partition("[")[2].rstrip("]")) > 100


def test_perftest_output_is_understood():
    found = figures(OUTPUT)
    assert (found["sent_per_s"], found["received_per_s"]) == (2206, 2201)
    assert found["latency_us"]["p99"] == 137897
    assert found["confirm_latency_us"]["p50"] == 7000


def result_of(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    return {
        "command": "python -m perf.side_by_side",
        "date": "2026-01-02T03:04:05+00:00",
        "commit": "abc",
        "python": "CPython 3.11",
        "machine": {"cpu": "some", "cores": 2, "memory_gib": 4, "system": "Linux"},
        "reps": 3,
        "secs": 4,
        "brokers": [{"name": "ours", "build": "1"}, {"name": "theirs", "build": "2"}],
        "scenarios": {
            "autoack-12B": {"ours": [{"figure": x} for x in ours], "theirs": [{"figure": x} for x in theirs]}
        },
    }


def test_table_has_medians_and_ratios():
    _, line = side_by_side.cells(result_of([900, 1000, 5000], [100, 50, 200]))
    assert line[1:4] == ["1,000", "100", "10.00"]


def test_failed_runs_leave_a_gap_and_not_a_figure():
    result = result_of([], [100])
    result["scenarios"]["autoack-12B"]["ours"] = [{"error": "no end"}]
    _, line = side_by_side.cells(result)
    assert line[1:4] == ["–", "100", "–"]


def test_markdown_replaces_the_last_table_only(tmp_path: Path):
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{side_by_side.BEGIN}\nold\n{side_by_side.END}\nafter\n")
    side_by_side.replace_between(page, side_by_side.as_markdown(result_of([10], [5])))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| 12 B, auto-ack, no confirms | 10 | 5 | 2.00 | 8 |" in text


def test_drain_brings_the_backlog_that_it_drains():
    assert [scenario.name for scenario in side_by_side.chosen("drain-backlog", False)] == [
        "publish-backlog",
        "drain-backlog",
    ]


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        ("/opt/venv/bin/rabbitpy-broker", "VENV/bin/rabbitpy-broker"),
        ("--broker=/opt/venv/bin/python -m rabbitpy_broker", "--broker=VENV/bin/python -m rabbitpy_broker"),
        ("/var/data/perf", "DIR/perf"),
        ("perf/results/side_by_side.json", "perf/results/side_by_side.json"),
        ("amqp://guest:guest@127.0.0.1:5672/", "amqp://guest:guest@127.0.0.1:5672/"),
    ],
)
def test_recorded_command_has_no_path_of_the_machine(argument: str, kept: str):
    assert machine.without_folders(argument) == kept


def test_unknown_scenario_is_refused():
    done = tool("side_by_side", "--only", "nonsense")
    assert done.returncode == 2
    assert "no scenario nonsense" in done.stderr


@pytest.mark.parametrize("broker_first", ["ours=1", "=127.0.0.1:1", "name"])
def test_place_of_a_broker_must_be_named(broker_first: str):
    done = tool("side_by_side", "--broker", "", "--no-rabbitmq", "--reps", "1", broker_first)
    assert done.returncode == 1
    assert "is not NAME=HOST:PORT" in done.stderr
