"""Class basic (spec 1.8), without publish, ack, nack and reject, which the connection takes in place."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import i64

from rabbitpy_broker.errors import (
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    ChannelClosed,
    ConnectionClosed,
)
from rabbitpy_broker.events.layout import GET
from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.protocol.queue_methods import queue_name
from rabbitpy_broker.protocol.stream_deliveries import StreamConsumer
from rabbitpy_broker.questions import AnswerAwaited
from rabbitpy_broker.queues.arguments import module_of
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import queue_type
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.queues.stream_start import OFFSET, stream_start
from rabbitpy_broker.vhost import REPLY_TO
from rabbitpy_broker.wire import methods
from rabbitpy_broker.wire.encoder import write_get_ok


def qos(channel: Channel, method: Any) -> None:
    """global=false: the limit of each consumer started from now on; global=true: one limit for the channel, at once."""
    if method.prefetch_size != 0:
        raise ConnectionClosed(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    deliveries = channel.deliveries
    if method.global_:
        deliveries.prefetch_limit = method.prefetch_count
        deliveries.wake_consumers()
    else:
        deliveries.consumer_prefetch = method.prefetch_count
    channel.send(methods.make("Basic.QosOk"))


def consume(channel: Channel, method: Any) -> None:
    """Starts a consumer; its first deliveries come after the consume-ok."""
    _wait_for_ownership(channel)
    tag = method.consumer_tag
    if method.queue == REPLY_TO:
        queue, priority = _reply_queue(channel, method), 0
    else:
        name = queue_name(channel, method.queue)
        _refuse_used(channel, tag)
        channel.access.check("read", "queue", name)
        queue = channel.vhost.queue(name, channel.host)
        _check_foreign(channel, queue, method)
        priority = _priority(channel, name, method)
        _check_arguments(channel, queue, method)
        if isinstance(queue, StreamQueue):
            _consume_stream(channel, queue, method)
            return
        if queue.quorum and channel.deliveries.prefetch_limit > 0:
            text = f"queue '{queue.name}' in vhost '{queue.vhost}' does not support global qos"
            raise ConnectionClosed(NOT_IMPLEMENTED, text)
    tag = tag or _generated_tag()
    deliveries = channel.deliveries
    consumer = ChannelConsumer(deliveries, queue, tag, method.no_ack, method.exclusive, priority, method.arguments)
    queue.consume(consumer)
    deliveries.consumers[tag] = consumer
    _answer_consume(channel, method, tag)
    deliveries.touch(queue)


def _wait_for_ownership(channel: Channel) -> None:
    """Raises AnswerAwaited while it is in question whether this node owns the vhost: somebody else may deliver its messages."""
    question = channel.vhost.in_question
    if question is not None:
        raise AnswerAwaited(question)


def _generated_tag() -> str:
    return "amq.ctag-" + base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("=")


def _answer_consume(channel: Channel, method: Any, tag: str) -> None:
    if not method.nowait:
        ok = methods.make("Basic.ConsumeOk")
        ok.consumer_tag = tag
        channel.send(ok)


def _consume_stream(channel: Channel, queue: StreamQueue, method: Any) -> None:
    """`consume` on a stream, where the prefetch is what a consumer gets."""
    deliveries = channel.deliveries
    name = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    if deliveries.consumer_prefetch == 0:
        raise ChannelClosed(PRECONDITION_FAILED, f"consumer prefetch count is not set for '{name}'")
    if method.no_ack:
        raise queue.not_supported("automatic acknowledgement")
    if deliveries.prefetch_limit > 0:
        raise ConnectionClosed(NOT_IMPLEMENTED, f"{name} does not support global qos")
    start = stream_start(method.arguments, f"for {name}", channel.vhost.now_ms())
    tag = method.consumer_tag or _generated_tag()
    consumer = StreamConsumer(deliveries, queue, tag, method.exclusive, method.arguments)
    queue.attach(consumer, consumer, start)
    deliveries.consumers[tag] = consumer
    _answer_consume(channel, method, tag)


def _refuse_used(channel: Channel, tag: str) -> None:
    if tag in channel.deliveries.consumers:
        raise ConnectionClosed(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")


def _reply_queue(channel: Channel, method: Any) -> Queue:
    """Direct reply-to: makes the queue for a consumer of the pseudo-queue."""
    _refuse_used(channel, method.consumer_tag)
    if channel.reply_queue is not None:
        raise ChannelClosed(PRECONDITION_FAILED, "reply consumer already set")
    if not method.no_ack:
        raise ChannelClosed(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    channel.reply_queue = channel.vhost.make_reply_queue()
    return channel.reply_queue


def _priority(channel: Channel, queue: str, method: Any) -> int:
    if "x-priority" not in method.arguments:
        return 0
    value = method.arguments["x-priority"]
    if not method.arguments.is_integer("x-priority") or not isinstance(value, int):
        kind = method.arguments.type_name("x-priority")
        raise ChannelClosed(
            PRECONDITION_FAILED,
            f"invalid arg 'x-priority' for queue '{queue}' in vhost '{channel.vhost.name}': "
            f'"expected integer, got {kind}"',
        )
    return value


def _check_foreign(channel: Channel, queue: Queue, method: Any) -> None:
    """Refuses the arguments that mean nothing to a stream."""
    if queue.stream:
        for key in ("x-priority", "x-cancel-on-ha-failover"):
            if key in method.arguments:
                raise _foreign(channel, queue, key)


def _foreign(channel: Channel, queue: Queue, key: str) -> ChannelClosed:
    what = f"for queue '{queue.name}' in vhost '{channel.vhost.name}'"
    module = module_of(queue_type(queue.arguments))
    return ChannelClosed(PRECONDITION_FAILED, f"invalid arg '{key}' {what} of queue type {module}")


def _check_arguments(channel: Channel, queue: Queue, method: Any) -> None:
    """Checks arguments that have no effect: nothing is mirrored, so nothing fails over, and only streams have offsets."""
    what = f"for queue '{queue.name}' in vhost '{channel.vhost.name}'"
    failover = "x-cancel-on-ha-failover"
    if failover in method.arguments and not isinstance(method.arguments[failover], bool):
        kind = method.arguments.type_name(failover)
        raise ChannelClosed(PRECONDITION_FAILED, f"invalid arg '{failover}' {what}: {{unacceptable_type,{kind}}}")
    if failover in method.arguments and queue.quorum:
        raise _foreign(channel, queue, failover)
    if OFFSET in method.arguments and not queue.stream:
        raise _foreign(channel, queue, OFFSET)


def cancel(channel: Channel, method: Any) -> None:
    """Cancelling an unknown consumer is ok; an auto-delete queue is gone before the cancel-ok."""
    channel.cancel(method.consumer_tag)
    if not method.nowait:
        ok = methods.make("Basic.CancelOk")
        ok.consumer_tag = method.consumer_tag
        channel.send(ok)


def get(channel: Channel, method: Any) -> None:
    """Answers with one message, or get-empty."""
    taken = take(channel, queue_name(channel, method.queue), method.no_ack)
    if taken is None:
        channel.send(methods.make("Basic.GetEmpty", cluster_id=""))
        return
    output = channel.output
    write_get_ok(
        output.out, channel.number, taken.tag, taken.redelivered, taken.message, taken.left, output.frame_max
    )
    output.due()


class Taken:
    """What basic.get has taken: `left` are still ready."""

    def __init__(self, tag: i64, message: Message, redelivered: bool, left: i64) -> None:
        self.tag = tag
        self.message = message
        self.redelivered = redelivered
        self.left = left


def take(channel: Channel, name: str, no_ack: bool) -> Taken | None:
    """The oldest ready message of a queue, handed to the channel; None when there is none."""
    channel.access.check("read", "queue", name)
    _wait_for_ownership(channel)
    queue = channel.vhost.queue(name, channel.host)
    if queue.quorum and queue.single_active:
        raise ChannelClosed(
            RESOURCE_LOCKED,
            f"cannot obtain access to locked queue '{name}' in vhost '{queue.vhost}'. basic.get operations are not supported by "
            "quorum queues with single active consumer",
        )
    channel.catch_up(queue)
    status = queue.get()
    if status is None:
        channel.counters.get_empty += 1
        queue.get_empty += 1
        return None
    message = status.message
    assert message is not None, "kept by: BackingQueue.fetch"
    redelivered = status.redelivered
    if redelivered and queue.quorum:
        message = queue.backing.shown(message, status)
    if queue.events is not None:
        queue.record_delivery(channel.origin, status, GET)
    tag = channel.deliveries.got(queue, message, status, no_ack)
    return Taken(tag, message, redelivered, queue.backing.len)


def recover(channel: Channel, method: Any) -> None:
    """Requeues every unacked message of the channel; handing them to the same consumer again is not implemented."""
    _recover(channel, method)
    channel.send(methods.make("Basic.RecoverOk"))


def recover_async(channel: Channel, method: Any) -> None:
    """`recover` without an answer."""
    _recover(channel, method)


def _recover(channel: Channel, method: Any) -> None:
    if not method.requeue:
        raise ConnectionClosed(NOT_IMPLEMENTED, "requeue=false")
    channel.recover()


HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    "Basic.Qos": qos,
    "Basic.Consume": consume,
    "Basic.Cancel": cancel,
    "Basic.Get": get,
    "Basic.Recover": recover,
    "Basic.RecoverAsync": recover_async,
}
