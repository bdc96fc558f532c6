"""Timers: who is called when, and what a heap may hold."""

from __future__ import annotations

from pamqp.commands import Basic, Queue

from cranked_clock import CrankedTime
from rabbitpy_broker.queues.timers import LONGEST_S
from rabbitpy_broker.storage.vhost_store import StoreSettings
from rabbitpy_broker.wire.field_table import FieldTable
from sans_io import SansIOBroker, method
from small_client import SmallClient, raw_properties


def test_the_loop_is_asked_for_the_first_of_them(broker):
    time = CrankedTime()
    queue = broker.vhost.declare_queue("", False, False, False, _no_arguments(), object())
    time.timers.at(time.clock.now + 5_000, queue)
    assert time.armed_s == 5.0
    time.timers.at(time.clock.now + 9_000, queue)
    assert time.armed_s == 5.0
    time.timers.at(time.clock.now + 1_500, queue)
    assert time.armed_s == 1.5
    time.timers.at(time.clock.now - 10, queue)
    assert time.armed_s == 0.0


def test_a_far_time_is_looked_at_again_and_again(broker):
    time = CrankedTime()
    queue = broker.vhost.declare_queue("", False, False, False, _no_arguments(), object())
    time.timers.at(time.clock.now + 315_360_000_000, queue)
    assert time.armed_s == LONGEST_S
    time.armed_s = None
    time.clock.now += int(LONGEST_S * 1000)
    time.timers.run()
    assert time.armed_s == LONGEST_S


def test_a_clock_that_is_set_back_keeps_messages_longer_and_loses_none(client):
    client.declare("a", {"x-message-ttl": 1_000})
    client.publish("a")
    client.broker.time.clock.now -= 60_000
    client.broker.advance(2_000)
    assert client.ready("a") == 1
    client.broker.advance(60_000)
    assert client.ready("a") == 0


def test_queues_that_are_gone_are_not_kept_by_their_timers(client):
    for number in range(3_000):
        name = client.declare(f"q{number}", {"x-expires": 86_400_000}, durable=False)
        client.peer.call(1, Queue.Delete(queue=name))
    assert len(client.broker.time.timers._heap) < 1_500


def test_messages_that_are_gone_do_not_fill_the_heap(client):
    client.declare("a", durable=False)
    for _ in range(1_500):
        client.publish("a", b"long", raw_properties(expiration="86400000"))
        assert client.get("a", no_ack=True) is not None
        client.publish("a", b"short", raw_properties(expiration="1"))
        client.broker.advance(2)
    assert len(client.broker.time.timers._heap) < 1_500


# -- x-expires ----------------------------------------------------------------------------------------------------


def test_a_queue_that_nobody_uses_is_deleted(client):
    client.declare("a", {"x-expires": 100})
    client.broker.advance(99)
    assert "a" in client.broker.vhost.queues
    client.broker.advance(1)
    assert "a" not in client.broker.vhost.queues


def test_a_get_or_a_declare_is_a_use_and_a_publish_is_none(client):
    client.declare("a", {"x-expires": 100})
    client.broker.advance(60)
    client.get("a")
    client.broker.advance(60)
    client.declare("a", {"x-expires": 100})
    client.broker.advance(60)
    client.publish("a")
    client.broker.advance(40)
    assert "a" not in client.broker.vhost.queues


def test_a_queue_with_a_consumer_is_used(client):
    client.declare("a", {"x-expires": 100})
    client.feed(method(1, Basic.Consume(queue="a", consumer_tag="c")))
    client.broker.advance(1_000)
    client.feed(method(1, Basic.Cancel(consumer_tag="c")))
    client.broker.advance(99)
    assert "a" in client.broker.vhost.queues
    client.broker.advance(1)
    assert "a" not in client.broker.vhost.queues


def test_a_policy_that_expires_queues_begins_to_count_when_it_comes(client):
    client.declare("a")
    client.broker.advance(1_000)
    client.broker.policies.set("p", ".*", "queues", 0, {"expires": 100})
    client.broker.advance(99)
    assert "a" in client.broker.vhost.queues
    client.broker.policies.set("p", ".*", "queues", 0, {"expires": 300})
    client.broker.advance(299)
    assert "a" in client.broker.vhost.queues
    client.broker.advance(1)
    assert "a" not in client.broker.vhost.queues


def test_another_policy_does_not_make_a_queue_used(client):
    client.declare("a", {"x-expires": 100})
    client.broker.advance(99)
    client.broker.policies.set("p", ".*", "queues", 0, {"max-length": 100})
    client.broker.advance(1)
    assert "a" not in client.broker.vhost.queues


def test_dead_letters_of_a_queue_that_expires_reach_their_target(client):
    client.declare("target")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target"}
    client.declare("a", {"x-expires": 100, "x-message-ttl": 100, **arguments})
    client.publish("a", b"m")
    client.broker.advance(1_000)
    assert "a" not in client.broker.vhost.queues
    client.broker.audit()


# -- message TTL --------------------------------------------------------------------------------------------------


def test_the_shorter_of_two_times_to_live_counts(client):
    client.declare("a", {"x-message-ttl": 100})
    client.publish("a", b"1", raw_properties(expiration="50"))
    client.broker.advance(50)
    assert client.ready("a") == 0
    client.publish("a", b"2", raw_properties(expiration="500"))
    client.broker.advance(100)
    assert client.ready("a") == 0


def test_only_the_oldest_message_expires(client):
    client.declare("a")
    client.publish("a", b"stays")
    client.publish("a", b"goes", raw_properties(expiration="10"))
    client.broker.advance(50)
    assert client.ready("a") == 2
    assert client.get("a", no_ack=True).body == b"stays"
    client.broker.advance(0)
    assert client.ready("a") == 0


def test_a_message_that_does_not_live_at_all_reaches_a_consumer_that_is_ready(client):
    client.declare("a", {"x-message-ttl": 0})
    client.publish("a", b"lost")
    client.feed(method(1, Basic.Consume(queue="a", no_ack=True)))
    client.publish("a", b"found")
    assert [one.body for one in client.delivered] == [b"found"]


def test_expired_messages_are_not_delivered_after_a_restart(client):
    """They stand in a segment behind one without any expiry, so nobody has looked at them yet."""
    old = client.broker
    settings = _small_segments()
    first = SansIOBroker(definitions=old.definitions, time=old.time, settings=settings)
    before = SmallClient(first)
    before.declare("a")
    for number in range(8):
        before.publish("a", b"%d" % number)
    for _ in range(16):
        before.publish("a", b"short", raw_properties(expiration="1000"))
    before.publish("a", b"last")
    disk = first.stop()
    old.time.clock.now += 2_000
    after = SansIOBroker(disk=disk, definitions=old.definitions, time=old.time, settings=_small_segments())
    again = SmallClient(after)
    again.feed(method(1, Basic.Consume(queue="a", no_ack=True)))
    assert [one.body for one in again.delivered] == [b"%d" % number for number in range(8)] + [b"last"]


def _small_segments():
    settings = StoreSettings()
    settings.segment_entry_count = 8
    return settings


def _no_arguments():
    return FieldTable()
