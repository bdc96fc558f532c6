"""How long a broker in a test suite takes to its first confirmed publish, and what a thousand of them leave behind.

    python -m perf.in_process                       # 50 starts, median and quartiles
    python -m perf.in_process --brokers 1000        # besides: threads, descriptors and memory after each hundred

A start is measured from `Broker()` to the confirm of a persistent message, published by pika to a durable queue that it has
declared, over a socket. Modules are imported before. `--expect-ms` fails above that median.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import threading
import time
from pathlib import Path

import pika

from rabbitpy_broker import build_info
from rabbitpy_broker.testing import Broker

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def publish(url: str) -> pika.BlockingConnection:
    """Publishes a persistent message and waits for its confirm."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"hello", PERSISTENT, mandatory=True)
    return connection


def one_start() -> tuple[float, float]:
    """Seconds to the first confirm, and for the stop."""
    began = time.perf_counter()
    broker = Broker().start()
    connection = publish(broker.url)
    confirmed = time.perf_counter()
    connection.close()
    closed = time.perf_counter()
    broker.stop()
    return confirmed - began, time.perf_counter() - closed


def left() -> dict[str, int]:
    """What this process has now: threads, file descriptors, resident memory in KiB."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "threads": threading.active_count(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "resident_kib": int(resident.split()[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--brokers", type=int, default=0, help="so many more, and what they leave behind")
    parser.add_argument("--expect-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    one_start()
    measured = [one_start() for _ in range(arguments.starts)]
    starts = [start * 1000 for start, _ in measured]
    quartiles = statistics.quantiles(starts, n=4)
    result: dict[str, object] = {
        "build": "compiled" if build_info.is_compiled() else "interpreted",
        "first_confirm_ms": {"q1": quartiles[0], "median": quartiles[1], "q3": quartiles[2], "max": max(starts)},
        "stop_ms": statistics.median(stop * 1000 for _, stop in measured),
    }
    if arguments.brokers:
        rows = [left()]
        for number in range(1, arguments.brokers + 1):
            one_start()
            if number % max(1, arguments.brokers // 10) == 0:
                rows.append({"brokers": number, **left()})
        result["left_behind"] = rows
    print(json.dumps(result, indent=2))
    if arguments.expect_ms and quartiles[1] > arguments.expect_ms:
        raise SystemExit(f"the median is above {arguments.expect_ms} ms")


if __name__ == "__main__":
    main()
