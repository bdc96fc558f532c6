"""What a test expects of its broker, with a text that says what there was instead.

A check is a function that is asked in the broker's loop until it is content or its time is over: it gives what it has found, or
raises `NotYet` with the text. What must stay true: a check that is content at once waits for nothing; an assertion says what
there was at its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from rabbitpy_broker.testing.history import DeadLettered, Published, Settled, listed
from rabbitpy_broker.testing.queue_view import QueueView, view
from rabbitpy_broker.testing.watched_broker import WatchedBroker

T = TypeVar("T")
LOOK_AGAIN_S: Final = 0.002
WITHIN_S: Final = 1.0
Body = bytes | str | None


class NotYet(Exception):
    """A check is not content; the text says why."""


async def wait_for(check: Callable[[], T], within: float) -> T:
    """What the check gives once it is content. Raises AssertionError with its text after `within` seconds."""
    ends_at = time.monotonic() + within
    while True:
        try:
            return check()
        except NotYet as why:
            if time.monotonic() >= ends_at:
                raise AssertionError(str(why)) from None
        await asyncio.sleep(LOOK_AGAIN_S)


class Checks:
    """The checks of one broker, each made by what it expects."""

    def __init__(self, broker: Callable[[], WatchedBroker]) -> None:
        self._broker = broker

    def published(
        self, exchange: str, routing_key: str, body: Body, count: int, vhost: str, within: float
    ) -> Callable[[], list[Published]]:
        wanted = _bytes(body)

        def check() -> list[Published]:
            all_of_vhost = [one for one in self._broker().ground.history.published if one.vhost == vhost]
            found = [
                one
                for one in all_of_vhost
                if one.exchange == exchange
                and one.routing_key == routing_key
                and (wanted is None or one.body == wanted)
            ]
            if len(found) >= count:
                return found
            what = f"to exchange {exchange!r} with routing key {routing_key!r}{_with(body, 'and')}"
            raise NotYet(
                f"{_fewer(len(found), count)} published {what} within {within:g} s. Published in vhost {vhost!r}:\n"
                + listed(all_of_vhost, "nothing")
            )

        return check

    def drained(self, queue: str, vhost: str, within: float) -> Callable[[], None]:
        def check() -> None:
            found = self._queue(queue, vhost)
            if found.ready or found.unacked:
                raise NotYet(f"queue {queue!r} is not drained within {within:g} s:\n{found}")

        return check

    def acked(self, queue: str, body: Body, count: int, vhost: str, within: float) -> Callable[[], list[Settled]]:
        wanted = _bytes(body)

        def check() -> list[Settled]:
            of_queue = [
                one for one in self._broker().ground.history.settled if one.vhost == vhost and one.queue == queue
            ]
            found = [one for one in of_queue if one.how == "ack" and (wanted is None or one.body == wanted)]
            if len(found) >= count:
                return found
            raise NotYet(
                f"{_fewer(len(found), count)} acked in queue {queue!r}{_with(body, 'with')} within {within:g} s. Settled there:\n"
                f"{listed(of_queue, 'nothing')}\n{self._queue(queue, vhost)}"
            )

        return check

    def dead_lettered(
        self, queue: str, reason: str, count: int, vhost: str, within: float
    ) -> Callable[[], list[DeadLettered]]:
        def check() -> list[DeadLettered]:
            broker = self._broker()
            broker.flush_history()
            of_vhost = [one for one in broker.ground.history.dead_lettered if one.vhost == vhost]
            found = [one for one in of_vhost if one.queue == queue and reason in ("", one.reason)]
            if len(found) >= count:
                return found
            why = f", because of {reason!r}," if reason else ""
            raise NotYet(
                f"{_fewer(len(found), count)} dead-lettered from queue {queue!r}{why} within {within:g} s. Dead-lettered in "
                f"vhost {vhost!r}:\n{listed(of_vhost, 'nothing')}"
            )

        return check

    def _queue(self, name: str, vhost: str) -> QueueView:
        queues = view(self._broker(), vhost)
        for queue in queues:
            if queue.name == name:
                return queue
        there = ", ".join(repr(queue.name) for queue in queues) or "none"
        raise NotYet(f"there is no queue {name!r} in vhost {vhost!r}; queues: {there}")


class AsyncAssertions:
    """The assertions of docs/testing.md, to be awaited. Each waits until it is true, `within` seconds at most, and raises
    AssertionError then.
    """

    def __init__(
        self, broker: Callable[[], WatchedBroker], wait: Callable[[Any], Awaitable[Any]], vhost: Callable[[], str]
    ) -> None:
        self._checks = Checks(broker)
        self._wait = wait
        self._vhost = vhost

    async def assert_published(
        self,
        exchange: str,
        routing_key: str,
        *,
        body: Body = None,
        count: int = 1,
        vhost: str | None = None,
        within: float = WITHIN_S,
    ) -> list[Published]:
        """At least `count` messages were published so; returns them."""
        __tracebackhide__ = True
        where = self._vhost() if vhost is None else vhost
        check = self._checks.published(exchange, routing_key, body, count, where, within)
        return await self._expect(check, within)

    async def assert_drained(self, queue: str, *, vhost: str | None = None, within: float = WITHIN_S) -> None:
        """The queue has no message, ready or unacked."""
        __tracebackhide__ = True
        check = self._checks.drained(queue, self._vhost() if vhost is None else vhost, within)
        await self._expect(check, within)

    async def assert_acked(
        self, queue: str, *, body: Body = None, count: int = 1, vhost: str | None = None, within: float = WITHIN_S
    ) -> list[Settled]:
        """At least `count` messages of this queue were acked; returns them."""
        __tracebackhide__ = True
        check = self._checks.acked(queue, body, count, self._vhost() if vhost is None else vhost, within)
        return await self._expect(check, within)

    async def assert_dead_lettered(
        self, queue: str, *, reason: str = "", count: int = 1, vhost: str | None = None, within: float = WITHIN_S
    ) -> list[DeadLettered]:
        """At least `count` messages have left this queue as dead letters, because of "rejected", "expired", "maxlen" or
        "delivery_limit"; returns them.
        """
        __tracebackhide__ = True
        check = self._checks.dead_lettered(queue, reason, count, self._vhost() if vhost is None else vhost, within)
        return await self._expect(check, within)

    async def _expect(self, check: Callable[[], T], within: float) -> T:
        """pytest shows the test's own line where it fails, and nothing of how it was asked."""
        __tracebackhide__ = True
        try:
            found: T = await self._wait(wait_for(check, within))
        except AssertionError as error:
            raise error.with_traceback(None) from None
        return found


def _bytes(body: Body) -> bytes | None:
    return body.encode() if isinstance(body, str) else body


def _with(body: Body, word: str) -> str:
    return "" if body is None else f" {word} body {body!r}"


def _fewer(found: int, count: int) -> str:
    if count == 1:
        return "no message was"
    return f"{found} of {count} messages {'was' if found == 1 else 'were'}"
