"""The output of one connection: frames are gathered in `out`, and written once a turn.

  out       frames of this turn: whoever writes some calls `due`
  unsent    bytes that were written while the transport could not keep up, until it can again
  kept      what of `out` waits for an epoch: the answer to a declaration in a replicated vhost leaves when the log has it

Deliveries stop when the output is full. Answers do not stop, so input is held when there are too many of them
(connection.py).

What must stay true: the frames in `out` are written at the end of the turn, or of the epoch that they are kept for, in order, or
the socket is gone; no answer that waits for a commit or an epoch is written when that failed.
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr, trait

from rabbitpy_broker.protocol.turn import Turn, Writer
from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup
from rabbitpy_broker.wire.methods import encode_method


@mypyc_attr(allow_interpreted_subclasses=True)
class Transport:
    """The socket as its connection sees it; net/transport.py implements it."""

    def write(self, data: bytes) -> None:
        """Sends the bytes, or keeps them to be sent."""
        raise NotImplementedError

    def close(self) -> None:
        """Sends all that was written, then closes."""
        raise NotImplementedError

    def reading_wanted(self, wanted: bool) -> None:
        """False: reads nothing until it is called with True."""
        raise NotImplementedError

    def unsent(self) -> int:
        """Bytes that were written and that the socket has not taken yet."""
        raise NotImplementedError

    def set_timer(self, seconds: float) -> None:
        """Has the connection's `tick` called in `seconds`, or a little later, and not before. There is one timer."""
        raise NotImplementedError


class LostTransport(Transport):
    """The transport of a connection whose socket is gone."""

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass

    def reading_wanted(self, wanted: bool) -> None:
        pass

    def unsent(self) -> int:
        return 0

    def set_timer(self, seconds: float) -> None:
        pass


LOST: Final[Transport] = LostTransport()


@trait
class OutputOwner:
    """The connection, as its output sees it."""

    def written(self) -> None:
        """Notes that the output of this turn is with the transport."""
        raise NotImplementedError

    def commit_failed(self) -> None:
        """Ends the connection: the changes of this turn are not durable, and its answers were thrown away."""
        raise NotImplementedError


class Kept(EpochWaiter):
    """The first `size` bytes of an output that the peer may have when this epoch is settled."""

    def __init__(self, output: Output, epoch: i64) -> None:
        self.output = output
        self.epoch = epoch
        self.size: i64 = 0

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        self.output.let_go(self, ok)


class Output(Writer):
    """`high_water_mark` is in bytes. `frame_max` is the largest frame that the peer takes, 0 for unlimited."""

    def __init__(self, turn: Turn, owner: OutputOwner | None, transport: Transport, high_water_mark: i64, frame_max: i64) -> None:
        self.turn = turn
        self.transport = transport
        self.frame_max = frame_max
        self.out = BytesWriter()
        self.marked = False  # `flush` is due at the end of this turn
        self.writable = True  # the transport takes more, and deliveries are not held
        self.starved = False  # a consumer was parked because the output is full
        self.awaiting_commit = False
        self.is_last = False  # the socket is closed when this is written
        self.sent_bytes: i64 = 0
        self.writes: i64 = 0
        self._owner = owner
        self.high_water_mark = high_water_mark
        self.unsent: i64 = 0
        self._is_held = False
        self._takes_more = True  # the transport
        self._kept: list[Kept] = []  # by their epochs

    def send(self, number: i64, method: Any) -> None:
        """Writes a method frame on a channel; 0 is the connection."""
        self.out.write(encode_method(number, method))
        self.due()

    def due(self) -> None:
        """Has `flush` called at the end of the turn."""
        if not self.marked:
            self.marked = True
            self.turn.output_due(self)

    def is_full(self) -> bool:
        """True when no more messages should be delivered to this connection in this turn."""
        return not self.writable or len(self.out) >= self.high_water_mark

    def flush(self) -> None:
        self.marked = False
        self.awaiting_commit = False
        owner = self._owner
        if owner is None:
            self.out = BytesWriter()
            return
        if self._kept:
            self._kept[-1].size = len(self.out)
            return
        size: i64 = len(self.out)
        if size > 0:
            data = self.out.getvalue()
            self.out = BytesWriter()
            self._write(data)
        if self.is_last:
            self.transport.close()
            return
        owner.written()

    def _write(self, data: bytes) -> None:
        size: i64 = len(data)
        self.sent_bytes += size
        self.writes += 1
        self.transport.write(data)
        if not self._takes_more:
            self.unsent += size

    def keep(self, syncs: SyncGroup) -> None:
        """Has all that is in the output, and what follows it, wait until the epoch that is filling now is settled."""
        kept = self._kept
        if not kept or kept[-1].epoch != syncs.epoch:
            kept.append(Kept(self, syncs.epoch))
            syncs.wait(kept[-1])
        kept[-1].size = len(self.out)

    def let_go(self, settled: Kept, ok: bool) -> None:
        """The epoch is settled: writes what waited for it, or ends the connection when what its answers say may be lost."""
        if settled not in self._kept:
            return  # dropped before
        if not ok:
            self._refuse()
            return
        self._kept.remove(settled)
        if self._kept:
            out = self.out.getvalue()
            self.out = BytesWriter()
            self.out.write(out[settled.size :])
            for later in self._kept:
                later.size -= settled.size
            self._write(out[: settled.size])
        else:
            self.due()

    def drop_kept(self) -> None:
        """Throws away what waits for an epoch, and what is behind it: something else is said instead."""
        if self._kept:
            self._kept = []
            self.out = BytesWriter()

    def writing_resumed(self) -> None:
        """Follows the transport's buffer under its low-water mark."""
        self._takes_more = True
        self.writable = not self._is_held
        self.unsent = 0

    def writing_paused(self) -> None:
        """Follows the transport's buffer over its high-water mark."""
        self._takes_more = False
        self.writable = False

    def hold_deliveries(self, held: bool) -> None:
        """Takes no deliveries, as if the transport took no more, or does again. Whoever lets them go wakes the consumers."""
        self._is_held = held
        self.writable = self._takes_more and not held

    def end(self) -> None:
        """Closes the socket when all that is due has been written."""
        self.is_last = True
        self.due()

    def lose(self) -> None:
        """Drops the transport after the socket has gone; later writes go nowhere.

        Transport, output and connection hold each other; this breaks the circle, for a broker that runs without the
        cyclic collector.
        """
        self.transport = LOST
        self._owner = None
        self.drop_kept()

    def commit_failed(self) -> None:
        if self.awaiting_commit:
            self._refuse()

    def _refuse(self) -> None:
        owner = self._owner
        if owner is not None:
            self.awaiting_commit = False
            self._kept = []
            self.out = BytesWriter()
            owner.commit_failed()
