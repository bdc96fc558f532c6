"""What do several workers bring, and what do they cost?

    python -m perf.workers
    python -m perf.workers --only kill --rounds 20

    throughput   two vhosts with a load each: messages for a second of the broker's CPU time, and a second, with one worker, with
                 two, each with one of the vhosts, and with two daemons that know nothing of each other, which is what the machine
                 allows; they take turns, so that only their ratios count
    handover     connections a second to one vhost, and CPU time for each: with one worker, and with several, where most have to
                 be handed to the one that has the vhost (which worker accepts is the system's choice)
    vhosts       a thousand vhosts with a durable queue each: the time of a start, and memory, with one worker and with four
    kill         a client does one round trip after the other in a vhost of one worker while the other is killed again and again:
                 its longest and its p99, beside the same without kills; and how long the killed one's vhost is away

Memory is counted twice: `rss_mib` adds up what each process has, `pss_mib` counts pages that several share once. Exit code 1
when a confirmed message or a vhost is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from perf import brokers, connections, load_run, machine, many_durable, stop, watch
from perf.kill.daemon import Daemon
from perf.kill.ledger import Violation
from perf.load.client import Address, Client, Refused
from rabbitpy_broker.ctl import CtlError, ask

LOAD: Final = "-x 1 -y 1 -s 100 -c 500 -Q 500 -A 50 --processes 1"
LOADED: Final = ("perf-0", "perf-1")
MOST_WORKERS: Final = 4
BACK_TIMEOUT_S: Final = 120.0
QUEUES: Final = 10  # of the vhost whose worker is killed
LOOK_S: Final = 0.01
BETWEEN_KILLS_S: Final = 1.0


# -- a daemon with workers ----------------------------------------------------------------------------------------------


class Workers(Daemon):
    """The broker with so many workers, and what this tool asks of it."""

    def __init__(self, command: list[str], folder: Path, workers: int) -> None:
        super().__init__([*command, "--workers", str(workers)], folder)
        self.workers = workers

    def broker(self, vhost: str = "/") -> brokers.Broker:
        """As tools know brokers that they weigh."""
        assert self.process is not None
        url = f"amqp://guest:guest@{self.address.host}:{self.address.port}/{vhost.replace('/', '%2F')}"
        return brokers.Broker(f"{self.workers} workers", url, session=self.process.pid, build="rabbitpy")

    def of(self, vhost: str) -> Address:
        return replace(self.address, vhost=vhost)

    def ask(self, command: str, *arguments: object, **options: object) -> Any:
        """As rabbitpy-ctl does. Raises CtlError."""
        return ask(self.data_dir, command, list(arguments), options)

    def add_vhosts(self, names: tuple[str, ...]) -> None:
        """Each with another worker than the one before, as far as there are workers."""
        for number, name in enumerate(names):
            self.ask("add_vhost", name)
            self.ask("set_permissions", "guest", ".*", ".*", ".*", vhost=name)
            self.put(name, number)

    def put(self, vhost: str, number: int) -> None:
        """Has a vhost be with this worker, modulo how many there are."""
        if self.workers > 1:
            self.ask("move_vhost", vhost, str(number % self.workers))

    def pid_of(self, number: int) -> int:
        """0 while it does not run."""
        return next(int(row["pid"]) for row in self.ask("list_workers") if row["worker"] == number)

    def weigh(self) -> dict[str, Any]:
        """Memory of all its processes, in MiB, once it has stopped changing."""
        broker = self.broker()
        rss_kib = connections.settled_rss_kib(broker)
        processes = broker.processes()
        pss_kib = sum(proportional_kib(process) for process in processes)
        return {"processes": len(processes), "rss_mib": round(rss_kib / 1024, 1), "pss_mib": round(pss_kib / 1024, 1)}


def proportional_kib(process: int) -> int:
    """A process's memory in which a page that n share counts as an n-th; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@contextlib.contextmanager
def running(command: list[str], workers: int) -> Iterator[Workers]:
    """A daemon on a folder of its own, from its start to a stop without faults."""
    with brokers.scratch() as folder:
        daemon = Workers(command, folder, workers)
        try:
            daemon.start()
            yield daemon
            daemon.terminate()
            daemon.wait()
        finally:
            daemon.abandon()


# -- what is measured ---------------------------------------------------------------------------------------------------


def throughput(command: list[str], messages: int, reps: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"workers_1": [], "workers_2": [], "apart": []}
    for _ in range(reps):
        for form, runs in found.items():
            with loaded(command, form) as places:
                runs.append(two_loads(places, messages))
    medians = {form: medians_of(runs) for form, runs in found.items()}
    result: dict[str, Any] = {"messages": messages * len(LOADED) * reps, **medians}
    for name, beside in (("", "workers_1"), ("_beside_apart", "apart")):
        for figure in ("per_cpu_s", "per_s"):
            result[f"{figure}_ratio{name}"] = round(medians["workers_2"][figure] / medians[beside][figure], 3)
    return result


def medians_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


@contextlib.contextmanager
def loaded(command: list[str], form: str) -> Iterator[list[brokers.Broker]]:
    """Where the two loads go: two vhosts of one daemon, or of two daemons that know nothing of each other."""
    with contextlib.ExitStack() as stack:
        if form == "apart":
            daemons = [stack.enter_context(running(command, 1)) for _ in LOADED]
            for daemon, vhost in zip(daemons, LOADED, strict=True):
                daemon.add_vhosts((vhost,))
        else:
            daemons = [stack.enter_context(running(command, int(form.removeprefix("workers_"))))] * len(LOADED)
            daemons[0].add_vhosts(LOADED)
        yield [daemon.broker(vhost) for daemon, vhost in zip(daemons, LOADED, strict=True)]


def two_loads(places: list[brokers.Broker], messages: int) -> dict[str, float]:
    """So many messages to each of two places at once."""

    def used_s() -> float:
        return sum(brokers.cpu_seconds(process) for process in {process for place in places for process in place.processes()})

    cpu_before, began = used_s(), time.monotonic()
    with ThreadPoolExecutor(len(places)) as pool:
        loads = [pool.submit(load_run.load, place, f"{LOAD} -n {messages}", 0.0) for place in places]
        received = sum(load.result()["received"] for load in loads)
    seconds, cpu_s = time.monotonic() - began, used_s() - cpu_before
    if received != messages * len(places):
        raise Violation(f"{received} of {messages * len(places)} messages were received")
    return {"per_cpu_s": round(received / max(cpu_s, 0.01)), "per_s": round(received / seconds), "cpu_s": round(cpu_s, 2)}


def handover(command: list[str], count: int, many: int) -> dict[str, Any]:
    result: dict[str, Any] = {"connections": count}
    for workers in sorted({1, 2, many}):
        with running(command, workers) as daemon:
            daemon.add_vhosts(LOADED)
            measured = connections.measure(daemon.broker(LOADED[0]), count, os.cpu_count() or 1)
            result[f"workers_{workers}"] = {
                name: measured[name] for name in ("opened_per_s", "broker_cpu_ms_per_connection", "kib_per_connection")
            }
    return result


def many_vhosts(command: list[str], count: int, many: int) -> dict[str, Any]:
    result: dict[str, Any] = {"vhosts": count}
    names = [f"many-{number}" for number in range(count)]
    for workers in (1, many):
        with running(command, workers) as daemon:
            empty = daemon.weigh()
            began = time.monotonic()
            daemon.ask("import_definitions", definitions(names))
            imported_s = time.monotonic() - began
            stopped = stop.stop(daemon)
            started = stop.start(daemon)
            listed = {row["name"] for row in daemon.ask("list_vhosts", "name")}
            if not listed.issuperset(names):
                raise Violation(f"{len(set(names) - listed)} of {count} vhosts are gone after a start with {workers} workers")
            with Client(daemon.of(names[-1])) as client:
                client.open_channel(1)
            result[f"workers_{workers}"] = {
                "import_s": round(imported_s, 2),
                "stop_s": stopped["stop_s"],
                "start_s": started["ready_s"],
                "empty": empty,
                "with_vhosts": daemon.weigh(),
            }
    return result


def definitions(vhosts: list[str]) -> dict[str, Any]:
    """A durable queue in each."""
    anything = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "vhosts": [{"name": name} for name in vhosts],
        "permissions": [{"user": "guest", "vhost": name, **anything} for name in vhosts],
        "queues": [{"name": "q", "vhost": name, "durable": True, "auto_delete": False, "arguments": {}} for name in vhosts],
    }


def kill(command: list[str], rounds: int, messages: int, quiet_s: float) -> dict[str, Any]:
    """The worker of "/", which has persistent messages, is killed; the client is in a vhost of the other one."""
    away_s: list[float] = []
    with running(command, 2) as daemon:
        daemon.add_vhosts(LOADED)
        daemon.put("/", 0)
        many_durable.declare(daemon.of("/"), QUEUES)
        stop.publish(daemon, QUEUES, max(1, messages // QUEUES), 100)
        kept = held(daemon)

        def kill_again_and_again() -> None:
            for _ in range(rounds):
                away_s.append(kill_once(daemon))
                time.sleep(BETWEEN_KILLS_S)

        with many_durable.probing(daemon.of(LOADED[1])) as probed:
            quiet = probed.during(lambda: time.sleep(quiet_s))
            killing = probed.during(kill_again_and_again)
        found = held(daemon)
    if found != kept:
        raise Violation(f"{found} of {kept} confirmed messages are left after {rounds} kills")
    return {
        "rounds": rounds,
        "messages": kept,
        "others_quiet": quiet,
        "others_while_killed": killing,
        "away_s": {"median": round(statistics.median(away_s), 3), "longest": round(max(away_s), 3)},
    }


def held(daemon: Workers) -> int:
    return sum(int(row["messages"]) for row in daemon.ask("list_queues", "name", "messages", vhost="/"))


def kill_once(daemon: Workers) -> float:
    """SIGKILL for worker 0; returns the seconds until a client is in its vhost again."""
    pid = daemon.pid_of(0)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while time.monotonic() - began < BACK_TIMEOUT_S:
        with contextlib.suppress(Refused), Client(daemon.of("/"), "perf wait", BACK_TIMEOUT_S) as client:
            client.open_channel(1)
            return time.monotonic() - began
        time.sleep(LOOK_S)
    raise Violation(f"the vhost of a killed worker was away for more than {BACK_TIMEOUT_S:.0f} s")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Starts rabbitpy-broker.")
@watch.dir_option
@click.option("--only", multiple=True, type=click.Choice(["throughput", "handover", "vhosts", "kill"]), help="May be repeated.")
@click.option("--messages", type=click.IntRange(1), default=5_000_000, help="Through each of the two vhosts.")
@click.option("--reps", type=click.IntRange(1), default=3, help="Runs of the throughput, of which medians are taken.")
@click.option("--connections", "count", type=click.IntRange(1), default=5_000, help="Opened to one vhost.")
@click.option("--vhosts", "vhost_count", type=click.IntRange(1), default=1_000, help="With a durable queue each.")
@click.option("--workers", "many", type=click.IntRange(2), default=MOST_WORKERS, help="For hand-over and vhosts.")
@click.option("--rounds", type=click.IntRange(1), default=10, help="Kills.")
@click.option("--held", "held_messages", type=click.IntRange(1), default=100_000, help="Messages with the killed worker.")
@click.option("--quick", is_flag=True, help="Small numbers: whether it works.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(command: str, folder: Path, only: tuple[str, ...], quick: bool, save: bool, **sizes: int) -> None:
    """Measure what several workers bring and cost, beside one worker."""
    if quick:
        small = {"messages": 2_000, "reps": 1, "count": 20, "vhost_count": 10, "many": 2, "rounds": 1, "held_messages": 100}
        sizes = {name: min(size, small[name]) for name, size in sizes.items()}
    disk = watch.use_disk(folder)
    words = shlex.split(command)
    tools: dict[str, Callable[[], dict[str, Any]]] = {
        "throughput": lambda: throughput(words, sizes["messages"], sizes["reps"]),
        "handover": lambda: handover(words, sizes["count"], sizes["many"]),
        "vhosts": lambda: many_vhosts(words, sizes["vhost_count"], sizes["many"]),
        "kill": lambda: kill(words, sizes["rounds"], sizes["held_messages"], 1.0 if quick else 10.0),
    }
    brokers.raise_file_limit()
    result: dict[str, Any] = {"file_system": disk}
    try:
        with brokers.scratch() as scratch:
            result["broker"] = brokers.version_of(command, scratch, os.environ)
        for name in only or tools:
            result[name] = tools[name]()
            click.echo(f"{name}: {json.dumps(result[name])}", err=True)
    except (Violation, Refused, CtlError, brokers.StartFailed, load_run.RunFailed) as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('workers', result)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m perf.workers")
