"""From raw samples to tables, figures and a summary, with Spark.

    rabbitpy-pipeline sweep RAW OUT        RAW is what `python -m perf.paper run` has written

Samples stay in Spark: only what is aggregated by number of queues comes to the driver. The stages, each a table in OUT/tables:

    samples        every sample after the warm-up
    measurements   the means of one measurement: a run's samples of one second are not independent of each other
    queue_counts   mean, lowest and highest of a run's measurements
    improvements   a mode's rate divided by `persist`'s and by RabbitMQ's, within one run: only ratios of one run count
    problems       files that were left out or have unreadable lines, and why

and from these OUT/summary.json and two PNGs, where a run has the weight of its repetitions. The same samples give the same
tables: rows are sorted, and figures are rounded to what does not depend on the order of a sum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from rabbitpy_broker.pipeline.errors import PipelineError
from rabbitpy_broker.pipeline.sweep.figures import draw
from rabbitpy_broker.pipeline.sweep.published import MEAN_ABOVE_QUEUES, MEAN_IMPROVEMENT, RATIOS

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
    broker_cpu_s DOUBLE, broker_rss_mib DOUBLE, client_cpu_s DOUBLE, stolen DOUBLE, error STRING, unreadable STRING"""
FILES = "broker=*/mode=*/driver=*/queues=*/*.jsonl"
REQUIRED = ["repetition", "second", "interval_s", "published", "confirmed", "received"]
RUNS = "run STRING, settings STRUCT<seconds: DOUBLE, warmup: DOUBLE, calm: DOUBLE>, unreadable STRING"

TARGET = ["driver", "broker", "mode", "queues"]
MEASUREMENT = ["run", *TARGET, "repetition"]
RATES = ["published", "confirmed", "received"]
LATENCIES = [f"{kind}_{point}_us" for kind in ("latency", "confirm") for point in ("p50", "p95", "p99")]
COSTS = ["broker_cpu_cores", "broker_cpu_us", "broker_rss_mib", "client_cpu_cores"]


def require_runs(raw: str) -> None:
    """Raises PipelineError, without waiting for Spark, when a local folder has no runs at all."""
    if "://" not in raw and not any(Path(raw).glob("run=*")):
        raise PipelineError(f"no runs in {raw}")


def read_samples(spark: SparkSession, raw: str, runs: Sequence[str]) -> DataFrame:
    """Every line of the raw files with the file it stands in; a line that is no sample has `unreadable`."""
    reader = (
        spark.read.schema(SAMPLES).option("basePath", raw).option("columnNameOfCorruptRecord", "unreadable")
    )
    try:
        lines = reader.json([f"{raw}/run={run}/{FILES}" for run in runs or ["*"]])
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise PipelineError(
                f"no samples in {raw}" + (f" of {', '.join(runs)}" if runs else "")
            ) from None
        raise
    is_whole = ~fn.greatest(*(fn.col(name).isNull() for name in REQUIRED)) & (fn.col("interval_s") > 0)
    unreadable = fn.when(
        fn.col("error").isNull() & ~is_whole, fn.coalesce("unreadable", fn.lit("incomplete"))
    )
    return lines.select("*", fn.col("_metadata.file_path").alias("file")).withColumn("unreadable", unreadable)


def read_runs(spark: SparkSession, raw: str, runs: Sequence[str]) -> DataFrame:
    """The length and the warm-up of each run that says so, and the per cent of CPU time that its machine's host might take."""
    reader = spark.read.schema(RUNS).option("basePath", raw).option("multiLine", True)
    reader = reader.option("columnNameOfCorruptRecord", "unreadable")
    files = f"{raw}/run={{{','.join(runs)}}}/run.json" if runs else f"{raw}/run=*/run.json"
    try:
        found = reader.json(files).select("run", "settings.seconds", "settings.warmup", "settings.calm")
        return found.dropna(subset=["run", "seconds", "warmup"])
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return spark.createDataFrame([], "run STRING, seconds DOUBLE, warmup DOUBLE, calm DOUBLE")
        raise


def assessed(lines: DataFrame, runs: DataFrame, warmup: float | None) -> tuple[DataFrame, DataFrame]:
    """The samples that count, and the problems: (file, problem, lines), one row for each file and problem."""
    lines = lines.join(fn.broadcast(runs), "run", "left")
    left_out = fn.lit(warmup) if warmup is not None else fn.col("warmup")
    is_sample = fn.col("unreadable").isNull() & fn.col("error").isNull()
    begins = fn.col("second") - fn.col("interval_s")
    counts = is_sample & (begins > left_out - SECOND_TOLERANCE)
    files = lines.groupBy("file").agg(
        fn.count_if(fn.col("unreadable").isNotNull()).alias("unreadable_lines"),
        fn.count_if(is_sample).alias("sample_lines"),
        fn.min("error").alias("error"),
        fn.min("seconds").alias("asked_s"),
        fn.coalesce(fn.sum(fn.when(counts, fn.col("interval_s"))), fn.lit(0.0)).alias("measured_s"),
        fn.min("calm").alias("calm"),
        fn.avg(fn.when(counts, 100 * fn.col("stolen"))).alias("stolen_pct"),
    )
    is_short = fn.col("measured_s") < LEAST_SHARE * fn.col("asked_s")
    reason = (
        fn.when(fn.col("error").isNotNull(), fn.concat(fn.lit("left out: failed: "), "error"))
        .when(fn.col("file").endswith(".partial.jsonl"), fn.lit("left out: not finished"))
        .when(fn.col("asked_s").isNull(), fn.lit("left out: its run has no readable run.json"))
        .when(is_short, fn.lit("left out: less than half of its time was measured"))
        .when(fn.col("stolen_pct") > fn.col("calm"), fn.lit("left out: the host took more CPU time than --calm allows"))
    )
    files = files.withColumn("reason", reason).cache()
    problems = files.where("reason IS NOT NULL").select(
        "file", fn.col("reason").alias("problem"), fn.col("sample_lines").alias("lines")
    )
    problems = problems.unionByName(
        files.where("unreadable_lines > 0").select(
            "file", fn.lit("unreadable lines").alias("problem"), fn.col("unreadable_lines").alias("lines")
        )
    )
    good = files.where("reason IS NULL").select("file")
    samples = lines.where(counts).join(fn.broadcast(good), "file", "left_semi")
    return samples.drop("file", "error", "unreadable", "seconds", "warmup", "calm"), problems


def rounded(value: Column) -> Column:
    return fn.round(value, 3)


def over_time(name: str) -> Column:
    """The mean of a rate, where the samples are not all of the same length."""
    return fn.sum(fn.col(name) * fn.col("interval_s")) / fn.sum("interval_s")


def weighted(name: str, weight: str) -> Column:
    """The mean of those figures that are known."""
    known = fn.col(name).isNotNull()
    return fn.sum(fn.col(name) * fn.col(weight)) / fn.sum(fn.when(known, fn.col(weight)))


def error_of_mean(name: str, weight: Column) -> Column:
    """The standard error of a weighted mean of independent figures with these errors; null if one of them is."""
    known = fn.count(name) == fn.count("*")
    part = fn.col(name) * weight
    return fn.when(known, fn.sqrt(fn.sum(part * part)) / fn.sum(weight))


def measurements_of(samples: DataFrame) -> DataFrame:
    # a measurement's first sample has no CPU time
    metered_s = fn.when(fn.col("broker_cpu_s").isNotNull(), fn.col("interval_s"))
    return samples.groupBy(*MEASUREMENT).agg(
        fn.count("*").alias("samples"),
        rounded(fn.sum("interval_s")).alias("seconds"),
        *(rounded(over_time(name)).alias(name) for name in RATES),
        rounded(fn.sum("nacked")).alias("nacked"),
        # of a usual second
        *(rounded(fn.median(name)).alias(name) for name in LATENCIES),
        rounded(fn.sum("broker_cpu_s") / fn.sum(metered_s)).alias("broker_cpu_cores"),
        rounded(1e6 * fn.sum("broker_cpu_s") / fn.sum(fn.col("received") * metered_s)).alias("broker_cpu_us"),
        rounded(fn.max("broker_rss_mib")).alias("broker_rss_mib"),
        rounded(fn.sum("client_cpu_s") / fn.sum("interval_s")).alias("client_cpu_cores"),
        fn.round(fn.avg("stolen"), 4).alias("stolen"),
    )


def queue_counts_of(measurements: DataFrame) -> DataFrame:
    return measurements.groupBy("run", *TARGET).agg(
        fn.count("*").alias("measurements"),
        *(rounded(fn.avg(name)).alias(name) for name in [*RATES, *LATENCIES, *COSTS]),
        rounded(fn.coalesce(fn.stddev_samp("published"), fn.lit(0.0))).alias("published_sd"),
        fn.min("published").alias("lowest"),
        fn.max("published").alias("highest"),
    )


def improvements_of(measurements: DataFrame) -> DataFrame:
    """`ratio` of the mean send rates of one run, `lowest` and `highest` of its single repetitions, and `error`, the standard
    error that these have as a mean; null for a single one.

    Each measurement is compared with that of the same repetition, which was made just before or after it.
    """
    pair = ["run", "driver", "queues", "repetition"]

    def baseline(condition: Column, name: str) -> DataFrame:
        return measurements.where(condition).select(
            *pair, fn.col("published").alias("base"), fn.lit(name).alias("over")
        )

    of_persist = (fn.col("broker") == BASELINE[0]) & (fn.col("mode") == BASELINE[1])
    bases = baseline(of_persist, BASELINE[1]).unionByName(
        baseline(fn.col("broker") == OTHER_BROKER, OTHER_BROKER)
    )
    pairs = (
        measurements.where(fn.col("broker") == BASELINE[0])
        .join(bases, pair)
        .where("base > 0 AND mode != over")
    )
    ratio = fn.col("published") / fn.col("base")
    return pairs.groupBy("run", *TARGET, "over").agg(
        fn.count("*").alias("pairs"),
        fn.round(fn.avg("published") / fn.avg("base"), 4).alias("ratio"),
        fn.round(fn.stddev_samp(ratio) / fn.sqrt(fn.count("*")), 4).alias("error"),
        fn.round(fn.min(ratio), 4).alias("lowest"),
        fn.round(fn.max(ratio), 4).alias("highest"),
    )


def write(table: DataFrame, place: str, *order: str) -> DataFrame:
    """Writes a small table, sorted, and returns it as it was written."""
    table.repartition(1).sortWithinPartitions(*order).write.mode("overwrite").parquet(place)
    return table.sparkSession.read.schema(table.schema).parquet(place)


def summarised(queue_counts: DataFrame, improvements: DataFrame, problems: DataFrame) -> dict[str, Any]:
    """What figures and page need: over all runs, each with the weight of its repetitions."""

    def rows(table: DataFrame, *order: str) -> list[dict[str, Any]]:
        return sorted(
            (row.asDict() for row in table.collect()), key=lambda row: [row[name] for name in order]
        )

    ratios = improvements.groupBy(*TARGET, "over").agg(
        fn.count("*").alias("runs"),
        fn.round(weighted("ratio", "pairs"), 4).alias("ratio"),
        fn.round(error_of_mean("error", fn.col("pairs")), 4).alias("error"),
        fn.min("lowest").alias("lowest"),
        fn.max("highest").alias("highest"),
    )
    over_persist = ratios.where(fn.col("over") == BASELINE[1]).drop("over", "broker")
    over_persist = over_persist.withColumn(
        "improvement_pct", fn.round(100 * (fn.col("ratio") - 1), 2)
    ).cache()
    over_rabbitmq = ratios.where(fn.col("over") == OTHER_BROKER).select(
        *TARGET, fn.col("ratio").alias("to_rabbitmq")
    )
    compared = queue_counts.where(fn.col("broker").isin(BASELINE[0], OTHER_BROKER))  # without a build before
    rates = compared.groupBy(*TARGET).agg(
        fn.count("*").alias("runs"),
        fn.sum("measurements").alias("measurements"),
        *(rounded(weighted(name, "measurements")).alias(name) for name in [*RATES, *LATENCIES, *COSTS]),
        fn.min("lowest").alias("lowest"),
        fn.max("highest").alias("highest"),
    )
    means = (
        over_persist.where(fn.col("queues") > MEAN_ABOVE_QUEUES)
        .groupBy("driver", "mode")
        .agg(
            fn.count("*").alias("queue_counts"),
            fn.round(fn.avg("improvement_pct"), 2).alias("improvement_pct"),
            fn.round(100 * error_of_mean("error", fn.lit(1)), 2).alias("error_pct"),
        )
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


def analyse(
    spark: SparkSession, raw: str, out: str, runs: Sequence[str], warmup: float | None
) -> dict[str, Any]:
    """Writes the tables and returns the summary. Raises PipelineError."""
    tables = f"{out}/tables"
    lines = read_samples(spark, raw, runs)
    samples, problems = assessed(lines, read_runs(spark, raw, runs), warmup)
    problems = write(
        problems.withColumn("file", fn.expr(r"regexp_extract(file, '(run=[^/]*/.*)$', 1)")),
        f"{tables}/problems",
        "file",
        "problem",
    )
    samples = samples.repartition("run").sortWithinPartitions(*MEASUREMENT, "second")
    samples.write.mode("overwrite").partitionBy("run").parquet(f"{tables}/samples")
    samples = spark.read.schema(samples.schema).parquet(f"{tables}/samples")
    measurements = write(measurements_of(samples), f"{tables}/measurements", *MEASUREMENT)
    queue_counts = write(queue_counts_of(measurements), f"{tables}/queue_counts", "run", *TARGET)
    improvements = write(improvements_of(measurements), f"{tables}/improvements", "run", *TARGET, "over")
    used = sorted(row.run for row in queue_counts.select("run").distinct().collect())
    return {
        "runs": run_files(spark, raw, used) if used else [],
        **summarised(queue_counts, improvements, problems),
    }


def sweep(
    spark: SparkSession, raw: str, out: str, folder: Path, runs: Sequence[str] = (), warmup: float | None = None
) -> dict[str, Any]:
    """Writes tables to OUT, summary and figures to a local folder, and gives the summary. Raises PipelineError.

    `runs`: only these; `warmup`: seconds to leave out, else each run's own.
    """
    require_runs(raw)
    summary = analyse(spark, raw, out, runs, warmup)
    if summary["rates"]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        draw(summary, folder)
    return summary
