"""The rows of one live table as they were at the last tick, and what has changed since: what many readers of the event stream
share.

A tick looks at what the sampler found changed, at a share of the rest, and at whatever came and went. So a queue at rest costs
nothing but a number at its turn among the rest, in which is noticed what changes without a message: a body that was paged out.

What must stay true: `rows` has each item that there is once, with the tick at which its cells last changed; what went since
`known_from` is in `gone`; only `update` changes them, and nobody reads them meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rabbitpy_broker.management.api.live_cells import (
    Cells,
    Changed,
    LiveRow,
    changed_rows,
    mark_of,
    stale_queues,
    take,
)
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.api.tables import LIVE
from rabbitpy_broker.policies import Policy
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.slices import REST_S, in_slices, slices

REFRESH_TICKS: Final = 30  # after which every row has been looked at
REFRESH_AT_ONCE: Final = 1_000  # rows in a tick, beyond those that changed
TOGETHER: Final = 50  # queues in one step
GONE_MAX: Final = 10_000  # that are remembered


@dataclass
class Changes:
    """Of one tick."""

    changed: list[Changed] = field(default_factory=list)
    added: list[Cells] = field(default_factory=list)
    gone: list[Cells] = field(default_factory=list)


class Tracker:
    """Of one kind of rows."""

    def __init__(self, api: Api, kind: str) -> None:
        self.table = LIVE[kind]
        self.rows: dict[object, LiveRow] = {}
        self.gone: deque[tuple[int, Cells]] = deque()
        self.known_from = 0  # a tick: what went after it is in `gone`
        self.tick = 0
        self._api = api
        self._is_of_queues = kind == "queues"
        self._stale: deque[Any] = deque()  # rows to be looked at
        self._all_stale = False  # whatever their marks are
        self._refresh_at = 0
        self._created_and_deleted = -1
        self._policies: list[list[Policy]] = []

    async def update(self, tick: int, *, whole: bool = False) -> Changes:
        """Looks at what there is now: with `whole` at every row, as is due when the ticks before were missed."""
        changes = Changes()
        if not self.rows:
            self.known_from = tick
        self.tick = tick
        rest_s = 0.0 if whole else REST_S
        if self._is_of_queues and not whole:
            await in_slices(self._update_queues(changes), rest_s)
        else:
            self._policies = self._policies_now()  # of which all rows are made
            await in_slices(self._update_all(changes), rest_s)
        for cells in changes.gone:
            self.gone.append((tick, cells))
        while len(self.gone) > GONE_MAX:
            self.known_from = self.gone.popleft()[0]
        return changes

    async def since(self, tick: int) -> Changes | None:
        """What has changed since a tick, whole rows as added; None when that is not known any more."""
        if not self.known_from <= tick <= self.tick:
            return None
        changes = Changes()
        async for rows in slices(self.rows.values()):
            changes.added += [row.cells for row in rows if row.tick > tick]
        async for gone in slices(self.gone):
            changes.gone += [cells for when, cells in gone if when > tick]
        return changes

    def _update_all(self, changes: Changes) -> Iterator[None]:
        seen: set[object] = set()
        for item in self.table.items(self._api):
            identity = self.table.identity(item)
            seen.add(identity)
            self._look(identity, item, changes)
            yield
        yield from self._drop([identity for identity in self.rows if identity not in seen], changes)

    def _update_queues(self, changes: Changes) -> Iterator[None]:
        vhosts = list(self._api.vhosts.values())
        created_and_deleted = sum(int(vhost.queues_created + vhost.queues_deleted) for vhost in vhosts) + len(vhosts)
        if created_and_deleted != self._created_and_deleted:
            self._created_and_deleted = created_and_deleted
            yield from self._find_queues(changes)
        self._notice_policies()
        yield from self._look_at_queues(self._api.sampler.queues.touched, changes)
        yield from self._refresh(changes)

    def _find_queues(self, changes: Changes) -> Iterator[None]:
        seen: set[object] = set()
        for item in self.table.items(self._api):
            queue = item[1]
            seen.add(queue)
            if queue not in self.rows:
                self._look(queue, item, changes)
            yield
        yield from self._drop([queue for queue in self.rows if queue not in seen], changes)

    def _notice_policies(self) -> None:
        """Has all rows be looked at if policies have changed, and else each now and then."""
        policies = self._policies_now()
        changed = len(policies) != len(self._policies) or any(
            now is not before for now, before in zip(policies, self._policies, strict=True)
        )
        if changed or (self.tick >= self._refresh_at and not self._stale):
            self._policies = policies
            self._stale = deque(self.rows)
            self._all_stale = changed
            self._refresh_at = self.tick + REFRESH_TICKS
        if not self._stale:
            self._all_stale = False

    def _policies_now(self) -> list[list[Policy]]:
        return [
            kept
            for vhost in list(self._api.vhosts.values())
            for kept in (vhost.policies._by_priority, vhost.policies._operator_by_priority)
        ]

    def _refresh(self, changes: Changes) -> Iterator[None]:
        share = REFRESH_AT_ONCE if self._all_stale else max(len(self.rows) // REFRESH_TICKS, 50)
        queues = [self._stale.popleft() for _ in range(min(share, REFRESH_AT_ONCE, len(self._stale)))]
        if self._all_stale:
            yield from self._look_at_queues(queues, changes)
            return
        for start in range(0, len(queues), TOGETHER):
            changes.changed += self._changed(stale_queues(queues[start : start + TOGETHER], self.rows))
            yield

    def _look_at_queues(self, queues: list[Queue], changes: Changes) -> Iterator[None]:
        if self._all_stale:
            for queue in queues:
                vhost = self._api.vhosts.get(queue.vhost)
                if vhost is not None and queue in self.rows:
                    self._look(queue, (vhost, queue), changes)
                yield
            return
        for start in range(0, len(queues), TOGETHER):
            changes.changed += self._changed(queues[start : start + TOGETHER])
            yield

    def _changed(self, queues: list[Queue]) -> list[Changed]:
        sampler, vhosts = self._api.sampler, self._api.vhosts
        there = [queue for queue in queues if queue.vhost in vhosts]
        return changed_rows(there, self.rows, sampler.queues, sampler.started, self.tick)

    def _look(self, identity: object, item: Any, changes: Changes) -> None:
        self._take(identity, self.table.cells(self._api, item), changes)

    def _take(self, identity: object, cells: Cells | None, changes: Changes) -> None:
        if cells is None:
            return
        row = self.rows.get(identity)
        if row is None:
            row = self.rows[identity] = LiveRow(cells, self.tick)
            if isinstance(identity, Queue):
                row.mark = mark_of(identity)
            changes.added.append(cells)
            return
        columns = take(row, cells, self.tick)
        if columns:
            changes.changed.append((row.cells, columns))

    def _drop(self, identities: list[object], changes: Changes) -> Iterator[None]:
        for identity in identities:
            changes.gone.append(self.rows.pop(identity).cells)
            yield
