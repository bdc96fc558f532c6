"""One message in one queue: its place (storage/place.py), and who holds it unacked.

`seq_id` is the place in the queue: it is never reused, and a requeued message keeps it and so finds its old place.
`held_by` is the holder that was given the message and has not settled it, None while the message is ready; a message is
held by one holder at most. `delivery_tag` counts on the holder's channel and has a meaning only while the message is
held.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32, i64, mypyc_attr, u8

from rabbitpy_broker.storage.place import Place, PlaceMaker

TOMBSTONE: Final[i64] = -1  # the seq_id of what is no message


class Holder:
    """Holds messages of one queue unacked: a consumer, or a channel for what its basic.get fetched."""

    def __init__(self) -> None:
        self.unacked_count: i64 = 0  # messages that it holds


@mypyc_attr(acyclic=True, free_list_len=1)
class MsgStatus(Place):
    """`message` is None where only the place is in memory. `unacked`: fetched, neither settled nor requeued."""

    unacked: bool = False
    priority: u8 = 0  # as its queue counts it
    owes: bool = False  # its publisher is told when it is acked, or lost
    light: bool = False  # handed out and forgotten by its queue, but for the confirm that it owes
    since_s: i32 = 0  # since when it owes a confirm, in seconds of the clock of `BackingQueue.tick`
    swept: i64 = 0  # the number of the last sweep of UnackedStatuses that saw it
    held_by: Holder | None = None
    delivery_tag: i64 = 0


class StatusMaker(PlaceMaker):
    """Has the queue index make a MsgStatus of one priority for each place that it reads back."""

    def __init__(self, priority: u8 = 0) -> None:
        self._priority = priority

    def make_place(self, seq_id: i64, body_size: i64) -> Place:
        status = MsgStatus(seq_id, None, body_size)
        status.priority = self._priority
        return status
