"""One turn of the loop: the marks that were set in it are worked off once, at its end.

Connections act on all that they read in a turn by plain calls. These only mark what follows from it: queues that may
have messages to hand out, channels that owe their publishers a confirm, connections with output. `run` then does, in
this order,

  1. take input that was held        (connections whose answers were too many for the last turn)
  2. drain each touched queue        (its deliveries are output of this turn)
  3. publish the broker's own        (messages that it made meanwhile, inside calls from which nothing may be published)
  4. send the confirms that are due  (many publishes, one basic.ack multiple=true)
  5. commit the definitions          (so that no -ok leaves before what it says is on disk)
  6. begin the syncs that are due    (the disk works while the output is written; a message's queue is on disk by now)
  7. write each connection's output  (one write a connection)
  8. tell the host                   (flow control looks whether somebody can be let go; a busy loop may rest)

What must stay true: whoever marks something makes sure that a run is scheduled; `run` never awaits; a fault in one
queue, connection or sync does not keep the others from being finished; no sync begins before the commit succeeded.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr, trait

from rabbitpy_broker.events.journal import EventJournal
from rabbitpy_broker.queues.queue_host import HostedQueue, QueueTurn, TurnPublisher
from rabbitpy_broker.storage.sync import SyncGroup

DRAIN_BUDGET: Final[i64] = 8192


@trait
class ConfirmSource:
    """A channel's confirms, as the turn sees them."""

    def send_confirms(self) -> None:
        """Writes the acks and nacks that are due."""
        raise NotImplementedError

    def pause_goes_on(self) -> bool:
        """Counts a tick of its pause. Returns False at the end, when the confirms that waited for it are due."""
        raise NotImplementedError


@trait
class HeldInput:
    """A connection that holds input, as the turn sees it."""

    def go_on(self) -> None:
        """Takes the held input, if it may."""
        raise NotImplementedError


@trait
class Writer:
    """A connection's output, as the turn sees it."""

    def flush(self) -> None:
        """Hands the output of this turn to the transport."""
        raise NotImplementedError

    def commit_failed(self) -> None:
        """Follows a failed commit of the definitions: an answer that waits for it must not be sent."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class TurnHost:
    """The loop and the broker, as the turn sees them."""

    def schedule(self, turn: Turn) -> None:
        """Has `turn.run` called soon, once."""
        raise NotImplementedError

    def schedule_tick(self, turn: Turn) -> bool:
        """Has `turn.tick` called in two milliseconds, once; False where confirms may not pause."""
        return False

    def commit(self) -> bool:
        """Makes the definitions durable; False when it cannot."""
        raise NotImplementedError

    def after_turn(self) -> None:
        """Follows the end of a run."""

    def fault(self, fault: Exception) -> None:
        """Reports a fault in one queue, connection or sync. The others are finished all the same, unless this raises."""
        raise fault


class Turn(QueueTurn):
    """See the top of this file."""

    def __init__(self, host: TurnHost) -> None:
        self._host = host
        self._scheduled = False
        self._queues: list[HostedQueue] = []
        self._publishers: list[TurnPublisher] = []
        self._confirms: list[ConfirmSource] = []
        self._writers: list[Writer] = []
        self._holding: list[HeldInput] = []
        self._syncs: list[SyncGroup] = []
        self._pausing: list[ConfirmSource] = []
        self.ticks: i64 = 0  # so far; they are counted only while somebody pauses
        self.commit_due = False
        self.events: EventJournal | None = None

    def touch(self, queue: HostedQueue) -> None:
        if not queue.touched:
            queue.touched = True
            self._queues.append(queue)
            self._ask()

    def publish_due(self, publisher: TurnPublisher) -> None:
        """Has the publisher called in this turn. It marks itself, so that it comes here once a turn."""
        self._publishers.append(publisher)
        self._ask()

    def confirms_due(self, source: ConfirmSource) -> None:
        """Has the confirms sent in this turn. The source marks itself, so that it comes here once a turn."""
        self._confirms.append(source)
        self._ask()

    def pause(self, source: ConfirmSource) -> bool:
        """Has `source.pause_goes_on` called at each tick until it answers False. Returns False where confirms may not
        pause.
        """
        if not self._pausing and not self._host.schedule_tick(self):
            return False
        self._pausing.append(source)
        return True

    def tick(self) -> None:
        """Counts a tick; the loop calls it two milliseconds after `schedule_tick`."""
        self.ticks += 1
        self._pausing = [source for source in self._pausing if source.pause_goes_on()]
        if self._pausing:
            self._host.schedule_tick(self)

    def input_due(self, connection: HeldInput) -> None:
        """Has the held input of a connection taken in the next turn."""
        self._holding.append(connection)
        self._ask()

    def output_due(self, writer: Writer) -> None:
        """Has the output flushed in this turn. The writer marks itself, so that it comes here once a turn."""
        self._writers.append(writer)
        self._ask()

    def sync_due(self, group: SyncGroup) -> None:
        """Has an epoch of the group begun in this turn. The group marks itself once; `begin_if_due` takes the mark away,
        whatever comes of it.
        """
        self._syncs.append(group)
        self._ask()

    def wake(self) -> None:
        """Asks for a run, for work that an earlier one could not finish."""
        self._ask()

    def _ask(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._host.schedule(self)

    def run(self) -> None:
        """Finishes the turn: the eight steps at the top of this file.

        Ensures: every mark that was set before its step is worked off once; a mark that is set later is for the next
        run.
        """
        self._scheduled = False
        if self.events is not None:
            self.events.stamp()
        holding = self._holding
        self._holding = []
        for connection in holding:
            try:
                connection.go_on()
            except Exception as fault:
                self._host.fault(fault)
        queues = self._queues
        self._queues = []
        for queue in queues:
            queue.touched = False
            try:
                if not queue.deleted and queue.drain(DRAIN_BUDGET):
                    self.touch(queue)
            except Exception as fault:
                self._host.fault(fault)
        publishers = self._publishers
        self._publishers = []
        for publisher in publishers:
            try:
                publisher.publish_now()
            except Exception as fault:
                self._host.fault(fault)
        sources = self._confirms
        self._confirms = []
        for source in sources:
            try:
                source.send_confirms()
            except Exception as fault:
                self._host.fault(fault)
        writers = self._writers
        self._writers = []
        if self.commit_due:
            self._commit_definitions(writers)
        if self._syncs and not self.commit_due:
            self._begin_syncs()
        for writer in writers:
            try:
                writer.flush()
            except Exception as fault:
                self._host.fault(fault)
        if self.events is not None:
            self.events.flush_if_much()
        self._host.after_turn()

    def _commit_definitions(self, writers: list[Writer]) -> None:
        """Commits; statements that cannot be committed are kept and tried again in the next run."""
        try:
            self.commit_due = not self._host.commit()
        except Exception as fault:
            self.commit_due = True
            self._host.fault(fault)
        if self.commit_due:
            for writer in writers:
                writer.commit_failed()

    def _begin_syncs(self) -> None:
        groups = self._syncs
        self._syncs = []
        for group in groups:
            try:
                group.begin_if_due()
            except Exception as fault:
                self._host.fault(fault)
