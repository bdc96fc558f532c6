"""A broker inside a running loop: it starts, serves and stops there, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import Config, load_config
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.hosted_vhosts import DELETE_AT_ONCE
from rabbitpy_broker.management.admin import Admin
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.wire.field_table import FieldTable
from support import eventually
from wire_client import WireClient


def settings(directory: Path) -> Config:
    return load_config(
        overrides={"data_dir": str(directory), "listeners": ("127.0.0.1:0",), "metrics_listen": "127.0.0.1:0"}
    )


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(settings(tmp_path), structlog.get_logger())
    await broker.start()
    yield broker
    await broker.stop()


def open_and_close(port: int, count: int) -> None:
    """So many connections, one after the other, each with a channel, left without a good-bye."""
    for _ in range(count):
        client = WireClient("127.0.0.1", port, 5).open()
        client.open_channel(1)
        client.close()


async def test_only_a_loop_of_its_own_is_stopped_to_rest(embedded: Broker, tmp_path: Path) -> None:
    assert embedded.clients.moderation.rest_s == 0.0
    owner = Broker(settings(tmp_path / "owner"), structlog.get_logger(), loop_is_ours=True)
    await owner.start()
    assert owner.clients.moderation.rest_s == 0.0005
    await owner.stop()


async def test_connections_that_ended_are_freed_without_the_cyclic_collector(embedded: Broker) -> None:
    """The daemon runs without it: what holds each other must let go when a connection ends."""
    port = int(embedded.addresses[0].rsplit(":", 1)[1])
    gc.collect()
    gc.disable()
    before = [thing for thing in gc.get_objects() if issubclass(type(thing), (Connection, Channel))]  # other tests' failures
    try:
        await asyncio.to_thread(open_and_close, port, 20)
        await asyncio.to_thread(eventually, lambda: not embedded.clients.open)
        await asyncio.sleep(0)
        after = [thing for thing in gc.get_objects() if issubclass(type(thing), (Connection, Channel))]
        assert [thing for thing in after if not any(thing is known for known in before)] == []
    finally:
        gc.enable()


async def test_two_brokers_run_in_one_loop_but_not_on_one_directory(embedded: Broker, tmp_path: Path) -> None:
    other = Broker(settings(tmp_path / "other"), structlog.get_logger())
    await other.start()
    assert other.addresses != embedded.addresses
    with pytest.raises(StartError, match="is in use"):
        await Broker(settings(tmp_path), structlog.get_logger()).start()
    await other.stop()


async def test_a_stopped_broker_can_be_started_again_on_its_directory(tmp_path: Path) -> None:
    for _ in range(2):
        broker = Broker(settings(tmp_path), structlog.get_logger())
        await broker.start()
        assert broker.ready
        await broker.stop()
        assert not broker.ready


async def test_definitions_that_cannot_be_used_end_the_start_in_one_line(tmp_path: Path) -> None:
    broker = Broker(settings(tmp_path), structlog.get_logger())
    await broker.start()
    broker.definitions.put_binding("/", "amq.direct", "queue", "gone", "key", b"")
    await broker.stop()
    with pytest.raises(StartError, match=r"definitions .* cannot be used: .*gone"):
        await Broker(settings(tmp_path), structlog.get_logger()).start()


async def test_a_vhost_of_many_queues_is_deleted_while_others_are_served(embedded: Broker, tmp_path: Path) -> None:
    admin = Admin(embedded)
    count = 3 * DELETE_AT_ONCE
    admin.add_vhost("big")
    vhost = embedded.node.vhosts["big"]
    for number in range(count):
        vhost.declare_queue(f"q{number}", True, False, False, FieldTable(), None)
    deleting = asyncio.create_task(admin.delete_vhost("big"))
    shown = []

    async def look() -> None:
        stats = (await embedded.stats(per_object=False)).node
        assert stats.queues_created == stats.queues_declared == count
        shown.append(stats.queues_deleted)

    async def look_all_the_while() -> None:
        while not deleting.done():
            await asyncio.sleep(0)
            await look()

    looking = asyncio.create_task(look_all_the_while())
    deleted = set()
    while not deleting.done():
        await asyncio.sleep(0)
        deleted.add(int(vhost.queues_deleted))
    await deleting
    await looking
    await look()
    assert shown == sorted(shown)
    assert shown[-1] == count
    assert len(deleted - {0, count}) >= 2  # so others had their turns
    assert not (tmp_path / "vhosts" / "big").exists()
    admin.add_vhost("big")
    assert embedded.definitions.queues("big") == []
