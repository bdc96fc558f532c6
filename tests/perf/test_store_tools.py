"""The tools that measure the store, on small numbers: they run, and what they check can fail."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import broker_command

ROOT = Path(__file__).parents[2]

from perf import backlog, memory_pressure, numbered, recovery, stream_store, sync_strategies, watch
from perf.load.client import Refused
from perf.numbered import Backlog, Consumer


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"perf.{name}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)


def with_broker(name: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """The result of a tool that starts the broker under test itself."""
    done = run(name, "--quick", "--broker", shlex.join(broker_command()), "--dir", str(folder), *arguments)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["faults"] == []
    return result


# -- many_durable -----------------------------------------------------------------------------------------------------


def test_each_walk_over_many_queues_is_measured_beside_a_quiet_broker(tmp_path: Path):
    result = with_broker("many_durable", tmp_path)
    walks = ("scrape", "scrape_per_object", "list_queues", "export_definitions", "set_and_clear_policy")
    for name in ("quiet", "declare", "publish", "settling", "idle", *walks):
        assert 0 < result[name]["median_ms"] <= result[name]["longest_ms"], name
        assert result[name]["trips"] > 0
    assert result["start"]["clean"]
    assert result["start"]["messages"] == result["queues"] == 20


# -- stream_store -----------------------------------------------------------------------------------------------------


def test_the_store_of_streams_is_measured() -> None:
    done = run("stream_store", "--quick")
    assert done.returncode == 0, done.stderr
    for what in ("append and epochs, to nowhere", "read from segments", "after a clean stop"):
        assert what in done.stdout


def test_a_start_that_grows_with_its_stream_is_told() -> None:
    assert stream_store.is_slower((200, 0.1, 1.3, 0), (2, 0.1, 0.1, 0))
    assert not stream_store.is_slower((200, 0.2, 0.3, 0), (2, 0.1, 0.1, 0))


# -- sync_strategies --------------------------------------------------------------------------------------------------


def test_every_strategy_is_measured(tmp_path: Path):
    output = tmp_path / "result.json"
    done = run("sync_strategies", "--quick", "--json", "--dir", str(tmp_path), "--output", str(output))
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    titles = {strategy.title for strategy in sync_strategies.STRATEGIES}
    assert {result["strategy"] for result in results if result["queues"] == 3} == titles
    assert all(0 < result["median_ms"] <= result["p99_ms"] for result in results)
    assert json.loads(output.read_text())["results"] == results
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


def test_strategies_are_drawn_as_a_table(tmp_path: Path):
    done = run("sync_strategies", "--quick", "--markdown", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "| ms a round, 4 KiB a queue | 1 queue | 3 queues |" in done.stdout
    assert done.stdout.count("\n| shared log") == 3


def test_a_reused_file_is_written_from_the_start_again(tmp_path: Path):
    with sync_strategies.files(tmp_path, 1, 1 << 20, "reused") as (log,):
        size = log.wrap_at
        assert size is not None
        for _ in range(size >> 20):
            log.write(bytes(1 << 20))
        assert log.offset == size
        log.write(bytes(1 << 20))
        assert log.offset == 1 << 20


def test_percentile_is_a_value_that_was_seen():
    assert sync_strategies.percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert sync_strategies.percentile(list(range(1, 201)), 0.99) == 198


# -- backlog ----------------------------------------------------------------------------------------------------------


def test_a_backlog_is_published_and_drained(tmp_path: Path):
    result = with_broker("backlog", tmp_path)
    published, drained = result["publish"], result["drain"]
    assert published["confirmed"] == result["ready"] == drained["received"] == backlog.QUICK_MESSAGES
    assert (published["nacked"], drained["missing"], drained["out_of_order"], drained["left"]) == (0, 0, 0, 0)
    assert published["rss_peak_mib"] >= published["rss_before_mib"] > 0
    assert published["per_s"] > 0
    assert published["samples"][-1]["confirmed"] == backlog.QUICK_MESSAGES


def test_a_backlog_is_spread_over_queues(tmp_path: Path):
    result = with_broker("backlog", tmp_path, "--queues", "25", "--messages-per-queue", "70", "--size", "20")
    assert result["messages"] == result["drain"]["received"] == 1750


def publish_numbers(channel: BlockingChannel, queue: str, numbers: Sequence[int]) -> None:
    channel.queue_declare(queue)
    channel.confirm_delivery()
    for number in numbers:
        body = number.to_bytes(8, "big") + b"body"
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))


@pytest.mark.parametrize(
    ("numbers", "missing", "out_of_order"),
    [([0, 1, 2, 3], 0, 0), ([0, 1, 3, 2], 1, 1), ([0, 0, 1, 2], 0, 1), ([0, 1, 3, 4], 1, 0)],
)
def test_a_lost_late_or_repeated_message_is_seen(
    url: str,
    channel: BlockingChannel,
    new_name: Callable[[str], str],
    numbers: list[int],
    missing: int,
    out_of_order: int,
):
    load = Backlog(new_name("numbers"), 1, 4, 12)
    publish_numbers(channel, load.queue_names[0], numbers)
    consumer = Consumer(url, load, prefetch=10, ack_every=3)
    consumer.run(4, patience=10)
    consumer.close()
    assert (consumer.received, consumer.missing, consumer.out_of_order) == (4, missing, out_of_order)
    assert numbered.delete(url, load.queue_names) == 0


def test_messages_that_do_not_come_end_the_drain(
    url: str, channel: BlockingChannel, new_name: Callable[[str], str]
):
    load = Backlog(new_name("numbers"), 1, 4, 12)
    publish_numbers(channel, load.queue_names[0], [0, 1])
    consumer = Consumer(url, load, prefetch=10, ack_every=1)
    with pytest.raises(Refused, match=r"2 of 4 messages came, then none for 2 s"):
        consumer.run(4, patience=2)
    consumer.client.sock.close()
    numbered.delete(url, load.queue_names)


def test_the_brokers_words_end_a_drain(url: str, new_name: Callable[[str], str]):
    consumer = Consumer(url, Backlog(new_name("absent"), 1, 1, 12), prefetch=10, ack_every=1)
    with pytest.raises(Refused, match="404 NOT_FOUND"):
        consumer.run(1, patience=10)
    consumer.client.sock.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"ready": 9, "received": 9, "missing": 1}, "9 messages ready where 10 were confirmed"),
        ({"received": 9}, "9 received and 0 left of 10"),
        ({"missing": 1}, "1 messages missing"),
        ({"nacked": 1, "missing": 1}, None),
        ({"out_of_order": 2}, "2 messages late or twice"),
    ],
)
def test_faults_are_told(changes: dict[str, int], words: str | None):
    figures = {
        "confirmed": 10,
        "nacked": 0,
        "ready": 10,
        "received": 10,
        "left": 0,
        "missing": 0,
        "out_of_order": 0,
    }
    figures |= changes
    found = backlog.faults(figures, figures["ready"], figures)
    assert found[:1] == ([] if words is None else [words])


def test_faults_end_the_tool_with_1(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="1"):
        backlog.finish("backlog", {"faults": ["one is lost"]}, save=False, output=None)
    assert "FAULT: one is lost" in capsys.readouterr().err


def test_halves_have_rates_of_their_own():
    assert backlog.rates(1000, 2.0, 10.0) == {
        "seconds": 10.0,
        "per_s": 100,
        "first_half_per_s": 250,
        "second_half_per_s": 62,
    }
    assert backlog.rates(0, None, 0.0) == {"seconds": 0.0, "per_s": None}


def test_memory_is_no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(watch, "file_system", lambda _folder: "tmpfs (rw)")
    with pytest.raises(click.ClickException, match="in memory"):
        watch.use_disk(tmp_path)


def test_rates_are_those_since_the_row_before():
    rows = [{"second": 1.0, "confirmed": 100}, {"second": 3.0, "confirmed": 500}]
    watch.add_rates(rows, "confirmed")
    assert [row["confirmed_per_s"] for row in rows] == [100, 200]


# -- recovery ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [0, 3000])
def test_what_was_confirmed_is_there_after_kill_and_stop(tmp_path: Path, messages: int):
    result = with_broker("recovery", tmp_path, "--messages", str(messages), "--queues", "2", "--cold")
    one = result["brokers"]["rabbitpy"]
    assert one["publish"]["confirmed"] == one["drain"]["received"] == messages
    for phase in ("after_kill", "after_clean_stop"):
        assert one[phase]["ready"] == messages
        assert 0 < one[phase]["accepts_s"] <= one[phase]["all_there_s"]


def test_messages_that_a_kill_took_are_a_fault():
    assert recovery.lost(9, 10) == ["9 of 10 confirmed messages after kill -9"]
    assert recovery.lost(11, 10) == []


# -- memory_pressure --------------------------------------------------------------------------------------------------


def test_both_kinds_are_published_and_drained_under_a_mark(tmp_path: Path):
    result = with_broker("memory_pressure", tmp_path, "--mark", "1GiB")
    messages = memory_pressure.QUICK_BYTES // 1000
    for form in ("persistent", "transient"):
        published, drained = result["forms"][form]["publish"], result["forms"][form]["drain"]
        assert published["all_settled"]
        assert published["confirmed"] == drained["received"] == messages
        assert (published["blocked"], drained["missing"], drained["out_of_order"]) == ([], 0, 0)
        assert 0 < published["peak_to_mark"] < 1


def test_a_broker_that_blocks_is_seen_and_given_up(tmp_path: Path):
    """Under a mark that is less than the broker itself takes, publishing is blocked and stays so."""
    result = with_broker(
        "memory_pressure", tmp_path, "--mark", "10MiB", "--patience", "1", "--form", "transient"
    )
    published = result["forms"]["transient"]["publish"]
    assert not published["all_settled"]
    assert len(published["blocked"]) == 1
    assert published["blocked_s"] >= 0.9
    assert published["peak_to_mark"] > 1


@pytest.mark.parametrize("mark", ["many", "0", "12 MB", "0KiB"])
def test_a_mark_is_a_number_of_bytes(mark: str):
    done = run("memory_pressure", "--mark", mark)
    assert done.returncode == 2
    assert "bytes, or a number with KiB, MiB or GiB" in done.stderr
