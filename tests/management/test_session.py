"""The session of a browser, the pages that it is sent, the read-only mode, and the audit."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import http.client as http_client
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from broker_process import BrokerProcess
from management.conftest import Http, Reply
from rabbitpy_broker.management.api.routes import ROUTES, Route
from rabbitpy_broker.management.api.site import Site

pytestmark = pytest.mark.own

PIXEL = "%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E"
LOG_IN = {"username": "guest", "password": "guest"}


class Browser:
    """Keeps the cookie and the token of its session."""

    def __init__(self, http: Http, **log_in: str) -> None:
        self.http = http
        self.reply = http("POST", "session", {**LOG_IN, **log_in}, user="")
        self.cookie = (self.reply.headers["set-cookie"] or "").partition(";")[0]
        self.csrf = self.reply.json.get("csrf", "") if self.reply.json else ""

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """`csrf=""` sends another token than its own."""
        token = headers.pop("csrf", self.csrf)
        sent = {"Cookie": self.cookie, "X-CSRF-Token": token, **headers}
        return self.http(method, path, body, user="", headers={key: value for key, value in sent.items() if value})


def test_a_browser_logs_in_writes_and_logs_out(http: Http) -> None:
    browser = Browser(http)
    assert browser.reply.status == 200
    assert {"name", "tags", "csrf", "expires", "idle_s", "read_only"} <= browser.reply.json.keys()
    cookie = browser.reply.headers["set-cookie"]
    assert re.fullmatch(r"rabbitpy_[0-9a-f]{8}=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict", cookie)
    assert browser("GET", "whoami").json["name"] == "guest"
    assert browser("GET", "session").json["csrf"] == browser.csrf
    assert browser("PUT", "queues/%2F/q", {}).status == 201
    assert browser("PUT", "queues/%2F/p", {}, csrf="").status == 403
    assert browser("PUT", "queues/%2F/p", {}, csrf="x" * 43).status == 403
    assert browser("DELETE", "session", csrf="").status == 403
    left = browser("DELETE", "session")
    assert (left.status, "Max-Age=0" in left.headers["set-cookie"]) == (204, True)
    gone = browser("GET", "session")
    assert (gone.status, gone.headers["www-authenticate"]) == (401, None)
    assert browser("PUT", "queues/%2F/p", {}).status == 401
    assert {queue["name"] for queue in http.get("queues")} == {"q"}


def test_who_may_not_use_the_api_gets_no_session(http: Http) -> None:
    http("PUT", "users/nobody", {"password": "nobody", "tags": ""})
    for log_in in ({"password": "wrong"}, {"username": "nobody", "password": "nobody"}):
        reply = Browser(http, **log_in).reply
        assert (reply.status, reply.headers["set-cookie"], reply.headers["www-authenticate"]) == (401, None, None)
    assert http("POST", "session", {"username": "guest"}, user="").status == 400
    assert http("POST", "session", {**LOG_IN, "password": 1}, user="").status == 400
    assert http("POST", "session", LOG_IN, user="", headers={"Origin": "https://evil.example"}).status == 403


def test_a_session_ends_with_its_password(http: Http) -> None:
    http("PUT", "users/u", {"password": "u", "tags": "management"})
    browser = Browser(http, username="u", password="u")
    assert browser("GET", "whoami").status == 200
    http("PUT", "users/u", {"password": "v", "tags": "management"})
    assert browser("GET", "whoami").status == 401


def path_of(route: Route) -> str:
    """With names of what there is not, but for the vhost, where that would be told first."""
    vhost = "absent" if route.path.startswith("vhosts") else "%2F"
    return re.sub(r":\w+", "absent", route.path.replace(":vhost", vhost))


SITES: dict[str, dict[str, str]] = {
    "tool": {},
    "own": {"Sec-Fetch-Site": "same-origin"},
    "typed": {"Sec-Fetch-Site": "none"},
    "foreign": {"Origin": "https://evil.example"},
    "null": {"Origin": "null"},
    "cross": {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    "sibling": {"Sec-Fetch-Site": "same-site"},
}


def test_no_write_of_any_route_is_done_for_another_site(http: Http) -> None:
    """Each write of the table, by password and by session, from this site and from others."""
    browser = Browser(http)
    for route, (name, headers) in itertools.product(ROUTES, SITES.items()):
        path = path_of(route)
        for method in route.methods.keys() - {"GET"}:
            if path in ("login", "session") or (name in ("tool", "own", "typed") and path.startswith(("reset", "definitions"))):
                continue
            allowed = name in ("tool", "own", "typed")
            for reply in (http(method, path, {}, headers=headers), browser(method, path, {}, **headers)):
                told = f"{method} {path} from {name}: {reply.status} {reply.body!r}"
                assert (reply.status == 403) is not allowed, told
                assert reply.status < 500, told
            assert browser(method, path, {}, csrf="", **headers).status == 403


def test_a_broker_may_be_read_only_here(own_broker: Callable[..., BrokerProcess]) -> None:
    http = Http(own_broker({"management.read_only": True}).management)
    browser = Browser(http)
    assert browser.reply.json["read_only"] is True
    for route in ROUTES:
        for method, endpoint in route.methods.items():
            if method == "GET":
                continue
            reply = http(method, path_of(route), {})
            refused = (reply.status, (reply.json or {}).get("error")) == (403, "read_only")
            assert refused is endpoint.changes, f"{method} {route.path}"
    assert browser("DELETE", "session").status == 204
    assert http.get("queues") == []


def test_the_audit_says_who_changed_what_and_nothing_secret(http: Http, api_broker: BrokerProcess) -> None:
    browser = Browser(http)
    browser("PUT", f"queues/%2F/{PIXEL}", {"durable": True, "arguments": {"x-max-length": 5}})
    http("PUT", "users/u", {"password": "geheim-1", "tags": "management"})
    http("PUT", "users/v", {"password_hash": "Z2VoZWltLTI=", "tags": ""})
    http("PUT", "global-parameters/g", {"value": "geheim-3"})
    message = {"properties": {}, "routing_key": "k", "payload": "geheim-4", "payload_encoding": "string"}
    http("POST", "exchanges/%2F/amq.default/publish", message)
    http("POST", f"queues/%2F/{PIXEL}/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"})
    http("POST", f"queues/%2F/{PIXEL}/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
    http("PUT", "queues/%2F/amq.no", {})  # refused
    http.get("auth/hash_password/geheim-5")
    api_broker.ctl("add_user", "w", "geheim-6")
    found = http.get("audit")
    assert found["total"] == 6
    newest = [(one["user"], one["via"], one["method"], one["path"], one["status"]) for one in found["items"]]
    uid = newest[0][0]
    assert newest == [
        (uid, "ctl", "add_user", "", 0),
        ("guest", "basic", "POST", f"queues/%2F/{PIXEL}/get", 200),
        ("guest", "basic", "PUT", "global-parameters/g", 201),
        ("guest", "basic", "PUT", "users/v", 201),
        ("guest", "basic", "PUT", "users/u", 201),
        ("guest", "session", "PUT", f"queues/%2F/{PIXEL}", 201),
    ]
    assert uid.startswith("uid ")
    assert found["items"][-1]["details"] == {"durable": True, "arguments": {"x-max-length": 5}}
    assert found["items"][0]["details"] == {"name": "w"}
    assert [one["path"] for one in http.get(f"audit?limit=1&before={found['items'][2]['id']}")["items"]] == ["users/v"]
    assert http.get("audit?user=nobody")["items"] == []
    told = json.dumps(found) + api_broker.log_text()
    assert not re.findall("geheim|Z2VoZWlt|guest:guest", told)
    assert len(api_broker.events("audit")) == 6


def test_pages_are_named_by_their_content() -> None:
    page = (
        '<link href="css/a.css"><script type="importmap">{"imports": {"x": "./vendor/x.mjs", "far": "./none.mjs"}}</script>'
        '<script type="module" src="js/main.js"></script><a href="api/index.html">'
    )
    contents = {"index.html": page, "css/a.css": "a{}" * 1000, "js/main.js": "1", "js/more.js": "2", "vendor/x.mjs": "3"}
    site = Site({path: text.encode() for path, text in contents.items()})
    index = site.find("")
    assert index is not None
    hashes = {path: hashlib.sha256(text.encode()).hexdigest()[:16] for path, text in contents.items()}
    found = re.search(r'<script type="importmap">(.*?)</script>', index.content.decode())
    assert found is not None
    assert json.loads(found[1])["imports"] == {
        "./js/main.js": f"./js/main.js?v={hashes['js/main.js']}",
        "./js/more.js": f"./js/more.js?v={hashes['js/more.js']}",
        "./vendor/x.mjs": f"./vendor/x.mjs?v={hashes['vendor/x.mjs']}",
        "x": f"./vendor/x.mjs?v={hashes['vendor/x.mjs']}",
        "far": "./none.mjs",
    }
    for tag, path in (("href", "css/a.css"), ("src", "js/main.js")):
        assert f'{tag}="{path}?v={hashes[path]}"' in index.content.decode()
    assert 'href="api/index.html"' in index.content.decode()
    headers = index.headers(None)
    digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-cache"
    style = site.find("css/a.css")
    assert style is not None
    assert style.headers(hashes["css/a.css"])["Cache-Control"] == "public, max-age=31536000, immutable"
    assert style.headers("old")["Cache-Control"] == "no-cache"
    assert style.is_known(f'W/"x", "{hashes["css/a.css"]}"')
    assert not style.is_known('"x"')
    assert gzip.decompress(style.compressed() or b"") == style.content
    assert site.find("../server.py") is None


def page(api_broker: BrokerProcess, path: str, method: str = "GET") -> Reply:
    """What a browser finds outside the API."""
    connection = http_client.HTTPConnection(api_broker.management, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return Reply(answer.status, answer.headers, answer.read())


def test_pages_are_sent_with_a_strict_policy(api_broker: BrokerProcess) -> None:
    for path in ("/", "/api/index.html", "/cli/"):
        reply = page(api_broker, path)
        assert reply.status == 200
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
    for path in ("/no/such", "/..%2fserver.py", "/../server.py"):
        assert page(api_broker, path).status == 404
    assert page(api_broker, "/", "POST").status == 405
