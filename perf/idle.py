"""Does any client lose its connection, or the broker a client, while there is little to say or much? Heartbeats, for long.

    python -m perf.idle --heartbeat 10 --intervals 30
    python -m perf.idle --heartbeat 60 --intervals 30 --role idle --load
    python -m perf.idle --heartbeat 10 --speed 10

Connections of many clients stay open for so many intervals, each behind a relay that sees what goes by
(tests/clients/idle_clients.py says what the roles are). Needs the clients of the extra `test`; those in Java, Go and JavaScript
are fetched and built once into RABBITPY_TEST_CACHE, and left out where their tools are missing.

Exit code 1 when a connection was lost. `silence` is the longest time for which the broker, or the client, said nothing.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from perf import brokers, machine
from perf.brokers import Broker, StartFailed

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "clients")]

from idle_clients import CLIENTS, ROLES, Held, Place, Row, Witness, flooded, held, missing  # noqa: E402

ALARM = "vm_memory_high_watermark = 1048576\n"  # a broker is larger than that: its alarm is on from the beginning
LIBFAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"  # of Debian's package libfaketime


def cranked(speed: float) -> dict[str, str]:
    """The environment in which a process sees its clock run so much faster."""
    if speed == 1:
        return {}
    libraries = [LIBFAKETIME, *Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
    library = next((str(path) for path in libraries if Path(path).exists()), None)
    if library is None:
        raise StartFailed("--speed needs libfaketime (Debian's package faketime)")
    return {"LD_PRELOAD": library, "FAKETIME": f"+0 x{speed:g}"}


@contextlib.contextmanager
def started(command: str, config: str, url: str | None, env: Mapping[str, str]) -> Iterator[Broker]:
    if url is not None:
        broker = Broker("broker", url)
        brokers.ask_build(broker)
        yield broker
        return
    with brokers.rabbitpy(command, config=config, env=env) as broker:
        yield broker


def available(names: tuple[str, ...], speed: float) -> list[str]:
    """The clients that can be asked here; says on standard error which cannot."""
    found = []
    for name in names or CLIENTS:
        if missing(name):
            click.echo(f"{name} is left out: needs {' and '.join(missing(name))}", err=True)
        elif speed != 1 and not CLIENTS[name].follows_cranked_clock:
            click.echo(f"{name} is left out: it does not follow a cranked clock", err=True)
        else:
            found.append(name)
    return found


def show(rows: list[Row]) -> str:
    heads = ("connection", "", "heartbeats of broker", "of client", "silence of broker", "of client", "")
    lines = [heads]
    for row in sorted(rows, key=lambda row: (row.place.role, row.place.heartbeat)):
        outcome = "" if row.outcome == "ok" else row.outcome
        trouble = "; ".join(filter(None, (row.hung_up and f"hung up by {row.hung_up}", outcome)))
        lines.append((str(row.place), "kept" if row.kept else "LOST", str(row.beats["broker"]), str(row.beats["client"]),
                      f"{row.silence_s['broker']:.1f} s", f"{row.silence_s['client']:.1f} s", trouble))
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def wait(seconds: float, speed: float) -> None:
    until = time.monotonic() + seconds / speed
    while (left := until - time.monotonic()) > 0:
        print(f"\r{left:6.0f} s left ", end="", file=sys.stderr) if sys.stderr.isatty() else None
        time.sleep(min(left, 1))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--heartbeat", "heartbeats", type=click.IntRange(1), multiple=True, default=(10,), help="Seconds; may be repeated.")
@click.option("--intervals", default=30, type=click.IntRange(1), help="So many of the longest heartbeat.")
@click.option("--role", "roles", type=click.Choice(ROLES), multiple=True, default=("idle", "blocked"), help="May be repeated.")
@click.option("--client", "clients", type=click.Choice(list(CLIENTS)), multiple=True, help="Only these.")
@click.option("--load", is_flag=True, help="Publishers flood the broker meanwhile; always so with publishers and consumers.")
@click.option("--speed", default=1.0, type=click.FloatRange(1), help="Crank the broker's and the clients' clock (libfaketime).")
@click.option("--url", help="A broker that runs already. The role blocked: one whose alarm is on, and no other role.")
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(
    heartbeats: tuple[int, ...],
    intervals: int,
    roles: tuple[str, ...],
    clients: tuple[str, ...],
    load: bool,
    speed: float,
    url: str | None,
    command: str,
    as_json: bool,
) -> None:
    """Does any connection get lost while it is idle, busy or blocked?"""
    seconds = intervals * max(heartbeats)
    flooding = load or bool(set(roles) & {"publisher", "consumer"})
    if flooding and speed > 1:
        raise click.UsageError("--speed cranks the clock and not the processor: under load it proves nothing")
    try:
        env = cranked(speed)
        names = available(clients, speed)
        rows: list[Row] = []
        with contextlib.ExitStack() as stack:
            holding: list[Held] = []
            build = ""
            for config, with_roles in (("", set(roles) - {"blocked"}), (ALARM, set(roles) & {"blocked"})):
                places = [Place(name, heartbeat, role) for role in with_roles for name in names for heartbeat in heartbeats]
                if not places:
                    continue
                broker = stack.enter_context(started(command, config, url, env))
                build = broker.build
                holding.append(stack.enter_context(held(places, broker.url, env, speed)))
                if not config and flooding:
                    stack.enter_context(flooded(broker.url, holding[-1].queues))
            with Witness() as witness:
                wait(seconds, speed)
            for one in holding:
                rows += one.rows()
    except (StartFailed, AssertionError, subprocess.SubprocessError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        table = [{"place": str(row.place), "kept": row.kept, "outcome": row.outcome, "hung_up": row.hung_up,
                  "heartbeats": row.beats, "silence_s": row.silence_s} for row in rows]
        about = {"broker": build, "seconds": seconds, "speed": speed, "load": load,
                 "machine_kept_waiting_s": round(witness.waited_s, 2)}
        print(json.dumps({**machine.describe(), **about, "connections": table}, indent=1))
    else:
        waited = f"the machine kept everybody waiting for {witness.waited_s:.2f} s at most"
        print(f"{build}, {seconds} s{' under load' if load else ''}; {waited}")
        print(show(rows))
    sys.exit(0 if all(row.kept for row in rows) else 1)


if __name__ == "__main__":
    main()
