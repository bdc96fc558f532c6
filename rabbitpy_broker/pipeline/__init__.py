"""Messages and what happens to them, as data in Spark: sources, a sink and jobs.

The daemon imports nothing of this, and this nothing of the daemon but the layout of the event journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes format("amqp") known to a session that has not found it by itself (pyspark_rabbitpy_amqp)."""
    # Imported here, so that this package can be imported where the extra `spark` is not installed.
    from rabbitpy_broker.pipeline.amqp.source import AmqpSource

    spark.dataSource.register(AmqpSource)
