"""A fault of the broker in what a node does for as long as it runs: it is logged, and the node goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.memory_node import Pair, two_nodes, until
from rabbitpy_broker.cluster import lasting
from rabbitpy_broker.cluster.member import Member, Replica
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.transfer import HandOver, NotGiven
from rabbitpy_broker.cluster.view import View

NAME = "orders"


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(lasting, "AGAIN_S", 0.02)
    async with two_nodes(monkeypatch, MemoryServers()) as pair:
        yield pair


def fails_once(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> list[Any]:
    """The next call of a method, of each object, ends with a fault that nobody expects; returns those of which it has."""
    work = getattr(of, name)
    failed: list[Any] = []

    async def fail_once(self: Any, *arguments: Any) -> Any:
        if self not in failed:
            failed.append(self)
            raise ZeroDivisionError
        return await work(self, *arguments)

    monkeypatch.setattr(of, name, fail_once)
    return failed


@pytest.mark.parametrize("name", ["_follow", "_follow_on", "_own"])
async def test_a_vhost_is_opened_all_the_same(pair: Pair, monkeypatch: pytest.MonkeyPatch, name: str):
    failed = fails_once(monkeypatch, Replica, name)
    await pair.a.add_replicated_vhost(NAME, '{"replicas": 1}', 1)
    assert failed
    assert NAME in pair.a.node.vhosts


async def test_a_node_stays_alive(pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    failed = fails_once(monkeypatch, Member, "_look_for_deleted")
    await until(lambda: pair.a.member in failed)
    assert "part='lease of this node'" in capsys.readouterr().out
    await pair.a.add_replicated_vhost(NAME, '{"replicas": 2}', 2)


async def test_the_others_are_still_seen(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    failed = fails_once(monkeypatch, View, "_look")
    await until(lambda: pair.b.view in failed)
    await pair.a.add_replicated_vhost(NAME, '{"replicas": 1}', 1)
    await until(lambda: pair.b.node.owned_elsewhere.get(NAME) == "a")


async def test_a_vhost_can_be_handed_over_behind_a_hand_over_that_had_a_fault(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    await pair.a.add_replicated_vhost(NAME, '{"replicas": 2}', 2)
    assert pair.a.member is not None
    replica = pair.a.member.replicas[NAME]
    with monkeypatch.context() as patch:
        fails_once(patch, HandOver, "complete")
        with pytest.raises(NotGiven):
            await replica.hand_over("b", "maintenance", 10.0)
    await until(lambda: NAME in pair.a.node.vhosts)
    assert (await replica.hand_over("b", "maintenance", 10.0)).node == "b"
    await until(lambda: NAME in pair.b.node.vhosts)
