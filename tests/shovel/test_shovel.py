"""A shovel between two daemons: nothing is lost, the order is kept, and what may come twice is counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from broker_process import BrokerAddress, BrokerProcess
from rabbitpy_broker.shovel.peer import ChannelUser, Peer, parse_url
from rabbitpy_broker.shovel.shovel import Pace, Run, Shovel, ShovelError, Tally, Target, queue_at, to_publish
from rabbitpy_broker.wire.properties import HEADERS, USER_ID
from support import eventually

pytestmark = pytest.mark.own


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    one, other = (BrokerProcess(tmp_path_factory.mktemp(name)).start() for name in ("source", "target"))
    yield one, other
    one.stop()
    other.stop()


@pytest.fixture
def two(pair: tuple[BrokerProcess, BrokerProcess]) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Source and target, the same for all tests; what a test has made is gone after it."""
    yield pair
    for broker in pair:
        channel = channel_of(broker)
        for queue in ("q", "a", "b", "other"):
            channel.queue_delete(queue)
        channel.exchange_delete("x")
    while OPEN:
        connection = OPEN.pop()
        if connection.is_open:
            connection.close()


OPEN: list[pika.BlockingConnection] = []


def channel_of(broker: BrokerAddress) -> Any:
    OPEN.append(pika.BlockingConnection(broker.parameters()))
    return OPEN[-1].channel()


def fill(broker: BrokerAddress, queue: str, count: int, size: int = 4, **arguments: Any) -> None:
    channel = channel_of(broker)
    channel.queue_declare(queue, durable=True, arguments=arguments or None)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, str(number).encode().ljust(size), pika.BasicProperties(delivery_mode=2))
    channel.connection.close()


def drained(broker: BrokerAddress, queue: str) -> list[Any]:
    """All of a queue: (method, properties, body)."""
    channel = channel_of(broker)
    found = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            break
        found.append((method, properties, body))
    channel.connection.close()
    return found


def ready(broker: BrokerAddress, queue: str) -> int:
    channel = channel_of(broker)
    count = channel.queue_declare(queue, passive=True).method.message_count
    channel.connection.close()
    return int(count)


def shovel(source: BrokerAddress, target: BrokerAddress, queue: str = "q", **options: Any) -> Shovel:
    return Shovel(parse_url(source.url), queue, Target(parse_url(target.url), queue=queue), **options)


async def test_a_connection_outlives_a_question_that_nobody_waits_for_any_more(two: tuple[BrokerProcess, BrokerProcess]):
    """A run that ends while it asks how long the source is has its acks taken all the same."""
    source, _ = two
    fill(source, "q", 3)
    peer = await Peer.connect(parse_url(source.url), "test")
    channel = await peer.channel(ChannelUser())
    asked = asyncio.create_task(queue_at(channel, "q"))
    await asyncio.sleep(0)
    asked.cancel()
    assert (await queue_at(channel, "q")).message_count == 3
    assert asked.cancelled()
    await peer.close()
    assert not peer.is_broken


def test_everything_of_a_message_is_kept(two: tuple[BrokerProcess, BrokerProcess]):
    source, target = two
    channel = channel_of(source)
    channel.exchange_declare("x", "topic")
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "x", "#")
    headers = {"CC": ["other"], "n": 1, "list": [1, "a", {"b": None}], "x-death": [{"count": 1, "queue": "before"}]}
    sent = pika.BasicProperties(
        "text/plain", "gzip", headers, 2, 7, "corr", "reply", "600000", "id-1", 1_700_000_000, "kind", "guest", "app", ""
    )
    channel.basic_publish("x", "orders.new", b"\x00body" * 60_000, sent)  # several frames
    channel.basic_publish("x", "orders.empty", b"", sent)
    fill(target, "q", 0)
    channel_of(target).queue_declare("other")
    eventually(lambda: ready(source, "q") == 2)
    tally = asyncio.run(shovel(source, target).run())
    assert (tally.moved, tally.doubtful, tally.tries) == (2, 0, 1)
    got = drained(target, "q")
    assert [(one[0].routing_key, one[2]) for one in got] == [("orders.new", b"\x00body" * 60_000), ("orders.empty", b"")]
    assert [one[1] for one in got] == [sent, sent]
    assert ready(target, "other") == 0, "CC leads nowhere"
    assert ready(source, "q") == 0
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as gone:
        channel_of(target).exchange_declare(got[0][0].exchange, passive=True)
    assert gone.value.reply_code == 404


def test_the_order_is_kept_and_priorities_are(two: tuple[BrokerProcess, BrokerProcess]):
    source, target = two
    fill(source, "q", 1_500)
    fill(target, "q", 0)
    assert asyncio.run(shovel(source, target, prefetch=100).run()).moved == 1_500
    assert [int(one[2]) for one in drained(target, "q")] == list(range(1_500))


def test_what_is_published_meanwhile_goes_too(two: tuple[BrokerProcess, BrokerProcess]):
    source, target = two
    fill(source, "q", 50)
    fill(target, "q", 0)

    async def both() -> Tally:
        moving = shovel(source, target, forever=True)
        running = asyncio.ensure_future(moving.run())
        await asyncio.to_thread(eventually, lambda: moving.tally.moved == 50)
        await asyncio.to_thread(fill, source, "q", 70)
        await asyncio.to_thread(eventually, lambda: moving.tally.moved == 120)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return moving.tally

    assert asyncio.run(both()).moved == 120
    assert [int(one[2]) for one in drained(target, "q")] == [*range(50), *range(70)]


@pytest.mark.parametrize("killed", ["source", "target"])
def test_a_kill_of_either_side_loses_nothing(two: tuple[BrokerProcess, BrokerProcess], killed: str):
    source, target = two
    fill(source, "q", 2_000, 200)
    fill(target, "q", 0)
    victim = source if killed == "source" else target
    moving = shovel(source, target, prefetch=50, rate=8_000)
    outcome: list[Tally] = []
    running = threading.Thread(target=lambda: outcome.append(asyncio.run(moving.run())))
    running.start()
    eventually(lambda: moving.tally.moved > 500, 20)
    port = victim.port
    victim.crash()
    victim.listen = f"127.0.0.1:{port}"
    victim.start()
    running.join(60)
    assert outcome, moving.tally.reason
    tally = outcome[0]
    numbers = [int(one[2]) for one in drained(target, "q")]
    assert sorted(set(numbers)) == list(range(2_000)), "nothing is missing"
    first_seen = list(dict.fromkeys(numbers))
    assert first_seen == sorted(first_seen), "nothing overtakes"
    # A broker that is killed may forget the acks of the last seconds; what the target has confirmed is known.
    assert len(numbers) - 2_000 <= tally.doubtful <= (2_000 if killed == "source" else 50), "what came twice is counted"
    assert tally.tries > 1


def test_what_the_target_refuses_stays(two: tuple[BrokerProcess, BrokerProcess]):
    source, target = two
    fill(source, "q", 20)
    fill(target, "q", 0, **{"x-max-length": 5, "x-overflow": "reject-publish"})
    with pytest.raises(ShovelError, match=r"nothing has moved for 0\.3 s: the target refuses a message"):
        asyncio.run(shovel(source, target, prefetch=1, patience_s=0.3).run())
    eventually(lambda: ready(source, "q") == 15)
    assert [int(one[2]) for one in drained(target, "q")] == [0, 1, 2, 3, 4]
    assert [int(one[2]) for one in drained(source, "q")] == list(range(5, 20))


def test_a_queue_that_is_not_there_ends_it_at_once(two: tuple[BrokerProcess, BrokerProcess]):
    source, target = two
    fill(source, "q", 1)
    with pytest.raises(ShovelError, match="NOT_FOUND - no queue 'q' in vhost '/'"):
        asyncio.run(shovel(source, target).run())
    assert ready(source, "q") == 1


def test_to_an_exchange_each_goes_by_its_own_key(two: tuple[BrokerProcess, BrokerProcess]):
    source, target = two
    channel = channel_of(source)
    channel.queue_declare("q", durable=True)
    channel.exchange_declare("x", "fanout")
    channel.queue_bind("q", "x")
    for key in ("a", "b"):
        channel.basic_publish("x", key, key.encode())
    there = channel_of(target)
    for key in ("a", "b"):
        there.queue_declare(key)
        there.queue_bind(key, "amq.topic", key)
    moving = Shovel(parse_url(source.url), "q", Target(parse_url(target.url), exchange="amq.topic"))
    assert asyncio.run(moving.run()).moved == 2
    assert [drained(target, key)[0][2] for key in ("a", "b")] == [b"a", b"b"]


def test_another_users_id_is_taken_out_and_what_a_broker_put_in():
    from pamqp.commands import Basic
    from pamqp.header import ContentHeader

    def payload(**properties: Any) -> bytes:
        return bytes(ContentHeader(0, 5, Basic.Properties(**properties)).marshal())

    mine = payload(user_id="me", headers={"n": 1})
    assert to_publish(mine, "me") == mine
    assert to_publish(mine, "somebody") == payload(headers={"n": 1})
    counted = payload(headers={"x-delivery-count": 3, "n": 1, "x-stream-offset": 9}, app_id="a")
    assert to_publish(counted, "me") == payload(headers={"n": 1}, app_id="a")
    assert int(USER_ID) != int(HEADERS)


def test_a_pace_lets_a_tenth_of_a_second_through_at_once(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("rabbitpy_broker.shovel.shovel.time.monotonic", lambda: now[0])
    pace = Pace(1_000)
    now[0] += 10.0
    taken = 0
    while pace.wait_s() == 0:
        taken += 1
    assert taken == 100
    wait = pace.wait_s()
    assert 0 < wait <= 0.001
    now[0] += wait
    assert pace.wait_s() == 0
    assert all(Pace(0).wait_s() == 0 for _ in range(1_000))


@pytest.mark.parametrize(
    ("text", "vhost", "port"),
    [("amqp://h", "/", 5672), ("amqp://u:p%40@h:1/%2Fa%2Fb", "/a/b", 1), ("amqps://h/v?verify=verify_none", "v", 5671)],
)
def test_urls(text: str, vhost: str, port: int):
    url = parse_url(text)
    assert (url.vhost, url.port) == (vhost, port) and url.password not in str(url).replace("guest@", "")
    with pytest.raises(ValueError, match="not an AMQP URL"):
        parse_url("http://h")


def test_a_target_that_takes_nothing_stops_the_source_from_being_read(two: tuple[BrokerProcess, BrokerProcess], monkeypatch: Any):
    """What is held stays within bounds, however large messages are and however many a prefetch lets through."""
    source, target = two
    fill(source, "q", 40, 100_000)
    fill(target, "q", 0)
    monkeypatch.setattr("rabbitpy_broker.shovel.shovel.BYTES_HELD", 300_000)
    held: list[int] = []
    take = Run.take

    def watched(self: Run, tag: int, address: bytes, header: bytes, body: bytes) -> None:
        take(self, tag, address, header, body)
        held.append(self._bytes)

    monkeypatch.setattr(Run, "take", watched)
    assert asyncio.run(shovel(source, target).run()).moved == 40
    assert max(held) >= 300_000, "the bound was reached"
    assert max(held) < 300_000 + 5 * 131_072 + 256 * 1024, "and held, but for what was read already"
    assert [int(one[2]) for one in drained(target, "q")] == list(range(40))
