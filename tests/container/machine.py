#!/usr/bin/env python3
"""What the scripts in this folder share: a bare Debian, the way of this machine to package archives, and steps that are shown.

What this machine needs to reach Debian's archive and PyPI (pip's and apt's settings, certificates) is mounted or copied while
something is installed, and is no part of what is made.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Of a Debian that systemd can boot, and that a wheel is tried in.
BOOTABLE = "ca-certificates,dbus,python3,python3-venv,systemd,systemd-sysv"


def need(*commands: str) -> None:
    """Ends the script where it is not root's, or a command is missing."""
    if os.geteuid() != 0:
        sys.exit("needs root, for debootstrap and chroot")
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        sys.exit(f"missing: apt-get install {' '.join(missing)}")


def make_debian(root: Path, packages: str) -> None:
    """A Debian 12 of its essential packages and these, separated by commas."""
    run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(root), quiet=True)


def package_settings(work: Path) -> dict[str, str]:
    """What lets a step inside reach the package archives the way this machine does: our paths, and theirs inside."""
    pip = work / "pip.conf"
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    # `global.cert='x'` or `:env:.cert='x'` -> cert = x
    lines = [line.partition("=") for line in listed.stdout.splitlines()]
    settings = {name.rpartition(".")[2]: value.strip("'") for name, _, value in lines}
    pip.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    mounts = {str(pip): "/etc/pip.conf", "/etc/ssl/certs": "/etc/ssl/certs", "/etc/apt/apt.conf.d": "/etc/apt/apt.conf.d"}
    local = [settings.get("find-links", "")]
    return mounts | {path: path for path in local if path.startswith("/") and Path(path).exists()}


def install_wheel(root: Path, wheel: Path) -> None:
    """Makes /opt/rabbitpy in a bare Debian: a virtual environment with the wheel, and nothing that had to be compiled."""
    step("the wheel, where there is no compiler")
    compilers = [name for name in ("gcc", "cc", "clang") if (root / "usr/bin" / name).exists()]
    check(compilers == [], "no compiler is there")
    with contextlib.ExitStack() as stack:
        for source, target in package_settings(root.parent).items():
            stack.enter_context(mounted(source, root / target.lstrip("/")))
        stack.enter_context(mounted(str(wheel.parent), root / "mnt"))
        shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
        run("chroot", str(root), "python3", "-m", "venv", "--clear", "/opt/rabbitpy")
        pip = ("chroot", str(root), "/opt/rabbitpy/bin/pip", "install", "--quiet", "--only-binary", ":all:")
        run(*pip, f"/mnt/{wheel.name}", quiet=True)
    version = run("chroot", str(root), "/opt/rabbitpy/bin/rabbitpy-broker", "--version", capture=True).strip()
    check("(compiled, " in version, version)


@contextlib.contextmanager
def mounted(source: str, target: Path) -> Iterator[None]:
    """A file or a folder of ours inside, to be read."""
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.touch()
    run("mount", "--bind", "-o", "ro", source, str(target))
    try:
        yield
    finally:
        run("umount", str(target))


def client_python(work: Path) -> str:
    """A Python with pika."""
    run(sys.executable, "-m", "venv", str(work / "client"))
    python = str(work / "client" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "pika", quiet=True)
    return python


def descendants(pid: int) -> list[int]:
    found = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return found + [deeper for child in found for deeper in descendants(child)]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [sock.getsockname()[1] for sock in sockets]


def run(*command: str, capture: bool = False, quiet: bool = False) -> str:
    """Runs a command to its end; a failure ends the script, with the output if it was not shown."""
    output = subprocess.PIPE if capture or quiet else None
    errors = output if quiet else None
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout or ''}{done.stderr or ''}")
    return done.stdout or ""


def step(name: str) -> None:
    print(f"\n--- {name}", flush=True)


def check(truth: bool, what: str, on_success: bool = True) -> None:
    if not truth:
        sys.exit(f"NOT TRUE: {what}")
    if on_success:
        print(f"ok: {what}", flush=True)


if __name__ == "__main__":  # machine.py DIR: one that can be booted, for whoever tries several things in it
    make_debian(Path(sys.argv[1]), BOOTABLE)
