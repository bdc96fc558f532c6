"""Who owns a replicated vhost, in the registry: a node and its term, under the vhost's incarnation.

Terms are given out here, by compare-and-set, so that each belongs to one claim of one node for ever. The record chooses who
appends the next fence; what makes a node the owner is the fence in the log, not the record. So a node that holds a record of
the past harms nobody. A vhost that is deleted and made again has another record, so whoever still works for the one of before, or
removes its record, touches no other.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

import msgspec

from rabbitpy_broker.cluster.log import ClusterError, OutcomeUnknown
from rabbitpy_broker.cluster.registry import Conflict, Registry


class Owner(NamedTuple):
    """A node and the term that it has claimed. Nobody, before the first claim, is ("", 0)."""

    node: str
    term: int


NOBODY = Owner("", 0)


class Deposed(ClusterError):
    """Somebody else has taken over, or is about to: this node may not append any more, and must confirm nothing."""

    def __init__(self, owner: str = "") -> None:
        super().__init__(f"the vhost is owned by {owner}" if owner else "the vhost was taken over by another node")
        self.owner = owner


class OwnerRecord:
    """The record of one vhost; `incarnation` is its own."""

    def __init__(self, registry: Registry, incarnation: str) -> None:
        self._registry = registry
        self._name = f"owner/{quote(incarnation, safe='')}"

    async def read(self) -> Owner:
        """Raises `Unavailable`."""
        return (await self._read())[0]

    async def _read(self) -> tuple[Owner, int]:
        found = await self._registry.get(self._name)
        if found is None:
            return NOBODY, 0
        return Owner(*msgspec.json.decode(found.value, type=tuple[str, int])), found.version

    async def remove(self) -> None:
        """The vhost is gone. Raises `Unavailable`, `OutcomeUnknown`."""
        await self._registry.delete(self._name)

    async def name_first(self, owner: Owner) -> None:
        """Names the first owner, or nobody and a term that was used, of a vhost that is about to be made. Raises `Unavailable`,
        `OutcomeUnknown`.
        """
        await self._registry.put(self._name, msgspec.json.encode((owner.node, owner.term)))

    async def give(self, owner: Owner, to: str) -> Owner:
        """Names another node as the owner behind `owner`, with a term that nobody appends with, and returns that.

        Raises `Deposed` when somebody has claimed since, `Unavailable`, `OutcomeUnknown`.
        """
        found, version = await self._read()
        if found != owner:
            raise Deposed(found.node)
        given = Owner(to, owner.term + 1)
        try:
            await self._registry.put(self._name, msgspec.json.encode((given.node, given.term)), version)
        except Conflict:
            raise Deposed from None
        return given

    async def claim(self, node: str, after: Owner) -> int:
        """Makes the node the owner behind `after`, and returns its term, which nobody else has or had.

        Raises `Deposed` when another node has claimed since, `Unavailable`.
        """
        while True:
            found, version = await self._read()
            if found != after and found.node != node:
                raise Deposed(found.node)
            # What an earlier try of ours may have put there, without our being told, counts as given out.
            term = max(found.term, after.term) + 1
            try:
                await self._registry.put(self._name, msgspec.json.encode((node, term)), version)
            except (Conflict, OutcomeUnknown):
                continue
            return term
