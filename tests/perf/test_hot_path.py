"""The tool that compares what a message costs in two trees."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

from perf import hot_path


def test_best_of_the_repetitions_counts():
    figures = {Path("old"): [100.0, 90.0, 120.0], Path("new"): [99.0, 110.0, 95.0]}
    table = hot_path.compare(Path("old"), Path("new"), 3, lambda tree: {"publish": figures[tree].pop(0)})
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(table)
    row = next(line for line in console.export_text().splitlines() if "publish" in line)
    assert [word for word in row.split() if word[0].isdigit()] == ["90", "95", "1.056"]


def test_every_scenario_runs(monkeypatch):
    monkeypatch.setattr(hot_path, "TURNS", 16)
    monkeypatch.setattr(hot_path, "BACKLOG_TURNS", 2)
    assert all(nanoseconds > 0 for nanoseconds in hot_path.drive().values())


def test_of_twenty_objects_of_a_size_one_leaves_a_hole(monkeypatch):
    monkeypatch.setattr(hot_path, "HOLES_IN", 100_000)
    for size, objects in zip(hot_path.HOLES_OF, hot_path.with_holes(), strict=True):
        there = [one for one in objects if one is not None]
        assert len(objects) == 100_000 // size
        assert len(objects) - len(there) == -(-len(objects) // 20)
        assert {sys.getsizeof(one) for one in there} == {size}
        assert len(set(map(id, there))) == len(there)
