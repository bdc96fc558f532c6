"""The figures of a run: as JSON for programs, as text for people."""

from __future__ import annotations

import dataclasses
from typing import Any

from perf.load.engine import bucket_us
from perf.load.plan import Plan
from perf.load.worker import Sample

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


@dataclasses.dataclass
class Tally:
    """What happened in a span of time."""

    sent: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    received: int = 0
    body_bytes: int = 0
    cpu_s: float = 0.0
    latency: dict[int, int] = dataclasses.field(default_factory=dict)
    latency_max_ns: int = 0
    confirm_latency: dict[int, int] = dataclasses.field(default_factory=dict)
    confirm_latency_max_ns: int = 0

    def add(self, before: Sample, after: Sample) -> None:
        """Adds what lies between two samples of one worker."""
        self.sent += after.published - before.published
        self.confirmed += after.confirmed - before.confirmed
        self.nacked += after.nacked - before.nacked
        self.returned += after.returned - before.returned
        self.received += after.received - before.received
        self.body_bytes += after.body_bytes - before.body_bytes
        self.cpu_s += after.cpu_s - before.cpu_s
        merge(after.latency, self.latency)
        merge(after.confirm_latency, self.confirm_latency)
        self.latency_max_ns = max(self.latency_max_ns, after.latency_max_ns)
        self.confirm_latency_max_ns = max(self.confirm_latency_max_ns, after.confirm_latency_max_ns)

    def figures(self, seconds: float) -> dict[str, Any]:
        return {
            "sent_per_s": round(self.sent / seconds),
            "confirmed_per_s": round(self.confirmed / seconds),
            "received_per_s": round(self.received / seconds),
            "received_mb_per_s": round(self.body_bytes / seconds / 1e6, 2),
            "sent": self.sent,
            "confirmed": self.confirmed,
            "nacked": self.nacked,
            "returned": self.returned,
            "received": self.received,
            "latency_us": percentiles(self.latency, self.latency_max_ns),
            "confirm_latency_us": percentiles(self.confirm_latency, self.confirm_latency_max_ns),
        }


@dataclasses.dataclass
class Row:
    """One interval; `end` is its end in seconds after the warm-up."""

    end: float
    tally: Tally = dataclasses.field(default_factory=Tally)


@dataclasses.dataclass(frozen=True)
class Report:
    """A run's result. `seconds` is what was measured: the time after the warm-up, or that of all the messages."""

    plan: Plan
    server: str
    compiled: bool
    complete: bool  # whether a given number of messages was reached in time
    seconds: float
    total: Tally
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        moved = self.total.sent + self.total.received
        return {
            "server": self.server,
            "seconds": round(self.seconds, 3),
            "complete": self.complete,
            **self.total.figures(self.seconds),
            "client_cpu_s": round(self.total.cpu_s, 3),
            "client_cpu_us_per_message": round(self.total.cpu_s * 1e6 / moved, 3) if moved else None,
            "client_compiled": self.compiled,
            "samples": [
                {"second": round(row.end, 3), **row.tally.figures(self.plan.interval)} for row in self.rows
            ],
            "options": options(self.plan),
        }

    def as_text(self) -> str:
        figures = self.total.figures(self.seconds)
        lines = [
            f"broker      {self.server}",
            f"measured    {self.seconds:.2f} s"
            + ("" if self.complete else "  (ended before all messages were through)"),
            f"sent        {figures['sent_per_s']:>12,} msg/s",
        ]
        if self.plan.confirm:
            lines.append(f"confirmed   {figures['confirmed_per_s']:>12,} msg/s")
        if self.plan.consumers:
            lines.append(
                f"received    {figures['received_per_s']:>12,} msg/s  {figures['received_mb_per_s']:,.1f} MB/s"
            )
        lines += [
            f"{name:<12}{self.total.__dict__[name]:>12,}" for name in ("nacked", "returned") if figures[name]
        ]
        for name, key in (("latency", "latency_us"), ("confirms", "confirm_latency_us")):
            if figures[key]:
                lines.append(
                    f"{name:<12}" + "  ".join(f"{point} {us(value)}" for point, value in figures[key].items())
                )
        build = "compiled" if self.compiled else "INTERPRETED: it may be what limits the rate"
        lines.append(f"generator   {self.total.cpu_s / self.seconds:.2f} cores, {build}")
        return "\n".join(lines)


def row_text(plan: Plan, row: Row) -> str:
    """One line for an interval, as it is printed while the run goes on."""
    figures = row.tally.figures(plan.interval)
    text = f"{row.end:7.1f} s  sent {figures['sent_per_s']:>11,}/s"
    if plan.confirm:
        text += f"  confirmed {figures['confirmed_per_s']:>11,}/s"
    if plan.consumers:
        text += f"  received {figures['received_per_s']:>11,}/s"
    latency = figures["latency_us"] or figures["confirm_latency_us"]
    if latency:
        text += f"  {'latency' if figures['latency_us'] else 'confirms'} p50 {us(latency['p50'])} p99 {us(latency['p99'])}"
    return text


def options(plan: Plan) -> dict[str, Any]:
    """The plan without the URL, which has a password in it."""
    found = dataclasses.asdict(plan)
    found["broker"] = f"{plan.address.host}:{plan.address.port}"
    del found["url"]
    return found


def merge(counts: dict[int, int], into: dict[int, int]) -> None:
    for bucket, count in counts.items():
        into[bucket] = into.get(bucket, 0) + count


def percentiles(counts: dict[int, int], max_ns: int) -> dict[str, float]:
    """Microseconds by percentile, and the exact maximum; empty when nothing was counted."""
    total = sum(counts.values())
    if not total:
        return {}
    found = {}
    ordered = sorted(counts)
    for name, share in PERCENTILES.items():
        seen = 0
        for bucket in ordered:
            seen += counts[bucket]
            if seen >= share * total:
                found[name] = min(bucket_us(bucket), max_ns / 1000)
                break
    return {**found, "max": max_ns / 1000}


def us(value: float) -> str:
    """Microseconds in the unit that reads best."""
    if value < 1000:
        return f"{value:.0f} us"
    return f"{value / 1000:.1f} ms" if value < 1e6 else f"{value / 1e6:.2f} s"
