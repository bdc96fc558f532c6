"""A stream's copy between two daemons: in order, nothing twice, and begun again where it was, by what the target has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from broker_process import BrokerAddress, BrokerProcess
from content_headers import payload_of
from rabbitpy_broker.shovel import stream_copy
from rabbitpy_broker.shovel.peer import PeerClosed, Url, parse_url
from rabbitpy_broker.shovel.shovel import ShovelError
from rabbitpy_broker.shovel.stream_copy import Places, StreamCopy, StreamMessage, StreamRun
from support import eventually

pytestmark = pytest.mark.own


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own brokers' counts are exact, so that a stream with messages is waited for in any case."""
    for name in ("EMPTY_S", "QUIET_S", "SETTLED_S"):
        monkeypatch.setattr(stream_copy, name, 0.1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    one, other = (BrokerProcess(tmp_path_factory.mktemp(name)).start() for name in ("source", "target"))
    yield one, other
    one.stop()
    other.stop()


@pytest.fixture
def two(pair: tuple[BrokerProcess, BrokerProcess]) -> tuple[BrokerProcess, BrokerProcess]:
    """Source and target, each with an empty stream."""
    for broker in pair:
        declare(broker)
    return pair


def declare(broker: BrokerAddress, **arguments: Any) -> None:
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.queue_delete("log")
        channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream", **arguments})
        channel.queue_bind("log", "amq.topic", "#")


def publish(broker: BrokerAddress, numbers: range, size: int = 4) -> None:
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in numbers:
            properties = pika.BasicProperties(delivery_mode=2, message_id=str(number), headers={"n": number})
            channel.basic_publish("amq.topic", f"key.{number}", str(number).encode().ljust(size), properties)


def content(broker: BrokerAddress) -> list[tuple[int, int, str]]:
    """Of each message of the stream: offset, number, routing key."""
    found = []
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=500)
        for method, properties, body in channel.consume("log", arguments={"x-stream-offset": "first"}, inactivity_timeout=1.0):
            if method is None:
                break
            assert properties.message_id == body.decode().strip()
            assert properties.headers["n"] == int(body)
            found.append((properties.headers["x-stream-offset"], int(body), method.routing_key))
            channel.basic_ack(method.delivery_tag)
    return found


def first_offset(broker: BrokerAddress) -> int:
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        for _, properties, _ in channel.consume("log", arguments={"x-stream-offset": "first"}):
            return int(properties.headers["x-stream-offset"])
    raise AssertionError("consume ends with a message")


class Copying:
    """Copies with the places that earlier copies have kept."""

    def __init__(self, two: tuple[BrokerProcess, BrokerProcess], **options: Any) -> None:
        self.two = two
        self.options = options
        self.places: Places = []

    def copy(self, places: Places | None = None) -> StreamCopy:
        source, target = self.two
        kept = self.places if places is None else places
        return StreamCopy(parse_url(source.url), "log", parse_url(target.url), kept, self._keep, **self.options)

    def _keep(self, places: Places) -> None:
        self.places = [list(place) for place in places]

    def run(self, places: Places | None = None) -> tuple[int, bool, str]:
        """How many were copied, and what the verification says."""
        made = self.copy(places)

        async def work() -> tuple[bool, str]:
            await made.run()
            return await made.verify()

        verified, note = asyncio.run(work())
        return made.tally.moved, verified, note


def expected(numbers: range, shift: int = 0) -> list[tuple[int, int, str]]:
    return [(number - shift, number, f"key.{number}") for number in numbers]


def test_a_stream_is_copied_in_order_and_again_from_where_it_was(two: tuple[BrokerProcess, BrokerProcess]):
    source, target = two
    publish(source, range(1_200))
    copying = Copying(two)
    assert copying.run() == (1_200, True, "1200 messages, offsets as at the source, 9 compared")
    assert copying.run() == (0, True, "1200 messages, offsets as at the source, 9 compared")
    publish(source, range(1_200, 1_300))
    assert copying.run([])[:2] == (100, True)  # without its state: the source's first offset is 0
    assert content(target) == content(source) == expected(range(1_300))


def test_an_empty_stream_is_a_copy_of_an_empty_stream(two: tuple[BrokerProcess, BrokerProcess]):
    assert Copying(two).run() == (0, True, "empty")


@pytest.mark.parametrize("killed", ["source", "target"])
def test_a_kill_of_either_side_neither_loses_nor_doubles(two: tuple[BrokerProcess, BrokerProcess], killed: str):
    source, target = two
    publish(source, range(1_000))
    made = Copying(two, rate=800.0).copy()
    copying = threading.Thread(target=asyncio.run, args=(made.run(),))
    copying.start()
    eventually(lambda: made.tally.moved > 100)
    victim = source if killed == "source" else target
    port = victim.port
    victim.crash()
    victim.listen = f"127.0.0.1:{port}"
    victim.start()
    copying.join(60)
    assert not copying.is_alive()
    assert made.tally.tries > 1
    assert (made.tally.moved, made.tally.doubtful) == (1_000, 0)
    assert content(target) == expected(range(1_000))


def test_where_the_source_has_lost_its_oldest_the_offsets_differ_and_are_kept(two: tuple[BrokerProcess, BrokerProcess]):
    source, target = two
    declare(source, **{"x-max-length-bytes": 100_000, "x-stream-max-segment-size-bytes": 50_000})
    published = 0

    def has_lost_some() -> int:
        nonlocal published
        publish(source, range(published, published + 100), 1_000)
        published += 100
        return first_offset(source)

    first = eventually(has_lost_some, interval=0.2)  # a segment is written about once a second
    copying = Copying(two)
    count = published - first
    assert copying.run() == (count, True, f"{count} messages, offsets {first} less than at the source, 9 compared")
    assert copying.places == [[0, first]]
    publish(source, range(published, published + 10), 1_000)
    with pytest.raises(ShovelError, match="without the state file of the run that brought them nobody knows which"):
        copying.run([])
    assert copying.run()[:2] == (10, True)
    assert content(target) == expected(range(first, published + 10), first)


def test_a_stream_that_is_published_to_at_the_target_is_left_alone(two: tuple[BrokerProcess, BrokerProcess]):
    source, target = two
    publish(source, range(10))
    copying = Copying(two)
    copying.run()
    publish(source, range(10, 20))
    publish(target, range(100, 101))
    with pytest.raises(ShovelError, match="offset 10 at the target is not 10 of the source: is the stream published to there"):
        copying.run()
    assert len(content(target)) == 11


def test_a_stream_that_is_not_there_ends_it_at_once(two: tuple[BrokerProcess, BrokerProcess]):
    with pika.BlockingConnection(two[1].parameters()) as connection:
        connection.channel().queue_delete("log")
    with pytest.raises(ShovelError, match="404"):
        Copying(two).run()


def test_an_offset_that_does_not_come_ends_the_try():
    """Nothing behind it goes: it may be the broker's fault."""
    url = parse_url("amqp://127.0.0.1")
    copy = StreamCopy(url, "log", url, [[0, 3], [4, 9]], lambda _places: None)
    assert [copy.source_offset(offset) for offset in (0, 3, 4, 5)] == [3, 6, 9, 10]

    async def take() -> list[int]:
        run = StreamRun(copy, 5, 20)
        for offset in (4, 5, 6, 9, 10):
            run.take(offset, b"\x00\x01k", payload_of(headers={"x-stream-offset": offset}), b"")
        with pytest.raises(PeerClosed, match="offset 7 of the source has not come, but 9"):
            await run.ended
        return [tag for tag, *_ in run._waiting]

    assert asyncio.run(take()) == [5, 6]


def test_a_gap_in_the_sources_offsets_is_kept_before_the_message_behind_it_goes(two: tuple[BrokerProcess, BrokerProcess]):
    """As where retention has overtaken the copy: the target has the source's first messages, and the source only later ones."""
    source, target = two
    publish(source, range(20))
    publish(target, range(5))
    copying = Copying(two)
    real_read = stream_copy.read

    async def with_a_gap(url: Url, stream: str, offset: str | int, size: int = 0) -> list[StreamMessage]:
        found = await real_read(url, stream, offset, size)
        return await real_read(url, stream, 8, size) if url.port == source.port and offset == 5 else found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream_copy, "read", with_a_gap)
        assert copying.run()[0] == 12
    assert copying.places == [[0, 0], [5, 8]]
    assert [number for _, number, _ in content(target)] == [*range(5), *range(8, 20)]
    assert copying.run()[:2] == (0, True)


def test_a_queue_is_no_stream(two: tuple[BrokerProcess, BrokerProcess]):
    with pika.BlockingConnection(two[1].parameters()) as connection:
        channel = connection.channel()
        channel.queue_delete("log")
        channel.queue_declare("log", durable=True)
    with pytest.raises(ShovelError, match="not a stream at both ends: 406"):
        Copying(two).run()
