"""The counts of what channels have done: of each channel, of all closed ones together, and of both for /metrics."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

COUNTED: Final = (  # their names
    "published", "published_confirm", "confirmed", "unroutable_returned", "unroutable_dropped", "delivered",
    "delivered_no_ack", "redelivered", "got", "got_no_ack", "get_empty", "acked",
)


class Counters:
    """Counts of messages, except `get_empty`: the number of basic.gets that found none."""

    def __init__(self) -> None:
        self.published: i64 = 0
        self.published_confirm: i64 = 0  # the part of `published` on channels in confirm mode
        self.confirmed: i64 = 0
        self.unroutable_returned: i64 = 0
        self.unroutable_dropped: i64 = 0
        self.delivered: i64 = 0  # to consumers that ack
        self.delivered_no_ack: i64 = 0
        self.redelivered: i64 = 0
        self.got: i64 = 0  # by basic.get, to be acked
        self.got_no_ack: i64 = 0
        self.get_empty: i64 = 0
        self.acked: i64 = 0

    def add(self, other: Counters) -> None:
        """Adds all counts of another one."""
        self.published += other.published
        self.published_confirm += other.published_confirm
        self.confirmed += other.confirmed
        self.unroutable_returned += other.unroutable_returned
        self.unroutable_dropped += other.unroutable_dropped
        self.delivered += other.delivered
        self.delivered_no_ack += other.delivered_no_ack
        self.redelivered += other.redelivered
        self.got += other.got
        self.got_no_ack += other.got_no_ack
        self.get_empty += other.get_empty
        self.acked += other.acked
