"""Publisher confirms of one channel: which publish_seqnos are told, and which still wait.

  told_to   every seqno up to here has been told            waiting   one by one: a queue tells when it is settled
  acked     settled, still to be told                       runs      side by side: all wait for the sync of one epoch
  nacked    lost, still to be told

A persistent publish to a durable queue is settled with the epoch that it fell into, so no publish needs a record of its
own: those that follow each other in one epoch are a *run*, and the next one only moves its end. While nothing waits, a
publish costs one addition, and at the end of the turn one basic.ack multiple=true tells everything. Only a message that
a queue answered WAITING or REJECTED has a record. The lowest seqno that is not settled is the *border*: what is settled
below it needs no record, since the next multiple=true covers it.

What must stay true: each seqno is told exactly once; told_to < border; a run ends where another begins, and both runs
and `joint` are in the order of the epochs; an ack or nack with multiple=true covers nothing that is not settled, and
nothing that is settled the other way unless that was told before.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.message import ConfirmWaiter
from rabbitpy_broker.protocol.turn import ConfirmSource, Writer
from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup
from rabbitpy_broker.wire.encoder import write_ack, write_nack


class Unconfirmed(ConfirmWaiter):
    """One publish that `owing` others have not settled yet, queues or an epoch; one loss makes the whole a nack."""

    def __init__(self, confirms: Confirms, seqno: i64, owing: i64, epoch: i64) -> None:
        self._confirms = confirms
        self._seqno = seqno
        self._owing = owing
        self._lost = False
        self.epoch = epoch  # that owes too, 0 for none

    def settled(self, ok: bool) -> None:
        self._owing -= 1
        if not ok:
            self._lost = True
        if self._owing == 0:
            self._confirms.settle(self._seqno, not self._lost)


class Run:
    """The publishes from `first` up to, not including, `end`: all wait for `epoch`."""

    def __init__(self, epoch: i64, first: i64) -> None:
        self.epoch = epoch
        self.first = first
        self.end: i64 = first + 1


class Confirms(EpochWaiter, ConfirmSource):
    """`published` is the last publish_seqno given out, `confirmed` the number that were settled well."""

    def __init__(self, output: Writer, channel: i64, syncs: SyncGroup) -> None:
        self._output = output
        self._channel = channel
        self._syncs = syncs
        self.published: i64 = 0
        self.confirmed: i64 = 0
        self._told_to: i64 = 0
        self._due = False
        self._closed = False
        self._run = Run(-1, 0)  # the newest; no epoch has the number -1
        self._runs: list[Run] = []
        self._joined_epoch: i64 = -1
        self._waiting: dict[int, None] = {}
        self._joint: list[Unconfirmed] = []  # those that wait for an epoch and for queues
        self._acked: list[int] = []
        self._nacked: list[int] = []
        self._told_early: set[int] = set()

    # -- publishes ------------------------------------------------------------------------------------------------

    def publish_confirmed(self) -> None:
        """The next publish is settled already."""
        self.published += 1
        self.confirmed += 1
        if self._waiting or self._runs:
            self._acked.append(self.published)
        if not self._due:
            self._mark()

    def publish_syncing(self) -> None:
        """The next publish is settled when the epoch that is filling now is."""
        seqno = self.published + 1
        self.published = seqno
        run = self._run
        if run.end == seqno and run.epoch == self._syncs.epoch:
            run.end = seqno + 1
        else:
            self._begin_run(seqno)

    def publish_waiting(self, owing: i64, syncing: bool) -> ConfirmWaiter:
        """The next publish waits for so many queues, and for the epoch that is filling now if it is `syncing` too."""
        seqno = self.published + 1
        self.published = seqno
        self._waiting[seqno] = None
        if not syncing:
            return Unconfirmed(self, seqno, owing, 0)
        waiter = Unconfirmed(self, seqno, owing + 1, self._syncs.epoch)
        self._joint.append(waiter)
        self._join_epoch()
        return waiter

    def publish_rejected(self) -> None:
        """The next publish was refused."""
        self.published += 1
        self._nacked.append(self.published)
        if not self._due:
            self._mark()

    def _begin_run(self, seqno: i64) -> None:
        self._run = Run(self._syncs.epoch, seqno)
        self._runs.append(self._run)
        self._join_epoch()

    def _join_epoch(self) -> None:
        epoch = self._syncs.epoch
        if epoch != self._joined_epoch:
            self._joined_epoch = epoch
            self._syncs.wait(self)

    def waiting_count(self) -> int:
        """Publishes that are not settled."""
        count: i64 = len(self._waiting)
        for run in self._runs:
            count += run.end - run.first
        return count

    # -- what settles them ----------------------------------------------------------------------------------------

    def settle(self, seqno: i64, ok: bool) -> None:
        """A publish that waited is settled."""
        if self._closed:
            return
        self._waiting.pop(seqno, None)
        if ok:
            self.confirmed += 1
            self._acked.append(seqno)
        else:
            self._nacked.append(seqno)
        if not self._due:
            self._mark()

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        """The runs of this epoch are settled, and the publishes that waited for it besides owe one less."""
        if self._closed:
            return
        self._settle_runs(epoch, ok)
        joint = self._joint
        at: i64 = 0
        while at < len(joint) and joint[at].epoch == epoch:
            joint[at].settled(ok)
            at += 1
        del joint[:at]

    def _settle_runs(self, epoch: i64, ok: bool) -> None:
        lowest: i64 = next(iter(self._waiting)) if self._waiting else int(self.published) + 1
        runs = self._runs
        at: i64 = 0
        while at < len(runs) and runs[at].epoch == epoch:
            run = runs[at]
            at += 1
            if not ok:
                self._nacked.extend(range(run.first, run.end))
                continue
            self.confirmed += run.end - run.first
            if run.first > lowest:
                self._acked.extend(range(run.first, run.end))
        if at > 0:
            del runs[:at]
            if not self._due:
                self._mark()

    def close(self) -> None:
        """The channel is gone: what still waits is not told any more, and keeps nothing of the connection alive."""
        self._closed = True
        self._output = Writer(self._output.turn)
        self._waiting = {}
        self._joint = []
        self._runs = []

    # -- telling --------------------------------------------------------------------------------------------------

    def _mark(self) -> None:
        self._due = True
        self._output.turn.confirms_due(self)

    def send_confirms(self) -> None:
        if not self._due or self._closed:
            return
        self._due = False
        self._output.output_due()
        border: i64 = self.published + 1
        if self._runs:
            border = self._runs[0].first
        if self._waiting:
            border = min(border, next(iter(self._waiting)))
        before = self._told_to
        if self._nacked:
            self._tell_losses(border)
        self._tell_upto(border - 1, True)
        if self._told_early and self._told_to > before:
            self._told_early = {seqno for seqno in self._told_early if seqno > self._told_to}
        if self._acked:
            self._tell_early(border)

    def _tell_upto(self, last: i64, ok: bool) -> None:
        """Tells with one frame whatever was not told yet up to `last`; all of it is settled the same way."""
        highest = last
        while highest > self._told_to and highest in self._told_early:
            highest -= 1
        new = highest - self._told_to
        if new > 0:
            if ok:
                write_ack(self._output.out, self._channel, highest, new > 1)
            else:
                write_nack(self._output.out, self._channel, highest, new > 1)
        if last > self._told_to:
            self._told_to = last

    def _tell_losses(self, border: i64) -> None:
        """Nacks: below the border one frame for those side by side, after everything before them; above it one by one."""
        lost = sorted(self._nacked)
        self._nacked.clear()
        at: i64 = 0
        while at < len(lost) and lost[at] < border:
            last: i64 = lost[at]
            at += 1
            self._tell_upto(last - 1, True)
            while at < len(lost) and lost[at] == last + 1:
                last += 1
                at += 1
            self._tell_upto(last, False)
        while at < len(lost):
            write_nack(self._output.out, self._channel, lost[at], False)
            self._told_early.add(lost[at])
            at += 1

    def _tell_early(self, border: i64) -> None:
        """Acks above the border, one by one."""
        for seqno in sorted(self._acked):
            if seqno >= border:
                write_ack(self._output.out, self._channel, seqno, False)
                self._told_early.add(seqno)
        self._acked.clear()
