"""The messages that a queue has handed out and not got back: a list that is appended to, and swept when most of it is
settled.

A status is not taken out when it is settled: `MsgStatus.unacked` says whether it still counts. A message that was
requeued and handed out again stands here twice until the next sweep.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.queues.msg_status import MsgStatus

SWEEP_ABOVE: Final[i64] = 256


class UnackedStatuses:
    """`highest` is the highest seq_id ever noted."""

    def __init__(self) -> None:
        self.statuses: list[MsgStatus] = []
        self.highest: i64 = -1
        self._cursor: i64 = 0
        self._sweeps: i64 = 0

    def note(self, status: MsgStatus, unacked: i64) -> None:
        """Adds one status; `unacked` is the number of unacked messages with it."""
        self.statuses.append(status)
        if status.seq_id > self.highest:
            self.highest = status.seq_id
        if len(self.statuses) > 2 * unacked + SWEEP_ABOVE:
            self.sweep(unacked)

    def sweep(self, unacked: i64) -> None:
        """Leaves one entry for each of the `unacked` messages."""
        if len(self.statuses) == unacked:
            return
        sweep = self._sweeps + 1
        self._sweeps = sweep
        kept: list[MsgStatus] = []
        for status in self.statuses:
            if status.unacked and status.swept != sweep:
                status.swept = sweep
                kept.append(status)
        self.statuses = kept
        self._cursor = 0

    def seq_ids(self) -> set[int]:
        """The seq_ids of the unacked messages."""
        return {int(status.seq_id) for status in self.statuses if status.unacked}

    def next(self) -> MsgStatus | None:
        """Each status in turn, over many calls: the one after the last call's, settled or not; None at the end."""
        if self._cursor >= len(self.statuses):
            self._cursor = 0
            return None
        status = self.statuses[self._cursor]
        self._cursor += 1
        return status
