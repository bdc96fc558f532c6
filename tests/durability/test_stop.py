"""The daemon is told to stop: how long that takes, on a disk that is slow too, and what the next start has.

A slow disk is one whose calls are held until the test lets go of them. The process ends by itself, with exit code 0, and
whatever was confirmed is there afterwards.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming, take_all, take_all_flagged
from broker_process import BrokerProcess, broker_command
from durability.trouble import Trouble, compile_library
from support import eventually
from wire_client import WireClient

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]

PERSISTENT = pika.BasicProperties(delivery_mode=2)
LARGE = bytes(8_000)  # not embedded in the journal
GRACE_MS = 1_500
# Beyond the grace: a second of overtime, and what a crowded machine needs to start a thread and to end a process.
ENDS_WITHIN_S = GRACE_MS / 1000 + 1.0 + 4.0


@pytest.fixture
def trouble(tmp_path: Path) -> Trouble:
    return Trouble(compile_library(tmp_path), tmp_path)


@pytest.fixture
def slow(trouble: Trouble, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A daemon with a short grace, whose disk can be held."""
    process = BrokerProcess(tmp_path, config={"stop_grace": GRACE_MS}, env=trouble.env)
    process.start()
    yield process
    trouble.end()
    process.stop()


def publish(channel: BlockingChannel, queue: str, count: int, body: bytes = b"") -> list[bytes]:
    bodies = [b"%d:" % number + body for number in range(count)]
    for each in bodies:
        channel.basic_publish("", queue, each, PERSISTENT)
    return bodies


def ends_in_time(process: BrokerProcess) -> None:
    """After the signal: by itself, within the grace, with exit code 0."""
    assert process.wait(timeout=ENDS_WITHIN_S) == 0
    process.process = None
    process.assert_clean_log()


def was_clean(process: BrokerProcess) -> bool:
    return all(store["clean"] for store in process.events("store recovered"))


# -- many queues ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queues", [4, 200])
def test_a_stop_syncs_a_few_times_however_many_queues_hold_messages(
    tmp_path: Path, connect: Connect, queues: int
) -> None:
    trace = tmp_path / "trace"
    calls = "trace=fsync,fdatasync,syncfs,pwritev2"
    with pytest.MonkeyPatch.context() as patch:
        strace = ["strace", "-D", "-f", "-y", "-e", calls, "-o", str(trace)]
        patch.setenv("RABBITPY_BROKER_COMMAND", shlex.join([*strace, *broker_command()]))
        process = BrokerProcess(tmp_path)
        process.start()
    channel = confirming(connect(to=process))
    for number in range(queues):
        channel.queue_declare(f"q{number}", durable=True)
        channel.queue_bind(f"q{number}", "amq.fanout")
    channel.basic_publish("amq.fanout", "", b"one for each", PERSISTENT)
    before = len(trace.read_text().splitlines())
    process.stop()
    store = [line for line in trace.read_text().splitlines()[before:] if "/vhosts/" in line]
    assert len(store) <= 10, "an epoch, the terms, and the call that a scatter was at"
    process.start()
    assert was_clean(process)
    channel = confirming(connect(to=process))
    assert [take_all_flagged(channel, f"q{number}") for number in range(queues)] == [
        [(False, b"one for each")]
    ] * queues
    process.stop()


def test_every_kind_of_queue_is_as_it_was_after_a_stop(
    own_broker: Callable[..., BrokerProcess], connect: Connect
) -> None:
    """Order, counts and which are redelivered; what is transient is gone. Once from the journal, and once more."""
    process = own_broker()
    process.ctl("add_vhost", "other")
    process.ctl("set_permissions", "-p", "other", "guest", ".*", ".*", ".*")
    channel = confirming(connect(to=process))
    other = confirming(connect(to=process, vhost="other"))
    channel.queue_declare("classic", durable=True)
    channel.queue_declare("lazy", durable=True, arguments={"x-queue-mode": "lazy"})
    channel.queue_declare("priorities", durable=True, arguments={"x-max-priority": 3})
    channel.queue_declare("transient")
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("delayed", durable=True)
    channel.queue_bind("delayed", "later")
    other.queue_declare("classic", durable=True)
    expected = {
        "classic": publish(channel, "classic", 5) + publish(channel, "classic", 3, LARGE),
        "lazy": publish(channel, "lazy", 6),
        "priorities": [],
    }
    for number in range(8):
        body = b"%d of priority %d" % (number, number % 4)
        channel.basic_publish(
            "", "priorities", body, pika.BasicProperties(delivery_mode=2, priority=number % 4)
        )
        expected["priorities"].append(body)
    expected["priorities"].sort(key=lambda body: (-int(body[-1:]), body))
    for queue in ("classic", "lazy", "transient"):
        channel.basic_publish("", queue, b"transient")
    delays = [60_000, 1, 30_000]
    for delay in delays:
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay})
        channel.basic_publish("later", "", b"after %d" % delay, properties)
    theirs = publish(other, "classic", 4)
    getter = connect(to=process).channel()
    for queue in expected:
        getter.basic_get(queue)  # and back again with its channel
    getter.close()
    eventually(lambda: channel.queue_declare("delayed", passive=True).method.message_count == 1)
    for _ in range(2):
        process.restart()
        assert was_clean(process)
        assert len(process.events("store recovered")) == 2
    channel = connect(to=process).channel()
    for queue, bodies in expected.items():
        flags = [number == 0 for number in range(len(bodies))]
        assert take_all_flagged(channel, queue) == list(zip(flags, bodies, strict=True)), queue
    assert take_all(connect(to=process, vhost="other").channel(), "classic") == theirs
    assert take_all(channel, "delayed") == [b"after 1"]
    messages = sum(store["messages"] for store in process.events("store recovered"))
    assert messages == sum(map(len, expected.values())) + len(theirs) + len(delays)


# -- a slow disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/journal/", "/recovery_terms"])
def test_a_disk_that_does_not_answer_holds_up_a_stop_for_the_grace_and_costs_nothing(
    slow: BrokerProcess, trouble: Trouble, connect: Connect, path: str
) -> None:
    channel = confirming(connect(to=slow))
    channel.queue_declare("q", durable=True)
    confirmed = publish(channel, "q", 5) + publish(channel, "q", 3, LARGE)
    trouble.hold("sync", path)
    client = slow.wire().open()
    client.open_channel(1)
    client.method(1, amqp.Basic.Publish(routing_key="q"))
    client.header(1, 1, b"\x10\x00\x02")
    client.body(1, b"?")  # never confirmed
    client.call(1, amqp.Queue.Declare(queue="q", passive=True), amqp.Queue.DeclareOk)
    began = time.monotonic()
    slow.signal(signal.SIGTERM)
    ends_in_time(slow)
    assert time.monotonic() - began >= GRACE_MS / 1000, "so long it could have ended well"
    assert [line["error"] for line in slow.events("store not stopped cleanly")] == ["stop_grace is over"]
    trouble.end()
    slow.start()
    assert not was_clean(slow)
    assert take_all(connect(to=slow).channel(), "q")[: len(confirmed)] == confirmed


def test_a_scatter_that_does_not_come_back_leaves_the_stop_clean(
    slow: BrokerProcess, trouble: Trouble, connect: Connect
) -> None:
    trouble.hold("sync", "/queues/")
    channel = confirming(connect(to=slow))
    channel.queue_declare("q", durable=True)
    confirmed = publish(channel, "q", 5)
    eventually(lambda: trouble.met("/queues/"))
    slow.signal(signal.SIGTERM)
    ends_in_time(slow)
    assert slow.events("store not stopped cleanly") == []
    trouble.end()
    slow.start()
    assert was_clean(slow)
    assert take_all_flagged(connect(to=slow).channel(), "q") == [(False, body) for body in confirmed]


def test_a_loop_that_waits_for_the_disk_ends_too(slow: BrokerProcess, trouble: Trouble, connect: Connect) -> None:
    """The definitions are written by the loop itself, and nothing there can look at a clock meanwhile."""
    channel = confirming(connect(to=slow))
    channel.queue_declare("q", durable=True)
    confirmed = publish(channel, "q", 5)
    client: WireClient = slow.wire().open()
    client.open_channel(1)
    trouble.hold("sync", "definitions.sqlite")
    client.method(1, amqp.Queue.Declare(queue="new", durable=True))
    eventually(lambda: trouble.met("definitions.sqlite"))
    slow.signal(signal.SIGTERM)
    slow.signal(signal.SIGTERM)
    ends_in_time(slow)
    assert slow.events("stop cut short")
    assert not slow.events("broker stopped")
    trouble.end()
    slow.start()
    assert take_all(connect(to=slow).channel(), "q") == confirmed


def test_a_start_that_takes_long_can_be_stopped(slow: BrokerProcess, trouble: Trouble, connect: Connect) -> None:
    channel = confirming(connect(to=slow))
    channel.queue_declare("q", durable=True)
    confirmed = publish(channel, "q", 5)
    slow.crash()
    trouble.forget()
    trouble.hold("read", "/journal/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slow, "_start_event", lambda: {"listeners": ["127.0.0.1:0"]})
        slow.start()
    eventually(lambda: trouble.met("/journal/"))
    slow.signal(signal.SIGTERM)
    ends_in_time(slow)
    trouble.end()
    slow.start()
    assert take_all(connect(to=slow).channel(), "q") == confirmed


def test_clients_that_do_not_answer_leave_half_of_a_short_grace_for_the_store(
    slow: BrokerProcess, connect: Connect
) -> None:
    channel = confirming(connect(to=slow))
    channel.queue_declare("q", durable=True)
    publish(channel, "q", 5)
    silent = [slow.wire().open() for _ in range(3)]
    began = time.monotonic()
    slow.signal(signal.SIGTERM)
    ends_in_time(slow)
    assert time.monotonic() - began >= GRACE_MS / 2000
    assert slow.events("store not stopped cleanly") == []
    for client in silent:
        client.close()
    slow.start()
    assert was_clean(slow)
