"""How long does a stop take with many queues that hold messages, and the start after it?

    python -m perf.stop --queues 50000
    python -m perf.stop --queues 50000 --busy

A data directory with so many durable queues is made once. Then the broker is started on it, persistent messages go into
each queue, and SIGTERM follows the last confirm at once: the journal has all of them, the segments next to nothing. Taken
are the seconds from SIGTERM to the end of the process, and from the next start to the first log-in, and whether the store
says that it was stopped cleanly. Then the broker idles until all is in segments (`--settle` seconds at most), and is stopped
and started again.

`--busy` has somebody else write to the same disk all the while, and sync as he goes. Exit code 1 when a message is missing.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pamqp import commands, frame
from pamqp.header import ContentHeader

from perf import brokers, machine, watch
from perf.kill.daemon import Daemon
from perf.kill.ledger import Violation
from perf.load.client import Client, Refused

STOP_TIMEOUT = 900.0
WINDOW = 1000  # publishes that wait for their confirms together
BUSY_BLOCK = bytes(1 << 20)
BUSY_BLOCKS = 512  # of the file that is written over and over
BUSY_SYNC_EACH = 8  # blocks
LOOK_S = 0.01


# -- somebody else on the same disk -----------------------------------------------------------------------------------


def write_for_ever(path: str) -> None:
    with Path(path).open("wb", buffering=0) as file:
        block = 0
        while True:
            file.seek(block % BUSY_BLOCKS * len(BUSY_BLOCK))
            file.write(BUSY_BLOCK)
            block += 1
            if block % BUSY_SYNC_EACH == 0:
                os.fsync(file.fileno())


@contextlib.contextmanager
def busy_disk(folder: Path, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    path = folder / "busy"
    writer = multiprocessing.Process(target=write_for_ever, args=(str(path),), daemon=True)
    writer.start()
    try:
        yield
    finally:
        writer.kill()
        writer.join()
        path.unlink(missing_ok=True)


# -- the broker -------------------------------------------------------------------------------------------------------


def queue_names(queues: int) -> list[str]:
    return [f"stop-{number}" for number in range(queues)]


def declare(folder: Path, command: list[str], queues: int) -> None:
    """Leaves a data directory with the queues, all empty, of a broker that was stopped."""
    definitions = folder / "definitions.json"
    document = {
        "vhosts": [{"name": "/"}],
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": [
            {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
            for name in queue_names(queues)
        ],
    }
    definitions.write_text(json.dumps(document))
    config = folder / "declare.toml"
    config.write_text(f"load_definitions = {json.dumps(str(definitions))}\n")
    daemon = Daemon(command, folder, config)
    daemon.start()
    stop(daemon)


def publish(daemon: Daemon, queues: int, messages: int, size: int) -> None:
    """So many persistent messages into each queue; returns when all are confirmed."""
    header = frame.marshal(ContentHeader(0, size, commands.Basic.Properties(delivery_mode=2)), 1)
    content = header + b"\x03\x00\x01" + size.to_bytes(4, "big") + bytes(size) + b"\xce"
    with Client(daemon.address, "perf publisher", 300.0) as client:
        client.open_channel(1)
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        sent = 0
        names = queue_names(queues) * messages
        for at in range(0, len(names), WINDOW):
            window = names[at : at + WINDOW]
            client.sock.sendall(
                b"".join(
                    frame.marshal(commands.Basic.Publish(0, "", name), 1) + content for name in window
                )
            )
            sent += len(window)
            while client.receive(commands.Basic.Ack).delivery_tag < sent:
                pass


def start(daemon: Daemon) -> dict[str, Any]:
    began = time.monotonic()
    daemon.start()
    with Client(daemon.address, "perf wait", 60.0):
        ready_s = time.monotonic() - began
    stores = daemon.events("store recovered")
    return {
        "ready_s": round(ready_s, 2),
        "store_s": round(sum(store["seconds"] for store in stores), 2),
        "clean": all(store["clean"] for store in stores),
        "messages": sum(store["messages"] for store in stores),
    }


def stop(daemon: Daemon) -> dict[str, Any]:
    assert daemon.process is not None
    began = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    try:
        exit_code = daemon.process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise Violation(f"no end within {STOP_TIMEOUT:.0f} s of SIGTERM") from None
    return {"stop_s": round(time.monotonic() - began, 2), "exit_code": exit_code}


def settle(daemon: Daemon, queues: int, at_most_s: float) -> float:
    """Waits until each queue has a segment, in which all its messages are; returns the seconds that took."""
    began = time.monotonic()
    folder = daemon.data_dir / "vhosts" / "%2F"
    while time.monotonic() - began < at_most_s:
        if sum(any(queue.iterdir()) for queue in (folder / "queues").iterdir()) >= queues:
            break
        time.sleep(0.2)
    return round(time.monotonic() - began, 1)


def measure(
    folder: Path, command: list[str], queues: int, messages: int, size: int, busy: bool, settle_s: float
) -> dict[str, Any]:
    declare(folder, command, queues)
    click.echo(f"{queues} queues declared", err=True)
    daemon = Daemon(command, folder)
    result: dict[str, Any] = {}
    try:
        with busy_disk(folder, busy):
            result["empty_start"] = start(daemon)
            publish(daemon, queues, messages, size)
            result["stop"] = stop(daemon)
            click.echo(f"stop at once: {result['stop']}", err=True)
            result["start"] = start(daemon)
            click.echo(f"start after it: {result['start']}", err=True)
            if settle_s:
                result["settled_after_s"] = settle(daemon, queues, settle_s)
                result["settled_stop"] = stop(daemon)
                click.echo(f"stop of an idle broker: {result['settled_stop']}", err=True)
                result["settled_start"] = start(daemon)
                click.echo(f"start after it: {result['settled_start']}", err=True)
            stop(daemon)
    finally:
        daemon.abandon()
    expected = queues * messages
    result["faults"] = [
        f"{result[name]['messages']} of {expected} messages after {name}"
        for name in ("start", "settled_start")
        if name in result and result[name]["messages"] != expected
    ]
    return result


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Starts rabbitpy-broker.")
@watch.dir_option
@click.option("--queues", type=click.IntRange(1), default=20_000, help="Durable queues.")
@click.option("--messages", type=click.IntRange(1), default=1, help="Persistent messages in each of them.")
@click.option("--size", type=click.IntRange(1), default=100, help="Bytes of a body.")
@click.option("--busy", is_flag=True, help="Somebody else writes to the same disk, and syncs.")
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0),
    default=60.0,
    help="Seconds that the idle broker is given before the second stop; 0: no second stop.",
)
@click.option("--quick", is_flag=True, help="20 queues: whether it works.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(
    command: str,
    folder: Path,
    queues: int,
    messages: int,
    size: int,
    busy: bool,
    settle_s: float,
    quick: bool,
    save: bool,
) -> None:
    """Take the time of a stop, and of the start after it, with many queues that hold messages."""
    queues = min(queues, 20) if quick else queues
    disk = watch.use_disk(folder)
    try:
        with brokers.scratch() as scratch:
            build = brokers.version_of(command, scratch, os.environ)
            measured = measure(scratch, shlex.split(command), queues, messages, size, busy, settle_s)
    except (Violation, Refused, brokers.StartFailed) as error:
        raise click.ClickException(str(error)) from None
    result = {
        "broker": build,
        "file_system": disk,
        "queues": queues,
        "messages_each": messages,
        "size": size,
        "busy": busy,
        **measured,
    }
    if save:
        click.echo(f"written to {machine.save('stop', result)}", err=True)
    click.echo(json.dumps(result, indent=1))
    if result["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main(prog_name="python -m perf.stop")
