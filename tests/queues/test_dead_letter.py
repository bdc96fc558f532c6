"""Dead letters: the x-death table against a plain reference, whatever a client has put there before, and their ways."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic, Queue

from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.dead_letter import DeadLetter, address_of, split_address, write_obituary
from rabbitpy_broker.wire.field_table import decode_table, encode_table, encode_value
from rabbitpy_broker.wire.properties import MALFORMED, check_header, decode_headers
from sans_io import METHOD, SansIOBroker, content, method
from small_client import SmallClient, raw_properties

NOW = 1_700_000_000_000


def dead_letters_to(queue: str, exchange: str = "") -> dict[str, Any]:
    return {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": queue}


def item(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + value


# -- the record ---------------------------------------------------------------------------------------------------


def reference(
    deaths: list[dict[str, Any]], queue: str, reason: str, fresh: dict[str, Any]
) -> list[dict[str, Any]]:
    """x-death after one more death: the entry of that queue and reason counts on and comes first."""
    for at, one in enumerate(deaths):
        if one["queue"] == queue and one["reason"] == reason:
            return [{**one, "count": one["count"] + 1}, *deaths[:at], *deaths[at + 1 :]]
    return [{"count": 1, "reason": reason, "queue": queue, **fresh}, *deaths]


class Deceased:
    """A message that dies again and again."""

    def __init__(self, payload: bytes) -> None:
        self.broker = SansIOBroker(recording=True)
        self.client = SmallClient(self.broker)
        for name in "abc":
            self.client.declare(name)
        header = len(payload).to_bytes(4, "big") + payload + b"\xce"
        self.message = Message(address_of("", "a"), header, len(header), True)

    def dies(self, queue: str, reason: str, routing_key: str | None = None) -> None:
        letter = DeadLetter(self.broker.vhost.queues[queue], self.message, None, reason)
        self.message = write_obituary(letter, "", routing_key, NOW).message

    def headers(self) -> dict[str, Any]:
        payload = self.message.header_payload()
        assert check_header(payload, 0, len(payload)) != MALFORMED
        headers = decode_headers(payload)
        assert headers is not None
        return headers


def plain(payload_properties: bytes) -> bytes:
    return struct.pack(">HHQ", 60, 0, 0) + payload_properties


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(("rejected", "expired", "maxlen", "delivery_limit")),
            st.sampled_from((None, "a", "b")),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from((None, "5000")),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_x_death_has_one_entry_for_each_queue_and_reason_the_newest_first(deaths, expiration):
    deceased = Deceased(plain(raw_properties(expiration=expiration)))
    expected: list[dict[str, Any]] = []
    at, first = "a", None
    for queue, reason, key in deaths:
        fresh: dict[str, Any] = {"time": NOW // 1000, "exchange": "", "routing-keys": [at]}
        if expiration is not None:
            fresh["original-expiration"] = expiration
            expiration = None  # taken away when it died for the first time
        deceased.dies(queue, reason, key)
        expected = reference(expected, queue, reason, fresh)
        first = first or (queue, reason)
        at = key or at
    headers = deceased.headers()
    assert [dict(one) for one in headers["x-death"]] == expected
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == first
    assert headers["x-first-death-exchange"] == ""
    assert split_address(deceased.message.address) == ("", at)
    assert deceased.message.expiration == -1


def values(depth: int = 2) -> st.SearchStrategy[bytes]:
    """Field values as bytes, sound or nonsense, but such as pass for a table."""
    text = st.binary(max_size=12)
    longstr = text.map(lambda raw: b"S" + len(raw).to_bytes(4, "big") + raw)
    number = st.one_of(
        st.integers(-(1 << 63), (1 << 63) - 1).map(lambda value: b"l" + struct.pack(">q", value)),
        st.just(b"l" + struct.pack(">q", (1 << 63) - 1)),
        st.just(b"T" + b"\xff" * 8),
        st.just(b"t\x01"),
        st.just(b"V"),
        st.just(b"d" + struct.pack(">d", float("nan"))),
        st.just(b"D\xff\xff\xff\xff\xff"),
    )
    if depth == 0:
        return st.one_of(longstr, number)
    inner = values(depth - 1)
    array = (
        st.lists(inner, max_size=4).map(b"".join).map(lambda raw: b"A" + len(raw).to_bytes(4, "big") + raw)
    )
    return st.one_of(longstr, number, array, tables(inner))


def tables(value: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    keys = st.one_of(
        st.sampled_from((b"count", b"queue", b"reason", b"exchange", b"routing-keys", b"time")),
        st.binary(max_size=4),
    )
    known = st.sampled_from((encode_value("a"), encode_value("expired"), encode_value("rejected")))
    items = st.tuples(keys, st.one_of(value, known)).map(lambda one: item(*one))
    return st.lists(items, max_size=6).map(b"".join).map(lambda raw: b"F" + len(raw).to_bytes(4, "big") + raw)


forged = st.lists(
    st.tuples(
        st.sampled_from((b"x-death", b"x-death", b"CC", b"x-first-death-queue", b"\xff\xfe", b"h")), values()
    ),
    max_size=4,
).map(lambda items: b"".join(item(*one) for one in items))


@given(forged, st.sampled_from(("expired", "rejected")))
@settings(max_examples=300, deadline=None)
@example(item(b"\xff\xfe", b"V"), "expired")
@example(item(b"x-death", b"A\x00\x00\x00\x09F\x00\x00\x00\x04\x02\xff\xfeV"), "expired")
def test_whatever_a_client_has_forged_the_record_is_written(raw, reason):
    payload = plain(raw_properties(raw))
    assert check_header(payload, 0, len(payload)) != MALFORMED
    deceased = _SHARED
    header = len(payload).to_bytes(4, "big") + payload + b"\xce"
    deceased.message = Message(address_of("", "a"), header, len(header), True)
    deceased.dies("a", reason)
    deceased.dies("a", reason)
    written = deceased.message.header_payload()
    assert check_header(written, 0, len(written)) != MALFORMED
    assert b"x-death" in written


_SHARED = Deceased(plain(b"\x00\x00"))


def test_a_forged_count_does_not_overflow():
    entry = encode_table({"queue": "a", "reason": "expired", "count": (1 << 63) - 1})
    raw = item(b"x-death", b"A" + (len(entry) + 1).to_bytes(4, "big") + b"F" + entry)
    deceased = Deceased(plain(raw_properties(raw)))
    deceased.dies("a", "expired")
    (death,) = deceased.headers()["x-death"]
    assert death["count"] == (1 << 63) - 1


# -- their ways ---------------------------------------------------------------------------------------------------


def test_a_message_whose_header_keys_are_not_utf_8_is_dead_lettered_like_any_other(client):
    client.declare("target")
    client.declare("a", {"x-message-ttl": 0, **dead_letters_to("target")})
    client.publish("a", b"bad", raw_properties(item(b"\xff\xfe", b"V")))
    client.publish("a", b"good")
    assert client.ready("target") == 2
    assert client.broker.vhost.queues["a"].backing.unacked == 0


def test_what_no_headers_exchange_can_read_is_dropped_and_the_others_go_on(client):
    client.declare("target")
    client.bind("dlx", "headers", "target")
    client.declare("a", {"x-message-ttl": 0, "x-dead-letter-exchange": "dlx"})
    client.publish("a", b"bad", raw_properties(item(b"\xff\xfe", b"V")))
    client.publish("a", b"good")
    assert client.bodies("target")[-1:] == [b"good"]
    assert client.broker.vhost.queues["a"].backing.unacked == 0


@pytest.mark.parametrize("length", (128, 255, 256, 3_000))
def test_a_dead_letter_routing_key_may_be_longer_than_a_routing_key(client, length):
    client.declare("target")
    client.bind("dlx", "fanout", "target")
    client.declare("a", {"x-message-ttl": 0, **dead_letters_to("ä" * length, "dlx")})
    client.publish("a", b"m")
    (got,) = client.get_all("target")
    assert got.body == b"m"
    assert got.routing_key == "ä" * 127


def test_a_dead_letter_exchange_with_a_name_that_none_can_have_is_one_that_does_not_exist(client):
    client.declare("a", {"x-message-ttl": 0, "x-dead-letter-exchange": "x" * 300})
    assert client.publish("a", b"m")
    assert client.broker.vhost.queues["a"].backing.unacked == 0


def test_a_copy_key_that_is_too_long_does_not_matter(client):
    client.declare("target")
    client.bind("dlx", "fanout", "target")
    client.declare("a", {"x-message-ttl": 0, "x-dead-letter-exchange": "dlx"})
    keys = encode_value(["k" * 400])
    client.publish("a", b"m", raw_properties(item(b"CC", keys)))
    assert client.bodies("target") == [b"m"]


def test_a_queue_that_is_its_own_target_drops_what_expires_again(client):
    client.declare("a", {"x-message-ttl": 10, **dead_letters_to("a")})
    client.publish("a", b"m")
    client.broker.advance(100)
    assert client.ready("a") == 0
    assert client.broker.vhost.queues["a"].backing.unacked == 0


def test_a_rejected_message_may_come_back_to_its_queue(client):
    client.declare("a", dead_letters_to("a"))
    client.publish("a", b"m")
    for times in range(1, 4):
        got = client.get("a")
        assert got is not None
        assert got.deaths == ([("a", "rejected", times - 1)] if times > 1 else [])
        client.reject(got)
    assert client.ready("a") == 1


def test_overflow_in_a_circle_ends(client):
    client.declare("a", {"x-max-length": 1, **dead_letters_to("b")})
    client.declare("b", {"x-max-length": 1, **dead_letters_to("a")})
    for number in range(6):
        client.publish("a", b"%d" % number)
    assert client.bodies("a") == [b"5"]
    assert client.bodies("b") == [b"4"]


def test_a_forged_rejection_does_not_keep_a_circle_going(client):
    entry = encode_table({"queue": "z", "reason": "rejected", "count": 1})
    raw = item(b"x-death", b"A" + (len(entry) + 1).to_bytes(4, "big") + b"F" + entry)
    client.declare("a", {"x-message-ttl": 0, **dead_letters_to("b")})
    client.declare("b", {"x-message-ttl": 0, **dead_letters_to("a")})
    client.publish("a", b"m", raw_properties(raw))
    assert client.ready("a") == client.ready("b") == 0


def test_a_dead_letter_is_published_though_its_queue_goes_in_the_same_turn(client):
    client.declare("target")
    client.declare("a", dead_letters_to("target"))
    client.publish("a", b"m")
    got = client.get("a")
    assert got is not None
    client.feed(
        method(1, Basic.Reject(delivery_tag=got.tag, requeue=False)) + method(1, Queue.Delete(queue="a"))
    )
    (found,) = client.get_all("target")
    assert found.deaths == [("a", "rejected", 1)]


def test_a_purge_leaves_dead_letters_that_are_on_their_way(client):
    client.declare("target")
    client.declare("a", {"x-max-length": 2, **dead_letters_to("target")})
    publish = method(1, Basic.Publish(routing_key="a"))
    parts = [publish + content(1, b"%d" % number, b"\x10\x00\x02") for number in range(4)]
    client.feed(b"".join(parts) + method(1, Queue.Purge(queue="a")))
    assert client.bodies("target") == [b"0", b"1"]
    assert client.ready("a") == 0
    assert client.broker.vhost.queues["a"].backing.unacked == 0


def test_a_dead_letter_goes_nowhere_when_its_target_has_gone_in_the_same_turn(client):
    client.declare("target")
    client.declare("a", dead_letters_to("target"))
    client.publish("a", b"m")
    got = client.get("a")
    assert got is not None
    reject = method(1, Basic.Reject(delivery_tag=got.tag, requeue=False))
    client.feed(reject + method(1, Queue.Delete(queue="target")))
    assert client.broker.vhost.queues["a"].backing.unacked == 0


def test_a_message_that_does_not_live_at_all_dies_at_the_commit_of_its_transaction(broker):
    client = SmallClient(broker)
    client.declare("target")
    client.declare("a", {"x-message-ttl": 0, **dead_letters_to("target")})
    peer = broker.connect()
    peer.open_channel(1)
    peer.feed(bytes.fromhex("0100010000000400 5a 000a ce".replace(" ", "")))
    peer.feed(method(1, Basic.Publish(routing_key="a")) + content(1, b"m", b"\x10\x00\x02"))
    assert client.ready("target") == 0
    peer.feed(bytes.fromhex("0100010000000400 5a 0014 ce".replace(" ", "")))
    assert client.bodies("target") == [b"m"]


# -- at least once ------------------------------------------------------------------------------------------------


AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def reject_one(client: SmallClient, queue: str) -> None:
    got = client.get(queue)
    assert got is not None
    client.reject(got)


def tick(client: SmallClient) -> None:
    client.broker.vhost.tick(1.0)
    client.broker.run()


def test_at_least_once_waits_for_a_target_that_does_not_exist_yet(client):
    client.declare("a", {**AT_LEAST_ONCE, **dead_letters_to("target")})
    client.publish("a", b"m")
    reject_one(client, "a")
    tick(client)
    client.declare("target")
    tick(client)
    assert client.bodies("target") == [b"m"]
    assert client.broker.vhost.queues["a"].backing.unacked == 0
    tick(client)
    assert client.ready("target") == 0


def test_at_least_once_waits_for_a_target_that_is_full(client):
    client.declare("target", {"x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("a", {**AT_LEAST_ONCE, **dead_letters_to("target")})
    client.publish("target", b"before")
    client.publish("a", b"m")
    reject_one(client, "a")
    tick(client)
    assert client.bodies("target") == [b"before"]
    tick(client)
    assert client.bodies("target") == [b"m"]


def test_at_least_once_gives_one_copy_to_each_target_though_another_is_full(client):
    client.declare("open")
    client.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    client.bind("dlx", "fanout", "open")
    client.bind("dlx", "fanout", "full")
    client.declare("a", {**AT_LEAST_ONCE, "x-dead-letter-exchange": "dlx"})
    client.publish("a", b"m")
    reject_one(client, "a")
    for _ in range(3):
        tick(client)
    assert client.bodies("open") == [b"m"]
    assert client.broker.vhost.queues["a"].backing.unacked == 1, "the other copy is still owed"
    client.peer.call(1, Queue.Delete(queue="a"))
    tick(client)


def test_at_least_once_asks_again_for_some_at_a_time_and_goes_on_as_long_as_they_are_taken(client):
    client.declare("target", {"x-overflow": "reject-publish"}, durable=False)
    client.broker.policies.set("p", "^target$", "queues", 0, {"max-length": 0})
    client.declare("a", {**AT_LEAST_ONCE, **dead_letters_to("target")}, durable=False)
    client.feed((method(1, Basic.Publish(routing_key="a")) + content(1, b"m")) * 3_000)
    client.peer.feed(method(1, Basic.Consume(queue="a")))
    client.feed(method(1, Basic.Nack(delivery_tag=0, multiple=True, requeue=False)))
    target = client.broker.vhost.queues["target"]
    assert target.published == 3_000
    tick(client)
    assert target.published == 4_024
    client.broker.policies.clear("p")
    tick(client)
    assert client.ready("target") == 3_000
    assert client.broker.vhost.queues["a"].backing.unacked == 0


def test_at_least_once_ends_with_the_dead_letter_exchange(client):
    client.declare("a", {"x-overflow": "reject-publish"})
    client.broker.policies.set(
        "p",
        "^a$",
        "queues",
        0,
        {"dead-letter-exchange": "", "dead-letter-routing-key": "t", "dead-letter-strategy": "at-least-once"},
    )
    client.publish("a", b"m")
    reject_one(client, "a")
    assert client.broker.vhost.queues["a"].backing.unacked == 1
    client.broker.policies.clear("p")
    tick(client)
    assert client.broker.vhost.queues["a"].backing.unacked == 0


def test_at_least_once_keeps_its_message_over_a_restart():
    old = SansIOBroker()
    client = SmallClient(old)
    client.declare("a", {**AT_LEAST_ONCE, **dead_letters_to("target")})
    client.publish("a", b"m")
    reject_one(client, "a")
    after = SansIOBroker(disk=old.stop(), definitions=old.definitions, time=old.time)
    again = SmallClient(after)
    again.declare("target")
    assert again.bodies("a") == [b"m"]
    assert not after.log.faults


def test_one_letter_that_cannot_be_read_does_not_keep_the_others_from_their_targets(client):
    client.declare("target")
    client.declare("a", {"x-message-ttl": 10, **dead_letters_to("target")})
    for number in range(3):
        client.publish("a", b"%d" % number)
    client.broker.advance(20)
    assert client.bodies("target") == [b"0", b"1", b"2"]
    assert not [one for one in client.peer.output() if one.type == METHOD]
    assert decode_table(encode_table({}), 0)[0] == {}
