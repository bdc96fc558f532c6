"""A daemon with several workers, as its clients see it: one broker, whichever process has their vhost."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from pamqp import commands as amqp

from broker_process import BrokerProcess, CtlFailed
from certificates import Authority
from management.conftest import Http
from rabbitpy_broker.data_dir import DataDirLock, lock_data_dir
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.workers.placement import FILE_NAME, Placement, by_name
from support import eventually
from wire_client import PROTOCOL_HEADER, WireClient

pytestmark = pytest.mark.own

VHOSTS = ("/", "east", "north", "west")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Workers(BrokerProcess):
    """A daemon with workers."""

    def add_vhosts(self) -> Workers:
        for vhost in VHOSTS[1:]:
            self.ctl("add_vhost", vhost)
            self.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        return self

    @property
    def http(self) -> Http:
        return Http(self.management)

    def listed(self) -> dict[int, dict[str, Any]]:
        """The workers by number."""
        return {int(one["worker"]): one for one in self.http.get("nodes")[0]["workers"]}

    def rows(self) -> list[dict[str, Any]]:
        """As rabbitpy-ctl has them."""
        found: list[dict[str, Any]] = json.loads(self.ctl("list_workers", "--formatter", "json"))
        return found

    def worker_of(self, vhost: str) -> int:
        return next(number for number, one in self.listed().items() if vhost in one["vhosts"])

    def pid_of(self, number: int) -> int:
        return int(next(row["pid"] for row in self.rows() if row["worker"] == number))

    def channel(self, vhost: str, **changes: Any) -> pika.adapters.blocking_connection.BlockingChannel:
        channel = pika.BlockingConnection(self.parameters(vhost=vhost, **changes)).channel()
        channel.confirm_delivery()
        return channel

    def again(self, vhost: str) -> pika.adapters.blocking_connection.BlockingChannel:
        """A channel as soon as there can be one."""

        def tried() -> pika.adapters.blocking_connection.BlockingChannel | None:
            try:
                return self.channel(vhost)
            except (pika.exceptions.AMQPError, OSError):
                return None

        found = eventually(tried, timeout=60)
        assert found is not None
        return found


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def start(workers: int = 2, config: dict[str, Any] | None = None) -> Workers:
        process = Workers(tmp_path, config, ["--workers", str(workers)])
        made.append(process)
        return process.start()

    yield start
    for process in made:
        process.stop()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    process = Workers(tmp_path_factory.mktemp("daemon"), None, ["--workers", "2"])
    process.start()
    yield process.add_vhosts()
    process.stop()


@pytest.fixture
def queue() -> str:
    return uuid.uuid4().hex


def put(channel: Any, queue: str, bodies: range) -> None:
    channel.queue_declare(queue, durable=True)
    for number in bodies:
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)


def bodies(channel: Any, queue: str) -> list[int]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(int(got[2]))
    return found


def test_each_vhost_has_its_worker_and_each_connection_comes_to_it(daemon: Workers, queue: str) -> None:
    assert len({daemon.worker_of(vhost) for vhost in VHOSTS}) == 2
    channels = {vhost: [daemon.channel(vhost) for _ in range(8)] for vhost in VHOSTS}
    for vhost, those in channels.items():
        for number, channel in enumerate(those):
            put(channel, queue, range(number, number + 1))
        assert bodies(those[-1], queue) == list(range(8)), vhost
    for row in daemon.rows():
        assert row["connections"] == 8 * sum(daemon.worker_of(vhost) == row["worker"] for vhost in VHOSTS)
    for those in channels.values():
        for channel in those:
            channel.connection.close()
    eventually(lambda: not any(row["connections"] for row in daemon.rows()))


def test_a_vhost_that_nobody_has_is_refused_and_a_new_one_is_there_at_once(daemon: Workers, queue: str) -> None:
    for _ in range(4):
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost nowhere not found"):
            daemon.channel("nowhere")
    daemon.ctl("add_vhost", "nowhere")
    daemon.ctl("set_permissions", "-p", "nowhere", "guest", ".*", ".*", ".*")
    for _ in range(4):
        put(daemon.channel("nowhere"), queue, range(1))
    daemon.ctl("delete_vhost", "nowhere")
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost nowhere not found"):
        daemon.channel("nowhere")


@pytest.mark.parametrize("vhost", VHOSTS)
def test_what_stands_behind_open_in_the_same_packet_is_not_lost(daemon: Workers, queue: str, vhost: str) -> None:
    """Also more of it than is read at once, and from a client that waits for nothing."""
    client = WireClient(daemon.host, daemon.port)
    parts: list[bytes] = [PROTOCOL_HEADER]
    client.send = parts.append  # type: ignore[method-assign]
    client.method(0, amqp.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
    client.method(0, amqp.Connection.TuneOk(2047, 131072, 0))
    client.method(0, amqp.Connection.Open(vhost))
    client.method(1, amqp.Channel.Open())
    client.method(1, amqp.Queue.Declare(queue=queue))
    for _ in range(300):
        client.publish(1, "", queue, b"x" * 4_000)
    client.method(1, amqp.Queue.Declare(queue=queue, passive=True))
    client.socket.sendall(b"".join(parts))
    for number, answer in ((0, amqp.Connection.Start), (0, amqp.Connection.Tune), (0, amqp.Connection.OpenOk)):
        client.expect(number, answer)
    client.expect(1, amqp.Channel.OpenOk)
    assert client.expect(1, amqp.Queue.DeclareOk).message_count == 0
    assert client.expect(1, amqp.Queue.DeclareOk).message_count == 300
    client.close()


def test_tls_ends_where_it_was_accepted(make: Callable[..., Workers], tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = Authority(tmp_path_factory.mktemp("tls"), "authority")
    certificate, key = authority.issue("server")
    options = {"certfile": certificate, "keyfile": key, "cacertfile": str(authority.file)}
    daemon = make(config={"listeners_ssl": ["127.0.0.1:0"], "ssl_options": options}).add_vhosts()
    context = ssl.create_default_context(cafile=str(authority.file))
    port = int(daemon.started["tls_listeners"][0].rpartition(":")[2])
    for vhost in VHOSTS:
        for number in range(4):
            channel = daemon.channel(vhost, port=port, ssl_options=pika.SSLOptions(context, "127.0.0.1"))
            put(channel, "q", range(number, number + 1))
            large = os.urandom(3_000_000)
            channel.basic_publish("", "q", large)
            assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(2)] == [b"%d" % number, large]
            assert all(one["ssl"] for one in daemon.http.get("connections"))
            channel.connection.close()


def test_a_vhost_moves_while_it_is_published_to(daemon: Workers, queue: str) -> None:
    before = daemon.worker_of("east")
    confirmed: list[int] = []
    stop = threading.Event()
    ended: list[int] = []

    def publish() -> None:
        number = 0
        channel = daemon.again("east")
        channel.queue_declare(queue, durable=True)
        while not stop.is_set():
            try:
                channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
                confirmed.append(number)
            except pika.exceptions.ConnectionClosedByBroker as error:
                ended.append(error.reply_code)
                channel = daemon.again("east")
            except pika.exceptions.AMQPError:
                channel = daemon.again("east")
            number += 1

    publishing = threading.Thread(target=publish)
    publishing.start()
    other = daemon.channel(next(vhost for vhost in VHOSTS if daemon.worker_of(vhost) == before and vhost != "east"))
    for number in (1 - before, before, 1 - before):
        count = len(confirmed)
        eventually(lambda count=count: len(confirmed) > count + 50, timeout=60)
        daemon.ctl("move_vhost", "east", str(number))
        assert daemon.worker_of("east") == number
    count = len(confirmed)
    eventually(lambda: len(confirmed) > count + 50, timeout=60)
    stop.set()
    publishing.join(60)
    assert 320 in ended
    found = bodies(daemon.again("east"), queue)
    assert found == sorted(set(found))
    assert set(confirmed) <= set(found)
    put(other, "untouched", range(1))  # its connection has lived through all of it
    with pytest.raises(CtlFailed, match="there is no worker 7"):
        daemon.ctl("move_vhost", "east", "7")
    daemon.restart()
    assert daemon.worker_of("east") == 1 - before


def test_a_connection_finds_a_vhost_that_has_moved_on(make: Callable[..., Workers], queue: str) -> None:
    """Workers remember where they found a vhost; who remembers what is no longer true sends a client astray once."""
    daemon = make(3).add_vhosts()
    for number in (0, 1, 2, 0):
        daemon.ctl("move_vhost", "east", str(number))
        channels = [daemon.channel("east") for _ in range(6)]
        assert [row["connections"] for row in daemon.rows() if row["worker"] == number] == [len(channels)]
        for channel in channels:
            channel.connection.close()
        eventually(lambda: not any(row["connections"] for row in daemon.rows()))
    daemon.ctl("delete_vhost", "east")
    for _ in range(6):
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost east not found"):
            daemon.channel("east")


def test_a_worker_that_is_killed_comes_back_and_others_notice_nothing(daemon: Workers, queue: str) -> None:
    channels = {vhost: daemon.channel(vhost) for vhost in VHOSTS}
    for channel in channels.values():
        put(channel, queue, range(50))
    killed = daemon.worker_of("east")
    spared = [vhost for vhost in VHOSTS if daemon.worker_of(vhost) != killed]
    assert spared
    pid = daemon.pid_of(killed)
    os.kill(pid, signal.SIGKILL)
    for vhost in spared:
        put(channels[vhost], queue, range(50, 60))
        assert bodies(channels[vhost], queue) == list(range(60))
    for vhost in set(VHOSTS) - set(spared):
        assert bodies(daemon.again(vhost), queue) == list(range(50))
    assert daemon.pid_of(killed) != pid


def test_another_number_of_workers_has_the_same_vhosts(make: Callable[..., Workers]) -> None:
    daemon = make(3).add_vhosts()
    daemon.ctl("move_vhost", "east", str((by_name("east", 3) + 1) % 3))
    for vhost in VHOSTS:
        put(daemon.channel(vhost), "q", range(10))
    for workers in (1, 3):
        daemon.stop()
        daemon.args = ["--workers", str(workers)]
        daemon.start()
        for vhost in VHOSTS:
            channel = daemon.channel(vhost)
            found = bodies(channel, "q")
            assert found == list(range(10))
            put(channel, "q", range(10))


def test_a_change_of_a_user_counts_everywhere(daemon: Workers, queue: str) -> None:
    daemon.ctl("add_user", "eve", "old")
    for vhost in VHOSTS:
        daemon.ctl("set_permissions", "-p", vhost, "eve", ".*", ".*", ".*")

    def log_in(password: str) -> list[bool]:
        let_in = []
        for vhost in VHOSTS * 2:
            try:
                pika.BlockingConnection(daemon.parameters(vhost=vhost, user="eve", password=password)).close()
                let_in.append(True)
            except (pika.exceptions.ProbableAuthenticationError, pika.exceptions.ProbableAccessDeniedError):
                let_in.append(False)
        return let_in

    assert all(log_in("old"))
    daemon.ctl("change_password", "eve", "new")
    assert not any(log_in("old"))
    assert all(log_in("new"))
    held = [daemon.channel(vhost, user="eve", password="new") for vhost in VHOSTS]
    daemon.ctl("delete_user", "eve")
    assert not any(log_in("new"))
    for channel in held:
        with pytest.raises(pika.exceptions.AMQPError):
            put(channel, queue, range(1))


def test_a_daemon_whose_supervisor_is_killed_leaves_nobody_behind(daemon: Workers, queue: str) -> None:
    pids = [daemon.pid_of(number) for number in daemon.listed()]
    daemon.crash()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout=60)
    daemon.start()
    put(daemon.channel("/"), queue, range(1))


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_data_directory_is_locked_while_a_worker_lives(daemon: Workers) -> None:
    pids = [daemon.pid_of(number) for number in daemon.listed()]
    daemon.crash()

    def lock() -> DataDirLock | None:
        try:
            return lock_data_dir(daemon.data_dir)
        except StartError:
            return None

    held = eventually(lock, timeout=60, interval=0.0005)
    assert not any(map(lives, pids))
    assert held is not None
    held.release()
    daemon.start()


def test_a_vhost_that_cannot_be_moved_stays(daemon: Workers, queue: str) -> None:
    """The file that says where it is cannot be written."""
    before = daemon.worker_of("north")
    put(daemon.channel("north"), queue, range(10))
    blocked = daemon.data_dir / "placement.new"
    blocked.mkdir()
    with pytest.raises(CtlFailed, match=f"vhost 'north' stays with worker {before}"):
        daemon.ctl("move_vhost", "north", str(1 - before))
    assert daemon.worker_of("north") == before
    assert bodies(daemon.again("north"), queue) == list(range(10))
    blocked.rmdir()
    put(daemon.channel("north"), queue, range(10))
    daemon.ctl("move_vhost", "north", str(1 - before))
    assert bodies(daemon.again("north"), queue) == list(range(10))


def test_what_is_left_of_a_vhost_does_not_come_back_with_its_name(daemon: Workers, queue: str) -> None:
    """A worker is killed between the deletion's two steps: the definitions have the vhost no longer, the folder is there."""
    daemon.ctl("add_vhost", "left")
    daemon.ctl("set_permissions", "-p", "left", "guest", ".*", ".*", ".*")
    put(daemon.channel("left"), queue, range(10))
    number = daemon.worker_of("left")
    with sqlite3.connect(daemon.data_dir / "definitions.sqlite", timeout=30) as definitions:
        definitions.execute("DELETE FROM vhosts WHERE name = 'left'")
        definitions.execute("DELETE FROM queues WHERE vhost = 'left'")
    definitions.close()
    pid = daemon.pid_of(number)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: daemon.pid_of(number) not in (0, pid) and daemon.listed()[number]["running"], timeout=60)
    daemon.ctl("add_vhost", "left")
    daemon.ctl("set_permissions", "-p", "left", "guest", ".*", ".*", ".*")
    channel = daemon.again("left")
    put(channel, queue, range(3))
    assert bodies(channel, queue) == [0, 1, 2]
    put(channel, queue, range(5))
    daemon.restart()
    assert bodies(daemon.channel("left"), queue) == list(range(5))


def test_a_setting_that_workers_cannot_have_is_refused(make: Callable[..., Workers]) -> None:
    with pytest.raises(AssertionError, match="event_journal: a daemon with several workers has none"):
        make(config={"event_journal": "on"})


def test_placement_is_kept_and_fits_the_number_of_workers(tmp_path: Path) -> None:
    names = [f"v{number}" for number in range(40)]
    placement = Placement(tmp_path, 4, by_load=False)
    placement.load(names)
    assert {placement.place(name) for name in names} == {0, 1, 2, 3}
    assert not (tmp_path / FILE_NAME).exists()
    other = (by_name("v0", 4) + 1) % 4
    placement.put("v0", other)
    assert Placement(tmp_path, 4, by_load=False).place("v0") == other
    assert Placement(tmp_path, 1, by_load=False).place("v0") == 0
    placement.forget("v0")
    assert Placement(tmp_path, 4, by_load=False).place("v0") == by_name("v0", 4)
    by_load = Placement(tmp_path, 4, by_load=True)
    by_load.load(names)
    assert [len(by_load.of_worker(number)) for number in range(4)] == [10, 10, 10, 10]
    again = Placement(tmp_path, 4, by_load=True)
    again.load(reversed(names))
    assert again.table() == by_load.table()


def test_lines_of_several_workers_do_not_run_together(tmp_path: Path) -> None:
    """Standard error is one file for all of them, also where Python buffers nothing, as in the container."""
    daemon = Workers(tmp_path, None, ["--workers", "2"], env={"PYTHONUNBUFFERED": "1"})
    daemon.start()
    try:
        daemon.add_vhosts()

        def connect() -> None:
            for vhost in VHOSTS * 10:
                daemon.channel(vhost).connection.close()

        clients = [threading.Thread(target=connect) for _ in range(4)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(60)
    finally:
        daemon.stop()
    lines = daemon.log_text().splitlines()
    assert len(lines) > 300
    assert all(json.loads(line)["event"] for line in lines)
