"""How long until the broker is back? Fills a durable queue, ends the broker with kill -9, starts it again, and takes the time.

    python -m perf.recovery --messages 1000000 --size 1000 --rabbitmq

The time goes from the start of the process to the moment when a client has logged in and a passive declare shows every
confirmed message. After that the same for a clean stop: the stop itself and the start. At last the queue is drained and
the messages' numbers are checked. Exit code 1 when one is lost or out of order.

A kill leaves the kernel's page cache as it is, so files are read from memory unless `--cold` drops them from it.

A broker is started again as it was started: RabbitMQ by its script, in the environment and folder that /proc shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from perf import backlog, brokers, numbered, watch
from perf.brokers import Broker, StartFailed
from perf.load.client import Address, Client, Refused
from perf.numbered import Backlog
from perf.watch import Watch

START_TIMEOUT = 1800.0
STOP_TIMEOUT = 600.0
# Messages that are not there so long after the first log-in do not count as recovered.
LATE_MESSAGES = 2.0
RABBITMQ_MESSAGES = 1_000_000
QUICK_MESSAGES = 20_000


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a broker was started: enough to start it again on the same data and ports."""

    command: list[str]
    env: dict[str, str]
    folder: Path

    @classmethod
    def of(cls, broker: Broker) -> Launch:
        proc = Path(f"/proc/{broker.session}")
        texts = [part.decode() for part in (proc / "environ").read_bytes().split(b"\0") if part]
        env = dict(text.partition("=")[::2] for text in texts)
        if "RABBITMQ_NODENAME" in env:
            command = [str(brokers.RABBITMQ_SERVER)]
        else:
            command = [part.decode() for part in (proc / "cmdline").read_bytes().split(b"\0")[:-1]]
        return cls(command, env, watch.folder_of(broker))

    @contextlib.contextmanager
    def again(self, broker: Broker) -> Iterator[Broker]:
        """The broker in a new session; not ready yet."""
        with tempfile.TemporaryDirectory(prefix="output-", dir=self.folder) as output:
            # Its words go to a folder of their own; it runs in the one that it knows.
            command = [
                "/bin/sh",
                "-c",
                f"cd {shlex.quote(str(self.folder))} && exec {shlex.join(self.command)}",
            ]
            with brokers.session(command, Path(output), self.env) as process:
                started = dataclasses.replace(broker, session=process.pid)
                try:
                    yield started
                except Refused as error:
                    words = (Path(output) / "output").read_text(errors="replace").strip()[-600:]
                    raise StartFailed(f"{broker.name}: {error}\n{words}") from None


def kill(broker: Broker, number: signal.Signals) -> float:
    """Sends the signal (SIGTERM to the leader alone, SIGKILL to all); returns the seconds until nothing runs any more."""
    assert broker.session is not None
    start = time.monotonic()
    if number == signal.SIGKILL:
        brokers.signal_all(broker.session, number)
    else:
        os.kill(broker.session, number)
    while any(is_running(process) for process in brokers.session_members(broker.session)):
        if time.monotonic() - start > STOP_TIMEOUT:
            raise Refused(f"it still runs {STOP_TIMEOUT:g} s after {number.name}")
        time.sleep(0.01)
    return time.monotonic() - start


def is_running(process: int) -> bool:
    """Whether it is more than an entry that its parent has not fetched."""
    try:
        return brokers.stat_fields(process)[0] != "Z"
    except OSError:
        return False


def wait_until_back(broker: Broker, queues: Sequence[str], expected: int) -> dict[str, Any]:
    """Seconds until a client is let in, and until the queues show `expected` messages."""
    start = time.monotonic()
    with Watch(broker) as seen:
        while not lets_in(broker):
            if time.monotonic() - start > START_TIMEOUT or not any(map(is_running, broker.processes())):
                raise Refused("it did not come back")
            time.sleep(0.02)
        accepts = time.monotonic() - start
        found = numbered.ready(broker.url, queues)
        while found < expected and time.monotonic() - start < accepts + LATE_MESSAGES:
            time.sleep(0.02)
            found = numbered.ready(broker.url, queues)
        whole = time.monotonic() - start
    return {
        "accepts_s": round(accepts, 2),
        "all_there_s": round(whole, 2) if found >= expected else None,
        "ready": found,
        "rss_peak_mib": seen.peak_mib,
        "broker_cpu_s": round(broker.cpu_s(), 2),
    }


def lets_in(broker: Broker) -> bool:
    try:
        with Client(Address.parse(broker.url), "perf wait", START_TIMEOUT):
            return True
    except Refused:
        return False


def drop_from_cache(folder: Path) -> None:
    """Has the kernel forget the files' contents, so that a start reads them from the disk."""
    os.sync()  # what is not written yet cannot be dropped
    for parent, _, names in os.walk(folder):
        for name in names:
            if not (Path(parent) / name).is_file():  # the control socket of a broker that was killed
                continue
            with (Path(parent) / name).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(broker: Broker, load: Backlog, cold: bool) -> dict[str, Any]:
    """Fills, kills, starts, stops, starts and drains the broker that its caller has started."""
    numbered.declare(broker.url, load, durable=True)
    published = backlog.publish(broker, load)
    expected = published["confirmed"]
    click.echo(f"{broker.name:10} published: {backlog.summary(published)}", err=True)
    launch = Launch.of(broker)
    data = launch.folder / "data"
    disk_mib = watch.mib(watch.disk_bytes(broker))
    kill(broker, signal.SIGKILL)
    if cold:
        drop_from_cache(data)
    with launch.again(broker) as second:
        after_kill = wait_until_back(second, load.queue_names, expected)
        click.echo(f"{broker.name:10} after kill -9: {said(after_kill, expected)}", err=True)
        stop_s = kill(second, signal.SIGTERM)
    if cold:
        drop_from_cache(data)
    with launch.again(broker) as third:
        after_stop = wait_until_back(third, load.queue_names, expected)
        click.echo(f"{broker.name:10} after a stop of {stop_s:.2f} s: {said(after_stop, expected)}", err=True)
        drained = backlog.drain(third, load, after_stop["ready"])
    del published["samples"], drained["samples"]
    return {
        "broker": broker.build,
        "messages": load.messages,
        "publish": published,
        "disk_mib": disk_mib,
        "after_kill": after_kill,
        "clean_stop_s": round(stop_s, 2),
        "after_clean_stop": after_stop,
        "drain": drained,
        "faults": [
            f"{broker.name}: {fault}"
            for fault in [
                *lost(after_kill["ready"], published["confirmed"]),
                *backlog.faults(published, after_stop["ready"], drained),
            ]
        ],
    }


def lost(found: int, confirmed: int) -> list[str]:
    return [f"{found} of {confirmed} confirmed messages after kill -9"] if found < confirmed else []


def said(phase: dict[str, Any], expected: int) -> str:
    return (
        f"accepts after {phase['accepts_s']} s, {phase['ready']:,} of {expected:,} messages, "
        f"memory at most {phase['rss_peak_mib']:,} MiB"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--broker", "command", default=brokers.DEFAULT_COMMAND, help="Starts rabbitpy-broker; '' for none."
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file for rabbitpy-broker.",
)
@click.option("--rabbitmq", is_flag=True, help="Then the installed rabbitmq-server, in the same run.")
@click.option(
    "--rabbitmq-messages",
    type=click.IntRange(1),
    help=f"Messages for it.  [default: as many, {RABBITMQ_MESSAGES:,} at most]",
)
@watch.dir_option
@click.option("--messages", type=click.IntRange(0), default=1_000_000, help="Messages in the queues.")
@click.option("--queues", type=click.IntRange(1), default=1, help="Queues that share them.")
@click.option(
    "--size",
    type=click.IntRange(numbered.NUMBER_BYTES, numbered.LARGEST),
    default=1000,
    help="Bytes of a body.",
)
@click.option("--cold", is_flag=True, help="Drop the files from the page cache before each start.")
@click.option("--quick", is_flag=True, help=f"{QUICK_MESSAGES:,} messages at most: whether it works.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file.")
def main(
    command: str,
    config: Path | None,
    rabbitmq: bool,
    rabbitmq_messages: int | None,
    folder: Path,
    messages: int,
    queues: int,
    size: int,
    cold: bool,
    quick: bool,
    save: bool,
    output: Path | None,
) -> None:
    """Take the time of a start after kill -9 and after a clean stop."""
    messages = min(messages, QUICK_MESSAGES) if quick else messages
    theirs = rabbitmq_messages or min(messages, RABBITMQ_MESSAGES)
    disk = watch.use_disk(folder)
    found: dict[str, dict[str, Any]] = {}
    try:
        if command:
            load = Backlog(backlog.new_name(), queues, messages // queues, size)
            with brokers.rabbitpy(command, config=config.read_text() if config else "") as broker:
                found[broker.name] = measure(broker, load, cold)
        if rabbitmq:
            load = Backlog(backlog.new_name(), queues, theirs // queues, size)
            with brokers.rabbitmq() as broker:
                found[broker.name] = measure(broker, load, cold)
    except (StartFailed, Refused) as error:
        raise click.ClickException(str(error)) from None
    result = {
        "file_system": disk,
        "queues": queues,
        "size": size,
        "cold": cold,
        "brokers": found,
        "faults": [fault for one in found.values() for fault in one["faults"]],
    }
    backlog.finish("recovery", result, save, output)


if __name__ == "__main__":
    main(prog_name="python -m perf.recovery")
