"""amqp-client, RabbitMQ's client for Java, in each of its modes: java/Cases.java runs its cases and prints a verdict on each."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from java_client import java_command

from broker_process import BrokerAddress, BrokerProcess
from certificates import Authority
from support import unique

pytestmark = pytest.mark.timeout(700)  # the first run fetches and compiles

RUN_TIMEOUT = 150.0
MODES = 3
VERSIONS = 2  # of TLS
CASES = 14  # of each mode, and 15 over TLS


@pytest.fixture(scope="module")
def command() -> list[str]:
    return java_command("Cases")


def run(command: list[str], proxy: CuttingProxy, *arguments: str) -> dict[str, str]:
    process = subprocess.Popen([*command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(RUN_TIMEOUT, process.kill)
    watchdog.start()
    with process:
        assert process.stdout is not None and process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        reader.start()
        last = ""
        for last in process.stdout:
            if last.strip() == "cut me":
                proxy.cut()
        reader.join()
    watchdog.cancel()
    assert last.startswith("{"), f"no verdict, exit code {process.returncode}, last line {last!r}:\n{errors[0][-4000:]}"
    verdict: dict[str, str] = json.loads(last)
    assert {case: outcome for case, outcome in verdict.items() if outcome != "ok"} == {}
    assert process.returncode == 0
    return verdict


def test_java_client(broker: BrokerAddress, proxy: CuttingProxy, command: list[str]) -> None:
    assert len(run(command, proxy, broker.url, unique("java"), proxy.url)) == MODES * CASES


@pytest.mark.own
def test_java_client_over_tls(
    own_broker: Callable[..., BrokerProcess], proxy: CuttingProxy, command: list[str], tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    process = own_broker(config={"listeners_ssl": ["127.0.0.1:0"],
                                 "ssl_options": {"certfile": certificate, "keyfile": key}})
    tls_url = f"amqp://guest:guest@{process.started['tls_listeners'][0]}/%2F"
    verdict = run(command, proxy, process.url, unique("java"), proxy.url, tls_url, str(authority.file))
    assert len(verdict) == MODES * VERSIONS * (CASES + 1)
