"""A broker in this process: ready at once, gone without a trace, in memory or on a directory, in any loop."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path

import aio_pika
import pika
import pytest
import uvloop
from pika.adapters.blocking_connection import BlockingChannel

import rabbitpy_broker
from rabbitpy_broker.errors import ConfigError, StartError
from rabbitpy_broker.message import StoreEntry
from rabbitpy_broker.testing import AsyncBroker, Broker
from rabbitpy_broker.testing.broker import NotRunning
from rabbitpy_broker.testing.watched_broker import IN_MEMORY


def publish_and_get(url: str, body: bytes = b"hello") -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    _, _, got = channel.basic_get("q", auto_ack=True)
    assert got == body
    connection.close()


async def publish_and_get_async(url: str) -> None:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("q", durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"hello", delivery_mode=2), "q")
        message = await queue.get()
        assert message.body == b"hello"
        await message.ack()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_broker_in_a_thread_of_its_own(loop):
    with Broker(loop=loop) as broker:
        publish_and_get(broker.url)
        assert broker.port > 0
    assert [thread.name for thread in threading.enumerate() if thread.name == "amqp broker"] == []
    with pytest.raises(NotRunning):
        broker.queues()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_broker_in_the_loop_that_runs(factory):
    async def work() -> None:
        threads = threading.active_count()
        async with Broker() as broker:
            assert isinstance(broker, AsyncBroker)
            await publish_and_get_async(broker.url)
            await broker.assert_published("", "q", body=b"hello")
            await broker.assert_drained("q")
            assert threading.active_count() == threads
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert [task for task in left if "rabbitpy_broker" in repr(task)] == []

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())


async def test_plain_code_inside_a_running_loop_has_its_own_broker():
    """As in a notebook, where a loop runs around every cell."""
    with Broker() as broker:
        await asyncio.to_thread(publish_and_get, broker.url)
        await publish_and_get_async(broker.url)
        await broker.aio.assert_published("", "q", count=2)
        broker.assert_drained("q")


async def test_a_broker_does_not_wait_for_itself():
    holder = Broker()
    async with holder:
        with pytest.raises(RuntimeError, match="cannot wait for itself"):
            holder.assert_drained("q")


def test_several_at_once_know_nothing_of_each_other():
    with Broker() as one, Broker() as other:
        publish_and_get(one.url, b"one")
        publish_and_get(other.url, b"other")
        assert [message.body for message in one.published()] == [b"one"]
        assert [message.body for message in other.published()] == [b"other"]
        assert one.port != other.port


def test_a_directory_keeps_what_was_published(tmp_path: Path):
    with Broker(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.basic_publish("", "kept", b"body", pika.BasicProperties(delivery_mode=2))
        connection.close()
        with pytest.raises(StartError, match="is in use"):
            Broker(tmp_path / "data").start()
    assert (tmp_path / "data" / "vhosts").is_dir()
    with Broker(tmp_path / "data") as broker:
        assert [(queue.name, queue.ready) for queue in broker.queues()] == [("kept", 1)]


def test_settings_are_those_of_the_configuration():
    with Broker(settings={"channel_max": 7}) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        assert connection._impl.params.channel_max == 7
        connection.close()
    with pytest.raises(ConfigError, match="unknown key: chanel_max"):
        Broker(settings={"chanel_max": 7}).start()


def test_the_management_api_is_there_when_asked_for_and_touches_no_file(caplog: pytest.LogCaptureFixture):
    from rabbitpy_broker.testing.external import Management

    with Broker(management=True) as broker:
        names = [vhost["name"] for vhost in Management(broker.management_url).ask("GET", ["vhosts"])]
        assert names == ["/"]
    assert caplog.records == []
    assert not Path(IN_MEMORY).exists()


def test_queues_are_seen_with_who_holds_what(tested: Broker, open_channel: Callable[..., BlockingChannel]):
    channel = open_channel()
    channel.queue_declare("jobs")
    for body in (b"a", b"b", b"c"):
        channel.basic_publish("", "jobs", body)
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("jobs", lambda *_: None, consumer_tag="worker")
    channel.connection.process_data_events(0)
    [queue] = tested.queues()
    assert (queue.ready, queue.unacked) == (1, 2)
    assert queue.consumers[0].holds == [b"a", b"b"]
    assert "consumer 'worker' of 127.0.0.1:" in str(queue)
    assert "holds 2: a, b" in tested.report()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def allocated() -> int:
    """Bytes that the package's own lines have allocated; what other libraries keep for later is theirs."""
    gc.collect()
    ours = tracemalloc.Filter(inclusive=True, filename_pattern=f"{Path(rabbitpy_broker.__file__).parent}/*")
    return sum(stat.size for stat in tracemalloc.take_snapshot().filter_traces([ours]).statistics("filename"))


FILE_WATCH = """
import sys
touched = []
ours = {"on": False}
KINDS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}
def hook(event, args):
    if ours["on"] and event in KINDS and not str(args[0]).startswith("/proc/"):
        if event != "open" or (args[1] or "r") != "r" or (args[2] or 0) & 3:
            touched.append((event, *args))
sys.addaudithook(hook)
import pika
from rabbitpy_broker.testing import Broker
def work():
    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
        for body in (b"small", b"large" * 10_000):
            for queue in ("q", "quorum"):
                channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
        broker.add_vhost("other")
        broker.delete_vhost("other")
        broker.kill()
        broker.start_again()
        broker.restart()
work()
ours["on"] = True
work()
print(touched)
"""


def test_in_memory_no_file_is_touched(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", FILE_WATCH], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


LARGE = b"large" * 20_000
OF_EACH = 4


def stored_messages() -> int:
    """Large ones that are in memory: the collector sees the entry of each, though not the message that points back at it.

    By type: what others have left may look for its class, and fail, when it is asked.
    """
    gc.collect()
    return sum(issubclass(type(thing), StoreEntry) and thing.message is not None for thing in gc.get_objects())


def leave_messages_everywhere(url: str) -> list[pika.BlockingConnection]:
    """Ready and held ones, small and large, that owe confirms and do not; whose clients are still there."""
    connections = [pika.BlockingConnection(pika.URLParameters(url)) for _ in range(2)]
    publisher, consumer = (connection.channel() for connection in connections)
    kinds: dict[str, dict[str, str]] = {
        "classic": {},
        "acked": {"x-confirm-mode": "consumer-ack"},
        "quorum": {"x-queue-type": "quorum"},
        "lazy": {"x-queue-mode": "lazy"},
    }
    for name, arguments in kinds.items():
        publisher.queue_declare(name, durable=True, arguments=arguments)
    publisher._impl.confirm_delivery(ack_nack_callback=lambda _: None)  # waits for none
    for name in kinds:
        for body in (b"small", LARGE):
            for mode in (1, 2):
                for _ in range(OF_EACH):
                    publisher.basic_publish("", name, body, pika.BasicProperties(delivery_mode=mode))
    connections[0].process_data_events(0)
    publisher.queue_declare("classic", passive=True)  # all are there
    consumer.basic_qos(prefetch_count=2 * OF_EACH)
    for name in kinds:
        consumer.basic_consume(name, lambda *_: None)
    connections[1].process_data_events(0)
    consumer.basic_get("lazy")
    assert stored_messages() > 0
    return connections


@pytest.mark.parametrize("end", ["stop", "kill", "delete_vhost"])
def test_messages_that_a_broker_ended_with_leave_nothing_behind(end: str):
    """None of them points at what points at them: in the compiled package the cyclic collector does not see messages."""
    gone: list[weakref.ref[object]] = []

    def one() -> None:
        with Broker() as broker:
            gone.append(weakref.ref(broker._engine.running()))
            if end == "delete_vhost":
                broker.add_vhost("own")
                connections = leave_messages_everywhere(broker.url_of("own"))
                broker.delete_vhost("own")
            else:
                connections = leave_messages_everywhere(broker.url)
                if end == "kill":
                    broker.kill()
        for connection in connections:
            connection._impl._transport.abort()

    before = stored_messages()
    for _ in range(3):
        one()
    assert stored_messages() == before
    assert [ref for ref in gone if ref() is not None] == []


def test_fifty_brokers_leave_nothing_behind():
    """`python -m perf.in_process --brokers 1000` does it a thousand times."""
    starts: list[float] = []
    gone: list[weakref.ref[object]] = []

    def one() -> None:
        began = time.perf_counter()
        with Broker() as broker:
            publish_and_get(broker.url)
            starts.append(time.perf_counter() - began)
            gone.append(weakref.ref(broker._engine.running()))

    tracemalloc.start()
    for _ in range(5):
        one()
    before, threads, files = allocated(), threading.active_count(), open_files()
    for _ in range(50):
        one()
    after = allocated()
    tracemalloc.stop()
    assert threading.active_count() == threads
    assert open_files() == files
    assert [ref for ref in gone if ref() is not None] == []
    assert (after - before) / 50 < 1_024, f"{(after - before) / 50:.0f} bytes a broker"
