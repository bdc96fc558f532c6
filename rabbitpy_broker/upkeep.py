"""What a broker does when nobody asks: it looks at memory and disk, tells everybody of alarms, shares memory among queues, and
has stores, queues and waits looked after about once a second. Memory that has come to stay is put into large pages.

What must stay true: nothing here walks over queues or connections but in slices.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Coroutine, Iterator
from typing import Any, Final

from rabbitpy_broker import alarms, large_pages, process_memory
from rabbitpy_broker.config import Config
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.errors import CONNECTION_FORCED, ConnectionClosed
from rabbitpy_broker.net.transport import Clients
from rabbitpy_broker.protocol.ack_timeout import tick_ms
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.protocol.publish_waits import WaitWatch
from rabbitpy_broker.queues.memory_monitor import MemoryMonitor
from rabbitpy_broker.queues.queue_host import HostedQueue
from rabbitpy_broker.slices import REST_S, in_slices, next_slice
from rabbitpy_broker.vhost import VHost

TOKENS_S: Final = 1.0  # between two looks at who may no longer be here
COLLECT_BELOW: Final = 20_000  # objects: some milliseconds
QUEUE_OBJECTS: Final = 30  # that the collector knows of one; of a message it is three, where it is not compiled
LARGE_PAGE_RESTS: Final = 9  # times what the one before took


class Upkeep:
    """Of one broker, while it runs. `clients` and `definitions` are the broker's; `log` is a structlog logger."""

    def __init__(
        self, config: Config, node: Node, definitions: Definitions, clients: Clients, alarms: alarms.Alarms, log: Any
    ) -> None:
        self.node = node
        self.definitions = definitions
        self.clients = clients
        self.alarms = alarms
        self.log = log
        self._interval_s = config.alarms.memory_monitor_interval / 1000
        self._consumer_timeout_ms = config.protocol.consumer_timeout
        self._takes_tokens = config.auth.takes_tokens()
        self._memory = MemoryMonitor(alarms.memory_limit_bytes, config.alarms.vm_memory_high_watermark_paging_ratio)
        self._telling: set[asyncio.Task[None]] = set()  # connections that an alarm has come or gone

    def start(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[None]]:
        """The rounds, which go on until they are cancelled."""
        rounds: list[Coroutine[None, None, None]] = [self._monitor(), self._tick_regularly()]
        if size := large_pages.page_size():
            rounds.append(self._use_large_pages(size))
        if self._consumer_timeout_ms:
            rounds.append(self._watch_acks())
        if self._takes_tokens:
            rounds.append(self._watch_tokens())
        return [loop.create_task(one) for one in rounds]

    async def _monitor(self) -> None:
        while True:
            await self._look(True)
            # A second is a gigabyte for a fast publisher: while memory is short it is looked at more often.
            for _ in range(10):
                await asyncio.sleep(self._interval_s / 10)
                await self._look(False)

    async def _look(self, anyway: bool) -> None:
        """Alarms, and who may keep how much in RAM; between two rounds only while memory is short."""
        try:
            # In this order: with a store in trouble, check_alarms does without a look at memory.
            if anyway and alarms.MEMORY in self.alarms.active:
                process_memory.give_back()
            if anyway or self._memory.desired != math.inf or 2 * process_memory.used() > self.alarms.memory_limit_bytes:
                self.check_alarms()
                await self._share_memory()
        except OSError as error:  # no file descriptor to look with: the alarms stay as they are
            if anyway:  # once a round is enough
                self.log.warning("alarms not checked", error=str(error))

    async def _use_large_pages(self, size: int) -> None:
        """Whenever memory has come to stay."""
        growth = large_pages.Growth()
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                if growth.has_settled(process_memory.used()):
                    await self._enlarge_pages(size)
            except (OSError, RuntimeError) as error:  # no file descriptor to look with, or no thread
                self.log.warning("large pages not looked for", error=str(error))

    async def _enlarge_pages(self, size: int) -> None:
        """One after the other, in a tenth of a thread's time; not while memory is short, and is given back."""
        for address in await asyncio.to_thread(large_pages.stretches, size):
            if alarms.MEMORY in self.alarms.active:
                return
            began = time.monotonic()
            await asyncio.to_thread(large_pages.put_into_one, address, size)
            await asyncio.sleep(LARGE_PAGE_RESTS * (time.monotonic() - began))

    async def _tick_regularly(self) -> None:
        rounds = 0
        wait_watch = WaitWatch(self.log)
        while True:
            await in_slices(self._ticking(), REST_S)
            rounds += 1
            if rounds % 10 == 0:
                self._collect_garbage()
                await in_slices(wait_watch.looking(list(self.node.vhosts.values()), self.clients.connections), REST_S)
            await asyncio.sleep(self._interval_s)

    def _ticking(self) -> Iterator[None]:
        """What the stores and their queues do when nobody asks."""
        now = time.monotonic()
        for vhost in list(self.node.vhosts.values()):
            if not self._is_there(vhost):
                continue
            for _ in vhost.ticking(now):
                yield
                if not self._is_there(vhost):
                    break
        if self.definitions.changes != self.node.changes_seen:  # what no client asked for: a queue has expired
            self.node.changes_seen = self.definitions.changes
            self.node.turn.commit_due = True
        if self.node.turn.commit_due:
            self.node.turn.wake()

    def _is_there(self, vhost: VHost) -> bool:
        """False for one that has been deleted: it has no store any more."""
        return self.node.vhosts.get(vhost.name) is vhost

    async def _watch_acks(self) -> None:
        """Looks for deliveries that wait too long for their ack, now and at each tick."""
        timeout_ms = self._consumer_timeout_ms
        while True:
            await in_slices(self._closing_overdue(timeout_ms), REST_S)
            await asyncio.sleep(tick_ms(timeout_ms) / 1000)

    def _closing_overdue(self, timeout_ms: int) -> Iterator[None]:
        for connection in list(self.clients.connections):
            if connection in self.clients.connections:
                connection.close_overdue(self._now_ms(), timeout_ms)
            yield

    def _now_ms(self) -> int:
        """By the clock that consumer timeouts are measured with, which only goes forward."""
        return int(asyncio.get_running_loop().time() * 1000)

    async def _watch_tokens(self) -> None:
        """Ends connections whose user's token has expired."""
        while True:
            await in_slices(self._closing_expired(), REST_S)
            await asyncio.sleep(TOKENS_S)

    def _closing_expired(self) -> Iterator[None]:
        now = time.time()
        for connection in list(self.clients.connections):
            user = connection.session.user
            reason = user.expired(now) if user is not None else ""
            if user is not None and reason and connection in self.clients.connections:
                self.log.warning("auth.token_expired", connection=connection.name, user=user.name, reason=reason)
                connection.force_close(ConnectionClosed(CONNECTION_FORCED, reason))
            yield

    async def _share_memory(self) -> None:
        """Looks at the queues only while memory is short, or just was."""
        memory, is_disk_full = self._memory, alarms.DISK in self.alarms.active
        before = memory.desired
        memory.set_limit(self.alarms.memory_limit_bytes)
        if memory.asks_for_reports(self.alarms.memory_used, is_disk_full):
            await in_slices(self._reporting(), REST_S)
        desired = memory.update(self.alarms.memory_used, is_disk_full)
        if desired != math.inf or before != math.inf:
            await in_slices(self._targeting(desired), REST_S)

    def _reporting(self) -> Iterator[None]:
        self._memory.reset()
        for number, queue in enumerate(self._holders()):
            self._memory.report(number, queue.kept.ram_duration())
            yield

    def _targeting(self, desired: float) -> Iterator[None]:
        for queue in self._holders():
            queue.kept.set_ram_duration_target(desired)
            yield

    def _holders(self) -> Iterator[HostedQueue]:
        """Whatever holds messages, for a walk in slices."""
        for vhost in list(self.node.vhosts.values()):
            yield from vhost.each_holder()

    # -- alarms -------------------------------------------------------------------------------------------------

    def check_alarms(self) -> None:
        """Reads memory and disk; tells every connection when an alarm comes or goes. Raises OSError."""
        before = set(self.alarms.active)
        if not self.alarms.check():
            return
        for resource in sorted(self.alarms.active - before):
            self.log.warning("alarm set", resource=resource)
        for resource in sorted(before - self.alarms.active):
            self.log.warning("alarm cleared", resource=resource)
        self.node.blocked = self.alarms.reason() if self.alarms.active else ""
        self.tell_alarm()

    def tell_alarm(self) -> None:
        """Tells every connection that an alarm has come or gone, of the node or of a vhost."""
        walk = self._telling_alarm()
        _, more = next_slice(walk)
        if more:
            telling = asyncio.get_running_loop().create_task(in_slices(walk))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    def _telling_alarm(self) -> Iterator[None]:
        """Who connects meanwhile knows by himself; who is told twice, of an alarm that has come and gone, takes no harm."""
        for client in list(self.clients.open):
            client.connection.alarm_changed()
            yield

    def _collect_garbage(self) -> None:
        """The daemon switches the cyclic collector off: with many queues or messages a pass would take seconds.

        It is still run now and then, for what points at itself in spite of us: over all while that is little, else over what
        is new. When even that is too much, it is messages or queues, and no garbage: it is not looked at any more.
        """
        if gc.isenabled():
            return
        held = QUEUE_OBJECTS * sum(len(vhost.queues) for vhost in self.node.vhosts.values())
        if held < COLLECT_BELOW:
            held += 3 * sum(queue.kept.len + queue.kept.unacked for queue in self._holders())
        if held < COLLECT_BELOW:
            gc.collect()
        elif gc.get_count()[0] < COLLECT_BELOW:
            gc.collect(0)
        else:
            gc.freeze()
