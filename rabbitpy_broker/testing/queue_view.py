"""What is in the queues of a broker under test, and who holds what: for assertions, and for the report of a failed test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.testing.history import shown
from rabbitpy_broker.testing.watched_broker import WatchedBroker

SHOWN_MESSAGES: Final = 5  # of each queue


@dataclass(frozen=True)
class ConsumerView:
    """A consumer, and the bodies of the messages that it holds unacked; None for one that only the disk has."""

    tag: str
    connection: str
    client_name: str
    holds: list[bytes | None]

    def __str__(self) -> str:
        name = f" ({self.client_name})" if self.client_name else ""
        held = f"holds {len(self.holds)}: {', '.join(_text(body) for body in self.holds[:SHOWN_MESSAGES])}"
        return f"consumer {self.tag!r} of {self.connection}{name} {held if self.holds else 'holds nothing'}"


@dataclass(frozen=True)
class QueueView:
    """A queue at this moment: how many messages are `ready` and `unacked`, who consumes, and which messages nobody's consumer
    holds but a basic.get fetched.
    """

    name: str
    vhost: str
    ready: int
    unacked: int
    consumers: list[ConsumerView]
    got: list[bytes | None]

    def __str__(self) -> str:
        lines = [f"queue {self.name!r}: {self.ready} ready, {self.unacked} unacked, {_consumers(len(self.consumers))}"]
        lines += [f"  {consumer}" for consumer in self.consumers]
        if self.got:
            lines.append(f"  fetched by basic.get: {', '.join(_text(body) for body in self.got[:SHOWN_MESSAGES])}")
        return "\n".join(lines)


def view(broker: WatchedBroker, vhost: str) -> list[QueueView]:
    """The queues of a vhost, by name; none if there is no such vhost."""
    found = broker.node.vhosts.get(vhost)
    queues = sorted(found.each_queue(), key=_name) if found is not None else []
    return [_view_of(broker, queue) for queue in queues]


def _name(queue: Queue) -> str:
    return queue.name


def _view_of(broker: WatchedBroker, queue: Queue) -> QueueView:
    holds: dict[object, list[bytes | None]] = {}
    got: list[bytes | None] = []
    where: dict[object, tuple[str, str]] = {}
    for connection in broker.clients.connections:
        for channel in connection.channels.values():
            for consumer in channel.deliveries.consumers.values():
                where[consumer] = (connection.name, connection.session.client_name)
            for status in channel.deliveries.unacked.all():
                holder = status.held_by
                body = status.message.body() if status.message is not None else None
                if isinstance(holder, ChannelConsumer):
                    holds.setdefault(holder, []).append(body)
                elif holder is not None and getattr(holder, "queue", None) is queue:
                    got.append(body)
    consumers = [
        ConsumerView(consumer.tag, *where.get(consumer, ("", "")), holds.get(consumer, []))
        for consumer in queue.consumers.members
    ]
    kept = queue.kept
    return QueueView(queue.name, queue.vhost, int(kept.len), int(kept.unacked), consumers, got)


def _text(body: bytes | None) -> str:
    return shown(body) if body is not None else "(on disk)"


def _consumers(count: int) -> str:
    return "no consumer" if not count else f"{count} consumer{'s' if count > 1 else ''}"


def report(broker: WatchedBroker, vhost: str) -> str:
    """What is left in a vhost, for the report of a failed test."""
    lines = [str(queue) for queue in view(broker, vhost)] or ["no queues"]
    connections = [one for one in broker.clients.connections if one.session.vhost is broker.node.vhosts.get(vhost)]
    lines += [
        f"connection {one.name}{f' ({one.session.client_name})' if one.session.client_name else ''}"
        f"{' is blocked' if one.blocked else ''}"
        for one in connections
    ]
    alarms = sorted(broker.alarms.active)
    if alarms:
        lines.append(f"alarms: {', '.join(alarms)}")
    return "\n".join(lines)
