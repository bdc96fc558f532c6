"""Messages and what happens to them, as data in Spark: sources, a sink and jobs.

The daemon imports nothing of this, and this nothing of the daemon but the layout of the event journal.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark 4.2 and 4.3 put into the environment of a stream's process, at each start, and what it is there by default.
STREAM_ENVIRONMENT: Final = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}


def register(spark: SparkSession) -> None:
    """Makes format("amqp") and format("rabbitpy-journal") known to a session; to be called where several streams start at once.

    Where this package is installed, Spark finds them by itself (pyspark_rabbitpy_amqp, pyspark_rabbitpy_journal). But all streams
    of a format share one map of Spark's for the environment of their processes, which does not bear two that put new names
    into it at the same time: it is broken from then on, and no stream of the format starts any more ("Illegal size 5 of
    collection, expected 6"). So the names are put there here.
    """
    # Imported here, so that this package can be imported where the extra `spark` is not installed.
    from rabbitpy_broker.pipeline.amqp.source import AmqpSource
    from rabbitpy_broker.pipeline.journal.source import JournalSource

    for source in (AmqpSource, JournalSource):
        spark.dataSource.register(source)
        session = getattr(spark, "_jsparkSession", None)
        if session is None:  # of Spark Connect: the map is in another process
            continue
        environment = session.sessionState().dataSourceManager().lookupDataSource(source.name()).dataSourceCls().envVars()
        for name, value in STREAM_ENVIRONMENT.items():
            environment.putIfAbsent(name, value)
