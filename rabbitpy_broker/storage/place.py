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

What must stay true: `message` may be dropped (None) only where the body can be read back: JOURNAL, BETA, SEGMENT and
TRANSIENT; a PUBLISH entry that the disk may have, and whose place is GONE, has an ACK entry behind it, written or due.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

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


class Place:
    """`seq_id` is never reused and kept on requeue; `expiry` is in ms since 1970, 0 for none; `body_size` in bytes."""

    def __init__(self, seq_id: i64, message: Message | None, body_size: i64) -> None:
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


class PlaceMaker:
    """Makes the places that the index reads back: the queue's own kind of Place."""

    def make_place(self, seq_id: i64, body_size: i64) -> Place:
        """A place without message."""
        raise NotImplementedError
