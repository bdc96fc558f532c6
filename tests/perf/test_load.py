"""The load generator as a user runs it, against the broker under test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perf.load", "--interpreted", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)


def load(url: str, options: str) -> dict[str, Any]:
    done = run("--url", url, "--json", *options.split())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_number_of_messages_goes_through_and_is_confirmed(url: str):
    result = load(url, "-n 1003 -x 2 -y 2 -q 2 -X 2 -Y 2 -s 100 -c 50 -Q 20")
    assert result["complete"]
    assert (result["sent"], result["confirmed"], result["received"], result["nacked"]) == (
        2006,
        2006,
        2006,
        0,
    )
    assert 0 < result["latency_us"]["p50"] <= result["latency_us"]["p99.9"] <= result["latency_us"]["max"]
    assert result["confirm_latency_us"]["max"] > 0


def test_fanout_delivers_to_every_queue(url: str, new_name: Callable[[str], str]):
    result = load(url, f"-n 200 -q 3 -y 3 -e {new_name('fanout')} -t fanout -a")
    assert (result["sent"], result["received"]) == (200, 600)


def test_topic_keys_are_used(url: str):
    result = load(url, "-n 100 -e amq.topic -t topic -k one.two -b one.# -a")
    assert result["received"] == 100


def test_backlog_is_kept_and_drained(url: str, channel: BlockingChannel, new_name: Callable[[str], str]):
    queue = new_name("backlog")
    load(url, f"-n 500 -y 0 -c 100 -u {queue} --keep")
    assert channel.queue_declare(queue, passive=True).method.message_count == 500
    result = load(url, f"-n 500 -x 0 -A 20 -Q 100 -u {queue} --predeclared")
    assert result["received"] == 500


def test_spread_gives_each_channel_a_queue(
    url: str, channel: BlockingChannel, new_name: Callable[[str], str]
):
    queue = new_name("spread")
    load(url, f"-n 8 -y 0 -q 4 -X 4 -c 1 --spread --keep -u {queue}")
    counts = [channel.queue_declare(f"{queue}-{i}", passive=True).method.message_count for i in range(4)]
    for number in range(4):
        channel.queue_delete(f"{queue}-{number}")
    assert counts == [2, 2, 2, 2]


def test_rate_and_samples(url: str):
    result = load(url, "-r 200 -z 1 --warmup 0.2 --interval 0.5 -s 50")
    assert 100 < result["sent_per_s"] < 300
    assert len(result["samples"]) == 2
    assert sum(sample["received"] for sample in result["samples"]) == result["received"]


def test_returned_messages_are_counted(url: str):
    result = load(url, "-n 20 -y 0 -c 10 --mandatory -e amq.direct -k nowhere")
    assert (result["returned"], result["confirmed"]) == (20, 20)


def test_queue_arguments_reach_the_broker(url: str, channel: BlockingChannel, new_name: Callable[[str], str]):
    """A declaration with other arguments than the queue's is refused, and one with the same is not."""
    queue = new_name("arguments")
    load(
        url, f"-n 5 -y 0 -c 5 -u {queue} --keep --queue-arg x-expires=600000 --queue-arg x-queue-mode=default"
    )
    arguments = {"x-expires": 600000, "x-queue-mode": "default"}
    assert channel.queue_declare(queue, arguments=arguments).method.message_count == 5
    with pytest.raises(ChannelClosedByBroker, match="PRECONDITION_FAILED"):
        channel.queue_declare(queue, arguments=arguments | {"x-expires": 1})


def test_text_report_names_broker_and_rates(url: str):
    done = run("--url", url, "-n", "50", "-s", "20")
    assert done.returncode == 0, done.stderr
    assert "received" in done.stdout
    assert "INTERPRETED" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "amqp://127.0.0.1:1/"], "cannot connect to 127.0.0.1:1"),
        (["--url", "http://127.0.0.1/"], "is not amqp://"),
        (["--size", "many"], "a number of bytes"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], words: str):
    done = run(*arguments)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_refusal_by_the_broker_is_told(url: str):
    done = run("--url", url, "--predeclared", "--keep", "-u", "no-such-queue", "-n", "1")
    assert done.returncode == 1
    assert "404 NOT_FOUND" in done.stderr


@pytest.mark.timeout(300)  # compiling takes ten seconds of a core, and the other tests run meanwhile
def test_generator_compiles_or_says_that_it_cannot(url: str):
    """Where there is a compiler the hot part is compiled on first use; elsewhere a warning says that it is not."""
    command = [sys.executable, "-m", "perf.load", "--url", url, "--json", "-n", "100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)["client_compiled"]
    assert compiled != ("warning: the load generator runs interpreted" in done.stderr)
