"""How long a channel's oldest delivery has waited for its ack, found out at ticks alone.

No delivery notes its time. At a tick the channel notes a mark instead: the time, and the delivery tag that comes next.
A delivery whose tag is below a mark had been made by then, so the oldest mark above the oldest unacked delivery says how
old that is at least; it may be older by less than a tick. A channel that has nothing unacked keeps no marks.

What must stay true: marks are in the order of their times and of their tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.queues.msg_status import MsgStatus

if TYPE_CHECKING:
    from rabbitpy_broker.protocol.channel import Channel
    from rabbitpy_broker.protocol.node import Node

SHORTEST_TICK_MS: Final = 100
LONGEST_TICK_MS: Final = 60_000


def tick_ms(timeout_ms: int) -> int:
    """How often `close_overdue` is to be called."""
    return min(max(timeout_ms // 10, SHORTEST_TICK_MS), LONGEST_TICK_MS)


class AckMarks:
    """The marks of one channel; times are in milliseconds of a clock that only goes forward."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []  # time, next delivery tag

    def tick(self, now_ms: i64, oldest_tag: i64, next_tag: i64) -> i64:
        """How long the delivery `oldest_tag` has waited at least; 0 for the tag when none is unacked."""
        marks = self._marks
        if oldest_tag == 0:
            marks.clear()
            return 0
        settled = 0
        while settled < len(marks) and marks[settled][1] <= oldest_tag:
            settled += 1
        del marks[:settled]
        if not marks or marks[-1][1] < next_tag:
            marks.append((now_ms, next_tag))
        return now_ms - marks[0][0]


def close_overdue(node: Node, now_ms: i64, timeout_ms: i64) -> None:
    """Closes each channel whose oldest delivery has waited for `timeout_ms`."""
    for connection in list(node.open_connections):
        for channel in list(connection.channels.values()):
            oldest = channel.unacked.oldest()
            tag = oldest.delivery_tag if oldest is not None else 0
            waited = channel.ack_marks.tick(now_ms, tag, channel.next_delivery_tag)
            if oldest is not None and waited > timeout_ms:  # both times are cut to a millisecond
                _close(channel, oldest, timeout_ms)


def _close(channel: Channel, oldest: MsgStatus, timeout_ms: i64) -> None:
    holder = oldest.held_by
    assert holder is not None, "kept by: deliver and basic_get set it, Queue._release clears it"
    connection = channel.connection
    connection.log.warning(
        "acknowledgement timed out",
        channel=channel.number,
        consumer=holder.tag,
        queue=holder.queue.name,
        timeout_ms=timeout_ms,
    )
    text = (
        f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: {timeout_ms} ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    connection.fail_channel(channel, ChannelClosed(PRECONDITION_FAILED, text))
