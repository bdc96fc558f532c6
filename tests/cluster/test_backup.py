"""Replicated vhosts backed up into a file while they are used, and restored from it, here and in another cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess, CtlFailed
from cluster.replicated import PATIENCE, Cluster, Replicated, drained
from cluster.stubborn import Stubborn
from cluster.test_hand_over import assert_nothing_lost
from rabbitpy_broker.cluster.engines import engine_for
from rabbitpy_broker.cluster.membership import VHostRecord
from support import eventually, unique

BODY = 2_000  # bytes
only_kafka = pytest.mark.parametrize("engine_servers", ["kafka"], indirect=True, scope="module")
only_postgres = pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")


@dataclasses.dataclass
class Ledger:
    """What is certain of the queue `orders`: numbers are published in order, from 0 on, and acked in order."""

    confirmed: int = 0  # so many were
    acked: int = 0  # so many were, in transactions that were told


def declare(vhost: Replicated) -> None:
    channel = vhost.connect(vhost.owner).channel()
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare("orders", durable=True)
    channel.queue_bind("orders", "shop", "order.#")
    channel.queue_declare("ledger", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("history", durable=True, arguments={"x-queue-type": "stream"})


def send(channel: Any, exchange: str, key: str, number: int) -> None:
    properties = pika.BasicProperties(delivery_mode=2)
    channel.basic_publish(exchange, key, str(number).encode().ljust(BODY), properties)


@contextmanager
def traffic(vhost: Replicated) -> Iterator[Ledger]:
    """A publisher with confirms, and a consumer that acks in transactions."""
    ledger, stop = Ledger(), threading.Event()
    publisher = vhost.publisher(vhost.owner)
    consumer = vhost.connect(vhost.owner).channel()
    consumer.tx_select()

    def publish() -> None:
        while not stop.is_set():
            send(publisher, "shop", "order.new", ledger.confirmed)
            ledger.confirmed += 1

    def consume() -> None:
        while not stop.is_set():
            for _ in range(3):
                method, _, _ = consumer.basic_get("orders")
                if method is not None:
                    consumer.basic_ack(method.delivery_tag, multiple=True)
                    got = True
                else:
                    got = False
                consumer.tx_commit()
                ledger.acked += got
            stop.wait(0.05)  # so that more is published than acked

    threads = [threading.Thread(target=work) for work in (publish, consume)]
    for thread in threads:
        thread.start()
    try:
        yield ledger
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def restored(node: BrokerProcess, file: Path, replicas: int | None) -> str:
    """The name of the vhost, which guest may use."""
    name = unique("restored")
    node.ctl("restore_vhost", name, str(file), *([] if replicas is None else ["--replicas", str(replicas)]))
    node.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    return name


def numbers_at(node: BrokerProcess, vhost: str, queue: str) -> list[int]:
    connection = pika.BlockingConnection(node.parameters(vhost=vhost))
    try:
        return [number for number, _ in drained(connection, queue)]
    finally:
        connection.close()


def first_of_stream(node: BrokerProcess, vhost: str, count: int) -> list[int]:
    """The first so many entries of `history`."""
    connection = pika.BlockingConnection(node.parameters(vhost=vhost))
    try:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=count)
        found = channel.consume("history", arguments={"x-stream-offset": "first"}, inactivity_timeout=PATIENCE)
        return [int(body) for _, (_, _, body) in zip(range(count), found, strict=False)]
    finally:
        connection.close()


def logs_and_objects(url: str) -> list[str]:
    """All that the engine has of vhosts."""

    async def asked() -> list[str]:
        engine = engine_for(url)
        await engine.start()
        try:
            found = await engine.registry.list("vhost/")
            is_made = {key: bool(msgspec.json.decode(one.value, type=VHostRecord).replicas) for key, one in found.items()}
            records = [key if made else f"{key} begun" for key, made in is_made.items()]
            return [*await engine.logs(), *[one.name for one in await engine.objects.list()], *records]
        finally:
            await engine.stop()

    return asyncio.run(asked())


@pytest.fixture
def elsewhere(cluster: Cluster, tmp_path: Path) -> Iterator[BrokerProcess]:
    """The only node of another cluster."""
    url = cluster.url
    if url.startswith("kafka:"):
        url = url.replace(url.partition("?")[0].rpartition("/")[2], unique("elsewhere"))
    else:
        name = unique("elsewhere").replace("-", "_")
        asyncio.run(make_database(url, name))
        url = urlsplit(url)._replace(path=f"/{name}").geturl()
    node = BrokerProcess(tmp_path, {"cluster": {"engine": url, "node": "away"}})
    node.start()
    yield node
    node.stop()


async def make_database(url: str, name: str) -> None:
    connection = await asyncpg.connect(url, target_session_attrs="primary")
    try:
        await connection.execute(f'CREATE DATABASE "{name}"')
    finally:
        await connection.close()


def test_under_load_and_restored_elsewhere(cluster: Cluster, vhost: Replicated, elsewhere: BrokerProcess, tmp_path: Path):
    """At a follower and at the owner: what was confirmed before is there, once and in order, and what was acked before is not."""
    declare(vhost)
    channel = vhost.publisher(vhost.owner)
    for number in range(20):
        send(channel, "", "ledger", number)
        send(channel, "", "history", number)
    follower = next(name for name in cluster.nodes if name != vhost.owner)
    before: list[Ledger] = []
    files = [tmp_path / "follower.backup", tmp_path / "owner.backup"]
    with traffic(vhost) as ledger:
        for name, file in zip((follower, vhost.owner), files, strict=True):
            reached = ledger.confirmed + 50
            eventually(lambda reached=reached: ledger.confirmed >= reached and ledger.acked, timeout=PATIENCE)
            before.append(dataclasses.replace(ledger))
            assert "position" in cluster.nodes[name].ctl("backup_vhost", "-q", vhost.name, str(file))
            assert list(tmp_path.glob("*.part")) == []
        reached = ledger.confirmed + 5
        eventually(lambda: ledger.confirmed >= reached, timeout=PATIENCE)
    for file, then in zip(files, before, strict=True):
        name = restored(elsewhere, file, 1)
        found = numbers_at(elsewhere, name, "orders")
        assert found == list(range(found[0], found[-1] + 1))
        assert then.acked <= found[0] <= ledger.acked
        assert then.confirmed <= found[-1] + 1 <= ledger.confirmed + 1
        assert numbers_at(elsewhere, name, "ledger") == list(range(20))
        assert first_of_stream(elsewhere, name, 20) == list(range(20))
    assert numbers_at(cluster.nodes[vhost.owner], vhost.name, "orders") == list(range(ledger.acked, ledger.confirmed))


@only_postgres
def test_restored_beside_it_on_all_nodes(cluster: Cluster, vhost: Replicated, tmp_path: Path):
    """It goes on as any replicated vhost does: messages come, and another node takes it over; so does the first one."""
    declare(vhost)
    channel = vhost.publisher(vhost.owner)
    for number in range(30):
        send(channel, "shop", "order.new", number)
    file = tmp_path / "file"
    cluster.nodes[vhost.owner].ctl("backup_vhost", vhost.name, str(file))
    follower = next(name for name in cluster.nodes if name != vhost.owner)
    other = Replicated.__new__(Replicated)  # not made, but restored
    other.cluster, other.connections = cluster, []
    other.name = restored(cluster.nodes[follower], file, 3)
    other.owner = other.find_owner()
    try:
        more = other.publisher(other.owner)
        for number in range(30, 40):
            send(more, "shop", "order.new", number)
        eventually(
            lambda: all(other.position_at(name) >= other.position_at(other.owner) for name in cluster.nodes), timeout=PATIENCE
        )
        cluster.nodes[other.owner].crash()
        owner = other.find_owner()
        assert numbers_at(cluster.nodes[owner], other.name, "orders") == list(range(40))
    finally:
        other.close()
    cluster.start()
    assert numbers_at(cluster.nodes[vhost.find_owner()], vhost.name, "orders") == list(range(30))


@only_kafka
def test_one_that_is_converted_under_load(cluster: Cluster, vhost: Replicated, tmp_path: Path):
    """Replicated, one node's, backed up, and replicated again; its owner is killed then. The backup has what there was."""
    vhost.connect(vhost.owner).channel().queue_declare("orders", durable=True)
    node, file = cluster.nodes[vhost.owner], tmp_path / "file"
    with Stubborn(cluster, vhost).going_on() as stubborn:
        stubborn.goes_on()
        node.ctl("unreplicate_vhost", vhost.name)
        stubborn.goes_on()
        confirmed = stubborn.confirmed
        eventually(lambda: is_backed_up(node, vhost.name, file), timeout=PATIENCE)
        node.ctl("replicate_vhost", vhost.name, "--replicas", "3")
        stubborn.goes_on()
        others = [name for name in cluster.nodes if name != vhost.owner]
        eventually(lambda: all(vhost.position_at(name) > 0 for name in others), timeout=PATIENCE, interval=0.2)
        node.crash()
        vhost.find_owner(other_than=vhost.owner)
        stubborn.goes_on()
    assert_nothing_lost(vhost, stubborn)
    cluster.start()
    assert set(numbers_at(node, restored(node, file, 2), "orders")) >= set(range(confirmed))


def is_backed_up(node: BrokerProcess, vhost: str, file: Path) -> bool:
    """Not yet, while what the engine has of the vhost is still removed."""
    try:
        node.ctl("backup_vhost", vhost, str(file))
    except CtlFailed as failed:
        if "it is being made replicated, or was until now" in failed.stderr:
            return False
        raise
    return True


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def cut_by_a_byte(data: bytes) -> bytes:
    return data[:-1]


def flipped(data: bytes) -> bytes:
    at = data.index(b"17".ljust(BODY))
    return data[:at] + b"71" + data[at + 2 :]


def newer(data: bytes) -> bytes:
    """The archive of a later version: the same, but for the number in the manifest."""
    return data.replace(b'"format":1', b'"format":9')


def renumbered(data: bytes) -> bytes:
    """The manifest's own number is another one."""
    at = data.index(b'"number":') + len(b'"number":')
    return data[:at] + (b"9" if data[at : at + 1] != b"9" else b"8") + data[at + 1 :]


def no_backup(_: bytes) -> bytes:
    return b"#!/bin/sh\n" * 1000


@only_postgres
def test_what_is_refused(cluster: Cluster, vhost: Replicated, tmp_path: Path):
    """With one line, and nothing of it is there: no vhost, no log, no object."""
    declare(vhost)
    channel = vhost.publisher(vhost.owner)
    for number in range(30):
        send(channel, "shop", "order.new", number)
    node, file, copy = cluster.nodes[vhost.owner], tmp_path / "file", tmp_path / "copy"
    node.ctl("backup_vhost", vhost.name, str(file))
    whole = file.read_bytes()
    there = logs_and_objects(cluster.url)
    spoilers: list[tuple[Callable[[bytes], bytes], str]] = [
        (cut, "the file ends"),
        (cut_by_a_byte, "the file does not end where it should"),
        (flipped, "not what its manifest says"),
        (renumbered, "not what its manifest says"),
        (newer, "has format 9, and this version knows 1"),
        (no_backup, "no backup of a vhost"),
    ]
    for spoiler, text in spoilers:
        copy.write_bytes(spoiler(whole))
        refused(node, text, "restore_vhost", "another", str(copy), "--replicas", "3")
    refused(node, "No such file", "restore_vhost", "another", str(tmp_path / "nowhere"), "--replicas", "3")
    refused(node, "there is one", "restore_vhost", vhost.name, str(file), "--replicas", "3")
    refused(node, "9 replicas need as many nodes", "restore_vhost", "another", str(file), "--replicas", "9")
    refused(node, "nowhere", "backup_vhost", "nowhere", str(copy))
    refused(node, "is a folder", "backup_vhost", vhost.name, str(tmp_path))
    assert logs_and_objects(cluster.url) == there
    assert "another" not in node.ctl("list_vhosts", "-q").split()
    assert numbers_at(node, restored(node, file, 1), "orders") == list(range(30))


def refused(node: BrokerProcess, text: str, *arguments: str) -> None:
    with pytest.raises(CtlFailed) as failed:
        node.ctl(*arguments)
    (line,) = failed.value.stderr.removeprefix("Error:\n").splitlines()
    assert text in line


def test_killed_in_the_middle(cluster: Cluster, vhost: Replicated, tmp_path: Path):
    """Of a backup: the file is what it was, and what is left is no backup. Of a restore: nothing is left half made."""
    declare(vhost)
    channel = vhost.publisher(vhost.owner)
    for number in range(30):
        channel.basic_publish("shop", "order.new", str(number).encode().ljust(1_000_000), pika.BasicProperties(delivery_mode=2))
    name = next(name for name in cluster.nodes if name != vhost.owner)
    node, file = cluster.nodes[name], tmp_path / "file"
    file.write_bytes(b"of old")
    with killed_when(node, lambda: list(tmp_path.glob("file.part"))), pytest.raises(CtlFailed):
        node.ctl("backup_vhost", vhost.name, str(file))
    assert file.read_bytes() == b"of old"
    for left in tmp_path.glob("file.part"):
        refused(cluster.nodes[vhost.owner], "the file ends", "restore_vhost", "another", str(left), "--replicas", "1")
    node.start()
    node.ctl("backup_vhost", vhost.name, str(file))

    there = logs_and_objects(cluster.url)
    (log,) = (name for name in there if name.startswith(f"{vhost.name}."))
    checkpoints = f"checkpoint/{log.removeprefix(f'{vhost.name}.')}/"  # of this vhost: they may come at any time
    begun = lambda: any(one.startswith("vhost/another") for one in logs_and_objects(cluster.url))  # noqa: E731 -- one line
    with killed_when(node, begun), pytest.raises(CtlFailed):
        node.ctl("restore_vhost", "another", str(file), "--replicas", "3")
    node.start()
    eventually(lambda: settled(logs_and_objects(cluster.url), there, besides=checkpoints), timeout=PATIENCE)
    assert numbers_at(node, restored(node, file, 3), "orders") == list(range(30))


def test_plain_vhosts(tmp_path: Path):
    """One of a broker without an engine, while it is used; restored it is there after a kill, and so is the one that was."""
    (tmp_path / "node").mkdir()
    node = BrokerProcess(tmp_path / "node")
    node.start()
    try:
        channel = plain_channel(node, "/")
        channel.queue_declare("orders", durable=True)
        channel.queue_declare("ledger", durable=True, arguments={"x-queue-type": "quorum"})
        for number in range(40):
            for queue in ("orders", "ledger"):
                body = str(number).encode().ljust(10_000 if number % 4 == 0 else 10)
                channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
        for _ in range(7):
            channel.basic_get("orders", auto_ack=True)
        file = tmp_path / "file"
        with publishing(node, "/") as ledger:
            eventually(lambda: ledger.confirmed > 20)
            node.ctl("backup_vhost", "/", str(file))
            confirmed = ledger.confirmed
            eventually(lambda: ledger.confirmed > confirmed + 5)
        refused(node, "not what its manifest says", "restore_vhost", "another", spoilt(file))
        refused(node, "there is one", "restore_vhost", "/", str(file))
        refused(node, "replicas need an engine", "restore_vhost", "another", str(file), "--replicas", "1")
        assert [folder.name for folder in (node.data_dir / "vhosts").iterdir()] == ["%2F"]
        name = restored(node, file, 0)
        (node.data_dir / "vhosts" / "%2F" / "checkpoint").mkdir()  # what a kill in the middle of a backup leaves
        node.crash()
        node.start()
        for vhost in (name, "/"):
            assert numbers_at(node, vhost, "orders") == list(range(7, 40))
            assert numbers_at(node, vhost, "ledger") == list(range(40))
        found = numbers_at(node, name, "busy")
        assert found == list(range(len(found)))
        assert 20 < len(found) <= ledger.confirmed
        assert sorted(path.name for path in (node.data_dir / "vhosts" / "%2F").iterdir() if path.name in LEFT) == []
        node.assert_clean_log()
    finally:
        node.stop()


LEFT = {"checkpoint", "restoring", "log_position"}


def plain_channel(node: BrokerProcess, vhost: str) -> Any:
    channel = pika.BlockingConnection(node.parameters(vhost=vhost)).channel()
    channel.confirm_delivery()
    return channel


@contextmanager
def publishing(node: BrokerProcess, vhost: str) -> Iterator[Ledger]:
    """With a confirm for each, to the queue `busy`."""
    ledger, stop = Ledger(), threading.Event()
    channel = plain_channel(node, vhost)
    channel.queue_declare("busy", durable=True)

    def publish() -> None:
        while not stop.is_set():
            send(channel, "", "busy", ledger.confirmed)
            ledger.confirmed += 1

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield ledger
    finally:
        stop.set()
        thread.join()


def spoilt(file: Path) -> str:
    """A copy with a bit that is another one."""
    data = bytearray(file.read_bytes())
    data[data.index(b"17".ljust(10))] ^= 1
    copy = file.with_name("spoilt")
    copy.write_bytes(data)
    return str(copy)


@only_postgres
def test_replicated_from_a_plain_one_and_back(cluster: Cluster, vhost: Replicated, tmp_path: Path):
    """The number of replicas is said, or is what the backup says."""
    declare(vhost)
    channel = vhost.publisher(vhost.owner)
    for number in range(30):
        channel.basic_publish("shop", "order.new", str(number).encode().ljust(9_000), pika.BasicProperties(delivery_mode=2))
    node, files = cluster.nodes[vhost.owner], [tmp_path / "replicated", tmp_path / "plain"]
    node.ctl("backup_vhost", vhost.name, str(files[0]))
    plain = restored(node, files[0], 0)
    assert plain not in node.ctl("cluster_status", "--formatter", "json")
    send(plain_channel(node, plain), "shop", "order.new", 30)
    node.ctl("backup_vhost", plain, str(files[1]))
    for file, replicas, count in ((files[0], None, 30), (files[1], 3, 31)):
        name = restored(node, file, replicas)
        assert numbers_at(node, name, "orders") == list(range(count))
        status = json.loads(node.ctl("cluster_status", "--formatter", "json"))
        assert [len(one["replicas"]) for one in status["replicated_vhosts"] if one["name"] == name] == [3]


def settled(now: list[str], before: list[str], besides: str) -> bool:
    """Nothing is half made: nothing came, or a record did, with all that belongs to it; `besides` what begins with this."""
    new = {name for name in set(now) - set(before) if not name.startswith(besides)}
    return not new or "vhost/another" in new


@contextmanager
def killed_when(node: BrokerProcess, condition: Callable[[], object]) -> Iterator[None]:
    def kill() -> None:
        eventually(condition, timeout=PATIENCE, interval=0.001)
        node.crash()

    killing = threading.Thread(target=kill)
    killing.start()
    yield
    killing.join()
