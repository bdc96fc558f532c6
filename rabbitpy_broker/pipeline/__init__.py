"""Messages and what happens to them, as data in Spark: sources, a sink and jobs.

The daemon imports nothing of this, and this nothing of the daemon but the layout of the event journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes format("amqp") and format("rabbitpy-journal") known to a session.

    Where this package is installed, Spark finds them by itself (pyspark_rabbitpy_amqp, pyspark_rabbitpy_journal).
    """
    # Imported here, so that this package can be imported where the extra `spark` is not installed.
    from rabbitpy_broker.pipeline.amqp.source import AmqpSource
    from rabbitpy_broker.pipeline.journal.source import JournalSource

    spark.dataSource.register(AmqpSource)
    spark.dataSource.register(JournalSource)
