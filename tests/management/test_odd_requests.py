"""Whatever is sent, the answer is no fault of the broker's: no 500, and no traceback in the log."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker_process import BrokerProcess
from management.conftest import Http, quoted
from rabbitpy_broker.management.api.openapi import BODIES
from rabbitpy_broker.management.api.routes import ROUTES

pytestmark = pytest.mark.own

ODD: tuple[Any, ...] = (
    None, True, 1, -1, 1.5, 1 << 70, "", "x", "\ud7ff", "^(", [], [1], [[]], {}, {"a": 1}, {"": None}, {"x" * 300: 1},
    "9" * 5_000, {"x-max-length": "x"}, {"headers": 1}, {"priority": 300}, ["a,b", 3], {"one": {"read": 5}},
)  # fmt: skip
BARE = (b"[]", b"1", b'"x"', b"{", b"\xff", b"nul", b"[" * 100_000, b'{"a":' * 5_000, b"NaN", b'{"a": "\\ud800"}')
QUERIES = (
    "page=1&page_size=1&sort=a.b.c&sort_reverse=true", "page=1&name=(((((&use_regex=true", "columns=.,,a..b,%FF", "page=1e3",
    "lengths_age=1&lengths_incr=1000", "msg_rates_age=99999999999999999999&msg_rates_incr=1", "sort=arguments", "sort=name.x.y",
    "page=99999999999999999999", "disable_stats=true&sort=messages",
    "columns=messages_details.samples.x&lengths_age=10&lengths_incr=5",
)  # fmt: skip
NINES = "9" * 5_000
PATHS = (
    "queues/%zz/%FF", "queues/%00/%00", "queues/%2F/..%2F..", "bindings/%2F/e/x/y/z/~", "channels/a%20(1", "channels/(99999999)",
    "nodes/%2e%2e/memory", f"channels/a%20({NINES})", f"health/checks/port-listener/{NINES}",
    f"health/checks/certificate-expiration/{NINES}/days", f"log?limit={NINES}", f"audit?limit={NINES}", f"topology?limit={NINES}",
    "queues/a%0Ab/%0A", "health/checks/port-listener/%D9%A1", "health/checks/certificate-expiration/99999999999/years",
    "/", "",
)  # fmt: skip


def bodies(method: str, path: str) -> Iterator[bytes]:
    yield from BARE
    keys, _ = BODIES.get((method, path), ({}, ()))
    whole: dict[str, Any] = dict.fromkeys(keys, "x")
    for key in keys:
        for value in ODD:
            yield json.dumps({**whole, key: value}).encode()
            yield json.dumps({key: value}).encode()


def test_no_request_is_a_fault_of_the_brokers(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker()
    http = Http(broker.management)
    http("PUT", "queues/%2F/name", {})
    for route in ROUTES:
        if route.path.endswith("/tail"):  # does not end
            continue
        path = "/".join(
            "%2F" if part == ":vhost" else "name" if part.startswith(":") else part for part in route.segments
        )
        for method in route.methods:
            for body in bodies(method, route.path) if method in ("PUT", "POST") else ():
                reply = http(method, path, body)
                assert reply.status < 500, f"{method} {path} {body[:200]!r}: {reply.status}"
            for query in QUERIES if method == "GET" else ():
                reply = http(method, f"{path}?{query}")
                assert reply.status < 500 or path.startswith("health"), f"{path}?{query}: {reply.status}"
    for path in PATHS:
        for method in ("GET", "PUT", "DELETE", "POST"):
            reply = http(method, path, None if method == "GET" else {})
            assert reply.status < 500 or path.startswith("health"), f"{method} {path}: {reply.status}"
    assert broker.alive()
    broker.assert_clean_log()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /api/overview HTTP/1.1\r\nHost: x\r\nAuthorization: Basic \xff\xfe\r\n\r\n",
        b"GET /api/overview HTTP/1.1\r\nHost: x\r\nAuthorization: Basic\r\n\r\n",
        b"BREW /api/overview HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://other/api/overview HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /api/definitions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_no_bytes_are_a_fault_of_the_brokers(http: Http, api_broker: BrokerProcess, sent: bytes) -> None:
    host, port = api_broker.management.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = client.recv(65_536)
    assert b" 500 " not in answer.split(b"\r\n")[0]
    assert http("GET", "whoami").status == 200
    api_broker.assert_clean_log()


def test_what_is_no_http_leaves_no_traceback(http: Http, api_broker: BrokerProcess) -> None:
    host, port = http.address.rsplit(":", 1)
    long = b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n"
    for sent in (b"GET / HTTP/1.1\r\nHost: x\r\nX: \x00\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", long):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(sent)
            assert client.recv(1000).startswith(b"HTTP/1.")
    api_broker.assert_clean_log()


def test_an_expression_that_would_never_end_is_refused_while_others_are_served(http: Http) -> None:
    for name in ("a" * 60 + "!", "other", "Other\u00df"):
        assert http("PUT", f"queues/%2F/{quoted(name)}", {}).status == 201
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(http, "GET", f"queues?page=1&use_regex=true&name={quoted('(a+)+$')}")
        while not refused.done():
            assert http("GET", "whoami").status == 200
    assert (refused.result().status, refused.result().json["reason"]) == (400, "the expression takes too long")
    page = http.get(f"queues?page=1&use_regex=true&name={quoted('^OTHER|SS$')}")
    assert ([row["name"] for row in page["items"]], page["filtered_count"]) == (["Other\u00df", "other"], 2)
    assert http.get("queues?page=1&use_regex=true&name=%00")["items"] == []


def test_what_is_not_there_has_the_headers_of_everything_else(http: Http) -> None:
    for path, method, status in (("no.js", "GET", 404), ("no.js", "POST", 405), ("api/absent", "GET", 404)):
        request = urllib.request.Request(f"http://{http.address}/{path}", method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        with refused.value as answer:
            assert (answer.code, answer.headers["X-Content-Type-Options"]) == (status, "nosniff")
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_a_name_may_have_a_newline(http: Http) -> None:
    assert http("PUT", "vhosts/a%0Ab").status == 201
    assert http.get("vhosts/a%0Ab")["name"] == "a\nb"
    assert http("GET", "queues/a%0Ab/none").json == {"error": "Object Not Found", "reason": "Not Found"}
