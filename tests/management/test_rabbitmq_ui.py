"""RabbitMQ's own management pages, as Debian's package has them, in front of our API: every tab, in Chromium.

The pages are served as they are, at test time, and are no part of this repository.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pika
import pytest

from broker_process import BrokerProcess
from management.conftest import Http
from management.test_clients import rabbitmqadmin

HERE = Path(__file__).parent / "rabbitmq_ui"
sys.path.append(str(HERE.parent.parent / "clients"))  # external.py: installing from npm

from external import installed, require_tools, run_client, run_install, verdicts

pytestmark = [pytest.mark.own, pytest.mark.timeout(240)]
SCRIPT_TIMEOUT = 150.0


@pytest.fixture(scope="session")
def playwright() -> Path:
    """The folder node_modules with what package-lock.json pins."""
    require_tools("node", "npm", "chromium")
    pins = [HERE / "package.json", HERE / "package-lock.json"]
    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    return installed("rabbitmq-ui", pins, lambda directory: run_install(install, directory)) / "node_modules"


def test_every_tab_of_rabbitmqs_own_pages_works(playwright: Path, http: Http, api_broker: BrokerProcess) -> None:
    script = rabbitmqadmin()
    if script is None:
        pytest.skip("no pages: no RabbitMQ is installed, and RABBITPY_TEST_RABBITMQADMIN names none")
    http("PUT", "queues/%2F/orders", {"durable": True, "arguments": {"x-max-length": 100}})
    http("PUT", "queues/%2F/safe", {"durable": True, "arguments": {"x-queue-type": "quorum"}})
    http("PUT", "policies/%2F/short", {"pattern": "^orders$", "definition": {"max-length": 10}, "apply-to": "queues"})
    http("PUT", "operator-policies/%2F/op", {"pattern": "^orders$", "definition": {"max-length": 50}})
    http("PUT", "vhost-limits/%2F/max-queues", {"value": 100})
    http("PUT", "topic-permissions/%2F/guest", {"exchange": "amq.topic", "write": ".*", "read": ".*"})
    http("POST", "bindings/%2F/e/amq.topic/q/orders", {"routing_key": "a.#", "arguments": {"x": 1}})
    with pika.BlockingConnection(api_broker.parameters()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "a.b", b"x")
        channel.basic_consume("orders", lambda *_: None)
        settings = {
            "broker": api_broker.management,
            "pages": str(script.parent.parent),
            "connection": http.get("connections")[0]["name"],
            "modules": str(playwright),
            "chromium": "/usr/bin/chromium",
            "sandbox": os.geteuid() != 0,
        }
        done = run_client(["node", str(HERE / "tabs.mjs")], {"UI_TEST": json.dumps(settings)}, SCRIPT_TIMEOUT)
    verdict = verdicts(done)
    assert {name: outcome for name, outcome in verdict.items() if outcome != "ok"} == {}, done.stderr[-4000:]
    assert len(verdict) > 20
    api_broker.assert_clean_log()
