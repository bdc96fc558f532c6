"""Publisher confirms of one channel: which publish_seqnos are told, and which still wait.

  told_to   every seqno up to here has been told            open    one by one: queues decide each
  plain_to  the seqnos from there up to here are decided    runs    side by side: one epoch decides all
            well and still to be told                       acked   decided one by one, still to be told
                                                            nacked  lost, still to be told

A publish is *decided* when it is known whether it is acked or nacked; then it is told. The epoch of a persistent
publish to a durable queue decides it, so no publish needs a record of its own: those that follow each other in one
epoch are a *run*, and the next publish only moves its end. While nothing waits, a publish costs one addition, and at
the end of the turn one basic.ack multiple=true tells everything. Only a message that a queue answered WAITING or
REJECTED has a record. The lowest seqno that is not decided is the *border*: multiple=true tells publishes below it;
those above it are told one by one.

A channel that was told something while publishes are open has a pause, in which decided ones gather (confirm_pause.py).

What must stay true:

- each seqno is told exactly once, and told_to < border;
- plain_to grows only while no record is still to be told, so that the seqnos up to it are contiguous;
- a run ends where another begins; runs and `joint` are in the order of their epochs;
- an ack or nack with multiple=true covers no undecided publish, and none that was decided the other way and not yet
  told;
- nothing is kept of a publish that was told, however long an earlier one is open;
- a pause keeps back no nack; it keeps back nothing when no publish is open, before a basic.return, and at the end of the
  channel.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.events.journal import Origin
from rabbitpy_broker.message import ConfirmWaiter
from rabbitpy_broker.protocol.confirm_pause import ConfirmPause
from rabbitpy_broker.protocol.output import LOST, Output
from rabbitpy_broker.protocol.turn import ConfirmSource
from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup
from rabbitpy_broker.wire.encoder import write_ack, write_nack

DECIDED_KEPT: Final[i64] = 64  # decided records that `_open` may have, beside as many as are open, before it is swept


class Unconfirmed(ConfirmWaiter):
    """One publish that `owing` queues, or an epoch besides, still have to decide; one loss makes it a nack."""

    def __init__(self, confirms: Confirms, seqno: i64, owing: i64, epoch: i64) -> None:
        self.confirms: Confirms | None = confirms  # None once the channel is closed
        self.seqno = seqno
        self.owing = owing
        self._lost = False
        self.epoch = epoch  # the epoch that owes too; 0: none

    def decided(self, ok: bool) -> None:
        self.owing -= 1
        if not ok:
            self._lost = True
        confirms = self.confirms
        if self.owing == 0 and confirms is not None:
            confirms.decide(self.seqno, not self._lost)


class Run:
    """The publishes from `first` up to, not including, `end`: all wait for `epoch`."""

    def __init__(self, epoch: i64, first: i64) -> None:
        self.epoch = epoch
        self.first = first
        self.end: i64 = first + 1


class Confirms(EpochWaiter, ConfirmSource):
    """`published` is the last publish_seqno given out, `confirmed` the number of publishes that were acked."""

    def __init__(self, output: Output, channel: i64, syncs: SyncGroup) -> None:
        self._output = output
        self._channel = channel
        self._syncs = syncs
        self.origin: Origin | None = None  # the channel, in the records of the event journal
        self.published: i64 = 0
        self.confirmed: i64 = 0
        self._told_to: i64 = 0
        self._plain_to: i64 = 0
        self._due = False
        self._pause = ConfirmPause()
        self._closed = False
        self._run = Run(-1, 0)  # the newest; no epoch has the number -1
        self._runs: list[Run] = []
        self._joined_epoch: i64 = -1
        self._open: list[
            Unconfirmed
        ] = []  # in order, with some decided ones; all before `_open_from` are decided
        self._open_from: i64 = 0
        self._open_count: i64 = 0
        self._joint: list[Unconfirmed] = []  # publishes that wait for an epoch and for queues
        self._acked: list[int] = []
        self._nacked: list[int] = []

    # -- publishes ------------------------------------------------------------------------------------------------

    def publish_confirmed(self) -> None:
        """Numbers the next publish, which is decided already."""
        self.published += 1
        self.confirmed += 1
        if self._open_count > 0 or self._runs or self._acked or self._nacked:
            self._acked.append(self.published)
        else:
            self._plain_to = self.published
        if not self._due:
            self._mark()

    def publish_syncing(self) -> None:
        """Numbers the next publish, which the epoch that is filling now decides."""
        seqno = self.published + 1
        self.published = seqno
        run = self._run
        if run.end == seqno and run.epoch == self._syncs.epoch:
            run.end = seqno + 1
        else:
            self._begin_run(seqno)

    def publish_waiting(self, owing: i64, syncing: bool) -> ConfirmWaiter:
        """Numbers the next publish, which `owing` queues decide, and with `syncing` the epoch that is filling now besides."""
        seqno = self.published + 1
        self.published = seqno
        waiter = Unconfirmed(self, seqno, owing, 0)
        self._open.append(waiter)
        self._open_count += 1
        if syncing:
            waiter.owing += 1
            waiter.epoch = self._syncs.epoch
            self._joint.append(waiter)
            self._join_epoch()
        return waiter

    def publish_rejected(self) -> None:
        """Numbers the next publish, which was refused."""
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
        """The number of publishes that are not decided."""
        count = self._open_count
        for run in self._runs:
            count += run.end - run.first
        return count

    # -- decisions ------------------------------------------------------------------------------------------------

    def decide(self, seqno: i64, ok: bool) -> None:
        """Takes the decision on a publish that was open, of a channel that still is."""
        self._open_count -= 1
        if ok:
            self.confirmed += 1
            self._acked.append(seqno)
        else:
            self._nacked.append(seqno)
        if not self._due:
            self._mark()

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        """Decides the runs of this epoch; the publishes that waited for it and for queues wait for one less.

        Ensures: with `ok` their seqnos are in acked or below plain_to, without it in nacked. Runs of other epochs are
        untouched.
        """
        if self._closed:
            return
        self._decide_runs(epoch, ok)
        joint = self._joint
        at: i64 = 0
        while at < len(joint) and joint[at].epoch == epoch:
            joint[at].decided(ok)
            at += 1
        del joint[:at]

    def _decide_runs(self, epoch: i64, ok: bool) -> None:
        lowest = self._lowest_open()
        runs = self._runs
        at: i64 = 0
        while at < len(runs) and runs[at].epoch == epoch:
            run = runs[at]
            at += 1
            if not ok:
                self._nacked.extend(range(run.first, run.end))
                continue
            self.confirmed += run.end - run.first
            if run.first > lowest or self._acked or self._nacked:
                self._acked.extend(range(run.first, run.end))
            else:
                self._plain_to = run.end - 1
        if at > 0:
            del runs[:at]
            if not self._due:
                self._mark()

    def _lowest_open(self) -> i64:
        """The lowest undecided seqno of those with a record; one above all when there is none.

        Sweeps decided records out of `_open` when they are the greater part of it.
        """
        waiters = self._open
        if self._open_count == 0:
            if waiters:
                waiters.clear()
                self._open_from = 0
            return self.published + 1
        at = self._open_from
        while waiters[at].owing == 0:
            at += 1
        self._open_from = at
        if len(waiters) > 2 * self._open_count + DECIDED_KEPT:
            self._open = [waiter for waiter in waiters if waiter.owing > 0]
            self._open_from = 0
            return self._open[0].seqno
        return waiters[at].seqno

    def close(self) -> None:
        """Ends the confirms with their channel: nothing is told any more, and nothing of the connection is kept alive."""
        self._closed = True
        self._output = Output(self._output.turn, None, LOST, 0, 0)
        for waiter in self._open:  # which messages point at, that may wait for long
            waiter.confirms = None
        self._open = []
        self._open_count = 0
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
        if self._pause.on and self._can_wait():
            return
        self._tell()
        if self._open_count > 0 and not self._pause.on and self._output.turn.pause(self):
            self._pause.begin(self._output.turn.ticks, self.published, self.waiting_count())

    def tell_now(self) -> None:
        """Tells all decided publishes, in a pause too, before a basic.return or the end of the channel is written.

        Clients that count acks between their returns rely on it. The mark in the turn stays, and the turn finds nothing
        left.
        """
        if not self._closed and (self._acked or self._nacked or self._plain_to > self._told_to):
            self._tell()

    def _tell(self) -> None:
        """Writes all that is decided and not told: losses, then one ack for everything below the border, then single acks.

        Ensures: acked and nacked are empty; told_to is the border - 1.
        """
        self._output.due()
        border = self._lowest_open()
        if self._runs:
            border = min(border, self._runs[0].first)
        self._pause.decided_below(border, self._output.turn.ticks)
        if self._nacked:
            self._tell_losses(border)
        early: list[int] = []
        highest = self._plain_to
        for seqno in self._acked:
            if seqno >= border:
                early.append(seqno)
            elif seqno > highest:
                highest = seqno
        self._acked.clear()
        self._tell_acks(highest)
        self._told_to = border - 1
        if early:
            early.sort()
            for seqno in early:
                self._record(seqno, seqno, True)
                write_ack(self._output.out, self._channel, seqno, False)

    def _can_wait(self) -> bool:
        if self._nacked or self._open_count == 0:
            return False
        untold = len(self._acked) + max(0, self._plain_to - self._told_to)
        return self._pause.can_wait(untold, self.waiting_count())

    def pause_goes_on(self) -> bool:
        if self._pause.goes_on() and not self._closed:
            return True
        if not self._due and not self._closed and (self._acked or self._plain_to > self._told_to):
            self._mark()
        return False

    def _tell_acks(self, highest: i64) -> None:
        """Writes one frame for all publishes still to be told up to `highest`. Assumes: `highest` is one of them, or was
        told.
        """
        if highest > self._told_to:
            self._record(self._told_to + 1, highest, True)
            write_ack(self._output.out, self._channel, highest, highest - self._told_to > 1)
            self._told_to = highest

    def _record(self, first: i64, last: i64, ok: bool) -> None:
        if self.origin is not None:
            self.origin.confirm(first, last, ok)

    def _tell_losses(self, border: i64) -> None:
        """Writes the nacks.

        Ensures: below the border one frame covers losses that are side by side, after everything before them was told.
        Above the border each loss has a frame of its own. No frame with multiple=true covers an acked publish that was
        not told before.
        """
        lost = sorted(self._nacked)
        self._nacked.clear()
        acked = sorted(self._acked)
        next_acked: i64 = 0
        highest = self._plain_to
        at: i64 = 0
        while at < len(lost) and lost[at] < border:
            first: i64 = lost[at]
            while next_acked < len(acked) and acked[next_acked] < first:
                highest = max(highest, i64(acked[next_acked]))
                next_acked += 1
            self._tell_acks(highest)
            last = first
            at += 1
            while at < len(lost) and lost[at] == last + 1:
                last += 1
                at += 1
            self._told_to = first - 1  # all before it has been told
            self._record(first, last, False)
            write_nack(self._output.out, self._channel, last, last > first)
            self._told_to = last
        while at < len(lost):
            self._record(lost[at], lost[at], False)
            write_nack(self._output.out, self._channel, lost[at], False)
            at += 1
