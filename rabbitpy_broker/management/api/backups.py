"""Backups of vhosts, in the folder that the configuration names: /backups, and what begins one, or a restore.

Both take as long as the vhost is large: the answer comes at once, and the list says how far they are, and what came of them. A
backup is named by its file's name alone, so that who asks over the network writes nowhere but in that folder.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

import msgspec

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.management import clustering
from rabbitpy_broker.management.api.errors import ApiError, bad_request
from rabbitpy_broker.management.api.request import Answer, Request, Row, need, text, vhost_or_404
from rabbitpy_broker.management.api.state import Api, Jobs
from rabbitpy_broker.management.replicas import checked

ACCEPTED: Final = 202
KEPT: Final = 100  # backups and restores that the list remembers
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
PART: Final = ".part"


class Job(msgspec.Struct):
    """A backup or a restore since the node has started. `state` is "running", "done" or "failed", with the reason."""

    kind: str
    vhost: str
    name: str
    began: int
    state: str = "running"
    ended: int | None = None
    position: int | None = None
    reason: str = ""


class BackupJobs(Jobs):
    """Those of one node."""

    def __init__(self, log: Any) -> None:
        self.all: list[Job] = []
        self.log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, job: Job, work: Awaitable[int | None]) -> None:
        """Work that may raise BrokerError and OSError; it returns where in the log of the vhost the backup is."""
        self.all = [*self.all[-KEPT + 1 :], job]
        task = asyncio.ensure_future(self._run(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job, work: Awaitable[int | None]) -> None:
        try:
            job.position = await work
            job.state = "done"
        except (BrokerError, OSError) as error:
            job.state, job.reason = "failed", str(error)
            self.log.warning("backup or restore failed", kind=job.kind, vhost=job.vhost, name=job.name, error=job.reason)
        finally:
            job.ended = time.time_ns() // 1_000_000

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _folder(api: Api) -> Path:
    """Raises ApiError."""
    if not api.config.backup_dir:
        raise bad_request("no folder for backups is set (see the setting management.backup_dir)")
    return Path(api.config.backup_dir).expanduser()


def _jobs(api: Api) -> BackupJobs:
    assert isinstance(api.jobs, BackupJobs), "kept by: start_management"
    return api.jobs


def _file(api: Api, name: str) -> Path:
    """Raises ApiError."""
    folder = _folder(api)
    if NAME.fullmatch(name) is None or name.endswith(PART):
        raise bad_request("a backup is named by letters and digits, and behind the first also by dots, hyphens and underscores")
    if any(job.name == name and job.state == "running" for job in _jobs(api).all):
        raise ApiError(409, "conflict", f"backup '{name}' is in use")
    return folder / name


def back_up(api: Api, request: Request) -> Answer:
    """Begins a backup, on this node. One of the name is replaced when the new one is whole."""
    vhost = request.names["vhost"]
    if vhost not in api.broker.node.owned_elsewhere:
        vhost_or_404(api.vhosts, vhost)
    name = text(request.json(), "name")
    path = _file(api, name)

    async def work() -> int:
        return (await api.broker.backup_vhost(vhost, str(path))).position

    return _begun(api, Job("backup", vhost, name, time.time_ns() // 1_000_000), work())


async def restore(api: Api, request: Request) -> Answer:
    """Begins to make a vhost of a backup, which is there when the list says that it is done."""
    vhost, body = request.names["vhost"], request.json()
    if api.broker.sockets is not None:
        raise bad_request("a daemon with several workers restores none")
    name = text(body, "name")
    path = _file(api, name)
    if vhost in api.vhosts or vhost in api.broker.node.owned_elsewhere:
        raise bad_request("there is one")
    if not await asyncio.to_thread(path.is_file):
        raise bad_request(f"there is no backup '{name}'")
    replicas = _replicas(body)

    async def work() -> None:
        await clustering.restore_vhost(api.admin, vhost, str(path), replicas=replicas)

    return _begun(api, Job("restore", vhost, name, time.time_ns() // 1_000_000), work())


def _replicas(body: Row) -> int | None:
    try:
        return checked(need(body, "replicas")[0]) if "replicas" in body else None
    except BrokerError as error:
        raise bad_request(str(error)) from None


def _begun(api: Api, job: Job, work: Awaitable[int | None]) -> Answer:
    _jobs(api).begin(job, work)
    return Answer(ACCEPTED, msgspec.to_builtins(job))


async def show(api: Api, request: Request) -> Row:
    """What is in the folder, with sizes in bytes, and backups and restores since the start, the newest first."""
    jobs = [msgspec.to_builtins(job) for job in reversed(_jobs(api).all)]
    if not api.config.backup_dir:
        return {"folder": "", "files": [], "jobs": jobs}
    folder = _folder(api)
    files = await asyncio.to_thread(_files, folder)
    parts = {name: size for name, size, _ in files}
    for job in jobs:
        is_written = job["state"] == "running" and job["kind"] == "backup"
        job["bytes"] = parts.get(f"{job['name']}{PART}", 0) if is_written else None
    rows = [{"name": name, "bytes": size, "at": at} for name, size, at in files if not name.endswith(PART)]
    return {"folder": str(folder), "files": rows, "jobs": jobs}


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of change, in ms; none where there is no such folder."""
    found: list[tuple[str, int, int]] = []
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        try:
            state = file.stat()
        except FileNotFoundError:  # a backup that has become whole meanwhile
            continue
        if file.is_file():
            found.append((file.name, state.st_size, state.st_mtime_ns // 1_000_000))
    return found
