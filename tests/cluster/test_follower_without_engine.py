"""A follower whose engine does not answer: it keeps its directory open, and goes on from where it is."""

from __future__ import annotations

import pytest

from cluster.memory_node import two_nodes, until
from rabbitpy_broker.cluster.directory import VHostDirectory
from rabbitpy_broker.cluster.memory_engine import MemoryServers, Outcome, Step
from rabbitpy_broker.wire.field_table import FieldTable


class CountedServers(MemoryServers):
    """Count the reads of a log that node b was refused."""

    refused = 0

    def _outcome_by_itself(self, step: Step[object]) -> Outcome | None:
        outcome = super()._outcome_by_itself(step)
        self.refused += outcome is Outcome.REFUSED and step.kind == "read" and step.node == "b"
        return outcome


async def test_a_follower_without_its_engine_opens_its_directory_no_more(monkeypatch: pytest.MonkeyPatch):
    servers = CountedServers()
    opened: list[VHostDirectory] = []
    open_directory = VHostDirectory.open

    async def noted(directory: VHostDirectory) -> None:
        opened.append(directory)
        await open_directory(directory)

    async with two_nodes(monkeypatch, servers) as pair:
        assert pair.b.member is not None
        replicas = pair.b.member.replicas
        await pair.a.add_replicated_vhost("orders", '{"replicas": 2}', 2)
        await until(lambda: "orders" in replicas and replicas["orders"].position > 1)
        monkeypatch.setattr(VHostDirectory, "open", noted)
        servers.cut("b")
        await until(lambda: servers.refused > 5)
        pair.a.node.vhosts["orders"].declare_queue("while it was away", True, False, False, FieldTable(), None)
        pair.a.commit()
        servers.heal("b")
        await until(lambda: pair.b.definitions.queues("orders"))
    assert opened == []
