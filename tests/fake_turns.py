"""The host of a turn that no loop runs."""

from __future__ import annotations

from rabbitpy_broker.protocol.turn import Turn, TurnHost


class FakeTurns(TurnHost):
    """`commits`: what the next commits say, an exception is raised; then all succeed. `faults` are gathered."""

    def __init__(self, *, pauses: bool = False, commits: tuple[bool | Exception, ...] = ()) -> None:
        self.pauses = pauses
        self.asked = 0
        self.faults: list[Exception] = []
        self._commits = list(commits)

    def schedule(self, turn: Turn) -> None:
        self.asked += 1

    def schedule_tick(self, turn: Turn) -> bool:
        return self.pauses

    def commit(self) -> bool:
        said = self._commits.pop(0) if self._commits else True
        if isinstance(said, Exception):
            raise said
        return said

    def fault(self, fault: Exception) -> None:
        self.faults.append(fault)
