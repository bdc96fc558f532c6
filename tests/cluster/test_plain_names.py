"""A name is used once in a cluster: a replicated vhost is not made where a node has a plain one of that name."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cluster.memory_node import PATIENCE, Pair, two_nodes
from rabbitpy_broker.cluster import making
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.errors import BrokerError

NAME = "orders"


def is_nothing_left(servers: MemoryServers) -> bool:
    return not servers.logs and not any(name.startswith(("vhost/", "owner/")) for name in servers.values)


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    async with two_nodes(monkeypatch, MemoryServers()) as pair:
        yield pair


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_name_that_another_node_has_plain_is_not_used(pair: Pair, replicas: int):
    pair.b.add_vhost(NAME, "{}")
    with pytest.raises(BrokerError, match="which is not replicated: b"):
        await pair.a.add_replicated_vhost(NAME, f'{{"replicas": {replicas}}}', replicas)
    assert is_nothing_left(pair.servers)
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
    assert is_nothing_left(pair.servers)
    del pair.servers.leases["c"]
    monkeypatch.setattr(making, "ANSWER_S", PATIENCE)
    await pair.a.add_replicated_vhost(NAME, '{"replicas": 2}', 2)


async def test_what_was_heard_of_a_vhost_that_was_not_made_is_no_reason_to_refuse_another(pair: Pair):
    pair.a.node.owned_elsewhere[NAME] = ""  # as when this node looked while a try was under way that came to nothing
    await pair.a.add_replicated_vhost(NAME, '{"replicas": 2}', 2)
    assert NAME in pair.a.node.vhosts


async def test_a_second_one_of_the_name_is_refused_wherever_it_is_asked_for(pair: Pair):
    await pair.a.add_replicated_vhost(NAME, '{"replicas": 1}', 1)
    for broker in (pair.a, pair.b):
        with pytest.raises(BrokerError, match="there is one"):
            await broker.add_replicated_vhost(NAME, '{"replicas": 1}', 1)
