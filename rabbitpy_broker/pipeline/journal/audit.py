"""Whether the broker kept its promises: what an event journal says that must not be.

A row for each violation: (check, boot, vhost, queue, priority, seq_id, publish, evidence), `evidence` being the positions
`segment:record` of the events that show it. A message is named once, by the first check that it fails:

  unrouted            confirmed, and neither routed nor dropped, returned or refused
  early_confirm       confirmed before it had a place in this queue
  doubled             it has two places for one publish, or was handed out again without the flag redelivered
  after_end           handed out after it was acked, rejected, expired, dropped or purged
  settled_undelivered acked, rejected or requeued without having been handed out
  reordered           handed out for the first time after one that was published later to its queue
  undelivered         never handed out, though one that was published later to its queue was
  lost                confirmed and durable, there when a boot ended, and not there when the next began

`undelivered` and `reordered` look at places of one queue and priority, `lost` at confirmed messages only; nothing else is
promised to anybody. Where events are missing (AFTER_GAP, or segments that were removed), nothing is held against what was
there then: it is counted as unknown. So is the end of a boot whose machine went down with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from rabbitpy_broker.events import layout as at
from rabbitpy_broker.pipeline.journal.events import Boot, boots
from rabbitpy_broker.pipeline.journal.lifecycle import lifecycle

CHECKS: Final = (
    "unrouted",
    "early_confirm",
    "doubled",
    "after_end",
    "settled_undelivered",
    "reordered",
    "undelivered",
    "lost",
)


class Audit(NamedTuple):
    """`violations` as the top of this file says; `counts`: (messages, confirmed, unknown), one row."""

    violations: DataFrame
    counts: DataFrame


# The highest place that was handed out for the first time before this one, in its queue and priority.
_ORDERED: Final = """
SELECT boot, queue, priority, seq_id, max(seq_id) OVER (
    PARTITION BY boot, queue, priority ORDER BY first_delivery ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
) AS highest FROM known WHERE seq_id >= 0 AND first_delivery IS NOT NULL
"""

_JUDGED: Final = """
SELECT k.*, o.highest, t.highest AS top, t.at AS top_at, r.seq_id IS NOT NULL AS is_back, b.goes_on_in
FROM known k
LEFT JOIN ordered o ON o.boot = k.boot AND o.queue = k.queue AND o.priority = k.priority AND o.seq_id = k.seq_id
LEFT JOIN (SELECT boot, queue, priority, max(seq_id) AS highest, max_by(first_delivery, seq_id) AS at FROM known
           WHERE seq_id >= 0 AND first_delivery IS NOT NULL GROUP BY boot, queue, priority) t
    ON t.boot = k.boot AND t.queue = k.queue AND t.priority = k.priority
LEFT JOIN boots b ON b.boot = k.boot
LEFT JOIN (SELECT DISTINCT boot, store, priority, seq_id FROM lives WHERE is_recovered) r
    ON r.boot = b.goes_on_in AND r.store = k.store AND r.priority = k.priority AND r.seq_id = k.seq_id
"""

_CHECKED: Final = """
SELECT CASE
    WHEN births > 1 OR unflagged > 1 OR deliveries > 1 + requeues THEN
        CASE WHEN `end` < last_delivery AND ended != 'no-ack' THEN 'after_end' ELSE 'doubled' END
    WHEN `end` < last_delivery AND ended != 'no-ack' THEN 'after_end'
    WHEN confirm < born THEN 'early_confirm'
    WHEN first_settle IS NOT NULL AND (first_delivery IS NULL OR first_settle < first_delivery) THEN 'settled_undelivered'
    WHEN redelivered < deliveries AND highest > seq_id THEN 'reordered'
    WHEN seq_id >= 0 AND first_delivery IS NULL AND ended IS NULL AND top > seq_id AND top_at > born THEN 'undelivered'
    WHEN confirm IS NOT NULL AND kept AND ended IS NULL AND goes_on_in > 0 AND NOT is_back THEN 'lost'
    END AS `check`, *
FROM judged
"""

_EVIDENCE: Final = """concat_ws(' ', transform(
    array_sort(array_distinct(filter(array({columns}), x -> x IS NOT NULL))),
    x -> concat(shiftright(x, 32), ':', x & 4294967295L)))"""


def audit(spark: SparkSession, folder: str, table: str) -> Audit:
    """Judges the journal in this folder, with a table of its messages' lives that is written on the way."""
    lifecycle(spark, folder, table)
    return from_lives(spark, boots(folder))


def from_lives(spark: SparkSession, found: list[Boot]) -> Audit:
    """The same, from the views that `lifecycle` has left."""
    rows = [(one.boot, one.goes_on_in) for one in found]
    spark.createDataFrame(rows, "boot BIGINT, goes_on_in BIGINT").createOrReplaceTempView("boots")
    gaps = [(one.boot, gap << 32) for one in found for gap in one.gaps]
    spark.createDataFrame(gaps, "boot BIGINT, position BIGINT").createOrReplaceTempView("gaps")
    # Born before events were lost and not gone by then; or with events in segments that are gone.
    spark.sql(
        """SELECT l.*, l.born IS NULL OR coalesce(g.position BETWEEN l.born AND coalesce(l.`end`, 1L << 62), false) AS is_unknown
           FROM lives l LEFT JOIN (SELECT boot, max(position) AS position FROM gaps GROUP BY boot) g ON g.boot = l.boot"""
    ).createOrReplaceTempView("looked_at")
    spark.sql("SELECT * FROM looked_at WHERE NOT is_unknown").createOrReplaceTempView("known")
    spark.sql(_ORDERED).createOrReplaceTempView("ordered")
    spark.sql(_JUDGED).createOrReplaceTempView("judged")
    spark.sql(_CHECKED).createOrReplaceTempView("checked")
    of_lives = _EVIDENCE.format(columns="born, confirm, first_delivery, last_delivery, first_settle, `end`")
    of_publishes = _EVIDENCE.format(columns="u.position, c.position")
    violations = spark.sql(
        f"""SELECT `check`, boot, vhost, queue_name AS queue, priority, seq_id, publish, {of_lives} AS evidence
            FROM checked WHERE `check` IS NOT NULL
            UNION ALL
            SELECT 'unrouted', u.boot, n.vhost, NULL, 0, -1L, u.seq_id, {of_publishes}
            FROM confirmed c JOIN publishes u ON u.boot = c.boot AND u.seq_id = c.publish
            LEFT JOIN names n ON n.boot = u.boot AND n.id = u.connection
            LEFT ANTI JOIN (
                SELECT boot, aux FROM raw WHERE event = {at.ROUTE} OR event = {at.RETURN}
                    OR event = {at.DELIVER} AND (flags & {at.AT_ONCE}) != 0
                    OR event = {at.DROP} AND seq_id = -1 AND reason != {at.DAMAGED}
            ) r ON r.boot = u.boot AND r.aux = u.seq_id"""
    )
    counts = spark.sql(
        """SELECT count(*) AS messages, count_if(confirm IS NOT NULL) AS confirmed, count_if(is_unknown) AS unknown
           FROM looked_at"""
    )
    return Audit(violations, counts)
