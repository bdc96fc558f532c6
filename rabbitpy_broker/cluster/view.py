"""What a node knows of the others: who is alive and where, which vhosts are replicated, and who owns each.

It is read again each second, and at once when an owner changes. All of it may be a moment old: it says where to look, and
never who may confirm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from rabbitpy_broker.cluster.log import ClusterError
from rabbitpy_broker.cluster.membership import VHostRecord
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.ownership import NOBODY, Owner
from rabbitpy_broker.cluster.progress import Progress
from rabbitpy_broker.cluster.registry import Change, Registry

LOOK_S: Final = 1.0


class View:
    """`changed` is called when an owner or a node has changed. `is_known`: it has looked once.

    `last_told` has what nodes told of themselves last, also those that are away now.
    """

    def __init__(self, registry: Registry, log: Any) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self.last_told: dict[str, NodeInfo] = {}
        self.progress = Progress()  # of the vhosts' logs, by the names of logs
        self.vhosts: dict[str, VHostRecord] = {}
        self.owners: dict[str, Owner] = {}  # by incarnation
        self.era = object()  # another one when other nodes are alive, or other vhosts or replicas there
        self.is_known = False
        self.changed: list[Callable[[], None]] = []
        self._registry = registry
        self.log = log

    def owner_of(self, vhost: str) -> str | None:
        """The node that owns a replicated vhost, "" for nobody; None for a vhost that is not replicated."""
        record = self.vhosts.get(vhost)
        return None if record is None else self.owners.get(record.incarnation, NOBODY).node

    async def run(self) -> None:
        """Until it is cancelled."""
        watch = self._registry.watch("owner/")
        told = ""
        try:
            while True:
                try:
                    await self._look(await watch.next(LOOK_S if self.is_known else 0.0))
                    told = ""
                except ClusterError as error:
                    if str(error) != told:
                        told = str(error)
                        self.log.warning("the cluster is not seen", error=told)
                    await asyncio.sleep(LOOK_S)
        finally:
            await watch.close()

    async def _look(self, owners: list[Change]) -> None:
        for change in owners:
            incarnation = unquote(change.name.removeprefix("owner/"))
            if change.value is None:
                self.owners.pop(incarnation, None)
            else:
                self.owners[incarnation] = Owner(*msgspec.json.decode(change.value, type=tuple[str, int]))
        nodes = {name: NodeInfo.unpacked(info) for name, info in (await self._registry.alive()).items()}
        found = await self._registry.list("vhost/")
        records = {name: msgspec.json.decode(one.value, type=VHostRecord) for name, one in found.items()}
        vhosts = {unquote(name.removeprefix("vhost/")): record for name, record in records.items()}
        is_changed = bool(owners) or nodes != self.nodes or vhosts != self.vhosts or not self.is_known
        if set(nodes) != set(self.nodes) or vhosts != self.vhosts:
            self.era = object()
        self.nodes, self.vhosts, self.is_known = nodes, vhosts, True
        self.last_told.update(nodes)
        self._note_progress(time.monotonic())
        if is_changed:
            for call in self.changed:
                call()

    def _note_progress(self, now: float) -> None:
        for name, record in self.vhosts.items():
            found = [self.last_told[node].positions.get(name) for node in record.replicas if node in self.last_told]
            positions = [position for position in found if position is not None]
            if positions:
                needed = min(positions) if len(positions) == len(record.replicas) else 0
                self.progress.note(record.log_name(name), max(positions), needed, now)
        self.progress.keep({record.log_name(name) for name, record in self.vhosts.items()})
