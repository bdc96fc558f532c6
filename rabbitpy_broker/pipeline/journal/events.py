"""Events with names: the rows of the source joined to what their codes and ids mean.

    events(spark, folder)    every record, `event`, `state` and `reason` as text
    names(spark, folder)     (boot, id, kind, vhost, name, durable, store, user): each id once
    boots(spark, folder)     (boot, next_boot, is_clean, is_known): see `Boots`

The views `raw`, `names` and `boots` are what the SQL of the jobs is written on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from rabbitpy_broker.events import layout
from rabbitpy_broker.pipeline.journal import segments
from rabbitpy_broker.pipeline.journal.source import NAME, JournalSource

NAMES: Final = (
    "boot BIGINT, id INT, kind STRING, vhost STRING, name STRING, durable BOOLEAN, store STRING, user STRING"
)


class Boot(NamedTuple):
    """One start of the broker; `gaps` are the segments before which events of this boot were lost.

    `goes_on_in` is the next boot, if nothing that happened between what is recorded of the two can be unknown: this one was
    stopped in order, or the machine went on running, and neither segments nor events are missing. Else it is 0.
    """

    boot: int
    first_segment: int
    last_segment: int
    is_clean: bool
    gaps: tuple[int, ...]
    goes_on_in: int


def read(spark: SparkSession, folder: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """The records as they are (source.SCHEMA)."""
    spark.dataSource.register(JournalSource)
    return spark.read.format(NAME).options(**options or {}).load(folder)


def events(spark: SparkSession, folder: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """The records, with texts for the codes of event, state and reason, and a column for each flag."""
    flags = {
        "redelivered": layout.REDELIVERED,
        "persistent": layout.PERSISTENT,
        "mandatory": layout.MANDATORY,
        "no_ack": layout.NO_ACK,
        "at_once": layout.AT_ONCE,
        "kept": layout.KEPT,
        "got": layout.GET,
    }
    found = read(spark, folder, options)
    with_state = fn.col("event").isin(int(layout.STATE), int(layout.RECOVER))
    return found.select(
        "boot", "segment", "record", "time", "time_ns",
        _text("event", layout.EVENT_NAMES).alias("event"),
        "seq_id", "aux", "queue", "connection", "channel", "opening", "size",
        *(((fn.col("flags").bitwiseAND(int(flag))) != 0).alias(name) for name, flag in flags.items()),
        fn.when(with_state, _text("state", layout.STATE_NAMES)).alias("state"),
        _text("reason", layout.REASON_NAMES).alias("reason"),
        "priority",
    )  # fmt: skip


def _text(column: str, names: Mapping[int, str]) -> Column:
    pairs = [fn.lit(part) for code, name in names.items() for part in (code, name)]
    return fn.create_map(*pairs)[fn.col(column).cast("int")]


def names(spark: SparkSession, folder: str) -> DataFrame:
    """What the ids of each boot mean."""
    found: dict[tuple[int, int], tuple[object, ...]] = {}
    for line in segments.names(Path(folder)):
        more = (line.get("durable"), line.get("store"), line.get("user"))
        found[line["boot"], line["id"]] = (line["boot"], line["id"], line["kind"], line["vhost"], line["name"], *more)
    return spark.createDataFrame(list(found.values()), NAMES)


def boots(folder: str) -> list[Boot]:
    """The starts of the broker that the journal has, in order."""
    path = Path(folder)
    headers: list[layout.Header] = []
    for number in segments.numbers(path):
        try:
            headers.append(segments.header(path, number))
        except FileNotFoundError:  # it went meanwhile
            headers.clear()
    by_boot: dict[int, list[layout.Header]] = {}
    for header in headers:
        by_boot.setdefault(header.boot, []).append(header)
    starts = sorted(by_boot)
    found: list[Boot] = []
    for at, boot in enumerate(starts):
        mine = by_boot[boot]
        after = by_boot[starts[at + 1]] if at + 1 < len(starts) else None
        gaps = tuple(one.segment for one in mine if one.flags & layout.AFTER_GAP)
        is_clean = bool(mine[-1].flags & layout.CLEAN)
        goes_on = (
            after is not None
            and not after[0].flags & layout.AFTER_GAP
            and after[0].segment == mine[-1].segment + 1
            and (is_clean or after[0].machine_boot_id == mine[-1].machine_boot_id)
        )
        goes_on_in = after[0].boot if after is not None and goes_on else 0
        found.append(Boot(boot, mine[0].segment, mine[-1].segment, is_clean, gaps, goes_on_in))
    return found
