"""The one way in which Spark is started here: by every job, by the tests and by the analysis of measurements.

Without a master Spark runs in this process, on all cores, with nothing that others on the network could reach. Under
spark-submit it is as spark-submit has set it up. What is the same everywhere: UTC, and Parquet compressed with zstd (snappy,
Spark's own choice, loads the library that was built for musl wherever that is installed beside glibc).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from rabbitpy_broker.pipeline.java import find_java

ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
}
STARTED_HERE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # What Spark remembers of what it has done, page or not: some 0.1 MB of heap for a small batch, until it has a thousand.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.sql.streaming.ui.retainedQueries": "5",
    "spark.sql.streaming.ui.retainedProgressUpdates": "5",
}
# For what takes a few seconds: most of the time would go into compiling code that runs once. With one level of compilation
# Java keeps 48 MB for code, which some hundred queries fill, and then Spark ends; 240 MB is what it keeps otherwise.
BRIEF: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
}
# Of a run on this machine; a cluster has its own.
LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def session(app_name: str, master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session, or the one that there is. `config` wins over ours. Raises PipelineError without a Java.

    master: local[2], local-cluster[2,1,1024], spark://host:7077, ...; local[*] unless given. spark-submit's counts before it.
    """
    builder = SparkSession.builder.appName(app_name)
    settings = dict(ALWAYS)
    if not is_submitted():
        home = find_java()
        if home is not None:
            os.environ["JAVA_HOME"] = home
        # Workers would take whatever python3 is on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        master = master or "local[*]"
        builder = builder.master(master)
        settings |= STARTED_HERE
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= LOCAL
        if not master.startswith("local["):
            # For executors on this machine, or with the same paths: where this package was imported from.
            settings["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    return builder.config(map={**settings, **(config or {})}).getOrCreate()


def is_submitted() -> bool:
    """True in a program that spark-submit started."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
