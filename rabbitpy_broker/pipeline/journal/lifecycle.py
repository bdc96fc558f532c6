"""The life of each message in each queue, from the events of a journal: one row for each place that a message had.

    boot, queue, priority, seq_id    which place; seq_id -1: handed out at once to a consumer without acks, and never kept
    vhost, queue_name, store         the queue; `store` is the same after a restart
    publish                          the publish number; null for what was recovered
    size, persistent, kept           bytes of body; kept: outlives the broker
    is_recovered                     it was there when the boot began
    published_ns, confirmed_ns       ns since 1970, null when it was not; of a confirm: not refused
    routed_ns, delivered_ns, ended_ns   when it got its place, was first handed out, and was gone
    deliveries, redelivered, requeues   how often
    ended                            ack, no-ack, nack, dead-letter, expire, drop, purge; null: it is still there
    reason                           of that, where there is one
    born, first_delivery, end, confirm   the places of these events in the journal: segment * 2^32 + record
    unflagged, acks                  deliveries without the flag redelivered; how often it was settled by its consumer
    confirm_expected                 whether its publish had a publish_seqno

What must stay true: a place is one row, however many segments its events are in; order is that of the journal, not of
times, which many events share.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel

from rabbitpy_broker.events import layout as at
from rabbitpy_broker.pipeline.journal.events import names, read

POSITION: Final = "(segment << 32) + record"
# With a dead letter under way the message is still there.
_ENDS: Final = f"""(event = {at.ACK} OR event = {at.DEAD_LETTER} OR event IN ({at.NACK}, {at.EXPIRE}, {at.DROP}) AND aux = 0
    OR event = {at.DELIVER} AND (flags & {at.NO_ACK}) != 0)"""
_BIRTH: Final = f"(event = {at.ROUTE} OR event = {at.DELIVER} AND (flags & {at.AT_ONCE}) != 0)"

_PLACES: Final = f"""
SELECT boot, queue, priority, seq_id,
    min(CASE WHEN {_BIRTH} THEN position END) AS born,
    min(CASE WHEN {_BIRTH} THEN time_ns END) AS routed_ns,
    max(CASE WHEN {_BIRTH} THEN aux END) AS publish,
    count_if({_BIRTH}) AS births,
    max(size) AS size,
    bool_or((flags & {at.PERSISTENT}) != 0) AS persistent,
    bool_or((flags & {at.KEPT}) != 0 OR event = {at.RECOVER}) AS kept,
    min(CASE WHEN event = {at.RECOVER} THEN position END) AS recovered,
    min(CASE WHEN event = {at.DELIVER} THEN position END) AS first_delivery,
    min(CASE WHEN event = {at.DELIVER} THEN time_ns END) AS delivered_ns,
    max(CASE WHEN event = {at.DELIVER} THEN position END) AS last_delivery,
    count_if(event = {at.DELIVER}) AS deliveries,
    count_if(event = {at.DELIVER} AND (flags & {at.REDELIVERED}) != 0) AS redelivered,
    count_if(event = {at.REQUEUE}) AS requeues,
    count_if(event IN ({at.ACK}, {at.NACK})) AS acks,
    min(CASE WHEN event IN ({at.ACK}, {at.NACK}, {at.REQUEUE}) THEN position END) AS first_settle,
    min_by(struct(event, reason, time_ns, position), position) FILTER (WHERE {_ENDS}) AS ending
FROM placed GROUP BY boot, queue, priority, seq_id
"""

_LIFECYCLE: Final = f"""
SELECT p.boot, p.queue, p.priority, p.seq_id, n.vhost, n.name AS queue_name, n.store, n.durable,
    p.publish, p.size, p.persistent, p.kept, p.recovered IS NOT NULL AS is_recovered,
    u.time_ns AS published_ns, c.time_ns AS confirmed_ns, p.routed_ns, p.delivered_ns,
    coalesce(p.ending.time_ns, g.time_ns) AS ended_ns,
    p.deliveries, p.redelivered, p.requeues, p.deliveries - p.redelivered AS unflagged, p.acks, p.births,
    CASE WHEN p.ending.event = {at.ACK} THEN 'ack' WHEN p.ending.event = {at.DELIVER} THEN 'no-ack'
         WHEN p.ending.event = {at.NACK} THEN 'nack' WHEN p.ending.event = {at.DEAD_LETTER} THEN 'dead-letter'
         WHEN p.ending.event = {at.EXPIRE} THEN 'expire' WHEN p.ending.event = {at.DROP} THEN 'drop'
         WHEN g.position IS NOT NULL THEN 'purge' END AS ended,
    coalesce(p.ending.reason, g.reason) AS reason,
    coalesce(p.born, p.recovered) AS born, p.first_delivery, p.last_delivery, p.first_settle,
    coalesce(p.ending.position, g.position) AS `end`, c.position AS confirm, u.aux > 0 AS confirm_expected
FROM places p
LEFT JOIN names n ON n.boot = p.boot AND n.id = p.queue
LEFT JOIN publishes u ON u.boot = p.boot AND u.seq_id = p.publish
LEFT JOIN confirmed c ON c.boot = p.boot AND c.publish = p.publish
LEFT JOIN purged g ON g.boot = p.boot AND g.queue = p.queue AND g.priority = p.priority AND g.seq_id = p.seq_id
"""


def lifecycle(spark: SparkSession, folder: str, table: str) -> DataFrame:
    """Writes the table, as Parquet, over what is there, and reads it back.

    The views that later queries use stay registered: raw (with `position`), names, publishes, confirmed, lives.
    """
    views(spark, folder)
    places = _places(spark)
    try:
        spark.sql(_LIFECYCLE).write.mode("overwrite").parquet(table)
    finally:
        places.unpersist()
    lives = spark.read.parquet(table)
    lives.createOrReplaceTempView("lives")
    return lives


def views(spark: SparkSession, folder: str) -> None:
    """Registers the views raw and names."""
    raw = read(spark, folder).selectExpr("*", f"{POSITION} AS position")
    raw.createOrReplaceTempView("raw")
    names(spark, folder).createOrReplaceTempView("names")


def _places(spark: SparkSession) -> DataFrame:
    """Registers what _LIFECYCLE is made of; gives the places, which are kept until the table is written."""
    _view(spark, "publishes", f"SELECT * FROM raw WHERE event = {at.PUBLISH}")
    _view(spark, "confirmed", _confirmed())
    # A recovered range is as many places.
    _view(
        spark,
        "placed",
        f"""SELECT boot, queue, priority, seq_id, position, time_ns, event, aux, size, flags, reason FROM raw
            WHERE queue > 0 AND seq_id >= 0 AND event IN
                ({at.ROUTE}, {at.DELIVER}, {at.ACK}, {at.NACK}, {at.REQUEUE}, {at.DEAD_LETTER}, {at.EXPIRE}, {at.DROP})
            UNION ALL
            SELECT boot, queue, priority, explode(sequence(seq_id, seq_id + aux - 1)), position, time_ns, event,
                0L, 0, flags, reason FROM raw WHERE event = {at.RECOVER}""",
    )
    _view(
        spark,
        "places",
        f"""{_PLACES} UNION ALL
            SELECT boot, queue, priority, seq_id, position, time_ns, aux, 1L, size, (flags & {at.PERSISTENT}) != 0, false,
                NULL, position, time_ns, position, 1L, 0L, 0L, 0L, NULL,
                struct(event, reason, time_ns, position)
            FROM raw WHERE event = {at.DELIVER} AND seq_id = -1""",
    )
    # Both the table and what purges have ended are made of them.
    places = spark.table("places").persist(StorageLevel.DISK_ONLY)
    places.createOrReplaceTempView("places")
    # A purge ends what was ready: routed or put back before it, and neither handed out nor gone.
    _view(
        spark,
        "purged",
        f"""SELECT /*+ BROADCAST(g) */ p.boot, p.queue, p.priority, p.seq_id,
                min(g.position) AS position, min(g.time_ns) AS time_ns,
                min_by(g.reason, g.position) AS reason
            FROM places p JOIN (SELECT * FROM raw WHERE event = {at.PURGE}) g
                ON g.boot = p.boot AND g.queue = p.queue AND g.position > coalesce(p.born, p.recovered)
            LEFT JOIN last_moves m ON m.boot = p.boot AND m.queue = p.queue AND m.priority = p.priority
                AND m.seq_id = p.seq_id
            WHERE p.seq_id >= 0 AND p.ending IS NULL AND g.position > coalesce(m.position, 0)
                AND (m.event IS NULL OR m.event != {at.DELIVER})
            GROUP BY p.boot, p.queue, p.priority, p.seq_id""",
        before={
            "last_moves": f"""SELECT boot, queue, priority, seq_id, max(position) AS position,
                    max_by(event, position) AS event
                FROM placed WHERE event IN ({at.DELIVER}, {at.REQUEUE}) GROUP BY boot, queue, priority, seq_id"""
        },
    )
    return places


def _confirmed() -> str:
    """Each publish that was confirmed, at the first confirm that covers it."""
    channel = "boot, connection, channel, opening"
    return f"""
    SELECT u.boot, u.seq_id AS publish, c.position, c.time_ns FROM publishes u JOIN (
        SELECT {channel}, seqno, min(position) AS position, min_by(time_ns, position) AS time_ns,
            min_by(reason, position) AS reason
        FROM (SELECT {channel}, explode(sequence(seq_id, aux)) AS seqno, position, time_ns, reason
              FROM raw WHERE event = {at.CONFIRM})
        GROUP BY {channel}, seqno
    ) c ON c.boot = u.boot AND c.connection = u.connection AND c.channel = u.channel AND c.opening = u.opening
        AND c.seqno = u.aux
    WHERE c.reason = 0 AND u.connection > 0
    """


def _view(spark: SparkSession, name: str, sql: str, before: dict[str, str] | None = None) -> None:
    for other, text in (before or {}).items():
        spark.sql(text).createOrReplaceTempView(other)
    spark.sql(sql).createOrReplaceTempView(name)
