"""The end of a log, because its owner keeps the vhost for itself, in all orders that small sizes have (model.py says how).

Whatever becomes of the last entry, whoever takes over, sleeps or is killed: one node has the vhost for itself, with all that was
confirmed, and nobody owns it as a replicated one from then on; or it is replicated as before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from cluster.model import VHOST, Broken, ModelSink, Node, Scenario, World, explore, require
from cluster.test_protocol_model import ALL, ONE_PART, UNSURE, report, successor
from rabbitpy_broker.cluster.backup import marked_end
from rabbitpy_broker.cluster.blocks import Ended
from rabbitpy_broker.cluster.conversion import Ending
from rabbitpy_broker.cluster.follower import Follower
from rabbitpy_broker.cluster.log import ClusterError, Entry, Unavailable
from rabbitpy_broker.cluster.ownership import Deposed, Owner
from rabbitpy_broker.cluster.writer import Writer

pytestmark = pytest.mark.timeout(3_600)  # in large sizes


def keeper(*payloads: bytes) -> Callable[[World, Node], Any]:
    """Owns the vhost, and keeps it for itself."""

    async def program(world: World, node: Node) -> None:
        writer = world.first_owner(node)
        log = world.own(node, writer)
        for payload in payloads:
            await world.epoch(node, log, payload)
        await world.close(node)
        await world.end(node, writer)
        await finds_out(world, node)

    return program


TAKES_OVER = successor(Owner("A", 1), b"b")


async def finds_out(world: World, node: Node) -> None:
    """Follows: it has the vhost for itself if the log says so, and takes over where the record has its name."""
    while True:
        try:
            follower = world.follow(node)
            await follower.read()
            owner = await world.record(node).read()
            if owner.node == node.name:
                writer = await world.successor(node, owner)
                break
        except Ended as ended:
            if ended.node == node.name:
                await world.become_plain(node)
            return
        except (Unavailable, Deposed):
            continue
    await world.epoch(node, world.own(node, writer), f"{node.name}{writer.term}".encode())


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("crashes", [("A",), ()])
def test_the_end_of_a_log(crashes: tuple[str], conditional: bool, cluster_model_full: bool):
    programs = {"A": keeper(b"1"), "B": successor(Owner("A", 1), b"b")}
    if cluster_model_full:
        programs["C"] = successor(Owner("A", 1), b"c")
    scenario = Scenario(
        programs, conditional=conditional, crashes=crashes, after_crash=finds_out, faults=0 if crashes else 1,
        kinds=ALL if cluster_model_full else UNSURE, max_block=ONE_PART,
    )  # fmt: skip
    result = explore(scenario)
    report(result)
    assert result.states > 100


async def keeps_it(world: World, node: Node) -> None:
    """As `keeper`, where nobody takes over and nothing goes wrong: the log takes its end."""
    writer = world.first_owner(node)
    log = world.own(node, writer)
    await world.epoch(node, log, b"1")
    await world.close(node)
    ending = Ending(node.name)
    await ending.complete(world.record(node), writer, node.name)
    error = ending.done.exception()
    require(error is None, f"the vhost stays replicated: {error}")
    await finds_out(world, node)


async def backs_up(world: World, node: Node) -> None:
    """Marks the end of the log, or is told that this cannot be done now."""
    with suppress(ClusterError):
        await marked_end(world.servers.connect(node.name).log(VHOST), node.name)


@pytest.mark.parametrize("conditional", [True, False])
def test_the_end_of_a_log_that_others_back_up(conditional: bool, cluster_model_full: bool):
    """In the large size somebody takes over as well, and one step goes wrong."""
    programs = {"A": keeps_it, "B": backs_up, "C": backs_up}
    if cluster_model_full:
        programs = {"A": keeper(b"1"), "B": TAKES_OVER, "C": backs_up}
    faults = 1 if cluster_model_full else 0
    result = explore(Scenario(programs, conditional=conditional, faults=faults, kinds=UNSURE, max_block=ONE_PART))
    report(result)
    assert result.states > 20


class PassesOver(Follower):
    """Takes the end of a log for an entry that says nothing, but at the node that keeps the vhost."""

    async def _take(self, entry: Entry) -> None:
        try:
            await super()._take(entry)
        except Ended as ended:
            assert isinstance(self.sink, ModelSink)
            if ended.node == self.sink.node.name:
                raise
            await self.sink.pass_over(entry.position + 1, self.term)


async def believes_itself(world: World, node: Node) -> None:
    """Has the vhost for itself without having read that the log has ended."""
    writer = world.first_owner(node)
    log = world.own(node, writer)
    await world.epoch(node, log, b"1")
    await world.close(node)
    await world.end(node, writer)
    await world.become_plain(node)


class EndsWhereItIs(Writer):
    """Appends its last entry behind its own, whatever stands there."""

    async def append_last(self, entry: bytes) -> None:
        await self._log.append(entry, term=self.term, expected=self.position)


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario({"A": keeper(b"1"), "B": TAKES_OVER}, follower=PassesOver, max_block=ONE_PART),
        Scenario({"A": believes_itself, "B": TAKES_OVER}, max_block=ONE_PART),
        Scenario({"A": believes_itself, "B": TAKES_OVER}, max_block=ONE_PART, conditional=False),
        Scenario({"A": keeps_it, "B": backs_up}, writer=EndsWhereItIs, max_block=ONE_PART, conditional=False),
    ],
    ids=["passes over the end", "believes itself", "believes itself, not refused", "ends where it is"],
)
def test_what_is_broken_is_found(scenario: Scenario):
    with pytest.raises(Broken):
        explore(scenario)
