"""Questions to somebody outside of the broker, and how those who need the answer come back to it.

Whoever needs an answer that is not there yet raises `AnswerAwaited`, before it has changed anything. Its caller lets go of what
it was about to do, and does it again from the start when the question is answered; then the answer is there. So nobody waits,
and code that asks looks like code that knows.

What must stay true: a question is finished once, in the broker's loop, whatever becomes of whom it was put to.
"""

from __future__ import annotations

from collections.abc import Callable

from rabbitpy_broker.errors import BrokerError


class Question:
    """Has been put to somebody. `is_done` says whether the answer is there, which the class below has."""

    def __init__(self) -> None:
        self.is_done = False
        self._waiting: list[Callable[[], None]] = []

    def when_done(self, call: Callable[[], None]) -> None:
        """Has `call` called when the answer is there; at once, if it is."""
        if self.is_done:
            call()
        else:
            self._waiting.append(call)

    def finish(self) -> None:
        """Tells all who wait."""
        self.is_done = True
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


class AnswerAwaited(BrokerError):
    """What was about to be done needs an answer that is not there yet. Nothing has been changed."""

    def __init__(self, question: Question) -> None:
        super().__init__("an answer is awaited")
        self.question = question
