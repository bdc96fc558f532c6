"""The API over TLS."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from certificates import Authority
from management.conftest import Http

pytestmark = pytest.mark.own


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


def tls_broker(own_broker: Callable[..., BrokerProcess], authority: Authority, cacertfile: str = "") -> tuple[BrokerProcess, str]:
    """A broker, and where its API speaks TLS."""
    certificate, key = authority.issue("broker")
    settings = {"port": 0, "certfile": certificate, "keyfile": key, "cacertfile": cacertfile}
    broker = own_broker({f"management.ssl.{name}": value for name, value in settings.items()})
    return broker, broker.started["management"][1]


def whoami(address: str, context: ssl.SSLContext) -> int:
    """The status."""
    request = urllib.request.Request(f"https://{address}/api/whoami", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        assert json.loads(answer.read())["name"] == "guest"
        status: int = answer.status
        return status


def test_the_api_speaks_tls(own_broker: Callable[..., BrokerProcess], authority: Authority) -> None:
    broker, address = tls_broker(own_broker, authority)
    context = ssl.create_default_context(cafile=str(authority.file))
    assert whoami(address, context) == 200
    http = Http(broker.management)
    assert http("GET", "health/checks/protocol-listener/https").status == 200
    assert http("GET", "health/checks/certificate-expiration/1/days").status in (200, 503)
    reply = http("GET", "health/checks/certificate-expiration/500/years")
    assert reply.status == 503
    assert reply.json["expired"][0]["protocol"] == "https"


def test_a_client_without_a_certificate_is_refused_where_one_is_asked_for(
    own_broker: Callable[..., BrokerProcess], authority: Authority
) -> None:
    _, address = tls_broker(own_broker, authority, str(authority.file))
    context = ssl.create_default_context(cafile=str(authority.file))
    with pytest.raises((urllib.error.URLError, OSError)):
        whoami(address, context)
    context.load_cert_chain(*authority.issue("client"))
    assert whoami(address, context) == 200
