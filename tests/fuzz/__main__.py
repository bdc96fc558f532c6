"""Fuzzes a broker: in this process without sockets, or one that runs elsewhere, by its socket.

    cd tests
    python -m fuzz --seconds 3600 --seed 1                    in process: every check of byte_fuzzer.py
    python -m fuzz --seed 1 --only 4711                       that one session again, cut down to what is needed
    python -m fuzz --seconds 60 --address 127.0.0.1:5672      a running broker, as guest: it must stay alive and answer

Sessions are numbered: session n of a seed is always the same. A session that hangs ends the run after --hang-seconds
with a traceback; its number is in the file that is printed at the start (a compiled broker that loops cannot be
interrupted from Python). Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from pamqp import commands

import rabbitpy_broker.protocol.connection as core
from fuzz.byte_fuzzer import Failure, check_memory, cut_down, make_session, run_session
from fuzz.sessions import Action
from sans_io import PROTOCOL_HEADER, method

PROGRESS_SECONDS = 5.0
MEMORY_EVERY = 2_000  # sessions


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz the broker.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the session to begin with")
    parser.add_argument("--only", type=int, help="replay this session, and cut it down when it fails")
    parser.add_argument("--address", help="host:port of a running broker")
    parser.add_argument("--hang-seconds", type=float, default=60.0)
    return parser.parse_args()


def show(actions: list[Action], connected: int) -> None:
    print(f"  {connected} peers connected; then")
    for what, peer, data in actions:
        print(f"    {what} {peer} {data!r}")


def replay(options: argparse.Namespace) -> int:
    seed, iteration = options.seed, options.only
    faulthandler.dump_traceback_later(options.hang_seconds, exit=True)
    actions, connected = make_session(seed, iteration)
    try:
        run_session(actions, connected)
    except Failure as failure:
        print(f"session {iteration} of seed {seed}: {failure.kind}\n{failure}")
        show(cut_down(actions, connected, failure.kind), connected)
        return 1
    print(f"session {iteration} of seed {seed} is fine")
    return 0


def run_in_process(options: argparse.Namespace) -> int:
    """Sessions until the time is over; each kind of failure is shown once, cut down."""
    found: Counter[str] = Counter()
    state = tempfile.NamedTemporaryFile(prefix="fuzz-session-", delete=False)  # noqa: SIM115 - read after this process
    print(f"broker: {core.__file__}\nsession in progress: {state.name}")
    began = said = time.monotonic()
    iteration: int = options.first
    while time.monotonic() - began < options.seconds:
        os.pwrite(state.fileno(), b"%20d" % iteration, 0)
        faulthandler.dump_traceback_later(options.hang_seconds, exit=True)
        actions, connected = make_session(options.seed, iteration)
        try:
            run_session(actions, connected)
            if iteration % MEMORY_EVERY == MEMORY_EVERY - 1:
                faulthandler.cancel_dump_traceback_later()
                check_memory(options.seed + iteration)
        except Failure as failure:
            found[failure.kind] += 1
            if found[failure.kind] == 1:
                faulthandler.cancel_dump_traceback_later()
                print(f"session {iteration} of seed {options.seed}: {failure.kind}\n{failure}")
                if failure.kind != "leak":
                    show(cut_down(actions, connected, failure.kind), connected)
        iteration += 1
        if time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            done = iteration - options.first
            print(
                f"{said - began:7.0f} s  {done} sessions, {done / (said - began):.0f}/s, "
                f"{sum(found.values())} failed in {len(found)} ways, {megabytes:.0f} MB",
                flush=True,
            )
    faulthandler.cancel_dump_traceback_later()
    Path(state.name).unlink()
    print(f"{iteration - options.first} sessions; failures: {dict(found) or 'none'}")
    return 1 if found else 0


# -- by socket ----------------------------------------------------------------------------------------------------


def run_by_socket(options: argparse.Namespace) -> int:
    """Sessions against a running broker, which must answer a client that does nothing wrong after each of them."""
    host, _, port = options.address.rpartition(":")
    address = (host, int(port))
    began = said = time.monotonic()
    iteration: int = options.first
    while time.monotonic() - began < options.seconds:
        actions, connected = make_session(options.seed, iteration)
        send_session(address, actions, connected)
        try:
            with socket.create_connection(address, timeout=options.hang_seconds) as checked:
                shake_hands(checked)
        except (OSError, AssertionError) as error:
            print(
                f"session {iteration} of seed {options.seed}: the broker does not answer any more: {error!r}"
            )
            return 1
        iteration += 1
        if time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            print(
                f"{said - began:7.0f} s  {iteration - options.first} sessions, the broker is alive",
                flush=True,
            )
    print(f"{iteration - options.first} sessions; the broker is alive")
    return 0


def shake_hands(sock: socket.socket) -> None:
    """The handshake of a client that is in order; raises AssertionError when the broker does not open."""
    login = commands.Connection.StartOk(client_properties={}, response="\x00guest\x00guest")
    sock.sendall(PROTOCOL_HEADER)
    for said in (
        method(0, login),
        method(0, commands.Connection.TuneOk(2047, 131_072, 0)) + method(0, commands.Connection.Open("/")),
    ):
        assert sock.recv(65_536), "closed in the handshake"
        sock.sendall(said)
    assert sock.recv(65_536), "closed in the handshake"


def send_session(address: tuple[str, int], actions: list[Action], connected: int) -> None:
    """Sends what the session's clients send; what comes back is read and forgotten."""
    sockets = [socket.create_connection(address, timeout=10) for _ in range(max(connected, 1))]
    try:
        for one in sockets[:connected]:
            shake_hands(one)
        for one in sockets:
            one.setblocking(False)
        for what, peer, data in actions:
            one = sockets[peer]
            try:
                if what in ("alarm", "calm", "time"):  # the broker's own affair
                    continue
                one.send(data)
                if what == "lose":
                    one.close()
                elif what != "full":
                    one.recv(1_048_576)
            except BlockingIOError:
                continue
            except OSError:
                one.close()
    finally:
        for one in sockets:
            one.close()


def main() -> int:
    options = arguments()
    if options.only is not None:
        return replay(options)
    return run_by_socket(options) if options.address else run_in_process(options)


if __name__ == "__main__":
    sys.exit(main())
