"""A vhost of one node becomes a replicated one, and a replicated one a vhost of one node again, while the broker runs.

To replicated, at the node that has it. A mark `becoming` in the vhost's metadata and a record without replicas, which keeps the
name, have an incarnation in common:

    name kept in the registry --> other nodes say that they have no such vhost --> mark --> publishers held, what they have sent
    confirmed --> clients closed with 320, vhost at rest --> new log with a fence; note in the directory: at the fence
    --> checkpoint of the directory stored --> RECORD WITH REPLICAS (registry) --> metadata: replicated, no mark --> followed

Back, at the node that owns it and keeps it:

    publishers held, what they have sent confirmed --> clients closed with 320, all of it in the log and at rest
    --> ENDED, THE LAST ENTRY (log) --> read, as by everybody who follows --> metadata: plain, with the mark `formerly`; it opens
    --> other nodes told to remove their copies; record, log and checkpoints removed --> no mark

What is in capitals decides, and is one step of the engine. Before the record has replicas nobody follows the vhost, and nobody
else can change the record to have some: whoever wants to know deletes the record at the version that it had without them, and
either that is done, and no put of before can succeed any more, or it has them. Behind ENDED nobody gets: who takes over reads
up to its own fence, meets ENDED before it, and opens nothing; if another fence stands before ENDED, it is not in the log, and
the vhost is replicated as before.

What must stay true: a vhost with the mark `becoming` is opened by nobody before the registry has said what it is; it is at rest
when the checkpoint is made, until it is decided; the note that says where the directory is in the log is on disk before the
record; nothing is deleted in the registry and in the log behind ENDED before the metadata say that the vhost is plain. So a
crash leaves one of the two, and the node finishes what it finds, or gives it up, when it is there again and the engine is.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from typing import Final

import msgspec

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.checkpoints import Checkpoints
from rabbitpy_broker.cluster.deletion import remove_from_engine
from rabbitpy_broker.cluster.log import ClusterError, OutcomeUnknown
from rabbitpy_broker.cluster.member import BECOMING, FORMERLY, RENEW_S, Member, NotAtRest, Replica
from rabbitpy_broker.cluster.membership import VHostRecord, record_key
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.ownership import Owner, OwnerRecord
from rabbitpy_broker.cluster.registry import Conflict
from rabbitpy_broker.cluster.transfer import HandOver, NotGiven
from rabbitpy_broker.cluster.writer import Writer
from rabbitpy_broker.definitions import Rows
from rabbitpy_broker.errors import BrokerError

ANSWER_S: Final = 10.0  # that other nodes have to say whether they have a vhost of the name
SETTLE_S: Final = 5.0  # that publishers' messages have to be confirmed
OPENS_S: Final = 30.0
LOOK_S: Final = 0.1


class NotConverted(ClusterError):
    """The vhost is what it was."""


class Ending(HandOver):
    """A vhost whose owner keeps it for itself."""

    async def complete(self, record: OwnerRecord, writer: Writer, node: str) -> bool:
        """The vhost is closed, and all of it in the log. The result is no hand-over: the log says what it is to everybody."""
        try:
            if writer.is_deposed:
                raise NotGiven("another node has taken it over meanwhile")
            await writer.append_last(blocks.ended(node))
        except OutcomeUnknown:
            pass  # this node follows the log, and finds it there or not
        except ClusterError as error:
            self.failed(error)
            return False
        if not self.done.done():
            self.done.set_result(Owner(node, writer.term))
        return False


class Conversions:
    """Of one node."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._home = member.home
        self._registry = member.engine.registry
        self._working: dict[str, asyncio.Task[None]] = {}  # by vhost
        self._stuck: set[str] = set()  # vhosts that are not touched any more
        self._told = ""

    # -- to replicated ------------------------------------------------------------------------------------------------

    async def replicate(self, name: str, count: int) -> None:
        """Makes a plain vhost of this node replicated, and returns when it is open again. Raises BrokerError, OSError."""
        if count < 1:
            raise NotConverted("it needs one replica at least")
        if name in self._member.replicas:
            raise NotConverted("it is replicated")
        if not self._home.has_plain(name):
            raise NotConverted("this node does not have it, or something is done with it already")
        await self._work(name, self._replicate(name, count))
        await self._until_open(name)

    async def _work(self, name: str, work: Coroutine[None, None, None]) -> None:
        """One conversion of a vhost at a time, which goes on when who has asked for it is gone."""
        if name in self._working or name in self._member.converting:
            work.close()
            raise NotConverted("something is done with it already")
        self._member.converting.add(name)
        task = self._working[name] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._working.pop(name, None))
        await asyncio.shield(task)

    async def _replicate(self, name: str, count: int) -> None:
        incarnation = secrets.token_hex(8)
        try:
            version = await self._keep_name(name, incarnation)
            nodes = await self._able(incarnation, count)
            if not self._home.has_plain(name):
                raise NotConverted("it was deleted")
            self._home.put_metadata(name, self._home.metadata(name), BECOMING, incarnation)
            self._member.log.info("vhost becomes replicated", vhost=name, replicas=nodes)
            await self._copy(name, incarnation, nodes, version)
        except NotAtRest:
            self._stuck.add(name)  # until the broker starts again
            raise
        except (BrokerError, OSError) as error:
            await self._settled(name, incarnation)
            if name in self._member.converting:
                raise NotConverted(f"{error}; it goes on when the engine is available") from None
            if name in self._member.replicas or not self._home.has_plain(name):
                return  # it was made replicated all the same
            raise
        await self._settled(name, incarnation)

    async def _keep_name(self, name: str, incarnation: str) -> int:
        """Returns the version of the record that keeps the name. Raises ClusterError."""
        key, node = record_key(name), self._member.node
        found = await self._registry.get(key)
        if found is not None:
            record = msgspec.json.decode(found.value, type=VHostRecord)
            if record.replicas:
                raise NotConverted("there is a replicated vhost of that name")
            if record.origin != node:
                raise NotConverted(f"node '{record.origin}' is making one of that name")
            await self._registry.delete(key, found.version)  # an earlier try, that was cut short
        return await self._registry.put(key, msgspec.json.encode(VHostRecord("{}", [], incarnation, origin=node)), 0)

    async def _able(self, incarnation: str, count: int) -> list[str]:
        """So many nodes, this one first, that have no vhost of the name. Raises ClusterError."""
        ends = asyncio.get_running_loop().time() + ANSWER_S
        while True:
            alive = {name: NodeInfo.unpacked(info) for name, info in (await self._registry.alive()).items()}
            alive.pop(self._member.node, None)
            if len(alive) < count - 1:
                raise NotConverted(f"{count} replicas need as many nodes, and there are {len(alive) + 1}")
            said = {node: info.conversions.get(incarnation) for node, info in sorted(alive.items())}
            free = [node for node, has_one in said.items() if has_one is False]
            if len(free) >= count - 1:
                return [self._member.node, *free[: count - 1]]
            is_late = asyncio.get_running_loop().time() > ends
            if is_late or all(has_one is not None for has_one in said.values()):
                why = f"{count} replicas need as many nodes, and {len(free) + 1} can have one"
                if others := [node for node, has_one in said.items() if has_one]:
                    why += f"; nodes that have a vhost of that name which is not replicated: {', '.join(others)}"
                if silent := [node for node, has_one in said.items() if has_one is None]:
                    why += f"; nodes that do not answer: {', '.join(silent)}"
                raise NotConverted(why)
            await asyncio.sleep(LOOK_S)

    async def _copy(self, name: str, incarnation: str, nodes: list[str], version: int) -> None:
        """From an open vhost to the record with replicas. Raises BrokerError, OSError, at whatever point."""
        member, home, engine = self._member, self._home, self._member.engine
        reason = f"vhost '{name}' becomes a replicated one"
        if not await home.quiesce(name, reason, SETTLE_S):
            raise NotConverted("the disk does not take what publishers have sent")
        await home.shut_plain(name, reason)
        metadata = json.dumps({**json.loads(home.metadata(name)), "replicas": len(nodes), "incarnation": incarnation})
        record = VHostRecord(metadata, nodes, incarnation)

        def rows() -> Rows:
            return {**home.rows_of(name), "vhosts": [[name, metadata]]}

        directory = home.new_directory(name)
        try:
            await directory.open()
            term = directory.term + 1  # above all that an earlier log of the vhost had
            await engine.create_log(record.log_name(name))
            fence = await engine.log(record.log_name(name)).append(blocks.fence(member.node), term=term)
            await directory.pass_over(fence + 1, term)
            snapshot = await directory.snapshot(rows)
            try:
                await Checkpoints(engine.objects, incarnation).save(snapshot, member.node)
            finally:
                await snapshot.remove()
        finally:
            await directory.close()
        await OwnerRecord(self._registry, incarnation).name_first(Owner(member.node, term))
        await self._registry.put(record_key(name), msgspec.json.encode(record), version)

    async def _settled(self, name: str, incarnation: str) -> None:
        """Finds out what a vhost is that was to become replicated, and has it be that, here too. With an engine that is not
        available it stays in question, and `run` does it later. Raises BrokerError.
        """
        try:
            record = await self._decided(name, incarnation)
        except ClusterError as error:
            self._say(name, error)
            return
        home, member = self._home, self._member
        if record is not None:
            home.put_metadata(name, record.metadata)
            member.adopt(name, incarnation)
            member.log.info("vhost is replicated", vhost=name, replicas=record.replicas)
        else:
            is_marked = name in home.marks(BECOMING)
            if is_marked:
                home.put_metadata(name, home.metadata(name))
                if not home.has_plain(name):
                    home.open_plain(name)
                member.log.warning("vhost was not made replicated", vhost=name)
            with suppress(ClusterError):  # what is left then of its log is in nobody's way
                await remove_from_engine(member.engine, name, incarnation)
        member.converting.discard(name)

    async def _decided(self, name: str, incarnation: str) -> VHostRecord | None:
        """The record that makes the vhost a replicated one; None: there is none, and never will be. Raises `Unavailable`."""
        key = record_key(name)
        while True:
            found = await self._registry.get(key)
            record = None if found is None else msgspec.json.decode(found.value, type=VHostRecord)
            if found is None or record is None or record.incarnation != incarnation:
                if await self._member.deletions.is_deleted(incarnation):  # it was one, and its copy here goes as any does
                    metadata = {**json.loads(self._home.metadata(name)), "replicas": 1, "incarnation": incarnation}
                    return VHostRecord(json.dumps(metadata), [], incarnation)
                return None
            if record.replicas:
                return record
            try:
                await self._registry.delete(key, found.version)
            except (Conflict, OutcomeUnknown):
                continue
            return None

    async def _until_open(self, name: str) -> None:
        ends = asyncio.get_running_loop().time() + OPENS_S
        while (replica := self._member.replicas.get(name)) is None or replica.log is None:
            if asyncio.get_running_loop().time() > ends:
                raise NotConverted(f"it is replicated now, and this node has not opened it within {OPENS_S:g} s")
            await asyncio.sleep(LOOK_S)

    # -- back ---------------------------------------------------------------------------------------------------------

    async def unreplicate(self, name: str) -> None:
        """Makes a replicated vhost that this node owns its own, and returns when it is open. Raises BrokerError."""
        if name in self._member.converting:
            raise NotConverted("something is done with it already")
        replica = self._member.replicas.get(name)
        if replica is None or replica.log is None:
            owner = replica.owner.node if replica is not None else ""
            why = f"node '{owner}' owns it" if owner else "this node does not own it"
            raise NotConverted(f"{why}: give the command there, or have this node own it first")
        await replica.leave(Ending(self._member.node), f"vhost '{name}' stays with node '{self._member.node}' alone", SETTLE_S)
        ends = asyncio.get_running_loop().time() + OPENS_S
        while not self._home.has_plain(name):
            if replica.log is not None:
                raise NotConverted("the engine did not take it; it is replicated")
            if not self._member.has_copy(name):
                raise NotConverted("it was deleted")
            if asyncio.get_running_loop().time() > ends:
                raise NotConverted(f"this node has not opened it within {OPENS_S:g} s")
            await asyncio.sleep(LOOK_S)

    async def _be_plain(self, name: str, replica: Replica) -> None:
        """The log has ended, and says that the vhost is this node's own. Raises BrokerError."""
        member, home, incarnation = self._member, self._home, replica.record.incarnation
        if await self._is_deleted(name, incarnation) or not member.convert(name, replica):
            return  # its copy goes as any does
        await member.release(name)
        metadata = json.loads(home.metadata(name))
        plain = {key: value for key, value in metadata.items() if key not in ("replicas", "incarnation")}
        home.put_metadata(name, json.dumps(plain), FORMERLY, incarnation)
        home.open_plain(name)
        member.log.info("vhost is not replicated any more", vhost=name)

    async def _is_deleted(self, name: str, incarnation: str) -> bool:
        """Whether the vhost was deleted, as a replicated one: its record is gone, and not by us. Raises `Unavailable`."""
        found = await self._registry.get(record_key(name))
        if found is not None and msgspec.json.decode(found.value, type=VHostRecord).incarnation == incarnation:
            return False
        return await self._member.deletions.is_deleted(incarnation)

    async def _clean_up(self, name: str, incarnation: str) -> None:
        """Behind a vhost that was replicated, and is plain here: in the registry, in the engine, at other nodes. One that was
        deleted before its record was ours to remove goes.

        Raises BrokerError: then again.
        """
        member, key, node = self._member, record_key(name), self._member.node
        found = await self._registry.get(key)
        record = None if found is None else msgspec.json.decode(found.value, type=VHostRecord)
        if found is not None and record is not None and record.incarnation == incarnation:
            if others := [one for one in record.copies() if one != node]:
                await member.endings.note(incarnation, others)
            await self._registry.delete(key, found.version)
            await member.deletions.forget(incarnation)  # of somebody who was slower
        elif await member.deletions.is_deleted(incarnation):
            await self._home.delete_plain(name)
            await remove_from_engine(member.engine, name, incarnation)
            await member.deletions.removed(incarnation, node)
            member.converting.discard(name)
            member.log.info("vhost deleted, which was replicated until now", vhost=name)
            return
        await remove_from_engine(member.engine, name, incarnation)
        self._home.put_metadata(name, self._home.metadata(name))
        member.converting.discard(name)

    # -- what a crash has left, and what logs say ---------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                try:
                    await self._look()
                    self._told = ""
                except (BrokerError, OSError) as error:
                    self._say("", error)
                await asyncio.sleep(RENEW_S)
        finally:
            for task in self._working.values():
                task.cancel()
            if self._working:
                await asyncio.wait(self._working.values())

    async def _look(self) -> None:
        member = self._member
        for name, replica in list(member.replicas.items()):
            if replica.ended_at == member.node:
                await self._be_plain(name, replica)
        if not member.converting - set(self._working) - self._stuck:
            return
        for name, incarnation in self._home.marks(BECOMING).items():
            if name not in self._working and name not in self._stuck:
                await self._settled(name, incarnation)
        for name, incarnation in self._home.marks(FORMERLY).items():
            await self._clean_up(name, incarnation)

    def _say(self, name: str, error: Exception) -> None:
        if str(error) != self._told:
            self._told = str(error)
            self._member.log.warning("conversion of a vhost waits", vhost=name, error=self._told)

