"""Limits that are the whole daemon's, and log-ins that are counted once, whichever worker a client comes to."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pika
import pika.exceptions
import pytest

from support import eventually
from workers.daemon_process import WorkersProcess

pytestmark = pytest.mark.own

VHOSTS = ("/", "other")  # one with each worker
NODE_LIMIT = 8


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersProcess]:
    process = WorkersProcess(tmp_path_factory.mktemp("limits"), {"connection_max": NODE_LIMIT})
    process.start()
    http = process.http
    http("PUT", "vhosts/other", {})
    http("PUT", "users/carl", {"password": "carl", "tags": ""})
    for vhost in ("%2F", "other"):
        http("PUT", f"permissions/{vhost}/carl", {"configure": ".*", "write": ".*", "read": ".*"})
    yield process
    process.stop()


class Clients:
    """Connections that are tried at the same time, into the vhosts in turn."""

    def __init__(self, daemon: WorkersProcess, user: str) -> None:
        self.open: list[pika.BlockingConnection] = []
        self.refusals: list[str] = []
        self._daemon = daemon
        self._user = user

    def connect(self, vhost: str) -> None:
        try:
            self.open.append(pika.BlockingConnection(self._daemon.parameters(user=self._user, password=self._user, vhost=vhost)))
        except pika.exceptions.AMQPError as error:
            self.refusals.append(repr(error))

    def together(self, count: int) -> None:
        threads = [threading.Thread(target=self.connect, args=(VHOSTS[number % 2],)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    def close(self) -> None:
        for connection in self.open:
            connection.close()
        self.open.clear()


@pytest.fixture
def clients(daemon: WorkersProcess, request: pytest.FixtureRequest) -> Iterator[Clients]:
    found = Clients(daemon, request.param)
    yield found
    found.close()
    eventually(lambda: daemon.http.get("connections") == [])


def set_limit(daemon: WorkersProcess, name: str, value: int) -> None:
    assert daemon.http("PUT", f"user-limits/carl/{name}", {"value": value}).status == 204


@pytest.mark.parametrize("clients", ["carl"], indirect=True)
def test_a_users_connections_are_limited_over_all_workers(daemon: WorkersProcess, clients: Clients) -> None:
    """However many try at once, as many get in as may, and the next when one has left."""
    set_limit(daemon, "max-connections", 3)
    for _ in range(3):
        clients.together(10)
        assert len(clients.open) == 3
        assert len(clients.refusals) == 7
        assert all("user connection limit (3) is reached" in refusal for refusal in clients.refusals)
        clients.open.pop().close()
        eventually(lambda: len(daemon.http.get("connections")) == 2)
        for vhost in VHOSTS:
            clients.connect(vhost)
        assert len(clients.open) == 3
        clients.close()
        clients.refusals.clear()
        eventually(lambda: daemon.http.get("connections") == [])
    assert daemon.http("DELETE", "user-limits/carl/max-connections").status == 204


@pytest.mark.parametrize("clients", ["carl"], indirect=True)
def test_a_users_channels_are_limited_over_all_workers(daemon: WorkersProcess, clients: Clients) -> None:
    clients.together(2)
    set_limit(daemon, "max-channels", 3)
    one, other = clients.open
    kept = [one.channel(), other.channel(), one.channel()]
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"maximum allowed user limit of \(3\)"):
        other.channel()
    clients.open = [one]
    kept.pop().close()
    eventually(lambda: len(daemon.http.get("channels")) == 1)
    assert one.channel().is_open
    assert daemon.http("DELETE", "user-limits/carl/max-channels").status == 204


@pytest.mark.parametrize("clients", ["guest"], indirect=True)
def test_all_connections_are_limited_over_all_workers(daemon: WorkersProcess, clients: Clients) -> None:
    check = "health/checks/below-node-connection-limit"
    clients.together(NODE_LIMIT - 1)
    found = daemon.http.get(check)
    assert (found["connections"], found["limit"]) == (NODE_LIMIT - 1, NODE_LIMIT)
    clients.together(4)
    assert len(clients.open) == NODE_LIMIT
    assert all(f"node connection limit ({NODE_LIMIT}) is reached" in refusal for refusal in clients.refusals)
    refused = daemon.http("GET", check)
    assert (refused.status, refused.json["connections"], refused.json["status"]) == (503, NODE_LIMIT, "failed")


@pytest.mark.parametrize("clients", ["guest"], indirect=True)
def test_a_client_that_is_handed_over_has_logged_in_once(daemon: WorkersProcess, clients: Clients) -> None:
    def log_ins() -> tuple[int, int]:
        attempts = daemon.http.get(f"auth/attempts/{node}")[0]
        return attempts["auth_attempts_succeeded"], len(daemon.events("auth.login"))

    node = daemon.http.get("nodes")[0]["name"]
    (first, _), (before, lines) = log_ins(), log_ins()  # who asks logs in, too
    for _ in range(20):
        clients.together(2)
        clients.close()
    assert log_ins() == (before + (before - first) + 40, lines + 40)
