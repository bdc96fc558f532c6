"""Who waits for the disk, and who does the waiting: the contracts between the store and those above it.

A sync takes as long as a thousand messages take to arrive, so nobody waits for one of his own. What must be durable
gathers in an *epoch*; a `SyncGroup` writes and syncs a whole epoch in a thread while the next one fills. There is one
epoch on its way at a time and there is no timer: a lone message is synced at once, a flood a thousand at a time.

What must stay true: an epoch that is settled with `ok` is on disk, all of it; a waiter is told exactly once for each
epoch that it waits for, in the order of the epochs.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64, mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class EpochWaiter:
    """Somebody who has made a promise that an epoch must keep first: a channel's confirms, a tx.commit."""

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        """`ok`: everything that was handed over while this epoch was filling is safe: on disk, or in the log of a vhost with
        followers. Not `ok`: it may be lost.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class SyncGroup:
    """Those who share their syncs: one vhost. `epoch` is the number of the epoch that is filling."""

    def __init__(self) -> None:
        self.epoch: i64 = 1

    def is_replicated(self) -> bool:
        """Whether definitions, too, are safe with their epoch, and not with their commit alone."""
        return False

    def wait(self, waiter: EpochWaiter) -> None:
        """Has the waiter told when the epoch that is filling now is settled."""
        raise NotImplementedError

    def begin_if_due(self) -> None:
        """Sends the epoch that is filling on its way, if there is something in it and none is under way."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class EpochLog:
    """What an epoch of a vhost with followers is written to before the files of its journal; it keeps what waiters wait for."""

    def begin(self) -> None:
        """An epoch is about to be built; in the loop."""

    def append(self, payload: list[bytes], done: Callable[[int, Exception | None], None]) -> None:
        """Appends the epoch's payload, of which there is one at a time.

        `done` is told, later, in the loop: that it is there, with the number that the journal's block is to have; or why it
        is not, or may not be. Then the journal's files get none of it.
        """
        raise NotImplementedError


class Notes:
    """What is kept beside a journal of what its files may be the last to say; of a vhost with followers."""

    def take(self, number: int) -> Callable[[], None]:
        """A job for a thread that notes it, to be done before a file goes; all blocks up to this number are settled."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Threads:
    """The place for blocking work: the daemon's threads, or a test that does it when it likes."""

    def run(self, job: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Runs `job` aside, then, back in the loop, `done` with what it raised, or None."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class StoreHost:
    """The host that a store works for: the broker, or a test in its place."""

    def sync_due(self, group: SyncGroup) -> None:
        """The group has something to sync: its `begin_if_due` is to be called at the end of this turn."""
        raise NotImplementedError

    def before_epoch(self) -> None:
        """An epoch is about to be built."""

    def quorum_queue_due(self) -> None:
        """A quorum queue is about to be made, and to write what older brokers cannot read: they are to be kept out from now
        on. Raises OSError.
        """

    def stream_due(self) -> None:
        """As `quorum_queue_due`, of a stream. Raises OSError."""

    def disk_trouble(self, reason: str) -> None:
        """The disk has failed, for this reason; "": it works again."""
