"""Class queue (spec 1.7). An empty queue name stands for the last queue declared on the channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.errors import NOT_FOUND, PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.exchange_methods import refuse_default_exchange, strip_cr_lf
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.vhost import REPLY_TO
from rabbitpy_broker.wire import methods


def queue_name(channel: Channel, name: str) -> str:
    """The name itself, or the last one declared on this channel. Raises 404 when there is none."""
    if name.startswith(REPLY_TO + "."):  # of direct reply-to: for its requester alone
        raise ChannelClosed(NOT_FOUND, f"no queue '{name}' in vhost '{channel.vhost.name}'")
    if name:
        return name
    if not channel.last_queue:
        raise ChannelClosed(NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def declare(channel: Channel, method: Any) -> None:
    """Passive asks for existence only; otherwise makes or verifies."""
    connection, vhost = channel.connection, channel.vhost
    name = strip_cr_lf(method.queue)
    if name.startswith(REPLY_TO):
        _declare_reply_to(channel, method)
        return
    if method.passive:
        queue = vhost.queue(name, connection)
    else:
        if name:
            connection.check_permission("configure", "queue", name)
        dead_letter_exchange = method.arguments.get("x-dead-letter-exchange")
        if isinstance(dead_letter_exchange, str):
            connection.check_permission("read", "queue", name)
            connection.check_permission("write", "exchange", dead_letter_exchange)
        queue = vhost.declare_queue(
            name, method.durable, method.exclusive, method.auto_delete, method.arguments, connection
        )
        if not name:
            _check_generated(channel, queue)
    queue.note_used()
    channel.last_queue = queue.name
    if not method.nowait:
        ok = methods.make("Queue.DeclareOk")
        ok.queue = queue.name
        ok.message_count = queue.backing.len
        ok.consumer_count = len(queue.consumers.members)
        channel.send(ok)


def _declare_reply_to(channel: Channel, method: Any) -> None:
    """Direct reply-to's names can be asked for, not made: a requester is there, or it is a 404."""
    if method.queue != REPLY_TO:
        channel.vhost.queue(method.queue, channel.connection)
    if not method.nowait:
        channel.send(methods.make("Queue.DeclareOk", queue=method.queue, message_count=0, consumer_count=1))


def _check_generated(channel: Channel, queue: Queue) -> None:
    try:
        channel.connection.check_permission("configure", "queue", queue.name)
    except ChannelClosed:
        channel.vhost.delete_queue(queue)
        raise


def bind(channel: Channel, method: Any) -> None:
    """With an empty queue name an empty routing key, too, stands for the last queue's name."""
    vhost = channel.vhost
    name = queue_name(channel, method.queue)
    key = name if not method.queue and not method.routing_key else method.routing_key
    _check_binding(channel, name, method.exchange, key)
    queue = vhost.queue(name, channel.connection)
    vhost.bind(vhost.exchange(method.exchange), queue, key, method.arguments)
    if not method.nowait:
        channel.send(methods.make("Queue.BindOk"))


def unbind(channel: Channel, method: Any) -> None:
    """Unbinding anything absent is ok; there is no no_wait form."""
    vhost = channel.vhost
    name = queue_name(channel, method.queue)
    key = name if not method.queue and not method.routing_key else method.routing_key
    _check_binding(channel, name, method.exchange, key)
    source = vhost.exchanges.get(method.exchange)
    if name in vhost.queues:
        queue = vhost.queue(name, channel.connection)
        if source is not None:
            vhost.unbind(source, queue, key, method.arguments)
    channel.send(methods.make("Queue.UnbindOk"))


def _check_binding(channel: Channel, queue: str, exchange: str, key: str) -> None:
    refuse_default_exchange(exchange)
    channel.connection.check_permission("write", "queue", queue)
    channel.connection.check_permission("read", "exchange", exchange)
    source = channel.vhost.exchanges.get(exchange)
    if source is not None:
        channel.connection.check_topic_permission("read", source, key)


def purge(channel: Channel, method: Any) -> None:
    """Drops what is ready; what is unacked stays."""
    name = queue_name(channel, method.queue)
    channel.connection.check_permission("read", "queue", name)
    queue = channel.vhost.queue(name, channel.connection)
    channel.catch_up(queue)
    purged = queue.purge()
    if not method.nowait:
        ok = methods.make("Queue.PurgeOk")
        ok.message_count = purged
        channel.send(ok)


def delete(channel: Channel, method: Any) -> None:
    """Deleting an absent queue is ok."""
    vhost = channel.vhost
    name = queue_name(channel, strip_cr_lf(method.queue))
    channel.connection.check_permission("configure", "queue", name)
    ready = 0
    if name in vhost.queues:
        queue = vhost.queue(name, channel.connection)
        channel.catch_up(queue)
        if method.if_unused and queue.consumers.members:
            raise ChannelClosed(PRECONDITION_FAILED, f"queue '{name}' in vhost '{vhost.name}' in use")
        if method.if_empty and queue.backing.len > 0:
            raise ChannelClosed(PRECONDITION_FAILED, f"queue '{name}' in vhost '{vhost.name}' not empty")
        ready = int(vhost.delete_queue(queue))
    if not method.nowait:
        ok = methods.make("Queue.DeleteOk")
        ok.message_count = ready
        channel.send(ok)


HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    "Queue.Declare": declare,
    "Queue.Bind": bind,
    "Queue.Unbind": unbind,
    "Queue.Purge": purge,
    "Queue.Delete": delete,
}
