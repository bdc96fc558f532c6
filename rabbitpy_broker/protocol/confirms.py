"""Publisher confirms of one channel: which publish_seqnos are told, and which still wait.

  told_to   every seqno up to here has been told            waiting   not settled yet, lowest first
  acked     settled, still to be told                       nacked    lost, still to be told

While nothing waits, a publish costs one addition: `published` grows, and at the end of the turn one basic.ack
multiple=true tells everything up to it. Only messages that a queue answered WAITING or REJECTED have records.

What must stay true: each seqno is told exactly once; told_to < lowest waiting; an ack with multiple=true never covers
a seqno that waits, and a nacked one only when the nack has gone before.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.message import ConfirmWaiter
from rabbitpy_broker.protocol.turn import ConfirmSource, Writer
from rabbitpy_broker.wire.encoder import write_ack, write_nack


class Unconfirmed(ConfirmWaiter):
    """One publish that `owing` queues have not settled yet; one loss makes the whole a nack."""

    def __init__(self, confirms: Confirms, seqno: i64, owing: i64) -> None:
        self._confirms = confirms
        self._seqno = seqno
        self._owing = owing
        self._lost = False

    def settled(self, ok: bool) -> None:
        self._owing -= 1
        if not ok:
            self._lost = True
        if self._owing == 0:
            self._confirms.settle(self._seqno, not self._lost)


class Confirms(ConfirmSource):
    """`published` is the last publish_seqno given out, `confirmed` the number that were settled well."""

    def __init__(self, output: Writer, channel: i64) -> None:
        self._output = output
        self._channel = channel
        self.published: i64 = 0
        self.confirmed: i64 = 0
        self._told_to: i64 = 0
        self._due = False
        self._closed = False
        self._waiting: dict[int, None] = {}
        self._acked: list[int] = []
        self._nacked: list[int] = []
        self._told_early: set[int] = set()

    def publish_confirmed(self) -> None:
        """The next publish is settled already."""
        self.published += 1
        self.confirmed += 1
        if self._waiting:
            self._acked.append(self.published)
        if not self._due:
            self._mark()

    def publish_waiting(self, owing: i64) -> ConfirmWaiter:
        """The next publish waits for so many queues."""
        self.published += 1
        self._waiting[self.published] = None
        return Unconfirmed(self, self.published, owing)

    def publish_rejected(self) -> None:
        """The next publish was refused."""
        self.published += 1
        self._nacked.append(self.published)
        if not self._due:
            self._mark()

    def settle(self, seqno: i64, ok: bool) -> None:
        """A publish that waited is settled."""
        self._waiting.pop(seqno, None)
        if ok:
            self.confirmed += 1
            self._acked.append(seqno)
        else:
            self._nacked.append(seqno)
        if not self._due:
            self._mark()

    def waiting_count(self) -> int:
        """Publishes that are not settled."""
        return len(self._waiting)

    def close(self) -> None:
        """The channel is gone: what still waits is not told any more."""
        self._closed = True

    def _mark(self) -> None:
        self._due = True
        self._output.turn.confirms_due(self)

    def send_confirms(self) -> None:
        if not self._due or self._closed:
            return
        self._due = False
        self._output.output_due()
        if not self._waiting and not self._nacked and not self._told_early:
            told = self.published - self._told_to
            if told > 0:
                write_ack(self._output.out, self._channel, self.published, told > 1)
                self._told_to = self.published
            self._acked.clear()
        else:
            self._send_mixed()

    def _send_mixed(self) -> None:
        """Some wait or were lost: nacks one by one, everything below the lowest waiting at once, the rest one by one."""
        out = self._output.out
        early = self._told_early
        for seqno in self._nacked:
            write_nack(out, self._channel, seqno, False)
            early.add(seqno)
        self._nacked.clear()
        border = next(iter(self._waiting)) if self._waiting else int(self.published) + 1
        highest = border - 1
        while highest > self._told_to and highest in early:
            highest -= 1
        if highest > self._told_to:
            write_ack(out, self._channel, highest, True)
        for seqno in sorted(self._acked):
            if seqno >= border:
                write_ack(out, self._channel, seqno, False)
                early.add(seqno)
        self._acked.clear()
        if border - 1 > self._told_to:
            self._told_to = border - 1
        self._told_early = {seqno for seqno in early if seqno > self._told_to}
