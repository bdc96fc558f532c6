"""A vhost that becomes one of a single node again, and is deleted in between: it is gone everywhere, or is what it was to be.

The deletion is stopped between any two of its steps, and the node that keeps the vhost goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import structlog

from cluster.memory_node import HeldServers, Pair, two_nodes, until
from rabbitpy_broker.cluster.log import ClusterError
from rabbitpy_broker.cluster.member import Home, Member
from rabbitpy_broker.cluster.membership import record_key
from rabbitpy_broker.errors import BrokerError


class Ending:
    """A vhost of both nodes whose log has ended at node a, which looks at that when it is told to."""

    def __init__(self, pair: Pair, name: str) -> None:
        self.pair = pair
        self.name = name
        self.looks = 0
        self.is_looking = False
        conversions = pair.a.conversions
        assert conversions is not None
        self._look, conversions._look = type(conversions)._look.__get__(conversions), self.look  # type: ignore[method-assign]

    async def look(self) -> None:
        if self.is_looking:
            await self._look()
            self.looks += 1

    async def begin(self) -> None:
        a, b, name = self.pair.a, self.pair.b, self.name
        assert a.member is not None
        assert b.member is not None
        await a.add_replicated_vhost(name, '{"replicas": 2}', 2)
        self.incarnation = a.member._copies[name]
        copy = await until(lambda: b.member.replicas.get(name))
        self.unreplicating = asyncio.ensure_future(a.unreplicate_vhost(name))
        replica = a.member.replicas[name]
        await until(lambda: replica.ended_at and copy.ended_at)

    async def looks_on(self) -> None:
        self.is_looking = True
        wanted = self.looks + 3
        await until(lambda: self.looks >= wanted)

    async def is_over(self, *, but: str = "nothing") -> None:
        with suppress(BrokerError):
            await self.unreplicating
        await until(lambda: all(name.startswith(but) for name in self.left()))

    def left(self) -> list[str]:
        """What the engine has of it."""
        servers = self.pair.servers
        names = [*servers.logs, *servers.objects, *servers.values]
        return [name for name in names if self.incarnation in name or name == record_key(self.name)]

    async def is_gone(self) -> None:
        await self.is_over()
        for node in (self.pair.a, self.pair.b):
            await until(lambda node=node: self.name not in node.definitions.vhosts() and self.name not in node.node.vhosts)

    async def is_plain(self) -> None:
        """The note of a deletion that was too late says nothing to anybody."""
        await self.is_over(but="deleted/")
        assert json.loads(self.pair.a.definitions.vhost_metadata(self.name)) == {}
        assert self.name in self.pair.a.node.vhosts
        await until(lambda: self.name not in self.pair.b.definitions.vhosts())


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    async with two_nodes(monkeypatch, HeldServers()) as pair:
        yield pair


async def deleted(pair: Pair, steps: int) -> tuple[str, bool]:
    """What becomes of a vhost that another node deletes; the one that keeps it looks behind so many steps of that. And whether
    there are no more.
    """
    servers = pair.servers
    assert isinstance(servers, HeldServers)
    ending = Ending(pair, f"orders {steps}")
    await ending.begin()
    held = servers.hold_behind("c", steps)
    other = Member(servers.connect("c"), Home(), "c", bytes, 5.0, 5.0, 1_000_000, structlog.get_logger())
    deleting = asyncio.ensure_future(other.delete(ending.name))
    await until(lambda: deleting.done() or held.count > steps)
    is_whole = deleting.done()
    await ending.looks_on()
    servers.let_go()
    try:
        await deleting
    except (ClusterError, ValueError):
        await ending.is_plain()
        return "plain", is_whole
    await ending.is_gone()
    return "gone", is_whole


async def test_a_deletion_at_another_node(pair: Pair):
    """The node that keeps the vhost hears of it behind any of its steps."""
    outcomes = []
    is_whole = False
    while not is_whole:
        outcome, is_whole = await deleted(pair, len(outcomes))
        outcomes.append(outcome)
    assert len(outcomes) > 4
    assert set(outcomes) == {"plain", "gone"}


async def test_a_deletion_at_the_node_that_keeps_it(pair: Pair):
    ending = Ending(pair, "orders")
    await ending.begin()
    await pair.a.delete_replicated_vhost("orders")
    assert "orders" not in pair.a.node.vhosts
    await ending.looks_on()
    await ending.is_gone()
