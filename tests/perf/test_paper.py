"""The paper's evaluation: plan, raw files, both drivers, Spark's analysis on samples with known answers, and the page."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest
from rich.console import Console

from broker_process import BrokerAddress, broker_command
from support import eventually

ROOT = Path(__file__).parents[2]

import rabbitpy_broker
from perf import machine
from perf.paper import beside, drive_perftest, plan, report
from perf.paper.plan import Job, Measurement, Settings, Target
from perf.paper.raw import RunFolder
from perf.paper.run import Evaluation
from perf.paper.topology import declared

RATES = ("published", "confirmed", "received")


def paper(*arguments: object, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perf.paper", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def samples_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# --- the plan ------------------------------------------------------------------------------------------------------------


def test_every_target_is_measured_in_turn_and_back_again():
    settings = Settings(queues=(1, 2), drivers=("load",), modes=("persist", "consumer-ack"), repetitions=2)
    order = [(m.repetition, m.queues, m.target.mode) for m in settings.measurements()]
    forth, back = ["persist", "consumer-ack", "default"], ["default", "consumer-ack", "persist"]
    assert order == [
        (repetition, queues, mode)
        for repetition, modes in ((1, forth), (2, back))
        for queues in (1, 2)
        for mode in modes
    ]


@pytest.mark.parametrize(("queues", "sizes"), [(1, [1]), (15, [15]), (20, [10, 10]), (31, [16, 15])])
def test_more_than_fifteen_queues_have_two_exchanges(queues: int, sizes: list[int]):
    groups = plan.groups(queues, "x")
    assert [group.queues for group in groups] == sizes
    assert len({name for group in groups for name in group.queue_names}) == queues
    assert len({group.exchange for group in groups}) == len(sizes)


def test_the_load_generator_s_last_second_is_a_whole_one():
    """Else its figures would be those of a part of a second, taken for one."""
    from perf.paper.drive_load import plan_of

    [group] = plan.groups(2, "x")
    assert plan_of(Job("amqp://127.0.0.1", [group], 5.5, 200, 100), group, 1).seconds == 6


def test_rabbitmq_gets_no_argument_that_it_does_not_know():
    assert Target("rabbitmq", "default").queue_arguments == {}
    assert Target("rabbitpy", "consumer-ack").queue_arguments == {"x-confirm-mode": "consumer-ack"}


# --- PerfTest ------------------------------------------------------------------------------------------------------------

LINE = (
    "id: test-194014-126, time 2.024 s, sent: 2276 msg/s, confirmed: 2582 msg/s, nacked: 3 msg/s, received: 2415 msg/s, "
    "min/median/75th/95th/99th consumer latency: 10735/146434/222912/392861/582532 µs, "
    "confirm latency: 54315/480192/850613/1238460/1438351 µs"
)
LATE_LINE = (
    "id: test-194014-126, time 4.427 s, sent: 3812 msg/s, confirmed: 4628 msg/s, nacked: 0 msg/s, received: 4135 msg/s, "
    "min/median/75th/95th/99th consumer latency: 0/0/0/0/0 µs, confirm latency: 0/0/0/0/0 µs"
)


def test_a_line_of_perftest_is_understood():
    found = drive_perftest.parse(LINE)
    assert found is not None
    assert found.end_s == 2.024
    assert found.rates == {"published": 2276, "confirmed": 2582, "nacked": 3, "received": 2415}
    assert found.latencies == {
        "latency_p50_us": 146434,
        "latency_p95_us": 392861,
        "latency_p99_us": 582532,
        "confirm_p50_us": 480192,
        "confirm_p95_us": 1238460,
        "confirm_p99_us": 1438351,
    }


def test_latencies_of_an_interval_without_any_are_missing_and_not_zero():
    found = drive_perftest.parse(LATE_LINE)
    assert found is not None
    assert found.latencies == {}


@pytest.mark.parametrize(
    "line",
    [
        "id: test-1, starting consumer #0, channel #2",
        "test stopped (Reached time limit)",
        "id: test-1, sending rate avg: 3436 msg/s",
    ],
)
def test_other_lines_are_no_intervals(line: str):
    assert drive_perftest.parse(line) is None


def test_two_processes_make_one_sample():
    one, other = drive_perftest.parse(LINE), drive_perftest.parse(LATE_LINE.replace("4.427", "2.031"))
    assert one is not None
    assert other is not None
    merged = drive_perftest.combine([one, other], [1.0, 1.5], 0.0)
    assert (merged["second"], merged["interval_s"]) == (1.024, 1.024)
    assert (merged["published"], merged["confirmed"], merged["received"]) == (2276 + 3812, 2582 + 4628, 2415 + 4135)
    assert merged["latency_p99_us"] == 582532


@pytest.fixture(scope="module")
def perftest_jars() -> Path:
    """PerfTest as the clients' tests have it: fetched once into a folder that outlives the run."""
    sys.path.append(str(ROOT / "tests" / "clients"))
    import perftest_runner

    return perftest_runner.perftest_jars()


@pytest.mark.timeout(700)  # the first run installs
def test_perftest_drives_two_exchanges(
    broker: BrokerAddress, perftest_jars: Path, monkeypatch: pytest.MonkeyPatch, new_name: Any
):
    monkeypatch.setattr(drive_perftest.perftest, "jars", lambda: perftest_jars)
    groups = [plan.Group(new_name("paper"), new_name("paper"), queues) for queues in (1, 2)]
    samples: list[dict[str, Any]] = []
    with declared(broker.url.removesuffix("/"), groups, {"x-confirm-mode": "consumer-ack"}):
        drive_perftest.drive(Job(broker.url.replace("/%2F", ""), groups, 2.0, 50, 100), samples.append)
    assert samples
    assert all(sum(sample[rate] for sample in samples) > 0 for rate in RATES)
    assert max(sample["client_cpu_s"] for sample in samples) > 0
    seconds = [sample["second"] for sample in samples]
    assert seconds == sorted(seconds)
    assert 1.9 < seconds[-1] < 8
    assert sum(sample["interval_s"] for sample in samples) == pytest.approx(seconds[-1])


def test_perftest_that_fails_says_why(broker: BrokerAddress, perftest_jars: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drive_perftest.perftest, "jars", lambda: perftest_jars)
    group = plan.Group("no-such-exchange", "no-such-queue", 1)
    url = broker.url.replace("guest:guest", "guest:wrong").replace("/%2F", "")
    with pytest.raises(plan.MeasurementFailed, match=r"PerfTest: .*(ACCESS_REFUSED|refused)"):
        drive_perftest.drive(Job(url, [group], 1.0, 50, 100), lambda _: None)


# --- a run ---------------------------------------------------------------------------------------------------------------

TINY = ["--no-rabbitmq", "--interpreted", "--drivers", "load", "--reps", 1, "--seconds", 2, "--warmup", 0, "--confirm", 20]


@pytest.mark.timeout(120)
def test_a_run_keeps_each_second_of_each_mode(tmp_path: Path):
    done = paper("run", *TINY, "--queues", "2", "--broker", shlex.join(broker_command()), "--raw", tmp_path)
    assert done.returncode == 0, done.stderr
    [run] = tmp_path.glob("run=*")
    description = json.loads((run / "run.json").read_text())
    assert description["settings"]["queues"] == [2]
    assert description["parts"][0]["brokers"]["rabbitpy"].startswith("rabbitpy-broker")
    for mode in plan.MODES:
        first, last = samples_in(run / f"broker=rabbitpy/mode={mode}/driver=load/queues=2/rep=1.jsonl")
        assert (first["second"], last["second"]) == (1.0, 2.0)
        assert all(last[rate] > 0 for rate in RATES)
        assert 0 < last["latency_p50_us"] <= last["latency_p99_us"]
        assert 0 < last["confirm_p50_us"] <= last["confirm_p99_us"]
        assert last["broker_cpu_s"] > 0
        assert last["broker_rss_mib"] > 10
        assert 0 <= last["stolen"] < 1


@pytest.mark.timeout(120)
def test_a_build_is_measured_beside_another(tmp_path: Path):
    command = shlex.join(broker_command())
    modes = ["--queues", 2, "--modes", "persist,consumer-ack"]
    done = paper("run", *TINY, *modes, "--broker", command, "--before", command, "--raw", tmp_path)
    assert done.returncode == 0, done.stderr
    [run] = tmp_path.glob("run=*")
    for build in ("rabbitpy", "before"):
        for mode in ("persist", "consumer-ack"):
            assert samples_in(run / f"broker={build}/mode={mode}/driver=load/queues=2/rep=1.jsonl")
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if "│ load" in line]
    assert [[cell.strip() for cell in row[:3]] for row in rows] == [["load", "2", "persist"], ["load", "2", "consumer-ack"]]
    assert all(float(row[-1]) > 0 for row in rows)
    resumed = paper("run", "--resume", run.name.removeprefix("run="), "--raw", tmp_path, "--broker", command)
    assert resumed.returncode == 2
    assert "--before" in resumed.stderr


@pytest.mark.timeout(120)
def test_a_run_is_stopped_and_resumed(tmp_path: Path):
    """Stopped in its second measurement, it keeps both; resumed, it measures only what is not whole."""
    options = [*TINY, "--queues", "16", "--broker", shlex.join(broker_command()), "--raw", tmp_path]
    options[options.index("--seconds") + 1] = 3
    # a shell that starts the tests in the background has it ignore SIGINT
    command = ["env", "--default-signal=INT", sys.executable, "-m", "perf.paper", "run", *map(str, options)]
    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    partial = "run=*/broker=rabbitpy/mode=consumer-ack/driver=load/queues=16/rep=1.partial.jsonl"
    try:
        eventually(lambda: any(file.stat().st_size for file in tmp_path.glob(partial)), timeout=60)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=30)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    [run] = tmp_path.glob("run=*")
    whole = run / "broker=rabbitpy/mode=persist/driver=load/queues=16/rep=1.jsonl"
    before = whole.read_text()
    assert len(list(run.rglob("*.jsonl"))) == 2
    done = paper("run", "--resume", run.name.removeprefix("run="), "--interpreted", *options[-4:])
    assert done.returncode == 0, done.stderr
    assert whole.read_text() == before
    assert sorted(file.name for file in run.rglob("*.jsonl")) == ["rep=1.jsonl"] * 3
    assert len(json.loads((run / "run.json").read_text())["parts"]) == 2


def test_the_host_s_share_of_the_cpu_time(monkeypatch: pytest.MonkeyPatch):
    times = iter([[10] * 8, [60, 10, 10, 40, 10, 10, 10, 30], [60, 10, 10, 40, 10, 10, 10, 30]])
    monkeypatch.setattr(machine, "cpu_times", lambda: next(times))
    stolen = machine.Stolen()
    assert stolen.share() == 0.2
    assert stolen.share() == 0
    monkeypatch.undo()
    assert sum(machine.cpu_times()) > 0


@pytest.mark.parametrize(("calm", "kept", "disturbed"), [(None, 1000, 0), (5.0, 2000, 1), (1.0, 3000, 3)])
def test_a_disturbed_measurement_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calm: float | None, kept: float, disturbed: int
):
    """Three tries, in which the host takes 20, 4 and 2 per cent: the last of them counts."""
    evaluation = Evaluation(Settings(calm=calm), RunFolder(tmp_path, "r"), {}, {}, Console(quiet=True))
    tries = iter([(1000.0, 0.2), (2000.0, 0.04), (3000.0, 0.02)])
    monkeypatch.setattr(evaluation, "measure", lambda _measurement, _on_sample: next(tries))
    told: list[str] = []
    measurement = Measurement(Target("rabbitpy", "persist"), "load", 1, 1)
    assert evaluation.measure_calmly(measurement, lambda _sample: None, told.append) == kept
    assert len(told) == disturbed


def test_a_failed_measurement_is_kept_with_its_reason(tmp_path: Path):
    folder = RunFolder(tmp_path, "r")
    measurement = Measurement(Target("rabbitpy", "persist"), "load", 1, 1)
    with pytest.raises(plan.MeasurementFailed), folder.recording(measurement) as write:
        write({"second": 1})
        raise plan.MeasurementFailed("the broker hangs")
    assert not folder.has(measurement)
    [file] = tmp_path.rglob("*.jsonl")
    assert samples_in(file) == [{"repetition": 1, "second": 1}, {"repetition": 1, "error": "the broker hangs"}]


def test_beside_takes_the_repetitions_that_both_builds_came_through(tmp_path: Path):
    """Rates 200 and 300 beside 100 and 200: twice and one and a half times as fast. CPU time counts where it was metered."""
    settings = Settings(
        queues=(1, 2), drivers=("load",), modes=("persist",), before=True, rabbitmq=False, repetitions=3, seconds=3, warmup=1
    )
    folder = RunFolder(tmp_path, "r")
    rates = {"rabbitpy": (200, 300, 50), "before": (100, 200)}
    for build, each in rates.items():
        for repetition, rate in enumerate(each, 1):
            with folder.recording(Measurement(Target(build, "persist"), "load", 1, repetition)) as write:
                for second, off in ((1, 1e6), (2, -10), (3, 0), (4, 10)):
                    write(sample(repetition, float(second), rate + off))
    [pair] = beside.pairs(settings, folder)
    assert (pair.queues, pair.mode, pair.ratios) == (1, "persist", [2.0, 1.5])
    assert (pair.ratio, pair.error) == (1.75, 0.25)
    assert [cost.rate for cost in pair.now] == [200, 300]
    assert pair.now[0].client_us == pytest.approx(1e6 * 0.75 / 600)
    assert pair.now[0].broker_us == pytest.approx(1e6 * 1.0 / 410)  # its first sample that counts has none


def test_what_was_declared_is_gone_afterwards(broker: BrokerAddress, connection: pika.BlockingConnection, new_name: Any):
    name = new_name("paper")
    group = plan.Group(name, name, 2)
    with declared(broker.url, [group], {}):
        connection.channel().queue_declare(f"{name}-1", passive=True, durable=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        connection.channel().queue_declare(f"{name}-1", passive=True)


def test_unknown_mode_is_refused():
    done = paper("run", "--modes", "persist,magic")
    assert done.returncode == 2
    assert "consumer-ack-light" in done.stderr


def test_resuming_nothing_is_told_in_a_line(tmp_path: Path):
    done = paper("run", "--resume", "nothing", "--raw", tmp_path)
    assert done.returncode == 1
    assert "there is no run nothing" in done.stderr


# --- the analysis --------------------------------------------------------------------------------------------------------

# (run, mode): by queue count the send rates of up to three repetitions. One sample of each measurement, the warm-up, is far off.
TRUTH = {
    ("a", "persist"): {1: (1000, 1200), 4: (2000, 2000, 2000), 30: (1000,)},
    ("a", "consumer-ack"): {1: (3000, 3600), 4: (3000, 3400, 3200), 30: (1400,)},
    ("a", "consumer-ack-light"): {1: (4000, 4800), 4: (4000, 4000, 4000), 30: (1500,)},
    ("a", "default"): {1: (100, 120), 4: (200, 200, 200), 30: (100,)},
    ("b", "persist"): {4: (1000, 1000)},
    ("b", "consumer-ack"): {4: (2000, 2000)},
}


def sample(repetition: int, second: float, rate: float) -> dict[str, Any]:
    return {
        "repetition": repetition,
        "time": 1.8e9 + second,
        "second": second,
        "interval_s": 1.0,
        "published": rate,
        "confirmed": rate,
        "nacked": 0,
        "received": rate,
        "latency_p50_us": 1000 * second,
        "latency_p95_us": 2000.0,
        "latency_p99_us": 3000.0,
        "confirm_p50_us": None,
        "confirm_p95_us": None,
        "confirm_p99_us": None,
        "broker_cpu_s": None if second == 2 else 0.5,  # the first that counts has none
        "broker_rss_mib": 50 + second,
        "client_cpu_s": 0.25,
    }


def write_truth(raw: Path) -> None:
    """Three measured seconds around each rate, after a warm-up of one; and files that the analysis has to leave out."""
    part = {
        "command": "python -m perf.paper run",
        "date": "2026-01-02T03:04:05+00:00",
        "commit": "abc",
        "machine": {"cpu": "some", "cores": 2, "memory_gib": 4, "system": "Linux"},
        "python": "CPython 3.11",
        "brokers": {"rabbitpy": "rabbitpy-broker 1", "rabbitmq": "RabbitMQ 2"},
    }
    for run in "ab":
        folder = RunFolder(raw, run)
        settings = {"repetitions": 3, "seconds": 3.0, "warmup": 1.0, "calm": 5.0 if run == "b" else None}
        folder.describe({"settings": settings, "parts": [part]})
    for (run, mode), rates in TRUTH.items():
        target = Target("rabbitmq" if mode == "default" else "rabbitpy", mode)
        for queues, repetitions in rates.items():
            for repetition, rate in enumerate(repetitions, 1):
                with RunFolder(raw, run).recording(Measurement(target, "load", queues, repetition)) as write:
                    for second, off in ((1, 1e6), (2, -10), (3, 0), (4, 10)):
                        write(sample(repetition, float(second), rate + off))
    with RunFolder(raw, "b").recording(Measurement(Target("before", "persist"), "load", 4, 1)) as write:
        for second in (1, 2, 3, 4):
            write(sample(1, float(second), 7e3))  # a build before is in the tables, but not in the summary
    good = raw / "run=b/broker=rabbitpy/mode=consumer-ack/driver=load/queues=4"
    # a line cut short, and one that lacks what a sample has
    with (good / "rep=1.jsonl").open("a") as file:
        file.write('{"repetition": 1, "second": 5.0, "publ')
    with (good / "rep=2.jsonl").open("a") as file:
        file.write('{"repetition": 2, "second": 5.0}\n')
    line = json.dumps(sample(3, 2.0, 9e9)) + "\n"
    (good / "rep=3.partial.jsonl").write_text(line * 3)
    (good / "rep=4.jsonl").write_text(line)
    (good / "rep=5.partial.jsonl").write_text(line + json.dumps({"repetition": 5, "error": "it hangs"}) + "\n")
    (good / "rep=6.jsonl").write_text("")
    # the host takes 4 and 8 per cent, after a warm-up that does not count: more than 5
    stolen = [{**sample(7, float(second), 9e9), "stolen": share} for second, share in ((1, 0), (2, 0.04), (3, 0.08), (4, 0.06))]
    (good / "rep=7.jsonl").write_text("".join(json.dumps(each) + "\n" for each in stolen))
    orphan = raw / "run=c/broker=rabbitpy/mode=persist/driver=load/queues=4"
    orphan.mkdir(parents=True)
    (orphan / "rep=1.jsonl").write_text(line * 3)


DISTURBED = "left out: the host took more CPU time than --calm allows"
SHORT = "left out: less than half of its time was measured"
PROBLEMS = {
    "run=b/broker=rabbitpy/mode=consumer-ack/driver=load/queues=4/rep=1.jsonl": "unreadable lines",
    "run=b/broker=rabbitpy/mode=consumer-ack/driver=load/queues=4/rep=2.jsonl": "unreadable lines",
    "run=b/broker=rabbitpy/mode=consumer-ack/driver=load/queues=4/rep=3.partial.jsonl": "left out: not finished",
    "run=b/broker=rabbitpy/mode=consumer-ack/driver=load/queues=4/rep=4.jsonl": SHORT,
    "run=b/broker=rabbitpy/mode=consumer-ack/driver=load/queues=4/rep=5.partial.jsonl": "left out: failed: it hangs",
    "run=b/broker=rabbitpy/mode=consumer-ack/driver=load/queues=4/rep=7.jsonl": DISTURBED,
    "run=c/broker=rabbitpy/mode=persist/driver=load/queues=4/rep=1.jsonl": "left out: its run has no readable run.json",
}


@pytest.fixture(scope="module")
def spark() -> None:
    """Skips, or in CI fails, where the extra `paper` or Java is missing."""
    missing = [name for name in ("pyspark", "pyarrow", "matplotlib") if importlib.util.find_spec(name) is None]
    missing += [] if shutil.which("java") or "JAVA_HOME" in os.environ else ["java"]
    if missing:
        text = f"needs {', '.join(missing)}: pip install '.[paper]' and Java 17"
        if os.environ.get("RABBITPY_REQUIRE_CLIENTS", "0") not in ("", "0"):
            pytest.fail(text)
        pytest.skip(text)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("truth") / "raw"
    write_truth(raw)
    return raw


@pytest.fixture(scope="module")
def analysed(spark: None, truth: Path) -> Path:
    """The folder of an analysis in local mode."""
    out = truth.parent / "out"
    done = paper("analyse", truth, out, timeout=280)
    assert done.returncode == 0, done.stderr
    for file in PROBLEMS:
        assert file in done.stderr
    return out


@pytest.fixture(scope="module")
def summary(analysed: Path) -> dict[str, Any]:
    return json.loads((analysed / "summary.json").read_text())


def rows(out: Path, table: str) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(out / "tables" / table).to_pylist()


def one(found: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    [row] = [row for row in found if all(row[key] == value for key, value in wanted.items())]
    return row


needs_spark = pytest.mark.timeout(300)  # Spark takes 10 to 20 s of CPU


@needs_spark
def test_warm_up_is_dropped_and_nothing_else(analysed: Path):
    measurements = sum(len(repetitions) for rates in TRUTH.values() for repetitions in rates.values())
    samples = rows(analysed, "samples")
    assert len(samples) == 3 * (measurements + 1)  # with that of the build before
    assert min(row["second"] for row in samples) == 2
    assert max(row["published"] for row in samples) < 1e4


@needs_spark
def test_measurements_have_the_means(analysed: Path):
    row = one(rows(analysed, "measurements"), run="a", mode="persist", queues=1, repetition=2)
    assert (row["published"], row["samples"], row["seconds"]) == (1200, 3, 3)
    assert (row["latency_p50_us"], row["confirm_p50_us"]) == (3000, None)
    assert (row["broker_cpu_cores"], row["broker_rss_mib"], row["client_cpu_cores"]) == (0.5, 54, 0.25)
    assert row["broker_cpu_us"] == pytest.approx(1e6 * 1.0 / (1200 + 1210), abs=0.001)


@needs_spark
def test_queue_counts_have_mean_and_range(analysed: Path):
    row = one(rows(analysed, "queue_counts"), run="a", mode="persist", queues=1)
    assert (row["published"], row["lowest"], row["highest"], row["measurements"]) == (1100, 1000, 1200, 2)
    assert row["published_sd"] == pytest.approx(141.421, abs=0.001)


@needs_spark
def test_improvements_are_ratios_within_a_run(analysed: Path):
    found = rows(analysed, "improvements")
    row = one(found, run="a", mode="consumer-ack", queues=4, over="persist")
    assert (row["ratio"], row["lowest"], row["highest"], row["pairs"]) == (1.6, 1.5, 1.7, 3)
    assert row["error"] == 0.0577
    row = one(found, run="b", mode="consumer-ack", queues=4, over="persist")
    assert (row["ratio"], row["error"]) == (2, 0)
    assert one(found, run="a", mode="persist", queues=1, over="rabbitmq")["ratio"] == 10


@needs_spark
def test_summary_gives_each_run_the_weight_of_its_repetitions(summary: dict[str, Any]):
    assert [run["name"] for run in summary["runs"]] == ["a", "b"]
    ratio = one(summary["improvements"], mode="consumer-ack", queues=4)
    assert (ratio["ratio"], ratio["improvement_pct"], ratio["runs"]) == (1.76, 76, 2)
    assert one(summary["rates"], mode="persist", queues=4)["published"] == 1600
    # above 3 queues: 76 and 40 %, and 100 and 50 %
    assert one(summary["means"], mode="consumer-ack")["improvement_pct"] == 58
    assert one(summary["means"], mode="consumer-ack-light")["improvement_pct"] == 75


@needs_spark
def test_files_that_do_not_count_are_named(analysed: Path):
    assert {row["file"]: row["problem"] for row in rows(analysed, "problems")} == PROBLEMS


@needs_spark
def test_figures_are_drawn(analysed: Path):
    for name in report.FIGURES:
        assert (analysed / name).read_bytes().startswith(b"\x89PNG")


@needs_spark
def test_spark_submit_makes_the_same_of_it(analysed: Path, truth: Path):
    """As a cluster's master is given it; what it makes is equal to the last digit."""
    submit = Path(sys.executable).with_name("spark-submit")
    out = truth.parent / "submitted"
    command = [submit, "--master", "local[1]", "--driver-java-options", "-XX:TieredStopAtLevel=1"]
    command += ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
    command += [Path(rabbitpy_broker.__file__).parent / "pipeline" / "cli.py", "sweep", truth, out]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [str(word) for word in command], cwd=truth, env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert (out / "summary.json").read_text() == (analysed / "summary.json").read_text()
    for table in ("samples", "measurements", "queue_counts", "improvements", "problems"):
        assert rows(out, table) == rows(analysed, table)


def test_no_runs_is_told_in_a_line(spark: None, tmp_path: Path):
    done = paper("analyse", tmp_path, tmp_path / "out")
    assert done.returncode == 2
    assert f"no runs in {tmp_path}" in done.stderr
    assert "Traceback" not in done.stderr


# --- the page ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [report.PAGE, report.NOTES], ids=str)
def test_page_holds_what_the_committed_summary_says(path: Path):
    page = (ROOT / path).read_text()
    between = page.partition(report.BEGIN)[2].partition(report.END)[0]
    assert between.strip() == report.rendered(ROOT, path)


@needs_spark
def test_report_puts_the_tables_into_the_page(analysed: Path, tmp_path: Path):
    page, notes = tmp_path / report.PAGE, tmp_path / report.NOTES
    for path in (page, notes):
        path.parent.mkdir(parents=True)
        path.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.take(analysed, tmp_path)
    report.write_pages(tmp_path)
    for path in (page, notes):
        assert path.read_text().startswith("before\n")
        assert path.read_text().endswith("\nafter\n")
        assert "old" not in path.read_text()
    text = page.read_text()
    assert "| 1 | 3.08 x | 3.00 ± 0.00 x | 3.48 x | 4.00 ± 0.00 x |" in text
    assert "| 4 |  | +76.0 ± 3.5 % |  | 2.00 ± 0.00 x |" in text
    # a single repetition has no error, and the mean above 3 queues none either then
    assert "| 30 | +40.3 % | +40.0 % | +53.4 % | +50.0 % |" in text
    assert "| mean above 3 | +42.9 % | +58.0 % | +56.5 % | +75.0 % |" in text
    assert "`persist` is at least 10.00 x RabbitMQ" in text
    assert "moves at least 1.40 x as many messages in `consumer-ack` as in `persist` (at 30 queues)" in text
    assert "(images/paper_improvement.png)" in text
    assert "| perf.load | 1 | 110 | 1,100 | 3,300 | 4,400 | 10.00 x |" in notes.read_text()
    assert "(../../docs/images/paper_rates.png)" in notes.read_text()
