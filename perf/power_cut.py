"""Is what an engine of the cluster has told still there when all three servers lose power at once?

    python -m perf.power_cut postgres --rounds 4          as root, with losetup, mount and mkfs.ext4
    python -m perf.power_cut kafka --rounds 4

Each server keeps its data on an ext4 file system of its own, on a loop device. While appends are under way, eight at a time,
all three file systems are shut down (EXT4_IOC_SHUTDOWN without a flush of the journal): what was not synced is dropped, as by
a power cut, and nothing is written any more. Then the servers are killed (-9), the file systems mounted again, which plays
their journals, and the servers started. The exit code is 1 if anything is lost that was told, or a server does not start.

What it cannot show: writes that a disk tears or reorders below its own cache, and disks that lie about a flush. The three are
shut down one behind the other, within a millisecond.

It runs in namespaces of its own for mounts and processes, so that nothing is left when it ends, however it does.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import click

from perf.engines.kafka import KafkaServers
from perf.engines.postgres import PostgresServers
from perf.engines.servers import NOBODY, PATIENCE, EngineFailed, Server, Servers
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.engines import engine_for
from rabbitpy_broker.cluster.log import ClusterError

LOG = "log"
UNDER_WAY = 8
DISK_MIB = 1024
EXT4_IOC_SHUTDOWN = 2 << 30 | 4 << 16 | ord("X") << 8 | 125
NO_LOG_FLUSH = 2
ENCLOSED = "POWER_CUT_ENCLOSED"
NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
TOOLS = ("unshare", "losetup", "mount", "umount", "mkfs.ext4", "setpriv")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PROBE = "truncate -s 8M image && mkfs.ext4 -q image && mkdir disk && mount -o loop image disk"


class Disk:
    """A file system of one server, mounted at its folder."""

    def __init__(self, server: Server) -> None:
        self._folder = server.folder
        self._image = server.folder.parent / f"{server.name}.image"

    def make(self) -> None:
        with self._image.open("wb") as image:
            image.truncate(DISK_MIB << 20)
        run("mkfs.ext4", "-q", str(self._image))
        self._folder.mkdir()
        self.mount()
        (self._folder / "lost+found").rmdir()
        os.chown(self._folder, NOBODY, NOBODY)

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self._folder))

    def unmount(self) -> None:
        if os.path.ismount(self._folder):
            run("umount", str(self._folder))

    def open(self) -> int:
        return os.open(self._folder, os.O_RDONLY)


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=PATIENCE, env={**os.environ, "PATH": PATH})


def hindrance() -> str:
    """Why no power can be cut on this machine; "": it can."""
    if os.getuid() != 0:
        return "only root may mount file systems"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["unshare", *NAMESPACES, "sh", "-c", PROBE], cwd=folder, env={**os.environ, "PATH": PATH}, capture_output=True,
            text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    return f"an ext4 file system on a loop device cannot be had: {done.stderr.strip()}" if done.returncode else ""


def cut(disks: list[Disk]) -> None:
    """All file systems are gone, with what was not synced."""
    folders = [disk.open() for disk in disks]
    for folder in folders:
        fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    for folder in folders:
        os.close(folder)


class Told:
    """Appends for as long as it is let, and what the engine has told: the block at each position, the registry's last version."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytes] = {}
        self.version = 0
        self.over = False

    async def append(self, engine: Engine) -> None:
        log = engine.log(LOG)
        under_way: deque[tuple[bytes, asyncio.Future[int]]] = deque()
        number = 0
        while not self.over:
            while len(under_way) < UNDER_WAY:
                block = b"%d " % number + os.urandom(random.choice((10, 1000, 30_000)))
                under_way.append((block, log.append(block, term=1)))
                number += 1
            block, append = under_way.popleft()
            try:
                self.blocks[await append] = block
            except ClusterError:
                return

    async def put(self, engine: Engine) -> None:
        while not self.over:
            try:
                self.version = await engine.registry.put("name", b"value")
            except ClusterError:
                return


async def until_the_cut(url: str, disks: list[Disk], seconds: float) -> Told:
    engine = engine_for(url)
    await engine.start()
    await engine.create_log(LOG)
    os.sync()  # what the servers were made of; from here on each syncs for itself
    told = Told()
    working = [asyncio.ensure_future(told.append(engine)), asyncio.ensure_future(told.put(engine))]
    await asyncio.sleep(seconds)
    deadline = time.monotonic() + PATIENCE
    while not (told.blocks and told.version) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    cut(disks)
    told.over = True
    await asyncio.wait(working, timeout=0.5)  # what is told after the cut counts, too
    for task in working:
        task.cancel()
    await engine.stop()
    return told


async def lost(url: str, told: Told) -> int:
    """How much of what was told is not there."""
    engine = engine_for(url)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await engine.start()
            end = await engine.log(LOG).append(b"fence", term=2)
            there = await engine.registry.get("name")
            break
        except ClusterError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
    reader = engine.log(LOG).reader(0)
    found = {entry.position: entry.block async for entry in reader.entries(end)}
    await reader.close()
    await engine.stop()
    missing = sum(found.get(position) != block for position, block in told.blocks.items())
    return missing + (told.version > 0 and (there is None or there.version < told.version))


def one_round(servers: Servers, options: str) -> int:
    disks = [Disk(server) for server in servers.all]
    try:
        for disk in disks:
            disk.make()
        servers.start()
        url = servers.url + options
        told = asyncio.run(until_the_cut(url, disks, random.uniform(1, 4)))
        for server in servers.all:
            server.kill()
        for disk in disks:
            disk.unmount()
            disk.mount()
        servers.start_again()
        missing = asyncio.run(lost(url, told))
    finally:
        for server in servers.all:
            server.kill()
        for disk in disks:
            disk.unmount()
    print(f"{len(told.blocks)} appends and version {told.version} told, {missing} lost", flush=True)
    return missing


@click.command()
@click.argument("engine", type=click.Choice(["postgres", "kafka"]))
@click.option("--rounds", default=4, show_default=True)
@click.option("--options", default="", help="Behind the engine's URL: '?flush=false' shows that it looks.")
def main(engine: str, rounds: int, options: str) -> None:
    """Cuts the power of the three servers of ENGINE, round after round."""
    if ENCLOSED not in os.environ:
        if why := hindrance():
            raise click.ClickException(f"no power can be cut here: {why}")
        command = ["unshare", *NAMESPACES, sys.executable, *sys.orig_argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, ENCLOSED: "1"}, check=False).returncode)
    missing = 0
    for _ in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="rabbitpy-power-cut-"))
        folder.chmod(0o755)
        servers = KafkaServers(folder) if engine == "kafka" else PostgresServers(folder)
        try:
            missing += one_round(servers, options)
        except EngineFailed as failed:
            raise click.ClickException(f"a server cannot be started: {failed}") from None
        shutil.rmtree(folder)
    if missing:
        raise click.ClickException(f"{missing} of what was told is lost")


if __name__ == "__main__":
    main()
