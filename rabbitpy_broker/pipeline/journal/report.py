"""All that a journal says, on one page: the tables as Parquet, figures as PNG, and an HTML file that has them inside.

    OUT/lifecycle/ throughput/ latency/ states/ rates/ audit/    Parquet
    OUT/*.png                                                    the figures
    OUT/report.html                                              opens without a server

Only tables that are small by nature come to the driver: one row for each second, queue and event at most, and of what
the audit found the first rows.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
import pandas as pd
from matplotlib import pyplot as plt
from pyspark.sql import SparkSession

from rabbitpy_broker.pipeline.journal.audit import Audit, from_lives
from rabbitpy_broker.pipeline.journal.events import boots
from rabbitpy_broker.pipeline.journal.lifecycle import lifecycle
from rabbitpy_broker.pipeline.journal.tables import TABLES

SHOWN: Final = 200  # rows of a table on the page
QUEUES: Final = 12  # in a figure; the busiest

_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }}
td, th {{ border-bottom: 1px solid #ddd; padding: .2rem .6rem; text-align: right; white-space: nowrap; }}
img {{ max-width: 100%; }} .verdict {{ font-size: 1.3rem; font-weight: 600; }}
.good {{ color: #176a2c; }} .bad {{ color: #a3161a; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""


def report(spark: SparkSession, folder: str, out: Path, step: Callable[[str], Any]) -> Audit:
    """Writes everything; `step` is told what is done next."""
    out.mkdir(parents=True, exist_ok=True)
    step("lives of messages")
    lifecycle(spark, folder, str(out / "lifecycle"))
    found: dict[str, pd.DataFrame] = {}
    for name, query in TABLES.items():
        step(name)
        query(spark).coalesce(1).write.mode("overwrite").parquet(str(out / name))
        found[name] = spark.read.parquet(str(out / name)).toPandas()
    step("audit")
    judged = from_lives(spark, boots(folder))
    judged.violations.coalesce(1).write.mode("overwrite").parquet(str(out / "audit"))
    judged = judged._replace(violations=spark.read.parquet(str(out / "audit")))
    step("page")
    figures = [path for path in _figures(found, out) if path is not None]
    (out / "report.html").write_text(_page(folder, found, figures, judged), encoding="utf-8")
    return judged


# -- figures ----------------------------------------------------------------------------------------------------------


@contextmanager
def _figure(path: Path, title: str, ylabel: str) -> Iterator[Any]:
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    try:
        yield axes
        axes.set_title(title)
        axes.set_ylabel(ylabel)
        axes.grid(alpha=0.3)
        figure.savefig(path, dpi=110)
    finally:
        plt.close(figure)


def _figures(found: dict[str, pd.DataFrame], out: Path) -> Iterator[Path | None]:
    yield _throughput_figure(found["throughput"], out / "throughput.png")
    yield _latency_figure(found["latency"], out / "latency.png")
    yield _states_figure(found["states"], out / "states.png")


def _throughput_figure(table: pd.DataFrame, path: Path) -> Path | None:
    events = table[table["event"].isin(["publish", "deliver", "ack", "confirm", "dead-letter"])]
    if events.empty:
        return None
    lines = events.pivot_table(index="second", columns="event", values="n", aggfunc="sum").fillna(0)
    with _figure(path, "Events", "a second") as axes:
        lines.plot(ax=axes, marker="." if len(lines) < 120 else None)
        axes.set_xlabel("")
    return path


def _latency_figure(table: pd.DataFrame, path: Path) -> Path | None:
    busiest = _busiest(table, "n")
    bars = busiest.pivot_table(index="queue", columns="span", values="p99_us")
    if bars.empty:
        return None
    with _figure(path, "99th percentile of the time between two events", "microseconds") as axes:
        bars.plot.bar(ax=axes, logy=True, rot=20)
        axes.set_xlabel("")
    return path


def _states_figure(table: pd.DataFrame, path: Path) -> Path | None:
    busiest = _busiest(table, "messages")
    bars = busiest.pivot_table(index="queue", columns="state", values="seconds", aggfunc="sum").fillna(0)
    if bars.empty:
        return None
    with _figure(path, "Time of ready messages in each state", "seconds, of all messages together") as axes:
        bars.plot.bar(ax=axes, stacked=True, rot=20)
        axes.set_xlabel("")
    return path


def _busiest(table: pd.DataFrame, by: str) -> pd.DataFrame:
    names = table.groupby("queue")[by].sum().nlargest(QUEUES).index
    return table[table["queue"].isin(names)]


# -- the page ---------------------------------------------------------------------------------------------------------


def _page(folder: str, found: dict[str, pd.DataFrame], figures: list[Path], judged: Audit) -> str:
    title = html.escape(f"Event journal {folder}")
    parts = [_verdict(judged)]
    for path in figures:
        image = base64.b64encode(path.read_bytes()).decode("ascii")
        parts.append(f'<p><img alt="{path.stem}" src="data:image/png;base64,{image}"></p>')
    for name in ("rates", "latency", "states"):
        parts.append(f"<h2>{name.capitalize()}</h2>{_table(found[name])}")
    return _PAGE.format(title=title, body="\n".join(parts))


def _verdict(judged: Audit) -> str:
    counts = judged.counts.first()
    assert counts is not None, "an aggregate has one row"
    violations = judged.violations.limit(SHOWN).toPandas()
    total = judged.violations.count()
    looked_at = f"{counts.messages:,} messages, {counts.confirmed:,} of them confirmed; {counts.unknown:,} of unknown fate."
    if not total:
        return f'<p class="verdict good">Every promise was kept.</p><p>{looked_at}</p>'
    by_check = judged.violations.groupBy("check").count().toPandas()
    return (
        f'<p class="verdict bad">{total:,} violations.</p><p>{looked_at}</p>{_table(by_check)}'
        f"<h2>Violations</h2>{_table(violations)}"
    )


def _table(table: pd.DataFrame) -> str:
    more = f"<p>The first {SHOWN} of {len(table):,} rows.</p>" if len(table) > SHOWN else ""
    return str(table.head(SHOWN).to_html(index=False, border=0, na_rep="", justify="right")) + more
