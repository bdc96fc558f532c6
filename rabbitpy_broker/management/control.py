"""The control socket: how `rabbitpy-ctl` talks to the running broker.

It takes a line of JSON and answers with one, as often as the client likes:

    {"command": "set_permissions", "arguments": ["reader", "^$", "^$", ".*"], "options": {"vhost": "/"}}
    {"ok": true, "result": null}
    {"ok": false, "error": "User reader does not exist", "code": 67}

In a cluster a list of OF_CLUSTER has the rows of all nodes, this one's first, unless the option `local` says otherwise, and
definitions have all vhosts if the option `cluster` says so; "missing" beside "result" names the nodes that have not answered.
Another node answers the same line without asking others.

A list is an array of rows, written while it is made, a slice at a time (`slices.py`) and no faster than it is read: so a
list is no snapshot. One that ends without its newline has met a fault.

What must stay true: only the broker's own user, and root, are answered: the socket has mode 0600 from its first moment,
and the kernel is asked who is there; nothing that a client sends raises further than here.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from rabbitpy_broker.errors import BrokerError, StartError
from rabbitpy_broker.management import clustering, definitions_json, diagnostics, listing, streams
from rabbitpy_broker.management.address import (
    SOCKET_NAME,
    SocketAddress,
    make_private_folder,
    peer_uid,
    places,
    remove_pointer,
    write_pointer,
)
from rabbitpy_broker.management.admin import (
    DATA_ERROR,
    SOFTWARE,
    USAGE,
    Admin,
    AdminError,
    vhost_metadata,
)
from rabbitpy_broker.management.replicas import wanted_replicas
from rabbitpy_broker.slices import in_slices, slices

# How commands that change something are named.
CHANGING: Final = (
    "add_", "change_", "clear_", "close_", "delete_", "drain", "import_", "purge_", "restore_", "revive", "set_", "store_",
    "trace_", "transfer_",
)  # fmt: skip
OF_CLUSTER: Final = frozenset((
    "list_bindings", "list_channels", "list_connections", "list_consumers", "list_exchanges", "list_queues",
    "list_stream_consumers",
))  # fmt: skip
EXPORT: Final = "export_definitions"
REQUEST_MAX_BYTES: Final = 268_435_456  # a definitions file comes in one line


async def add_vhost(
    admin: Admin,
    name: str,
    *,
    description: str = "",
    tags: str = "",
    default_queue_type: str = "",
    replicas: int | None = None,
) -> None:
    """Adds a vhost, here or on so many nodes; by default on as many as is set for its name. One that exists stays as it is."""
    if replicas is None and (name in {*admin.node.vhosts, *admin.node.owned_elsewhere} or await admin.broker.is_used(name)):
        return
    count = wanted_replicas(admin.broker, name, replicas)
    if count:
        await admin.add_replicated_vhost(name, count, vhost_metadata(description, tags, default_queue_type))
    else:
        await admin.check_name(name)
        admin.add_vhost(name, description=description, tags=tags, default_queue_type=default_queue_type)


async def import_definitions(
    admin: Admin, definitions: dict[str, Any], *, vhost: str = "/", dry_run: bool = False
) -> str:
    """What RabbitMQ's definitions file holds, a slice of it at a time; or only whether it could be imported."""
    importing = definitions_json.Import(admin, definitions, vhost)
    if not dry_run:
        await importing.make_replicated()
    await in_slices(importing.checking() if dry_run else importing.steps())
    return importing.outcome()


COMMANDS: Final[dict[str, Callable[..., Any]]] = {
    "add_member": clustering.add_member,
    "add_super_stream": streams.add_super_stream,
    "add_user": Admin.add_user,
    "add_vhost": add_vhost,
    "alarms": diagnostics.alarms,
    "authenticate_user": Admin.authenticate_user,
    "await_online_nodes": clustering.await_online_nodes,
    "backup_vhost": clustering.backup_vhost,
    "change_password": Admin.change_password,
    "check_alarms": diagnostics.check_alarms,
    "check_if_node_is_quorum_critical": diagnostics.check_if_node_is_quorum_critical,
    "check_local_alarms": diagnostics.check_local_alarms,
    "check_port_connectivity": diagnostics.check_port_connectivity,
    "check_port_listener": diagnostics.check_port_listener,
    "check_protocol_listener": diagnostics.check_protocol_listener,
    "check_replica_lag": diagnostics.check_replica_lag,
    "check_running": diagnostics.check_running,
    "check_vhost_owners": diagnostics.check_vhost_owners,
    "check_virtual_hosts": diagnostics.check_virtual_hosts,
    "clear_global_parameter": Admin.clear_global_parameter,
    "clear_operator_policy": Admin.clear_operator_policy,
    "clear_password": Admin.clear_password,
    "clear_permissions": Admin.clear_permissions,
    "clear_policy": Admin.clear_policy,
    "clear_topic_permissions": Admin.clear_topic_permissions,
    "clear_user_limits": Admin.clear_user_limits,
    "clear_vhost_limits": Admin.clear_vhost_limits,
    "close_all_connections": Admin.close_all_connections,
    "close_all_user_connections": Admin.close_all_user_connections,
    "close_connection": Admin.close_connection,
    "cluster_status": clustering.cluster_status,
    "delete_member": clustering.delete_member,
    "delete_offset": streams.delete_offset,
    "delete_queue": Admin.delete_queue,
    "delete_super_stream": streams.delete_super_stream,
    "delete_user": Admin.delete_user,
    "delete_vhost": Admin.delete_vhost,
    "drain": Admin.drain,
    "export_definitions": definitions_json.entries,
    "import_definitions": import_definitions,
    "is_booting": diagnostics.is_booting,
    "is_running": diagnostics.is_running,
    "list_bindings": listing.list_bindings,
    "list_channels": listing.list_channels,
    "list_connections": listing.list_connections,
    "list_consumers": listing.list_consumers,
    "list_exchanges": listing.list_exchanges,
    "list_global_parameters": listing.list_global_parameters,
    "list_operator_policies": listing.list_operator_policies,
    "list_parameters": listing.list_parameters,
    "list_permissions": listing.list_permissions,
    "list_policies": listing.list_policies,
    "list_queues": listing.list_queues,
    "list_stream_consumers": listing.list_stream_consumers,
    "list_stream_offsets": streams.list_stream_offsets,
    "list_topic_permissions": listing.list_topic_permissions,
    "list_user_limits": listing.list_user_limits,
    "list_user_permissions": listing.list_user_permissions,
    "list_user_topic_permissions": listing.list_user_topic_permissions,
    "list_users": listing.list_users,
    "list_vhost_limits": listing.list_vhost_limits,
    "list_vhosts": listing.list_vhosts,
    "list_workers": listing.list_workers,
    "listeners": diagnostics.listeners,
    "memory_breakdown": diagnostics.memory_breakdown,
    "move_vhost": Admin.move_vhost,
    "ping": Admin.ping,
    "purge_queue": Admin.purge_queue,
    "query_offset": streams.query_offset,
    "quorum_status": listing.quorum_status,
    "reload_tls": Admin.reload_tls,
    "replicate_vhost": Admin.replicate_vhost,
    "restore_vhost": clustering.restore_vhost,
    "revive": Admin.revive,
    "server_version": diagnostics.server_version,
    "set_disk_free_limit": Admin.set_disk_free_limit,
    "set_global_parameter": Admin.set_global_parameter,
    "set_operator_policy": Admin.set_operator_policy,
    "set_permissions": Admin.set_permissions,
    "set_policy": Admin.set_policy,
    "set_topic_permissions": Admin.set_topic_permissions,
    "set_user_limits": Admin.set_user_limits,
    "set_user_tags": Admin.set_user_tags,
    "set_vhost_limits": Admin.set_vhost_limits,
    "set_vm_memory_high_watermark": Admin.set_vm_memory_high_watermark,
    "status": Admin.status,
    "store_offset": streams.store_offset,
    "trace_off": Admin.trace_off,
    "trace_on": Admin.trace_on,
    "transfer_vhost": Admin.transfer_vhost,
    "unreplicate_vhost": Admin.unreplicate_vhost,
}


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """One line from a client."""

    command: str
    arguments: list[Any] = []
    options: dict[str, Any] = {}


class _BrokenList(Exception):
    """A list of which the beginning is with the client has met a fault, its cause."""


def parse(line: bytes) -> Request:
    """What a client sent. Raises AdminError."""
    try:
        return msgspec.json.decode(line, type=Request)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise AdminError(f"bad request: {error}", USAGE) from None


def call(admin: Admin, request: Request) -> Any:
    """Does what is asked for; a list comes as an iterator, and what takes time as a coroutine. Raises AdminError."""
    function = COMMANDS.get(request.command)
    if function is None:
        raise AdminError(f"unknown command '{request.command}'", USAGE)
    signature = inspect.signature(function)
    try:
        bound = signature.bind(admin, *request.arguments, **request.options)
    except TypeError as error:
        raise AdminError(f"{request.command}: {error}", USAGE) from None
    hints = typing.get_type_hints(function)
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if value is admin:
            continue
        wanted = hints[name]
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            wanted = tuple[wanted, ...]  # type: ignore[valid-type]  # a type made of another at run time
        try:
            msgspec.convert(value, wanted)
        except msgspec.ValidationError as error:
            raise AdminError(f"{request.command}: {name}: {error}", USAGE) from None
    return function(*bound.args, **bound.kwargs)


async def rows_of_node(admin: Admin, line: bytes) -> bytes:
    """The rows of a list, or the entries, that another node's request is for, as a JSON array. Raises AdminError."""
    request = parse(line)
    if request.command not in OF_CLUSTER and request.command != EXPORT:
        raise AdminError(f"'{request.command}' is no list that other nodes may ask for", USAGE)
    return b"[" + await _joined(call(admin, request)) + b"]"


async def _joined(rows: Iterator[Any]) -> bytes:
    found: list[bytes] = []
    async for part in slices(_encoded(rows)):
        found += filter(None, part)
    return b",".join(found)


class ControlSocket:
    """The socket, from `start` to `stop`; who takes lines from it says what is answered."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self._directory: Path | None = None  # where rabbitpy-ctl is told of the socket
        self._path = Path()
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self, directory: Path, setting: str = "") -> None:
        """Listens for the data directory, which must be locked: a socket that is there is a dead broker's.

        A broker that has no place for it does without, and says so. Raises StartError for one that was set and cannot be had.
        """
        self._directory = directory
        faults = []
        for path in places(directory, setting):
            try:
                if not setting and path.parent != directory:
                    make_private_folder(path.parent)
                await self._listen(path)
            except OSError as error:
                faults.append(f"{path}: {error.strerror or error}")
            else:
                self._point(directory, path, "")
                return
        if setting:
            raise StartError(f"cannot listen on {faults[0]}")
        self.log.warning("no control socket", tried=faults)
        self._point(directory, None, "; ".join(faults))

    async def start_on(self, path: Path) -> None:
        """Listens there, where whoever connects knows it to be. Raises StartError."""
        try:
            await self._listen(path)
        except OSError as error:
            raise StartError(f"cannot listen on {path}: {error.strerror or error}") from None

    async def _listen(self, path: Path) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _bind(listening, path)
            self._server = await asyncio.start_unix_server(self._accept, sock=listening, limit=REQUEST_MAX_BYTES)
        except OSError:
            listening.close()
            raise
        self._path = path

    def _point(self, directory: Path, path: Path | None, reason: str) -> None:
        """Has rabbitpy-ctl find the socket, or the reason why there is none."""
        try:
            if path == directory / SOCKET_NAME:
                remove_pointer(directory)
            else:
                write_pointer(directory, path, reason)
        except OSError as error:  # a disk that takes nothing; the broker has said more on its way here
            self.log.warning("control socket not named", path=str(path), error=str(error))

    async def stop(self) -> None:
        """Ends the conversations and removes the socket."""
        if self._server is None:
            self._remove_pointer()
            return
        self._server.close()
        self._server = None
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        with contextlib.suppress(OSError):  # the disk does not take it: the next start removes it
            _remove(self._path)
        self._remove_pointer()

    def _remove_pointer(self) -> None:
        if self._directory is not None:
            with contextlib.suppress(OSError):
                remove_pointer(self._directory)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if is_allowed(writer.get_extra_info("socket")):
                await self._converse(reader, writer)
        except (OSError, _BrokenList):
            pass  # the client has gone, or is told by the missing newline
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:  # longer than the limit
                writer.write(failure(AdminError("the request is too long", DATA_ERROR)))
                await writer.drain()
                return
            if not line:
                return
            await self._answer(line, writer)
            await writer.drain()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        """Writes the answer to one line."""
        raise NotImplementedError


class Control(ControlSocket):
    """The socket of one broker."""

    def __init__(self, admin: Admin, log: Any) -> None:
        super().__init__(log)
        self._admin = admin

    def _note(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Has the audit know of a change: what it was and of what, without the other arguments, which may be passwords."""
        if not request.command.startswith(CHANGING):
            return
        details = {key: value for key, value in request.options.items() if key == "vhost"}
        details |= _named(next(iter(request.arguments), None))
        user = f"uid {peer_uid(writer.get_extra_info('socket'))}"
        self._admin.broker.audit.note(user, "", "ctl", request.command, "", details=details)

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            request = parse(line)
            of_cluster = _is_of_cluster(request)
            result = call(self._admin, request)
            if inspect.iscoroutine(result):
                result = await result
            if request.command.startswith(CHANGING):
                await self._admin.broker.share()
            self._note(request, writer)
            if of_cluster and self._admin.broker.view is not None:
                await self._of_all_nodes(request, result, writer)
                return
            if isinstance(result, Iterator):
                await _write_rows(result, writer)
                return
            writer.write(b'{"ok":true,"result":' + msgspec.json.encode(result) + b"}\n")
        except AdminError as error:
            writer.write(failure(error))
        except BrokerError as error:
            writer.write(failure(AdminError(str(error), SOFTWARE)))
        except OSError:
            raise
        except _BrokenList as broken:
            self.log.error("internal error", exc_info=broken.__cause__)
            raise
        except Exception:
            self.log.exception("internal error")
            writer.write(failure(AdminError("internal error; the broker's log has more", SOFTWARE)))


    async def _of_all_nodes(self, request: Request, mine: Iterator[Any], writer: asyncio.StreamWriter) -> None:
        asking = asyncio.ensure_future(self._admin.broker.ask_nodes(msgspec.json.encode(request)))
        try:
            rows = [await _joined(mine)]
            others, missing = await asking
        finally:
            asking.cancel()
        if request.command == EXPORT:
            rows = await asyncio.to_thread(definitions_json.with_other_vhosts, rows[0], others)
        else:
            rows += [each[1:-1] for each in others]
        end = b'],"missing":' + msgspec.json.encode(missing) + b"}\n"
        writer.write(b'{"ok":true,"result":[' + b",".join(filter(None, rows)) + end)


def _is_of_cluster(request: Request) -> bool:
    """Takes the option away that says so."""
    if request.command == EXPORT:
        return bool(request.options.pop("cluster", False))
    return request.command in OF_CLUSTER and not request.options.pop("local", False)


def _named(argument: Any) -> dict[str, Any]:
    return {"name": argument} if isinstance(argument, str) else {}


def _bind(listening: socket.socket, path: Path) -> None:
    """A socket's name gets the mode that the socket has when it is bound, so nobody else can ever connect."""
    _remove(path)
    with contextlib.suppress(OSError):  # only Linux can; elsewhere the directory is for its owner alone
        os.fchmod(listening.fileno(), 0o600)
    with SocketAddress(path) as address:
        listening.bind(address)
    path.chmod(0o600)  # for systems that do as they like there


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _write_rows(rows: Iterator[Any], writer: asyncio.StreamWriter) -> None:
    begun = False
    try:
        async for part in _parts(rows):
            writer.write(part)
            begun = True
            await writer.drain()
    except OSError:
        raise
    except Exception as fault:
        if not begun:
            raise
        raise _BrokenList from fault


async def _parts(rows: Iterator[Any]) -> AsyncIterator[bytes]:
    """The answer, a slice of it at a time; what is wrong with the request comes up before the first."""
    before = b'{"ok":true,"result":['
    async for part in slices(_encoded(rows)):
        text = b",".join([row for row in part if row])
        if text:
            yield before + text
            before = b","
    yield (b"" if before == b"," else before) + b"]}\n"


def _encoded(rows: Iterator[Any]) -> Iterator[bytes]:
    """Nothing for None: a step of the walk that came upon no row."""
    encode = msgspec.json.encode
    for row in rows:
        yield b"" if row is None else encode(row)


def failure(error: AdminError) -> bytes:
    """The answer to what could not be done."""
    return msgspec.json.encode({"ok": False, "error": str(error), "code": error.code}) + b"\n"


def is_allowed(client: Any) -> bool:
    """Whether the kernel says that the broker's own user, or root, is at the other end."""
    return peer_uid(client) in (None, os.getuid(), 0)

