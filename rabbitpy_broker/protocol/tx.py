"""A transactional channel: publishes and settles since the last commit (spec 1.9, with RabbitMQ's limits).

A commit is atomic for one queue only, as in RabbitMQ. Delivery tags are checked at once, not at commit; a rollback
leaves the deliveries unacked on the channel, it does not requeue them.

A commit is carried out at once (tx_methods.py), but tx.commit-ok says that its persistent messages are safe: it waits
for their epoch. The client may go on meanwhile; a commit that has nothing to wait for still waits for those before it.

What must stay true: commit-oks are sent in the order of the commits; the epochs in `unsafe` never decrease, so one
registration an epoch is enough; after `close` nothing is sent.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol.channel_host import ChannelHost
from rabbitpy_broker.protocol.stream_unacked import Run
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.routing.routes import Route
from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup
from rabbitpy_broker.wire import methods


class Tx(EpochWaiter):
    """The publishes and settles that wait for commit or rollback, and the commits that wait for the disk, of one channel."""

    def __init__(self, host: ChannelHost, number: i64, syncs: SyncGroup) -> None:
        self._host = host
        self._number = number
        self._syncs = syncs
        self.publishes: list[tuple[Route, Message, bool]] = []
        self.settles: list[tuple[list[MsgStatus], i64]] = []
        self.runs: list[Run] = []  # deliveries of streams that are settled
        self.committing = False  # a commit is being carried out: its publishes go to their queues at once
        self.refused = False  # a queue has refused a publish of this commit
        self._unsafe: list[int] = []  # the epoch of each commit that is not answered yet

    def take(self) -> tuple[list[tuple[Route, Message, bool]], list[tuple[list[MsgStatus], i64]]]:
        """Returns the publishes and settles since the last commit, and begins a new transaction."""
        publishes, settles = self.publishes, self.settles
        self.publishes, self.settles = [], []
        return publishes, settles

    def settled_count(self) -> int:
        """How many deliveries are settled when it is committed."""
        return sum([len(statuses) for statuses, _ in self.settles]) + sum([int(run.end - run.first) for run in self.runs])

    def take_runs(self) -> list[Run]:
        """Returns the deliveries of streams that were settled since the last commit."""
        runs = self.runs
        self.runs = []
        return runs

    def answer(self, syncing: bool) -> None:
        """Sends the commit-ok of the commit just done, or has it wait for the epoch that is filling now."""
        if self.refused:
            raise _partial()
        unsafe = self._unsafe
        if syncing:
            epoch = self._syncs.epoch
            if not unsafe or unsafe[-1] != epoch:
                self._syncs.wait(self)
            unsafe.append(epoch)
        elif unsafe:
            unsafe.append(unsafe[-1])
        else:
            self._send_ok()

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        """Answers the commits of this epoch, or closes the channel when they may be lost."""
        unsafe = self._unsafe
        answered = 0
        while answered < len(unsafe) and unsafe[answered] == epoch:
            answered += 1
        if not answered:
            return
        del unsafe[:answered]
        if ok:
            for _ in range(answered):
                self._send_ok()
        else:
            self._host.fail_channel(self._number, _partial())

    def _send_ok(self) -> None:
        self._host.output.send(self._number, methods.make("Tx.CommitOk"))

    def close(self) -> None:
        """Ends with the channel: no commit is answered any more."""
        self._unsafe = []


def _partial() -> ChannelClosed:
    return ChannelClosed(PRECONDITION_FAILED, "partial tx completion")
