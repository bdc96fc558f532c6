"""What an operator can do with a running broker, one method each: users, vhosts, limits, policies, queues, connections.

`control.py` offers them to the command line, `definitions_json.py` uses them for an import. Whatever has been changed is
on disk when a method returns.

An `AdminError` says what is wrong in RabbitMQ's words, and carries the exit code that rabbitmqctl ends with then.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rabbitpy_broker import __version__, build_info, process_memory
from rabbitpy_broker.authentication import Credentials
from rabbitpy_broker.definitions import DefinitionsError
from rabbitpy_broker.errors import AmqpError, BrokerError, ConfigError
from rabbitpy_broker.limits import LimitError
from rabbitpy_broker.management.answers import answered
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.management.replicas import PARAMETER, rules_of
from rabbitpy_broker.policies import PolicyError
from rabbitpy_broker.protocol.channel_host import ChannelHost
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.handshake import RABBITMQ_VERSION
from rabbitpy_broker.queues.queue_settings import QUEUE_TYPES
from rabbitpy_broker.slices import in_slices
from rabbitpy_broker.stats import STARTED
from rabbitpy_broker.thresholds import BadThreshold, disk_threshold, memory_threshold
from rabbitpy_broker.users import User, UserError
from rabbitpy_broker.vhost import VHost

NAME_MAX_BYTES: Final = 255  # a short string of AMQP

# sysexits.h, as rabbitmqctl uses it
# What a vhost's metadata has of its replicas, which nobody else changes.
REPLICATED: Final = ("replicas", "incarnation", "becoming", "formerly")
USAGE: Final = os.EX_USAGE
DATA_ERROR: Final = os.EX_DATAERR
NO_USER: Final = os.EX_NOUSER
UNAVAILABLE: Final = os.EX_UNAVAILABLE
SOFTWARE: Final = os.EX_SOFTWARE


class AdminError(BrokerError):
    """What was asked for cannot be done; `code` is the exit code for it."""

    def __init__(self, text: str, code: int = UNAVAILABLE) -> None:
        super().__init__(text)
        self.code = code


class NotWritten(AdminError):
    """What was changed is in effect, and not on disk yet: that is tried again until it works."""


@dataclass(frozen=True)
class Pid:
    """RabbitMQ's process ids, which tools hand back to name a connection: `<node.start.connection.channel>`."""

    node: str
    worker: int | None = None  # of a daemon that has several

    @property
    def _start(self) -> str:
        return f"{int(STARTED)}" if self.worker is None else f"{int(STARTED)}{self.worker:03}"

    def of(self, connection: ChannelHost, channel: int = 0) -> str:
        return f"<{self.node}.{self._start}.{connection.id}.{channel}>"

    def connection_id(self, pid: str) -> int | None:
        """The connection that a pid of ours names, None for anything else."""
        match = re.fullmatch(rf"<{re.escape(self.node)}\.{self._start}\.(\d+)\.\d+>", pid)
        return int(match[1]) if match else None


class Admin:
    """Operations on one broker. Every method may raise AdminError."""

    def __init__(self, broker: ManagedBroker) -> None:
        self.broker = broker
        self.node = broker.node
        self.users = broker.node.users
        self.definitions = broker.definitions
        self.pid: Pid = Pid(broker.config.node_name(), broker.sockets.number if broker.sockets is not None else None)

    def commit(self) -> None:
        """Makes what was changed durable."""
        try:
            self.broker.commit()
        except DefinitionsError as error:
            raise NotWritten(f"{error}; it is tried again until it works") from None

    def vhost(self, name: str) -> VHost:
        vhost = self.node.vhosts.get(name)
        if vhost is None:
            owner = self.node.owned_elsewhere.get(name)
            if owner is not None:
                where = f"owned by node '{owner}'" if owner else "without an owner"
                raise AdminError(f"Virtual host '{name}' is {where}", DATA_ERROR)
            raise AdminError(f"Virtual host '{name}' does not exist", DATA_ERROR)
        return vhost

    def user(self, name: str) -> User:
        user = self.users.get(name)
        if user is None:
            raise AdminError(f'User "{name}" does not exist', NO_USER)
        return user

    # -- the node -------------------------------------------------------------------------------------------------

    def ping(self) -> str:
        return "Ping succeeded"

    def status(self) -> dict[str, object]:
        """What `rabbitpy-ctl status` shows."""
        broker, node = self.broker, self.node
        look = broker.alarms
        vhosts = list(node.vhosts.values())
        return {
            "pid": os.getpid(),
            "node_name": self.pid.node,
            "version": __version__,
            "rabbitmq_version": RABBITMQ_VERSION,
            "build": build_info.build(),
            "python": build_info.python(),
            "os": sys.platform,
            "uptime": int(time.monotonic() - STARTED),
            "data_directory": str(broker.config.node.data_path()),
            "alarms": sorted(look.active),
            "memory_used": look.memory_used,
            "memory_limit": look.memory_limit_bytes,
            "vm_memory_high_watermark_setting": broker.memory_threshold.setting(),
            "disk_free": look.disk_free,
            "disk_free_limit": look.disk_limit_bytes,
            "open_files": _open_files(),
            "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "connections": len(self.broker.clients.connections),
            "queues": sum(len(vhost.queues) for vhost in vhosts),
            "vhosts": len(vhosts),
            "listeners": [{"address": one.address, "protocol": one.protocol} for one in broker.listeners()],
        }

    def set_vm_memory_high_watermark(self, mark: str, absolute: str | None = None) -> None:
        """A fraction, or the word "absolute" and a size; until the next start."""
        try:
            threshold = memory_threshold(mark, absolute)
        except BadThreshold as error:
            raise AdminError(str(error), error.code) from None
        self.broker.set_memory_threshold(threshold)

    def set_disk_free_limit(self, limit: str, factor: str | None = None) -> None:
        """A size, or the word "mem_relative" and how many times the memory; until the next start."""
        try:
            threshold = disk_threshold(limit, factor)
        except BadThreshold as error:
            raise AdminError(str(error), error.code) from None
        self.broker.alarms.set_disk_limit(threshold.bytes_of(process_memory.available()))
        self.broker.check_alarms()

    def reload_tls(self) -> str:
        """Reads the certificates again."""
        try:
            return "Certificates were read again" if self.broker.reload_tls() else "There are no listeners with TLS"
        except ConfigError as error:
            raise AdminError(f"{error}; those that were there are still used", DATA_ERROR) from None

    # -- vhosts ---------------------------------------------------------------------------------------------------

    def add_vhost(self, name: str, *, description: str = "", tags: str = "", default_queue_type: str = "") -> None:
        """Adds a vhost; one that exists stays as it is. `tags` are separated by commas."""
        metadata = vhost_metadata(description, tags, default_queue_type)
        if name not in self.node.vhosts:
            self.put_vhost(name, metadata)
            self.commit()

    async def check_name(self, name: str) -> None:
        """Whether a vhost of this name that is not replicated may be made. Raises AdminError."""
        if name not in self.node.vhosts and await self.broker.is_used(name):
            raise AdminError(f"vhost '{name}' cannot be added: there is a replicated one")

    async def add_replicated_vhost(self, name: str, replicas: int, metadata: dict[str, object]) -> None:
        """Adds a vhost that so many nodes of the cluster have, and returns when this one has opened it."""
        check_name("vhost", name)
        kept = {key: value for key, value in metadata.items() if key not in REPLICATED}
        try:
            await self.broker.add_replicated_vhost(name, json.dumps({**kept, "replicas": replicas}), replicas)
        except BrokerError as error:
            raise AdminError(f"vhost '{name}' cannot be added: {error}") from None

    def put_vhost(self, name: str, metadata: dict[str, object]) -> None:
        """Adds a vhost, or gives it this metadata; the commit is the caller's. How many replicas it has stays as it is."""
        check_name("vhost", name)
        metadata = {key: value for key, value in metadata.items() if key not in REPLICATED}
        text = json.dumps(metadata)
        if name in self.node.vhosts:
            before = json.loads(self.definitions.vhost_metadata(name))
            text = json.dumps({**metadata, **{key: before[key] for key in REPLICATED if key in before}})
            self.definitions.add_vhost(name, text)
            self.node.vhosts[name].set_metadata(text)
            return
        try:
            self.broker.add_vhost(name, text)
        except BrokerError as error:
            raise AdminError(f"vhost '{name}' cannot be added: {error}") from None

    async def delete_vhost(self, name: str) -> None:
        """Deletes a vhost with all that is in it, and closes its connections."""
        if self.broker.member is not None and name in self.broker.member.converting:
            raise AdminError(f"vhost '{name}' cannot be deleted: it is being made replicated, or was until now")
        if name in self.node.owned_elsewhere:
            try:
                await self.broker.delete_replicated_vhost(name)
            except (BrokerError, OSError) as error:
                raise AdminError(f"vhost '{name}' cannot be deleted: {error}") from None
            return
        self.vhost(name)
        try:
            await self.broker.delete_vhost(name)
        except DefinitionsError as error:
            raise NotWritten(f"{error}; it is tried again until it works") from None

    def move_vhost(self, name: str, worker: str) -> None:
        """There is nowhere to move it to: what runs several brokers has a command of its own for this."""
        self.vhost(name)
        raise AdminError("the broker has one worker (see the setting workers)")

    async def transfer_vhost(self, name: str, node: str = "") -> str:
        """Has another node of the cluster own a replicated vhost."""
        if name not in self.node.vhosts and name not in self.node.owned_elsewhere:
            self.vhost(name)
        try:
            owner = await self.broker.transfer_vhost(name, node)
        except BrokerError as error:
            raise AdminError(f"vhost '{name}' is not transferred: {error}") from None
        return f"vhost '{name}' is owned by node '{owner}'"

    async def replicate_vhost(self, name: str, *, replicas: int | None = None) -> str:
        """Makes a vhost of this node one that so many nodes have."""
        if not replicas:
            raise AdminError("on how many nodes? --replicas is needed", DATA_ERROR)
        if name not in self.node.owned_elsewhere:
            self.vhost(name)
        try:
            await self.broker.replicate_vhost(name, replicas)
        except (BrokerError, OSError) as error:
            raise AdminError(f"vhost '{name}' is not made replicated: {error}") from None
        return f"vhost '{name}' has {replicas} replicas"

    async def unreplicate_vhost(self, name: str) -> str:
        """Makes a replicated vhost one that this node has, and no other."""
        if name not in self.node.owned_elsewhere:
            self.vhost(name)
        try:
            await self.broker.unreplicate_vhost(name)
        except (BrokerError, OSError) as error:
            raise AdminError(f"vhost '{name}' is not taken from the other nodes: {error}") from None
        return f"vhost '{name}' is on node '{self.pid.node}' alone"

    async def drain(self, *, force: bool = False) -> str | None:
        """Puts the node into maintenance; with `force` also if nobody can have the replicated vhosts that it owns, which are
        returned.
        """
        try:
            return await self.broker.drain(force=force) or None
        except BrokerError as error:
            raise AdminError(str(error)) from None

    async def revive(self) -> None:
        """Ends the maintenance of the node."""
        try:
            await self.broker.revive()
        except BrokerError as error:
            raise AdminError(str(error)) from None

    def set_vhost_limits(self, limits: str, *, vhost: str = "/") -> None:
        """These limits and no others, as a JSON object."""
        target = self.vhost(vhost)
        try:
            target.limits.set(json_object(limits))
        except LimitError as error:
            raise AdminError(str(error)) from None
        self.commit()

    def clear_vhost_limits(self, *, vhost: str = "/") -> None:
        self.vhost(vhost).limits.clear()
        self.commit()

    def set_tracing(self, vhost: str, on: bool) -> None:
        """Switches the firehose of a vhost; it is off again after a restart."""
        self.vhost(vhost).tracing = on

    def trace_on(self, *, vhost: str = "/") -> str:
        self.set_tracing(vhost, True)
        return f"Trace enabled for vhost {vhost}"

    def trace_off(self, *, vhost: str = "/") -> str:
        self.set_tracing(vhost, False)
        return f"Trace disabled for vhost {vhost}"

    # -- users ----------------------------------------------------------------------------------------------------

    def add_user(self, name: str, password: str) -> None:
        check_name("user", name)
        if self.users.get(name) is not None:
            raise AdminError(f'User "{name}" already exists', SOFTWARE)
        self.users.put_user(name, password)
        self.commit()

    def delete_user(self, name: str) -> None:
        """Deletes a user and closes its connections."""
        user = self.user(name)
        self.users.delete_user(name)
        self.commit()
        self._close([each for each in self._connections() if each.session.user is user], f"user '{name}' is deleted")

    def change_password(self, name: str, password: str, *, close_connections: bool = False) -> None:
        """Open connections go on, or are closed."""
        user = self.user(name)
        self.users.change_password(name, password)
        self.commit()
        if close_connections:
            theirs = [each for each in self._connections() if each.session.user is user]
            self._close(theirs, f"password of user '{name}' has changed")

    def clear_password(self, name: str) -> None:
        self.user(name)
        self.users.clear_password(name)
        self.commit()

    async def authenticate_user(self, name: str, password: str) -> str:
        """By whichever back end knows the user."""
        login = self.node.authenticator.log_in(Credentials(name, password, from_loopback=True))
        await answered(login)
        if login.user is None:
            raise AdminError(
                f'failed to authenticate user "{name}"\nuser \'{name}\' - invalid credentials', DATA_ERROR
            )
        return "Success"

    def set_user_tags(self, name: str, *tags: str) -> None:
        self.user(name)
        try:
            self.users.set_tags(name, tags)
        except UserError as error:
            raise AdminError(str(error)) from None
        self.commit()

    def set_permissions(self, user: str, configure: str, write: str, read: str, *, vhost: str = "/") -> None:
        self._check_user_and_vhost(user, vhost)
        try:
            self.users.set_permissions(user, vhost, configure, write, read)
        except UserError as error:
            raise AdminError(str(error)) from None
        self.commit()

    def clear_permissions(self, user: str, *, vhost: str = "/") -> None:
        self._check_user_and_vhost(user, vhost)
        self.users.clear_permissions(user, vhost)
        self.commit()

    def set_topic_permissions(self, user: str, exchange: str, write: str, read: str, *, vhost: str = "/") -> None:
        self._check_user_and_vhost(user, vhost)
        try:
            self.users.set_topic_permissions(user, vhost, exchange, write, read)
        except UserError as error:
            raise AdminError(str(error)) from None
        self.commit()

    def clear_topic_permissions(self, user: str, exchange: str | None = None, *, vhost: str = "/") -> None:
        """Of one exchange, or all that the user has in the vhost."""
        self._check_user_and_vhost(user, vhost)
        self.users.clear_topic_permissions(user, vhost, exchange)
        self.commit()

    def _check_user_and_vhost(self, user: str, vhost: str) -> None:
        if vhost not in self.node.vhosts and vhost not in self.node.owned_elsewhere:
            raise AdminError(f"Virtual host {vhost} does not exist")
        if self.users.get(user) is None:
            raise AdminError(f"User {user} does not exist", NO_USER)

    def set_user_limits(self, name: str, limits: str) -> None:
        """Sets each limit that is named in a JSON object."""
        self.user(name)
        try:
            self.users.set_limits(name, json_object(limits))
        except LimitError as error:
            raise AdminError(str(error)) from None
        self.commit()

    def clear_user_limits(self, name: str, limit: str) -> None:
        """One limit, or "all"."""
        self.user(name)
        self.users.clear_limits(name, limit)
        self.commit()

    # -- policies -------------------------------------------------------------------------------------------------

    async def set_policy(
        self, name: str, pattern: str, definition: str, *, vhost: str = "/", priority: int = 0, apply_to: str = "all"
    ) -> None:
        found, wanted = self.vhost(vhost), json_object(definition)
        await self._change_policies(found, lambda: found.policies.set(name, pattern, apply_to, priority, wanted))

    async def clear_policy(self, name: str, *, vhost: str = "/") -> None:
        found = self.vhost(vhost)
        await self._change_policies(found, lambda: found.policies.clear(name))

    async def set_operator_policy(
        self, name: str, pattern: str, definition: str, *, vhost: str = "/", priority: int = 0, apply_to: str = "all"
    ) -> None:
        found, wanted = self.vhost(vhost), json_object(definition)
        await self._change_policies(found, lambda: found.policies.set_operator(name, pattern, apply_to, priority, wanted))

    async def clear_operator_policy(self, name: str, *, vhost: str = "/") -> None:
        found = self.vhost(vhost)
        await self._change_policies(found, lambda: found.policies.clear_operator(name))

    async def _change_policies(self, vhost: VHost, change: Callable[[], None]) -> None:
        """Changes policies; queues and exchanges are told a slice at a time."""
        try:
            change()
        except PolicyError as error:
            raise AdminError(str(error)) from None
        await in_slices(vhost.applying_policies())
        self.commit()

    def set_global_parameter(self, name: str, value: str) -> None:
        """Kept for RabbitMQ's definitions; only `vhost_replicas` means something here."""
        if name == PARAMETER:
            try:
                rules_of(parse_json(value))
            except BrokerError as error:
                raise AdminError(str(error), DATA_ERROR) from None
        self.definitions.put_global_parameter(name, json.dumps(parse_json(value)))
        self.commit()

    def clear_global_parameter(self, name: str) -> None:
        if name not in {known for known, _ in self.definitions.global_parameters()}:
            raise AdminError("Parameter does not exist")
        self.definitions.delete_global_parameter(name)
        self.commit()

    # -- queues ---------------------------------------------------------------------------------------------------

    def purge_queue(self, name: str, *, vhost: str = "/") -> None:
        queue = self.vhost(vhost).queues.get(name)
        if queue is None:
            raise AdminError("not_found")
        try:
            queue.purge()
        except AmqpError as error:
            raise AdminError(error.text) from None

    def delete_queue(
        self, name: str, *, vhost: str = "/", if_empty: bool = False, if_unused: bool = False
    ) -> str:
        """Exclusive ones too."""
        target = self.vhost(vhost)
        queue = target.queues.get(name)
        if queue is None:
            raise AdminError("Queue not found", USAGE)
        if if_unused and queue.consumer_count:
            raise AdminError("Queue is in use", USAGE)
        if if_empty and queue.ready_count() > 0:
            raise AdminError("Queue is not empty", USAGE)
        ready = target.delete_queue(queue)
        self.commit()
        return f"Queue was successfully deleted with {ready} ready messages"

    # -- connections ----------------------------------------------------------------------------------------------

    def close_connection(self, pid: str, reason: str) -> None:
        """By its pid, or by its name as list_connections has it. One that is gone is no error."""
        wanted = self.pid.connection_id(pid)
        found = [each for each in self._connections() if wanted == each.id or (wanted is None and each.name == pid)]
        if wanted is None and not found:
            raise AdminError(f'Error:\n{{:invalid_pid_syntax, "{pid}"}}')
        self._close(found, reason)

    def close_all_connections(self, reason: str, *, vhost: str = "/", everywhere: bool = False, limit: int = 0) -> str:
        """Those of a vhost or of the whole node, at most `limit` if that is not 0."""
        found = self._connections()
        if not everywhere:
            found = [each for each in found if each.session.vhost is not None and each.session.vhost.name == vhost]
        if limit > 0:
            found = found[:limit]
        self._close(found, reason)
        return f"Closed {len(found)} connections"

    def close_all_user_connections(self, user: str, reason: str) -> None:
        theirs = [each for each in self._connections() if each.session.user is not None and each.session.user.name == user]
        self._close(theirs, reason)

    def _connections(self) -> list[Connection]:
        return list(self.broker.clients.connections)

    def _close(self, connections: Iterable[Connection], reason: str) -> None:
        self.broker.close_connections(list(connections), reason)


def check_name(kind: str, name: str) -> None:
    """Raises AdminError for a name that AMQP cannot say."""
    if not name or len(name.encode("utf-8")) > NAME_MAX_BYTES:
        raise AdminError(f"the name of a {kind} has from 1 to {NAME_MAX_BYTES} bytes", DATA_ERROR)


def split_tags(tags: str) -> list[str]:
    """`a, b` -> both."""
    return [tag.strip() for tag in tags.split(",") if tag.strip()]


def parse_json(text: str) -> object:
    try:
        value: object = msgspec.json.decode(text)  # json would take NaN, and half a surrogate pair, which no answer can say
    except (ValueError, RecursionError) as error:
        raise AdminError(f"JSON decoding error. Reason: {error}") from None
    return value


def json_object(text: str) -> dict[str, object]:
    """The JSON object in a text."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise AdminError("JSON decoding error. Reason: not an object")
    return value


def _open_files() -> int:
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        return 0


def vhost_metadata(description: str, tags: str, default_queue_type: str) -> dict[str, object]:
    if default_queue_type and default_queue_type not in QUEUE_TYPES:
        raise AdminError("invalid_queue_type")
    metadata: dict[str, object] = {"description": description, "tags": split_tags(tags)}
    if default_queue_type:
        metadata["default_queue_type"] = default_queue_type
    return metadata
