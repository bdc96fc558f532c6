"""Super streams: several streams behind one exchange; offsets that are kept by name; what lists say of streams."""

from __future__ import annotations

import json
from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming
from behaviour.test_streams import Reader, bodies, declare_as, publish
from broker_process import CtlFailed
from rabbitpy_broker.routing.super_stream import SEED, murmur3
from support import eventually

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]
Ctl = Callable[..., str]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return confirming(connection)


@pytest.fixture
def made(ctl: Ctl, new_name: Callable[[str], str]) -> Callable[..., str]:
    """`made("--partitions", "2")` adds a super stream; its partitions are deleted by who made them."""

    def make(*options: str) -> str:
        name = new_name("super")
        ctl("add_super_stream", name, *options)
        return name

    return make


def rows(ctl: Ctl, *command: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(ctl("--formatter", "json", *command))
    return found


def test_messages_with_a_key_go_to_the_partition_of_its_hash(
    channel: BlockingChannel, connect: Connect, ctl: Ctl, made: Ctl
) -> None:
    name = made("--partitions", "3", "--max-age", "1h", "--max-length-bytes", "1000000")
    keys = [f"key {number}" for number in range(30)]
    for key in keys:
        channel.basic_publish(name, key, key.encode(), mandatory=True)
    for number in range(3):
        expected = [key.encode() for key in keys if murmur3(key.encode(), SEED) % 3 == number]
        reader = Reader(connect(), f"{name}-{number}", x_stream_offset="first").wait(len(expected))
        assert reader.bodies == expected
    declare_as(channel, f"{name}-0", x_max_age="1h", x_max_length_bytes=1_000_000)
    bound = [row for row in rows(ctl, "list_bindings") if row["source_name"] == name]
    assert [(row["destination_name"], row["routing_key"], row["arguments"]) for row in bound] == [
        (f"{name}-{number}", str(number), [["x-stream-partition-order", "long", number]]) for number in range(3)
    ]
    ctl("delete_super_stream", name)
    left = [row["name"] for row in rows(ctl, "list_queues")] + [row["name"] for row in rows(ctl, "list_exchanges")]
    assert not [one for one in left if str(one).startswith(name)]


def test_partitions_may_have_keys(channel: BlockingChannel, connect: Connect, ctl: Ctl, made: Ctl) -> None:
    name = made("--routing-keys", "amer, emea")
    channel.basic_publish(name, "emea", b"one", mandatory=True)
    assert Reader(connect(), f"{name}-emea", x_stream_offset="first").wait(1).bodies == [b"one"]
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(name, "apac", b"two", mandatory=True)
    ctl("delete_super_stream", name)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--partitions", "2", "--routing-keys", "a,b"), "not both"),
        (("--partitions", "-1"), "must be greater than 0"),
        (("--routing-keys", "a,a"), "exists already"),
        (("--max-age", "1w"), "invalid_max_age"),
    ],
)
def test_what_makes_no_super_stream_is_refused(ctl: Ctl, options: tuple[str, ...], why: str) -> None:
    with pytest.raises(CtlFailed, match=why):
        ctl("add_super_stream", "refused", *options)
    assert "refused" not in [row["name"] for row in rows(ctl, "list_exchanges")]


def test_nothing_is_made_when_a_name_is_taken(channel: BlockingChannel, ctl: Ctl, new_name: Callable[[str], str]) -> None:
    name = new_name("super")
    taken = f"{name}-1"
    channel.queue_declare(taken, durable=True)
    with pytest.raises(CtlFailed, match="exists already"):
        ctl("add_super_stream", name)
    assert [row["name"] for row in rows(ctl, "list_queues") if str(row["name"]).startswith(name)] == [taken]
    channel.queue_delete(taken)
    with pytest.raises(CtlFailed, match="There is no super stream"):
        ctl("delete_super_stream", name)


def test_offsets_are_kept_by_name(channel: BlockingChannel, ctl: Ctl, new_name: Callable[[str], str]) -> None:
    name = new_name("stream")
    declare_as(channel, name)
    publish(channel, name, *bodies(10))
    ctl("store_offset", "report", name, "3")
    ctl("store_offset", "report", name, "6")
    ctl("store_offset", "other", name, "100")
    assert ctl("-q", "query_offset", "report", name).strip() == "6"
    kept = [row for row in rows(ctl, "list_stream_offsets") if row["stream"] == name]
    assert kept == [
        {"stream": name, "reference": "other", "offset": 100, "offset_lag": 0},
        {"stream": name, "reference": "report", "offset": 6, "offset_lag": 3},
    ]
    assert "stream-offset" not in ctl("list_parameters") + ctl("export_definitions", "-")
    ctl("delete_offset", "other", name)
    with pytest.raises(CtlFailed, match="There is no offset 'other'"):
        ctl("delete_offset", "other", name)
    with pytest.raises(CtlFailed, match="a number from 0"):
        ctl("store_offset", "report", name, "last")
    with pytest.raises(CtlFailed, match="There is no stream"):
        ctl("store_offset", "report", "no such", "1")
    channel.queue_delete(name)
    declare_as(channel, name)
    with pytest.raises(CtlFailed, match="There is no offset"):
        ctl("query_offset", "report", name)


def test_lists_say_how_far_a_stream_and_its_consumers_are(
    channel: BlockingChannel, connect: Connect, ctl: Ctl, new_name: Callable[[str], str]
) -> None:
    name = new_name("stream")
    declare_as(channel, name)
    publish(channel, name, *bodies(10))
    reader = Reader(connect(), name, prefetch=4, x_stream_offset="first").wait(4)
    columns = ("type", "messages", "first_offset", "committed_offset", "readers", "members", "state")
    found = [row for row in rows(ctl, "list_queues", "name", *columns) if row.pop("name") == name]
    assert [list(row.values())[:5] for row in found] == [["stream", 10, 0, 9, 1]]
    assert found[0]["members"] != ""
    consumers = [row for row in rows(ctl, "list_stream_consumers") if row["stream"] == name]
    assert consumers[0].pop("connection_pid")
    assert consumers == [
        {"stream": name, "subscription_id": reader.tag, "messages_consumed": 4, "offset": 3, "offset_lag": 6, "credits": 0}
    ]
    reader.channel.basic_ack(0, multiple=True)
    reader.wait(8)
    eventually(lambda: rows(ctl, "list_stream_consumers", "stream", "offset_lag").count({"stream": name, "offset_lag": 2}) == 1)
