"""Messages that somebody moves, copies or removes by hand: out of the middle of a queue, and into others.

A move is like a dead letter with a chosen target and no entry in x-death: the copy is published and the message dropped by plain
calls, one behind the other, so that both are in one epoch of the journal, and a crash leaves the message in one place, not in
two and not in none. Only what is ready is moved. Whether the targets take the copy is asked before anything is touched: what they
would refuse stays as it is.

What must stay true: no call here comes from inside a queue's method; a publisher that waits for a consumer's ack is told once, of
the copy's fate; nothing is awaited between the publish of a copy and the end of its message.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.events import layout
from rabbitpy_broker.message import NO_RESEND, Message
from rabbitpy_broker.queues.backing_queue import REJECTED, SYNCING, WAITING
from rabbitpy_broker.queues.dead_letter import split_address
from rabbitpy_broker.queues.handover import HandedOver
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_host import HostedQueue
from rabbitpy_broker.storage.place import Place
from rabbitpy_broker.storage.sync import SyncGroup
from rabbitpy_broker.wire.properties import EXPIRATION, delivery_mode, short_property

GONE: Final = "it is not ready there any more"
NO_ROUTE: Final = "no queue would get it"
ITS_OWN: Final = "it would come back to its own queue"
UNREADABLE: Final = "it cannot be read now"


def remove(queue: Queue, lane: i64, wanted: dict[int, Place | None]) -> list[int]:
    """Drops messages that are ready; returns their seq_ids. A publisher that waits for a consumer's ack gets a nack."""
    dropped: list[int] = []
    for status in queue.backing.take(lane, wanted):
        queue.record_end(status, "deleted", 0)
        queue.forget_requeues(status)
        queue.backing.drop(status)
        dropped.append(int(status.seq_id))
    return dropped


def copy_of(message: Message, payload: bytes, address: bytes, persistent: bool) -> Message:
    """The message as it is published once more, with this header payload and address. It shares the stored body if nothing
    else is different.
    """
    if payload == message.header_payload() and address == message.address:
        copy = Message(address, message.content, message.header_end, persistent)
        if persistent == message.persistent:
            copy.stored = message.stored
            copy.stored_transient = message.stored_transient
    else:
        copy = message.with_header(payload)
        copy.address = address
        copy.persistent = persistent
    copy.has_bcc = message.has_bcc
    expiration = short_property(payload, EXPIRATION)
    if expiration is not None and expiration.isdigit():
        copy.expiration = int(expiration)
    return copy


def is_persistent(queue: Queue, message: Message) -> bool:
    """As its publisher wanted it: a quorum queue makes every message so."""
    return delivery_mode(message.header_payload()) == 2 if queue.quorum else message.persistent


def refusal(targets: list[HostedQueue], copy: Message, source: Queue | None) -> str:
    """Why the copy is not to be published to these queues; "" when nothing is against it."""
    if not targets:
        return NO_ROUTE
    for target in targets:
        if target is source:
            return ITS_OWN
        reason = target.refusal(copy)
        if reason:
            return f"queue '{target.name}' {reason}"
    return ""


def publish(targets: list[HostedQueue], copy: Message) -> None:
    """Publishes a copy of what stays where it is."""
    copy.waiter = NO_RESEND
    _record_publish(targets, copy)
    for target in targets:
        target.publish(copy)


def _record_publish(targets: list[HostedQueue], copy: Message) -> i64:
    """The number of the publish in the event journal; 0 without one."""
    events = targets[0].events
    if events is None:
        return 0
    return events.journal.publish(targets[0].vhost, split_address(copy.address)[0], copy)


def move(
    source: Queue,
    lane: i64,
    seq_id: i64,
    place: Place | None,
    copy: Message,
    targets: list[HostedQueue],
    syncs: SyncGroup,
    to_itself: bool = False,
) -> str:
    """Publishes the copy of a ready message to the targets and ends the message; "", or why nothing was done.

    Ensures: with "" each target has the copy, in the epoch that is filling if it is persistent there, and so is the end of the
    message. Otherwise everything is as it was. (If several targets could take it and one did not, it is moved to the others.)
    Assumes: `syncs` is the vhost's. `to_itself`: the source may be among the targets, as when an edited copy replaces a message.
    """
    reason = refusal(targets, copy, None if to_itself else source)
    if reason:
        return reason
    taken = source.backing.take(lane, {int(seq_id): place})
    if not taken:
        return GONE
    status = taken[0]
    if status.owes and not _has_waiter(source, status):
        _put_back(source, status)
        return UNREADABLE
    if not status.owes:
        copy.waiter = NO_RESEND
    publish_number = _record_publish(targets, copy)
    waiting: i64 = 0
    syncing = False
    refused = 0
    for target in targets:
        answer = target.publish(copy)
        if answer == WAITING:
            waiting += 1
        elif answer == SYNCING:
            syncing = True
        elif answer == REJECTED:
            refused += 1
    if refused == len(targets):
        _put_back(source, status)
        return f"queue '{targets[0].name}' refuses it"
    source.record_end(status, "deleted", 1)
    if source.events is not None:
        source.events.dead_letter(status.seq_id, i64(status.priority), publish_number, layout.DELETED)
    source.forget_requeues(status)
    if status.owes:
        _hand_over(source, status, copy, waiting, syncs if syncing else None)
    else:
        source.backing.drop(status)
    return ""


def _has_waiter(source: Queue, status: MsgStatus) -> bool:
    """Brings the message into memory, and its publisher's waiter with it."""
    try:
        return source.backing.load(status)
    except OSError:
        return False


def _put_back(source: Queue, status: MsgStatus) -> None:
    """Back to its place, as it was: nobody has seen it."""
    redelivered = status.redelivered
    source.backing.requeue_left([status])
    status.redelivered = redelivered


def _hand_over(source: Queue, status: MsgStatus, copy: Message, waiting: i64, syncs: SyncGroup | None) -> None:
    """Has the publisher, who waits for a consumer's ack, wait for the fate of the copy."""
    message = status.message
    waiter = message.waiter if message is not None else None
    handed = HandedOver(waiter) if waiter is not None else None
    if handed is not None:
        handed.wait_for(copy, waiting, syncs)
    source.backing.hand_over(status)
    if handed is not None:
        handed.decided(True)
