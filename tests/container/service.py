#!/usr/bin/env python3
"""Runs the systemd unit under a real systemd: `tests/container/service.py WHEEL [--root DIR]`, as root on Debian.

A Debian 12 without a compiler, made by debootstrap (or the root directory that --root names), gets the wheel, the unit and a
user, and is booted by systemd-nspawn. The service is there when it has said so itself; a reload reads certificates and goes on; a
broker that stands still is ended by the watchdog and started again, with its messages; what the unit forbids cannot be done; a
stop ends well.

Nothing outside one temporary folder, or DIR, is written.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import machine
from machine import check, client_python, free_ports, run, step

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENT = Path(__file__).with_name("client.py")
UNIT = ROOT / "packaging" / "systemd" / "rabbitpy-broker.service"
SERVICE = "rabbitpy-broker"
EXPOSURE_MAX = 2.0
BOOT_SECONDS = 60.0
WATCHDOG_SECONDS = 4


def main() -> None:
    """Exits with 0 when everything was seen, and stops at the first thing that was not."""
    parser = argparse.ArgumentParser(description="Tries the systemd unit in a booted Debian.")
    parser.add_argument("wheel", type=Path, help="a compiled wheel for Debian's Python")
    parser.add_argument("--root", type=Path, help="root directory of a Debian with systemd, python3 and python3-venv")
    parser.add_argument("--nspawn", default="systemd-nspawn", help="where systemd-nspawn is, if it is not installed")
    arguments = parser.parse_args()
    machine.need("debootstrap", arguments.nspawn, "nsenter")
    with tempfile.TemporaryDirectory(prefix="rabbitpy-service.") as folder:
        work = Path(folder)
        root = arguments.root
        if root is None:
            root = work / "root"
            step("a bare Debian 12 by debootstrap")
            machine.make_debian(root, machine.BOOTABLE)
        machine.install_wheel(root, arguments.wheel.resolve())
        try_service(work, root, arguments.nspawn)
    print("\nthe service works")


def try_service(work: Path, root: Path, nspawn: str) -> None:
    port, metrics, management = free_ports(3)
    install(root, port, metrics, management)
    url = f"amqp://guest:guest@127.0.0.1:{port}/%2F"
    python = client_python(work)
    with booted(root, nspawn) as system:
        step("the service")
        system.wait_until_active()
        run(python, str(CLIENT), "declare", url)
        check(True, "a client declares durable things once systemd says that it is active")
        settings = system.show("User", "NoNewPrivileges", "NRestarts", "WatchdogUSec")
        check(settings["User"] == "rabbitpy", "it runs as rabbitpy")
        first = system.pid()

        step("what it may not do")
        written = system.run_in_service(first, "touch", "/etc/rabbitpy/x")
        check(written != 0, "it cannot write its settings")
        check(system.run_in_service(first, "touch", "/var/lib/rabbitpy/x") == 0, "it can write its data")
        status = Path(f"/proc/{first}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        check(int(fields["CapEff"], 16) == 0 and int(fields["CapBnd"], 16) == 0, "it has no capabilities")
        check(fields["Seccomp"] == "2", "system calls are filtered")

        step("a reload")
        system.ctl("reload", SERVICE)
        check(system.pid() == first, "the same process goes on")

        step("a broker that stands still")
        os.kill(first, signal.SIGSTOP)
        system.wait_until(lambda: system.show("NRestarts")["NRestarts"] == "1", "the watchdog ends it, and it is started again")
        system.wait_until_active()
        run(python, str(CLIENT), "find", url)
        check(True, "the client finds what it declared")

        step("a stop")
        system.ctl("stop", SERVICE)
        ended = system.show("Result", "ExecMainStatus", "ActiveState")
        check(ended == {"Result": "success", "ExecMainStatus": "0", "ActiveState": "inactive"}, f"it ends well: {ended}")


def install(root: Path, port: int, metrics: int, management: int) -> None:
    """The unit as it is, settings with free ports, and a watchdog that is quick."""
    (root / "etc/systemd/system" / UNIT.name).write_bytes(UNIT.read_bytes())
    quick = root / "etc/systemd/system" / f"{UNIT.name}.d" / "quick.conf"
    quick.parent.mkdir(exist_ok=True)
    quick.write_text(f"[Service]\nWatchdogSec={WATCHDOG_SECONDS}\n")
    settings = root / "etc/rabbitpy/rabbitpy.toml"
    settings.parent.mkdir(exist_ok=True)
    addresses = [f"127.0.0.1:{port}" for port in (port, metrics, management)]
    settings.write_text(
        f'listeners = ["{addresses[0]}"]\nmetrics_listen = "{addresses[1]}"\nmanagement_listen = "{addresses[2]}"\n'
    )
    inside = ("chroot", str(root))
    if subprocess.run([*inside, "id", "rabbitpy"], capture_output=True, check=False).returncode:
        run(*inside, "useradd", "--system", "--home-dir", "/var/lib/rabbitpy", "--shell", "/usr/sbin/nologin", "rabbitpy")
    run(*inside, "systemctl", "enable", SERVICE, quiet=True)
    judged = run(*inside, "systemd-analyze", "security", "--offline=true", f"/etc/systemd/system/{UNIT.name}", capture=True)
    (level,) = re.findall(r"exposure level for .*: ([0-9.]+)", judged)
    check(float(level) <= EXPOSURE_MAX, f"systemd-analyze security: {level}")


class System:
    """A booted Debian; `leader` is its first process as we see it."""

    def __init__(self, leader: int) -> None:
        self.enter = ("nsenter", "--target", str(leader), "--mount", "--uts", "--ipc", "--pid")

    def ctl(self, *arguments: str) -> str:
        return run(*self.enter, "systemctl", *arguments, capture=True)

    def show(self, *names: str) -> dict[str, str]:
        """Properties of the service."""
        shown = run(*self.enter, "systemctl", "show", SERVICE, f"--property={','.join(names)}", capture=True)
        return dict(line.split("=", 1) for line in shown.splitlines())

    def pid(self) -> int:
        """The broker's, as we see it."""
        inside = self.show("MainPID")["MainPID"]
        for file in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                numbers = [line.split()[1:] for line in file.read_text().splitlines() if line.startswith("NSpid:")]
                name = (file.parent / "comm").read_text().strip()
                if numbers and len(numbers[0]) > 1 and numbers[0][-1] == inside and name == "rabbitpy-broker":
                    return int(file.parent.name)
        sys.exit(f"NOT TRUE: the broker {inside} can be seen")

    def run_in_service(self, pid: int, *command: str) -> int:
        """The exit code of a command that sees the files that the broker sees."""
        entered = ["nsenter", "--target", str(pid), "--mount", *command]
        return subprocess.run(entered, capture_output=True, check=False).returncode

    def wait_until_active(self) -> None:
        self.wait_until(lambda: self.show("ActiveState")["ActiveState"] == "active", "active")

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + BOOT_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                shown = [*self.enter, "journalctl", "--no-pager", "--lines=20", f"--unit={SERVICE}"]
                subprocess.run(shown, check=False)
                check(False, f"{what}, in time")
            time.sleep(0.2)
        check(True, what)


@contextlib.contextmanager
def booted(root: Path, nspawn: str) -> Iterator[System]:
    """The Debian, running; powered off at the end."""
    step("systemd")
    command = [nspawn, "--register=no", "--keep-unit", "--quiet", "--directory", str(root), "--boot"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + BOOT_SECONDS
        while True:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            system = System(int(children[0])) if children else None
            asked = ["systemctl", "is-active", "dbus"]
            if system and not subprocess.run([*system.enter, *asked], capture_output=True, check=False).returncode:
                break
            check(process.poll() is None, "systemd runs", on_success=False)
            check(time.monotonic() < deadline, "systemd is up in time", on_success=False)
            time.sleep(0.2)
        check(True, "systemd is up")
        yield system
    finally:
        process.terminate()
        try:
            process.wait(BOOT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
