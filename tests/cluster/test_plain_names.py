"""A name is used once in a cluster: a replicated vhost is not made where a node has a plain one of that name."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cluster.memory_node import PATIENCE, ground, running, until, without_threads
from rabbitpy_broker.cluster import making
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.testing.watched_broker import WatchedBroker

NAME = "orders"


class Pair:
    """Two nodes that know each other."""

    def __init__(self, servers: MemoryServers, a: WatchedBroker, b: WatchedBroker) -> None:
        self.servers = servers
        self.a = a
        self.b = b

    def is_nothing_left(self) -> bool:
        servers = self.servers
        return not servers.logs and not any(name.startswith(("vhost/", "owner/")) for name in servers.values)


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    servers = MemoryServers()
    without_threads(monkeypatch, servers, "a")
    async with running(ground("a", {})) as a:
        without_threads(monkeypatch, servers, "b")
        async with running(ground("b", {})) as b:
            await until(lambda: set(servers.leases) == {"a", "b"})
            yield Pair(servers, a, b)


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_name_that_another_node_has_plain_is_not_used(pair: Pair, replicas: int):
    pair.b.add_vhost(NAME, "{}")
    with pytest.raises(BrokerError, match="which is not replicated: b"):
        await pair.a.add_replicated_vhost(NAME, f'{{"replicas": {replicas}}}', replicas)
    assert pair.is_nothing_left()
    assert NAME in pair.b.node.vhosts


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_name_that_is_free_is_used(pair: Pair, replicas: int):
    await pair.a.add_replicated_vhost(NAME, f'{{"replicas": {replicas}}}', replicas)
    with pytest.raises(BrokerError, match="it is replicated"):
        pair.b.add_vhost(NAME, "{}")


async def test_a_node_that_does_not_say_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(making, "ANSWER_S", 0.0)
    pair.servers.leases["c"] = float("inf"), NodeInfo().packed()
    with pytest.raises(BrokerError, match=r"do not say whether they have a vhost of that name: .*c"):
        await pair.a.add_replicated_vhost(NAME, '{"replicas": 1}', 1)
    assert pair.is_nothing_left()
    del pair.servers.leases["c"]
    monkeypatch.setattr(making, "ANSWER_S", PATIENCE)
    await pair.a.add_replicated_vhost(NAME, '{"replicas": 2}', 2)
