"""The one way in which Spark is started here: by every job, by the tests and by the analysis of measurements.

Without a master Spark runs in this process, on all cores, with nothing that others on the network could reach. Under
spark-submit it is as spark-submit has set it up. What is the same everywhere: UTC, Parquet compressed with zstd (snappy,
Spark's own choice, loads the library built for musl wherever that is installed beside glibc), and our sources and sinks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from rabbitpy_broker.pipeline.java import java_home

ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
}
STARTED_HERE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# For what runs a few seconds: most of the time would go into compiling code that runs once.
BRIEF: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
ON_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Of a run in this process; a cluster has its own.
LOCAL: Final = {"spark.sql.shuffle.partitions": "4"}


def session(name: str, master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session, or the one that there is. `config` wins over ours. Raises PipelineError without a Java."""
    settings = dict(ALWAYS)
    if not is_submitted():
        home = java_home()
        if home is not None:
            os.environ["JAVA_HOME"] = home
        # Workers would take whatever python3 is on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        master = master or "local[*]"
        settings |= STARTED_HERE
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= ON_LOOPBACK | LOCAL
        if not master.startswith("local["):
            settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(_import_path())
    settings |= config or {}
    builder = SparkSession.builder.appName(name).config(map=settings)
    if master is not None and not is_submitted():
        builder = builder.master(master)
    return builder.getOrCreate()


def is_submitted() -> bool:
    """True in a program that spark-submit started."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _import_path() -> list[str]:
    """Where this package was imported from, for executors on the same machine or with the same paths."""
    return [str(Path(__file__).resolve().parents[2])]
