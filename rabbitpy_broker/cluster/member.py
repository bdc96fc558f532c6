"""A node as a member of a cluster: its lease, and for each replicated vhost a task that follows it, owns it, or ends.

    follow --the owner's lease has ended, and ours is there--> take over --> own --another has claimed, or fenced--> follow
           --the owner has handed it over to us------------->                --it is handed over (transfer.py)---->

A vhost is replicated by its record in the registry, `vhost/NAME`: its metadata, and the nodes that have it. All of them follow
it but one. When to take over is a guess by leases, and may be wrong at no more cost than a move; that only one owner's blocks
count is the log's doing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from rabbitpy_broker.cluster.blocks import Ended, NewerBlock
from rabbitpy_broker.cluster.checkpoints import BackOff, Checkpoints, Restoring
from rabbitpy_broker.cluster.compression import DamagedBlock
from rabbitpy_broker.cluster.deletion import Deletions, remove_from_engine
from rabbitpy_broker.cluster.directory import VHostDirectory
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.follower import Follower, take_over
from rabbitpy_broker.cluster.lasting import lasting
from rabbitpy_broker.cluster.log import ClusterError, Trimmed, Unavailable
from rabbitpy_broker.cluster.log_upkeep import LogUpkeep
from rabbitpy_broker.cluster.making import NameUsed, make, plain_at, take_back
from rabbitpy_broker.cluster.membership import PREFIX, VHostRecord, has_left, record_key
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.numbers import CountedLog, Numbers
from rabbitpy_broker.cluster.own_lease import OwnLease
from rabbitpy_broker.cluster.owner_log import OwnerLog
from rabbitpy_broker.cluster.ownership import NOBODY, Owner, OwnerRecord
from rabbitpy_broker.cluster.registry import Conflict
from rabbitpy_broker.cluster.shared_table import SETTLE_S, NotShared
from rabbitpy_broker.cluster.transfer import HandOver, NotGiven, able
from rabbitpy_broker.cluster.writer import Writer
from rabbitpy_broker.definitions import Change, Rows
from rabbitpy_broker.errors import BrokerError, StartError
from rabbitpy_broker.storage.journal import Journal

RENEW_S: Final = 1.0
STOP_S: Final = 3.0
GATHER_S: Final = 0.1  # a follower that is level lets blocks gather: each read has a write and a sync of its own
MUCH_BYTES: Final = 1 << 20  # in a read: there may be more
HOLD_AFTER_S: Final = 3.0  # that an epoch has waited for the log
BECOMING: Final = "becoming"  # marks of conversion.py
FORMERLY: Final = "formerly"
DAMAGED_S: Final = 30.0  # after which what was damaged is read again
SILENT_S: Final = 5.0  # an engine that says nothing for so long is not reachable


class NotAtRest(BrokerError):
    """A thread still writes to the directory of a vhost that was closed, and nobody knows for how long."""


class Home:
    """The broker, as its replicated vhosts see it."""

    def new_directory(self, name: str) -> VHostDirectory:
        """Of a vhost that is followed."""
        raise NotImplementedError

    def restoring(self, name: str) -> Restoring:
        """Of the directory of a vhost that is neither open nor followed."""
        raise NotImplementedError

    def rows_of(self, name: str) -> Rows:
        """The definitions of a vhost."""
        raise NotImplementedError

    def changes_of(self, name: str) -> list[Change]:
        """What has changed in the definitions of a vhost since the last call, on disk. The first one only begins with it."""
        raise NotImplementedError

    def changes_settled(self, name: str) -> None:
        """The log has all changes that `changes_of` has given."""
        raise NotImplementedError

    def reads_changes(self, nodes: list[str]) -> bool:
        """Whether all of these nodes read blocks with changes of definitions, by what each has told last."""
        raise NotImplementedError

    def compresses(self, nodes: list[str]) -> bool:
        """Whether blocks are compressed that these nodes are to read."""
        raise NotImplementedError

    def snapshot_rows(self, name: str) -> Rows:
        """As `rows_of`, to go with what the directory has now. Raises DeletionUnderWay."""
        raise NotImplementedError

    async def repair(self, name: str) -> bool:
        """Removes the directory of a vhost that is not open if a deletion that the log may not have has taken something from
        it; says so. Raises OSError, BrokerError.
        """
        raise NotImplementedError

    def open_owned(self, name: str, metadata: str, log: OwnerLog, directory: VHostDirectory) -> Journal:
        """Opens a vhost on the directory in which it was followed, and lets clients in. Raises StartError."""
        raise NotImplementedError

    async def close_owned(self, name: str, owner: str) -> None:
        """Ends its connections, and lets go of its directory, with nothing more said to anybody; if it is open."""
        raise NotImplementedError

    async def remove_copy(self, name: str) -> None:
        """Removes what this node has of a vhost that is not open: definitions and directory. Raises OSError, BrokerError."""
        raise NotImplementedError

    async def drop_copy(self, name: str) -> None:
        """As `remove_copy`, of a vhost that other nodes have. Raises OSError, BrokerError."""
        raise NotImplementedError

    def incarnations(self) -> dict[str, str]:
        """Of the replicated vhosts that this node has a copy of, by name. To be asked before anything is open."""
        raise NotImplementedError

    def has_plain(self, name: str) -> bool:
        """Whether a vhost of this name is here that is not replicated."""
        raise NotImplementedError

    def marks(self, kind: str) -> dict[str, str]:
        """The plain vhosts whose metadata have this mark of a conversion, with the incarnation in it (conversion.py)."""
        raise NotImplementedError

    def metadata(self, name: str) -> str:
        """What the definitions have of a vhost, without marks."""
        raise NotImplementedError

    def put_metadata(self, name: str, metadata: str, mark: str = "", incarnation: str = "") -> None:
        """Changes it, on disk when this returns, and the mark with it. Raises BrokerError."""
        raise NotImplementedError

    async def shut_plain(self, name: str, reason: str) -> None:
        """Ends a plain vhost's connections, and brings it to rest, as a stop does. Raises BrokerError, NotAtRest."""
        raise NotImplementedError

    def open_plain(self, name: str) -> None:
        """Opens a vhost that the definitions have as a plain one. Raises BrokerError."""
        raise NotImplementedError

    async def delete_plain(self, name: str) -> None:
        """Deletes one that is open, if it is there. Raises BrokerError."""
        raise NotImplementedError

    def tell_owner(self, name: str, owner: str) -> None:
        """Clients that ask for the vhost here are told who has it; "": nobody yet."""
        raise NotImplementedError

    def forget_owner(self, name: str) -> None:
        """There is no replicated vhost of that name any more."""
        raise NotImplementedError

    def hold_publishers(self, name: str, reason: str) -> None:
        """The log does not take what the vhost's publishers send, for this reason; "": it does again."""
        raise NotImplementedError

    def hold_deliveries(self, name: str, held: bool) -> None:
        """Delivers nothing of the vhost, or goes on, if it is open: another node may own it."""
        raise NotImplementedError

    def close_clients(self, name: str, reason: str) -> None:
        """Ends the vhost's connections."""
        raise NotImplementedError

    async def quiesce(self, name: str, reason: str, within_s: float) -> bool:
        """Takes nothing more of the vhost's publishers, and returns when all that they have sent is in the log and confirmed.

        False: that takes longer than `within_s`, and they go on.
        """
        raise NotImplementedError

    def deposed(self, name: str) -> None:
        """The log of a vhost that is open here takes nothing of this node any more. Its clients are told that, and no more."""
        raise NotImplementedError


class Replica:
    """One replicated vhost on one node."""

    def __init__(self, member: Member, name: str, record: VHostRecord) -> None:
        self.member = member
        self.name = name
        self.record = record
        self.owner = NOBODY
        self.position = 0
        self.log: OwnerLog | None = None
        self.ended_at = ""  # the node at which it is a plain vhost now
        self.upkeep: LogUpkeep | None = None  # while there is a directory
        self._owners = OwnerRecord(member.engine.registry, record.incarnation)
        self._checkpoints = Checkpoints(member.engine.objects, record.incarnation)
        self._back_off = BackOff()
        self._looked = 0.0  # of `time.monotonic`, as a follower
        self._lost = asyncio.Event()
        self._leaving: HandOver | None = None
        self._is_held = False
        self._quiet_until = 0.0  # of `time.monotonic`: until then the owner of before may deliver
        self.task: asyncio.Task[None] | None = None

    async def end(self, reason: str) -> None:
        """Lets go of the vhost, whatever it is here; its clients are told the reason."""
        self.member.home.close_clients(self.name, reason)
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def run(self) -> None:
        """Until it is cancelled, or the member stops. What the engine or the disk cannot do now is tried again."""
        self._leaving = None  # of a run that a fault has ended
        told = ""
        while not self.member.is_stopping:
            try:
                await self._follow()
            except Ended as ended:
                self.ended_at = ended.node
                return
            except NewerBlock as error:
                self.member.log.error("replicated vhost not followed", vhost=self.name, error=str(error))
                await self.leave_to_others()
                return
            except DamagedBlock as error:  # it may be whole when it is read again, or by another node; or a checkpoint has it
                if str(error) != told:
                    self.member.log.error("replicated vhost not followed", vhost=self.name, error=str(error))
                told = str(error)
                await self.leave_to_others()
                await asyncio.sleep(DAMAGED_S)
            except Trimmed as trimmed:
                with suppress(ClusterError):  # `_follow` says it
                    await self._restore(trimmed.first)
            except (BrokerError, OSError) as error:
                told = self._warn(error, told)
            else:
                told = ""
            if self._leaving is None:
                await asyncio.sleep(RENEW_S)
            self._leaving = None

    async def hand_over(self, to: str, reason: str, within_s: float) -> Owner:
        """Has node `to` own the vhost, and returns what the record says then. Raises as `leave`."""
        return await self.leave(HandOver(to), reason, within_s)

    async def leave(self, leaving: HandOver, reason: str, within_s: float) -> Owner:
        """Closes the vhost here, of which this node is the owner, and completes what it is closed for. The clients are told the
        reason.

        Raises NotGiven, and the vhost goes on here; other ClusterErrors after it was closed.
        """
        if self.log is None or self._leaving is not None:
            raise NotGiven(f"vhost '{self.name}' is not owned by this node, or is being handed over")
        self._leaving = leaving
        try:
            is_quiet = await self.member.home.quiesce(self.name, reason, within_s)
        except BaseException:
            self._leaving = None
            raise
        if not is_quiet or self.log is None or self._lost.is_set():
            self._leaving = None
            raise NotGiven(f"the log of vhost '{self.name}' takes nothing, or not in time")
        self.member.home.close_clients(self.name, reason)
        self._lost.set()
        return await leaving.done

    async def leave_to_others(self) -> None:
        """This node does not take the vhost over: if it is named as the owner, somebody else is to be."""
        registry, node = self.member.engine.registry, self.member.node
        with suppress(ClusterError):
            owner = await self._owners.read()
            nodes = {name: NodeInfo.unpacked(info) for name, info in (await registry.alive()).items()}
            others = able(nodes, self.record.replicas, self.name, node)
            if owner.node == node and others:
                await self._owners.give(owner, others[0])

    async def _follow(self) -> None:
        """Follows; owns, when it has come to that; returns when it does no more."""
        member = self.member
        if await member.home.repair(self.name):
            member.log.warning("a deletion was cut short: the vhost is read again from its log", vhost=self.name)
        directory = member.home.new_directory(self.name)
        upkeep = None
        try:
            await directory.open()
            self.position = directory.position
            if not self.position and await self._checkpoints.newest():
                raise Trimmed(0)  # it would read all that is still there
            upkeep = self.upkeep = self._upkeep_of(directory)
            writer = await self._follow_until_due(directory, upkeep)
            self.owner = Owner(member.node, writer.term)
            self._lost.clear()
            home = member.home
            self.log = OwnerLog(
                writer, lambda: home.rows_of(self.name), lambda: home.changes_of(self.name),
                lambda: home.changes_settled(self.name), self._deposed, lambda: home.reads_changes(self.record.replicas),
                lambda: home.compresses(self.record.replicas),
            )  # fmt: skip
            try:
                await self._own(self.log, directory, upkeep)
            finally:
                self.log = None
                await home.close_owned(self.name, self.owner.node)
            if self._leaving is not None:
                if await self._leaving.complete(self._owners, writer, member.node):
                    member.log.info("vhost handed over", vhost=self.name, to=self._leaving.to)
        finally:
            if self._leaving is not None:
                self._leaving.failed(NotGiven("another node has taken it over, or the disk has failed"))
            self.upkeep = None
            if upkeep is not None:
                await upkeep.end()
            await directory.close()

    def _deposed(self) -> None:
        """The log takes nothing of ours any more; nobody has been told yet."""
        self._lost.set()
        self.member.home.deposed(self.name)

    def _upkeep_of(self, directory: VHostDirectory) -> LogUpkeep:
        member = self.member
        return LogUpkeep(
            member.engine, member.node, self.record.incarnation, self.record.log_name(self.name),
            lambda: self.record.replicas, directory, lambda: member.home.snapshot_rows(self.name), member.checkpoint_bytes,
            member.log.bind(vhost=self.name),
        )  # fmt: skip

    def _keep_up(self, upkeep: LogUpkeep) -> asyncio.Task[None]:
        run = partial(upkeep.run, lambda: self.owner.node)
        return asyncio.ensure_future(lasting(run, self.member.log, part="upkeep of a replicated log", vhost=self.name))

    async def _restore(self, first: int) -> None:
        """The log does not have any more what this node needs next: a checkpoint has."""
        member = self.member
        newest = await self._checkpoints.newest()
        name = "" if newest is None else newest.name
        if self._back_off.waits(name):
            return
        try:
            loaded = await self._checkpoints.load(member.home.restoring(self.name), first, self.position)
        except (BrokerError, OSError) as error:
            again_s = self._back_off.failed(name)
            member.log.warning("checkpoint not loaded", vhost=self.name, error=str(error), again_s=again_s)
            return
        if loaded is None:
            member.log.error("the log begins behind what this node has, and there is no checkpoint", vhost=self.name)
        else:
            member.log.info("checkpoint loaded", vhost=self.name, position=loaded.position, mb=round(loaded.size / 1e6, 1))

    async def _follow_until_due(self, directory: VHostDirectory, upkeep: LogUpkeep) -> Writer:
        """Follows until nobody who lives has the vhost, and takes it over; the directory has then all of it."""
        member = self.member
        numbers = member.numbers.of(self.name)
        log = CountedLog(member.engine.log(self.record.log_name(self.name)), numbers)
        follower = Follower(log, directory)
        told = ""
        keeping = self._keep_up(upkeep)
        try:
            while True:
                try:
                    if await self._follow_on(follower, directory, upkeep):
                        break
                    told = ""
                except Unavailable as error:  # of what is here nothing was lost: the directory stays open
                    told = self._warn(error, told)
                    await asyncio.sleep(RENEW_S)
            writer = await take_over(
                log, self._owners, member.node, follower, self.owner, max_block=member.engine.max_block
            )
            numbers.took_over()
            self._quiet_until = await self._until_it_knows(self.owner.node)
            return writer
        finally:
            await ended(keeping)
            upkeep.not_followed()
            await follower.close()

    async def _follow_on(self, follower: Follower, directory: VHostDirectory, upkeep: LogUpkeep) -> bool:
        """Applies what is there, and looks around once a second; whether this node is to take over."""
        member = self.member
        await follower.read(RENEW_S)
        self.position = directory.position
        is_given = follower.given_to == member.node
        if 0 < follower.read_bytes < MUCH_BYTES and not is_given:
            await asyncio.sleep(GATHER_S)
        if time.monotonic() - self._looked < RENEW_S and not is_given:
            return False
        self._looked = time.monotonic()
        await directory.sync()
        await directory.tick()
        await upkeep.followed()
        self.owner = await self._owners.read()
        member.home.tell_owner(self.name, self.owner.node)
        return await self._is_due()

    def _warn(self, error: Exception, told: str) -> str:
        """Says what cannot be done now, unless that is what was told last."""
        if str(error) != told:
            self.member.log.warning("replicated vhost", vhost=self.name, error=str(error))
        return str(error)

    async def _is_due(self) -> bool:
        """Whether this node is to take over: nobody has the vhost who lives, and of whom it is a replica.

        A node may have claimed it while it ceased to be a replica.
        """
        node, owner, replicas = self.member.node, self.owner.node, self.record.replicas
        alive = await self.member.engine.registry.alive()
        if node not in alive or self.member.is_drained:
            return False
        if owner not in replicas or owner == node:
            first = replicas[0]
            is_away = first not in alive or NodeInfo.unpacked(alive[first]).maintenance
            return node in (owner, first) or is_away
        return owner not in alive and self.member.lease.is_steady()

    async def _until_it_knows(self, former: str) -> float:
        """When the owner of before delivers nothing any more, of `time.monotonic`.

        It may have renewed its lease between our having seen that ended and our claim, which an engine may have delayed. Then it
        looks at the record, once a second, and finds us there, if the engine answers it within half a lease. One that is still
        without a lease looks before it delivers.
        """
        if former == self.member.node or not former:
            return 0.0
        with suppress(ClusterError):
            if former not in await self.member.engine.registry.alive():
                return 0.0
        return time.monotonic() + 2 * self.member.lease.lasts_s + RENEW_S

    async def _own(self, log: OwnerLog, directory: VHostDirectory, upkeep: LogUpkeep) -> None:
        """Until somebody else does."""
        home = self.member.home
        journal = home.open_owned(self.name, self.record.metadata, log, directory)
        home.tell_owner(self.name, self.member.node)
        log.definitions_due(journal)
        self.member.log.info("vhost owned", vhost=self.name, term=log.writer.term)
        lease = self.member.lease
        home.hold_deliveries(self.name, not lease.is_valid() or time.monotonic() < self._quiet_until)
        asked, asked_at = asyncio.ensure_future(self._owners.read()), time.monotonic()  # an engine may take long to answer
        keeping = self._keep_up(upkeep)
        try:
            while not self._lost.is_set() and self.owner.node == self.member.node:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._lost.wait(), RENEW_S)
                self.position = log.writer.position
                self._hold(log.waits_s())
                if asked.done():
                    with suppress(ClusterError):
                        self.owner = asked.result()
                        is_ours = self.owner.node == self.member.node and asked_at >= self._quiet_until
                        if is_ours and lease.was_settled(asked_at):
                            home.hold_deliveries(self.name, False)
                    asked, asked_at = asyncio.ensure_future(self._owners.read()), time.monotonic()
        finally:
            asked.cancel()
            await ended(keeping)
            await upkeep.end()
            self._hold(0.0)
        if self._leaving is None:
            self.member.log.warning("vhost lost to another node", vhost=self.name, owner=self.owner.node)

    def _hold(self, waits_s: float) -> None:
        home = self.member.home
        if (waits_s > HOLD_AFTER_S) != self._is_held:
            self._is_held = not self._is_held
            home.hold_publishers(self.name, f"the log of vhost '{self.name}' takes nothing" if self._is_held else "")
        if waits_s > self.member.append_timeout_s:
            home.close_clients(self.name, f"the log of vhost '{self.name}' is not available")


async def ended(task: asyncio.Task[None]) -> None:
    """Ends it; what it still says to an engine that does not answer is not waited for."""
    task.cancel()
    await asyncio.wait([task], timeout=1.0)


class Member:
    """`start` and `stop`; `node` is the name that owners are known by, `info` what others are told with the lease."""

    def __init__(
        self,
        engine: Engine,
        home: Home,
        node: str,
        info: Callable[[], bytes],
        lease_s: float,
        append_timeout_s: float,
        checkpoint_bytes: int,
        log: Any,
    ) -> None:
        self.engine = engine
        self.home = home
        self.node = node
        self.log = log
        self.append_timeout_s = append_timeout_s
        self.checkpoint_bytes = checkpoint_bytes
        self.replicas: dict[str, Replica] = {}
        self.is_drained = False  # it takes nothing over, and nothing is given to it
        self.is_stopping = False
        self.started = asyncio.Event()  # the engine is
        self.numbers = Numbers()
        self.reachable_since: float | None = None  # the engine, in seconds of the epoch; None: it was not yet
        self._info = info
        self.lease = OwnLease(lease_s, self._lease_ended)
        self._renewed = time.monotonic()  # or when it began
        self._tasks: list[asyncio.Task[None]] = []
        self._making: set[str] = set()  # incarnations that this node is about to make
        self._copies: dict[str, str] = {}  # name -> incarnation, of what this node has a copy of
        self.deletions = Deletions(engine.registry)
        self.endings = Deletions(engine.registry, "ended/")
        self._removing: dict[str, asyncio.Task[None]] = {}
        self.converting: set[str] = set()  # vhosts of which it is not known yet what they are, or that are to be cleaned up after
        self._kept: set[str] = set()  # names of vhosts that some node is making replicated
        self.conversions: dict[str, bool] = {}  # told to others: see NodeInfo
        self._told: set[str] = set()  # names of which something was said that stays true

    async def start(self) -> None:
        """Raises StartError when the engine cannot be used. One that does not answer is tried again, behind `start`."""
        try:
            await self.engine.start()
        except Unavailable as error:
            self.log.warning("cluster engine not available", error=str(error))
        except ClusterError as error:
            raise StartError(f"cluster.engine: {error}") from None
        else:
            self.started.set()
        self._copies = self.home.incarnations()
        self.converting |= {*self.home.marks(BECOMING), *self.home.marks(FORMERLY)}
        self._tasks.append(asyncio.ensure_future(lasting(self._keep_alive, self.log, part="lease of this node")))

    async def tell(self) -> None:
        """Renews the lease, and with it what others know of this node. Raises `Unavailable`, `OutcomeUnknown`."""
        began = time.monotonic()
        await self.engine.registry.keep_alive(self.node, self.lease.lasts_s, self._info())
        self.lease.renewed(began)
        self._is_renewed(time.monotonic())

    async def settle(self) -> None:
        """Returns when the logs have what was declared in the vhosts that this node owns. Raises NotShared."""
        for name, replica in list(self.replicas.items()):
            if replica.log is None:
                continue
            with suppress(TimeoutError):
                if await asyncio.wait_for(replica.log.settle(), SETTLE_S):
                    continue
            raise NotShared(f"changed on this node; the log of vhost '{name}' may not have it, or not yet")

    async def _start_later(self) -> None:
        told = ""
        while not self.started.is_set():
            await asyncio.sleep(RENEW_S)
            try:
                await self.engine.start()
                self.started.set()
            except (ClusterError, StartError) as error:
                if str(error) != told:
                    told = str(error)
                    self.log.warning("cluster engine not available", error=told)

    async def stop(self) -> None:
        """What is still owned is then for others to take."""
        self.is_stopping = True
        tasks = [*self._tasks, *self._removing.values()]
        for task in tasks:
            task.cancel()
        self.lease.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)  # an engine that does not answer is not waited for
        with suppress(ClusterError, TimeoutError):
            await asyncio.wait_for(self.engine.registry.leave(self.node), 1.0)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.engine.stop(), 1.0)

    async def add(self, name: str, metadata: str, count: int) -> None:
        """Makes a replicated vhost of so many replicas, this node among them.

        Raises ClusterError: `Conflict` when there is one, `NameUsed` when a node has a plain one; ValueError when there are not
        so many nodes.
        """
        async def nothing() -> None:
            """It begins with an empty log."""

        await self.make(name, await self.new_record(name, metadata, count), nothing)

    async def make(self, name: str, record: VHostRecord, prepare: Callable[[], Awaitable[None]]) -> None:
        """Makes the vhost of a new record; `prepare` makes what is to be in the engine besides its log.

        Raises `Conflict` when the name is used, other ClusterErrors, and what `prepare` raises: then nothing of it is left, as
        soon as the engine can be reached.
        """
        incarnation = record.incarnation

        async def prepare_unless_plain() -> None:
            plain = await plain_at(self.engine.registry, self.node, incarnation)
            if plain:
                raise NameUsed(f"nodes that have a vhost of that name which is not replicated: {', '.join(plain)}")
            await prepare()

        self._making.add(incarnation)
        try:
            try:
                await make(self.engine, self.node, name, record, prepare_unless_plain)
            except BaseException:
                with suppress(ClusterError):  # `_take_back` does it
                    await asyncio.shield(take_back(self.engine, name, incarnation))
                raise
        finally:
            self._making.discard(incarnation)

    async def is_used(self, name: str) -> bool:
        """Whether there is a replicated vhost of this name, or is about to be. Raises `Unavailable`."""
        return await self.engine.registry.get(record_key(name)) is not None

    async def new_record(self, name: str, metadata: str, count: int) -> VHostRecord:
        """Of a vhost that is to be made. Raises as `add`."""
        alive = await self.engine.registry.alive()
        nodes = [self.node, *sorted(set(alive) - {self.node})][:count]
        if len(nodes) < count:
            raise ValueError(f"{count} replicas need as many nodes, and there are {len(nodes)}")
        key = record_key(name)
        if (found := await self.engine.registry.get(key)) is not None:
            raise Conflict(key, found.version)
        incarnation = secrets.token_hex(8)
        return VHostRecord(json.dumps({**json.loads(metadata), "incarnation": incarnation}), nodes, incarnation)

    async def delete(self, name: str) -> None:
        """Deletes a replicated vhost, everywhere: when it returns it is gone here, and soon at other nodes that live.

        Raises ClusterError (it may be asked again), ValueError if there is none, OSError.
        """
        registry, key = self.engine.registry, record_key(name)
        found = await registry.get(key)
        if found is None:
            raise ValueError("there is none")
        record = msgspec.json.decode(found.value, type=VHostRecord)
        if not record.replicas:
            if record.origin in await registry.alive():
                raise ValueError(f"node '{record.origin}' is making it")
            await registry.delete(key, found.version)  # which has it as a plain one when it comes back, or not at all
            return
        await self.deletions.note(record.incarnation, record.copies())
        await registry.delete(key, found.version)
        if name in self._copies and name not in self.converting:  # if its log has ended here, conversion.py finds the deletion
            await asyncio.shield(self._remove(name, self._remove_copy))
        await remove_from_engine(self.engine, name, record.incarnation)

    def _remove(self, name: str, how: Callable[[str], Coroutine[None, None, None]]) -> asyncio.Task[None]:
        """Has this node's copy of a vhost removed."""
        task = self._removing.get(name)
        if task is None:
            task = self._removing[name] = asyncio.ensure_future(self._removed(name, how))
        return task

    async def _removed(self, name: str, how: Callable[[str], Coroutine[None, None, None]]) -> None:
        try:
            await how(name)
            self.log.info("replicated vhost removed", vhost=name)
        except (BrokerError, OSError) as error:
            self.log.warning("replicated vhost", vhost=name, error=str(error))
        finally:
            del self._removing[name]

    async def _remove_copy(self, name: str) -> None:
        """Of a vhost that was deleted."""
        await self._end_replica(name, f"vhost '{name}' is deleted")
        await self.home.remove_copy(name)
        incarnation = self._copies.pop(name)
        await remove_from_engine(self.engine, name, incarnation)  # in case that who deleted it was cut short
        await self.deletions.removed(incarnation, self.node)

    async def _remove_ended(self, name: str) -> None:
        """Of a vhost that one node has kept: what users may do there stays."""
        await self._end_replica(name, f"vhost '{name}' is on another node alone")
        await self.home.drop_copy(name)
        self.home.forget_owner(name)
        incarnation = self._copies.pop(name)
        await self.endings.removed(incarnation, self.node)
        await self.deletions.removed(incarnation, self.node)

    async def _leave(self, name: str) -> None:
        """This node has no replica of it any more; others have."""
        await self._end_replica(name, f"node '{self.node}' has no replica of vhost '{name}' any more")
        await self.home.drop_copy(name)
        await has_left(self.engine.registry, name, self._copies.pop(name), self.node)

    def has_copy(self, name: str) -> bool:
        """Whether this node has something of a vhost that is replicated, or may be."""
        return name in self._copies or name in self.converting

    def is_kept(self, name: str) -> bool:
        """Whether a vhost of this name is replicated here, or may be, or some node is making one."""
        return self.has_copy(name) or name in self._kept

    def adopt(self, name: str, incarnation: str) -> None:
        """The copy of a replicated vhost that is here is one of this incarnation."""
        self._copies[name] = incarnation

    def convert(self, name: str, replica: Replica) -> bool:
        """From now on `release` alone may end this replica; False: it is being removed, or gone."""
        if self.replicas.get(name) is not replica or name in self._removing:
            return False
        self.converting.add(name)
        return True

    async def release(self, name: str) -> None:
        """What is here of a vhost is no copy of a replicated one any more."""
        await self._end_replica(name, f"vhost '{name}' is not replicated any more")
        self._copies.pop(name, None)

    async def _note_conversions(self, records: dict[str, VHostRecord]) -> None:
        """Tells others whether they may use names that they want to; if so, nobody makes a plain vhost of that name here now."""
        found: dict[str, bool] = {}
        self._kept = {name for name, record in records.items() if not record.replicas}
        for name, record in records.items():
            if not record.replicas and record.origin != self.node:
                found[record.incarnation] = is_plain = self.home.has_plain(name) or name in self.converting
                if not is_plain:
                    self.home.tell_owner(name, "")
        if found != self.conversions:
            self.conversions = found
            await self.tell()

    def _take_back(self, records: dict[str, VHostRecord]) -> None:
        """What this node has begun to make, and was cut short in."""
        for name, record in records.items():
            is_ours = not record.replicas and record.origin == self.node
            if is_ours and record.incarnation not in self._making and name not in self.converting:
                self._remove(name, partial(take_back, self.engine, incarnation=record.incarnation))

    async def _end_replica(self, name: str, reason: str) -> None:
        replica = self.replicas.get(name)
        if replica is not None:
            await replica.end(reason)
            self._tasks = [task for task in self._tasks if task is not replica.task]
            del self.replicas[name]

    async def _look_for_deleted(self, records: dict[str, VHostRecord]) -> None:
        """Copies of vhosts that are not those of the records are removed, if they were deleted, or are to leave this node."""
        for name, incarnation in list(self._copies.items()):
            record = records.get(name)
            if name in self._removing or name in self.converting:
                continue
            if record is not None and record.incarnation == incarnation:
                if name in self.replicas:
                    self.replicas[name].record = record
                if self.node in record.leaving:
                    self._remove(name, self._leave)
            elif await self.endings.is_deleted(incarnation):
                self._remove(name, self._remove_ended)
            elif await self.deletions.is_deleted(incarnation):
                if name not in self.converting:
                    self._remove(name, self._remove_copy)
            elif name not in self._told:
                self._told.add(name)
                self.log.warning("the engine does not know a replicated vhost", vhost=name)

    async def _keep_alive(self) -> None:
        """Renews the lease, and begins with vhosts that have come; each second."""
        await self._start_later()
        told = ""
        while True:
            began = time.monotonic()
            try:
                await self.tell()
                found = await self.engine.registry.list(PREFIX)
                records = {
                    unquote(key.removeprefix(PREFIX)): msgspec.json.decode(one.value, type=VHostRecord)
                    for key, one in found.items()
                }
                await self._note_conversions(records)
                self._take_back(records)
                await self._look_for_deleted(records)
                self._begin_new(records)
                told = ""
            except ClusterError as error:
                if str(error) != told:
                    told = str(error)
                    self.log.warning("cluster engine not available", error=told)
            await asyncio.sleep(max(0.0, RENEW_S - (time.monotonic() - began)))

    def _lease_ended(self) -> None:
        for name in self.replicas:
            self.home.hold_deliveries(name, True)

    def _is_renewed(self, now: float) -> None:
        if self.reachable_since is None or now - self._renewed > SILENT_S:
            self.reachable_since = time.time()
        self._renewed = now

    def silent_s(self) -> float:
        """How long ago the engine has taken our lease; since the start, if it never did."""
        return time.monotonic() - self._renewed

    def positions(self) -> dict[str, int]:
        """How far this node is in the logs of the vhosts that it has."""
        return {
            name: replica.position if replica.log is None else replica.log.writer.position
            for name, replica in self.replicas.items()
        }

    def _begin_new(self, records: dict[str, VHostRecord]) -> None:
        for name, record in records.items():
            if name in self.replicas or name in self.converting or self.node not in record.replicas:
                continue
            if self._copies.get(name, record.incarnation) != record.incarnation or name in self._removing:
                continue  # the copy is of an earlier one, and goes first
            if self.home.has_plain(name):
                if name not in self._told:
                    self._told.add(name)
                    self.log.warning("a vhost of the same name is not replicated", vhost=name)
                continue
            self._copies[name] = record.incarnation
            replica = self.replicas[name] = Replica(self, name, record)
            replica.task = asyncio.ensure_future(lasting(replica.run, self.log, part="replicated vhost", vhost=name))
            self._tasks.append(replica.task)
