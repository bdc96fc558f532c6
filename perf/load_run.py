"""One run of the load generator for the tools that compare runs: its result, with what the broker used meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from perf.brokers import Broker

ROOT = Path(__file__).parent.parent
# A run that has not ended so long after its time hangs.
GRACE = 60.0


class RunFailed(Exception):
    """A broker did not get through a scenario; the text says why."""


def load(broker: Broker, options: str, seconds: float) -> dict[str, Any]:
    """One run of the load generator, with the broker's memory and CPU time added. Raises RunFailed."""
    command = [sys.executable, "-m", "perf.load", "--json", "--url", broker.url, *options.split()]
    if "-n " not in options:
        command += ["-z", str(seconds)]
    cpu_before, peak, start = broker.cpu_s(), 0, time.monotonic()
    limit = 600 if "-n " in options else seconds + GRACE
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while True:
            try:
                output, errors = process.communicate(timeout=0.25)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, broker.rss_kib())
                if time.monotonic() - start > limit:
                    process.terminate()
                    raise RunFailed(f"no end within {limit:.0f} s") from None
    if process.returncode:
        raise RunFailed(
            errors.strip().splitlines()[-1] if errors.strip() else f"exit code {process.returncode}"
        )
    result: dict[str, Any] = json.loads(output)
    if not result["complete"]:
        raise RunFailed("not all messages came through in time")
    del result["options"]
    if broker.session is not None:
        result["broker_rss_mib"] = round(peak / 1024, 1)
        result["broker_cpu_s"] = round(broker.cpu_s() - cpu_before, 2)
    return result
