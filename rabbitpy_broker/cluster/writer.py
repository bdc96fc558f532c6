"""The owner's end of a replicated vhost's log: one writer, by position.

Each block is appended at the position right behind the last, and counts as written when it is there. There is one append at a
time: what a block says may stand on the one before.

    append --> at its position                       written
           --> certainly not there                   tried again
           --> refused, or at another position       read on: a fence of a higher term there deposes the writer; what else is
                                                     there are blocks of a former owner that do not count, and it goes on
                                                     behind them
           --> outcome unknown                       closed by a fence with a new term of its own, up to which it reads: the
                                                     block is before it, or never will be, and is appended again

What must stay true:
- `append` returns only when the block is in the log, counts, and everything before it was known to this writer;
- a block is appended again only when it is certain that no earlier try of it counts or will;
- once deposed, a writer never says of a block that it is written, whatever the engine answers later.
"""

from __future__ import annotations

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.log import (
    Counting,
    Misplaced,
    NoSuchLog,
    OutcomeUnknown,
    Refused,
    ReplicatedLog,
    Trimmed,
    Unavailable,
)
from rabbitpy_broker.cluster.ownership import Deposed, Owner, OwnerRecord
from rabbitpy_broker.cluster.takeover import Pause, append_fence, short_pause


class Writer:
    """Made by `take_over`. `position` is the one of the next entry, `term` the writer's own."""

    def __init__(
        self,
        log: ReplicatedLog,
        record: OwnerRecord,
        node: str,
        *,
        term: int,
        position: int,
        max_block: int,
        pause: Pause = short_pause,
    ) -> None:
        self.term = term
        self.position = position
        self.is_deposed = False
        self._log = log
        self._record = record
        self._node = node
        self._max_block = max_block
        self._pause = pause
        self._is_busy = False

    async def append(self, block: bytes, last: int = blocks.LAST) -> int:
        """Returns, when the block is written, the position behind it. It tries for as long as the engine is not available.
        `last` is the kind of its last entry.

        Raises `Deposed`: then the block may be in the log, and counts or not, but may not be confirmed. A cancelled append
        leaves the writer deposed: nobody knows what became of it.
        """
        if self.is_deposed:
            raise Deposed
        assert not self._is_busy, "kept by: the caller, who appends one block at a time"
        self._is_busy = True
        try:
            await self._append_all(blocks.parts(block, self._max_block, last))
        except BaseException:
            self.is_deposed = True
            raise
        self._is_busy = False
        return self.position

    async def append_last(self, entry: bytes) -> None:
        """Appends an entry behind which this writer appends nothing, once: whatever else has come to stand in the log, a mark of
        a backup, an entry of a former owner, is no reason not to.

        Raises `Deposed`, and what the log does: `Unavailable`, `OutcomeUnknown`, `NoSuchLog`.
        """
        while True:
            try:
                await self._log.append(entry, term=self.term, expected=self.position)
            except (Refused, Misplaced) as error:
                await self._go_behind(error)
            else:
                return

    async def _append_all(self, pieces: list[bytes]) -> None:
        written = 0
        while written < len(pieces):
            if await self._append(pieces[written]):
                written += 1
            else:
                written = 0

    async def _append(self, piece: bytes) -> bool:
        """Appends one entry. False: a fence of our own was needed, and a block that was begun begins again.

        A last piece that turns out to be before the fence is written all the same.
        """
        while True:
            try:
                await self._log.append(piece, term=self.term, expected=self.position)
            except Unavailable:
                await self._pause()
            except (Refused, Misplaced) as error:
                await self._go_behind(error)
            except OutcomeUnknown:
                return await self._resolve() and piece[0] != blocks.PART
            except NoSuchLog:
                raise Deposed from None
            else:
                self.position += 1
                return True

    async def _go_behind(self, error: Refused | Misplaced) -> None:
        """Something is at our position: goes on behind it, unless it is a fence. Raises `Deposed`."""
        if isinstance(error, Refused):
            if error.term > self.term:
                raise Deposed
            end = error.end
        else:
            end = error.position + 1
        await self._read_to(end)

    async def _resolve(self) -> bool:
        """Whether the entry whose outcome is unknown is there. Ensures: it is before our new fence, or will never count.

        Raises `Deposed`.
        """
        expected = self.position
        term, fence = await append_fence(self._log, self._record, self._node, Owner(self._node, self.term), self._pause)
        found = await self._read_to(fence + 1, term)
        self.term = term
        return expected in found

    async def _read_to(self, end: int, new_term: int = 0) -> list[int]:
        """Reads from `position` to before `end`, where the writer then is; returns the positions of our term that count.

        Raises `Deposed` when something of another term than ours and `new_term` counts, or nothing of `new_term`.
        """
        while True:
            reader = self._log.reader(self.position)
            counting = Counting(self.term)
            ours: list[int] = []
            try:
                async for entry in reader.entries(end):
                    if counting.counts(entry):
                        if entry.term == self.term:
                            ours.append(entry.position)
                        elif entry.term > new_term:
                            raise Deposed
            except Unavailable:
                await self._pause()
                continue
            except (Trimmed, NoSuchLog):
                raise Deposed from None
            finally:
                await reader.close()
            if new_term and counting.term != new_term:
                raise Deposed
            self.position = end
            return ours
