"""Limits that are the whole daemon's, of a user or of all connections, where each worker knows its own connections only.

    worker that opens one --others of USER?--> supervisor --count USER--> each of the other workers
                          <--counted---------- supervisor

Nothing is counted while no limit is set, and where one is, only for whom it is. The supervisor tells one worker at a time, and
goes on to the next when that one has opened its connection, or has not: so two workers never take the last place both. What must
stay true: what a worker was told counts once, and no longer than USED_S, after which it has to ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

from rabbitpy_broker.net.transport import SocketTransport
from rabbitpy_broker.protocol.session import Session
from rabbitpy_broker.questions import AnswerAwaited, Question
from rabbitpy_broker.workers.leash import Leash, LeashError

USED_S: Final = 1.0
ANSWER_S: Final = 5.0  # for a worker to say what it has; then it is as if it had nothing

Counts = tuple[int, int, int]  # connections of all users, of one, and its channels
NOTHING: Final[Counts] = (0, 0, 0)


class Counted(Question):
    """What the others have, once it is answered. `used` is set when somebody has gone by it."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.counts = NOTHING
        self.is_old = False
        self.used = asyncio.Event()


class Counting:
    """A worker's end."""

    def __init__(self, leash: Leash, log: Any) -> None:
        self._leash = leash
        self._log = log
        self._asked: dict[int, Counted] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, session: Session, user: str) -> Counts:
        """What the others have, for one connection or channel of this session. Raises AnswerAwaited."""
        counted: Counted | None = session.counted
        if counted is not None and counted.is_done and not counted.is_old:
            session.counted = None
            counted.used.set()
            return counted.counts
        if counted is None or counted.is_old:
            counted = session.counted = Counted(session)
            task = asyncio.get_running_loop().create_task(self._ask(counted, user))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        raise AnswerAwaited(counted)

    async def _ask(self, counted: Counted, user: str) -> None:
        self._number += 1
        number = self._number
        self._asked[number] = counted
        try:
            await self._leash.ask("others", user=user, ticket=number)
        except LeashError as error:
            self._log.warning("connections not counted", user=user, reason=str(error))
        finally:
            del self._asked[number]
            if not counted.is_done:
                counted.finish()

    async def told(self, ticket: int, counts: Sequence[int]) -> None:
        """The answer; returns when it was used, or is no longer to be."""
        counted = self._asked.get(ticket)
        if counted is None or cast(SocketTransport, counted.session.output.transport).client.socket.is_closing():
            return
        counted.counts = (counts[0], counts[1], counts[2])
        counted.finish()
        try:
            await asyncio.wait_for(counted.used.wait(), USED_S)
        except TimeoutError:
            counted.is_old = True


class Census:
    """The supervisor's end."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._turn = asyncio.Lock()

    async def count(self, asker: Leash, others: Sequence[Leash], user: str, ticket: int) -> None:
        """Tells a worker what the others have, and returns when it has gone by it. Raises LeashError when the asker is gone."""
        async with self._turn:
            found = await asyncio.gather(*(self._of(one, user) for one in others))
            sums = [sum(each) for each in zip(*found, strict=True)] or NOTHING
            await asker.ask("counted", ticket=ticket, counts=sums)

    async def _of(self, leash: Leash, user: str) -> Counts:
        """What one of them has; nothing when its process has ended."""
        try:
            counts: Counts = await asyncio.wait_for(leash.ask("count", user=user), ANSWER_S)
        except LeashError:
            return NOTHING
        except TimeoutError:
            self._log.warning("connections not counted", user=user, reason="a worker does not answer")
            return NOTHING
        return counts
