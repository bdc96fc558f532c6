"""When a node takes a vhost over: a guess by leases, which have all ended when the engine was gone."""

from __future__ import annotations

import pytest

from rabbitpy_broker.cluster.member import Home, Member, Replica, VHostRecord
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.ownership import Owner

LEASE_S = 3.0


@pytest.mark.parametrize(
    "alive, renews_for_s, due",
    [
        (["b"], LEASE_S + 1.0, True),
        (["b"], 1.0, False),  # the engine has just come back, and the owner may do so, too
        (["b"], -float("inf"), False),
        (["a", "b"], LEASE_S + 1.0, False),
        ([], LEASE_S + 1.0, False),
    ],
)
async def test_an_owner_whose_lease_has_ended_is_taken_over_by_who_has_renewed_its_own_meanwhile(
    alive: list[str], renews_for_s: float, due: bool, monkeypatch: pytest.MonkeyPatch
):
    engine = MemoryServers().connect("b")
    member = Member(engine, Home(), "b", lambda: b"", LEASE_S, 30.0, None)
    monkeypatch.setattr(member, "renews_for_s", lambda: renews_for_s)
    replica = Replica(member, "orders", VHostRecord("", ["a", "b"]))
    replica.owner = Owner("a", 1)
    for node in alive:
        await engine.registry.keep_alive(node, LEASE_S)
    assert await replica._is_due() is due
