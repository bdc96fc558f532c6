"""The contract of what a replicated vhost stands on: a log that many servers keep, and a store for large objects.

An engine (PostgreSQL, Kafka, one in memory for tests) implements the classes of this file and of `registry.py`. Consensus,
replication and the election of a leader are the engine's; who may append, what counts and when a confirm leaves is decided by its
users, out of nothing but the guarantees that stand here.

A log is a sequence of entries, each a block of bytes with a position and a term. What every engine guarantees:

1. *One order.* All readers see the same entries at the same positions, and an entry never changes. Positions begin with 0, and
   each entry has the one behind the last: there is no gap, now or later, whoever appends from wherever.
2. *Durable before it returns.* When an append returns, its block is on a quorum of the engine's servers, synced as far as the
   engine's settings promise it, and so is every entry before it. Whatever fails then, the entry and all before it stay.
3. *Reads see what has returned.* `end`, called after an append anywhere has returned, is behind its entry, and a reader shows it;
   `Reader.next` may say for a moment that there is nothing more, while a server that slept takes itself for the leader. A read
   shows only what is as safe as an append that has returned: no entry that was read is ever taken back.
4. *Calls keep their order.* Appends by one handle of a log, several of them under way, get positions in the order of the calls,
   as long as none of them fails.
5. *Terms.* An append has a term, given out by the users, each to one of them. An entry *counts* when its term is not below any
   term of an entry before it that counts, and when it is at the position that was expected, if one was. `Counting` is this
   rule. An engine that can refuses an append that would not count (`Refused`). One that cannot appends it, and says so to the
   writer (`Misplaced`) and to all readers (`Entry.misplaced` and `Entry.term`), who pass over it.

So the owner of a vhost appends with its term and the position behind its last entry. An append that returns counts, if its
writer knew every entry before the expected position: it has read them, or they are its own appends that returned. Of several
under way none counts for sure behind one that failed, even if it returns: the fence of another may stand where the failed one
should. Who takes over appends a block with a higher term and reads up to it: what counts before it is the vhost, and nothing
that the former owner may still append counts any more.

*An unknown outcome* (`OutcomeUnknown`) stays open: the append may yet be under way and may land later, behind others. Reading
does not close it by itself. It is closed by an entry of a higher term behind it: what is not before that entry will never
count.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator
from typing import NamedTuple

from rabbitpy_broker.errors import BrokerError


class ClusterError(BrokerError):
    """Base of what an engine says when it cannot do what it was asked."""


class Unavailable(ClusterError):
    """The engine cannot be reached or has no quorum, and certainly nothing was done: it may be asked again later."""


class OutcomeUnknown(ClusterError):
    """The engine did not say whether it has done what it was asked, and may yet do it."""


class Refused(ClusterError):
    """The block is certainly not in the log and never will be: its term is too low, or the expected position is not the next one.

    `term` and `end` are those of the log when it refused.
    """

    def __init__(self, term: int, end: int) -> None:
        super().__init__(f"append refused: the log has term {term} and ends at {end}")
        self.term = term
        self.end = end


class Misplaced(ClusterError):
    """The block is in the log at `position`, which is not the one that was expected; it does not count, and readers pass over
    it.
    """

    def __init__(self, position: int) -> None:
        super().__init__(f"appended at {position}, which was not expected")
        self.position = position


class Trimmed(ClusterError):
    """The entries that were asked for are no longer in the log, which begins at `first`: a checkpoint has what they said."""

    def __init__(self, first: int) -> None:
        super().__init__(f"the log was trimmed and begins at {first}")
        self.first = first


class NoSuchLog(ClusterError):
    """There is no log of this name: it was never created, or was deleted."""


class NoSuchObject(ClusterError):
    """There is no object of this name, or it was deleted or replaced while it was read."""


class Entry(NamedTuple):
    """One entry of a log. `misplaced`: it was appended for another position, and does not count."""

    position: int
    term: int
    misplaced: bool
    block: bytes


class Counting:
    """Which entries count, for one who reads them in order. `term` is the highest of those that did; a checkpoint keeps it."""

    def __init__(self, term: int = 0) -> None:
        self.term = term

    def counts(self, entry: Entry) -> bool:
        if entry.misplaced or entry.term < self.term:
            return False
        self.term = entry.term
        return True


class Reader(ABC):
    """Reads a log from a position on, in order; made by `ReplicatedLog.reader`, and closed by whoever made it."""

    position: int  # of the entry that comes next

    @abstractmethod
    async def next(self, wait: float = 0) -> list[Entry]:
        """The entries from `position` on, one behind the other: some MiB at most, one at least if there is any.

        At the end of the log it waits up to `wait` seconds for an entry, then returns an empty list.

        Raises `Trimmed` (then `position` stays), `NoSuchLog`, `Unavailable` (then the reader can be asked again).
        """

    @abstractmethod
    async def close(self) -> None:
        """Gives up what the engine holds for the reader."""

    async def entries(self, up_to: int) -> AsyncIterator[Entry]:
        """The entries from `position` to before `up_to`, which must be there already or come: it waits for them."""
        while self.position < up_to:
            for entry in await self.next(wait=1.0):
                if entry.position >= up_to:
                    self.position = entry.position
                    return
                yield entry


class ReplicatedLog(ABC):
    """One log of an engine, as one user of it sees it. All users together see one log: the laws are at the top of this file."""

    name: str

    @abstractmethod
    def append(self, block: bytes, *, term: int, expected: int | None = None) -> asyncio.Future[int]:
        """Appends a block and gives its position, when the block is durable on a quorum. The order of calls is the order in the
        log.

        `term` is from 0 on, `expected` the position that the block must get to count; without one any position is right. The
        block has `Engine.max_block` bytes at most, and is not changed by the caller.

        The future raises `Refused` and `Unavailable` (the block is certainly not in the log and never will be), `Misplaced` (it
        is, and does not count), `OutcomeUnknown`, `NoSuchLog`. When one fails, those behind it may still be appended unless
        they expect a position. Cancelling the future takes nothing back, and a failure that nobody asks for is not reported.
        """

    @abstractmethod
    async def end(self) -> int:
        """The position that the next entry gets: one behind the last. Raises `NoSuchLog`, `Unavailable`."""

    @abstractmethod
    async def first(self) -> int:
        """The position of the first entry that is still there, or `end` if there is none. Raises `NoSuchLog`, `Unavailable`."""

    @abstractmethod
    async def trim(self, below: int) -> None:
        """Removes the entries before the position `below`, which is at most `end`; positions stay what they are.

        Removing may go on when it returns, and may fall short of `below`; reads of what is removed raise `Trimmed`. It may be
        asked again with the same or a lower position, which changes nothing. Raises `NoSuchLog`, `Unavailable`,
        `OutcomeUnknown`.
        """

    @abstractmethod
    def reader(self, position: int) -> Reader:
        """A reader from `position` on, which is at most `end`."""


class ObjectInfo(NamedTuple):
    """An object's name and its size in bytes."""

    name: str
    size: int


class ObjectStore(ABC):
    """Large named objects (checkpoints), as durable as entries of a log."""

    @abstractmethod
    async def put(self, name: str, parts: AsyncIterable[bytes]) -> int:
        """Stores the parts, one behind the other, as the object `name`, and returns its size.

        The object is there as a whole when it returns, and not before; what had the name is replaced. When it fails nothing is
        seen of the new object, but for `OutcomeUnknown`: then either is there. Raises `Unavailable`, and whatever `parts`
        raises.
        """

    @abstractmethod
    def get(self, name: str) -> AsyncIterator[bytes]:
        """The bytes of an object in parts of a MiB or so, none empty. Raises `NoSuchObject`, also halfway, and `Unavailable`."""

    @abstractmethod
    async def list(self, prefix: str = "") -> list[ObjectInfo]:
        """All objects whose name begins with `prefix`, by name. Raises `Unavailable`."""

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Removes an object; one that is not there is none to remove. Raises `Unavailable`, `OutcomeUnknown`."""


def asked_or_not(future: asyncio.Future[int]) -> None:
    """A callback for appends: their failures need not be asked for, as a writer gives up all that it has under way at the
    first.
    """
    if not future.cancelled():
        future.exception()
