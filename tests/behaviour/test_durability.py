"""What is there after a restart: confirmed persistent messages of durable queues, unchanged and in their order.

A crash here is SIGKILL: what the broker has handed to the operating system stays. That it syncs before it confirms is shown
by test_sync_before_confirm.py. Files are damaged by hand where a power cut or a bad disk would have done it.
"""

from __future__ import annotations

import datetime as dt
import struct
import subprocess
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, ready, take_all, take_all_flagged
from broker_process import BrokerProcess
from support import closes_channel, eventually
from wire_client import BODY, FRAME_END, HEADER, METHOD, method_payload

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]

PERSISTENT = pika.BasicProperties(delivery_mode=2)
TRANSIENT = pika.BasicProperties(delivery_mode=1)
EMBED_BELOW = 4096

either_end = pytest.mark.parametrize("end", ["stop", "crash"])


class Life:
    """A broker that ends and comes back; `channel` is a new one in confirm mode on the one that runs."""

    def __init__(self, broker: BrokerProcess, connect: Connect) -> None:
        self.broker = broker
        self.connect = connect
        self.channel = self.new_channel()

    def new_channel(self) -> BlockingChannel:
        return confirming(self.connect(to=self.broker))

    def comes_back_after(self, end: str, between: Callable[[Path], None] | None = None) -> BlockingChannel:
        if end == "crash":
            self.broker.crash()
        else:
            self.broker.stop()
        if between is not None:
            between(self.broker.data_dir)
        self.broker.start()
        self.channel = self.new_channel()
        return self.channel


@pytest.fixture
def life(own_broker: Callable[..., BrokerProcess], connect: Connect) -> Life:
    return Life(own_broker(), connect)


def body(number: int, size: int) -> bytes:
    """Octets that no other number has."""
    return struct.pack(">I", number) * (size // 4) + b"." * (size % 4)


def persist(channel: BlockingChannel, queue: str, *bodies: bytes) -> list[bytes]:
    for each in bodies:
        channel.basic_publish("", queue, each, PERSISTENT)
    return list(bodies)


SIZES = (0, 1, 100, EMBED_BELOW - 200, EMBED_BELOW - 1, EMBED_BELOW, EMBED_BELOW + 1, 50_000, 300_000)


# --- what stays ----------------------------------------------------------------------------------------------------------


@either_end
@pytest.mark.parametrize("arguments", [{}, {"x-queue-mode": "lazy"}], ids=["default", "lazy"])
def test_confirmed_persistent_messages_stay_in_order(life: Life, end: str, arguments: dict[str, Any]) -> None:
    life.channel.queue_declare("q", durable=True, arguments=arguments)
    bodies = persist(life.channel, "q", *(body(index, size) for index, size in enumerate(SIZES * 2)))
    channel = life.comes_back_after(end)
    assert ready(channel, "q") == len(bodies)
    assert take_all(channel, "q") == bodies


@either_end
def test_they_stay_over_any_number_of_restarts(life: Life, end: str) -> None:
    life.channel.queue_declare("q", durable=True)
    bodies: list[bytes] = []
    for number in range(4):
        bodies += persist(life.channel, "q", body(number, 10), body(number, 10_000))
        life.comes_back_after(end)
    life.comes_back_after("crash")
    assert take_all(life.channel, "q") == bodies


@either_end
@pytest.mark.parametrize("size", [0, 20, EMBED_BELOW + 20])
def test_exchange_routing_key_and_every_property_stay_as_they_were(life: Life, end: str, size: int) -> None:
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers={
            "text": "käse", "octets": b"\x00\xff", "number": -7, "big": 2**62, "yes": True, "nothing": None,
            "list": [1, "two", {"three": 3}], "table": {"inner": {"deep": "x" * 300}},
            "money": Decimal("12.34"), "time": dt.datetime(2021, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        },
        delivery_mode=2, priority=4, correlation_id="c-1", reply_to="somewhere", expiration="600000",
        message_id="m-1", timestamp=1_700_000_000, type="kind", user_id="guest", app_id="app", cluster_id="cluster",
    )  # fmt: skip
    life.channel.queue_declare("q", durable=True)
    life.channel.queue_bind("q", "amq.topic", "a.#")
    life.channel.basic_publish("amq.topic", "a.b.ö", b"x" * size, properties)
    _, before, _ = life.channel.basic_get("q")
    channel = life.comes_back_after(end)
    method, after, came = channel.basic_get("q")
    assert (method.exchange, method.routing_key, came) == ("amq.topic", "a.b.ö", b"x" * size)
    assert after == before
    assert (after.headers["table"], after.headers["money"]) == ({"inner": {"deep": "x" * 300}}, Decimal("12.34"))


@either_end
def test_message_in_several_queues_stays_in_each_that_has_not_acked_it(life: Life, end: str) -> None:
    large, small = body(1, 20_000), body(2, 20)
    queues = [f"q{index}" for index in range(5)]
    for queue in queues:
        life.channel.queue_declare(queue, durable=True)
        life.channel.queue_bind(queue, "amq.fanout")
    for each in (large, small):
        life.channel.basic_publish("amq.fanout", "", each, PERSISTENT)
    assert take_all(life.channel, queues.pop()) == [large, small]
    channel = life.comes_back_after(end)
    while queues:
        assert take_all(channel, queues.pop()) == [large, small]
        channel = life.comes_back_after(end)


@either_end
def test_queue_is_there_when_it_has_been_declared(life: Life, end: str) -> None:
    for number in range(20):
        life.channel.queue_declare(f"q{number}", durable=True)
    channel = life.comes_back_after(end)
    for number in range(20):
        assert ready(channel, f"q{number}") == 0
        persist(channel, f"q{number}", b"x")
    channel = life.comes_back_after(end)
    assert [ready(channel, f"q{number}") for number in range(20)] == [1] * 20


@either_end
def test_committed_transaction_stays_and_an_open_one_does_not(life: Life, end: str) -> None:
    life.channel.queue_declare("q", durable=True)
    tx = life.connect(to=life.broker).channel()
    tx.tx_select()
    committed = [body(number, size) for number, size in enumerate(SIZES)]
    for each in committed:
        tx.basic_publish("", "q", each, PERSISTENT)
    tx.tx_commit()
    tx.basic_publish("", "q", b"open", PERSISTENT)
    channel = life.comes_back_after(end)
    assert take_all(channel, "q") == committed


# --- what does not -------------------------------------------------------------------------------------------------------


@either_end
def test_transient_messages_are_gone(life: Life, end: str) -> None:
    life.channel.queue_declare("q", durable=True)
    for number in range(10):
        life.channel.basic_publish("", "q", body(number, 10), TRANSIENT)
        life.channel.basic_publish("", "q", body(number, 5_000), TRANSIENT)
        persist(life.channel, "q", b"%d" % number)
    channel = life.comes_back_after(end)
    assert take_all(channel, "q") == [b"%d" % number for number in range(10)]


@either_end
def test_queue_that_is_not_durable_is_gone_with_its_persistent_messages(life: Life, end: str) -> None:
    life.channel.queue_declare("q")
    persist(life.channel, "q", b"small", body(1, 5_000))
    channel = life.comes_back_after(end)
    with closes_channel(404, "no queue 'q' in vhost '/'"):
        channel.queue_declare("q", passive=True)
    channel = life.new_channel()
    channel.queue_declare("q", durable=True)
    assert take_all(channel, "q") == []


def test_acked_messages_do_not_return_after_a_stop(life: Life) -> None:
    life.channel.queue_declare("q", durable=True)
    bodies = persist(life.channel, "q", *(body(number, size) for number, size in enumerate(SIZES)))
    for _ in bodies[:4]:
        method, _, _ = life.channel.basic_get("q")
        life.channel.basic_ack(method.delivery_tag)
    assert take_all(life.comes_back_after("stop"), "q") == bodies[4:]


def test_acked_messages_do_not_return_after_a_crash_once_something_later_is_confirmed(life: Life) -> None:
    life.channel.queue_declare("q", durable=True)
    persist(life.channel, "q", *(body(number, size) for number, size in enumerate(SIZES)))
    for _ in SIZES:
        method, _, _ = life.channel.basic_get("q")
        life.channel.basic_ack(method.delivery_tag)
    persist(life.channel, "q", b"later")
    assert take_all(life.comes_back_after("crash"), "q") == [b"later"]


@either_end
def test_purged_messages_do_not_return(life: Life, end: str) -> None:
    life.channel.queue_declare("q", durable=True)
    persist(life.channel, "q", *(body(number, size) for number, size in enumerate(SIZES)))
    assert life.channel.queue_purge("q").method.message_count == len(SIZES)
    persist(life.channel, "q", b"later")
    assert take_all(life.comes_back_after(end), "q") == [b"later"]


@either_end
def test_deleted_queue_that_is_declared_again_is_empty(life: Life, end: str) -> None:
    life.channel.queue_declare("q", durable=True)
    persist(life.channel, "q", *(body(number, size) for number, size in enumerate(SIZES)))
    life.channel.queue_delete("q")
    life.channel.queue_declare("q", durable=True, arguments={"x-max-length": 5})
    channel = life.comes_back_after(end)
    assert ready(channel, "q") == 0
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 5})
    assert persist(channel, "q", b"new") == take_all(channel, "q")


@either_end
def test_deleted_queue_leaves_nothing_behind(
    own_broker: Callable[..., BrokerProcess], connect: Connect, end: str
) -> None:
    limit = 20_000
    life = Life(own_broker({"msg_store_file_size_limit": limit}), connect)
    life.channel.queue_declare("q", durable=True)
    persist(life.channel, "q", *(body(number, 5_000) for number in range(50)))
    life.channel.queue_delete("q")
    life.comes_back_after(end)
    life.broker.stop()
    assert [path for path in life.broker.data_dir.glob("vhosts/*/queues/*") if path.is_dir()] == []
    # of the message store at most the file that was written to last
    assert sum(path.stat().st_size for path in life.broker.data_dir.glob("vhosts/*/msg_store_*/*")) <= limit


# --- order and the redelivered flag --------------------------------------------------------------------------------------


def test_only_what_was_delivered_is_redelivered_after_a_stop(life: Life) -> None:
    life.channel.queue_declare("q", durable=True)
    bodies = persist(life.channel, "q", *(body(number, size) for number, size in enumerate(SIZES)))
    for _ in range(5):
        life.channel.basic_get("q")
    channel = life.comes_back_after("stop")
    assert take_all_flagged(channel, "q") == [(index < 5, each) for index, each in enumerate(bodies)]


def test_unacked_is_redelivered_after_a_crash(life: Life) -> None:
    life.channel.queue_declare("q", durable=True)
    bodies = persist(life.channel, "q", *(body(number, size) for number, size in enumerate(SIZES)))
    for _ in range(5):
        life.channel.basic_get("q")
    came = take_all_flagged(life.comes_back_after("crash"), "q")
    assert [each for _, each in came] == bodies
    assert [flag for flag, _ in came[:5]] == [True] * 5


@either_end
def test_requeued_message_keeps_its_place_and_its_flag(life: Life, end: str) -> None:
    life.channel.queue_declare("q", durable=True)
    bodies = persist(life.channel, "q", *(body(number, 5_000 if number % 2 else 5) for number in range(8)))
    tags = [life.channel.basic_get("q")[0].delivery_tag for _ in range(6)]
    life.channel.basic_ack(tags[0])
    life.channel.basic_nack(tags[4])
    life.channel.basic_nack(tags[1])
    life.channel.basic_ack(tags[3])
    bodies += persist(life.channel, "q", b"later")
    came = take_all_flagged(life.comes_back_after(end), "q")
    assert [each for _, each in came] == [bodies[index] for index in (1, 2, 4, 5, 6, 7, 8)]
    assert [flag for flag, _ in came[:4]] == [True] * 4
    if end == "stop":
        assert [flag for flag, _ in came[4:]] == [False] * 3


@either_end
def test_messages_of_after_the_restart_go_behind_those_of_before(life: Life, end: str) -> None:
    life.channel.queue_declare("q", durable=True)
    before = persist(life.channel, "q", b"1", b"2", body(3, 9_000))
    life.channel.basic_get("q")
    channel = life.comes_back_after(end)
    channel.basic_nack(channel.basic_get("q")[0].delivery_tag)
    after = persist(channel, "q", b"4", body(5, 9_000))
    assert take_all(channel, "q") == before + after


# --- a backlog -----------------------------------------------------------------------------------------------------------


def publish_burst(life: Life, queue: str, bodies: Sequence[bytes]) -> None:
    """Publishes persistent messages without waiting for each; returns when all are confirmed."""
    client = life.broker.wire(timeout=20).open()
    client.open_channel(1)
    client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    payload = method_payload(amqp.Basic.Publish(routing_key=queue))
    method = struct.pack(">BHI", METHOD, 1, len(payload)) + payload + FRAME_END
    unconfirmed = dict.fromkeys(range(1, len(bodies) + 1))
    for start in range(0, len(bodies), 500):
        out = bytearray()
        for each in bodies[start : start + 500]:
            out += method
            out += struct.pack(">BHIHHQHBB", HEADER, 1, 15, 60, 0, len(each), 0x1000, 2, FRAME_END[0])
            out += struct.pack(">BHI", BODY, 1, len(each)) + each + FRAME_END
        client.send(bytes(out))
    while unconfirmed:
        answer = client.expect(1, amqp.Basic.Ack)
        if not answer.multiple:
            del unconfirmed[answer.delivery_tag]
            continue
        while unconfirmed and next(iter(unconfirmed)) <= answer.delivery_tag:
            del unconfirmed[next(iter(unconfirmed))]
    client.close()


@either_end
def test_backlog_of_50_000_messages_stays(life: Life, end: str) -> None:
    life.channel.queue_declare("q", durable=True)
    bodies = [b"%d " % number * 20 for number in range(50_000)]
    publish_burst(life, "q", bodies)
    channel = life.comes_back_after(end)
    assert ready(channel, "q") == len(bodies)
    assert Inbox(channel, "q", auto_ack=True).wait_for(len(bodies), timeout=40) == bodies
    assert ready(life.comes_back_after("stop"), "q") == 0


# --- the format ----------------------------------------------------------------------------------------------------------


def test_data_directory_of_a_newer_format_is_refused(life: Life) -> None:
    life.channel.queue_declare("q", durable=True)
    bodies = persist(life.channel, "q", b"x", body(1, 5_000))
    life.broker.stop()
    file = life.broker.data_dir / "format"
    ours = file.read_text()
    assert ours.strip() == "1"
    file.write_text("999\n")
    refused = subprocess.run(life.broker.command(), capture_output=True, text=True, timeout=30)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert refused.stderr.startswith("rabbitpy-broker: ")
    assert "999" in refused.stderr
    assert str(life.broker.data_dir) in refused.stderr
    file.write_text(ours)  # nothing was touched
    life.broker.start()
    assert take_all(life.new_channel(), "q") == bodies


# --- damage --------------------------------------------------------------------------------------------------------------

PAGE = 4096


def journal_blocks(path: Path) -> list[int]:
    """Where the blocks of a journal file begin, those left from its earlier use aside."""
    data = path.read_bytes()
    assert data[:4] == b"RPJF"
    nonce, at, found = data[16:24], PAGE, []
    while data[at : at + 4] == b"RPJB" and data[at + 16 : at + 24] == nonce:
        found.append(at)
        (size,) = struct.unpack_from(">I", data, at + 4)
        at += -(-(32 + size) // PAGE) * PAGE
    return found


def last_journal(data_dir: Path) -> tuple[Path, list[int]]:
    """The journal file in use (the one with the highest number), and its blocks."""
    files = list(data_dir.glob("vhosts/*/journal/*.journal"))
    path = max(files, key=lambda file: file.read_bytes()[8:16])
    return path, journal_blocks(path)


def segment_blocks(path: Path) -> list[tuple[int, int]]:
    """Start and end of the payload of each block."""
    data = path.read_bytes()
    assert data[:4] == b"RPSG"
    at, found = 32, []
    while at < len(data):
        assert data[at : at + 4] == b"RPSB"
        (size,) = struct.unpack_from(">I", data, at + 4)
        found.append((at + 44, at + 44 + size))
        at += 44 + size
    return found


def blocks_written(data_dir: Path) -> int:
    """Blocks in all segments, also while the broker is writing to them."""
    return sum(path.read_bytes().count(b"RPSB") for path in data_dir.glob("vhosts/*/queues/*/*.segment"))


def keeps_aside(broker: BrokerProcess, octets: bytes) -> bool:
    """A file of the stopped broker is still as it was when it was damaged."""
    files = [path for path in broker.data_dir.rglob("*") if path.is_file()]
    return any(path.stat().st_size == len(octets) and path.read_bytes() == octets for path in files)


def flip(path: Path, at: int) -> bytes:
    """Damages one octet; the whole file as it is then."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    return bytes(data)


def warnings_about(broker: BrokerProcess, name: str) -> list[dict[str, Any]]:
    """What the log says, as a warning or worse, about the file of this name."""
    return [entry for entry in broker.events() if entry["level"] in {"warning", "error"} and name in str(entry)]


@pytest.fixture
def ten(life: Life) -> list[bytes]:
    """Ten messages in "q", each confirmed before the next was published: ten blocks of the journal."""
    life.channel.queue_declare("q", durable=True)
    return persist(life.channel, "q", *(body(number, 50) for number in range(10)))


def after_the_last_block(data_dir: Path, octets: Callable[[bytes], bytes]) -> str:
    """Writes, where the next block of the journal would begin, what `octets` makes of the last block."""
    path, blocks = last_journal(data_dir)
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack_from(">I", data, blocks[-1] + 4)
    whole = -(-(32 + size) // PAGE) * PAGE
    end = blocks[-1] + whole
    torn = octets(bytes(data[blocks[-1] : end]))
    data[end : end + len(torn)] = torn
    path.write_bytes(data)
    return path.name


def torn_block(last: bytes) -> bytes:
    """A block whose first half has reached the disk: its payload is not what its header promises."""
    (size,) = struct.unpack_from(">I", last, 4)
    assert size > 1
    return last[: 32 + size // 2] + b"\xaa" * (len(last) - 32 - size // 2)


def no_block(last: bytes) -> bytes:
    return b"\xa5" * 5000


@pytest.mark.parametrize("octets", [torn_block, no_block])
def test_torn_write_behind_the_last_block_costs_nothing(
    life: Life, ten: list[bytes], octets: Callable[[bytes], bytes]
) -> None:
    channel = life.comes_back_after("crash", lambda data_dir: after_the_last_block(data_dir, octets))
    more = persist(channel, "q", b"later")
    assert take_all(life.comes_back_after("crash"), "q") == ten + more


def test_torn_tail_is_cut_and_reported(life: Life, ten: list[bytes]) -> None:
    name = ""

    def tear(data_dir: Path) -> None:
        nonlocal name
        path, blocks = last_journal(data_dir)
        assert len(blocks) >= len(ten)
        name = path.name
        with path.open("r+b") as file:
            file.truncate(blocks[-1] + 40)

    channel = life.comes_back_after("crash", tear)
    assert warnings_about(life.broker, name)
    assert ready(channel, "q") == len(ten) - 1
    more = persist(channel, "q", b"later")
    channel = life.comes_back_after("crash")
    assert not warnings_about(life.broker, name)
    assert take_all(channel, "q") == ten[:-1] + more


def test_damage_inside_the_journal_costs_what_it_hit(life: Life, ten: list[bytes]) -> None:
    damaged: dict[str, bytes] = {}

    def damage(data_dir: Path) -> None:
        path, _ = last_journal(data_dir)
        damaged[path.name] = flip(path, path.read_bytes().index(ten[4]) + 20)

    channel = life.comes_back_after("crash", damage)
    ((name, octets),) = damaged.items()
    assert warnings_about(life.broker, name)
    assert take_all(channel, "q") == ten[:4] + ten[5:]
    more = persist(channel, "q", b"later")
    life.broker.stop()
    assert keeps_aside(life.broker, octets)
    life.broker.start()
    assert take_all(life.new_channel(), "q") == more


@pytest.fixture
def small_limits(own_broker: Callable[..., BrokerProcess], connect: Connect) -> Life:
    """The journal is scattered into the segments early."""
    return Life(own_broker({"queue_index_max_journal_entries": 64}), connect)


@either_end
def test_damage_inside_a_segment_costs_what_it_hit(small_limits: Life, end: str) -> None:
    life = small_limits
    life.channel.queue_declare("q", durable=True)
    life.channel.queue_declare("other", durable=True)
    bodies = fill_persistent(life, 1000)
    other = persist(life.channel, "other", b"sound")
    damaged: dict[str, bytes] = {}

    def damage(data_dir: Path) -> None:
        path = max(data_dir.glob("vhosts/*/queues/*/*.segment"), key=lambda file: file.stat().st_size)
        blocks = segment_blocks(path)
        assert len(blocks) >= 3
        start, end = blocks[len(blocks) // 2]
        damaged[path.name] = flip(path, (start + end) // 2)

    if end == "crash":
        eventually(lambda: comes_back_with_an_empty_journal(life), timeout=30)
    channel = life.comes_back_after(end, damage)
    ((name, octets),) = damaged.items()
    came = take_all(channel, "q")
    assert 0 < len(bodies) - len(came) < len(bodies) / 2
    assert came == sorted(set(came))
    assert set(came) < set(bodies)
    assert ready(channel, "q") == 0
    assert take_all(channel, "other") == other
    assert warnings_about(life.broker, name)
    more = persist(channel, "q", b"later")
    life.broker.stop()
    assert keeps_aside(life.broker, octets)
    life.broker.start()
    assert take_all(life.new_channel(), "q") == more


def comes_back_with_an_empty_journal(life: Life) -> bool:
    """After a stop; whether all was in segments by then. What the journal has goes there while the broker is idle."""
    left: list[object] = []

    def look(data_dir: Path) -> None:
        (terms,) = data_dir.glob("vhosts/*/recovery_terms")
        left.extend(msgspec.msgpack.decode(terms.read_bytes()[:-4])["journal"])

    life.comes_back_after("stop", look)
    return not left


def fill_persistent(life: Life, count: int) -> list[bytes]:
    """Messages in "q", in bursts, and the journal is scattered after each."""
    bodies = [b"%06d" % number for number in range(count)]
    for start in range(0, count, 100):
        before = blocks_written(life.broker.data_dir)
        publish_burst(life, "q", bodies[start : start + 100])
        eventually(lambda before=before: blocks_written(life.broker.data_dir) > before)
    return bodies


def test_damage_inside_a_store_file_costs_what_it_hit(life: Life) -> None:
    life.channel.queue_declare("q", durable=True)
    bodies = persist(life.channel, "q", *(body(number, 8_000) for number in range(20)))
    damaged: dict[str, bytes] = {}

    def damage(data_dir: Path) -> None:
        files = list(data_dir.glob("vhosts/*/msg_store_persistent/*.store"))
        path = next(file for file in files if bodies[7] in file.read_bytes())
        damaged[path.name] = flip(path, path.read_bytes().index(bodies[7]) + 4_000)

    channel = life.comes_back_after("crash", damage)
    assert take_all(channel, "q") == bodies[:7] + bodies[8:]
    ((name, octets),) = damaged.items()
    assert warnings_about(life.broker, name)
    more = persist(channel, "q", body(99, 8_000))
    life.broker.stop()
    assert keeps_aside(life.broker, octets)
    life.broker.start()
    assert take_all(life.new_channel(), "q") == more
