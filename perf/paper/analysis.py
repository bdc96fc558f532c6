"""From raw samples to tables, figures and a summary, with Spark.

    python -m perf.paper analyse [RAW [OUT]]                       in this process, on all cores
    spark-submit --master spark://… perf/paper/analysis.py RAW OUT    on a cluster; RAW and OUT where all of it can reach them

Samples stay in Spark: only what is aggregated by number of queues comes to the driver. The stages, each a table in OUT/tables:

    samples        every sample after the warm-up
    measurements   the means of one measurement: a run's samples of one second are not independent of each other
    queue_counts   mean, lowest and highest of a run's measurements
    improvements   a mode's rate divided by `persist`'s and by RabbitMQ's, within one run: only ratios of one run count
    problems       files that were left out or have unreadable lines, and why

and from these OUT/summary.json and two PNGs, where all runs have the same weight. The same samples give the same tables: rows
are sorted, and figures are rounded to what does not depend on the order of a sum.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # spark-submit knows this file only
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from perf.paper.published import MEAN_ABOVE_QUEUES, MEAN_IMPROVEMENT, RATIOS

LEAST_JAVA = 17
BASELINE = ("rabbitpy", "persist")
OTHER_BROKER = "rabbitmq"
# A measurement with less of its time than this, after the warm-up, is left out.
LEAST_SHARE = 0.5
# PerfTest's seconds are a little off the whole ones.
SECOND_TOLERANCE = 0.1

PARTITIONS = "run STRING, broker STRING, mode STRING, driver STRING, queues INT"
SAMPLES = f"""{PARTITIONS}, repetition INT, time DOUBLE, second DOUBLE, interval_s DOUBLE,
    published DOUBLE, confirmed DOUBLE, nacked DOUBLE, received DOUBLE,
    latency_p50_us DOUBLE, latency_p95_us DOUBLE, latency_p99_us DOUBLE,
    confirm_p50_us DOUBLE, confirm_p95_us DOUBLE, confirm_p99_us DOUBLE,
    broker_cpu_s DOUBLE, broker_rss_mib DOUBLE, client_cpu_s DOUBLE, error STRING, unreadable STRING"""
FILES = "broker=*/mode=*/driver=*/queues=*/*.jsonl"
REQUIRED = ["repetition", "second", "interval_s", "published", "confirmed", "received"]
RUNS = "run STRING, settings STRUCT<seconds: DOUBLE, warmup: DOUBLE>, unreadable STRING"

TARGET = ["driver", "broker", "mode", "queues"]
MEASUREMENT = ["run", *TARGET, "repetition"]
RATES = ["published", "confirmed", "received"]
LATENCIES = [f"{kind}_{point}_us" for kind in ("latency", "confirm") for point in ("p50", "p95", "p99")]
COSTS = ["broker_cpu_cores", "broker_cpu_us", "broker_rss_mib", "client_cpu_cores"]


class AnalysisFailed(Exception):
    """There is nothing to analyse, or nothing to do it with; the text says why."""


def session() -> SparkSession:
    """Spark as spark-submit has set it up; else in this process, with nothing that others on the network could reach."""
    builder = SparkSession.builder.appName("rabbitpy-broker paper").config("spark.sql.session.timeZone", "UTC")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        local = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            # A run's samples are few: most of the time would go into compiling code that runs once.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.log.level": "ERROR",
        }
        builder = builder.master("local[*]").config(map=local)
    return builder.getOrCreate()


def require_java() -> None:
    """Raises AnalysisFailed unless pyspark will find a Java that is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = f"Spark needs Java {LEAST_JAVA} or later (Debian: apt-get install openjdk-17-jre-headless), on PATH or as JAVA_HOME"
    if java is None:
        raise AnalysisFailed(advice)
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        raise AnalysisFailed(f"{java} does not run. {advice}") from None
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < LEAST_JAVA:
        raise AnalysisFailed(f"{java} is {told.splitlines()[0]}. {advice}")


def read_samples(spark: SparkSession, raw: str, runs: Sequence[str]) -> DataFrame:
    """Every line of the raw files with the file it stands in; a line that is no sample has `unreadable`."""
    reader = spark.read.schema(SAMPLES).option("basePath", raw).option("columnNameOfCorruptRecord", "unreadable")
    try:
        lines = reader.json([f"{raw}/run={run}/{FILES}" for run in runs or ["*"]])
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise AnalysisFailed(f"no samples in {raw}" + (f" of {', '.join(runs)}" if runs else "")) from None
        raise
    is_whole = ~F.greatest(*(F.col(name).isNull() for name in REQUIRED)) & (F.col("interval_s") > 0)
    unreadable = F.when(F.col("error").isNull() & ~is_whole, F.coalesce("unreadable", F.lit("incomplete")))
    return lines.select("*", F.col("_metadata.file_path").alias("file")).withColumn("unreadable", unreadable)


def read_runs(spark: SparkSession, raw: str, runs: Sequence[str]) -> DataFrame:
    """The length and the warm-up of each run that says so."""
    reader = spark.read.schema(RUNS).option("basePath", raw).option("multiLine", True)
    reader = reader.option("columnNameOfCorruptRecord", "unreadable")
    files = f"{raw}/run={{{','.join(runs)}}}/run.json" if runs else f"{raw}/run=*/run.json"
    try:
        return reader.json(files).select("run", "settings.seconds", "settings.warmup").dropna()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return spark.createDataFrame([], "run STRING, seconds DOUBLE, warmup DOUBLE")
        raise


def assessed(lines: DataFrame, runs: DataFrame, warmup: float | None) -> tuple[DataFrame, DataFrame]:
    """The samples that count, and the problems: (file, problem, lines), one row for each file and problem."""
    lines = lines.join(F.broadcast(runs), "run", "left")
    left_out = F.lit(warmup) if warmup is not None else F.col("warmup")
    is_sample = F.col("unreadable").isNull() & F.col("error").isNull()
    begins = F.col("second") - F.col("interval_s")
    counts = is_sample & (begins > left_out - SECOND_TOLERANCE)
    files = lines.groupBy("file").agg(
        F.count_if(F.col("unreadable").isNotNull()).alias("unreadable_lines"),
        F.count_if(is_sample).alias("sample_lines"),
        F.min("error").alias("error"),
        F.min("seconds").alias("asked_s"),
        F.coalesce(F.sum(F.when(counts, F.col("interval_s"))), F.lit(0.0)).alias("measured_s"),
    )
    is_short = F.col("measured_s") < LEAST_SHARE * F.col("asked_s")
    reason = (
        F.when(F.col("error").isNotNull(), F.concat(F.lit("left out: failed: "), "error"))
        .when(F.col("file").endswith(".partial.jsonl"), F.lit("left out: not finished"))
        .when(F.col("asked_s").isNull(), F.lit("left out: its run has no readable run.json"))
        .when(is_short, F.lit("left out: less than half of its time was measured"))
    )
    files = files.withColumn("reason", reason).cache()
    problems = files.where("reason IS NOT NULL").select("file", F.col("reason").alias("problem"), F.col("sample_lines").alias("lines"))
    problems = problems.unionByName(
        files.where("unreadable_lines > 0").select(
            "file", F.lit("unreadable lines").alias("problem"), F.col("unreadable_lines").alias("lines")
        )
    )
    good = files.where("reason IS NULL").select("file")
    samples = lines.where(counts).join(F.broadcast(good), "file", "left_semi")
    return samples.drop("file", "error", "unreadable", "seconds", "warmup"), problems


def rounded(value: Column) -> Column:
    return F.round(value, 3)


def over_time(name: str) -> Column:
    """The mean of a rate, where the samples are not all of the same length."""
    return F.sum(F.col(name) * F.col("interval_s")) / F.sum("interval_s")


def measurements_of(samples: DataFrame) -> DataFrame:
    return samples.groupBy(*MEASUREMENT).agg(
        F.count("*").alias("samples"),
        rounded(F.sum("interval_s")).alias("seconds"),
        *(rounded(over_time(name)).alias(name) for name in RATES),
        rounded(F.sum("nacked")).alias("nacked"),
        # of a usual second
        *(rounded(F.median(name)).alias(name) for name in LATENCIES),
        rounded(F.sum("broker_cpu_s") / F.sum("interval_s")).alias("broker_cpu_cores"),
        rounded(1e6 * F.sum("broker_cpu_s") / F.sum(F.col("received") * F.col("interval_s"))).alias("broker_cpu_us"),
        rounded(F.max("broker_rss_mib")).alias("broker_rss_mib"),
        rounded(F.sum("client_cpu_s") / F.sum("interval_s")).alias("client_cpu_cores"),
    )


def queue_counts_of(measurements: DataFrame) -> DataFrame:
    return measurements.groupBy("run", *TARGET).agg(
        F.count("*").alias("measurements"),
        *(rounded(F.avg(name)).alias(name) for name in [*RATES, *LATENCIES, *COSTS]),
        rounded(F.coalesce(F.stddev_samp("published"), F.lit(0.0))).alias("published_sd"),
        F.min("published").alias("lowest"),
        F.max("published").alias("highest"),
    )


def improvements_of(measurements: DataFrame) -> DataFrame:
    """`ratio` of the mean send rates of one run, `lowest` and `highest` of its single repetitions.

    Each measurement is compared with that of the same repetition, which was made just before or after it.
    """
    pair = ["run", "driver", "queues", "repetition"]

    def baseline(condition: Column, name: str) -> DataFrame:
        return measurements.where(condition).select(*pair, F.col("published").alias("base"), F.lit(name).alias("over"))

    of_persist = (F.col("broker") == BASELINE[0]) & (F.col("mode") == BASELINE[1])
    bases = baseline(of_persist, BASELINE[1]).unionByName(baseline(F.col("broker") == OTHER_BROKER, OTHER_BROKER))
    pairs = measurements.where(F.col("broker") == BASELINE[0]).join(bases, pair).where("base > 0 AND mode != over")
    ratio = F.col("published") / F.col("base")
    return pairs.groupBy("run", *TARGET, "over").agg(
        F.count("*").alias("pairs"),
        F.round(F.avg("published") / F.avg("base"), 4).alias("ratio"),
        F.round(F.min(ratio), 4).alias("lowest"),
        F.round(F.max(ratio), 4).alias("highest"),
    )


def write(table: DataFrame, place: str, *order: str) -> DataFrame:
    """Writes a small table, sorted, and returns it as it was written."""
    table.repartition(1).sortWithinPartitions(*order).write.mode("overwrite").parquet(place)
    return table.sparkSession.read.schema(table.schema).parquet(place)


def summarised(queue_counts: DataFrame, improvements: DataFrame, problems: DataFrame) -> dict[str, Any]:
    """What figures and page need: over all runs, each with the same weight."""

    def rows(table: DataFrame, *order: str) -> list[dict[str, Any]]:
        return sorted((row.asDict() for row in table.collect()), key=lambda row: [row[name] for name in order])

    ratios = improvements.groupBy(*TARGET, "over").agg(
        F.count("*").alias("runs"),
        F.round(F.avg("ratio"), 4).alias("ratio"),
        F.min("lowest").alias("lowest"),
        F.max("highest").alias("highest"),
    )
    over_persist = ratios.where(F.col("over") == BASELINE[1]).drop("over", "broker")
    over_persist = over_persist.withColumn("improvement_pct", F.round(100 * (F.col("ratio") - 1), 2)).cache()
    over_rabbitmq = ratios.where(F.col("over") == OTHER_BROKER).select(*TARGET, F.col("ratio").alias("to_rabbitmq"))
    rates = queue_counts.groupBy(*TARGET).agg(
        F.count("*").alias("runs"),
        F.sum("measurements").alias("measurements"),
        *(rounded(F.avg(name)).alias(name) for name in [*RATES, *LATENCIES, *COSTS]),
        F.min("lowest").alias("lowest"),
        F.max("highest").alias("highest"),
    )
    means = over_persist.where(F.col("queues") > MEAN_ABOVE_QUEUES).groupBy("driver", "mode").agg(
        F.count("*").alias("queue_counts"), F.round(F.avg("improvement_pct"), 2).alias("improvement_pct")
    )
    return {
        "rates": rows(rates.join(over_rabbitmq, TARGET, "left"), *TARGET),
        "improvements": rows(over_persist, "driver", "mode", "queues"),
        "means": rows(means, "driver", "mode"),
        "paper": {"ratios": RATIOS, "mean_improvement_pct": MEAN_IMPROVEMENT},
        "problems": rows(problems, "file", "problem"),
    }


def run_files(spark: SparkSession, raw: str, runs: Sequence[str]) -> list[dict[str, Any]]:
    """The run files of the given runs, which say where and with what each was made."""
    files = spark.read.text([f"{raw}/run={run}/run.json" for run in runs], wholetext=True)
    return sorted((json.loads(row.value) for row in files.collect()), key=lambda run: str(run["name"]))


def analyse(spark: SparkSession, raw: str, out: str, runs: Sequence[str], warmup: float | None) -> dict[str, Any]:
    """Writes the tables and returns the summary. Raises AnalysisFailed."""
    tables = f"{out}/tables"
    lines = read_samples(spark, raw, runs)
    samples, problems = assessed(lines, read_runs(spark, raw, runs), warmup)
    problems = write(problems.withColumn("file", F.expr(r"regexp_extract(file, '(run=[^/]*/.*)$', 1)")), f"{tables}/problems", "file", "problem")
    samples = samples.repartition("run").sortWithinPartitions(*MEASUREMENT, "second")
    samples.write.mode("overwrite").partitionBy("run").parquet(f"{tables}/samples")
    samples = spark.read.schema(samples.schema).parquet(f"{tables}/samples")
    measurements = write(measurements_of(samples), f"{tables}/measurements", *MEASUREMENT)
    queue_counts = write(queue_counts_of(measurements), f"{tables}/queue_counts", "run", *TARGET)
    improvements = write(improvements_of(measurements), f"{tables}/improvements", "run", *TARGET, "over")
    used = sorted(row.run for row in queue_counts.select("run").distinct().collect())
    return {"runs": run_files(spark, raw, used) if used else [], **summarised(queue_counts, improvements, problems)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf.paper analyse", description=__doc__.partition("\n")[0])
    parser.add_argument("raw", nargs="?", default="build/paper/raw", help="folder of the runs [%(default)s]")
    parser.add_argument("out", nargs="?", default="build/paper/out", help="folder for the results [%(default)s]")
    parser.add_argument("--run", action="append", default=[], metavar="ID", help="only this run; may be repeated")
    parser.add_argument("--warmup", type=float, metavar="S", help="seconds to leave out [each run's own]")
    parser.add_argument("--local-out", type=Path, metavar="FOLDER", help="for summary and figures [OUT, which is then local]")
    given = parser.parse_args(arguments)
    raw, out = (os.path.abspath(place) if "://" not in place else place.rstrip("/") for place in (given.raw, given.out))
    if given.local_out is None and "://" in out:
        parser.error("OUT is not a local folder: name one with --local-out")
    folder = given.local_out or Path(out)
    try:
        if "://" not in raw and not any(Path(raw).glob("run=*")):  # told without waiting for Spark
            raise AnalysisFailed(f"no runs in {raw}")
        spark = session()
        try:
            summary = analyse(spark, raw, out, given.run, given.warmup)
        finally:
            spark.stop()
    except AnalysisFailed as error:
        print(f"perf.paper analyse: {error}", file=sys.stderr)
        return 1
    for problem in summary["problems"]:
        print(f"{problem['file']}: {problem['problem']} ({problem['lines']} lines)", file=sys.stderr)
    if not summary["rates"]:
        print("perf.paper analyse: no measurement is left to analyse", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    from perf.paper import figures  # matplotlib takes a second, which the messages above need not wait for

    figures.draw(summary, folder)
    print(f"{len(summary['runs'])} runs, {len(summary['rates'])} combinations; tables, summary and figures in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
