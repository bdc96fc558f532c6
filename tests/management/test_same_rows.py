"""Rows of lists and cells of tables that are taken again, or made from parts of what they were, are what they would be if they
were made anew: whatever is done with queues, and whenever somebody looks.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aio_pika
import msgspec
import pytest
import structlog
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import ChannelInvalidStateError

from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import load_config
from rabbitpy_broker.management.admin import Admin
from rabbitpy_broker.management.api import plain_rows, queues, sampler
from rabbitpy_broker.management.api.browser import Browser
from rabbitpy_broker.management.api.kept_rows import BETWEEN, Rows
from rabbitpy_broker.management.api.paging import Columns, _make
from rabbitpy_broker.management.api.request import Request
from rabbitpy_broker.management.api.sampler import NodeFigures, Sampler, Sampling
from rabbitpy_broker.management.api.sessions import Sessions
from rabbitpy_broker.management.api.shared_lists import SharedLists
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.api.tables import queue_cells
from rabbitpy_broker.management.api.tracker import REFRESH_TICKS, Tracker
from rabbitpy_broker.queues.memory_policy import UNLIMITED
from rabbitpy_broker.queues.rates import SLOW_BELOW
from rabbitpy_broker.queues.variable_queue import VariableQueue

NAMES = ("a", "b:@+ /", "c", "d", "e")
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {}, {"x-queue-mode": "lazy"}, {"x-max-priority": 3}, {"x-queue-type": "quorum"}, {"x-single-active-consumer": True},
    {"x-confirm-mode": "consumer-ack"}, {"x-dead-letter-exchange": "", 'x-"%d': "%b"}, {"x-queue-type": "stream"},
)  # fmt: skip
COLUMNS = "name,policy,messages,messages_details.rate,message_stats,idle_since,consumers,message_bytes,backing_queue_status"
STEPS = 250
SEEDS = 4


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    given = {"data_dir": str(tmp_path), "listeners": ("127.0.0.1:0",), "metrics_listen": "127.0.0.1:0", "management_listen": ""}
    broker = Broker(load_config(overrides=given), structlog.get_logger())
    await broker.start()
    yield broker
    await broker.stop()


class World:
    """A broker, somebody who does things with its queues, and what the management API makes of them."""

    def __init__(
        self,
        broker: Broker,
        connection: AbstractConnection,
        channel: AbstractChannel,
        chance: random.Random,
        *,
        rates: bool,
    ) -> None:
        self.broker = broker
        self.chance = chance
        self.connection = connection
        self.channel = channel
        self.held: list[AbstractIncomingMessage] = []
        self.consumers: list[tuple[str, str]] = []
        self.now = 1_700_000_000.0
        config, admin = broker.config, Admin(broker)
        of_queues = Sampler(broker, 5.0, lambda: NodeFigures(0, 0, 0, 0, 0), Sampling(rates))
        of_queues.watchers = 1
        sessions = Sessions(admin.users, 1.0, "cookie")
        self.api = Api(broker, admin, config.management, of_queues, sessions, Browser(1), SharedLists(5.0))
        self.tracker = Tracker(self.api, "queues")
        self.ticks = 0
        self.plain = 0
        self._rows: dict[str, Rows] = {}

    # -- what is done ----------------------------------------------------------------------------------------------------

    async def declare(self) -> None:
        kind = self.chance.choice(ARGUMENTS)
        exclusive = not kind and self.chance.random() < 0.3
        durable = kind.get("x-queue-type") is not None or (not exclusive and self.chance.random() < 0.5)
        name = self.name()
        if name not in self.broker.node.vhosts["/"].queues:
            await self.channel.declare_queue(name, durable=durable, exclusive=exclusive, arguments=kind)

    async def delete(self) -> None:
        await self.channel.queue_delete(self.name())

    async def publish(self) -> None:
        for _ in range(self.chance.choice((1, 1, 7))):
            body = b"x" * self.chance.choice((0, 10, 5_000))
            mode = self.chance.choice(list(aio_pika.DeliveryMode))
            message = aio_pika.Message(body, delivery_mode=mode, priority=self.chance.randrange(3), timestamp=self.time())
            await self.channel.default_exchange.publish(message, self.name(), mandatory=False)

    async def get(self) -> None:
        queue = await self.there()
        if queue is not None:
            message = await queue.get(fail=False, no_ack=self.chance.random() < 0.3)
            if message is not None and not message.processed and message.delivery_tag is not None and not message_no_ack(message):
                self.held.append(message)

    async def settle(self) -> None:
        if self.held:
            message = self.held.pop(self.chance.randrange(len(self.held)))
            await (message.ack() if self.chance.random() < 0.6 else message.nack(requeue=self.chance.random() < 0.7))

    async def consume(self) -> None:
        queue = await self.there()
        if queue is not None and not self.consumers:
            tag = await queue.consume(self.take, exclusive=self.chance.random() < 0.3 and not queue.arguments)
            self.consumers.append((queue.name, tag))

    async def take(self, message: AbstractIncomingMessage) -> None:
        self.held.append(message)

    async def cancel(self) -> None:
        if self.consumers:
            name, tag = self.consumers.pop()
            await (await self.channel.get_queue(name, ensure=False)).cancel(tag)

    async def purge(self) -> None:
        queue = await self.there()
        if queue is not None:
            await queue.purge()

    async def bind(self) -> None:
        queue = await self.there()
        if queue is not None:
            await (queue.bind if self.chance.random() < 0.5 else queue.unbind)("amq.fanout", "")

    async def change_policies(self) -> None:
        name = self.chance.choice(("p", "q"))
        if self.chance.random() < 0.5:
            policy = self.chance.choice(('{"queue-mode":"lazy"}', '{"max-length":3}', '{"confirm-mode":"consumer-ack-light"}'))
            await self.api.admin.set_policy(name, self.chance.choice(("", "^a")), policy, priority=self.chance.randrange(3))
        elif name in {policy.name for policy in self.broker.node.vhosts["/"].policies.all()}:
            await self.api.admin.clear_policy(name)

    async def page(self) -> None:
        """Memory is short, or is not any more; and time has gone by for averages."""
        for queue in self.broker.node.vhosts["/"].queues.values():
            if isinstance(queue.backing, VariableQueue):
                queue.backing.set_target_ram_count(self.chance.choice((0, 2, UNLIMITED)))
                queue.backing.tick(self.now)

    async def wait(self) -> None:
        self.now += self.chance.choice((0.5, 1.0, 5.0, 40.0))

    async def look(self) -> None:
        self.now += 1.0
        if self.api.sampler.kept.rates:
            await self.api.sampler.look()
        else:
            assert not await self.api.sampler.tick()
        await self.tick()

    async def tick(self) -> None:
        self.ticks += 1
        await self.tracker.update(self.ticks)

    def time(self) -> int | None:
        """A property of some messages."""
        return self.chance.choice((None, self.chance.randrange(1 << 31)))

    def name(self) -> str:
        return self.chance.choice(NAMES)

    async def there(self) -> Any:
        name = self.name()
        queue = self.broker.node.vhosts["/"].queues.get(name)
        if queue is None or queue.stream:
            return None
        return await self.channel.get_queue(name, ensure=False)

    # -- what is shown ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Between what is listed and what it is compared with nothing happens: there is nothing to wait for."""
        vhost = self.broker.node.vhosts["/"]
        fresh = [queues.queue_row(self.api, vhost, queue, self.api.sampler.spans({})) for queue in vhost.queues.values()]
        self.plain += sum(map(plain_rows.is_plain, vhost.queues.values()))
        self._compare({}, fresh)
        columns = Columns(self._request({"columns": COLUMNS}))
        self._compare({"columns": COLUMNS}, [columns.of(row) for row in fresh])
        values = queues.list_all(self.api, self._request({})).values
        assert [[value((vhost, queue)) for value in values.values()] for queue in vhost.queues.values()] == [
            [row[name] for name in values] for row in fresh
        ]

    def _compare(self, query: dict[str, str], fresh: list[Any]) -> None:
        found = msgspec.json.decode(self._listed(query))
        expected = msgspec.json.decode(msgspec.json.encode(fresh))
        for row in (*found, *expected):
            averages = row.get("backing_queue_status", {})
            if sum(value for name, value in averages.items() if name.startswith("avg_")) <= SLOW_BELOW:
                averages.update((name, 0.0) for name in list(averages) if name.startswith("avg_"))  # when it was made
        assert [msgspec.json.encode(row) for row in found] == [msgspec.json.encode(row) for row in expected]

    def _listed(self, query: dict[str, str]) -> bytes:
        listing = queues.list_all(self.api, request := self._request(query))
        sharing = listing.sharing
        assert sharing is not None
        rows = self._rows.get(repr(query))
        if rows is None or [*map(id, rows.state)] != [*map(id, sharing.state)]:
            rows = self._rows[repr(query)] = Rows(sharing.state, 0.0)
        items, make = list(listing.items), _make(request, listing)
        listed = b"".join(rows.pieces(items, sharing, make)).removesuffix(BETWEEN)
        assert BETWEEN.join(rows.some(items, 0, len(items), sharing, make)) == listed
        return b"[" + listed + b"]"

    def _request(self, query: dict[str, str]) -> Request:
        user = self.api.admin.users.get("guest")
        assert user is not None
        return Request("GET", {}, query, {}, b"", user, "127.0.0.1")

    def check_cells(self) -> None:
        """Of whatever a look and a tick have seen. Short of that, a body that was paged out may be unknown for some ticks."""
        vhost = self.broker.node.vhosts["/"]
        assert [row.cells for row in self.tracker.rows.values()] == [
            queue_cells(self.api, (vhost, queue)) for queue in self.tracker.rows
        ]
        assert set(self.tracker.rows) == set(vhost.queues.values())


def message_no_ack(message: AbstractIncomingMessage) -> bool:
    return bool(getattr(message, "_IncomingMessage__no_ack", False))


async def done_with_one(world: World, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """What the broker refuses closes the channel, and its messages go back."""
    try:
        await step()
    except (aio_pika.exceptions.ChannelClosed, ChannelInvalidStateError):
        world.held.clear()
        world.consumers.clear()
        world.channel = await world.connection.channel(publisher_confirms=False)


@pytest.mark.parametrize(("seed", "rates"), [*((seed, True) for seed in range(SEEDS)), (SEEDS, False)])
async def test_what_is_taken_again_is_what_would_be_made_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, seed: int, rates: bool
) -> None:
    monkeypatch.setattr(queues, "LONG", -1)
    connection = await aio_pika.connect(f"amqp://guest:guest@{broker.addresses[0]}")
    chance = random.Random(seed)
    world = World(broker, connection, await connection.channel(publisher_confirms=False), chance, rates=rates)
    monkeypatch.setattr(sampler, "time", SimpleNamespace(time=lambda: world.now, monotonic=lambda: world.now))
    world.api.sampler.asked()
    ways = (
        world.declare, world.declare, world.delete, world.publish, world.publish, world.publish, world.get, world.settle,
        world.consume, world.cancel, world.purge, world.bind, world.change_policies, world.page, world.wait, world.look,
        world.look,
    )  # fmt: skip
    for _ in range(STEPS):
        await done_with_one(world, chance.choice(ways))
        if chance.random() < 0.5:
            world.check()
    assert world.plain
    world.check()
    await connection.close()
    world.api.sampler.asked()
    await world.look()
    for _ in range(REFRESH_TICKS + 1):
        await world.tick()
    world.check_cells()
    world.check()


@pytest.mark.parametrize("rates", [True, False])
async def test_nothing_is_kept_of_vhosts_that_are_gone(broker: Broker, rates: bool) -> None:
    admin = Admin(broker)
    of_queues = Sampler(broker, 5.0, lambda: NodeFigures(0, 0, 0, 0, 0), Sampling(rates))
    of_queues.watchers = 1
    admin.add_vhost("v")
    gone, there = broker.node.vhosts["v"], broker.node.vhosts["/"]
    await of_queues.tick()
    assert set(of_queues._queues) == {gone, there}
    await admin.delete_vhost("v")
    await of_queues.tick()
    assert set(of_queues._queues) == {there}
    of_queues.watchers = 0
    await of_queues.tick()
    assert bool(of_queues._queues) == rates  # without them nobody looks any more
