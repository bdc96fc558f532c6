"""Which replicated vhost goes to which node, because somebody says so: on request, for maintenance, at a stop.

A request may come to any node. One that does not own the vhost leaves it in the registry, `transfer/VHOST`; the owner looks once
a second, does it, and takes the request away, or writes into it why not.

What must stay true: who asks is told of a new owner only when that has claimed the vhost.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from rabbitpy_broker.cluster.log import ClusterError, OutcomeUnknown
from rabbitpy_broker.cluster.member import RENEW_S, Member, Replica
from rabbitpy_broker.cluster.membership import VHostRecord, record_key
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.ownership import Owner, OwnerRecord
from rabbitpy_broker.cluster.registry import Conflict
from rabbitpy_broker.cluster.transfer import NotGiven, able

LEVEL_S: Final = 10.0  # that a node has to get level with the log before it is given the vhost
LEAVE_S: Final = 3.0  # that a stop has at most to hand over
SETTLE_S: Final = 5.0  # that the log has for what publishers have sent
BEGIN_S: Final = 5.0  # that the owner has to see a request of another node
ANSWER_S: Final = 30.0  # that it has then
CLAIM_S: Final = 10.0
LOOK_S: Final = 0.05
MAINTENANCE: Final = "Node was put into maintenance mode"
SHUTDOWN: Final = "broker forced connection closure with reason 'shutdown'"


class Request(msgspec.Struct, frozen=True):
    """What the registry has of a request to the owner with this term. `has_begun`: the owner is at it; `error`: why not."""

    to: str
    term: int
    error: str = ""
    has_begun: bool = False


class Transfers:
    """Of one node."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._registry = member.engine.registry
        self._working: dict[str, asyncio.Task[None]] = {}  # requests of others, by vhost

    async def transfer(self, vhost: str, to: str) -> str:
        """Has node `to`, "" for the one that is furthest along, own the vhost. Returns, when it does, its name.

        Raises ClusterError.
        """
        found = await self._registry.get(f"vhost/{quote(vhost, safe='')}")
        if found is None:
            raise NotGiven("it is not replicated")
        record = msgspec.json.decode(found.value, type=VHostRecord)
        owners = OwnerRecord(self._registry, record.incarnation)
        owner = await owners.read()
        if to and owner.node == to:
            return to
        nodes = await self._nodes()
        others = able(nodes, record.replicas, vhost, owner.node)
        to = to or (others[0] if others else "")
        if to not in others:
            why = "it has no replica of it" if to not in record.replicas else "it does not run, or is in maintenance"
            raise NotGiven(f"node '{to}' cannot have it: {why}" if to else "no other node that has a replica of it runs")
        replica = self._member.replicas.get(vhost)
        if replica is not None and replica.log is not None:
            await self._hand_over(replica, to)
        elif owner.node not in nodes:
            raise NotGiven(f"its owner, node '{owner.node}', does not run" if owner.node else "nobody owns it yet")
        else:
            await self._ask(vhost, owner.node, Request(to, owner.term))
            if (now := await owners.read()).node != to:
                raise NotGiven(f"node '{now.node}' owns it")
        return to

    async def _nodes(self) -> dict[str, NodeInfo]:
        return {name: NodeInfo.unpacked(info) for name, info in (await self._registry.alive()).items()}

    async def _hand_over(self, replica: Replica, to: str) -> None:
        """When the other node is level with the log, so that nobody waits for it."""
        await self._until_level(replica, to)
        given = await replica.hand_over(to, f"vhost '{replica.name}' moves to node '{to}'", SETTLE_S)
        await self._until_claimed(replica, given)

    async def _until_level(self, replica: Replica, to: str) -> None:
        if replica.log is None:
            raise NotGiven("this node owns it no longer")
        wanted = replica.log.writer.position
        ends = asyncio.get_running_loop().time() + LEVEL_S
        while True:
            info = (await self._nodes()).get(to)
            at = info.positions.get(replica.name, 0) if info is not None else 0
            if at >= wanted:
                return
            if asyncio.get_running_loop().time() > ends:
                raise NotGiven(f"node '{to}' is {wanted - at} entries of its log behind")
            await asyncio.sleep(LOOK_S * 4)

    async def _until_claimed(self, replica: Replica, given: Owner) -> None:
        """Returns when the node that was given the vhost has made it its own. Raises NotGiven."""
        record = OwnerRecord(self._registry, replica.record.incarnation)
        ends = asyncio.get_running_loop().time() + CLAIM_S
        while True:
            owner = await record.read()
            if owner.term > given.term:
                if owner.node != given.node:
                    raise NotGiven(f"node '{owner.node}' has taken it instead of '{given.node}'")
                return
            if asyncio.get_running_loop().time() > ends:
                raise NotGiven(f"node '{given.node}' was given it, and has not taken it within {CLAIM_S:.0f} s")
            await asyncio.sleep(LOOK_S)

    # -- requests of other nodes ------------------------------------------------------------------------------------------

    async def _ask(self, vhost: str, owner: str, request: Request) -> None:
        """Has the owner, `owner`, do it. Raises ClusterError."""
        name = f"transfer/{quote(vhost, safe='')}"
        await self._registry.put(name, msgspec.json.encode(request))
        began = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(LOOK_S * 4)
            found = await self._registry.get(name)
            if found is None:
                break
            seen = msgspec.json.decode(found.value, type=Request)
            patience = ANSWER_S if seen.has_begun else BEGIN_S
            if seen.error or asyncio.get_running_loop().time() > began + patience:
                await self._registry.delete(name)
                does = "has not done it" if seen.has_begun else "does not answer"
                raise NotGiven(seen.error or f"its owner, node '{owner}', {does} within {patience:g} s")

    async def run(self) -> None:
        """Does what other nodes ask for, until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(RENEW_S)
                with suppress(ClusterError):  # who asks does so again
                    await self._look()
        finally:
            for task in self._working.values():
                task.cancel()

    async def _look(self) -> None:
        for name, found in (await self._registry.list("transfer/")).items():
            vhost = unquote(name.removeprefix("transfer/"))
            request = msgspec.json.decode(found.value, type=Request)
            replica = self._member.replicas.get(vhost)
            if replica is None or replica.log is None or request.error or vhost in self._working:
                continue
            if replica.log.writer.term != request.term and replica.owner.term != request.term:
                await self._registry.delete(name)  # it was for an owner of before
                continue
            self._working[vhost] = asyncio.ensure_future(self._answer(replica, name, request, found.version))

    async def _answer(self, replica: Replica, name: str, request: Request, version: int) -> None:
        """Nothing, if whoever has asked has given up."""
        begun = msgspec.structs.replace(request, has_begun=True)
        try:
            await self._registry.put(name, msgspec.json.encode(begun), version)
        except ClusterError:
            self._working.pop(replica.name, None)
            return
        try:
            await self._hand_over(replica, request.to)
            await self._registry.delete(name)
        except (ClusterError, OSError) as error:
            self._member.log.warning("vhost not transferred", vhost=replica.name, to=request.to, error=str(error))
            refused = Request(request.to, request.term, str(error))
            with suppress(Conflict, OutcomeUnknown, ClusterError):
                await self._registry.put(name, msgspec.json.encode(refused))
        finally:
            self._working.pop(replica.name, None)

    # -- maintenance, and the end -----------------------------------------------------------------------------------------

    async def check_drain(self) -> None:
        """Raises ClusterError, with the reason, if nobody could be given some of what this node owns."""
        nodes = await self._nodes()
        reasons = []
        for vhost in [replica.name for replica in self._member.replicas.values() if replica.log is not None]:
            try:
                await self._heir(vhost, nodes)
            except NotGiven as error:
                reasons.append(str(error))
        if reasons:
            raise NotGiven("; ".join(reasons))

    async def _heir(self, vhost: str, nodes: dict[str, NodeInfo]) -> str:
        """Who is to have it; asked of the registry, as what the replica knows may be a second old. Raises ClusterError."""
        found = await self._registry.get(record_key(vhost))
        replicas = [] if found is None else msgspec.json.decode(found.value, type=VHostRecord).replicas
        others = able(nodes, replicas, vhost, self._member.node)
        if not others:
            raise NotGiven(f"vhost '{vhost}': no other node that has a replica of it runs")
        return others[0]

    async def drain(self) -> None:
        """Gives all that this node owns to others, and takes nothing over until `revive`. Raises ClusterError."""
        self._member.is_drained = True
        await self._member.tell()
        left = await self._give_all(MAINTENANCE, SETTLE_S)
        if left:
            raise NotGiven("; ".join(left))

    async def revive(self) -> None:
        """Raises ClusterError."""
        self._member.is_drained = False
        await self._member.tell()

    async def leave(self, within_s: float) -> None:
        """Before a stop: gives to others what can be given within that time, and follows nothing any more."""
        self._member.is_stopping = True
        if all(replica.log is None for replica in self._member.replicas.values()):
            return
        try:
            async with asyncio.timeout(min(LEAVE_S, within_s)):
                left = await self._give_all(SHUTDOWN, LEAVE_S)
        except (ClusterError, TimeoutError) as error:
            left = [str(error) or "it took too long"]
        if left:
            self._member.log.warning("vhosts not handed over", reason="; ".join(left))

    async def _give_all(self, reason: str, settle_s: float) -> list[str]:
        """Returns why vhosts are still here."""
        nodes = await self._nodes()
        giving = [self._give(replica, nodes, reason, settle_s) for replica in self._member.replicas.values()]
        done = await asyncio.gather(*giving, return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException) and not isinstance(one, ClusterError):
                raise one
        return [str(one) for one in done if one is not None]

    async def _give(self, replica: Replica, nodes: dict[str, NodeInfo], reason: str, settle_s: float) -> None:
        if replica.log is None:
            await replica.leave_to_others()
            return
        given = await replica.hand_over(await self._heir(replica.name, nodes), reason, settle_s)
        if not self._member.is_stopping:
            await self._until_claimed(replica, given)
