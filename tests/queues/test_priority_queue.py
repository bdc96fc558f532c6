"""Queues with priorities: order, lanes that come and go, and what a crash leaves of them."""

from __future__ import annotations

from pamqp.commands import Basic

from rabbitpy_broker.queues.priority_queue import lane_id
from sans_io import SansIOBroker, method, parts_of
from small_client import SmallClient, raw_properties


def publish(client: SmallClient, *priorities: int | None, queue: str = "a") -> None:
    """One message for each, its place and its priority in the body."""
    for at, priority in enumerate(priorities):
        client.publish(queue, b"%d:%d" % (at, priority or 0), raw_properties(priority=priority))


def after_crash(broker: SansIOBroker) -> SmallClient:
    again = SansIOBroker(disk=broker.disk.kill(), definitions=broker.definitions, time=broker.time)
    return SmallClient(again)


def test_the_highest_priority_comes_first_and_equals_in_their_order(client):
    client.declare("a", {"x-max-priority": 3})
    publish(client, 0, 2, 1, 2, None, 3)
    assert client.bodies("a") == [b"5:3", b"1:2", b"3:2", b"2:1", b"0:0", b"4:0"]


def test_a_priority_above_the_maximum_is_the_maximum(client):
    client.declare("a", {"x-max-priority": 2})
    publish(client, 2, 255, 2)
    assert client.bodies("a") == [b"0:2", b"1:255", b"2:2"]


def test_what_comes_back_has_its_old_place_in_its_priority(client):
    client.declare("a", {"x-max-priority": 2})
    publish(client, 1, 1, 0)
    first = client.get("a")
    publish(client, 2)
    client.reject(first, requeue=True)
    assert client.bodies("a") == [b"0:2", b"0:1", b"1:1", b"2:0"]


def test_a_limit_drops_from_the_head_whatever_its_priority(client):
    client.declare("a", {"x-max-priority": 2, "x-max-length": 2})
    publish(client, 0, 1, 2)
    assert client.bodies("a") == [b"1:1", b"0:0"]


def test_a_purge_takes_all_priorities_and_leaves_what_is_unacked(client):
    client.declare("a", {"x-max-priority": 5})
    publish(client, 5, 3, 1, 0)
    got = client.get("a")
    assert client.broker.vhost.queues["a"].purge() == 3
    client.reject(got, requeue=True)
    assert client.bodies("a") == [b"0:5"]


def test_only_priorities_in_use_have_a_queue_of_their_own(client):
    client.declare("a", {"x-max-priority": 255})
    publish(client, 255, 7)
    assert len(parts_of(client.broker.vhost.queues["a"].backing)) == 3


def test_lanes_of_one_queue_do_not_share_a_number():
    ids = {lane_id(queue_id, priority) for queue_id in (1, 2, 1 << 63) for priority in range(256)}
    assert len(ids) == 3 * 256


def test_a_kill_between_the_first_messages_of_two_priorities_loses_neither(client):
    client.declare("a", {"x-max-priority": 9})
    publish(client, 9)
    again = after_crash(client.broker)
    publish(again, 4)
    third = after_crash(again.broker)
    assert third.bodies("a") == [b"0:9", b"0:4"]


def test_every_point_of_a_kill_leaves_all_lanes_that_were_confirmed(client):
    client.declare("a", {"x-max-priority": 3})
    publish(client, 1)
    broker = client.broker
    start = len(broker.disk.log)
    publish(client, 3, 2)
    for disk in broker.disk.prefixes(start):
        again = SmallClient(SansIOBroker(disk=disk, definitions=broker.definitions, time=broker.time))
        found = again.bodies("a")
        assert found[-1:] == [b"0:1"]
        assert found in ([b"0:1"], [b"0:3", b"0:1"], [b"0:3", b"1:2", b"0:1"])


def test_a_lane_that_was_emptied_before_a_restart_is_used_again():
    old = SansIOBroker()
    client = SmallClient(old)
    client.declare("a", {"x-max-priority": 3})
    publish(client, 3, 2)
    client.get_all("a")
    broker = SansIOBroker(disk=old.stop(), definitions=old.definitions, time=old.time)
    again = SmallClient(broker)
    publish(again, 3, 0, 2)
    assert after_crash(broker).bodies("a") == [b"0:3", b"2:2", b"1:0"]


def test_a_consumer_gets_the_highest_that_is_there_each_time_it_has_room(client):
    client.declare("a", {"x-max-priority": 3})
    publish(client, 1, 1)
    client.feed(method(1, Basic.Qos(prefetch_count=1)) + method(1, Basic.Consume(queue="a")))
    publish(client, 3)
    client.ack(client.delivered[-1])
    assert [one.body for one in client.delivered] == [b"0:1", b"0:3"]
