#!/usr/bin/env python3
"""Builds the Dockerfile and runs what it makes: `tests/container/run.py [--base DIR] [--wheels DIR]`, as root on Debian.

Every step of the Dockerfile is executed, by buildah with chroot isolation, which needs neither a container engine nor an image
registry: the base is a Debian 12 made by debootstrap (or the root directory that --base names). Then the image's own entry
point, user, environment and health check are run on a volume: the broker becomes healthy, a client declares durable things, the
process is stopped and started again on the volume, and the client finds them.

What this machine needs to reach Debian's archive and PyPI (pip's and apt's settings, certificates) is mounted while building
and is no part of the image. Nothing outside one temporary folder, and --wheels, is written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
from machine import check, client_python, descendants, free_ports, run, step

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENT = Path(__file__).with_name("client.py")
BASE_PACKAGES = "ca-certificates,python3,python3-venv"
DEV_PACKAGES = "gcc libc6-dev python3-dev"  # Debian's Python has its headers in a package of their own
BASE, IMAGE = "localhost/rabbitpy-base", "localhost/rabbitpy-broker"
START_SECONDS = 30.0


def main() -> None:
    """Exits with 0 when everything was seen, and stops at the first thing that was not."""
    parser = argparse.ArgumentParser(description="Builds the Dockerfile with buildah and tries what it makes.")
    parser.add_argument("--base", type=Path, help="root directory of a Debian with python3 and python3-venv")
    parser.add_argument("--wheels", type=Path, help="where the wheel goes that the Dockerfile compiles, for other tests")
    arguments = parser.parse_args()
    machine.need("debootstrap", "buildah")
    with tempfile.TemporaryDirectory(prefix="rabbitpy-container.") as folder:
        os.environ["TMPDIR"] = folder  # buildah leaves things behind
        try_image(Path(folder), arguments.base, arguments.wheels)


def try_image(work: Path, base: Path | None, wheels: Path | None) -> None:
    """Build, then start, declare, stop, start, find, stop."""
    work.chmod(0o755)  # the volume inside belongs to the image's user
    buildah = Buildah(work, wheels)
    if base is None:
        base = work / "base"
        step("base: Debian 12 by debootstrap")
        machine.make_debian(base, BASE_PACKAGES)
    step("the Dockerfile's steps")
    buildah.import_base(base)
    buildah.build()

    step("the image's settings")
    image = buildah.inspect()
    config = image["Docker"]["config"]
    user = config["User"]
    check(user not in ("", "root", "0"), f"runs as {user}")
    check(set(config["ExposedPorts"]) == {"5672/tcp", "5671/tcp", "15672/tcp", "15692/tcp"}, "exposes its ports")
    (volume_path,) = config["Volumes"]
    container = buildah.run_buildah("from", "--pull-never", IMAGE).strip()
    uid = int(buildah.run_in(container, "id", "-u"))
    check(uid != 0, f"user id {uid}")
    version = buildah.run_in(container, "rabbitpy-broker", "--version").strip()
    check("(compiled, " in version, version)

    volume = work / "volume"
    volume.mkdir()
    os.chown(volume, uid, uid)  # a container engine gives a new volume the owner of the image's folder
    service = Service(buildah, container, config, volume, volume_path, uid)
    python = client_python(work)
    url = f"amqp://guest:guest@127.0.0.1:{service.port}/%2F"

    with service.running("first start"):
        run(python, str(CLIENT), "declare", url)
        queues = service.ctl("-q", "list_queues", "--no-table-headers", "name", "durable")
        check(queues.split() == ["survivor", "true"], f"rabbitpy-ctl list_queues: {queues.strip()}")
    with service.running("second start, on the same volume"):
        run(python, str(CLIENT), "find", url)
    print("\nthe container works")


class Buildah:
    """buildah with its storage inside the temporary folder."""

    def __init__(self, work: Path, wheels: Path | None) -> None:
        self.work = work
        storage = ["--root", str(work / "storage"), "--runroot", str(work / "run"), "--storage-driver", "vfs"]
        self.command = ["buildah", *storage]
        mounts = machine.package_settings(work)
        self.mounts = [option for source, target in mounts.items() for option in ("--volume", f"{source}:{target}:ro")]
        if wheels is not None:
            wheels.mkdir(parents=True, exist_ok=True)
            self.mounts += ["--volume", f"{wheels.resolve()}:/wheels"]

    def run_buildah(self, *arguments: str) -> str:
        """The standard output of one buildah command."""
        return run(*self.command, *arguments, capture=True)

    def import_base(self, base: Path) -> None:
        """Makes an image of a root directory."""
        container = self.run_buildah("from", "scratch").strip()
        self.run_buildah("add", "--quiet", container, str(base), "/")
        self.run_buildah("commit", "--quiet", "--rm", container, BASE)

    def build(self) -> None:
        """Executes the Dockerfile; its output is shown."""
        run(
            *self.command, "build", "--isolation=chroot", "--format=docker", "--pull-never", "--tag", IMAGE, *self.mounts,
            "--build-arg", f"BASE={BASE}", "--build-arg", f"DEV_PACKAGES={DEV_PACKAGES}",
            "--ignorefile", str(ROOT / ".dockerignore"), "--file", str(ROOT / "Dockerfile"), str(ROOT),
        )  # fmt: skip

    def inspect(self) -> dict[str, Any]:
        """What the image says about itself."""
        image: dict[str, Any] = json.loads(self.run_buildah("inspect", "--type=image", IMAGE))
        return image

    def run_in(self, container: str, *command: str) -> str:
        """The standard output of a command in a container, as the image's user."""
        return self.run_buildah("run", "--isolation=chroot", container, "--", *command)


class Service:
    """The image's entry point as a process, with a volume; ports are moved to free ones, for the network is the host's."""

    def __init__(
        self, buildah: Buildah, container: str, config: dict[str, Any], volume: Path, volume_path: str, uid: int
    ) -> None:
        self.port, metrics_port = free_ports(2)
        options = ["--volume", f"{volume}:{volume_path}"]
        options += ["--env", f"RABBITPY_LISTENERS=127.0.0.1:{self.port}"]
        options += ["--env", f"RABBITPY_METRICS_LISTEN=127.0.0.1:{metrics_port}"]
        self.run = [*buildah.command, "run", "--isolation=chroot", *options, container, "--"]
        self.entry_point: list[str] = config["Entrypoint"]
        kind, *self.health_check = config["Healthcheck"]["Test"]
        check(kind == "CMD", "has a health check")
        self.uid = uid

    @contextlib.contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Healthy inside the block; stopped as a container engine stops it after the block, with exit code 0."""
        step(what)
        process = subprocess.Popen([*self.run, *self.entry_point])
        try:
            self.wait_until_healthy(process)
            yield
            os.kill(self.broker_pid(process), signal.SIGTERM)
            exit_code = process.wait(START_SECONDS)
            check(exit_code == 0, f"SIGTERM ends it with exit code {exit_code}")
        finally:
            if process.poll() is None:
                for pid in [*descendants(process.pid), process.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait(START_SECONDS)

    def wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            asked = subprocess.run([*self.run, *self.health_check], capture_output=True, text=True, check=False)
            if asked.returncode == 0:
                break
            check(process.poll() is None, "still running", on_success=False)
            check(time.monotonic() < deadline, f"healthy in time: {asked.stderr}", on_success=False)
        check(True, f"health check: {asked.stdout.strip()}")

    def ctl(self, *arguments: str) -> str:
        """What rabbitpy-ctl prints inside, without being told where the broker is."""
        asked = [*self.run, "rabbitpy-ctl", *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    def broker_pid(self, process: subprocess.Popen[bytes]) -> int:
        """The broker itself, which a container engine would signal; buildah's own processes stand above it."""
        (pid,) = [pid for pid in descendants(process.pid) if not descendants(pid)]
        check(Path(f"/proc/{pid}").stat().st_uid == self.uid, f"the broker runs as user {self.uid}")
        return pid


if __name__ == "__main__":
    main()
