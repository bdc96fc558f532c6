"""Fixtures of the tests that talk to a broker as a process.

`broker` is one daemon for the whole run (one per xdist worker), or the broker that RABBITPY_TEST_URL names: then the tests
marked `own` (our daemon's process, configuration and limits) and `differs` (where we depart from RabbitMQ on purpose)
are skipped. `own_broker` starts further daemons with settings of their own.

Everything a test makes under a name from `new_name`, `queue` or `exchange` is deleted after it, because the broker
outlives the test.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from hypothesis import HealthCheck, settings
from pika.adapters.blocking_connection import BlockingChannel

# The checkout, for the tools in perf: at the end, so that what is installed goes before what lies there, also under
# `python -m pytest`, which puts it first.
ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT] + [str(ROOT)]

pytest.register_assert_rewrite("broker_process", "support", "wire_client")

from broker_process import BrokerAddress, BrokerProcess, CtlFailed, run_ctl
from support import unique
from wire_client import WireClient

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# What the broker has answered is in the exception. Of a client that tries again and again this would be all that is seen of a
# test that failed.
logging.getLogger("pika").setLevel(logging.CRITICAL)

TEST_URL = os.environ.get("RABBITPY_TEST_URL")
TEST_CTL = os.environ.get("RABBITPY_TEST_CTL")


def pytest_addoption(parser: pytest.Parser) -> None:
    full = "the cluster's model checker in its large sizes, and kills between all steps of a hand-over"
    parser.addoption("--cluster-model-full", action="store_true", help=full)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own: about our daemon's own process, configuration or limits")
    config.addinivalue_line("markers", "differs(reason): where this broker departs from RabbitMQ on purpose")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not TEST_URL:
        return
    if item.get_closest_marker("own"):
        pytest.skip("about our own daemon; RABBITPY_TEST_URL names another broker")
    differs = item.get_closest_marker("differs")
    if differs:
        pytest.skip(f"differs from RabbitMQ: {differs.args[0]}")


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerAddress]:
    if TEST_URL:
        yield BrokerAddress.from_url(TEST_URL)
        return
    process = BrokerProcess(tmp_path_factory.mktemp("broker"))
    process.start()
    yield process
    process.stop()


@pytest.fixture
def broker(shared_broker: BrokerAddress) -> Iterator[BrokerAddress]:
    """The broker under test; a test that kills it fails, and the next one gets a new one."""
    if isinstance(shared_broker, BrokerProcess) and not shared_broker.alive():
        shared_broker.start()
    yield shared_broker
    if isinstance(shared_broker, BrokerProcess):
        assert shared_broker.alive(), f"the broker died:\n{shared_broker.log_text()[-8000:]}"
        shared_broker.assert_clean_log()


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., BrokerProcess]]:
    """`own_broker(config={...}, args=[...], env={...})` starts a daemon that is stopped after the test."""
    processes: list[BrokerProcess] = []

    def start(
        config: Mapping[str, Any] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        listen: str = "127.0.0.1:0",
    ) -> BrokerProcess:
        process = BrokerProcess(tmp_path_factory.mktemp("own_broker"), config, args, env, listen)
        processes.append(process)
        return process.start()

    yield start
    with contextlib.ExitStack() as stack:  # one that fails to stop does not keep the others running
        for process in processes:
            stack.callback(process.stop)


@pytest.fixture
def new_name(broker: BrokerAddress) -> Iterator[Callable[[str], str]]:
    """`new_name("orders")` is a unique name; a queue and an exchange of that name are deleted after the test."""
    names: list[str] = []

    def make(prefix: str = "test") -> str:
        names.append(unique(prefix))
        return names[-1]

    yield make
    if names:
        connection = pika.BlockingConnection(broker.parameters())
        channel = connection.channel()
        for name in names:
            channel.queue_delete(name)
            channel.exchange_delete(name)
        connection.close()


@pytest.fixture
def connect(broker: BrokerAddress, new_name: object) -> Iterator[Callable[..., pika.BlockingConnection]]:
    """`connect(user=..., vhost=..., heartbeat=..., to=another_broker)` is an open pika connection, closed after the test."""
    connections: list[pika.BlockingConnection] = []

    def open_connection(to: BrokerAddress | None = None, **changes: Any) -> pika.BlockingConnection:
        connection = pika.BlockingConnection((to or broker).parameters(**changes))
        connections.append(connection)
        return connection

    yield open_connection
    for connection in connections:
        if connection.is_open:
            # the test may have provoked a close that has not been read yet
            with contextlib.suppress(pika.exceptions.AMQPConnectionError):
                connection.close()


@pytest.fixture
def connection(connect: Callable[..., pika.BlockingConnection]) -> pika.BlockingConnection:
    return connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel, new_name: Callable[[str], str]) -> Callable[..., str]:
    """`queue(durable=True, arguments={...})` declares a queue under a fresh name on `channel` and returns the name."""

    def declare(**settings: Any) -> str:
        name = new_name("queue")
        channel.queue_declare(name, **settings)
        return name

    return declare


@pytest.fixture
def exchange(channel: BlockingChannel, new_name: Callable[[str], str]) -> Callable[..., str]:
    """`exchange("topic", durable=True)` declares an exchange under a fresh name on `channel` and returns the name."""

    def declare(exchange_type: str = "direct", **settings: Any) -> str:
        name = new_name("exchange")
        channel.exchange_declare(name, exchange_type, **settings)
        return name

    return declare


@pytest.fixture
def raw(broker: BrokerAddress, new_name: object) -> Iterator[Callable[..., WireClient]]:
    """`raw()` is a wire client on a bare socket; `raw().open()` has shaken hands. `to=` names another broker."""
    clients: list[WireClient] = []

    def connect_raw(to: BrokerAddress | None = None, timeout: float = 20.0) -> WireClient:
        client = (to or broker).wire(timeout)
        clients.append(client)
        return client

    yield connect_raw
    for client in clients:
        client.close()


@pytest.fixture
def wire(raw: Callable[..., WireClient]) -> WireClient:
    """A wire client after the handshake, with channel 1 open."""
    client = raw().open()
    client.open_channel(1)
    return client


@pytest.fixture(scope="session")
def ctl(shared_broker: BrokerAddress) -> Callable[..., str]:
    """`ctl("-q", "list_queues", "-p", vhost, "name")` is what the broker's command line tool prints; raises CtlFailed.

    It is rabbitpy-ctl for our daemon; for another broker the one that RABBITPY_TEST_CTL names.
    """

    def run(*arguments: str, stdin: str = "") -> str:
        if isinstance(shared_broker, BrokerProcess):
            if not shared_broker.alive():
                shared_broker.start()
            return shared_broker.ctl(*arguments, stdin=stdin)
        if not TEST_CTL:
            pytest.skip("RABBITPY_TEST_CTL names no rabbitmqctl")
        return run_ctl(shlex.split(TEST_CTL), arguments, stdin, timeout=60)

    return run


@pytest.fixture(scope="session")
def make_user(ctl: Callable[..., str]) -> Iterator[Callable[..., str]]:
    """`make_user("reader", "secret", configure="^$", write="^$", read=".*")` -> the user's name.

    Without a vhost it may enter none. Users last as long as the run, so that a module can share one.
    """
    made: list[str] = []

    def make(
        name: str,
        password: str,
        vhost: str | None = "/",
        configure: str = ".*",
        write: str = ".*",
        read: str = ".*",
    ) -> str:
        ctl("add_user", name, password)
        made.append(name)
        if vhost is not None:
            ctl("set_permissions", "-p", vhost, name, configure, write, read)
        return name

    yield make
    for name in made:
        with contextlib.suppress(CtlFailed):  # deleted by the test
            ctl("delete_user", name)


@pytest.fixture
def make_vhost(ctl: Callable[..., str]) -> Iterator[Callable[..., str]]:
    """`make_vhost()` -> the name of a new vhost, in which guest may do everything; deleted after the test."""
    made: list[str] = []

    def make(prefix: str = "vhost") -> str:
        name = unique(prefix)
        ctl("add_vhost", name)
        made.append(name)
        ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        return name

    yield make
    for name in made:
        with contextlib.suppress(CtlFailed):  # deleted by the test
            ctl("delete_vhost", name)
