"""What a journal says about speed: the tables of the jobs, each a query over what `lifecycle` has left.

  throughput   second, vhost, queue, event, n, bytes              what happened in each second
  latency      vhost, queue, span, n, p50_us to p999_us, max_us   from one event of a message to another
  states       vhost, queue, state, messages, seconds             how long ready messages were alpha, beta, gamma, delta
  rates        vhost, queue, routed, deliveries, redelivered ...  what became of the messages, and how many came back

Spans are in microseconds; what has no name (its sidecar was removed) has a null for vhost and queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from rabbitpy_broker.events import layout as at

_EVENT_NAMES: Final = "map(" + ", ".join(f"{code}, '{name}'" for code, name in at.EVENT_NAMES.items()) + ")"

_THROUGHPUT: Final = f"""
SELECT timestamp_seconds(time_ns DIV 1000000000) AS second, n.vhost,
    CASE WHEN n.kind = 'queue' THEN n.name END AS queue, {_EVENT_NAMES}[event] AS event, sum(many) AS n, sum(size) AS bytes
FROM (SELECT boot, queue, event, time_ns, CAST(size AS BIGINT) AS size,
        CASE WHEN event = {at.CONFIRM} THEN aux - seq_id + 1 WHEN event IN ({at.PURGE}, {at.RECOVER}) THEN aux ELSE 1 END AS many
      FROM raw) r
LEFT JOIN names n ON n.boot = r.boot AND n.id = r.queue
GROUP BY ALL ORDER BY second, vhost, queue, event
"""

SPANS: Final = {
    "publish to confirm": ("confirmed_ns", "published_ns"),
    "publish to end": ("ended_ns", "published_ns"),
    "route to deliver": ("delivered_ns", "routed_ns"),
    "deliver to end": ("ended_ns", "delivered_ns"),
}
_LATENCY: Final = """
SELECT vhost, queue, span, n, p[0] AS p50_us, p[1] AS p95_us, p[2] AS p99_us, p[3] AS p999_us, max_us FROM (
    SELECT vhost, queue_name AS queue, span, count(*) AS n, max(us) AS max_us,
        percentile_approx(us, array(0.5, 0.95, 0.99, 0.999), 10000) AS p
    FROM (SELECT vhost, queue_name, inline(array({spans})) FROM lives) WHERE us IS NOT NULL GROUP BY ALL
) ORDER BY vhost, queue, span
"""

# A message is alpha when it gets its place. What happens to its body while it is unacked is not counted.
_STATES: Final = f"""
SELECT vhost, queue, state, count(DISTINCT boot, queue_id, priority, seq_id) AS messages, sum(until - since) / 1e9 AS seconds
FROM (
    SELECT *, coalesce(lead(since) OVER (PARTITION BY boot, queue_id, priority, seq_id ORDER BY position), ready_until) AS until
    FROM (
        SELECT boot, queue AS queue_id, priority, seq_id, vhost, queue_name AS queue, 'alpha' AS state, routed_ns AS since,
            born AS position, coalesce(delivered_ns, ended_ns, {{last}}) AS ready_until
        FROM lives WHERE seq_id >= 0 AND routed_ns IS NOT NULL
        UNION ALL
        SELECT l.boot, l.queue, l.priority, l.seq_id, l.vhost, l.queue_name, map({at.ALPHA}, 'alpha', {at.BETA}, 'beta',
            {at.GAMMA}, 'gamma', {at.DELTA}, 'delta')[s.state], s.time_ns, s.position,
            coalesce(l.delivered_ns, l.ended_ns, {{last}})
        FROM (SELECT * FROM raw WHERE event = {at.STATE}) s JOIN lives l ON l.boot = s.boot AND l.queue = s.queue
            AND l.priority = s.priority AND l.seq_id = s.seq_id
            AND s.position < coalesce(l.first_delivery, l.`end`, 1L << 62)
    )
) WHERE until >= since GROUP BY ALL ORDER BY vhost, queue, state
"""

_RATES: Final = """
SELECT vhost, queue_name AS queue, count(*) AS messages, count_if(is_recovered) AS recovered, sum(deliveries) AS deliveries,
    sum(redelivered) AS redelivered, sum(requeues) AS requeues,
    count_if(ended IN ('ack', 'no-ack')) AS consumed, count_if(ended = 'nack') AS rejected,
    count_if(ended = 'dead-letter') AS dead_lettered, count_if(ended = 'expire') AS expired,
    count_if(ended = 'drop') AS dropped, count_if(ended = 'purge') AS purged, count_if(ended IS NULL) AS left_over,
    round(100 * sum(redelivered) / nullif(sum(deliveries), 0), 3) AS redelivered_pct,
    round(100 * count_if(ended = 'dead-letter') / count(*), 3) AS dead_lettered_pct,
    round(100 * count_if(ended IN ('drop', 'expire', 'nack')) / count(*), 3) AS lost_to_consumers_pct
FROM lives GROUP BY ALL ORDER BY vhost, queue
"""


def throughput(spark: SparkSession) -> DataFrame:
    """What happened in each second, in each queue; `n` counts messages."""
    return spark.sql(_THROUGHPUT)


def latency(spark: SparkSession) -> DataFrame:
    """Percentiles of the time between two events of a message."""
    spans = ", ".join(
        f"struct('{name}' AS span, ({end} - {begin}) DIV 1000 AS us)" for name, (end, begin) in SPANS.items()
    )
    return spark.sql(_LATENCY.format(spans=spans))


def states(spark: SparkSession) -> DataFrame:
    """How long messages were in each state; for those that are still there, until the last event of the journal."""
    return spark.sql(_STATES.format(last="(SELECT max(time_ns) FROM raw)"))


def rates(spark: SparkSession) -> DataFrame:
    """What became of the messages of each queue."""
    return spark.sql(_RATES)


TABLES: Final[dict[str, Callable[[SparkSession], DataFrame]]] = {
    "throughput": throughput,
    "latency": latency,
    "states": states,
    "rates": rates,
}
