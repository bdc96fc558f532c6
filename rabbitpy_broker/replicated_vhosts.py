"""The broker as its replicated vhosts see it: directories, definitions, clients of a vhost that is owned here, or was until now.

What must stay true: a vhost is in `node.owned_elsewhere` from when this node knows of it until it is a plain one or gone, also
while it is owned here; what is put into the definitions is on disk when the call returns.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

from rabbitpy_broker.cluster.blocks import SINCE_CHANGES, SINCE_COMPRESSED
from rabbitpy_broker.cluster.directory import (
    DeletionUnderWay,
    DirectoryRestoring,
    OwnDefinitions,
    VHostDirectory,
)
from rabbitpy_broker.cluster.member import BECOMING, FORMERLY, Home
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.owner_log import OwnerLog
from rabbitpy_broker.data_dir import QUORUM_FORMAT
from rabbitpy_broker.definitions import Change, Rows
from rabbitpy_broker.durable_queues import DurableQueues
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.hosted_vhosts import VHostBroker, VHostHost
from rabbitpy_broker.net.threads import DiskJobs, DiskThreads
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.questions import Question
from rabbitpy_broker.storage.followed_store import FollowedStore
from rabbitpy_broker.storage.journal import Journal
from rabbitpy_broker.storage.sync import EpochWaiter
from rabbitpy_broker.vhost import VHost

EMBED_ALL: Final = 1 << 40
OWN_THREADS: Final = 3  # of a replicated vhost: an epoch, a scatter and a compaction


class SettledEpoch(EpochWaiter):
    """Somebody who waits for an epoch outside of the loop's turns: `future` says whether it is safe."""

    def __init__(self) -> None:
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def epoch_settled(self, epoch: int, ok: bool) -> None:
        if not self.future.done():
            self.future.set_result(ok)


class FollowedDefinitions(OwnDefinitions):
    """Among the broker's."""

    def __init__(self, broker: VHostBroker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._changes: list[Change] | None = []  # since `queues` were read; None: they are to be read

    def read(self) -> None:
        self._changes = []
        self.queues = DurableQueues(self._broker.definitions, self._name)
        if self.queues.any_quorum:
            self._broker.raise_data_format(QUORUM_FORMAT)

    def replace(self, rows: Rows) -> None:
        self._broker.definitions.replace_rows(self._name, rows)
        self._changes = None

    def change(self, changes: list[Change]) -> None:
        self._broker.definitions.change_rows(self._name, changes)
        if self._changes is not None:
            self._changes += changes

    def commit(self) -> set[int] | None:
        self._broker.commit()
        if self._changes is None:
            self.read()
            return None
        changes, self._changes = self._changes, []
        before = self.queues.any_quorum
        touched = self.queues.change(changes)
        if self.queues.any_quorum and not before:
            self._broker.raise_data_format(QUORUM_FORMAT)
        return touched


class ReplicatedVHosts(Home):
    """The broker's replicated vhosts, as they are opened, lost and followed. Each has threads of its own while it is owned,
    which wait for the engine: so nobody else waits with them.
    """

    def __init__(self, broker: VHostBroker) -> None:
        self._broker = broker
        self._logs: dict[str, OwnerLog] = {}
        self._threads: dict[str, DiskJobs] = {}

    def new_directory(self, name: str) -> VHostDirectory:
        broker = self._broker
        settings, log = broker.store_settings(), broker.log.bind(vhost=name)
        settings.queue_index_embed_msgs_below = EMBED_ALL  # the log has the journal's blocks, and nothing else
        threads = DiskThreads(asyncio.get_running_loop(), broker.report, OWN_THREADS)
        host = VHostHost(broker, name)
        store = FollowedStore(broker.make_disk(), threads, broker.vhost_path(name), settings, log, host)
        return VHostDirectory(store, threads, FollowedDefinitions(broker, name))

    def restoring(self, name: str) -> DirectoryRestoring:
        return DirectoryRestoring(self._broker.make_disk(), self._broker.vhost_path(name))

    def rows_of(self, name: str) -> Rows:
        return self._broker.definitions.rows_of(name)

    def changes_of(self, name: str) -> list[Change]:
        return self._broker.definitions.take_changes(name)

    def changes_settled(self, name: str) -> None:
        self._broker.definitions.settle_deletions(name)

    def reads_changes(self, nodes: list[str]) -> bool:
        told = self._told()
        return all(told[node].log_version >= SINCE_CHANGES for node in nodes if node in told)

    def compresses(self, nodes: list[str]) -> bool:
        config, told = self._broker.config, self._told()
        return config.cluster.compression == "zstd" and all(
            node == config.node_name() or (node in told and told[node].log_version >= SINCE_COMPRESSED) for node in nodes
        )

    def _told(self) -> dict[str, NodeInfo]:
        view = self._broker.view
        return {} if view is None else view.last_told

    def snapshot_rows(self, name: str) -> Rows:
        if self._broker.definitions.is_deletion_open(name):
            raise DeletionUnderWay("a deletion of a queue is on its way to the log")
        return self.rows_of(name)

    async def repair(self, name: str) -> bool:
        broker = self._broker
        if not broker.definitions.is_deletion_open(name):
            return False
        await broker.remove_folder(broker.vhost_path(name))
        broker.definitions.close_deletions(name)
        broker.definitions.commit()
        return True

    def open_owned(self, name: str, metadata: str, log: OwnerLog, directory: VHostDirectory) -> Journal:
        broker = self._broker
        if name not in broker.definitions.vhosts():
            broker.definitions.add_vhost(name, metadata)
            broker.commit()
        store, self._threads[name] = directory.hand_over()
        vhost = broker.open_vhost(name, store)
        store.own(log, vhost.next_seq_ids)
        self._logs[name] = log
        return vhost.store.journal

    async def close_owned(self, name: str, owner: str) -> None:
        self._logs.pop(name, None)
        self._broker.definitions.forget_changes(name)
        vhost = self._broker.node.vhosts.get(name)
        await self._broker.leave_vhost(name, f"vhost '{name}' is owned by node '{owner}'")
        threads = self._threads.pop(name, None)
        if threads is not None:
            threads.stop(0.0)
        if vhost is not None and vhost.in_question is not None:
            vhost.in_question.finish()

    async def remove_copy(self, name: str) -> None:
        broker = self._broker
        broker.node.owned_elsewhere.pop(name, None)
        broker.node.users.forget_vhost(name)
        broker.definitions.delete_vhost(name)
        broker.commit()
        await broker.remove_folder(broker.vhost_path(name))

    async def drop_copy(self, name: str) -> None:
        broker = self._broker
        broker.definitions.replace_rows(name, {})  # permissions stay: they are the users', on all nodes
        broker.commit()
        await broker.remove_folder(broker.vhost_path(name))

    def incarnations(self) -> dict[str, str]:
        definitions = self._broker.definitions
        metadata = {name: json.loads(definitions.vhost_metadata(name)) for name in definitions.vhosts()}
        return {name: str(one.get("incarnation", "")) for name, one in metadata.items() if "replicas" in one}

    def has_plain(self, name: str) -> bool:
        return name in self._broker.node.vhosts and name not in self._logs

    def marks(self, kind: str) -> dict[str, str]:
        definitions = self._broker.definitions
        metadata = {name: json.loads(definitions.vhost_metadata(name)) for name in definitions.vhosts()}
        return {name: str(one[kind]) for name, one in metadata.items() if kind in one}

    def metadata(self, name: str) -> str:
        metadata = json.loads(self._broker.definitions.vhost_metadata(name))
        return json.dumps({key: value for key, value in metadata.items() if key not in (BECOMING, FORMERLY)})

    def put_metadata(self, name: str, metadata: str, mark: str = "", incarnation: str = "") -> None:
        marked = {**json.loads(metadata), mark: incarnation} if mark else json.loads(metadata)
        self._broker.definitions.add_vhost(name, json.dumps(marked))
        self._broker.commit()

    async def shut_plain(self, name: str, reason: str) -> None:
        self.tell_owner(name, "")
        await self._broker.shut_vhost(name, reason)

    def open_plain(self, name: str) -> None:
        self._broker.node.owned_elsewhere.pop(name, None)
        try:
            self._broker.load_vhost(name)
        except StartError:
            self._broker.abandon_starting()
            raise

    async def delete_plain(self, name: str) -> None:
        if name in self._broker.node.vhosts:
            await self._broker.delete_vhost(name)

    def tell_owner(self, name: str, owner: str) -> None:
        self._broker.node.owned_elsewhere[name] = owner

    def forget_owner(self, name: str) -> None:
        self._broker.node.owned_elsewhere.pop(name, None)

    def hold_publishers(self, name: str, reason: str) -> None:
        broker = self._broker
        before = broker.alarms.held.pop(name, "")
        if reason:
            broker.alarms.held[name] = reason
        if reason == before:
            return
        vhost = broker.node.vhosts.get(name)
        if vhost is not None:
            vhost.held = reason
            broker.tell_alarm()
        if reason:
            broker.log.warning("publishers of a vhost held", vhost=name, reason=reason)
        else:
            broker.log.info("publishers of a vhost go on", vhost=name)

    def hold_deliveries(self, name: str, held: bool) -> None:
        vhost = self._broker.node.vhosts.get(name)
        if vhost is None or held == (vhost.in_question is not None):
            return
        question, vhost.in_question = vhost.in_question, Question() if held else None
        for each in self._clients_of(vhost):
            each.hold_deliveries(held)
        if question is not None:
            question.finish()
        if held:
            self._broker.log.warning("deliveries held", vhost=name, reason="another node may still do so")
        else:
            self._broker.log.info("deliveries go on", vhost=name)

    def close_clients(self, name: str, reason: str) -> None:
        vhost = self._broker.node.vhosts.get(name)
        if vhost is not None:
            self._broker.close_connections(self._clients_of(vhost), reason)

    def _clients_of(self, vhost: VHost) -> list[Connection]:
        return [each for each in self._broker.clients.connections if each.session.vhost is vhost]

    async def quiesce(self, name: str, reason: str, within_s: float) -> bool:
        broker = self._broker
        vhost = broker.node.vhosts[name]
        before, vhost.held = vhost.held, reason
        broker.tell_alarm()
        settled = SettledEpoch()
        vhost.store.journal.wait(settled)
        try:
            if await asyncio.wait_for(settled.future, within_s):
                await asyncio.sleep(0)  # for the turn that tells of it
                return True
        except TimeoutError:
            pass
        vhost.held = before
        broker.tell_alarm()
        return False

    def deposed(self, name: str) -> None:
        """Its clients are closed before their confirms hear of it: what is under way may be in the log, so it is not nacked."""
        vhost = self._broker.node.vhosts.get(name)
        if vhost is not None:
            self._broker.log.warning("vhost taken over by another node: nothing is confirmed any more", vhost=name)
            vhost.store.trouble.is_over = True
            self.close_clients(name, f"vhost '{name}' was taken over by another node")

    def committed(self) -> None:
        """Definitions were: what replicated vhosts have of them goes to their logs."""
        for name, log in self._logs.items():
            log.definitions_due(self._broker.node.vhosts[name].store.journal)
