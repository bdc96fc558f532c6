"""The counts of a queue: how many messages it has, of which kind and of how many bytes, and every change of these counts.

A message is, as the counts see it, one of

  ready     body in RAM (alpha) | large body alone on disk (beta) | body on disk (gamma) | all on disk (delta)
  unacked   body in RAM | body on disk
  gone

and each method here is one step from one of these to another. Gamma is derived: ready messages of none of the other
three kinds.

What must stay true: no count is changed anywhere else; `VariableQueue.check` counts again and compares. `steps` grows with each
step, so that whoever finds it as it was knows that nothing of this has changed, and no message has gone from one part to another.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.queues.backing_queue import BackingQueue, Figures
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.rates import AT_REST, Rates
from rabbitpy_broker.storage.place import BETA, Place


class CountedQueue(BackingQueue):
    """Byte counts are of bodies. `persistent_` counts the messages that survive a restart, ready and unacked."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: i64 = 0  # this and the next first: near what lists ask each of thousands of queues for
        self.rates_level: i64 = AT_REST
        self.ram_msg_count: i64 = 0  # ready
        self.ram_unacked_count: i64 = 0
        self.ram_bytes: i64 = 0  # ready and unacked
        self.beta_count: i64 = 0  # ready
        self.delta_count: i64 = 0  # with requeued messages that belong there
        self.delta_bytes: i64 = 0
        self.persistent_count: i64 = 0
        self.persistent_bytes: i64 = 0
        self.paged_out: i64 = 0
        self.paged_in: i64 = 0
        self.rates: Rates | None = None
        self._ins: i64 = 0
        self._outs: i64 = 0
        self._ack_ins: i64 = 0
        self._ack_outs: i64 = 0

    # -- a message ------------------------------------------------------------------------------------------------

    def count_published(self, size: i64, persistent: bool) -> None:
        """New -> ready, in RAM. `persistent`: it survives a restart."""
        self.steps += 1
        self.len += 1
        self.ready_bytes += size
        self.ram_msg_count += 1
        self.ram_bytes += size
        self._ins += 1
        if persistent:
            self.persistent_count += 1
            self.persistent_bytes += size

    def count_published_unacked(self, size: i64, persistent: bool) -> None:
        """New -> unacked, in RAM. `persistent`: it survives a restart."""
        self.steps += 1
        self.unacked += 1
        self.unacked_bytes += size
        self.ram_unacked_count += 1
        self.ram_bytes += size
        self._ins += 1
        self._ack_ins += 1
        if persistent:
            self.persistent_count += 1
            self.persistent_bytes += size

    def count_published_light(self) -> None:
        """New -> gone: handed out light, so only the confirm to its publisher is still due."""
        self.steps += 1
        self._ins += 1

    def count_fetched(self, status: MsgStatus) -> None:
        """Ready, and not in delta -> unacked."""
        self.steps += 1
        size = status.body_size
        self.len -= 1
        self.ready_bytes -= size
        self.unacked += 1
        self.unacked_bytes += size
        if status.message is not None:
            self.ram_msg_count -= 1
            self.ram_unacked_count += 1
        elif status.where == BETA:
            self.beta_count -= 1
        self._outs += 1
        self._ack_ins += 1

    def count_fetched_light(self, size: i64) -> None:
        """Ready, in RAM -> gone."""
        self.steps += 1
        self.len -= 1
        self.ready_bytes -= size
        self.ram_msg_count -= 1
        self.ram_bytes -= size
        self._outs += 1

    def count_light_told(self) -> None:
        """A message that was handed out light: its publisher is told."""
        self.steps += 1

    def count_requeued(self, status: MsgStatus) -> None:
        """Unacked -> ready."""
        self.steps += 1
        size = status.body_size
        self.unacked -= 1
        self.unacked_bytes -= size
        self.len += 1
        self.ready_bytes += size
        if status.message is not None:
            self.ram_unacked_count -= 1
            self.ram_msg_count += 1
        elif status.where == BETA:
            self.beta_count += 1

    def count_settled(self, status: MsgStatus) -> None:
        """Unacked -> gone."""
        self.steps += 1
        size = status.body_size
        self.unacked -= 1
        self.unacked_bytes -= size
        if status.message is not None:
            self.ram_unacked_count -= 1
            self.ram_bytes -= size
        self._ack_outs += 1

    def count_lost(self, status: MsgStatus) -> None:
        """Ready, body on disk, and not in delta -> gone."""
        self.steps += 1
        self.len -= 1
        self.ready_bytes -= status.body_size
        if status.where == BETA:
            self.beta_count -= 1

    def count_moved(self) -> None:
        """Ready messages go to another part of the queue, and are counted as before."""
        self.steps += 1

    # -- its body -------------------------------------------------------------------------------------------------

    def count_body_dropped(self, status: MsgStatus) -> None:
        """In RAM -> on disk; `status` no longer has its body."""
        self.steps += 1
        self.ram_bytes -= status.body_size
        self.paged_out += 1
        if status.unacked:
            self.ram_unacked_count -= 1
        else:
            self.ram_msg_count -= 1
            if status.where == BETA:
                self.beta_count += 1

    def count_body_read(self, place: Place, unacked: bool) -> None:
        """On disk -> in RAM. Assumes: the place is unacked, or ready and already out of delta."""
        self.steps += 1
        self.ram_bytes += place.body_size
        self.paged_in += 1
        if unacked:
            self.ram_unacked_count += 1
        else:
            self.ram_msg_count += 1
            if place.where == BETA:
                self.beta_count -= 1

    def count_position_paged(self, status: MsgStatus) -> None:
        """A beta gets a position on disk: beta -> gamma. Nothing for a message whose body is in RAM."""
        self.steps += 1
        if status.message is None:
            self.beta_count -= 1

    # -- what survives --------------------------------------------------------------------------------------------

    def count_persistent(self, size: i64) -> None:
        """Counts a message that survives a restart."""
        self.steps += 1
        self.persistent_count += 1
        self.persistent_bytes += size

    def count_persistent_gone(self, size: i64) -> None:
        """Uncounts a message that would have survived a restart."""
        self.steps += 1
        self.persistent_count -= 1
        self.persistent_bytes -= size

    def count_none_persistent(self) -> None:
        """Sets the counts of messages that survive a restart to 0."""
        self.steps += 1
        self.persistent_count = 0
        self.persistent_bytes = 0

    # -- delta ----------------------------------------------------------------------------------------------------

    def count_into_delta(self, size: i64) -> None:
        """Into delta: a ready message whose position is on disk alone, or a requeued one that waits there."""
        self.steps += 1
        self.delta_count += 1
        self.delta_bytes += size

    def count_out_of_delta(self, count: i64, size: i64) -> None:
        """Out of delta: `count` messages whose positions are in RAM again."""
        self.steps += 1
        self.delta_count -= count
        self.delta_bytes -= size

    def count_delta_lost(self) -> None:
        """All messages that delta still has -> gone."""
        self.steps += 1
        self.persistent_count = max(0, self.persistent_count - self.delta_count)
        self.persistent_bytes = max(0, self.persistent_bytes - self.delta_bytes)
        self.len -= self.delta_count
        self.ready_bytes -= self.delta_bytes
        self.delta_count = 0
        self.delta_bytes = 0

    # -- many -----------------------------------------------------------------------------------------------------

    def count_none_ready(self, ram_bytes: i64) -> None:
        """All ready messages -> gone; their bodies in RAM had `ram_bytes`."""
        self.steps += 1
        self.len = 0
        self.ready_bytes = 0
        self.ram_msg_count = 0
        self.ram_bytes -= ram_bytes
        self.beta_count = 0
        self.delta_count = 0
        self.delta_bytes = 0

    def count_recovered(self, size: i64) -> None:
        """A recovered message: ready, on disk, and it survives another restart."""
        self.steps += 1
        self.len += 1
        self.ready_bytes += size
        self.count_persistent(size)

    def count_recovered_segment(self, count: i64, size: i64) -> None:
        """`count` recovered messages in delta."""
        self.steps += 1
        self.len += count
        self.ready_bytes += size
        self.persistent_count += count
        self.persistent_bytes += size
        self.delta_count += count
        self.delta_bytes += size

    def update_rates(self, now: float) -> None:
        """Brings the rates up to date; `now` in seconds, of a clock that only goes forward."""
        if self.rates is None:
            self.rates = Rates(now)
        self.rates.update(now, self._ins, self._outs, self._ack_ins, self._ack_outs)
        self.rates_level = self.rates.level()

    def add_counts(self, figures: Figures) -> None:
        """Adds the counts to those of other queues."""
        figures.ready_ram += self.ram_msg_count
        figures.unacked_ram += self.ram_unacked_count
        figures.ram_bytes += self.ram_bytes
        figures.persistent += self.persistent_count
        figures.persistent_bytes += self.persistent_bytes
        figures.paged_out += self.paged_out
        figures.paged_in += self.paged_in

    def gamma_count(self) -> i64:
        """The number of ready messages whose positions are in RAM, without alphas and betas."""
        return self.len - self.ram_msg_count - self.beta_count - self.delta_count
