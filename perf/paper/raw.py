"""The raw samples on disk.

    RAW/run=ID/run.json                                                       what was run, when, where, and with which builds
    RAW/run=ID/broker=…/mode=…/driver=…/queues=N/rep=K.jsonl                  a measurement: a line of JSON for each second
                                                 rep=K.partial.jsonl          one that is not finished, or never was

A measurement is written line by line and renamed when it has come to its end, so a run can be stopped at any moment: what
has its final name is whole, and `--resume` measures the rest. A measurement that failed has the reason as its last line,
`{"repetition": K, "error": "…"}`. Folders are named as Spark names partitions; they are columns of the table.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from perf.paper.plan import Measurement, MeasurementFailed

RUN_FILE = "run.json"


class RunFolder:
    """One run's folder below RAW."""

    def __init__(self, raw: Path, name: str) -> None:
        self.name = name
        self.path = raw / f"run={name}"

    def describe(self, description: dict[str, Any]) -> None:
        """Writes the run's file, in one step."""
        self.path.mkdir(parents=True, exist_ok=True)
        new = self.path / f".{RUN_FILE}.new"
        new.write_text(json.dumps({"name": self.name, **description}, indent=1) + "\n")
        new.replace(self.path / RUN_FILE)

    def description(self) -> dict[str, Any]:
        """Raises FileNotFoundError or ValueError when there is no such run."""
        found: dict[str, Any] = json.loads((self.path / RUN_FILE).read_text())
        return found

    def file_of(self, measurement: Measurement) -> Path:
        target = measurement.target
        folder = self.path / f"broker={target.broker}" / f"mode={target.mode}"
        folder = folder / f"driver={measurement.driver}" / f"queues={measurement.queues}"
        return folder / f"rep={measurement.repetition}.jsonl"

    def has(self, measurement: Measurement) -> bool:
        return self.file_of(measurement).exists()

    @contextlib.contextmanager
    def recording(self, measurement: Measurement) -> Iterator[Callable[[dict[str, Any]], None]]:
        """A function that writes one sample. The file gets its final name when the block ends well."""
        final = self.file_of(measurement)
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = final.with_suffix(".partial.jsonl")
        with partial.open("w") as file:

            def write(sample: dict[str, Any]) -> None:
                file.write(json.dumps({"repetition": measurement.repetition, **sample}) + "\n")
                file.flush()

            try:
                yield write
            except MeasurementFailed as error:
                write({"error": str(error)})
                raise
        partial.replace(final)
