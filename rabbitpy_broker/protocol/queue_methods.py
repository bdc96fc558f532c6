"""Class queue (spec 1.7). An empty queue name stands for the last queue declared on the channel.

Faults are told in RabbitMQ's order: the name, the permission, then for an existing queue its owner, and for a new one
whether there is room. Clients and their tests go by the code of the close.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.errors import (
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelClosed,
    ConnectionClosed,
)
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.exchange_methods import check_binding_of, refuse_reserved, strip_cr_lf
from rabbitpy_broker.queues.arguments import check_dead_letter_exchange, module_of
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CLASSIC, queue_type
from rabbitpy_broker.vhost import REPLY_TO
from rabbitpy_broker.wire import methods


def queue_name(channel: Channel, name: str) -> str:
    """The name itself, or the last one declared on this channel. Raises 404 when there is none."""
    if name:
        return name
    if not channel.last_queue:
        raise ChannelClosed(NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def declare(channel: Channel, method: Any) -> None:
    """Passive: checks that the queue exists. Otherwise makes it, or verifies it."""
    name = strip_cr_lf(method.queue)
    if name.startswith(REPLY_TO):
        _declare_reply_to(channel, name, method)
        return
    queue = channel.vhost.queue(name, channel.host) if method.passive else _declare(channel, name, method)
    if not queue.quorum:  # whose x-expires no declaration renews, as in RabbitMQ
        queue.note_used()
    channel.last_queue = queue.name
    if not method.nowait:
        ok = methods.make("Queue.DeclareOk")
        ok.queue = queue.name
        ok.message_count = queue.ready_count()
        ok.consumer_count = queue.consumer_count
        channel.send(ok)


def _declare(channel: Channel, name: str, method: Any) -> Queue:
    access, vhost = channel.access, channel.vhost
    arguments = vhost.typed(method.arguments, method.durable, method.exclusive, method.auto_delete)
    if name:
        refuse_reserved("queue", name)
    else:
        kind = queue_type(arguments)
        if kind != CLASSIC:
            text = f"Cannot declare a server-named queue for type {module_of(kind)}"
            raise ChannelClosed(PRECONDITION_FAILED, text)
        name = access.new_queue_name()
    access.check("configure", "queue", name)
    if name not in vhost.queues:
        vhost.check_queue_limit(name)
        check_dead_letter_exchange(name, vhost.name, method.arguments)
        dead_letter_exchange = method.arguments.get("x-dead-letter-exchange")
        if isinstance(dead_letter_exchange, str):
            access.check("read", "queue", name)
            access.check("write", "exchange", dead_letter_exchange)
    access.queue_name_taken()
    return vhost.declare_queue(
        name, method.durable, method.exclusive, method.auto_delete, arguments, channel.host
    )


def _declare_reply_to(channel: Channel, name: str, method: Any) -> None:
    """Answers a declaration of a direct reply-to name, which cannot be made: a requester is there, or it is a 404."""
    if name != REPLY_TO and name not in channel.vhost.reply_queues:
        raise ChannelClosed(NOT_FOUND, f"no queue '{name}' in vhost '{channel.vhost.name}'")
    channel.last_queue = name
    if not method.nowait:
        channel.send(methods.make("Queue.DeclareOk", queue=name, message_count=0, consumer_count=1))


def bind(channel: Channel, method: Any) -> None:
    """With an empty queue name an empty routing key, too, stands for the last queue's name."""
    vhost = channel.vhost
    name, exchange, key = _binding(channel, method)
    source = vhost.exchange(exchange)
    queue = vhost.queues.get(name)
    if queue is not None:
        source.check_binding(key, method.arguments)
    vhost.bind(source, vhost.queue(name, channel.host), key, method.arguments)
    if not method.nowait:
        channel.send(methods.make("Queue.BindOk"))


def unbind(channel: Channel, method: Any) -> None:
    """Unbinds; an absent queue, exchange or binding is ok. There is no no_wait form."""
    vhost = channel.vhost
    name, exchange, key = _binding(channel, method)
    source, queue = vhost.exchanges.get(exchange), vhost.queues.get(name)
    if source is not None and queue is not None and source.is_bound(queue, key, method.arguments):
        vhost.unbind(source, vhost.queue(name, channel.host), key, method.arguments)
    channel.send(methods.make("Queue.UnbindOk"))


def _binding(channel: Channel, method: Any) -> tuple[str, str, str]:
    """Queue, exchange and key, after the check of the permissions."""
    name = queue_name(channel, method.queue)
    key = name if not method.queue and not method.routing_key else method.routing_key
    name, exchange = strip_cr_lf(name), strip_cr_lf(method.exchange)
    check_binding_of(channel, "queue", name, exchange, key)
    return name, exchange, key


def purge(channel: Channel, method: Any) -> None:
    """Drops the ready messages; the unacked ones stay."""
    name = queue_name(channel, method.queue)
    channel.access.check("read", "queue", name)
    queue = channel.vhost.queue(name, channel.host)
    channel.catch_up(queue)
    purged = queue.purge()
    if not method.nowait:
        ok = methods.make("Queue.PurgeOk")
        ok.message_count = purged
        channel.send(ok)


def delete(channel: Channel, method: Any) -> None:
    """Deletes a queue; an absent one is ok."""
    vhost = channel.vhost
    name = queue_name(channel, strip_cr_lf(method.queue))
    channel.access.check("configure", "queue", name)
    ready = 0
    if name in vhost.queues:
        queue = vhost.queue(name, channel.host)
        if queue.quorum:
            _refuse_conditions(queue, method)
        channel.catch_up(queue)
        if method.if_unused and queue.consumer_count:
            raise ChannelClosed(PRECONDITION_FAILED, f"queue '{name}' in vhost '{vhost.name}' in use")
        if method.if_empty and queue.ready_count() > 0:
            raise ChannelClosed(PRECONDITION_FAILED, f"queue '{name}' in vhost '{vhost.name}' not empty")
        ready = int(vhost.delete_queue(queue))
    if not method.nowait:
        ok = methods.make("Queue.DeleteOk")
        ok.message_count = ready
        channel.send(ok)


def _refuse_conditions(queue: Queue, method: Any) -> None:
    """As in RabbitMQ, whose quorum queues cannot be asked in time."""
    for asked, flag in ((method.if_unused, "if-unused"), (method.if_empty, "if-empty")):
        if asked:
            raise ConnectionClosed(
                NOT_IMPLEMENTED,
                f"cannot delete queue '{queue.name}' in vhost '{queue.vhost}'. queue.delete operations with {flag} flag set "
                "are not supported by quorum queues",
            )


HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    "Queue.Declare": declare,
    "Queue.Bind": bind,
    "Queue.Unbind": unbind,
    "Queue.Purge": purge,
    "Queue.Delete": delete,
}
