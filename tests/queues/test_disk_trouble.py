"""TTL, limits and dead-lettering of messages that are on disk only, while the disk does not give them."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from extensions_world import small_settings
from sans_io import SansIOBroker, parts_of
from small_client import SmallClient, raw_properties

TO_TARGET = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target"}


@pytest.fixture
def client() -> Iterator[SmallClient]:
    broker = SansIOBroker(settings=small_settings())
    client = SmallClient(broker)
    client.declare("target")
    yield client
    broker.audit()
    broker.close()


def page_out(client: SmallClient, name: str = "a") -> None:
    """Everything to segments, and out of RAM."""
    for part in parts_of(client.broker.vhost.queues[name].backing):
        part.set_target_ram_count(0)
    for now in range(4):
        client.broker.vhost.tick(float(now))
        client.broker.run()


def fill(client: SmallClient, count: int, *, expiration: str | None = None) -> None:
    for number in range(count):
        client.publish("a", b"%03d" % number, raw_properties(expiration=expiration))


def retry(client: SmallClient) -> None:
    """As the daemon does it about once a second."""
    for queue in client.broker.vhost.queues.values():
        if queue.unreadable:
            queue.unreadable = False
            client.broker.turn.touch(queue)
    client.broker.run()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%03d" % number for number in range(first, end)]


def set_policy(client: SmallClient, **definition: int) -> None:
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    client.broker.policies.set("p", "^a$", "queues", 0, named)
    client.broker.run()


@pytest.mark.parametrize("arguments", [{}, TO_TARGET, {"x-max-priority": 3, **TO_TARGET}])
def test_messages_that_cannot_be_read_expire_when_they_can(client, arguments):
    client.declare("a", {"x-message-ttl": 1_000, **arguments})
    fill(client, 40)
    page_out(client)
    client.broker.disk.fail(("read", "open"), errno.EIO, forever=True)
    client.broker.advance(2_000)
    for _ in range(3):
        retry(client)
    assert client.broker.disk.struck
    assert client.ready("a") > 0
    client.broker.disk.mend()
    for _ in range(3):
        retry(client)
    assert client.ready("a") == 0
    assert client.broker.vhost.queues["a"].backing.unacked == 0
    assert client.bodies("target") == (numbers(0, 40) if arguments else [])


@pytest.mark.parametrize("arguments", [{}, TO_TARGET, {"x-max-priority": 3, **TO_TARGET}])
def test_a_queue_that_is_too_long_and_cannot_be_read_makes_room_when_it_can(client, arguments):
    client.declare("a", arguments)
    fill(client, 40)
    page_out(client)
    client.broker.disk.fail(("read", "open"), errno.EIO, forever=True)
    set_policy(client, max_length=5)
    assert client.publish("a", b"040")
    retry(client)
    assert client.broker.disk.struck
    client.broker.disk.mend()
    retry(client)
    assert client.bodies("a") == numbers(36, 41)
    assert client.bodies("target") == (numbers(0, 36) if arguments else [])


def test_a_rejected_message_that_cannot_be_read_goes_back_to_its_place(client):
    client.declare("a", TO_TARGET)
    fill(client, 4)
    held = [client.get("a") for _ in range(3)]
    page_out(client)
    client.broker.disk.fail(("read", "open"), errno.EIO, forever=True)
    client.reject(held[1])
    client.broker.disk.mend()
    retry(client)
    assert client.ready("target") == 0
    assert client.bodies("a") == [b"001", b"003"]
    client.reject(held[0])
    client.reject(held[2])
    assert client.bodies("target") == [b"000", b"002"]


def test_a_message_given_up_after_too_many_deliveries_that_cannot_be_read_is_given_up_later(client):
    client.declare("a", {"x-delivery-limit": 0, **TO_TARGET})
    fill(client, 2)
    held = client.get("a")
    page_out(client)
    client.broker.disk.fail(("read", "open"), errno.EIO, forever=True)
    client.reject(held, requeue=True)
    client.broker.disk.mend()
    retry(client)
    client.reject(client.get("a"), requeue=True)
    assert client.bodies("target") == [b"000"]
    assert client.bodies("a") == [b"001"]


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}])
def test_damaged_messages_are_lost_and_the_rest_is_dead_lettered(client, arguments):
    client.declare("a", {"x-message-ttl": 1_000, **TO_TARGET, **arguments})
    fill(client, 40)
    page_out(client)
    broker = client.broker
    (folder,) = broker.disk.list_dir("/data/queues")
    path = f"/data/queues/{folder}/{1:08x}.segment"
    file = broker.disk.open(path)
    file.write_at(60, b"\xff" * (file.size() - 60))
    file.close()
    broker.advance(2_000)
    for _ in range(3):
        retry(client)
    assert client.ready("a") == 0
    assert broker.vhost.queues["a"].backing.unacked == 0
    found = client.bodies("target")
    assert found == sorted(found)
    assert set(numbers(0, 8) + numbers(16, 40)) <= set(found)


def test_copies_are_kept_in_memory_while_nothing_can_be_written(client):
    client.declare("a", {"x-message-ttl": 1_000, **TO_TARGET})
    fill(client, 10)
    client.broker.disk.fail(("write", "sync"), errno.ENOSPC, forever=True)
    client.broker.time.advance(2_000)
    broker = client.broker
    for _ in range(20):
        if broker.due:
            broker.due = False
            broker.turn.run()
        broker.threads.crank()
    assert broker.disk.struck
    broker.disk.mend()
    for now in range(4):
        broker.vhost.tick(float(now))
        broker.run()
    assert client.ready("a") == 0
    assert client.bodies("target") == numbers(0, 10)


def test_a_time_to_live_is_kept_over_a_restart_for_messages_on_disk_only():
    old = SansIOBroker(settings=small_settings())
    client = SmallClient(old)
    client.declare("target")
    client.declare("a", TO_TARGET)
    fill(client, 20, expiration="1000")
    page_out(client)
    disk = old.stop()
    broker = SansIOBroker(disk=disk, definitions=old.definitions, time=old.time, settings=small_settings())
    again = SmallClient(broker)
    broker.advance(999)
    assert again.ready("a") == 20
    broker.advance(2)
    assert again.ready("a") == 0
    found = again.get_all("target")
    assert [one.body for one in found] == numbers(0, 20)
    assert {one.properties.expiration for one in found} == {None}
    assert found[0].properties.headers["x-death"][0]["original-expiration"] == "1000"
