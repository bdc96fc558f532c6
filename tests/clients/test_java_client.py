"""amqp-client, RabbitMQ's client for Java, in each of its modes: java/Cases.java runs its cases and prints a verdict on each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from external import run_and_cut
from java_client import java_command

from broker_process import BrokerAddress, BrokerProcess
from certificates import Authority
from support import unique

pytestmark = pytest.mark.timeout(700)  # the first run fetches and compiles

RUN_TIMEOUT = 150.0
MODES = 3
VERSIONS = 2  # of TLS
CASES = 16  # of each mode, and 17 over TLS


@pytest.fixture(scope="module")
def command() -> list[str]:
    return java_command("Cases")


def test_java_client(broker: BrokerAddress, proxy: CuttingProxy, command: list[str]) -> None:
    verdict = run_and_cut([*command, broker.url, unique("java"), proxy.url], proxy, RUN_TIMEOUT)
    assert len(verdict) == MODES * CASES


@pytest.mark.own
def test_java_client_over_tls(
    own_broker: Callable[..., BrokerProcess], proxy: CuttingProxy, command: list[str], tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    process = own_broker(config={"listeners_ssl": ["127.0.0.1:0"],
                                 "ssl_options": {"certfile": certificate, "keyfile": key}})
    tls_url = f"amqp://guest:guest@{process.started['tls_listeners'][0]}/%2F"
    arguments = [process.url, unique("java"), proxy.url, tls_url, str(authority.file)]
    verdict = run_and_cut([*command, *arguments], proxy, RUN_TIMEOUT)
    assert len(verdict) == MODES * VERSIONS * (CASES + 1)
