"""Who waits for news, and is woken by PostgreSQL's NOTIFY: readers at the end of a log, watches of the registry.

A notification only says that it is worth looking. It is sent behind a change, in a transaction of its own that writes nothing:
in that of the change it would hold a lock that all notifying transactions of the database share until the standbys have
confirmed. It may be lost, with the process that should have sent it or with a connection, so that whoever waits looks again
every POLL seconds. Channels are told at most every SPACING seconds: who reads after each of a thousand appends a second keeps
the servers busier than the appends do. What they are late by is read at a take-over, which does not wait for news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from rabbitpy_broker.cluster.log import Unavailable
from rabbitpy_broker.cluster.postgres.connections import CONNECTION_ERRORS, Connections, noticing_its_end

POLL: Final = 1.0  # seconds
SPACING: Final = 0.1
SEND: Final = "SELECT pg_notify(channel, '') FROM unnest($1::text[]) AS channel"


class Subscription:
    """One user's interest in a channel."""

    def __init__(self, notifications: Notifications, channel: str) -> None:
        self._notifications = notifications
        self._channel = channel

    async def listen(self) -> asyncio.Event:
        """What will be set when there may be news since now, if the notification is not lost. Raises `Unavailable`."""
        return await self._notifications.listen(self._channel)

    async def close(self) -> None:
        await self._notifications.leave(self._channel)


class Notifications:
    """One connection that listens to all channels that somebody here waits for, and what is to be announced."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._listener: Any = None
        self._lock = asyncio.Lock()  # of the listener, which takes one statement at a time
        self._users: dict[str, int] = {}  # channel -> its subscriptions
        self._news: dict[str, asyncio.Event] = {}  # channel -> set at the next notification, and then replaced
        self._unsent: set[str] = set()
        self._sending: asyncio.Task[None] | None = None

    def subscribe(self, channel: str) -> Subscription:
        self._users[channel] = self._users.get(channel, 0) + 1
        return Subscription(self, channel)

    def announce(self, channel: str) -> None:
        """Tells all who listen to the channel, soon."""
        self._unsent.add(channel)
        if self._sending is None or self._sending.done():
            self._sending = self._connections.start(self._send())

    async def listen(self, channel: str) -> asyncio.Event:
        async with self._lock:
            if self._listener is None or self._listener.is_closed():
                self._listener = await self._connections.open()
                self._listener.add_termination_listener(lambda _: self._wake_all())
                self._wake_all()
            if channel not in self._news:
                await self._tell_server(self._listener.add_listener(channel, self._heard))
                self._news[channel] = asyncio.Event()
            return self._news[channel]

    async def leave(self, channel: str) -> None:
        self._users[channel] -= 1
        async with self._lock:
            if self._users.get(channel) == 0:
                del self._users[channel]
                if self._news.pop(channel, None) is not None and not self._listener.is_closed():
                    await self._tell_server(self._listener.remove_listener(channel, self._heard))

    async def _tell_server(self, statement: Awaitable[None]) -> None:
        try:
            with noticing_its_end(self._listener):
                async with asyncio.timeout(self._connections.timeout):
                    await statement
        except CONNECTION_ERRORS as exc:
            self._connections.drop(self._listener)
            raise Unavailable(f"postgresql: {str(exc) or type(exc).__name__}") from exc

    def _heard(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        event = self._news.get(channel)
        if event is not None:
            event.set()
            self._news[channel] = asyncio.Event()

    def _wake_all(self) -> None:
        """Whoever waits looks again, and then listens again: the connection to the server is another one."""
        for event in self._news.values():
            event.set()
        self._news.clear()

    async def _send(self) -> None:
        while self._unsent:
            channels = list(self._unsent)
            self._unsent.clear()
            try:
                await self._connections.fetch(SEND, channels)
                await asyncio.sleep(SPACING)
            except Unavailable:
                return  # those who wait look by themselves, and learn that the server is gone
