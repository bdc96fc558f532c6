"""The event journal of a daemon: what its records say about messages, over stops and kills; see events/layout.py."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, wait_until
from broker_process import BrokerProcess
from event_records import Record, Segment, left_over, segments
from rabbitpy_broker.events import layout
from support import eventually

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, {"event_journal": "on"})
    process.start()
    yield process
    process.stop()


def folder(broker: BrokerProcess) -> Path:
    return broker.data_dir / "events"


def all_records(broker: BrokerProcess) -> list[Record]:
    return [record for segment in segments(folder(broker)) for record in segment.records]


def recorded(broker: BrokerProcess, predicate: Callable[[list[Record]], bool]) -> list[Record]:
    """All records, once they satisfy the predicate."""
    return eventually(lambda: found if predicate(found := all_records(broker)) else None)


def has(*events: str) -> Callable[[list[Record]], bool]:
    """So many of each of these events at least, in any order."""
    wanted = Counter(events)
    return lambda records: not wanted - Counter(record.what for record in records)


def queue_id(found: list[Segment], name: str) -> int:
    """Of the newest segment."""
    return next(one["id"] for one in found[-1].names.values() if one["kind"] == "queue" and one["name"] == name)


def of(records: list[Record], what: str) -> list[Record]:
    return [record for record in records if record.what == what]


def end(broker: BrokerProcess, channel: BlockingChannel, kill: bool) -> None:
    """Stops or kills the broker; the channel's connection ends with it."""
    if kill:
        broker.crash()
    else:
        broker.stop()
    with pytest.raises(pika.exceptions.AMQPError):
        while True:
            channel.connection.process_data_events(1)


def test_a_message_that_waits_is_published_routed_confirmed_delivered_and_acked(recording: BrokerProcess):
    with pika.BlockingConnection(recording.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"0123456789", PERSISTENT, mandatory=True)
        inbox = Inbox(channel, "q")
        inbox.wait_for(1)
        inbox.ack(1)
        records = recorded(recording, has("publish", "route", "confirm", "deliver", "ack"))
    names = segments(folder(recording))[-1].names
    publish, route, confirm, deliver, ack = (
        of(records, what)[0] for what in ("publish", "route", "confirm", "deliver", "ack")
    )
    assert names[publish.queue] == {"id": publish.queue, "kind": "exchange", "vhost": "/", "name": ""}
    assert names[route.queue]["name"] == "q" and names[route.queue]["durable"]
    assert names[publish.connection]["user"] == "guest"
    assert publish.size == route.size == deliver.size == 10
    assert publish.seq_id == route.aux == 1, "the publish number"
    assert publish.aux == confirm.seq_id == confirm.aux == 1, "the publish_seqno"
    assert publish.has(layout.PERSISTENT, layout.MANDATORY) and route.has(layout.PERSISTENT, layout.KEPT)
    assert route.seq_id == deliver.seq_id == ack.seq_id
    assert (publish.channel, publish.opening) == (confirm.channel, confirm.opening) == (1, 1)
    assert not deliver.has(layout.REDELIVERED) and not deliver.has(layout.AT_ONCE)
    assert publish.time_ns <= route.time_ns <= deliver.time_ns <= ack.time_ns


def test_a_message_that_finds_a_consumer_needs_no_route(recording: BrokerProcess):
    with pika.BlockingConnection(recording.parameters()) as connection:
        channel = connection.channel()
        for queue in ("acked", "auto"):
            channel.queue_declare(queue, durable=True)
        acked, auto = Inbox(channel, "acked"), Inbox(channel, "auto", auto_ack=True)
        for queue in ("acked", "auto"):
            channel.basic_publish("", queue, b"x", PERSISTENT)
        acked.wait_for(1)
        auto.wait_for(1)
        acked.ack(1)
        records = recorded(recording, has("deliver", "deliver", "ack"))
    by_ack, without = of(records, "deliver")
    assert not of(records, "route")
    assert by_ack.has(layout.AT_ONCE, layout.KEPT, layout.PERSISTENT) and by_ack.seq_id == of(records, "ack")[0].seq_id
    assert without.has(layout.AT_ONCE, layout.NO_ACK) and without.seq_id == -1
    assert [by_ack.aux, without.aux] == [record.seq_id for record in of(records, "publish")]


def test_what_goes_to_no_queue(recording: BrokerProcess):
    with pika.BlockingConnection(recording.parameters()) as connection:
        channel = connection.channel()
        channel.basic_publish("", "absent", b"dropped")
        channel.basic_publish("", "absent", b"returned", mandatory=True)
        records = recorded(recording, has("drop", "return"))
    assert [record.aux for record in of(records, "drop") + of(records, "return")] == [1, 2], "publish numbers"
    assert of(records, "drop")[0].why == of(records, "return")[0].why == "unroutable"


@pytest.mark.parametrize(
    ("arguments", "act", "event", "reason"),
    [
        ({}, "reject", "nack", ""),
        ({"x-message-ttl": 1}, "wait", "expire", "expired"),
        ({"x-max-length": 0}, "wait", "drop", "maxlen"),
        ({}, "purge", "purge", ""),
        ({}, "delete", "purge", "deleted"),
    ],
)
@pytest.mark.parametrize("letters", [False, True])
def test_every_end_of_a_message(
    recording: BrokerProcess, arguments: dict[str, Any], act: str, event: str, reason: str, letters: bool
):
    if letters:
        arguments = {**arguments, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    with pika.BlockingConnection(recording.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare("dead")
        channel.queue_declare("q", arguments=arguments)
        channel.basic_publish("", "q", b"x")
        if act == "reject":
            method, _, _ = channel.basic_get("q")
            channel.basic_reject(method.delivery_tag, requeue=False)
        elif act == "purge":
            channel.queue_purge("q")
        elif act == "delete":
            channel.queue_delete("q")
        dies = letters and act in {"reject", "wait"}
        records = recorded(recording, has(event, *(["dead-letter"] if dies else [])))
        ends = [record for record in records if record.what == event]
        assert len(ends) == 1 and ends[0].why == reason and ends[0].aux == (1 if dies or event == "purge" else 0)
        if dies:
            letter = of(records, "dead-letter")[0]
            copy = of(records, "publish")[1]
            assert letter.aux == copy.seq_id and copy.connection == 0 and letter.seq_id == of(records, "route")[0].seq_id
            assert letter.why == (reason or "rejected")
            assert of(records, "route")[1].aux == copy.seq_id, "the copy is routed"


def test_requeue_get_and_delivery_limit(recording: BrokerProcess):
    with pika.BlockingConnection(recording.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare("q", arguments={"x-delivery-limit": 1})
        channel.basic_publish("", "q", b"x")
        for _ in range(2):
            method, _, _ = channel.basic_get("q")
            channel.basic_nack(method.delivery_tag)
        channel.basic_publish("", "q", b"y")
        channel.basic_get("q", auto_ack=True)
        records = recorded(recording, has("requeue", "drop", "ack"))
    delivers = of(records, "deliver")
    assert [record.has(layout.REDELIVERED) for record in delivers] == [False, True, False]
    assert all(record.has(layout.GET) for record in delivers)
    assert of(records, "drop")[0].why == "delivery_limit"
    assert of(records, "ack")[0].seq_id == delivers[2].seq_id != delivers[0].seq_id


def test_refused_and_duplicate_publishes(recording: BrokerProcess):
    with pika.BlockingConnection(recording.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        channel.queue_declare("once", arguments={"x-message-deduplication": True})
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "full", b"x")
        for _ in range(2):
            channel.basic_publish("", "once", b"y", pika.BasicProperties(headers={"x-deduplication-header": "one"}))
        records = recorded(recording, has("drop", "drop", "confirm", "confirm", "confirm"))
    assert [record.why for record in of(records, "drop")] == ["refused", "duplicate"]
    assert [record.why for record in of(records, "confirm")] == ["refused", "", ""]
    assert [record.aux for record in of(records, "drop")] == [1, 3], "publish numbers"


def test_what_goes_to_a_stream_is_followed_no_further(recording: BrokerProcess):
    with pika.BlockingConnection(recording.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        channel.basic_publish("", "s", b"x")
        channel.basic_qos(prefetch_count=1)
        inbox = Inbox(channel, "s", arguments={"x-stream-offset": "first"})
        inbox.wait_for(1)
        inbox.ack(1)
        channel.queue_delete("s")
        records = recorded(recording, has("publish", "drop", "confirm", "purge"))
    assert [(record.why, record.aux) for record in of(records, "drop")] == [("stream", 1)]
    assert [record.what for record in records if record.what in ("route", "deliver", "ack")] == []


def test_a_delayed_message_comes_out_as_a_publish_of_its_own(recording: BrokerProcess):
    with pika.BlockingConnection(recording.parameters()) as connection:
        channel = connection.channel()
        channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
        channel.queue_declare("q")
        channel.queue_bind("q", "later")
        channel.basic_publish("later", "", b"x", pika.BasicProperties(headers={"x-delay": 1}))
        records = recorded(recording, has("route", "route", "dead-letter"))
    out = of(records, "dead-letter")[0]
    assert out.why == "delay_over"
    assert [record.aux for record in of(records, "route")] == [1, 2] == [1, out.aux]


@pytest.mark.parametrize("kill", [False, True])
def test_what_outlives_the_broker_is_recovered_in_the_journal(recording: BrokerProcess, kill: bool):
    """After a kill an ack may not have been in an epoch yet; then its message is back, and nothing else is."""
    channel = pika.BlockingConnection(recording.parameters()).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments={"x-max-priority": 2})
    for number in range(20):
        properties = pika.BasicProperties(delivery_mode=1 + number % 2, priority=number % 3)
        channel.basic_publish("", "q", b"%d" % number, properties)
    inbox = Inbox(channel, "q")
    inbox.wait_for(20)
    inbox.ack(1, 2, 20)
    recorded(recording, has("ack", "ack", "ack"))
    end(recording, channel, kill)
    before = segments(folder(recording))
    recording.start()
    recorded(recording, has("recover"))
    after = segments(folder(recording))
    assert [segment.header.boot for segment in after] == [1, 2]
    assert after[0].header.boot_id != after[1].header.boot_id
    assert after[0].header.machine_boot_id == after[1].header.machine_boot_id
    assert before[0].header.flags == (0 if kill else layout.CLOSED | layout.CLEAN)
    q = queue_id(before, "q")
    kept = {
        (record.priority, record.seq_id)
        for record in before[0].records
        if record.queue == q and record.what in {"route", "deliver"} and record.has(layout.KEPT)
    }
    ready, unacked = left_over(before[0].records)[q]
    recovered = {
        (record.priority, record.seq_id + at)
        for record in after[1].records
        if record.what == "recover"
        for at in range(record.aux)
    }
    left = (ready | unacked) & kept
    assert left <= recovered <= kept if kill else recovered == left < kept
    assert before[0].names[q]["store"] == after[1].names[queue_id(after, "q")]["store"]


def test_a_segment_is_closed_when_it_is_full_and_the_oldest_go(tmp_path: Path):
    config = {"event_journal": "on", "event_journal_segment_size": 4896, "event_journal_max_size": 30_000}
    broker = BrokerProcess(tmp_path, config)
    broker.start()
    try:
        with pika.BlockingConnection(broker.parameters()) as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            for _ in range(40):
                for _ in range(100):
                    channel.basic_publish("", "q", b"x")
                channel.queue_declare("q", passive=True)
                channel.queue_purge("q")
    finally:
        broker.stop()
    found = segments(folder(broker))
    numbers = [segment.header.segment for segment in found]
    assert numbers[0] > 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert all(segment.header.flags == layout.CLOSED for segment in found[:-1])
    assert found[-1].header.flags == layout.CLOSED | layout.CLEAN
    assert sum(file.stat().st_size for file in folder(broker).glob("*.events")) < 60_000
    for segment in found:
        assert {record.queue for record in segment.records} - {0} <= set(segment.names), "each can be read by itself"


def test_without_it_nothing_is_written_and_the_gap_is_told(tmp_path: Path):
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.stop()
    assert not folder(broker).exists()
    for journal in ("on", "off", "on", "on"):
        broker.config["event_journal"] = journal
        broker.start()
        broker.stop()
    flags = [segment.header.flags & layout.AFTER_GAP for segment in segments(folder(broker))]
    assert flags == [0, layout.AFTER_GAP, 0]


def test_a_folder_that_cannot_be_had_ends_the_start(tmp_path: Path):
    (tmp_path / "file").write_text("")
    config = {"event_journal": "on", "event_journal_dir": str(tmp_path / "file" / "events")}
    broker = BrokerProcess(tmp_path, config)
    with pytest.raises(AssertionError, match=r"(?s)ended with 2 .*event journal: "):
        broker.start()


def test_paging_is_recorded_state_by_state(tmp_path: Path):
    """A lazy queue pages everything out; each state is one that follows the one before."""
    broker = BrokerProcess(tmp_path, {"event_journal": "on"})
    broker.start()
    try:
        with pika.BlockingConnection(broker.parameters()) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True, arguments={"x-queue-mode": "lazy"})
            channel.confirm_delivery()
            for _ in range(200):
                channel.basic_publish("", "q", bytes(100), PERSISTENT)
            wait_until(lambda: bool(of(all_records(broker), "state")), channel)
            inbox = Inbox(channel, "q")
            inbox.wait_for(200)
            records = recorded(broker, has(*["deliver"] * 200))
    finally:
        broker.stop()
    by_place: dict[int, list[int]] = {}
    for record in records:
        if record.what == "state":
            by_place.setdefault(record.seq_id, [int(layout.ALPHA)]).append(record.state)
    assert by_place
    follows = {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 3), (3, 2)}
    for states in by_place.values():
        assert set(itertools.pairwise(states)) <= follows, states
        assert states[-1] == layout.ALPHA, "delivered with its body"


def test_a_killed_broker_leaves_no_record_that_is_half(recording: BrokerProcess):
    channel = pika.BlockingConnection(recording.parameters()).channel()
    channel.queue_declare("q")
    for _ in range(5000):
        channel.basic_publish("", "q", b"x")
    recorded(recording, has("publish"))
    end(recording, channel, kill=True)
    size = (folder(recording) / "00000001.events").stat().st_size
    assert (size - layout.HEADER_SIZE) % layout.RECORD_SIZE == 0
