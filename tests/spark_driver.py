"""Streaming queries in a process of their own, which a test may kill with everything that it has started.

    python spark_driver.py '{"broker": "amqp://...", "folder": "/...", "queries": [{"mode": "spool", "queue": "q"}, ...]}'

    master       local[2]
    bounded      with trigger(availableNow=True); else until it is killed

A query:

    mode         spool, direct or stream; journal: reads the event journal in `folder`, with `options`
    to_queue     publish there; else append to a Parquet table
    fail_once    a file: the first task that does not find it makes it, and fails
    slow_s       a partition of a batch takes at least so long

A query's checkpoint, spool and table `out` are in a folder named as its mode, so that the next driver goes on where this one was
killed. What the driver prints goes to driver.log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

if __name__ != "__main__":
    import pytest

    from broker_process import BrokerAddress
    from support import eventually


class Driver:
    """The process, as its test sees it."""

    def __init__(self, folder: Path, broker: BrokerAddress | None, job: Mapping[str, Any]) -> None:
        self.folder = folder
        self.log = folder / "driver.log"
        self.modes = [query["mode"] for query in job["queries"]]
        whole = {"broker": broker.url if broker else "", "folder": str(folder), **job}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(whole)], stdout=log, stderr=log, start_new_session=True
            )

    def commits(self) -> list[int]:
        """How many batches each query's checkpoint says are done."""
        folders = [self.folder / mode / "checkpoint" / "commits" for mode in self.modes]
        return [
            sum(name.name.isdigit() for name in folder.iterdir()) if folder.exists() else 0 for folder in folders
        ]

    def wait_for_commits(self, more: int, timeout: float = 90) -> None:
        """Returns when every query has done so many batches more than it has now."""
        wanted = [count + more for count in self.commits()]

        def enough() -> bool:
            assert self._process.poll() is None, f"the driver has ended:\n{self.log.read_text()[-4000:]}"
            return all(now >= then for now, then in zip(self.commits(), wanted, strict=True))

        try:
            eventually(enough, timeout, 0.02)
        except pytest.fail.Exception as late:
            log = self.log.read_text()[-4000:]
            pytest.fail(f"{late}; batches {self.commits()}, wanted {wanted}; the driver's log:\n{log}")

    def wait(self, timeout: float = 120) -> None:
        """Returns when it has ended well."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not over in {timeout} s; batches {self.commits()}; the driver's log:\n{self.log.read_text()[-4000:]}")
        assert status == 0, self.log.read_text()[-4000:]

    def processes(self, word: str) -> list[int]:
        """Those of its processes that have this word in their command lines."""
        return [process for process in descendants(self._process.pid) if word in command_line(process)]

    def kill(self) -> None:
        """Ends all of it by SIGKILL, the children first, and waits until they are gone."""
        everything = [*descendants(self._process.pid), self._process.pid]
        for process in everything:
            kill(process)
        self._process.wait()
        eventually(lambda: not any(command_line(process) for process in everything), 20)


def descendants(process: int) -> list[int]:
    """The processes that this one has started, and those these have."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))

    def below(pid: int) -> Iterator[int]:
        for child in parents.get(pid, []):
            yield child
            yield from below(child)

    return list(below(process))


def command_line(process: int) -> str:
    """"" of a process that has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pass


def failing_once(marker: str) -> Callable[[Any], Any]:
    """For mapInArrow: the first to come here without the file makes it and fails."""

    def check(batches: Any) -> Any:
        for batch in batches:
            if not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("once only")
            yield batch

    return check


def slowly(seconds: float) -> Callable[[Any], Any]:
    def wait(batches: Any) -> Any:
        began = time.monotonic()
        yield from batches
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))

    return wait


def main(job: dict[str, Any]) -> None:
    from rabbitpy_broker.pipeline import register
    from rabbitpy_broker.pipeline.session import session

    spark = session(
        "test driver",
        job.get("master", "local[2]"),
        {"spark.driver.memory": "1g", "spark.local.dir": f"{job['folder']}/local"},
    )
    register(spark)
    # All in this thread: in another one Spark may not find the sink `amqp`, for it looks in the thread's active session.
    running = [start(spark, job, query) for query in job["queries"]]
    try:
        while running:
            query = running.pop(0)
            if not query.awaitTermination(0.5):
                running.append(query)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the other query may have no end
    spark.stop()


def start(spark: Any, job: dict[str, Any], query: dict[str, Any]) -> Any:
    folder = f"{job['folder']}/{query['mode']}"
    if query["mode"] == "journal":
        found = spark.readStream.format("rabbitpy-journal").options(**query["options"]).load(query["folder"])
    else:
        options = {"url": job["broker"], "queue": query["queue"], "maxMessagesPerTrigger": "1000"}
        if query["mode"] == "stream":
            options |= {"mode": "stream", "maxMessagesPerTrigger": "1500"}
        if query["mode"] == "spool":
            options |= {"spoolDir": f"{folder}/spool", "segmentRows": "500"}
        found = spark.readStream.format("amqp").options(**options).load()
    if "fail_once" in query:
        found = found.mapInArrow(failing_once(query["fail_once"]), found.schema)
    if "slow_s" in query:
        found = found.mapInArrow(slowly(query["slow_s"]), found.schema)
    writer = found.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    if "to_queue" in query:
        writer = writer.format("amqp").options(url=job["broker"], exchange="", routingKey=query["to_queue"])
    else:
        writer = writer.format("parquet").option("path", f"{folder}/out")
    if job.get("bounded"):
        writer = writer.trigger(availableNow=True)
    return writer.start()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
