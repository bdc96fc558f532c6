"""Leases in the model checker: time goes on by choice, and nodes deliver only while their own lease lets them.

A second passes (`tick`) when the checker chooses so, whatever anybody is in the middle of: a node that sleeps is one whose steps
are not taken meanwhile. What waits for the next second is woken by choice, too. Only the timer of the lease itself
(`OwnLease`) is due at once, since a node that wakes runs it before it looks at a socket. All clocks run at the same speed.

The follower's lease is renewed in time. As nothing depends on what the clock says, but on how long ago something was, states are
told apart by that alone, and all of them are gone through, however long it takes.

What must be true in every state: of the nodes that have the vhost open no more than one may deliver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

from cluster.model import Node, Scenario, TinyLoop, World, frames, require
from rabbitpy_broker.cluster.log import ClusterError
from rabbitpy_broker.cluster.own_lease import OwnLease

LASTS = 2  # seconds


class Clock:
    """In place of the module `time` that `OwnLease` reads; set to the world's second."""

    now = 0

    @classmethod
    def monotonic(cls) -> int:
        return cls.now


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True


class TimedLoop(TinyLoop):
    def __init__(self) -> None:
        super().__init__()
        self.timers: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, **_: Any) -> Any:
        timer = Timer(Clock.now + delay, lambda: callback(*args))
        self.timers.append(timer)
        return timer

    def run_timers(self) -> None:
        for timer in [one for one in self.timers if one.at <= Clock.now and not one.is_over]:
            timer.cancel()
            self.call_soon(timer.call)
        self.timers = [one for one in self.timers if not one.is_over]


class LeasedNode:
    """What is added to a `Node`: its lease, whether the vhost is open, and whether deliveries are held."""

    def __init__(self) -> None:
        self.lease = OwnLease(LASTS, self._ended)
        self.is_open = False
        self.is_held = True
        self.began = 0  # second in which it has begun to renew its lease
        self.asked_at = 0  # and to read who owns the vhost
        self.quiet_until = 0  # it delivers nothing before this second: the owner of before may not know yet
        self.keeping: asyncio.Task[None] | None = None

    def _ended(self) -> None:
        self.is_held = True

    def may_deliver(self) -> bool:
        return self.is_open and not self.is_held

    def state(self) -> Hashable:
        lease = self.lease
        times = (lease._began, lease._unbroken_since, self.began, self.asked_at, self.quiet_until)
        return (*(ago(time) for time in times), self.is_open, self.is_held)


def ago(time: float) -> float:
    """Seconds since then, none above the largest that makes a difference."""
    return min(Clock.now - time, LASTS + 2)


class LeaseWorld(World):
    """"A" owns the vhost, and both have had their leases for long."""

    begins_ended = False  # with a lease of "A" that has just ended
    asks_again = True  # whether the owner of before lives, when it has claimed

    def __init__(self, scenario: Scenario, loop: TinyLoop) -> None:
        Clock.now = 0
        self.sleeping: list[tuple[str, int, asyncio.Future[None]]] = []
        self.leased = {name: LeasedNode() for name in scenario.programs}
        super().__init__(scenario, loop)
        for name, leased in self.leased.items():
            self.servers.leases[name] = (float(LASTS), b"")
            asyncio._set_running_loop(loop)
            leased.lease.renewed(0)
            leased.lease._unbroken_since = -100
            leased.is_held = False
            if name != "A":
                continue
            if self.begins_ended:
                self.servers.leases[name] = (0.0, b"")
                leased.lease._began, leased.is_held = -LASTS, True
            leased.keeping = asyncio.Task(self.keep_alive(self.nodes[name], leased), loop=loop)
        loop.drain()

    def clock(self) -> float:
        return Clock.now

    async def sleep(self, node: Node) -> None:
        """Until the next second, or later."""
        future: asyncio.Future[None] = self.loop.create_future()
        self.sleeping.append((node.name, Clock.now + 1, future))
        await future

    async def keep_alive(self, node: Node, leased: LeasedNode) -> None:
        """As `Member` does. A node that is awake, and delivers, looks at the record, too, and is answered within half a lease."""
        registry = self.servers.connect(node.name).registry
        while True:
            if not leased.may_deliver() or ago(leased.asked_at) <= LASTS / 2:
                leased.began = Clock.now
                with suppress(ClusterError):
                    await registry.keep_alive(node.name, LASTS)
                    leased.lease.renewed(leased.began)
            await self.sleep(node)

    async def own(self, node: Node) -> None:  # type: ignore[override]
        """As `Replica` does while it owns the vhost; it appends nothing."""
        leased = self.leased[node.name]
        leased.is_open, leased.is_held = True, not leased.lease.is_valid() or Clock.now < leased.quiet_until
        record = self.record(node)
        while True:
            leased.asked_at = Clock.now
            with suppress(ClusterError):
                owner = await record.read()
                if owner.node != node.name:
                    break
                if leased.lease.was_settled(leased.asked_at) and Clock.now >= leased.quiet_until:
                    leased.is_held = False
            await self.sleep(node)
        leased.is_open = False

    async def follow_until_due(self, node: Node) -> None:
        """As `Replica` does while it follows."""
        leased = self.leased[node.name]
        engine, record = self.servers.connect(node.name), self.record(node)
        while True:
            with suppress(ClusterError):
                owner = await record.read()
                alive = await engine.registry.alive()
                if node.name in alive and owner.node not in alive and leased.lease.is_steady():
                    await self.successor(node, owner)
                    if self.asks_again and owner.node in await engine.registry.alive():
                        leased.quiet_until = Clock.now + 2 * LASTS + 1
                    return
            await self.sleep(node)

    # -- choices, and what must be true -----------------------------------------------------------------------------------

    def actions(self) -> list[Callable[[], None]]:
        found = super().actions()
        for one in self.sleeping:
            if one[1] <= Clock.now:
                found.append(lambda one=one: self._wake(one))
        found.append(self._tick)
        return found

    def _wake(self, one: tuple[str, int, asyncio.Future[None]]) -> None:
        self.sleeping.remove(one)
        one[2].set_result(None)
        self.loop.drain()

    def _tick(self) -> None:
        Clock.now += 1
        for name, leased in self.leased.items():
            if name != "A":
                self.servers.leases[name] = (float(Clock.now + LASTS), b"")
                self.loop.call_soon(leased.lease.renewed, Clock.now)
        assert isinstance(self.loop, TimedLoop)
        self.loop.run_timers()
        self.loop.drain()

    def state(self) -> Hashable:
        return (
            super().state(),
            tuple(leased.state() for leased in self.leased.values()),
            tuple(sorted((name, at <= Clock.now) for name, at, _ in self.sleeping)),
            ago(self.servers.leases["A"][0]),
            self.leased["A"].keeping.get_coro().cr_await is not None and frames(self.leased["A"].keeping.get_coro()),
        )

    def check(self) -> None:
        super().check()
        delivering = [name for name, leased in self.leased.items() if leased.may_deliver()]
        require(len(delivering) <= 1, f"{delivering} may deliver in second {Clock.now}")
