"""A request to an owner that hangs ends soon, with a text that says so, and is taken back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from rabbitpy_broker.cluster import draining
from rabbitpy_broker.cluster.draining import Request, Transfers
from rabbitpy_broker.cluster.member import Member
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.registry import Registry
from rabbitpy_broker.cluster.transfer import NotGiven

NAME = "transfer/orders"


@pytest.fixture
def registry() -> Registry:
    return MemoryServers(conditional=True).connect("asking").registry


def transfers(registry: Registry, **more: Any) -> Transfers:
    return Transfers(cast(Member, SimpleNamespace(engine=SimpleNamespace(registry=registry), **more)))


async def test_an_owner_that_has_not_begun_does_not_answer(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(draining, "BEGIN_S", 0.1)
    with pytest.raises(NotGiven, match=r"its owner, node 'b', does not answer within 0\.1 s"):
        await transfers(registry)._ask("orders", "b", Request("c", 7))
    assert await registry.get(NAME) is None


async def test_one_that_has_begun_has_longer(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(draining, "BEGIN_S", 5.0)
    monkeypatch.setattr(draining, "ANSWER_S", 0.1)
    asking = asyncio.ensure_future(transfers(registry)._ask("orders", "b", Request("c", 7)))
    while (found := await registry.get(NAME)) is None:
        await asyncio.sleep(0)
    await registry.put(NAME, msgspec.json.encode(Request("c", 7, has_begun=True)), found.version)
    with pytest.raises(NotGiven, match=r"its owner, node 'b', has not done it within 0\.1 s"):
        await asking


async def test_a_request_that_was_taken_back_is_not_done(registry: Registry):
    """An owner that wakes finds another version than the one it has read."""
    version = await registry.put(NAME, msgspec.json.encode(Request("c", 7)))
    await registry.delete(NAME)
    owner = transfers(registry)
    await owner._answer(cast(Any, SimpleNamespace(name="orders")), NAME, Request("c", 7), version)  # would fail at the replica
    assert await registry.get(NAME) is None
