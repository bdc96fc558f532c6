"""A standalone Spark cluster on this machine: a master and workers, as processes of their own.

python tests/spark_cluster.py          starts one with two workers, prints its URL, and stops it when it is told to end
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_S = 60.0


@contextmanager
def spark_cluster(folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[str]:
    """The URL of the master, once all workers have registered."""
    with ExitStack() as stack:
        master = folder / "master.log"
        stack.enter_context(_running(master, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"))
        url = _told(master, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            log = folder / f"worker{number}.log"
            arguments = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", str(cores), "--memory", memory)
            work = ("--work-dir", str(folder / f"work{number}"), url)
            stack.enter_context(_running(log, "worker.Worker", *arguments, *work))
            _told(log, r"(Successfully registered with master)")
        yield url


@contextmanager
def _running(log: Path, what: str, *arguments: str) -> Iterator[None]:
    import pyspark

    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _told(log: Path, pattern: str) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise TimeoutError(f"{log} does not say {pattern}:\n{log.read_text(errors='replace')[-2000:]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made, spark_cluster(Path(made)) as address:
        print(address, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
