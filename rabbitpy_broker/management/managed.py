"""What whoever manages a broker sees of it, and may ask of it. `Broker` keeps what stands here."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from rabbitpy_broker.alarms import Alarms
from rabbitpy_broker.cluster.backup import Backup, Written, back_up, restore
from rabbitpy_broker.cluster.conversion import Conversions
from rabbitpy_broker.cluster.draining import MAINTENANCE, Transfers
from rabbitpy_broker.cluster.link import LinkServer
from rabbitpy_broker.cluster.log import ClusterError
from rabbitpy_broker.cluster.member import Member
from rabbitpy_broker.cluster.membership import add_member, delete_member
from rabbitpy_broker.cluster.registry import Conflict
from rabbitpy_broker.cluster.shared_table import SharedTable
from rabbitpy_broker.cluster.status import all_nodes
from rabbitpy_broker.cluster.view import View
from rabbitpy_broker.config import Config, split_address
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.log import RecentLines
from rabbitpy_broker.management.audit import Audit
from rabbitpy_broker.net.listener import Listeners
from rabbitpy_broker.net.transport import Clients
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.thresholds import Threshold
from rabbitpy_broker.workers.fleet import WorkerSockets

ASKS_S: Final = 3.0  # an engine, whether a name is used
OPENS_S: Final = 20.0  # that a new replicated vhost may take
RESTORED_S: Final = 600.0  # and one that loads a backup first
PROTOCOLS: Final = {  # what RabbitMQ's tools may call a listener's protocol, in small letters, and its name
    "amqp091": "amqp", "amqp0.9.1": "amqp", "amqp0-9-1": "amqp", "amqp10": "amqp", "amqp1.0": "amqp", "amqp1-0": "amqp",
    "amqps": "amqp/ssl", "prometheus": "http/prometheus",
}  # fmt: skip

PURPOSES: Final = {
    "amqp": "AMQP 0-9-1",
    "amqp/ssl": "AMQP 0-9-1 over TLS",
    "http": "HTTP API",
    "https": "HTTP API over TLS",
    "http/prometheus": "Prometheus exporter API over HTTP",
}


@dataclass(frozen=True, order=True)
class Listener:
    """A port that somebody may connect to: the protocol by RabbitMQ's name, the host without brackets."""

    protocol: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """HOST:PORT, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PlainBackups:
    """Backups of vhosts that are on this node alone. `restoring`: names of those that are about to be there; `under_way`: of
    those that are backed up.
    """

    def __init__(self) -> None:
        self.restoring: set[str] = set()
        self.under_way: list[str] = []

    async def back_up(self, name: str, path: str) -> Written:
        """Writes a file of what is in a vhost that is open. Raises BrokerError, OSError."""
        raise NotImplementedError

    async def restore(self, name: str, backup: Backup) -> None:
        """Makes a vhost that there is not. Raises BrokerError, OSError; then there is still none."""
        raise NotImplementedError


class ManagedBroker:
    """`addresses`, `tls_addresses` and `metrics_address` are the bound ones, HOST:PORT; the last is "" without metrics.

    `sockets` are where a worker of a larger daemon is managed, in place of what the configuration says.
    """

    definitions: Definitions
    node: Node
    alarms: Alarms
    clients: Clients
    log: Any
    _listeners: Listeners

    def __init__(self, config: Config, log: Any, sockets: WorkerSockets | None = None) -> None:
        self.config = config
        self.sockets = sockets
        self.memory_threshold: Threshold = config.alarms.memory_threshold()
        self.addresses: list[str] = []
        self.tls_addresses: list[str] = []
        self.metrics_address = ""
        self.http_listeners: list[Listener] = []  # of the management API
        self.cluster_id = ""
        self.ready = False  # clients are taken
        self.recent_lines = RecentLines()  # of the log, where it is kept
        self.member: Member | None = None  # of a cluster
        self.view: View | None = None  # of the cluster
        self.link_server: LinkServer | None = None  # to and from its other nodes
        self.transfers: Transfers | None = None  # of vhosts between its nodes
        self.conversions: Conversions | None = None  # of vhosts
        self.shared: list[SharedTable[Any]] = []  # with the other nodes of it
        self.http_of_nodes: Callable[[], asyncio.BaseProtocol] | None = None  # answers what they ask the management API
        self.figures: Callable[[], dict[str, int]] = dict  # that other nodes show of this one; the management API has them
        # What other nodes list for a line of the control socket, and those of which it is not known.
        self.ask_nodes: Callable[[bytes], Awaitable[tuple[list[bytes], list[str]]]] = self._ask_nobody
        self.backups = self._make_backups()
        self.audit = Audit(config.management.audit_size, log)

    async def _ask_nobody(self, line: bytes) -> tuple[list[bytes], list[str]]:
        """Without the management API other nodes cannot be asked."""
        others = set() if self.view is None else {*all_nodes(self.view)} - {self.config.node_name()}
        return [], sorted(others)

    def _make_backups(self) -> PlainBackups:
        raise NotImplementedError

    def listeners(self) -> list[Listener]:
        """All of the broker's."""
        found = [Listener("amqp", *split_address(address)) for address in self.addresses]
        found += [Listener("amqp/ssl", *split_address(address)) for address in self.tls_addresses]
        found += self.http_listeners
        if self.metrics_address:
            found.append(Listener("http/prometheus", *split_address(self.metrics_address)))
        return found

    async def share(self) -> None:
        """Returns when the cluster has what was changed: other nodes users and global parameters, logs what was declared.

        Raises BrokerError.
        """
        for table in self.shared:
            await table.settle()
        if self.member is not None:
            await self.member.settle()

    async def is_used(self, name: str) -> bool:
        """Whether the cluster has, or is about to have, a replicated vhost of this name. An engine that does not answer is not
        waited for: then what this node has heard counts.
        """
        if self.member is not None:
            with suppress(ClusterError, TimeoutError):
                return await asyncio.wait_for(self.member.is_used(name), ASKS_S)
        return False

    def add_vhost(self, name: str, metadata: str) -> None:
        """Adds a vhost that there is not. Raises StartError or DefinitionsError, then there is still none; and BrokerError
        while one of that name is being deleted.
        """
        raise NotImplementedError

    async def add_replicated_vhost(self, name: str, metadata: str, replicas: int) -> None:
        """Makes a vhost that so many nodes have, and returns when this one has opened it. Raises BrokerError."""
        if self.member is None:
            raise BrokerError("replicas need an engine (see the setting cluster.engine)")
        if name in self.node.vhosts or self.member.has_copy(name):  # of others' the engine knows better than what was heard last
            raise BrokerError("there is one")
        try:
            await self.member.add(name, metadata, replicas)
        except Conflict:
            raise BrokerError("there is one") from None
        except (ClusterError, ValueError) as error:
            raise BrokerError(str(error)) from None
        await self._opened(name, OPENS_S)

    async def _opened(self, name: str, within_s: float) -> None:
        began = time.monotonic()
        while name not in self.node.vhosts:
            if time.monotonic() - began > within_s:
                raise BrokerError(f"it was made, and this node has not opened it within {within_s:g} s")
            await asyncio.sleep(0.05)

    async def backup_vhost(self, name: str, path: str) -> Written:
        """Writes a file of what is in a vhost. Raises BrokerError, OSError."""
        began = time.monotonic()
        if self.member is not None and name in self.member.replicas:
            written = await back_up(self.member.engine, self.member.node, self.member.replicas[name], path)
        elif self.member is not None and name in self.member.converting:
            raise BrokerError("it is being made replicated, or was until now")
        elif name in self.node.vhosts:
            written = await self.backups.back_up(name, path)
        else:
            raise BrokerError("this node has no replica of it")
        seconds, mb = round(time.monotonic() - began, 1), round(written.size / 1e6, 1)
        self.log.info("vhost backed up", vhost=name, file=path, position=written.position, mb=mb, seconds=seconds)
        return written

    async def restore_vhost(self, name: str, backup: Backup, replicas: int) -> None:
        """Makes a vhost that so many nodes have, 0 for this one alone, with what a backup has; returns when it is open here.

        Raises BrokerError, OSError.
        """
        began = time.monotonic()
        if self.sockets is not None:
            raise BrokerError("a daemon with several workers restores none: another broker does, and its vhosts can be migrated")
        if name in self.node.vhosts or name in self.node.owned_elsewhere or name in self.definitions.vhosts():
            raise BrokerError("there is one")
        if replicas:
            await self._restore_replicated(name, backup, replicas)
        else:
            if await self.is_used(name):
                raise BrokerError("there is a replicated one")
            await self.backups.restore(name, backup)
        self.log.info("vhost restored", vhost=name, file=backup.path, seconds=round(time.monotonic() - began, 1))

    async def _restore_replicated(self, name: str, backup: Backup, replicas: int) -> None:
        if self.member is None:
            raise BrokerError("replicas need an engine (see the setting cluster.engine)")
        metadata = json.dumps({**backup.metadata(), "replicas": replicas})
        try:
            await restore(self.member, name, backup, await self.member.new_record(name, metadata, replicas))
        except Conflict:
            raise BrokerError("there is one") from None
        except ValueError as error:
            raise BrokerError(str(error)) from None
        await self._opened(name, RESTORED_S)

    async def delete_replicated_vhost(self, name: str) -> None:
        """Deletes it at all nodes; it is gone here when this returns. Raises BrokerError, OSError."""
        if self.member is None:
            raise BrokerError("it is replicated, and the broker is in no cluster (see the setting cluster.engine)")
        try:
            await self.member.delete(name)
        except (ClusterError, ValueError) as error:
            raise BrokerError(str(error)) from None

    async def transfer_vhost(self, name: str, node: str) -> str:
        """Has this node, "" for the one that is furthest along, own a replicated vhost; returns who does. Raises BrokerError."""
        if self.transfers is None:
            raise BrokerError("the broker is in no cluster (see the setting cluster.engine)")
        return await self.transfers.transfer(name, node)

    async def replicate_vhost(self, name: str, replicas: int) -> None:
        """Makes a vhost of this node one that so many nodes have. Raises BrokerError, OSError."""
        if self.conversions is None:
            raise BrokerError("replicas need an engine (see the setting cluster.engine)")
        if name in self.backups.under_way:
            raise BrokerError("it is being backed up")
        await self.conversions.replicate(name, replicas)

    async def unreplicate_vhost(self, name: str) -> None:
        """Makes a replicated vhost that this node owns one that no other node has. Raises BrokerError, OSError."""
        if self.conversions is None:
            raise BrokerError("the broker is in no cluster (see the setting cluster.engine)")
        await self.conversions.unreplicate(name)

    async def drain(self, *, force: bool = False) -> str:
        """Puts the node into maintenance: its clients are closed, none is taken any more, and the replicated vhosts that it owns
        are given to other nodes; until `revive` or the next start.

        Raises BrokerError where nobody can have some of them, and then nothing was done; or if some are still here in the end.
        With `force` it raises neither, and returns what is still here, and why.
        """
        left = ""
        if self.transfers is not None and not force:
            await self.transfers.check_drain()
        if not self.is_in_maintenance():
            self._listeners.suspend()
            self.addresses, self.tls_addresses = [], []
        if self.transfers is not None:
            try:
                await self.transfers.drain()
            except ClusterError as error:
                if not force:
                    raise
                left = str(error)
            finally:
                self._close_for_maintenance()
        else:
            self._close_for_maintenance()
        self.log.warning("node in maintenance", left=left)
        return left

    def is_in_maintenance(self) -> bool:
        """Whether it was drained, and not revived."""
        return not (self._listeners.addresses or self._listeners.tls_addresses)

    def _close_for_maintenance(self) -> None:
        self.close_connections(list(self.clients.connections), MAINTENANCE)

    async def revive(self) -> None:
        """Ends the maintenance. Raises BrokerError."""
        if self.is_in_maintenance():
            await self._listeners.resume(self.config.net)
        self.addresses, self.tls_addresses = self._listeners.addresses, self._listeners.tls_addresses
        if self.transfers is not None:
            await self.transfers.revive()
        self.log.info("node out of maintenance")

    async def change_members(self, vhost: str, node: str, *, is_added: bool) -> None:
        """Gives a replica of a replicated vhost to a node, or takes it. Raises BrokerError."""
        if self.member is None:
            raise BrokerError("the broker is in no cluster (see the setting cluster.engine)")
        try:
            await (add_member if is_added else delete_member)(self.member.engine.registry, vhost, node)
        except (ClusterError, ValueError) as error:
            raise BrokerError(str(error)) from None

    async def delete_vhost(self, name: str) -> None:
        """Deletes a vhost with all that is in it: connections first, its folder last. Returns when it is gone.

        From the commit on there is no way back: what a crash leaves of the folder is removed at the next start. Raises
        DefinitionsError; then all is gone but the folder, which goes at the next start.
        """
        raise NotImplementedError

    def close_connections(self, connections: Sequence[Connection], reason: str) -> None:
        """Closes connections from our side."""
        raise NotImplementedError

    def commit(self) -> None:
        """Makes what was changed in the definitions durable. Raises DefinitionsError; then it is tried again each turn."""
        raise NotImplementedError

    def reload_tls(self) -> bool:
        """Reads the certificates again, for who connects from now on; False where there is no TLS. Raises ConfigError, and then
        those that were there stay.
        """
        raise NotImplementedError

    def set_memory_threshold(self, threshold: Threshold) -> None:
        """Sets the limit of the memory alarm, and looks at once."""
        raise NotImplementedError

    def check_alarms(self) -> None:
        """Reads memory and disk; tells every connection when an alarm comes or goes. Raises OSError."""
        raise NotImplementedError
