"""A table of Parquet files that batches are added to once, however often a batch is tried.

    TABLE/<partitions>/batch-17-0.parquet     rows of batch 17
    TABLE/<partitions>/compacted-9f….parquet  rows of many batches
    TABLE/_batches/17                         batch 17 is in the table, all of it
    TABLE/_staging/17/data, moves             batch 17 is on its way: its files, and where each of them goes
    TABLE/_staging/compaction                 the same for a compaction: what goes, and what comes instead

A batch is written aside, then what is to be moved is noted, then moved, then the batch is noted as done. Whoever tries it
again goes on at that point: before the note of the moves all is written anew, after it nothing is. Readers of plain
Parquet ignore names that begin with an underscore. They see a batch appear file by file, and during a compaction some rows
missing for a moment: whoever needs more takes a table format that has transactions (`--format`).

What must stay true: one writer at a time; a file is moved once; `_batches/N` is there before `_staging/N` is removed.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from rabbitpy_broker.pipeline.errors import PipelineError

KEPT_NOTES: Final = 100  # Spark asks for the last batch again, never for an older one


class Files:
    """A folder on whatever file system Spark can reach, through Hadoop's own classes."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self.root = root.rstrip("/")
        self._fs = self._path(self.root).getFileSystem(spark._jsc.hadoopConfiguration())

    def _of(self, name: str) -> Any:
        return self._path(f"{self.root}/{name}")

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        return bool(self._fs.exists(self._of(name)))

    def remove(self, name: str) -> None:
        """With all that is in it; what is not there is as good as removed."""
        self._fs.delete(self._of(name), True)

    def rename(self, old: str, new: str) -> None:
        """The folder of the new name is made. Raises PipelineError."""
        self._fs.mkdirs(self._of(new).getParent())
        if not (self.exists(old) and self._fs.rename(self._of(old), self._of(new))):
            raise PipelineError(f"{self.root}: {old} cannot be renamed to {new}")

    def read(self, name: str) -> Any:
        """The JSON in a file."""
        stream = self._fs.open(self._of(name))
        try:
            return json.loads(bytes(stream.readAllBytes()))
        finally:
            stream.close()

    def write(self, name: str, value: Any) -> None:
        """As JSON, all of it or nothing: written aside and renamed; what had the name goes."""
        aside = f"{name}.{uuid.uuid4().hex}"
        stream = self._fs.create(self._of(aside), True)
        try:
            stream.write(json.dumps(value).encode("utf-8"))
        finally:
            stream.close()
        self.remove(name)
        self.rename(aside, name)

    def names(self, folder: str) -> list[str]:
        """What is directly in a folder; nothing when there is none."""
        if not self.exists(folder):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(self._of(folder)))

    def parquet(self, folder: str) -> list[tuple[str, int]]:
        """Every Parquet file below a folder, relative to it, with its size; without what begins with an underscore."""
        found: list[tuple[str, int]] = []
        if not self.exists(folder):
            return found
        base = self._fs.resolvePath(self._of(folder)).toUri().getPath().rstrip("/") + "/"
        walk = self._fs.listFiles(self._of(folder), True)
        while walk.hasNext():
            status = walk.next()
            name = status.getPath().toUri().getPath().removeprefix(base)
            if name.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in name.split("/")):
                found.append((name, int(status.getLen())))
        return sorted(found)


def add_batch(frame: DataFrame, batch: int, table: str, partition_by: list[str]) -> None:
    """Adds the rows of a batch, once; see the top of this file. For foreachBatch."""
    files = Files(frame.sparkSession, table)
    done, staging = f"_batches/{batch}", f"_staging/{batch}"
    if not files.exists(done):
        if not files.exists(f"{staging}/moves"):
            files.remove(staging)
            frame.write.partitionBy(*partition_by).parquet(f"{files.root}/{staging}/data")
            written = [name for name, _ in files.parquet(f"{staging}/data")]
            moves = [(name, _moved(name, f"batch-{batch}-{at}")) for at, name in enumerate(written)]
            files.write(f"{staging}/moves", moves)
        for name, target in files.read(f"{staging}/moves"):
            source = f"{staging}/data/{name}"
            if files.exists(source):
                files.rename(source, target)
        files.write(done, {})
        if batch >= KEPT_NOTES:
            files.remove(f"_batches/{batch - KEPT_NOTES}")
    files.remove(staging)


def _moved(name: str, stem: str) -> str:
    folder, slash, _ = name.rpartition("/")
    return f"{folder}{slash}{stem}.parquet"


def compact(spark: SparkSession, table: str, target_bytes: int = 128 * 1024 * 1024) -> int:
    """Makes one file of the small files of each partition, as long as it stays below `target_bytes`; how many went.

    Small is less than half of that. Not while batches are added.
    """
    files = Files(spark, table)
    gone = _finish_compaction(files)
    by_folder: dict[str, list[tuple[str, int]]] = {}
    for name, size in files.parquet(""):
        if size < target_bytes // 2:
            by_folder.setdefault(name.rpartition("/")[0], []).append((name, size))
    for folder, small in by_folder.items():
        for group in _groups(small, target_bytes):
            files.remove("_staging/compaction")
            paths = [f"{files.root}/{name}" for name in group]
            spark.read.parquet(*paths).coalesce(1).write.parquet(f"{files.root}/_staging/compaction/data")
            written = [name for name, _ in files.parquet("_staging/compaction/data")]
            target = f"{folder}/compacted-{uuid.uuid4().hex}" if folder else f"compacted-{uuid.uuid4().hex}"
            moves = [(name, f"{target}-{at}.parquet") for at, name in enumerate(written)]
            files.write("_staging/compaction/plan", {"remove": group, "move": moves})
            gone += _finish_compaction(files)
    return gone


def _groups(small: list[tuple[str, int]], target_bytes: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    total = 0
    for name, size in small:
        if total + size > target_bytes and groups[-1]:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return [group for group in groups if len(group) > 1]


def _finish_compaction(files: Files) -> int:
    """Does what a plan still wants; how many files it removed in all."""
    if not files.exists("_staging/compaction/plan"):
        return 0
    plan = files.read("_staging/compaction/plan")
    for name in plan["remove"]:
        files.remove(name)
    for name, target in plan["move"]:
        source = f"_staging/compaction/data/{name}"
        if files.exists(source):
            files.rename(source, target)
    files.remove("_staging/compaction")
    return len(plan["remove"])
