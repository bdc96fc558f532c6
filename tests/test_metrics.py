"""Metrics under RabbitMQ's names, as promtool and Prometheus want them; the health endpoints; over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from rabbitpy_broker import metrics
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.metrics import (
    Authentications,
    BrokerStats,
    ChannelStats,
    ConnectionStats,
    MessageStoreStats,
    NodeStats,
    QueueStats,
    StoreStats,
    StreamStats,
)
from rabbitpy_broker.net import http
from rabbitpy_broker.net.http import HttpServer, start_http
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.stats import add_disk_traffic, add_paging, add_store

CONNECTION = "127.0.0.1:50234 -> 127.0.0.1:5672"

# What the queries of RabbitMQ's Overview dashboard (Grafana 10991) name, of 3.8 and later versions.
OVERVIEW_DASHBOARD = [
    "rabbitmq_build_info",
    "rabbitmq_identity_info",
    "rabbitmq_connections",
    "rabbitmq_channels",
    "rabbitmq_consumers",
    "rabbitmq_queues",
    "rabbitmq_channel_consumers",
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_queue_messages_published_total",
    "rabbitmq_resident_memory_limit_bytes",
    "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_disk_space_available_bytes",
    "rabbitmq_process_max_fds",
    "rabbitmq_process_open_fds",
    "rabbitmq_process_max_tcp_sockets",
    "rabbitmq_process_open_tcp_sockets",
    "rabbitmq_connections_opened_total",
    "rabbitmq_connections_closed_total",
    "rabbitmq_channels_opened_total",
    "rabbitmq_channels_closed_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_created_total",
    "rabbitmq_queues_deleted_total",
    "rabbitmq_channel_messages_published_total",
    "rabbitmq_channel_messages_confirmed_total",
    "rabbitmq_channel_messages_unconfirmed",
    "rabbitmq_channel_messages_unroutable_dropped_total",
    "rabbitmq_channel_messages_unroutable_returned_total",
    "rabbitmq_channel_messages_redelivered_total",
    "rabbitmq_channel_messages_delivered_total",
    "rabbitmq_channel_messages_delivered_ack_total",
    "rabbitmq_channel_messages_acked_total",
    "rabbitmq_channel_get_total",
    "rabbitmq_channel_get_ack_total",
    "rabbitmq_channel_get_empty_total",
    "rabbitmq_global_consumers",
    "rabbitmq_global_publishers",
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_received_confirm_total",
    "rabbitmq_global_messages_routed_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_delivered_total",
    "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    "rabbitmq_global_messages_delivered_get_auto_ack_total",
    "rabbitmq_global_messages_delivered_get_manual_ack_total",
    "rabbitmq_global_messages_acknowledged_total",
    "rabbitmq_global_messages_get_empty_total",
]


def node(**changes: object) -> NodeStats:
    """A node in which every count is different."""
    values: dict[str, object] = {
        name: 1000 + number
        for number, name in enumerate(field.name for field in dataclasses.fields(NodeStats))
    }
    values.update(
        node_name="rabbit@here",
        cluster_name="cluster",
        cluster_id="rabbitmq-cluster-id-x",
        version="1.2.3",
        rabbitmq_version="3.10.8",
        build="compiled",
        python="CPython 3.14.0, free-threaded",
        uptime_seconds=1.5,
        alarms={"disk"},
        sockets=3,
        amqp_authentications=Authentications(failed=21, succeeded=22),
        http_authentications=Authentications(failed=23, succeeded=24),
    )
    values.update(changes)
    return NodeStats(**values)  # type: ignore[arg-type]


def stats(per_object: bool = True) -> BrokerStats:
    """Two queues, two channels on one connection, two stores; the sums hold more than these, for what is gone."""
    queues = [
        QueueStats("/", "work", messages_ready=5, messages_unacked=2, messages_ready_bytes=50, messages_unacked_bytes=20,
                   consumers=1, published=30, messages_alpha=1, messages_beta=2, messages_gamma=3, messages_delta=4,
                   messages_paged_out=9),
        QueueStats("other", 'odd "name"\\\n', messages_ready=1, published=1),
    ]  # fmt: skip
    channels = [
        ChannelStats(f"{CONNECTION} (1)", CONNECTION, "/", consumers=1, unacked=2, delivered=9, acked=7),
        ChannelStats(f"{CONNECTION} (2)", CONNECTION, "/", published=31, unconfirmed=4, confirmed=27),
    ]
    connections = [
        ConnectionStats(CONNECTION, "/", "guest", received_bytes=4000, sent_bytes=3000, channels=2)
    ]
    return BrokerStats(
        node(),
        QueueStats(messages_ready=6, messages_unacked=2, messages_ready_bytes=51, messages_unacked_bytes=20,
                   consumers=1, published=131),
        ChannelStats(consumers=1, unacked=2, unconfirmed=4, published=231, published_confirm=200, confirmed=196,
                     delivered=100, delivered_no_ack=20, got=3, got_no_ack=4, redelivered=5, acked=98, get_empty=6),
        ConnectionStats(received_bytes=40000, sent_bytes=30000, channels=2),
        queues if per_object else [],
        channels if per_object else [],
        connections if per_object else [],
        StoreStats(epochs=70, sync_seconds=1.25, persistent=MessageStoreStats(messages=5), transient=MessageStoreStats(files=6)),
        [StoreStats("/", epochs=60, persistent=MessageStoreStats(messages=4)), StoreStats("other", epochs=8)]
        if per_object
        else [],
        StreamStats(segments=5, readers=2, max_offset_lag=7),
        [StreamStats("/", "events", segments=3, readers=2, first_offset=10, committed_offset=19, max_offset_lag=7)]
        if per_object
        else [],
    )  # fmt: skip


def samples(text: str) -> dict[tuple[str, ...], float]:
    """`(name, label=value, ...)` -> value; fails on a series that comes twice."""
    found: dict[tuple[str, ...], float] = {}
    for family in parse_text(text):
        for sample in family.samples:
            key = (sample.name, *(f"{label}={value}" for label, value in sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


class Many:
    """One queue again and again, which counts how often it was looked at. `left`: somebody looks no more."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0
        self.left = False

    def __iter__(self) -> Iterator[QueueStats]:
        try:
            for _ in range(self.count):
                self.taken += 1
                yield QueueStats("/", "q" * 200)
        finally:
            self.left = True


async def look(per_object: bool) -> BrokerStats:
    return stats(per_object)


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    running = await start_http("127.0.0.1", 0, look, lambda: True)
    yield running
    await running.stop()


@pytest.fixture
async def many() -> AsyncIterator[tuple[HttpServer, Many]]:
    """A server whose pages with queues do not fit into any buffer."""
    queues = Many(100_000)

    async def look_at_many(per_object: bool) -> BrokerStats:
        return dataclasses.replace(stats(per_object), queues=queues)

    running = await start_http("127.0.0.1", 0, look_at_many, lambda: True)
    yield running, queues
    await running.stop()


async def get(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, response.headers["Content-Type"], await response.text()


# -- names and values -------------------------------------------------------------------------------------------------


def summed() -> str:
    return "".join(metrics.render(metrics.SummedView(stats(False)))[0])


def per_object() -> str:
    return "".join(metrics.render(metrics.PerObjectView(stats()))[0])


def test_the_sums_include_what_is_gone() -> None:
    found = samples(summed())
    assert found["rabbitmq_queue_messages_ready",] == 6
    assert found["rabbitmq_queue_messages",] == 8
    assert found["rabbitmq_queue_messages_bytes",] == 71
    assert found["rabbitmq_queue_messages_published_total",] == 131
    assert found["rabbitmq_channel_messages_published_total",] == 231
    assert found["rabbitmq_connection_incoming_bytes_total",] == 40000
    assert found["rabbitpy_store_epochs_total",] == 70
    assert found["rabbitpy_store_sync_seconds_total",] == 1.25
    assert found["rabbitpy_message_store_messages", "store=persistent"] == 5
    assert found["rabbitpy_message_store_messages", "store=transient"] == 0
    assert found["rabbitpy_message_store_files", "store=transient"] == 6


def test_every_count_of_the_node_is_shown() -> None:
    found = samples(summed())
    shown = set(found.values())
    counts = [
        value
        for name, value in dataclasses.asdict(node()).items()
        if isinstance(value, int) and value >= 1000
    ]
    assert len(counts) > 15
    assert set(counts) <= shown


def test_every_count_of_queues_channels_connections_and_stores_is_shown() -> None:
    """A field that no row names would be counted for nothing."""
    changed = stats(False)
    numbers = itertools.count(10_000)
    store = changed.store_sum
    for part in (changed.queue_sum, changed.channel_sum, changed.connection_sum, store, store.persistent, store.transient):
        for field in dataclasses.fields(part):
            if field.type in ("int", "float"):
                setattr(part, field.name, next(numbers))
    last = next(numbers)
    assert last > 10_060
    shown = set(samples("".join(metrics.render(metrics.SummedView(changed))[0])).values())
    assert set(range(10_000, last)) <= shown


def test_global_counters_carry_protocol_and_queue_type() -> None:
    found = samples(summed())
    assert found["rabbitmq_global_messages_received_total", "protocol=amqp091"] == 231
    assert found["rabbitmq_global_messages_received_confirm_total", "protocol=amqp091"] == 200
    assert found["rabbitmq_global_messages_routed_total", "protocol=amqp091"] == 131
    labels = ("protocol=amqp091", "queue_type=rabbit_classic_queue")
    assert found["rabbitmq_global_messages_delivered_total", *labels] == 127
    assert found["rabbitmq_global_messages_delivered_consume_manual_ack_total", *labels] == 100
    assert found["rabbitmq_global_messages_delivered_consume_auto_ack_total", *labels] == 20
    assert found["rabbitmq_global_messages_delivered_get_manual_ack_total", *labels] == 3
    assert found["rabbitmq_global_messages_delivered_get_auto_ack_total", *labels] == 4


def test_message_stores_are_added_up_under_rabbitmqs_names() -> None:
    changed = stats(False)
    changed.store_sum.persistent.reads, changed.store_sum.transient.reads = 1, 20
    changed.store_sum.persistent.writes, changed.store_sum.transient.writes = 300, 4000
    found = samples("".join(metrics.render(metrics.SummedView(changed))[0]))
    assert (found["rabbitmq_msg_store_read_total",], found["rabbitmq_msg_store_write_total",]) == (21, 4300)


def test_alarms_are_0_or_1() -> None:
    found = samples(summed())
    assert found["rabbitmq_alarms_free_disk_space_watermark",] == 1
    assert found["rabbitmq_alarms_memory_used_watermark",] == 0
    assert found["rabbitmq_alarms_file_descriptor_limit",] == 0


def test_identity_and_build_are_labels() -> None:
    found = samples(summed())
    assert found[
        "rabbitmq_identity_info",
        "rabbitmq_cluster=cluster",
        "rabbitmq_cluster_permanent_id=rabbitmq-cluster-id-x",
        "rabbitmq_node=rabbit@here",
    ] == 1
    build = [key for key in found if key[0] == "rabbitmq_build_info"]
    assert len(build) == 1
    assert [label.split("=")[0] for label in build[0][1:]] == [
        "erlang_version", "prometheus_client_version", "prometheus_plugin_version", "rabbitmq_version",
    ]  # fmt: skip
    assert "rabbitmq_version=3.10.8" in build[0]
    assert (
        "rabbitpy_build_info",
        "build=compiled",
        "python=CPython 3.14.0, free-threaded",
        "version=1.2.3",
    ) in found


def test_files_and_sockets_are_counted() -> None:
    before = samples(summed())
    with socket.socket():
        after = samples(summed())
    assert after["rabbitmq_process_open_fds",] == before["rabbitmq_process_open_fds",] + 1
    assert 0 < after["rabbitmq_process_open_fds",] < after["rabbitmq_process_max_fds",]
    assert after["rabbitmq_process_open_tcp_sockets",] == 3
    assert after["rabbitmq_process_max_tcp_sockets",] <= after["rabbitmq_process_max_fds",]


def test_each_object_has_its_series() -> None:
    found = samples(per_object())
    assert found["rabbitmq_queue_messages_ready", "queue=work", "vhost=/"] == 5
    assert found["rabbitmq_queue_messages_ready", 'queue=odd "name"\\\n', "vhost=other"] == 1
    labels = (f"connection={CONNECTION}", "vhost=/")
    assert found["rabbitmq_channel_messages_acked_total", f"channel={CONNECTION} (1)", *labels] == 7
    assert found["rabbitmq_channel_messages_confirmed_total", f"channel={CONNECTION} (2)", *labels] == 27
    assert found["rabbitmq_connection_channels", f"connection={CONNECTION}", "user=guest", "vhost=/"] == 2
    assert ("rabbitmq_queue_messages_ready",) not in found
    assert found["rabbitpy_queue_messages_gamma", "queue=work", "vhost=/"] == 3
    assert found["rabbitmq_queue_messages_paged_out", "queue=work", "vhost=/"] == 9
    assert found["rabbitmq_stream_consumer_max_offset_lag", "queue=events", "vhost=/"] == 7
    assert found["rabbitpy_stream_committed_offset", "queue=events", "vhost=/"] == 19
    assert found["rabbitpy_store_epochs_total", "vhost=other"] == 8
    assert found["rabbitpy_message_store_messages", "store=persistent", "vhost=/"] == 4


def test_both_views_have_the_same_names() -> None:
    assert {key[0] for key in samples(summed())} == {key[0] for key in samples(per_object())}


def test_the_overview_dashboard_finds_its_series() -> None:
    names = {key[0] for key in samples(summed())}
    assert [name for name in OVERVIEW_DASHBOARD if name not in names] == []


def test_own_names_are_prefixed() -> None:
    own = {name for name, *_ in samples(summed()) if not name.startswith(("rabbitmq_", "process_"))}
    assert own
    assert all(name.startswith("rabbitpy_") for name in own)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("text", [summed, per_object])
def test_promtool_has_nothing_to_say(text: object) -> None:
    assert callable(text)
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text(),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_every_metric_says_what_it_is() -> None:
    """What promtool would say, for machines without it."""
    for family in parse_text(summed()):
        assert family.documentation
        assert family.type in {"gauge", "counter"}
        names = {sample.name for sample in family.samples}
        assert all(name.endswith("_total") == (family.type == "counter") for name in names)


# -- how queues and stores are read -------------------------------------------------------------------------------------


def test_the_places_of_a_queues_messages_are_added_up() -> None:
    def add_figures(figures: Figures) -> None:
        figures.alpha, figures.beta, figures.gamma, figures.delta = 4, 3, 2, 1
        figures.ready_ram, figures.unacked_ram, figures.ram_bytes = 4, 3, 500
        figures.persistent, figures.persistent_bytes = 9, 900
        figures.paged_out, figures.paged_in, figures.disk_reads, figures.disk_writes = 11, 12, 13, 14

    backing = SimpleNamespace(len=10, unacked=5, ready_bytes=1000, unacked_bytes=200, add_figures=add_figures)
    added = QueueStats()
    add_paging(added, backing)
    add_paging(added, backing)
    assert added == QueueStats(
        messages_alpha=8, messages_beta=6, messages_gamma=4, messages_delta=2, messages_ram=14, messages_ready_ram=8,
        messages_unacked_ram=6, messages_ram_bytes=1000,
        messages_paged_out=16, messages_paged_out_bytes=1400, messages_persistent=18, messages_persistent_bytes=1800,
        paged_out=22, paged_in=24, disk_reads=26, disk_writes=28,
    )  # fmt: skip


def test_what_deleted_queues_moved_to_disk_and_back_stays_in_the_sum() -> None:
    added = QueueStats(disk_reads=1)
    add_disk_traffic(added, SimpleNamespace(paged_out=2, paged_in=3, disk_reads=4, disk_writes=5))
    assert added == QueueStats(paged_out=2, paged_in=3, disk_reads=5, disk_writes=5)


class FakeMessageStore:
    """Its figures are `first`, `first` + 1 and so on, in the order of MessageStoreStats."""

    def __init__(self, first: int) -> None:
        self.first = first

    def counters(self) -> dict[str, int]:
        names = [field.name for field in dataclasses.fields(MessageStoreStats)]
        figures = {name: number for number, name in enumerate(names, self.first)}
        del figures["garbage_bytes"]
        return {**figures, "unwritten": 1_000_000}

    def file_summary(self) -> list[tuple[int, int, int]]:
        return [(1, 100, 132), (2, 90, 122 + self.first), (3, 0, 35)]  # each with 32 bytes of header


def test_the_figures_of_a_vhosts_store_are_added_up() -> None:
    files = SimpleNamespace(count=lambda: 6, size=lambda: 7)
    store = SimpleNamespace(
        journal=SimpleNamespace(
            epochs=1, epoch_failures=2, synced_bytes=3, sync_seconds=0.25, elided=5, files=files,
        ),
        scatter=SimpleNamespace(scatters=8), persistent_messages=FakeMessageStore(10), transient_messages=FakeMessageStore(20),
    )  # fmt: skip
    added = StoreStats()
    add_store(add_store(added, store), store)
    assert added == StoreStats(
        epochs=2, epoch_failures=4, synced_bytes=6, sync_seconds=0.5, elided_publishes=10, journal_files=12,
        journal_bytes=14, scatters=16,
        persistent=MessageStoreStats(20, 22, 24, 26, 28, 30, 32, 34),
        transient=MessageStoreStats(40, 42, 44, 46, 48, 50, 52, 54),
    )  # fmt: skip


# -- over HTTP --------------------------------------------------------------------------------------------------------


async def test_metrics_are_plain_text_by_default(server: HttpServer) -> None:
    status, content_type, body = await get(server.port, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    assert samples(body)["rabbitmq_queue_messages_ready",] == 6


async def test_metrics_are_openmetrics_for_who_accepts_it(server: HttpServer) -> None:
    status, content_type, body = await get(
        server.port,
        "/metrics",
        Accept="application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
    )
    assert status == 200
    assert content_type.startswith("application/openmetrics-text")
    names = {sample.name for family in parse_openmetrics(body) for sample in family.samples}
    assert set(OVERVIEW_DASHBOARD) <= names


async def ask(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    """Returns when the first of the answer is there: with its head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    return reader, writer, (await reader.readuntil(b"\r\n\r\n")).decode().lower()


async def test_a_page_is_made_no_faster_than_it_is_read(many: tuple[HttpServer, Many]) -> None:
    server, queues = many
    reader, writer, head = await ask(server.port, "/metrics/detailed?family=queue_coarse_metrics")
    assert "transfer-encoding: chunked" in head
    assert "content-length" not in head
    assert b"rabbitmq_detailed_queue_messages_ready" in await reader.readuntil(b"gauge")
    for _ in range(1_000):  # a thousand slices, if nothing held them up
        await asyncio.sleep(0)
    assert queues.taken < queues.count / 2
    text = await reader.read()
    writer.close()
    assert queues.taken == 3 * queues.count
    assert text.count(b'vhost="/"} 0\n') == 3 * queues.count
    assert text.endswith(b"\r\n0\r\n\r\n")


async def test_a_scraper_that_goes_is_noticed(many: tuple[HttpServer, Many], caplog: pytest.LogCaptureFixture) -> None:
    server, queues = many
    _, writer, _ = await ask(server.port, "/metrics/detailed?family=queue_coarse_metrics")
    writer.transport.abort()
    async with asyncio.timeout(10):
        while not queues.left:
            await asyncio.sleep(0)
    assert queues.taken < queues.count
    assert caplog.records == []


async def test_a_scraper_that_takes_nothing_is_left_alone(
    many: tuple[HttpServer, Many], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "PATIENCE_S", 0.1)
    server, queues = many
    reader, writer, _ = await ask(server.port, "/metrics/detailed?family=queue_coarse_metrics")
    async with asyncio.timeout(10):
        while not queues.left:
            await asyncio.sleep(0)
    assert queues.taken < queues.count
    with contextlib.suppress(ConnectionError):  # a reset may overtake what was sent before
        assert not (await reader.read()).endswith(b"\r\n0\r\n\r\n")
    writer.close()


async def test_a_head_is_answered_without_a_page(server: HttpServer) -> None:
    url = f"http://127.0.0.1:{server.port}/metrics"
    async with aiohttp.ClientSession() as session, session.head(url) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain")
        assert await response.text() == ""


async def test_per_object_and_detailed_over_http(server: HttpServer) -> None:
    _, _, body = await get(server.port, "/metrics/per-object")
    assert samples(body)["rabbitmq_queue_consumers", "queue=work", "vhost=/"] == 1
    status, _, body = await get(server.port, "/metrics/detailed?family=queue_coarse_metrics&vhost=/")
    assert status == 200
    found = samples(body)
    assert found["rabbitmq_detailed_queue_messages", "queue=work", "vhost=/"] == 7
    assert {key[0] for key in found} == {
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
    }
    assert all("vhost=/" in key for key in found)
    _, _, body = await get(server.port, "/metrics/detailed?family=queue_metrics&family=store_metrics&vhost=other")
    found = samples(body)
    assert found["rabbitpy_detailed_store_epochs_total", "vhost=other"] == 8
    assert all("vhost=other" in key for key in found)
    assert all(key[0].startswith(("rabbitmq_detailed_", "rabbitpy_detailed_")) for key in found)
    assert ("rabbitpy_detailed_queue_messages_alpha", 'queue=odd "name"\\\n', "vhost=other") in found


async def test_an_unknown_family_is_refused_with_those_that_exist(server: HttpServer) -> None:
    status, _, body = await get(server.port, "/metrics/detailed?family=nonsense")
    assert status == 400
    assert "unknown family nonsense" in body
    assert "queue_coarse_metrics" in body


async def test_the_sums_do_not_ask_for_single_objects() -> None:
    asked: list[bool] = []

    async def provider(per_object: bool) -> BrokerStats:
        asked.append(per_object)
        return stats(per_object)

    server = await start_http("127.0.0.1", 0, provider, lambda: True)
    await get(server.port, "/metrics")
    await get(server.port, "/metrics/per-object")
    await server.stop()
    assert asked == [False, True]


async def test_health_follows_the_broker() -> None:
    ready = False
    server = await start_http("127.0.0.1", 0, look, lambda: ready)
    assert await get(server.port, "/health/ready") == (
        503, "application/json; charset=utf-8", '{"status": "unavailable"}',
    )  # fmt: skip
    assert (await get(server.port, "/health/live"))[0] == 200
    ready = True
    assert await get(server.port, "/health/ready") == (
        200,
        "application/json; charset=utf-8",
        '{"status": "ok"}',
    )
    await server.stop()


async def test_anything_else_is_not_found(server: HttpServer) -> None:
    assert (await get(server.port, "/"))[0] == 404


async def test_a_port_in_use_is_one_clear_line(server: HttpServer) -> None:
    with pytest.raises(StartError) as caught:
        await start_http("127.0.0.1", server.port, look, lambda: True)
    assert (
        str(caught.value)
        == f"cannot listen for HTTP on 127.0.0.1:{server.port}: {os.strerror(errno.EADDRINUSE)}"
    )


async def test_a_host_that_does_not_exist_is_one_clear_line() -> None:
    with pytest.raises(StartError, match=r"^cannot listen for HTTP on no\.such\.host\.invalid:0: \S.*$"):
        await start_http("no.such.host.invalid", 0, look, lambda: True)


async def test_a_stopped_server_gives_its_port_back() -> None:
    server = await start_http("127.0.0.1", 0, look, lambda: True)
    await server.stop()
    again = await start_http("127.0.0.1", server.port, look, lambda: True)
    assert again.port == server.port
    await again.stop()
