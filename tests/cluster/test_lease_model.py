"""Of two nodes that have a vhost open one may deliver, however long either of them sleeps in between (lease_model.py)."""

from __future__ import annotations

import pytest

from cluster.lease_model import Clock, LeaseWorld, TimedLoop
from cluster.model import Broken, Node, Scenario, World, explore_breadth_first
from cluster.test_protocol_model import report
from rabbitpy_broker.cluster import own_lease


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_lease, "time", Clock)


async def owner(world: World, node: Node) -> None:
    assert isinstance(world, LeaseWorld)
    await world.own(node)


async def follower(world: World, node: Node) -> None:
    assert isinstance(world, LeaseWorld)
    await world.follow_until_due(node)
    await world.own(node)


class JustEnded(LeaseWorld):
    begins_ended = True


class NeverAsksAgain(JustEnded):
    """Delivers at once when it has claimed, however long ago it saw that the owner's lease had ended."""

    asks_again = False


BOTH = Scenario({"A": owner, "B": follower})
FEW = 4_000


@pytest.mark.timeout(3_600)
def test_one_node_delivers(cluster_model_full: bool):
    """The owner may renew its lease behind the back of the one that has seen it ended; that one may sleep before it claims."""
    full = cluster_model_full
    result = explore_breadth_first(BOTH, LeaseWorld if full else JustEnded, TimedLoop, 0 if full else FEW)
    report(result)
    assert result.states >= FEW


def test_who_delivers_without_asking_again_is_found():
    with pytest.raises(Broken, match="may deliver"):
        explore_breadth_first(BOTH, NeverAsksAgain, TimedLoop)
