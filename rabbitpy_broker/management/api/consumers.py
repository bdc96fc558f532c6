"""Consumers: /consumers, and their end from the broker's side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rabbitpy_broker.management.api.auth import own_vhosts, sees_connections_of
from rabbitpy_broker.management.api.errors import bad_request, not_authorised, not_found
from rabbitpy_broker.management.api.rates import CONSUMER, consumer_values, stats
from rabbitpy_broker.management.api.request import (
    NO_CONTENT,
    Answer,
    Listing,
    Request,
    Row,
    vhost_or_404,
    whole,
)
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.definitions_json import table_object
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.vhost import VHost


def refuse_without_stats(api: Api, request: Request) -> None:
    """Raises ApiError 400 for what is nothing but statistics, where there are to be none."""
    if api.is_plain(request):
        raise bad_request("Stats in management UI are disabled on this node")


def list_all(api: Api, request: Request) -> Listing:
    return _listing(api, request, own_vhosts(api, request))


def list_of_vhost(api: Api, request: Request) -> Listing:
    return _listing(api, request, [vhost_or_404(api.vhosts, request.names["vhost"])])


def _listing(api: Api, request: Request, vhosts: list[VHost]) -> Listing:
    refuse_without_stats(api, request)
    return Listing(
        (
            consumer
            for vhost in vhosts
            for queue in vhost.each_queue()
            for consumer in list(queue.consumers.members)
            if isinstance(consumer, ChannelConsumer) and sees_connections_of(request, user_of(consumer.deliveries.host))
        ),
        lambda consumer: consumer_row(api, consumer),
    )


def user_of(connection: Any) -> str:
    """The name of a connection's user."""
    user = connection.session.user if isinstance(connection, Connection) else None
    return user.name if user is not None else ""


def connection_details(connection: Any) -> Row:
    """`connection` is the host of a channel, or None."""
    name = connection.name if connection is not None else ""
    host, _, port = name.partition(" -> ")[0].rpartition(":")
    return {"name": name, "peer_host": host, "peer_port": int(port) if port.isdigit() else 0}


def consumer_rows(api: Api, consumers: Iterable[ChannelConsumer]) -> Iterator[Row]:
    for consumer in consumers:
        yield consumer_row(api, consumer)


def _queue(consumer: ChannelConsumer) -> Row:
    return {"name": consumer.queue.name, "vhost": consumer.queue.vhost}


def _channel_details(api: Api, consumer: ChannelConsumer) -> Row:
    connection, number = consumer.deliveries.host, int(consumer.deliveries.number)
    return {
        **connection_details(connection),
        "name": f"{connection.name} ({number})",
        "number": number,
        "connection_name": connection.name,
        "node": api.node_name,
        "user": user_of(connection),
    }


def consumer_row(api: Api, consumer: ChannelConsumer) -> Row:
    single = consumer.queue.consumers.single_active
    return {
        "consumer_tag": consumer.tag,
        "queue": _queue(consumer),
        "channel_details": _channel_details(api, consumer),
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": int(consumer.prefetch_limit),
        "active": not consumer.waiting,
        "activity_status": ("waiting" if consumer.waiting else "single_active") if single else "up",
        "arguments": table_object(consumer.arguments),
    }


# -- who gets how much -----------------------------------------------------------------------------------------------


def per_channel(api: Api, consumers: Iterable[ChannelConsumer]) -> list[Row]:
    """What each channel was delivered from a queue, whose consumers these are; nothing without rates."""
    if not api.sampler.kept.rates:
        return []
    found: dict[Any, list[ChannelConsumer]] = {}
    for consumer in consumers:
        found.setdefault(consumer.deliveries, []).append(consumer)
    return [{"stats": _stats(api, theirs), "channel_details": _channel_details(api, theirs[0])} for theirs in found.values()]


def per_queue(api: Api, consumers: Iterable[ChannelConsumer]) -> list[Row]:
    """What a channel, whose consumers these are, was delivered from each queue; nothing without rates."""
    if not api.sampler.kept.rates:
        return []
    found: dict[Any, list[ChannelConsumer]] = {}
    for consumer in consumers:
        found.setdefault(consumer.queue, []).append(consumer)
    return [{"stats": _stats(api, theirs), "queue": _queue(theirs[0])} for theirs in found.values()]


def _stats(api: Api, consumers: list[ChannelConsumer]) -> Row:
    """Of several consumers together."""
    sums: Row = {}
    for consumer in consumers:
        for name, value in stats(CONSUMER, consumer_values(consumer), api.sampler.follow(consumer)).items():
            if name in sums and isinstance(value, dict):
                sums[name] = {"rate": sums[name]["rate"] + value["rate"]}
            else:
                sums[name] = sums[name] + value if name in sums else value
    return sums


# -- writes ----------------------------------------------------------------------------------------------------------


def remove(api: Api, request: Request) -> Answer:
    """Cancels a consumer. Its client is told by basic.cancel if it has said that it can hear it; what the consumer holds stays
    with its channel, unacked. An auto-delete queue goes with its last consumer.
    """
    channel = _channel(api, request)
    if not request.is_administrator and user_of(channel.host) != request.user.name:
        raise not_authorised("User not authorised to access object")
    tag = request.names["consumer_tag"]
    consumer = channel.deliveries.consumers.get(tag)
    if consumer is None or consumer.queue.vhost != request.names["vhost"]:
        raise not_found()
    request.details = {"queue": consumer.queue.name}
    channel.cancel(tag)
    channel.host.notify_cancelled(channel.number, tag)
    api.admin.commit()
    return NO_CONTENT


def _channel(api: Api, request: Request) -> Channel:
    """The channel that the path names. Raises ApiError 404."""
    name, number = request.names["connection"], whole(request.names["channel"])
    for connection in list(api.broker.clients.connections):
        if connection.name == name and number is not None:
            channel = connection.channels.get(number)
            if channel is not None and not channel.closing:
                return channel
    raise not_found()
