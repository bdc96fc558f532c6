"""What browsers are told of scripts and of TLS: the broker's own, or what the configuration says."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message

import pytest

from broker_process import BrokerProcess
from rabbitpy_broker.config import ManagementPolicy

pytestmark = pytest.mark.own

PATHS = ("/", "/api/whoami", "/api/index.html", "/nowhere", "/api/nowhere")


def headers_of(broker: BrokerProcess, path: str) -> Message:
    request = urllib.request.Request(f"http://{broker.management}{path}", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.headers
    except urllib.error.HTTPError as error:
        return error.headers


def test_what_is_configured_is_in_each_answer(own_broker: Callable[..., BrokerProcess]) -> None:
    csp, hsts = "default-src 'self'", "max-age=31536000; includeSubDomains"
    broker = own_broker({"management.csp.policy": csp, "management.hsts.policy": hsts})
    for path in PATHS:
        headers = headers_of(broker, path)
        assert (headers.get_all("Content-Security-Policy"), headers.get_all("Strict-Transport-Security")) == ([csp], [hsts]), path


def test_nothing_is_said_of_tls_by_itself_and_scripts_are_held_short(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker({})
    for path in PATHS:
        headers = headers_of(broker, path)
        assert headers["Strict-Transport-Security"] is None
        assert "unsafe-eval" not in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize("policy", ["max-age=1\r\nSet-Cookie: a=b", "\u00e9", "\x00"])
def test_a_policy_that_is_no_header_is_refused(policy: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII, in one line"):
        ManagementPolicy(policy)
