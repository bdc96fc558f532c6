"""The paper's two figures with our points, as PNG, from the summary of an analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rabbitpy_broker.pipeline.sweep.published import DRIVER_NAMES, MEAN_IMPROVEMENT, RATIOS, percent

Summary = dict[str, Any]
# mode, label, colour; in the order of the legend
LINES = [
    ("consumer-ack-light", "consumer-ack-light", "#2a7f3f"),
    ("consumer-ack", "consumer-ack", "#1f5fa8"),
    ("persist", "persist", "#b8651b"),
    ("default", "RabbitMQ", "#777777"),
]
DPI = 110


def draw(summary: Summary, folder: Path) -> None:
    """Writes paper_rates.png and paper_improvement.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw_panel in (("paper_rates.png", draw_rates), ("paper_improvement.png", draw_improvements)):
        drivers = sorted({rate["driver"] for rate in summary["rates"]})
        figure = Figure(figsize=(5.2 * max(1, len(drivers)), 4.2), layout="constrained")
        # positions, not values: the paper's queue counts lie close together at first and far apart later
        counts = sorted({rate["queues"] for rate in summary["rates"]})
        for number, driver in enumerate(drivers, 1):
            axes = figure.add_subplot(1, len(drivers), number)
            draw_panel(axes, summary, driver, counts)
            axes.set_title(f"driven by {DRIVER_NAMES[driver]}")
            axes.set_xticks(range(len(counts)), [str(count) for count in counts])
            axes.set_xlabel("queues")
            axes.grid(axis="y", alpha=0.3)
            if axes.get_legend_handles_labels()[0]:
                axes.set_ylim(top=axes.get_ylim()[1] * 1.3)  # room for the legend
                axes.legend(loc="best", fontsize="small", framealpha=0.5)
        figure.savefig(folder / name, dpi=DPI, metadata={"Software": None})


def draw_rates(axes: Axes, summary: Summary, driver: str, counts: list[int]) -> None:
    for mode, label, colour in LINES:
        rates = [r for r in summary["rates"] if r["mode"] == mode and r["driver"] == driver]
        if not rates:
            continue
        at = [counts.index(rate["queues"]) for rate in rates]
        middle = [rate["published"] for rate in rates]
        axes.plot(at, middle, marker="o", markersize=4, color=colour, label=label)
        axes.fill_between(
            at,
            [rate["lowest"] for rate in rates],
            [rate["highest"] for rate in rates],
            color=colour,
            alpha=0.15,
        )
    axes.set_ylabel("sent, msg/s")
    axes.set_ylim(bottom=0)


def draw_improvements(axes: Axes, summary: Summary, driver: str, counts: list[int]) -> None:
    for mode, label, colour in LINES[:2]:
        rows = [r for r in summary["improvements"] if r["mode"] == mode and r["driver"] == driver]
        at = [counts.index(row["queues"]) for row in rows]
        mean = next((m for m in summary["means"] if m["mode"] == mode and m["driver"] == driver), None)
        words = "" if mean is None else f" (mean above 3 queues {mean['improvement_pct']:+.1f} %)"
        if rows:
            axes.plot(
                at,
                [row["improvement_pct"] for row in rows],
                marker="o",
                markersize=4,
                color=colour,
                label=label + words,
            )
        theirs = {queues: percent(ratio) for queues, ratio in RATIOS[mode].items() if queues in counts}
        axes.plot(
            [counts.index(queues) for queues in theirs],
            list(theirs.values()),
            linestyle="none",
            marker="s",
            markersize=7,
            markerfacecolor="none",
            color=colour,
            label=f"{label}, the paper ({MEAN_IMPROVEMENT[mode]:+.1f} %)",
        )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel("send rate above persist, %")
