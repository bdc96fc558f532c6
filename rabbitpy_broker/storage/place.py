"""One message's place in one queue, as the queue index sees it: where its body and its position are on disk.

  RAM        nowhere on disk                                      alpha
  PENDING    in RAM, for the journal's next epoch                 alpha
  WRITING    in the epoch that is on its way to disk              alpha
  JOURNAL    in the journal: `file_num`, `offset`                 alpha, or gamma when `message` is None
  PAGING     transient, on its way to a transient segment         alpha
  BETA       transient and large: body in the message store,      beta
             position in RAM only
  SEGMENT    in a segment of its queue: `offset`                  alpha, gamma, or part of delta (no Place at all)
  TRANSIENT  in a transient segment: `offset`                     as SEGMENT
  RELOG      like PENDING, but an epoch with it has failed: what  alpha
             the disk has of it is not known
  GONE       acked, dropped or purged

`offset` is where the bytes that `size` counts begin: the message itself or, when `stored` is there, its msg_id.

The life of a place. Each line is a method of Place, which alone assigns `where`, and what has to be so before:

  due          RAM -> PENDING                  the queue is durable and the message persistent
  writing      PENDING, RELOG -> WRITING       its epoch is built
  journaled    WRITING -> JOURNAL              its epoch is synced
  not_written  WRITING -> RELOG                its epoch has failed: the disk may have it or not
  paging       RAM, BETA -> PAGING             nothing of it is in the journal
  body_paged   RAM -> BETA                     its body is in the store for paged messages
  scattered    JOURNAL -> SEGMENT              its segment is synced
               PAGING -> TRANSIENT             its segment is written
  found        RAM -> JOURNAL, SEGMENT, TRANSIENT    it was read there
  settled      any -> GONE                     nobody will ask for it

What must stay true: `message` may be dropped (None) only where the body can be read back: JOURNAL, BETA, SEGMENT and
TRANSIENT; a PUBLISH entry that the disk may have, and whose place is GONE, has an ACK entry behind it, written or due.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from rabbitpy_broker.message import Message, StoreEntry

RAM: Final[i64] = 0
PENDING: Final[i64] = 1
WRITING: Final[i64] = 2
JOURNAL: Final[i64] = 3
PAGING: Final[i64] = 4
BETA: Final[i64] = 5
SEGMENT: Final[i64] = 6
TRANSIENT: Final[i64] = 7
RELOG: Final[i64] = 8
GONE: Final[i64] = 9


@mypyc_attr(acyclic=True)
class Place:
    """`seq_id` is never reused and kept on requeue; `expiry` is in ms since 1970, 0 for none; `body_size` in bytes."""

    def __init__(self, seq_id: i64, message: Message | None, body_size: i64 = 0) -> None:
        self.seq_id = seq_id
        self.message = message
        self.body_size = body_size
        self.stored: StoreEntry | None = None
        self.in_transient_store = False  # where `stored` belongs
        self.redelivered = False
        self.expiry: i64 = 0
        self.where: i64 = RAM
        self.file_num: i64 = 0
        self.offset: i64 = 0
        self.size: i64 = 0

    def due(self) -> None:
        """The place goes to the journal with the next epoch."""
        assert self.where == RAM, "kept by: a place is published once"
        self.where = PENDING

    def writing(self) -> None:
        """The place is in the epoch that is being built."""
        assert self.where == PENDING or self.where == RELOG, "kept by: QueueIndex.publish, not_written"
        self.where = WRITING

    def journaled(self, file_num: i64, offset: i64) -> None:
        """The journal has it."""
        assert self.where == WRITING, "kept by: QueueIndex.epoch_settled"
        self.where = JOURNAL
        self.file_num = file_num
        self.offset = offset

    def not_written(self) -> None:
        """The epoch of the place has failed; the place goes into the next one."""
        assert self.where == WRITING, "kept by: QueueIndex.epoch_settled"
        self.where = RELOG

    def paging(self) -> None:
        """The place goes to a transient segment with the next scatter."""
        assert self.where == RAM or self.where == BETA, "kept by: only what is nowhere on disk, or its body alone, is paged"
        self.where = PAGING

    def body_paged(self) -> None:
        """The body of the place, which is large, is on disk."""
        assert self.where == RAM, "kept by: whoever drops bodies"
        assert self.stored is not None, "kept by: whoever drops bodies"
        self.where = BETA

    def scattered(self, offset: i64) -> None:
        """A segment has it: a transient one, if it was paged. `size` is what it was in the journal, or as it was written."""
        if self.where == JOURNAL:
            self.where = SEGMENT
        else:
            assert self.where == PAGING, "kept by: QueueScatter"
            self.where = TRANSIENT
        self.offset = offset

    def found(self, where: i64, file_num: i64, offset: i64, size: i64, expiry: i64) -> None:
        """The place was read back: from the journal's file `file_num`, or a segment, where that is 0."""
        assert self.where == RAM, "kept by: PlaceMaker"
        self.where = where
        self.file_num = file_num
        self.expiry = expiry
        self.offset = offset
        self.size = size

    def settled(self) -> None:
        """The place is acked, dropped, purged or lost."""
        self.where = GONE
        self.message = None


class PlaceMaker:
    """Makes the places that the index reads back: the queue's own kind of Place."""

    def make_place(self, seq_id: i64, body_size: i64) -> Place:
        """A place without message."""
        raise NotImplementedError
