"""The tools that measure waiting publishes and growth, in short."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pika
import pytest

from broker_process import BrokerAddress, broker_command
from perf.load.client import Address
from perf.soak import Visitor, grown_mib
from perf.waiting_memory import MODES, STATES

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(120)


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"perf.{name}", "--broker", shlex.join(broker_command()), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


def test_waiting_publishes_are_measured_in_every_mode_and_state() -> None:
    done = run("waiting_memory", "--messages", "5000", "--size", "20")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert [(row["mode"], row["state"]) for row in result["results"]] == [(m, s) for m in MODES for s in STATES]
    assert all(0 < row["bytes_a_message"] < 20_000 for row in result["results"])


@pytest.mark.parametrize("growth, code", [("1000", 0), ("-1000", 1)])
def test_soak_ends_with_everything_told_and_judges_the_growth(growth: str, code: int) -> None:
    done = run("soak", "--secs", "6", "--growth", growth)
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["faults"] == ([] if code == 0 else [f"memory grew by {result['grown_mib']} MiB"])
    assert done.returncode == code, done.stderr
    last = result["samples"][-1]
    assert last["confirmed"] > 0 and last["nacked"] > 0 and last["consumers"] > len(MODES)


@pytest.mark.timeout(25)  # sooner than a visitor that waits for more gives up
@pytest.mark.parametrize("size", [0, 20, 300_000])
def test_a_visitor_acks_the_last_deliveries_too(
    broker: BrokerAddress, connection: pika.BlockingConnection, new_name: Any, size: int
) -> None:
    """They are fewer than it acks at a time, and nothing comes after them."""
    queue = new_name("soak")
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-confirm-mode": "consumer-ack"})
    channel.confirm_delivery()
    stop, end = threading.Event(), threading.Event()
    stop.set()
    visitor = Visitor(Address.parse(broker.url), queue, "consumer-ack", stop, end)
    visitor.start()
    try:
        for _ in range(3):
            channel.basic_publish("", queue, bytes(size))  # returns when it is confirmed
    finally:
        end.set()
        visitor.join(20)
    assert not visitor.is_alive()


def test_growth_is_told_from_the_second_quarter_to_the_last() -> None:
    rss = [100, 900, 200, 200, 200, 200, 700, 300, 300]
    assert grown_mib([{"rss_kib": each * 1024} for each in rss]) == 100
