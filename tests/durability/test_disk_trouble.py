"""The daemon on a disk that goes wrong: full, read-only, with errors, slow; and without file descriptors.

What must hold in all of it: nobody is told ack for what a failed write or sync covered; what was told ack is there
after kill -9; who consumes goes on where that is possible; the log says what happened; and when the trouble ends, all
goes on by itself.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import struct
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pamqp.commands as amqp
import pika
import pytest
from pamqp.base import Frame as Command
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import CAPABLE, Inbox, confirming, ready, take_all
from broker_process import BrokerProcess
from durability.trouble import Trouble, compile_library
from support import closes_channel, eventually, full_text, unique
from wire_client import WireClient

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]

PERSISTENT = pika.BasicProperties(delivery_mode=2)
SMALL = 20
LARGE = 6_000  # not embedded in the journal
# Another try each 50 ms.
CONFIG = {"memory_monitor_interval": 50, "msg_store_file_size_limit": 40_000, "check_invariants": True}


class Own(BrokerProcess):
    """The daemon; `noted` are the log lines since the test began, or since it was started."""

    lines_before = 0

    def noted(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.events()[self.lines_before :] if each["event"] == name]

    def start(self) -> Own:
        self.lines_before = 0
        super().start()
        return self


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Own, Trouble]]:
    """One daemon for all tests, since a start takes as long as a test."""
    folder = tmp_path_factory.mktemp("trouble")
    trouble = Trouble(compile_library(folder), folder)
    own = Own(folder, config=CONFIG, env=trouble.env)
    own.start()
    yield own, trouble
    own.stop()


@pytest.fixture
def trouble(running: tuple[Own, Trouble]) -> Iterator[Trouble]:
    trouble = running[1]
    trouble.forget()
    yield trouble
    trouble.end()


@pytest.fixture
def own(running: tuple[Own, Trouble], trouble: Trouble) -> Iterator[Own]:
    own = running[0]
    if not own.alive():
        own.start()
    own.lines_before = len(own.events())
    yield own
    trouble.end()
    try:
        assert own.alive()
        own.assert_clean_log()
        # All goes on by itself before the next test.
        eventually(lambda: metric(own, "rabbitmq_alarms_free_disk_space_watermark") == 0)
    except BaseException:
        own.crash()  # the next test has a new one
        raise


@pytest.fixture
def queue() -> str:
    return unique("queue")


def body(number: int, size: int) -> bytes:
    return struct.pack(">I", number) * (size // 4)


def number_of(found: bytes) -> int:
    return int(struct.unpack_from(">I", found)[0])


class Publisher:
    """A connection in confirm mode, and what it was told. Bodies are numbered; the number is the delivery tag, too."""

    def __init__(self, broker: BrokerProcess, queue: str, kind: str = "classic") -> None:
        self.queue = queue
        self.client = broker.wire(timeout=10).open(client_properties=CAPABLE)
        self.client.open_channel(1)
        self.client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        declare = amqp.Queue.Declare(queue=queue, durable=True, arguments={"x-queue-type": kind})
        self.client.call(1, declare, amqp.Queue.DeclareOk)
        self.sent = 0
        self.open: dict[int, None] = {}
        self.acked: list[int] = []
        self.nacked: list[int] = []
        self.blocked = ""

    def publish(self, count: int, size: int = SMALL, delivery_mode: int = 2) -> list[int]:
        numbers = list(range(self.sent + 1, self.sent + count + 1))
        self.sent += count
        for number in numbers:
            content = body(number, size)
            self.client.method(1, amqp.Basic.Publish(routing_key=self.queue))
            self.client.header(1, len(content), b"\x10\x00" + bytes([delivery_mode]))
            self.client.body(1, content)
            self.open[number] = None
        return numbers

    def take(self) -> None:
        """The next frame of the broker."""
        _, command = self.client.read_command()
        if isinstance(command, amqp.Connection.Blocked):
            self.blocked = command.reason
        elif isinstance(command, amqp.Connection.Unblocked):
            self.blocked = ""
        else:
            assert isinstance(command, (amqp.Basic.Ack, amqp.Basic.Nack)), f"{command.name} came"
            tag = command.delivery_tag
            told = [number for number in self.open if number == tag or (command.multiple and number < tag)]
            assert tag in told, f"{tag} was told before"
            (self.acked if isinstance(command, amqp.Basic.Ack) else self.nacked).extend(told)
            for number in told:
                del self.open[number]

    def settle(self) -> None:
        """Until everything is told."""
        while self.open:
            self.take()

    def confirmed(self, count: int, size: int = SMALL) -> list[int]:
        """Publishes, and is told ack for each."""
        numbers = self.publish(count, size)
        self.settle()
        assert set(numbers) <= set(self.acked)
        return numbers

    def refused(self, count: int, size: int = SMALL) -> None:
        """Publishes; the first is told nack, none is told ack. The broker may stop reading before the last."""
        numbers = self.publish(count, size)
        while numbers[0] in self.open or (self.open and not self.blocked):
            self.take()
        assert numbers[0] in self.nacked
        assert not set(numbers) & set(self.acked)

    def refused_or_not_read(self, count: int, size: int = SMALL) -> None:
        """The same where something else may meet the trouble first: then the broker reads none of them."""
        numbers = self.publish(count, size)
        while numbers[0] in self.open and not self.blocked:
            self.take()
        assert not set(numbers) & set(self.acked)

    def is_blocked(self) -> str:
        """Publishes until the broker reads nothing more from this connection; the reason."""
        if not self.blocked:
            self.publish(1)
        while not self.blocked:
            self.take()
        return self.blocked

    def wait_until_unblocked(self) -> None:
        while self.blocked:
            self.take()
        self.settle()

    def assert_told_nothing(self) -> None:
        self.client.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            self.client.socket.recv(1)
        self.client.socket.settimeout(10)


def take_numbers(channel: BlockingChannel, queue: str) -> list[int]:
    bodies = take_all(channel, queue)
    numbers = [number_of(each) for each in bodies]
    for number, each in zip(numbers, bodies, strict=True):
        assert each == body(number, len(each)), f"the content of message {number}"
    return numbers


def comes_back(own: Own, trouble: Trouble, connect: Connect) -> BlockingChannel:
    """kill -9, and a start on a disk that works; a channel."""
    own.assert_clean_log()
    own.crash()
    trouble.end()
    own.start()
    return connect(to=own).channel()


def assert_kept(numbers: list[int], publisher: Publisher, settled: set[int]) -> None:
    """All that was confirmed and not settled is there, in order, and nothing that is not the publisher's."""
    assert numbers == sorted(set(numbers)), "order broken, or something twice"
    assert set(publisher.acked) - settled <= set(numbers) <= set(range(1, publisher.sent + 1)) - settled


def metric(own: Own, name: str) -> float:
    with urllib.request.urlopen(f"http://{own.metrics}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"no {name}"
    return float(found[1])


# --- a disk that refuses ---------------------------------------------------------------------------------------------

TROUBLES: dict[str, tuple[Callable[[Trouble], None], int]] = {
    "full": (lambda trouble: trouble.disk_full(), errno.ENOSPC),
    "read-only": (lambda trouble: trouble.read_only(), errno.EROFS),
    "journal not written": (lambda trouble: trouble.fail("write", "/journal/", errno.EIO), errno.EIO),
    "journal not synced": (lambda trouble: trouble.fail("sync", "/journal/", errno.EIO), errno.EIO),
    "no space in message store": (
        lambda trouble: trouble.fail("write", "/msg_store_persistent/", errno.ENOSPC), errno.ENOSPC),
    "message store not synced": (
        lambda trouble: trouble.fail("sync", "/msg_store_persistent/", errno.EIO), errno.EIO),
}  # fmt: skip
each_trouble = pytest.mark.parametrize("begin, code", list(TROUBLES.values()), ids=list(TROUBLES))
each_kind = pytest.mark.parametrize("kind", ["classic", "quorum"])


@each_kind
@each_trouble
def test_publishers_are_refused_and_consumers_go_on_until_the_disk_works_again(
    own: Own, trouble: Trouble, connect: Connect, queue: str, begin: Callable[[Trouble], None], code: int, kind: str
) -> None:
    publisher = Publisher(own, queue, kind)
    before = publisher.confirmed(10, SMALL) + publisher.confirmed(10, LARGE)
    begin(trouble)
    publisher.refused(3, LARGE)
    assert publisher.is_blocked() == "low on disk"
    assert trouble.met()
    assert os.strerror(code) in own.noted("disk failed")[0]["error"]

    inbox = Inbox(connect(to=own).channel(), queue)
    assert [number_of(each) for each in inbox.wait_for(20)[:20]] == before
    inbox.ack(*inbox.tags[:5])
    inbox.settled()

    trouble.end()
    publisher.wait_until_unblocked()
    after = publisher.confirmed(5, SMALL) + publisher.confirmed(5, LARGE)
    assert publisher.acked[: len(before)] == before
    assert own.noted("disk works again")

    begin(trouble)  # and kill -9 in the middle of it
    publisher.refused(3, LARGE)
    tries = trouble.met()
    eventually(lambda: trouble.met() >= tries + 3)
    numbers = take_numbers(comes_back(own, trouble, connect), queue)
    assert_kept(numbers, publisher, set(before[:5]))
    assert set(after) <= set(numbers)


def test_failure_that_lasts_is_logged_once(own: Own, trouble: Trouble, queue: str) -> None:
    publisher = Publisher(own, queue)
    publisher.confirmed(1)
    trouble.fail("sync", "/journal/", errno.EIO)
    publisher.refused(1)
    eventually(lambda: trouble.met() >= 8)
    trouble.end()
    eventually(lambda: own.noted("disk works again"))
    assert len(own.noted("disk failed")) == 1


@each_kind
def test_short_failure_costs_only_what_it_covered(
    own: Own, trouble: Trouble, connect: Connect, queue: str, kind: str
) -> None:
    """A disk that fails one sync and then says that all is well: what the sync covered is written anew."""
    publisher = Publisher(own, queue, kind)
    for _ in range(3):
        publisher.confirmed(5)
        trouble.fail("sync", "/journal/", errno.EIO)
        publisher.refused(5)
        trouble.end()
        publisher.wait_until_unblocked()
    publisher.confirmed(5)
    numbers = take_numbers(comes_back(own, trouble, connect), queue)
    # All: whoever was refused may find that it is there all the same.
    assert numbers == list(range(1, publisher.sent + 1))


@each_trouble
def test_deliveries_are_counted_through_trouble_and_what_was_synced_is_not_forgotten(
    own: Own, trouble: Trouble, connect: Connect, queue: str, begin: Callable[[Trouble], None], code: int
) -> None:
    """Messages of a quorum queue come back while the disk fails: the count goes on, and is written when it works again."""
    publisher = Publisher(own, queue, "quorum")
    publisher.confirmed(2, SMALL)
    channel = connect(to=own).channel()
    assert give_back(channel, queue) == 0
    publisher.confirmed(1, SMALL)  # in an epoch with that, or behind it
    begin(trouble)
    publisher.refused(1, LARGE)
    assert trouble.met()
    assert [give_back(channel, queue) for _ in range(2)] == [1, 2]
    trouble.end()
    publisher.wait_until_unblocked()
    publisher.confirmed(1, SMALL)
    begin(trouble)
    publisher.refused_or_not_read(1, LARGE)
    assert give_back(channel, queue) == 3
    channel = comes_back(own, trouble, connect)
    counted = give_back(channel, queue)
    assert 3 <= counted <= 4, "what was synced counts, and nothing is made up"
    numbers = take_numbers(channel, queue)
    assert_kept(numbers, publisher, set())


def give_back(channel: BlockingChannel, queue: str) -> int:
    """Gets the first message and gives it back; how often it had come back before, as the header says."""
    method, properties, found = channel.basic_get(queue)
    assert number_of(found) == 1
    channel.basic_nack(method.delivery_tag)
    return int((properties.headers or {}).get("x-delivery-count", 0))


def test_transaction_that_cannot_be_synced_is_not_answered_with_ok(
    own: Own, trouble: Trouble, connect: Connect, queue: str
) -> None:
    connection = connect(to=own)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.tx_select()
    channel.basic_publish("", queue, b"1", PERSISTENT)
    channel.tx_commit()
    trouble.fail("sync", "/journal/", errno.EIO)
    channel.basic_publish("", queue, b"2", PERSISTENT)
    with closes_channel(406, "partial tx completion"):
        channel.tx_commit()
    trouble.end()
    eventually(lambda: own.noted("disk works again"))
    channel = connection.channel()
    channel.tx_select()
    channel.basic_publish("", queue, b"3", PERSISTENT)
    channel.tx_commit()
    found = take_all(connect(to=own).channel(), queue)
    assert found in ([b"1", b"3"], [b"1", b"2", b"3"])


def test_scatter_that_fails_loses_nothing_and_is_made_up_for(
    own: Own, trouble: Trouble, connect: Connect, queue: str
) -> None:
    """The journal takes what is published, and the segments do not."""
    trouble.disk_full("/queues/")
    publisher = Publisher(own, queue)
    numbers = publisher.confirmed(20)
    eventually(lambda: own.noted("disk failed"))  # the queue idles and goes to its segments, or tries to
    assert publisher.is_blocked() == "low on disk"
    assert trouble.met("/queues/")
    assert publisher.acked == numbers
    trouble.end()
    publisher.wait_until_unblocked()
    publisher.confirmed(5)
    eventually(lambda: list(own.data_dir.glob("vhosts/*/queues/*/*.segment")))
    assert take_numbers(comes_back(own, trouble, connect), queue) == list(range(1, 27))


def test_daemon_stops_in_the_middle_of_it_and_does_not_start_before_it_ends(
    own: Own, trouble: Trouble, connect: Connect, queue: str
) -> None:
    publisher = Publisher(own, queue)
    publisher.confirmed(10, LARGE)
    publisher.confirmed(10, SMALL)
    trouble.read_only()
    publisher.refused(5)
    publisher.client.close()
    own.stop()  # with exit code 0
    assert own.noted("store not stopped cleanly")
    for begin in (trouble.read_only, trouble.disk_full):
        trouble.end()
        trouble.forget()
        begin()
        refused = subprocess.run(own.command(), capture_output=True, text=True, timeout=20, env=own.env)
        assert refused.returncode == 2, refused.stderr
        assert refused.stderr.splitlines()[-1].startswith("rabbitpy-broker: ")
        assert "Traceback" not in refused.stderr
        assert trouble.met()
    trouble.end()
    own.start()
    assert_kept(take_numbers(connect(to=own).channel(), queue), publisher, set())


def test_alarm_goes_although_memory_cannot_be_looked_at(own: Own, trouble: Trouble, queue: str) -> None:
    """The disk works again, and no file descriptor is left to see how much memory is used."""
    publisher = Publisher(own, queue)
    publisher.confirmed(1)
    trouble.fail("open", "/proc/self/statm", errno.EMFILE)
    trouble.fail("sync", "/journal/", errno.EIO)
    publisher.refused(1)
    assert publisher.is_blocked() == "low on disk"
    trouble.end("/journal/")
    eventually(lambda: own.noted("disk works again"))
    own.assert_clean_log()
    trouble.end()
    publisher.wait_until_unblocked()
    publisher.confirmed(1)


# --- definitions -----------------------------------------------------------------------------------------------------


def test_durable_declare_on_a_full_disk_is_refused(
    own: Own, trouble: Trouble, connect: Connect, queue: str
) -> None:
    publisher = Publisher(own, queue)
    publisher.confirmed(1)
    other = connect(to=own).channel()
    trouble.disk_full("/definitions.sqlite")
    late = unique("queue")
    declaring = own.wire().open()
    declaring.open_channel(1)
    declaring.method(1, amqp.Queue.Declare(queue=late, durable=True))
    declaring.expect_close(541, "definitions could not be written", 50, 10)
    assert trouble.met("definitions.sqlite")
    assert own.noted("definitions not written")
    other.queue_declare(queue + "-passing")  # what is not durable needs no definition
    other.basic_publish("", queue + "-passing", b"x")
    assert take_all(other, queue + "-passing") == [b"x"]
    trouble.end()
    publisher.confirmed(1)


def test_nothing_is_confirmed_before_its_queue_is_safe(
    own: Own, trouble: Trouble, connect: Connect, queue: str
) -> None:
    """The queue is there and takes messages, but a crash would take it, and them with it."""
    publisher = Publisher(own, queue)
    trouble.fail("sync", "/definitions.sqlite", errno.EIO)
    declaring = own.wire().open()
    declaring.open_channel(1)
    late = unique("queue")
    declaring.method(1, amqp.Queue.Declare(queue=late, durable=True))
    declaring.expect_close(541, "definitions could not be written", 50, 10)
    publisher.queue = late
    publisher.publish(2)
    tries = trouble.met()
    eventually(lambda: trouble.met() >= tries + 3)
    publisher.assert_told_nothing()
    trouble.end()
    publisher.settle()
    assert publisher.acked == [1, 2]
    # the declare was noted, and written as soon as that could be done
    assert take_numbers(comes_back(own, trouble, connect), late) == [1, 2]


# --- a disk that cannot be read --------------------------------------------------------------------------------------


def fill_lazy(own: Own, connect: Connect, queue: str, size: int) -> BlockingChannel:
    """20 messages of which RAM holds none, nor the journal; a channel."""
    before, scatters_before = segment_files(own), scatters(own)
    channel = confirming(connect(to=own))
    channel.queue_declare(queue, durable=True, arguments={"x-queue-mode": "lazy"})
    for number in range(20):
        channel.basic_publish("", queue, body(number, size), PERSISTENT)
    channel.connection.close()
    looks: list[float] = []

    def is_in_segments() -> bool:
        """A queue that idles leaves the journal, soon, and with it the scatters end: ten looks see the same number."""
        looks.append(scatters(own))
        is_settled = len(looks) >= 10 and len(set(looks[-10:])) == 1
        return is_settled and looks[-1] > scatters_before and bool(segment_files(own) - before)

    eventually(is_in_segments)
    own.restart()
    return connect(to=own).channel()


def scatters(own: Own) -> float:
    return metric(own, "rabbitpy_store_scatters_total")


def segment_files(own: Own) -> set[Path]:
    return set(own.data_dir.glob("vhosts/*/queues/*/*.segment"))


def expect_unreadable(own: Own, queue: str, method: Command) -> None:
    """A connection that asks for this is closed, and told why."""
    client = own.wire().open()
    client.open_channel(1)
    client.method(1, method)
    close = client.expect(0, amqp.Connection.Close)
    assert close.reply_code == 541
    assert close.reply_text.startswith(full_text(541, f"queue '{queue}' cannot be read: [Errno 5]"))


@pytest.mark.parametrize("size, where", [(SMALL, "/queues/"), (LARGE, "/msg_store_persistent/")])
def test_queue_that_cannot_be_read_answers_clearly_and_goes_on_later(
    own: Own, trouble: Trouble, connect: Connect, queue: str, size: int, where: str
) -> None:
    channel = fill_lazy(own, connect, queue, size)
    trouble.fail("read", where, errno.EIO)
    expect_unreadable(own, queue, amqp.Basic.Get(queue=queue))
    assert own.noted("queue cannot be read")
    assert ready(channel, queue) == 20

    tries = trouble.met(where)
    inbox = Inbox(connect(to=own).channel(), queue)
    eventually(lambda: trouble.met(where) >= tries + 3)
    assert inbox.settled() == []
    channel.queue_declare(queue + "-other", durable=True)  # others go on
    channel.basic_publish("", queue + "-other", b"x", PERSISTENT)
    assert take_all(channel, queue + "-other") == [b"x"]
    trouble.end()
    assert [number_of(each) for each in inbox.wait_for(20)] == list(range(20))
    inbox.ack(*inbox.tags)
    assert inbox.settled() == inbox.bodies
    assert ready(channel, queue) == 0


# --- streams ---------------------------------------------------------------------------------------------------------


class Reader:
    """A consumer of a stream, from its first offset on."""

    def __init__(self, own: Own, connect: Connect, stream: str) -> None:
        self.connection = connect(to=own)
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=500)
        self.got: list[tuple[int, int]] = []
        channel.basic_consume(stream, self._take, arguments={"x-stream-offset": "first"})

    def _take(self, channel: BlockingChannel, method: Any, properties: pika.BasicProperties, found: bytes) -> None:
        headers = properties.headers
        assert headers is not None
        self.got.append((int(headers["x-stream-offset"]), number_of(found)))
        channel.basic_ack(method.delivery_tag)

    def look(self) -> list[tuple[int, int]]:
        """Offset and number of all that has come so far."""
        self.connection.process_data_events(0.01)
        return self.got

    def wait_for(self, count: int) -> list[tuple[int, int]]:
        eventually(lambda: len(self.look()) >= count)
        return self.got


def segments_of(own: Own) -> list[Path]:
    return list(own.data_dir.glob("vhosts/*/queues/*/*.stream"))


@pytest.mark.parametrize("call", ["write", "sync"])
def test_stream_shows_nothing_that_is_not_on_the_disk(
    own: Own, trouble: Trouble, connect: Connect, queue: str, call: str
) -> None:
    """What a failed write or sync covered is refused, and has its offsets when the disk works again; a kill keeps them."""
    publisher = Publisher(own, queue, "stream")
    publisher.confirmed(10)
    expected = [(number - 1, number) for number in range(1, 11)]
    reader = Reader(own, connect, queue)
    assert reader.wait_for(10) == expected
    trouble.fail(call, "/journal/", errno.EIO)
    publisher.refused(3)
    assert publisher.is_blocked() == "low on disk"
    tries = trouble.met()
    eventually(lambda: trouble.met() >= tries + 3)
    assert reader.look() == expected
    trouble.end()
    publisher.wait_until_unblocked()
    publisher.confirmed(5)
    expected = [(number - 1, number) for number in range(1, publisher.sent + 1)]
    assert reader.wait_for(publisher.sent) == expected
    comes_back(own, trouble, connect)
    assert Reader(own, connect, queue).wait_for(len(expected)) == expected


@pytest.mark.parametrize("call", ["write", "sync"])
def test_stream_that_cannot_be_moved_to_its_segments_loses_nothing(
    own: Own, trouble: Trouble, connect: Connect, queue: str, call: str
) -> None:
    trouble.fail(call, ".stream", errno.ENOSPC)
    publisher = Publisher(own, queue, "stream")
    publisher.confirmed(20)
    eventually(lambda: own.noted("disk failed"))  # the stream idles and is moved, or is to be
    assert publisher.is_blocked() == "low on disk"
    reader = Reader(own, connect, queue)
    reader.wait_for(20)
    trouble.end()
    publisher.wait_until_unblocked()
    publisher.confirmed(5)
    expected = [(number - 1, number) for number in range(1, publisher.sent + 1)]
    assert reader.wait_for(publisher.sent) == expected
    comes_back(own, trouble, connect)
    assert Reader(own, connect, queue).wait_for(len(expected)) == expected
    eventually(lambda: any(path.stat().st_size > 0 for path in segments_of(own)))


def test_stream_that_cannot_be_read_goes_on_later(own: Own, trouble: Trouble, connect: Connect, queue: str) -> None:
    publisher = Publisher(own, queue, "stream")
    publisher.confirmed(20)
    # A segment counts when what is in it is synced: from then on a start has its first messages in no other place.
    eventually(lambda: f"{queue}\t1" in own.ctl("list_queues", "name", "segments"))
    own.stop()  # so that nothing of these is in memory
    own.start()
    trouble.fail("read", ".stream", errno.EIO)
    reader = Reader(own, connect, queue)
    eventually(lambda: trouble.met("read") >= 3, timeout=30)  # it tries again about once a second
    assert reader.look() == []
    assert own.noted("queue cannot be read")
    trouble.end()
    assert reader.wait_for(20) == [(number - 1, number) for number in range(1, 21)]


# --- what cannot be done ---------------------------------------------------------------------------------------------


def test_purge_that_cannot_be_done_is_refused_and_a_delete_is_done(
    own: Own, trouble: Trouble, connect: Connect, queue: str
) -> None:
    """A segment of which one message is unacked cannot be purged unread."""
    channel = fill_lazy(own, connect, queue, SMALL)
    method, _, _ = channel.basic_get(queue)
    trouble.fail("read", "/queues/", errno.EIO)
    expect_unreadable(own, queue, amqp.Queue.Purge(queue=queue))
    assert ready(channel, queue) == 19
    trouble.end()
    assert channel.queue_purge(queue).method.message_count == 19
    channel.basic_nack(method.delivery_tag)
    assert ready(channel, queue) == 1
    trouble.fail("read", "/queues/", errno.EIO)
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True)
    assert take_all(channel, queue) == []


# --- a slow disk -----------------------------------------------------------------------------------------------------


def test_slow_disk_delays_confirms_and_nothing_else(own: Own, trouble: Trouble, connect: Connect, queue: str) -> None:
    publisher = Publisher(own, queue)
    publisher.confirmed(1)
    channel = confirming(connect(to=own))
    channel.queue_declare(queue + "-passing")
    inbox = Inbox(channel, queue + "-passing", auto_ack=True)
    trouble.hold("sync", "/journal/")
    publisher.publish(10, SMALL)
    eventually(lambda: trouble.met("sync"))
    publisher.publish(10, LARGE)
    for number in range(50):  # each is confirmed before the next
        channel.basic_publish("", queue + "-passing", b"%d" % number)
    assert inbox.wait_for(50) == [b"%d" % number for number in range(50)]
    assert [number_of(each) for each in Inbox(connect(to=own).channel(), queue).wait_for(21)] == list(range(1, 22))
    publisher.assert_told_nothing()
    trouble.end()
    publisher.settle()
    assert publisher.acked == list(range(1, 22))
    assert not own.noted("disk failed")


def test_slow_segments_delay_nobody(own: Own, trouble: Trouble, connect: Connect, queue: str) -> None:
    """While a scatter waits for the disk, publishing is confirmed and deliveries go on."""
    publisher = Publisher(own, queue)
    publisher.confirmed(10)
    trouble.hold("sync", "/queues/")
    eventually(lambda: trouble.met("sync"))
    publisher.confirmed(10)
    channel = connect(to=own).channel()
    assert take_numbers(channel, queue) == list(range(1, 21))
    publisher.confirmed(10)
    trouble.end()
    assert take_numbers(channel, queue) == list(range(21, 31))


# --- no file descriptors ---------------------------------------------------------------------------------------------


class FewFiles:
    """Takes a daemon's file descriptors away, all that are not in use, and gives them back."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.before = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    def begin(self) -> None:
        highest = max(int(each.name) for each in Path(f"/proc/{self.pid}/fd").iterdir())
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (highest + 1, self.before[1]))

    def end(self) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, self.before)


def test_without_file_descriptors_what_is_open_goes_on_and_all_comes_back(
    own: Own, trouble: Trouble, connect: Connect, queue: str
) -> None:
    publisher = Publisher(own, queue)
    publisher.confirmed(10, SMALL)
    consuming = connect(to=own).channel()
    assert own.process is not None
    few = FewFiles(own.process.pid)
    few.begin()
    fillers: list[WireClient] = []
    try:
        # Those that the daemon has below its highest are used up by connections; then no more are taken.
        while len(fillers) < 50:
            filler = own.wire(timeout=5.0)
            fillers.append(filler)
            try:
                filler.start()
            except (OSError, EOFError):
                break
        assert len(fillers) < 50, "the daemon has file descriptors enough"
        publisher.confirmed(5, SMALL)  # into the journal, which is open
        for _ in range(20):  # until the message store needs another file
            if not publisher.nacked:
                publisher.publish(1, LARGE)
                publisher.settle()
        assert publisher.nacked
        assert publisher.is_blocked() == "low on disk"
        inbox = Inbox(consuming, queue)
        inbox.wait_for(15)
        assert [number_of(each) for each in inbox.bodies[:15]] == list(range(1, 16))
        inbox.ack(*inbox.tags[:15])
        inbox.settled()
    finally:
        few.end()
        for filler in fillers:
            filler.close()
    publisher.wait_until_unblocked()
    publisher.settle()
    publisher.confirmed(5, LARGE)
    publisher.confirmed(5, SMALL)
    assert "Too many open files" in own.noted("disk failed")[0]["error"]
    assert own.noted("disk works again")
    Publisher(own, unique("queue")).confirmed(1)
    consuming.close()
    numbers = take_numbers(connect(to=own).channel(), queue)
    assert_kept(numbers, publisher, set(range(1, 16)))
