#!/usr/bin/env python3
"""Installs a wheel where there is no compiler, and uses it: `tests/container/wheel.py WHEEL [--root DIR]`, as root on Debian.

In a Debian 12 made by debootstrap (or the root directory that --root names) it is installed from the wheel and other wheels
alone. The broker runs there, a client of this machine declares durable things, and finds them after a second start.

Nothing outside one temporary folder, or DIR, is written.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import machine
from machine import check, client_python, free_ports, run, step

CLIENT = Path(__file__).with_name("client.py")
PACKAGES = "ca-certificates,python3,python3-venv"
START_SECONDS = 30.0


def main() -> None:
    """Exits with 0 when everything was seen, and stops at the first thing that was not."""
    parser = argparse.ArgumentParser(description="Tries a wheel in a Debian without a compiler.")
    parser.add_argument("wheel", type=Path, help="a compiled wheel for Debian's Python")
    parser.add_argument("--root", type=Path, help="root directory of a Debian with python3 and python3-venv")
    arguments = parser.parse_args()
    machine.need("debootstrap")
    with tempfile.TemporaryDirectory(prefix="rabbitpy-wheel.") as folder:
        work = Path(folder)
        root = arguments.root
        if root is None:
            root = work / "root"
            step("a bare Debian 12 by debootstrap")
            machine.make_debian(root, PACKAGES)
        try_wheel(work, root, arguments.wheel.resolve())
    print("\nthe wheel works")


def try_wheel(work: Path, root: Path, wheel: Path) -> None:
    machine.install_wheel(root, wheel)
    inside = ("chroot", str(root), "/opt/rabbitpy/bin/rabbitpy-broker")
    settings = run(*inside, "init", "-", capture=True)
    check("#heartbeat = 60" in settings, "it can write a configuration")
    python = client_python(work)
    (port,) = free_ports(1)
    url = f"amqp://guest:guest@127.0.0.1:{port}/%2F"
    for what in ("declare", "find"):
        with broker(inside, port):
            run(python, str(CLIENT), what, url)


@contextlib.contextmanager
def broker(inside: tuple[str, ...], port: int) -> Iterator[None]:
    """The broker runs inside the block; SIGTERM ends it well."""
    step("the broker")
    options = ["--data-dir", "/srv/rabbitpy", "--listen", f"127.0.0.1:{port}", "--management-listen", ""]
    process = subprocess.Popen([*inside, *options, "--metrics-listen", "", "--log-level", "warning"])
    try:
        ask = [*inside[:2], "/opt/rabbitpy/bin/rabbitpy-ctl", "--data-dir", "/srv/rabbitpy", "ping"]
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run(ask, capture_output=True, check=False).returncode:
            check(process.poll() is None, "it runs", on_success=False)
            check(time.monotonic() < deadline, "it starts in time", on_success=False)
        yield
        process.send_signal(signal.SIGTERM)
        check(process.wait(START_SECONDS) == 0, "SIGTERM ends it with exit code 0")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
