"""The vhosts that a broker has here: each with its store, opened, brought to rest, deleted, while the broker goes on.

What must stay true: a vhost that is in `node.vhosts` is open; one that is not there has no client, and no timer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.cluster.member import NotAtRest
from rabbitpy_broker.config import Config
from rabbitpy_broker.data_dir import QUORUM_FORMAT, STREAM_FORMAT
from rabbitpy_broker.definitions import Definitions, DefinitionsError
from rabbitpy_broker.errors import BrokerError, StartError
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.net.threads import DiskJobs
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.queue_settings import QueueDefaults
from rabbitpy_broker.queues.timers import Timers
from rabbitpy_broker.stats import DeletedVHosts
from rabbitpy_broker.stopping import CLOSE_GRACE_S, Grace, stop_stores
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.snapshot import FOLDER as SNAPSHOT
from rabbitpy_broker.storage.sync import StoreHost, SyncGroup
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore, vhost_folder
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.workers.fleet import WorkerSockets

DELETE_AT_ONCE: Final = 200  # queues, of a vhost that is deleted
GONE_S: Final = 0.01  # how often it is looked whether clients are gone


class VHostHost(StoreHost):
    """What the broker does for the store of one vhost."""

    def __init__(self, broker: VHostBroker, vhost: str) -> None:
        self._broker = broker
        self._vhost = vhost
        self._turn = broker.node.turn
        self._events = broker.node.events

    def sync_due(self, group: SyncGroup) -> None:
        self._turn.sync_due(group)

    def before_epoch(self) -> None:
        if self._events is not None:
            self._events.flush()

    def quorum_queue_due(self) -> None:
        self._broker.raise_data_format(QUORUM_FORMAT)

    def stream_due(self) -> None:
        self._broker.raise_data_format(STREAM_FORMAT)

    def disk_trouble(self, reason: str) -> None:
        self._broker.store_trouble(self._vhost, reason)


class OwnTimers:
    """The timers of one vhost, behind a timer of the running loop."""

    def __init__(self, clock: Clock, fault: Callable[[Exception], None]) -> None:
        self.timers = Timers(clock, self._arm, fault)
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def _arm(self, delay_s: float) -> None:
        self.disarm()
        self._handle = self._loop.call_later(delay_s, self.timers.run)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def stop(self) -> None:
        """Nothing expires any more."""
        self.disarm()
        self.timers.stop()


class VHostTimers:
    """Of the vhosts that may be closed while the broker goes on."""

    def __init__(self, make_clock: Callable[[], Clock], fault: Callable[[Exception], None]) -> None:
        self._make_clock = make_clock
        self._fault = fault
        self._timers: dict[str, OwnTimers] = {}  # by vhost

    def begin(self, name: str) -> Timers:
        """For a vhost that is opened."""
        own = self._timers[name] = OwnTimers(self._make_clock(), self._fault)
        return own.timers

    def end(self, name: str) -> None:
        """Nothing expires any more in a vhost that is closed."""
        own = self._timers.pop(name, None)
        if own is not None:
            own.stop()

    def disarm(self) -> None:
        """Nothing expires any more in any of them."""
        for own in self._timers.values():
            own.disarm()


class VHostBroker(ManagedBroker):
    """What of a broker has to do with its vhosts. `threads` and `timers` are those that vhosts share."""

    threads: DiskJobs
    timers: Timers

    def __init__(self, config: Config, log: Any, sockets: WorkerSockets | None = None) -> None:
        super().__init__(config, log, sockets)
        self.deleting: set[str] = set()  # vhosts
        self.vhost_timers = VHostTimers(self.make_clock, self.report)
        self._starting: list[VHostStore] = []  # that belong to no vhost yet
        self._deleted = DeletedVHosts()

    # -- what they stand on -------------------------------------------------------------------------------------------

    def make_disk(self) -> Disk:
        return Disk()

    def make_clock(self) -> Clock:
        return Clock()

    def raise_data_format(self, number: int) -> None:
        """Keeps brokers out of the data directory that do not know this format. Raises OSError."""
        raise NotImplementedError

    def store_trouble(self, vhost: str, reason: str) -> None:
        """The disk of a vhost's store fails, for this reason; "": it works again."""
        raise NotImplementedError

    def tell_alarm(self) -> None:
        """Clients hear who is held, and who is not any more."""
        raise NotImplementedError

    def report(self, fault: Exception) -> None:
        """A fault of ours in one queue or connection; the others go on."""
        raise NotImplementedError

    async def remove_folder(self, path: str) -> None:
        """Raises OSError."""
        await asyncio.to_thread(self.make_disk().remove_tree, path)

    # -- opened and closed --------------------------------------------------------------------------------------------

    def load_vhost(self, name: str) -> None:
        """Starts the store of a vhost that the definitions have, and lets clients in. Raises StartError."""
        disk, path, settings, log = self.make_disk(), self.vhost_path(name), self.store_settings(), self.log.bind(vhost=name)
        disk.remove_tree(f"{path}/{SNAPSHOT}")  # of a backup that was cut short
        self.open_vhost(name, VHostStore(disk, self.threads, path, settings, log, VHostHost(self, name)))

    def open_vhost(self, name: str, store: VHostStore) -> VHost:
        """The same, on this store. Raises StartError."""
        self._starting.append(store)
        queue_max, defaults = self.config.users.queue_max, self._queue_defaults()
        vhost = VHost(name, self.definitions, store, self._timers_of(name), self.node.turn, queue_max, defaults)
        events = self.node.events
        if events is not None:
            vhost.events = events
        vhost.load()
        self.node.vhosts[name] = vhost
        self._starting.remove(store)
        return vhost

    def _timers_of(self, vhost: str) -> Timers:
        """What expires in this vhost is called by these; of its own, if it may have to rest while the broker goes on."""
        return self.vhost_timers.begin(vhost) if self.config.cluster.engine else self.timers

    async def leave_vhost(self, name: str, reason: str) -> None:
        """Lets go of a vhost that others own now: its connections end, its directory and its definitions stay as they are."""
        vhost = self.node.vhosts.pop(name, None)
        if vhost is None:
            self.abandon_starting()
            return
        self.vhost_timers.end(name)
        vhost.definitions = Definitions(None)  # what its queues still do as they end is no change of ours
        self.close_connections([each for each in self.clients.connections if each.session.vhost is vhost], reason)
        await close_store(vhost.store)
        self.alarms.store_recovered(name)

    async def shut_vhost(self, name: str, reason: str) -> None:
        """Brings a vhost to rest and forgets it, while the broker goes on: what is on disk is what a stop leaves.

        Raises BrokerError when something could not be written; NotAtRest.
        """
        vhost = self.node.vhosts.pop(name)
        await self.end_clients(vhost, reason)
        self.commit()
        self.vhost_timers.end(name)
        failures = vhost.store.journal.epoch_failures
        late = await stop_stores([vhost], self.threads, Grace(self.config.node.stop_grace / 1000), self.log)
        vhost.definitions = Definitions(None)
        self.alarms.store_recovered(name)
        if late:
            raise NotAtRest(f"the store of vhost '{name}' does not come to rest: start the broker again")
        if vhost.store.journal.epoch_failures > failures:
            raise BrokerError(f"the disk does not take the last of vhost '{name}'")

    async def end_clients(self, vhost: VHost, reason: str) -> None:
        """Closes a vhost's connections, and returns when none of them is left: those that do not go in time are cut."""
        loop = asyncio.get_running_loop()
        self.close_connections([each for each in self.clients.connections if each.session.vhost is vhost], reason)
        ends = loop.time() + CLOSE_GRACE_S
        while theirs := [each for each in self.clients.open if each.connection.session.vhost is vhost]:
            if loop.time() > ends:
                for client in theirs:
                    client.socket.abort()
            await asyncio.sleep(GONE_S)

    def vhost_path(self, name: str) -> str:
        return str(self.config.node.data_path() / "vhosts" / vhost_folder(name))

    def _queue_defaults(self) -> QueueDefaults:
        defaults = QueueDefaults()
        defaults.confirm_mode = self.config.store.confirm_mode
        defaults.queue_type = self.config.queues.default_queue_type
        defaults.delivery_limit = self.config.queues.quorum_delivery_limit
        defaults.quorum_priorities = self.config.queues.quorum_priorities
        return defaults

    def store_settings(self) -> StoreSettings:
        settings = StoreSettings()
        config = self.config.store
        settings.queue_index_embed_msgs_below = config.embed_below_bytes()
        settings.queue_index_max_journal_entries = config.queue_index_max_journal_entries
        settings.msg_store_file_size_limit = config.file_size_limit_bytes()
        return settings

    def add_vhost(self, name: str, metadata: str) -> None:
        if name in self.deleting:
            raise BrokerError(f"vhost '{name}' is being deleted")
        if name in self.backups.restoring:
            raise BrokerError(f"vhost '{name}' is being restored")
        if name in self.node.owned_elsewhere:  # another one of this name would take messages that nobody replicates
            owner = self.node.owned_elsewhere[name]
            raise BrokerError(f"it is replicated, and owned by node '{owner}'" if owner else "it is replicated, or about to be")
        self.definitions.add_vhost(name, metadata)
        try:
            self.load_vhost(name)
        except (StartError, DefinitionsError):
            self.definitions.delete_vhost(name)
            self.abandon_starting()
            raise

    async def delete_vhost(self, name: str) -> None:
        vhost = self.node.vhosts.pop(name)
        self._deleted.leaving.append(vhost)
        self.deleting.add(name)
        try:
            self.close_connections(
                [each for each in self.clients.connections if each.session.vhost is vhost], f"vhost '{name}' is deleted"
            )
            self.node.users.forget_vhost(name)
            self.definitions.delete_vhost(name)
            try:
                self.commit()
            finally:
                await self._empty(vhost)
                await close_store(vhost.store)
                self.alarms.store_recovered(name)
            try:
                await self.remove_folder(vhost.store.path)
            except OSError as error:  # the next start tries again
                self.log.error("vhost folder not removed", path=vhost.store.path, error=str(error))
        finally:
            self.deleting.discard(name)
            self.vhost_timers.end(name)
            self.node.totals.closed_of_vhosts.pop(name, None)

    async def _empty(self, vhost: VHost) -> None:
        """Deletes all queues of a deleted vhost, a few at a time; what that notes in the definitions says nothing new."""
        for number, queue in enumerate(list(vhost.queues.values()), 1):
            vhost.delete_queue(queue)
            if number % DELETE_AT_ONCE == 0:
                self.node.turn.commit_due = True
                self.node.turn.wake()
                await asyncio.sleep(0)
        for delay_queue in vhost.delay_queues():
            delay_queue.delete()
        self._deleted.leaving.remove(vhost)
        self._deleted.add(vhost)

    def abandon_starting(self) -> None:
        for store in self._starting:
            store.abandon()
        self._starting.clear()


async def close_store(store: VHostStore) -> None:
    """Lets what the threads do for the store of a deleted vhost come to an end."""
    store.stop_work()
    store.push()
    while store.is_busy() or not (store.trouble.epoch or store.push()):  # noqa: ASYNC110 -- see below
        await asyncio.sleep(0.01)  # rare, and not worth a way for a store to tell it
    store.abandon()
    while store.persistent_messages.is_compacting() or store.transient_messages.is_compacting():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
