"""A table that batches are added to once: a crash at any step costs nothing and doubles nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rabbitpy_broker.pipeline.errors import PipelineError
from rabbitpy_broker.pipeline.table import Files, add_batch, compact


class Crash(Exception):
    """The process is gone."""


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`crashing(n)`: the n-th change of the file system does not happen, nor does anything after it, until `crashing(0)`."""
    changes = {name: getattr(Files, name) for name in ("remove", "rename", "write")}
    state = {"left": 0, "done": 0}

    def wrapped(name: str) -> Any:
        def change(self: Files, *arguments: Any) -> None:
            state["done"] += 1
            if state["left"] and state["done"] >= state["left"]:
                raise Crash
            changes[name](self, *arguments)

        return change

    for name in changes:
        monkeypatch.setattr(Files, name, wrapped(name))

    def arm(left: int) -> int:
        done, state["left"], state["done"] = state["done"], left, 0
        return done

    return arm


def content(spark: Any, table: str) -> Counter[tuple[int, int]]:
    return Counter((row.n, row.hour) for row in spark.read.parquet(table).collect())


def batch(spark: Any, first: int, count: int = 6) -> Any:
    return spark.range(first, first + count, 1, 2).selectExpr("CAST(id AS INT) AS n", "CAST(id % 3 AS INT) AS hour")


def expected(*ranges: range) -> Counter[tuple[int, int]]:
    return Counter((n, n % 3) for one in ranges for n in one)


def test_a_batch_that_is_tried_again_is_there_once(spark: Any, tmp_path: Path, crashing: Any):
    """With a crash before each step, and a batch before and after it."""
    crashing(0)
    add_batch(batch(spark, 0), 0, str(tmp_path / "whole"), ["hour"])
    steps = crashing(0)
    assert steps > 8
    for step in range(1, steps + 1):
        table = str(tmp_path / f"table{step}")
        add_batch(batch(spark, 0), 0, table, ["hour"])
        crashing(step)
        with pytest.raises(Crash):
            add_batch(batch(spark, 6), 1, table, ["hour"])
        crashing(0)
        add_batch(batch(spark, 6), 1, table, ["hour"])
        add_batch(batch(spark, 6), 1, table, ["hour"])
        assert content(spark, table) == expected(range(12)), f"step {step}"
        assert Files(spark, table).names("_staging") == []


def test_a_compaction_that_is_cut_short_is_finished_by_the_next(spark: Any, tmp_path: Path, crashing: Any):
    def filled(name: str) -> str:
        table = str(tmp_path / name)
        for number in range(3):
            add_batch(batch(spark, 6 * number), number, table, ["hour"])
        return table

    table = filled("whole")
    crashing(0)
    before = len(Files(spark, table).parquet(""))
    assert compact(spark, table) == before
    steps = crashing(0)
    assert len(Files(spark, table).parquet("")) == 3
    assert content(spark, table) == expected(range(18))
    assert compact(spark, table) == 0, "nothing is small and many any more"
    for step in range(1, steps + 1, 3):
        table = filled(f"table{step}")
        crashing(step)
        with pytest.raises(Crash):
            compact(spark, table)
        crashing(0)
        compact(spark, table)
        assert content(spark, table) == expected(range(18)), f"step {step}"
    add_batch(batch(spark, 12), 2, table, ["hour"])
    assert content(spark, table) == expected(range(18)), "a batch that was compacted is still known"


def test_large_files_stay_as_they_are(spark: Any, tmp_path: Path):
    table = str(tmp_path / "table")
    for number in range(2):
        add_batch(batch(spark, 6 * number), number, table, [])
    assert compact(spark, table, target_bytes=100) == 0
    assert content(spark, table) == expected(range(12))


def test_a_rename_that_fails_is_told(spark: Any, tmp_path: Path):
    with pytest.raises(PipelineError, match="absent cannot be renamed to there"):
        Files(spark, str(tmp_path)).rename("absent", "there")
