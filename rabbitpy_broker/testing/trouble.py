"""Trouble on demand. Each method of `Troubles` brings one, at once or for what comes, and returns it; its `end` takes it back, as
the end of a `with` does.

    broker.trouble.nack_publishes(3)
    with broker.trouble.block():
        ...

`of` means some clients only: those in this vhost, of this user, or with this name (which the client gave itself, or the
broker's "127.0.0.1:51234 -> 127.0.0.1:5672"). By default it is all of them.

What must stay true: `end_all` leaves a broker without trouble; trouble that is used up needs no end.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from rabbitpy_broker.testing.frame_cutter import NAMES
from rabbitpy_broker.testing.plans import FOR_EVER, Cut, Delay, Drop, Fate, LostAcks, Plan
from rabbitpy_broker.testing.watched_broker import Ground, WatchedBroker
from rabbitpy_broker.testing.watched_client import WatchedClient

T = TypeVar("T")
METHODS: Final = frozenset(NAMES.values())

Broker = Callable[[], WatchedBroker]
Call = Callable[[Callable[[], Any]], Any]  # runs a function in the broker's loop, and gives what it returns


class Trouble:
    """One trouble; `end` may be called more than once."""

    def __init__(self, call: Call, end: Callable[[], None]) -> None:
        self._call = call
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        """Takes it back."""
        end, self._end = self._end, None
        if end is not None:
            self._call(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


class Troubles:
    """All troubles of one broker; see the top of this file."""

    def __init__(self, ground: Ground, broker: Broker, call: Call) -> None:
        self._ground = ground
        self._broker = broker
        self._call = call

    # -- connections -----------------------------------------------------------------------------------------------------

    def drop(
        self,
        at: str = "",
        *,
        by: Literal["client", "broker"] = "client",
        nth: int = 1,
        lost: bool = True,
        of: str = "",
    ) -> Trouble:
        """Drops connections without a word: all at once, or one when the `nth` method `at` ("basic.publish") goes by.

        `by` says whose method it is. Without `lost` the method arrives first, a publish with its content. Raises ValueError.
        """
        if at and at not in METHODS:
            raise ValueError(f"AMQP has no method {at!r}; basic.publish is one")
        if not at:
            self._call(lambda: self._drop(of))
            return Trouble(self._call, _nothing)
        return self._plan(self._ground.plans.drops, Drop(of, 1, at, by, nth - 1, lost))

    def half_open(self, of: str = "") -> Trouble:
        """As when the network between us is gone: nothing comes and nothing goes, and nobody is told. Clients that connect later
        are not meant. Afterwards what is still open goes on.
        """

        def begin() -> list[WatchedClient]:
            clients = self._clients(of)
            for client in clients:
                client.half_open()
            return clients

        clients = self._call(begin)

        return Trouble(self._call, lambda: self._broker().heal(clients))

    def delay(self, seconds: float, of: str = "") -> Trouble:
        """Bytes take so long, in both directions."""
        return self._plan(self._ground.plans.delays, Delay(of, FOR_EVER, seconds))

    def cut(self, after_bytes: int = 0, of: str = "") -> Trouble:
        """The broker's output breaks off after so many bytes, in the middle of a frame if that is where it is."""
        return self._plan(self._ground.plans.cuts, Cut(of, 1, after_bytes))

    def refuse_logins(self, count: int = FOR_EVER) -> Trouble:
        """The next logins are refused as if the password were wrong."""
        return self._plan(self._ground.plans.logins, Plan("", count))

    # -- messages --------------------------------------------------------------------------------------------------------

    def nack_publishes(self, count: int = FOR_EVER, of: str = "") -> Trouble:
        """The next publishes are nacked: no queue gets them, and publishers with confirms are told so."""
        return self._plan(self._ground.plans.fates, Fate(of, count, "nack"))

    def return_publishes(self, count: int = FOR_EVER, of: str = "") -> Trouble:
        """The next publishes find no queue: they are returned if they are mandatory, else dropped."""
        return self._plan(self._ground.plans.fates, Fate(of, count, "return"))

    def redeliver(self, count: int = FOR_EVER, queue: str = "", of: str = "") -> Trouble:
        """The next acks are lost: their messages come again, as redelivered, although the consumer has acked."""
        return self._plan(self._ground.plans.lost_acks, LostAcks(of, count, queue))

    def cancel_consumers(self, queue: str, vhost: str = "/") -> int:
        """Cancels a queue's consumers from the broker's side, as when the queue moves; returns how many."""

        def cancel() -> int:
            broker = self._broker()
            where = broker.node.vhosts[vhost]
            found = where.queues[queue]
            consumers = list(found.consumers.members)
            is_last = False
            for consumer in consumers:
                is_last = found.cancel(consumer)
                consumer.cancelled()
            if is_last:
                where.delete_queue(found)
            return len(consumers)

        return int(self._call(cancel))

    # -- the broker ------------------------------------------------------------------------------------------------------

    def block(self) -> Trouble:
        """The memory alarm is on: connections that publish are blocked, and told so."""
        return self._alarm(self._set_memory_alarm)

    def fill_disk(self) -> Trouble:
        """The disk is full: the disk alarm blocks those who publish, and what needs space fails."""
        return self._alarm(self._set_disk_full)

    def _alarm(self, switch: Callable[[bool], None]) -> Trouble:
        self._call(lambda: switch(True))
        return Trouble(self._call, lambda: switch(False))

    def _set_memory_alarm(self, on: bool) -> None:
        self._ground.alarm_is_wanted = on
        self._broker().check_alarms()

    def _set_disk_full(self, on: bool) -> None:
        self._ground.disk.is_full = on
        self._broker().check_alarms()

    # -- all of them -----------------------------------------------------------------------------------------------------

    def end_all(self) -> None:
        """No trouble any more."""
        self._call(self._end_all)

    def _end_all(self) -> None:
        plans = self._ground.plans
        for some in (plans.drops, plans.fates, plans.lost_acks, plans.delays, plans.cuts, plans.logins):
            some.clear()
        self._broker().heal()
        if self._ground.alarm_is_wanted or self._ground.disk.is_full:
            self._ground.alarm_is_wanted = self._ground.disk.is_full = False
            self._broker().check_alarms()

    def _plan(self, plans: list[T], plan: T) -> Trouble:
        def end() -> None:
            plans[:] = [one for one in plans if one is not plan]

        self._call(lambda: plans.append(plan))
        return Trouble(self._call, end)

    def _drop(self, of: str) -> None:
        for client in self._clients(of):
            client.drop()

    def _clients(self, of: str) -> list[WatchedClient]:
        return [client for client in self._broker().watched() if not of or of in client.names()]


def _nothing() -> None:
    """It is over already."""
