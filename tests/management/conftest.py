"""The management API of a broker, as its clients see it."""

from __future__ import annotations

import base64
import gzip
import json
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess

UNPACK: dict[str | None, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


class Reply:
    """`json` is None for an empty body."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = UNPACK.get(headers.get("content-encoding"), bytes)(body)
        self.json: Any = json.loads(self.body) if body and "/json" in headers.get("content-type", "") else None


class Http:
    """`http("PUT", "queues/%2F/q", {"durable": True}, user="guest")`; the password is the user's name."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(
        self, method: str, path: str, body: Any = None, *, user: str = "guest", headers: dict[str, str] | None = None
    ) -> Reply:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}/api/{path}", data, headers or {}, method=method)
        for name, value in self.login(user).items():
            request.add_header(name, value)
        if data is not None:
            request.add_header("Content-Type", request.get_header("Content-type") or "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())

    @staticmethod
    def login(user: str) -> dict[str, str]:
        """The header for a user; none for nobody."""
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode()} if user else {}

    def get(self, path: str, user: str = "guest") -> Any:
        """The JSON of an answer that must be 200."""
        reply = self("GET", path, user=user)
        assert reply.status == 200, (path, reply.status, reply.body)
        return reply.json


def quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


@pytest.fixture
def api_broker(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that looks at its counters four times a second."""
    return own_broker({"collect_statistics_interval": 250, "check_invariants": True})


@pytest.fixture
def http(api_broker: BrokerProcess) -> Http:
    return Http(api_broker.management)


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests of a file."""
    process = BrokerProcess(tmp_path_factory.mktemp("module_broker"), {"check_invariants": True}).start()
    yield process
    process.stop()


@pytest.fixture
def clean_channel(module_broker: BrokerProcess) -> Iterator[BlockingChannel]:
    """A channel of that broker; queues and exchanges are deleted after the test."""
    http = Http(module_broker.management)
    with pika.BlockingConnection(module_broker.parameters()) as connection:
        yield connection.channel()
    for queue in http.get("queues/%2F"):
        http("DELETE", f"queues/%2F/{quoted(queue['name'])}")
    for exchange in http.get("exchanges/%2F"):
        if exchange["name"] and not exchange["name"].startswith("amq."):
            http("DELETE", f"exchanges/%2F/{quoted(exchange['name'])}")
