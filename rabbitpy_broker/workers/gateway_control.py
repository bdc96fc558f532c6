"""The control socket of the whole daemon: each command of `rabbitpy-ctl` for the worker that it concerns, or for all.

    BY_VHOST     the worker of the vhost in the options
    FIRST        one worker, for what is the whole daemon's; the others are told of what was changed
    EVERYWHERE   all workers, one after the other
    ROWS         all workers, whose rows make one list
    SPECIAL      what is put together here

What must stay true: each command of the control socket is in one of these tables.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.management import diagnostics
from rabbitpy_broker.management.admin import DATA_ERROR, SOFTWARE, UNAVAILABLE, Admin, AdminError, Pid
from rabbitpy_broker.management.api.asking import NoAnswer
from rabbitpy_broker.management.api.merging import added_up
from rabbitpy_broker.management.control import ControlSocket, Request, failure, parse
from rabbitpy_broker.management.managed import Listener
from rabbitpy_broker.workers.fleet import Fleet, Member
from rabbitpy_broker.workers.gateway_definitions import Split, united
from rabbitpy_broker.workers.gateway_front import Front

BY_VHOST: Final = frozenset((
    "add_super_stream", "clear_operator_policy", "clear_permissions", "clear_policy", "clear_topic_permissions",
    "clear_vhost_limits", "delete_offset", "delete_queue", "delete_super_stream", "list_bindings", "list_consumers",
    "list_exchanges", "list_operator_policies", "list_parameters", "list_permissions", "list_policies", "list_queues",
    "list_stream_consumers", "list_stream_offsets", "list_topic_permissions", "purge_queue", "query_offset", "quorum_status",
    "set_operator_policy", "set_permissions", "set_policy", "set_topic_permissions", "set_vhost_limits", "store_offset",
    "trace_off", "trace_on",
))  # fmt: skip
FIRST: Final = frozenset((
    "add_user", "authenticate_user", "check_running", "clear_global_parameter", "clear_password", "clear_user_limits",
    "delete_user", "is_booting", "is_running", "list_global_parameters", "list_user_limits", "list_users", "ping",
    "server_version", "set_global_parameter", "set_user_limits", "set_user_tags",
))  # fmt: skip
EVERYWHERE: Final = frozenset((
    "close_all_user_connections", "close_connection", "set_disk_free_limit", "set_vm_memory_high_watermark",
))  # fmt: skip
ROWS: Final = frozenset((
    "list_channels", "list_connections", "list_user_permissions", "list_user_topic_permissions", "list_vhosts",
))  # fmt: skip
WORST: Final = frozenset(("alarms", "check_alarms", "check_local_alarms", "check_virtual_hosts"))
LISTENERS: Final[dict[str, Callable[..., Any]]] = {
    "check_port_connectivity": diagnostics.check_port_connectivity,
    "check_port_listener": diagnostics.check_port_listener,
    "check_protocol_listener": diagnostics.check_protocol_listener,
    "listeners": diagnostics.listeners,
}
TOLD: Final = frozenset((  # those that change what all workers keep
    "add_user", "clear_global_parameter", "clear_password", "clear_permissions", "clear_topic_permissions", "clear_user_limits",
    "delete_user", "set_global_parameter", "set_permissions", "set_topic_permissions", "set_user_limits", "set_user_tags",
))  # fmt: skip
COUNT: Final = re.compile(r"(\d+) ([a-z][a-z ]*)")


class GatewayControl(ControlSocket):
    """The socket of the data directory; `front` knows the workers, `reload_tls` reads the gateway's own certificates again."""

    def __init__(self, front: Front, reload_tls: Callable[[], bool], log: Any) -> None:
        super().__init__(log)
        self._front = front
        self._reload_tls = reload_tls
        self._special: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "add_vhost": self._add_vhost,
            "backup_vhost": self._backup_vhost,
            "change_password": self._change_password,
            "close_all_connections": self._close_all_connections,
            "delete_vhost": self._delete_vhost,
            "export_definitions": self._export,
            "import_definitions": self._import,
            "list_vhost_limits": self._list_vhost_limits,
            "list_workers": self._list_workers,
            "memory_breakdown": self._memory_breakdown,
            "move_vhost": self._move_vhost,
            "reload_tls": self._reload,
            "status": self._status,
        }

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            result = await self.call(parse(line))
            writer.write(b'{"ok":true,"result":' + msgspec.json.encode(result) + b"}\n")
        except AdminError as error:
            writer.write(failure(error))
        except (BrokerError, OSError) as error:
            writer.write(failure(AdminError(str(error), SOFTWARE)))
        except Exception:
            self.log.exception("internal error")
            writer.write(failure(AdminError("internal error; the broker's log has more", SOFTWARE)))

    async def call(self, request: Request) -> Any:
        """The result of a command. Raises AdminError."""
        name = request.command
        special = self._special.get(name)
        if special is not None:
            return await special(request)
        if name in BY_VHOST:
            return await self._told(self._of_vhost(self._vhost(request)), request)
        if name in ROWS:
            return await self._rows(request)
        if name in EVERYWHERE:
            return (await self._all(request))[0]
        if name in WORST:
            reports = await self._all(request)
            return max(reports, key=lambda report: (report["code"], len(report["lines"])))
        if name in LISTENERS:
            return LISTENERS[name](await self._listening(), *request.arguments)
        return await self._told(self._first(), request)

    # -- which worker ------------------------------------------------------------------------------------------------

    @property
    def _fleet(self) -> Fleet:
        return self._front.fleet

    def _ready(self) -> list[Member]:
        found = [member for member in self._fleet.members() if member.ready]
        if not found:
            raise AdminError("no worker is running", UNAVAILABLE)
        return found

    def _first(self) -> Member:
        return self._ready()[0]

    def _member(self, number: int) -> Member:
        for member in self._ready():
            if member.number == number:
                return member
        raise AdminError(f"worker {number} is not running", UNAVAILABLE)

    def _of_vhost(self, vhost: str) -> Member:
        number = self._fleet.placed().get(vhost)
        return self._first() if number is None else self._member(number)

    def _vhost(self, request: Request) -> str:
        vhost = request.options.get("vhost", "/")
        return vhost if isinstance(vhost, str) else "/"

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _ask(self, member: Member, name: str, *arguments: Any, **options: Any) -> Any:
        try:
            return await self._front.client(member).command(name, list(arguments), options)
        except NoAnswer as error:
            raise AdminError(f"worker {member.number} does not answer: {error}", UNAVAILABLE) from None

    async def _pass(self, member: Member, request: Request) -> Any:
        return await self._ask(member, request.command, *request.arguments, **request.options)

    async def _told(self, member: Member, request: Request) -> Any:
        """Passed on, and what it has changed for the whole daemon told to all."""
        result = await self._pass(member, request)
        if request.command in TOLD:
            await self._fleet.tell(member.number)
        return result

    async def _all(self, request: Request) -> list[Any]:
        return [await self._pass(member, request) for member in self._ready()]

    async def _rows(self, request: Request) -> list[Any]:
        """Those of all; some are known to each worker."""
        rows = [row for part in await self._all(request) for row in part]
        return list({msgspec.json.encode(row): row for row in rows}.values()) if request.command.startswith("list_user") else rows

    # -- what is put together here -----------------------------------------------------------------------------------

    async def _add_vhost(self, request: Request) -> Any:
        name = request.arguments[0] if request.arguments and isinstance(request.arguments[0], str) else ""
        if not name:
            return await self._pass(self._first(), request)
        is_new = name not in self._fleet.placed()
        number = self._fleet.place(name)
        try:
            result = await self._pass(self._member(number), request)
        except AdminError:
            if is_new and not await self._has_vhost(number, name):
                self._fleet.forget(name)
            raise
        await self._fleet.tell(number)
        return result

    async def _has_vhost(self, number: int, name: str) -> bool:
        """Also when a worker cannot tell that ran a moment ago."""
        member = next(member for member in self._fleet.members() if member.number == number)
        try:
            return name in [row["name"] for row in await self._ask(member, "list_vhosts", "name")]
        except AdminError:
            return member.ready

    async def _delete_vhost(self, request: Request) -> Any:
        name = str(request.arguments[0]) if request.arguments else ""
        member = self._of_vhost(name)
        try:
            result = await self._pass(member, request)
        except AdminError:
            if not await self._has_vhost(member.number, name):
                self._fleet.forget(name)
            raise
        self._fleet.forget(name)
        await self._fleet.tell(member.number)
        return result

    async def _backup_vhost(self, request: Request) -> Any:
        return await self._pass(self._of_vhost(str(request.arguments[0]) if request.arguments else ""), request)

    async def _change_password(self, request: Request) -> Any:
        """Connections of the user are at all workers."""
        first, *others = self._ready()
        result = await self._pass(first, request)
        await self._fleet.tell(first.number)
        if request.options.get("close_connections"):
            name = request.arguments[0]
            for member in others:
                await self._ask(member, "close_all_user_connections", name, f"password of user '{name}' has changed")
        return result

    async def _close_all_connections(self, request: Request) -> Any:
        """At most so many, of all workers together."""
        if not request.options.get("everywhere"):
            return await self._pass(self._of_vhost(self._vhost(request)), request)
        limit, closed = int(request.options.get("limit", 0)), 0
        for member in self._ready():
            if limit and closed >= limit:
                break
            options = {**request.options, "limit": limit - closed if limit else 0}
            text = await self._ask(member, request.command, *request.arguments, **options)
            closed += int(text.split()[1])
        return f"Closed {closed} connections"

    async def _list_vhost_limits(self, request: Request) -> Any:
        if not request.options.get("everywhere"):
            return await self._pass(self._of_vhost(self._vhost(request)), request)
        return await self._rows(request)

    async def _reload(self, request: Request) -> Any:
        texts = await self._all(request)
        return "Certificates were read again" if self._reload_tls() else max(texts)

    async def _memory_breakdown(self, request: Request) -> Any:
        reports = await self._all(request)
        sizes = added_up([{name: each["bytes"] for name, each in report["json"].items()} for report in reports])
        total = sum(sizes.values())
        shares = {
            name: {"bytes": size, "percentage": round(100 * size / total, 2) if total else 0.0}
            for name, size in sorted(sizes.items(), key=lambda kind: (-kind[1], kind[0]))
        }
        return {**reports[0], "json": shares}

    async def _status(self, request: Request) -> Any:
        """As one broker, and each worker."""
        found = await self._all(request)
        status = added_up([
            {key: value for key, value in each.items() if key not in ("pid", "uptime", "vm_memory_high_watermark_setting")}
            for each in found
        ])
        status |= {
            "pid": os.getpid(),
            "uptime": max(each["uptime"] for each in found),
            "alarms": sorted({alarm for each in found for alarm in each["alarms"]}),
            "vm_memory_high_watermark_setting": found[0]["vm_memory_high_watermark_setting"],
            "listeners": [{"address": one.address, "protocol": one.protocol} for one in await self._listeners()],
            "data_directory": str(self._front.config.node.data_path()),
            "workers": await self._list_workers(request),
        }
        return status

    async def _list_workers(self, request: Request) -> list[dict[str, Any]]:
        """Each worker: its process, how many vhosts and connections it has, what it uses."""
        placed = list(self._fleet.placed().values())
        rows = []
        for member in self._fleet.members():
            status = await self._ask(member, "status") if member.ready else {}
            rows.append({
                "worker": member.number,
                "pid": member.pid,
                "state": "running" if member.ready else "down",
                "vhosts": placed.count(member.number),
                "connections": status.get("connections", 0),
                "queues": status.get("queues", 0),
                "memory": status.get("memory_used", 0),
            })
        return rows

    async def _move_vhost(self, request: Request) -> None:
        vhost, worker = (str(argument) for argument in request.arguments)
        if vhost not in self._fleet.placed():
            raise AdminError(f"Virtual host '{vhost}' does not exist", DATA_ERROR)
        if not worker.isdecimal() or int(worker) not in {member.number for member in self._fleet.members()}:
            raise AdminError(f"there is no worker {worker}", DATA_ERROR)
        await self._fleet.move(vhost, int(worker))

    async def _listeners(self) -> list[Listener]:
        """The workers' for clients, which are the same for all, and the gateway's own."""
        status = await self._ask(self._first(), "status")
        found = []
        for one in status["listeners"]:
            host, _, port = one["address"].rpartition(":")
            found.append(Listener(one["protocol"], host.strip("[]"), int(port)))
        return [*found, *self._front.listeners]

    async def _listening(self) -> Admin:
        """What the commands about listeners look at."""
        found = await self._listeners()
        node = self._front.node_name
        return cast(Admin, SimpleNamespace(pid=Pid(node), broker=SimpleNamespace(listeners=lambda: found)))

    # -- definitions -------------------------------------------------------------------------------------------------

    async def _export(self, request: Request) -> list[tuple[str, Any]]:
        """All, or nothing: a file that lacks what one worker has is no backup."""
        for member in self._fleet.members():
            if not member.ready:
                raise AdminError(f"worker {member.number} is not running", UNAVAILABLE)
        files = []
        for entries in await self._all(request):
            file: dict[str, Any] = {}
            for section, entry in entries:
                if entry is None:
                    file[section] = []
                elif isinstance(entry, dict):
                    file[section].append(entry)
                else:
                    file[section] = entry
            files.append(file)
        found: list[tuple[str, Any]] = []
        for section, value in united(files).items():
            if isinstance(value, list):
                found += [(section, None), *((section, entry) for entry in value)]
            else:
                found.append((section, value))
        return found

    async def _import(self, request: Request) -> str:
        """Each worker looks at its part before any imports its own."""
        file = request.arguments[0] if request.arguments else None
        vhost = self._vhost(request)
        if not isinstance(file, dict):
            return str(await self._pass(self._first(), request))
        first = self._first().number
        split = Split(self._fleet, file, first, vhost)
        try:
            for number, part in split.parts.items():
                whole = {**part, **split.whole}
                await self._ask(self._member(number), "import_definitions", whole, vhost=vhost, dry_run=True)
        except AdminError:
            split.forget()
            raise
        try:
            outcomes = [await self._ask(self._member(first), "import_definitions", split.whole, vhost=vhost)]
            await self._fleet.tell(first)
            for number, part in split.parts.items():
                outcomes.append(await self._ask(self._member(number), "import_definitions", part, vhost=vhost))
        finally:
            await self._fleet.tell(-1)
        return _outcome(outcomes)


def _outcome(outcomes: list[str]) -> str:
    """What was done, by all."""
    counts: dict[str, int] = {}
    left: list[str] = []
    for outcome in outcomes:
        done, _, rest = outcome.partition(". Left out ")
        for count, section in COUNT.findall(done):
            counts[section] = counts.get(section, 0) + int(count)
        if rest:
            left.append(f"Left out {rest}")
    told = ", ".join(f"{count} {section}" for section, count in counts.items()) or "nothing"
    return ". ".join([f"Imported {told}", *left])
