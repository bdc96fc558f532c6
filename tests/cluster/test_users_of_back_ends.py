"""A user whom only a back end outside knows sees all nodes, too: with its password, and in a browser's session."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.engine_rigs import on_one_engine
from cluster.replicated import Cluster
from management.conftest import Http
from perf.engines.servers import Servers
from support import eventually

pytestmark = on_one_engine


class _Oracle(http.server.BaseHTTPRequestHandler):
    """Lets anna in, and everywhere."""

    def do_GET(self) -> None:
        text = b"allow management" if self.path.startswith("/user?username=anna") else b"allow"
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text if "=anna" in self.path else b"deny ")

    def log_message(self, *arguments: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def oracle() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Oracle) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def two(engine_servers: Servers, tmp_path: Path, oracle: int) -> Iterator[Cluster]:
    paths = {f"{name}_path": f"http://127.0.0.1:{oracle}/{name}" for name in ("user", "vhost", "resource", "topic")}
    more: dict[str, Any] = {"auth_backends": ["internal", "http"], "auth_http": {"http_method": "get", **paths}}
    cluster = Cluster(tmp_path, engine_servers, engine_servers.url, ("one", "two"), more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_whom_a_back_end_knows_sees_what_other_nodes_have(two: Cluster):
    here, there = Http(two.nodes["one"].management), Http(two.nodes["two"].management)
    eventually(lambda: there("PUT", "vhosts/far", {}).status in (201, 204), timeout=30)
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert there("PUT", "permissions/far/guest", everything).status in (201, 204)
    assert there("PUT", "queues/far/q", {}).status == 201

    def seen(**more: Any) -> list[tuple[str, str]]:
        return [(row["name"], row["node"]) for row in here("GET", "queues", **more).json]

    eventually(lambda: seen(user="anna") == [("q", "two")], timeout=30)
    begun = here("POST", "session", {"username": "anna", "password": "anna"}, user="")
    assert begun.status == 200
    cookie = {"Cookie": begun.headers["Set-Cookie"].partition(";")[0]}
    assert seen(user="", headers=cookie) == [("q", "two")]
    assert here("GET", "queues/far/q", user="", headers=cookie).json["node"] == "two"
