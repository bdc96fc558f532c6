"""What is the cheapest way to make k queues durable at once? Measures the candidates that a store has to choose from.

    python -m perf.sync_strategies --seconds 2

Each round writes `size` bytes for each of k queues and makes all of it durable; a round's time is what a confirm has to
wait. Where it goes and how it is synced is the strategy:

    a file for each queue    written, then fdatasync one after the other, by 8 or 32 threads, or one syncfs for all
    one shared log           the k pieces side by side in one write, and one fdatasync

and in either case the file is in one of three states, which decide what the file system has to note down besides the data:

    appended      every round makes it longer: its size and the new blocks must be on disk too
    fallocated    posix_fallocate gave it size and blocks beforehand; they still have to be marked as written
    reused        it was written before: only the data has to reach the disk

A strategy's first round is not counted. Nothing else should use the disk meanwhile: syncfs waits for everybody's writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from perf import brokers, machine, watch

# A slow strategy has at least so many rounds, however long they take; a quick one no more than that many.
MIN_ROUNDS, MAX_ROUNDS = 3, 5000
# Files of the state `reused` are overwritten from the start again after this much, all of a round's files together.
REUSED_BYTES = 64 << 20
# What posix_fallocate may take of the disk for one strategy; its measurement ends when that is used up.
FALLOCATED_BYTES = 1 << 30
LIBC = ctypes.CDLL(None, use_errno=True)

State = str  # "appended", "fallocated" or "reused"


@dataclasses.dataclass
class LogFile:
    """An open file and the place of the next write in it."""

    fd: int
    wrap_at: int | None = None  # where a reused or fallocated file ends
    offset: int = 0

    def write(self, data: bytes) -> None:
        if self.wrap_at is not None and self.offset + len(data) > self.wrap_at:
            self.offset = 0
        written = os.pwrite(self.fd, data, self.offset)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes were written")
        self.offset += len(data)

    def sync(self) -> None:
        os.fdatasync(self.fd)


@dataclasses.dataclass(frozen=True)
class Strategy:
    """`sync` is "each", "threads" or "syncfs" for a file for each queue, and "log" for the shared one."""

    title: str
    sync: str
    state: State
    threads: int = 0

    def fits(self, queues: int) -> bool:
        """Whether it differs from a simpler one with so many queues."""
        return queues > 1 or self.sync in {"each", "log"}


STRATEGIES = [
    Strategy("file per queue, appended, in turn", "each", "appended"),
    Strategy("file per queue, fallocated, in turn", "each", "fallocated"),
    Strategy("file per queue, reused, in turn", "each", "reused"),
    Strategy("file per queue, appended, 8 threads", "threads", "appended", 8),
    Strategy("file per queue, fallocated, 8 threads", "threads", "fallocated", 8),
    Strategy("file per queue, reused, 8 threads", "threads", "reused", 8),
    Strategy("file per queue, appended, 32 threads", "threads", "appended", 32),
    Strategy("file per queue, fallocated, 32 threads", "threads", "fallocated", 32),
    Strategy("file per queue, reused, 32 threads", "threads", "reused", 32),
    Strategy("file per queue, appended, one syncfs", "syncfs", "appended"),
    Strategy("file per queue, reused, one syncfs", "syncfs", "reused"),
    Strategy("shared log, appended", "log", "appended"),
    Strategy("shared log, fallocated", "log", "fallocated"),
    Strategy("shared log, reused", "log", "reused"),
]


def syncfs(fd: int) -> None:
    """Makes everything durable that was written to the file system of `fd`, by whomever."""
    if LIBC.syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def write_whole(fd: int, size: int) -> None:
    """Fills a new file with bytes that are on disk when this returns."""
    chunk = bytes(min(size, 1 << 20))
    for offset in range(0, size, len(chunk)):
        os.pwrite(fd, chunk[: size - offset], offset)
    os.fsync(fd)


@contextlib.contextmanager
def files(folder: Path, count: int, size: int, state: State) -> Iterator[list[LogFile]]:
    """`count` files for writes of `size`, prepared as `state` asks for and gone at the end."""
    opened: list[LogFile] = []
    with (
        tempfile.TemporaryDirectory(prefix="rabbitpy-sync-", dir=folder) as name,
        contextlib.ExitStack() as stack,
    ):
        for number in range(count):
            fd = os.open(Path(name) / f"{number}.log", os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, fd)
            log = LogFile(fd)
            if state == "reused":
                log.wrap_at = max(4, REUSED_BYTES // (count * size)) * size
                write_whole(fd, log.wrap_at)
            elif state == "fallocated":
                log.wrap_at = fallocated_rounds(count * size) * size
                os.posix_fallocate(fd, 0, log.wrap_at)
            opened.append(log)
        directory = os.open(name, os.O_RDONLY)
        stack.callback(os.close, directory)
        syncfs(directory)  # what the preparation left over is not the first round's business
        yield opened


def fallocated_rounds(round_bytes: int) -> int:
    """How many rounds write where nothing was written before."""
    return max(MIN_ROUNDS + 1, min(MAX_ROUNDS, FALLOCATED_BYTES // round_bytes))


def rounds(
    strategy: Strategy, opened: list[LogFile], data: bytes, pool: ThreadPoolExecutor
) -> Callable[[], None]:
    """What one round does."""

    def write_and_sync(log: LogFile) -> None:
        log.write(data)
        log.sync()

    def run() -> None:
        if strategy.sync == "threads":
            for _ in pool.map(write_and_sync, opened):
                pass
            return
        for log in opened:
            log.write(data)
        if strategy.sync == "syncfs":
            syncfs(opened[0].fd)
        else:
            for log in opened:
                log.sync()

    return run


def measure(strategy: Strategy, folder: Path, queues: int, size: int, seconds: float) -> dict[str, Any]:
    """Milliseconds a round, after one that is not counted."""
    round_bytes = queues * size
    count, write_size = (1, round_bytes) if strategy.sync == "log" else (queues, size)
    limit = fallocated_rounds(round_bytes) - 1 if strategy.state == "fallocated" else MAX_ROUNDS
    data = os.urandom(write_size)
    with (
        files(folder, count, write_size, strategy.state) as opened,
        ThreadPoolExecutor(strategy.threads or 1) as pool,
    ):
        run = rounds(strategy, opened, data, pool)
        run()
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < MIN_ROUNDS or (time.perf_counter() < end and len(times) < limit):
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1000)
    return {
        "strategy": strategy.title,
        "queues": queues,
        "bytes_per_queue": size,
        "rounds": len(times),
        "median_ms": round(statistics.median(times), 3),
        "p99_ms": round(percentile(times, 0.99), 3),
    }


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def cell(result: dict[str, Any] | None) -> str:
    return "" if result is None else f"{result['median_ms']:,.2f} ({result['p99_ms']:,.2f})"


def table(results: Sequence[dict[str, Any]], size: int) -> list[list[str]]:
    """A head, and a line for each strategy with the median and, in parentheses, the p99 by number of queues."""
    counts = sorted({result["queues"] for result in results})
    found = {(r["strategy"], r["queues"]): r for r in results if r["bytes_per_queue"] == size}
    head = [
        f"ms a round, {size // 1024} KiB a queue",
        *(f"{count:,} queue{'s' * (count > 1)}" for count in counts),
    ]
    return [head] + [
        [strategy.title, *(cell(found.get((strategy.title, count))) for count in counts)]
        for strategy in STRATEGIES
    ]


def drawn(results: Sequence[dict[str, Any]], size: int) -> Table:
    head, *lines = table(results, size)
    found = Table(caption="median (p99)")
    for name in head:
        found.add_column(name, justify="left" if name == head[0] else "right")
    for line in lines:
        found.add_row(*line)
    return found


def markdown(results: Sequence[dict[str, Any]], size: int) -> str:
    head, *lines = table(results, size)
    rows = [head, ["---", *["--:"] * (len(head) - 1)], *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter("numbers with commas between") from None
    if min(found) < 1:
        raise click.BadParameter("a number is at least 1")
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=tempfile.gettempdir(),
    help="A folder on the disk to measure.",
)
@click.option("--seconds", type=click.FloatRange(0), default=2.0, help="Seconds of each measurement.")
@click.option("--queues", "counts", default="1,30,1000", callback=numbers, help="Dirty queues at a time.")
@click.option("--sizes", default="4096,65536", callback=numbers, help="Bytes of each queue in a round.")
@click.option("--quick", is_flag=True, help="Few rounds of 4 KiB with few queues: whether it works.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables as Markdown.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to a file too."
)
def main(
    folder: Path,
    seconds: float,
    counts: tuple[int, ...],
    sizes: tuple[int, ...],
    quick: bool,
    as_json: bool,
    as_markdown: bool,
    output: Path | None,
) -> None:
    """Measure the ways to make the data of many queues durable."""
    if quick:
        seconds, counts, sizes = 0.0, (1, 3), (4096,)
    files_at_once = brokers.raise_file_limit() - 50
    if max(counts) > files_at_once:
        raise click.ClickException(f"no more than {files_at_once} files may be open here")
    cells = [
        (strategy, count, size)
        for size in sizes
        for count in counts
        for strategy in STRATEGIES
        if strategy.fits(count)
    ]
    results = []
    try:
        with Progress(console=Console(stderr=True), disable=as_json or not sys.stderr.isatty()) as progress:
            for strategy, count, size in progress.track(cells):
                results.append(measure(strategy, folder, count, size, seconds))
    except OSError as error:
        raise click.ClickException(f"the disk refuses: {error}") from None
    command = machine.command("sync_strategies")
    result = {"command": command, "file_system": watch.file_system(folder.resolve()), "results": results}
    if output is not None:
        machine.save("sync_strategies", result, output)
        click.echo(f"written to {output}", err=True)
    if as_json:
        click.echo(json.dumps({"tool": "sync_strategies", **machine.describe(), **result}, indent=1))
    else:
        for size in sizes:
            if as_markdown:
                click.echo(markdown(results, size))
            else:
                Console().print(drawn(results, size))


if __name__ == "__main__":
    main(prog_name="python -m perf.sync_strategies")
