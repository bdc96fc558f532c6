"""The summary of an analysis as the tables of docs/paper.md and of the notes beside the results.

The text of both is written by hand. What stands between the markers is made here, from perf/results/paper_summary.json and
nothing else, so that each figure there has been measured: on the page the improvements and the least of each ratio, in the
notes all rates and what a message costs. A test compares the files with the summary.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from perf.paper.plan import DRIVERS, MODES, RABBITMQ, RABBITMQ_MODE
from rabbitpy_broker.pipeline.sweep.published import DRIVER_NAMES, MEAN_ABOVE_QUEUES, MEAN_IMPROVEMENT, RATIOS

PAGE = Path("docs/paper.md")
NOTES = Path("perf/results/paper-notes.md")
SUMMARY = Path("perf/results/paper_summary.json")
IMAGES = Path("docs/images")
FIGURES = ("paper_rates.png", "paper_improvement.png")
BEGIN, END = "<!-- paper: begin -->", "<!-- paper: end -->"
PERSIST, *JOINED = MODES  # the mode before, and those that join confirm and ack
NOTHING_YET = "No run has been recorded yet."
Summary = dict[str, Any]


def take(out: Path, root: Path) -> None:
    """Copies an analysis' summary and figures to where the page has them. Raises FileNotFoundError."""
    (root / IMAGES).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(out / "summary.json", root / SUMMARY)
    for name in FIGURES:
        shutil.copyfile(out / name, root / IMAGES / name)


def write_pages(root: Path) -> None:
    """Puts the tables between the markers of the page and of the notes."""
    for path in (PAGE, NOTES):
        page = root / path
        before, _, rest = page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(f"{before}{BEGIN}\n{rendered(root, path)}\n{END}{after}")


def rendered(root: Path, path: Path) -> str:
    """What stands between the markers of PAGE or of NOTES."""
    if not (root / SUMMARY).exists():
        return NOTHING_YET
    summary: Summary = json.loads((root / SUMMARY).read_text())
    if path == PAGE:
        parts = [improvement_table(summary), picture(root, 1, "images"), slowest(summary), origin(summary)]
    else:
        parts = ["### Send rate", rate_table(summary), picture(root, 0, "../../docs/images")]
        parts += ["### What a message costs", cost_table(summary)]
    return "\n\n".join(part for part in parts if part)


def picture(root: Path, number: int, folder: str) -> str:
    title = ("Send rate by number of queues", "Improvement by number of queues, the paper's beside ours")[
        number
    ]
    path = IMAGES / FIGURES[number]
    return f"![{title}]({folder}/{path.name})" if (root / path).exists() else ""


def table(lines: list[list[str]]) -> str:
    head, *rest = lines
    ruler = ["--:"] * len(head)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ruler, *rest])


def drivers(summary: Summary) -> list[str]:
    return [driver for driver in DRIVERS if any(rate["driver"] == driver for rate in summary["rates"])]


def counts(summary: Summary) -> list[int]:
    return sorted({rate["queues"] for rate in summary["rates"]})


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any] | None:
    return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)


def number(row: dict[str, Any] | None, key: str, pattern: str = "{:,.0f}") -> str:
    return "–" if row is None or row[key] is None else pattern.format(row[key])


def count(queues: int) -> str:
    return "1 queue" if queues == 1 else f"{queues} queues"


def times(ratio: float, error: float | None = None) -> str:
    """The paper's two ways to say it: a multiple while it is large, per cent more below; with the standard error."""
    if ratio >= 2:
        return f"{ratio:.2f}{'' if error is None else f' ± {error:.2f}'} x"
    return per_cent(100 * (ratio - 1), None if error is None else 100 * error)


def per_cent(improvement: float, error: float | None) -> str:
    return f"{improvement:+.1f}{'' if error is None else f' ± {error:.1f}'} %"


def origin(summary: Summary) -> str:
    lines = []
    for run in summary["runs"]:
        settings = run["settings"]
        length = (
            f"{settings['repetitions']} x {settings['seconds']:g} s after {settings['warmup']:g} s of warm-up"
        )
        for part in run["parts"]:
            machine = part["machine"]
            builds = ", ".join(part["brokers"].values())
            lines.append(
                f"`{part['command']}`: {length}, {part['date'][:10]}, commit {part['commit'] or '–'}; {machine['cpu']}, "
                f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, {part['python']}; {builds}."
            )
    problems = summary["problems"]
    if problems:
        lines.append(f"Left out: {len(problems)} files, named in {SUMMARY.name}.")
    return "\n".join(f"- {line}" for line in lines)


def improvement_table(summary: Summary) -> str:
    """The paper's figures beside ours, by number of queues, and the mean above three."""
    columns = [(mode, driver) for mode in JOINED for driver in ["the paper", *drivers(summary)]]
    lines = [["queues", *(f"`{mode}`, {DRIVER_NAMES.get(driver, driver)}" for mode, driver in columns)]]
    for queues in sorted({*counts(summary), *RATIOS[JOINED[0]]}):
        line = [str(queues)]
        for mode, driver in columns:
            if driver == "the paper":
                ratio, error = RATIOS[mode].get(queues), None
            else:
                row = one(summary["improvements"], mode=mode, driver=driver, queues=queues)
                ratio, error = (None, None) if row is None else (row["ratio"], row["error"])
            line.append("" if ratio is None else times(ratio, error))
        lines.append(line)
    last = [f"mean above {MEAN_ABOVE_QUEUES}"]
    for mode, driver in columns:
        if driver == "the paper":
            last.append(f"{MEAN_IMPROVEMENT[mode]:+.1f} %")
        else:
            mean = one(summary["means"], mode=mode, driver=driver)
            last.append("–" if mean is None else per_cent(mean["improvement_pct"], mean["error_pct"]))
    note = "±: standard error of the repetitions, each compared with `persist` in the same repetition."
    return f"{table([*lines, last])}\n\n{note}"


def rate_table(summary: Summary) -> str:
    lines = [["driver", "queues", "RabbitMQ", *(f"`{mode}`" for mode in MODES), "`persist` / RabbitMQ"]]
    for driver in drivers(summary):
        for queues in counts(summary):
            rates = summary["rates"]
            theirs = one(rates, broker=RABBITMQ, driver=driver, queues=queues)
            ours = [one(rates, mode=mode, driver=driver, queues=queues) for mode in MODES]
            line = [DRIVER_NAMES[driver], str(queues), number(theirs, "published")]
            line += [number(rate, "published") for rate in ours]
            line.append(number(ours[0], "to_rabbitmq", "{:.2f} x"))
            lines.append(line)
    return table(lines)


def cost_table(summary: Summary) -> str:
    """With the generator that costs least: what the broker uses for a message, and how long a confirm takes."""
    driver = drivers(summary)[0]
    lines = [
        [
            "queues",
            "",
            "CPU of the broker (us/message)",
            "its memory (MiB)",
            "confirm p50 (ms)",
            "confirm p99 (ms)",
        ]
    ]
    for queues in counts(summary):
        for mode, title in [(RABBITMQ_MODE, "RabbitMQ"), *((mode, f"`{mode}`") for mode in MODES)]:
            rate = one(summary["rates"], mode=mode, driver=driver, queues=queues)
            if rate is None:
                continue
            line = [
                str(queues),
                title,
                number(rate, "broker_cpu_us", "{:.1f}"),
                number(rate, "broker_rss_mib"),
            ]
            for key in ("confirm_p50_us", "confirm_p99_us"):
                line.append("–" if rate[key] is None else f"{rate[key] / 1000:,.1f}")
            lines.append(line)
    return f"Driven by {DRIVER_NAMES[driver]}.\n\n{table(lines)}"


def slowest(summary: Summary) -> str:
    """The least that each comparison came to, over all queue counts."""
    lines = []
    for driver in drivers(summary):
        for mode in JOINED:
            rows = [row for row in summary["improvements"] if row["mode"] == mode and row["driver"] == driver]
            if rows:
                least = min(rows, key=lambda row: row["ratio"])
                error = "" if least["error"] is None else f"± {least['error']:.2f}, "
                lines.append(
                    f"- {DRIVER_NAMES[driver]}: `{mode}` is at least {least['ratio']:.2f} x `{PERSIST}` (at "
                    f"{count(least['queues'])}; {error}single repetitions {least['lowest']:.2f} to {least['highest']:.2f})."
                )
        rates = [
            rate
            for rate in summary["rates"]
            if rate["mode"] == PERSIST and rate["driver"] == driver and rate["to_rabbitmq"] is not None
        ]
        if rates:
            least = min(rates, key=lambda rate: rate["to_rabbitmq"])
            lines.append(
                f"- {DRIVER_NAMES[driver]}: `{PERSIST}` is at least {least['to_rabbitmq']:.2f} x RabbitMQ "
                f"(at {count(least['queues'])})."
            )
        lines += least_per_cpu_second(summary, driver)
    return "\n".join(lines)


def least_per_cpu_second(summary: Summary, driver: str) -> list[str]:
    """The least that a second of the broker's CPU time moves in a mode, over what it moves in another."""
    lines = []
    pairs = [(mode, PERSIST, f"`{mode}`", f"`{PERSIST}`") for mode in JOINED]
    for mode, base, title, base_title in [*pairs, (PERSIST, RABBITMQ_MODE, f"`{PERSIST}`", "RabbitMQ")]:
        ratios = {}
        for queues in counts(summary):
            ours, theirs = (one(summary["rates"], mode=each, driver=driver, queues=queues) for each in (mode, base))
            if ours and theirs and ours["broker_cpu_us"] and theirs["broker_cpu_us"]:
                ratios[queues] = theirs["broker_cpu_us"] / ours["broker_cpu_us"]
        if ratios:
            least = min(ratios, key=ratios.__getitem__)
            lines.append(
                f"- {DRIVER_NAMES[driver]}: a second of the broker's CPU time moves at least {ratios[least]:.2f} x "
                f"as many messages in {title} as in {base_title} (at {count(least)})."
            )
    return lines
