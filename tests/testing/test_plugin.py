"""The pytest plugin, in runs of pytest of its own: fixtures, the report of a failed test, xdist, a broker elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rabbitpy_broker.testing import Broker
from rabbitpy_broker.testing.external import ExternalBroker, Management, ManagementError

SUITE = """
import sys

def test_nothing_is_imported_before_it_is_asked_for():
    assert "rabbitpy_broker_pytest" in sys.modules
    assert [name for name in sys.modules if name.partition(".")[0] == "rabbitpy_broker"] == []
    assert "asyncio" not in sys.modules or "uvloop" not in sys.modules

import pika
import pytest

@pytest.mark.parametrize("number", range(3))
def test_each_test_has_a_vhost_of_its_own(amqp_url, amqp_vhost, number):
    assert amqp_url.endswith("/" + amqp_vhost)
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    assert channel.queue_declare("q").method.message_count == 0
    channel.basic_publish("", "q", b"left")
    connection.close()

def test_with_the_broker(amqp_broker, amqp_url):
    amqp_broker.trouble.nack_publishes()
    amqp_broker.clock.advance(3600)
    amqp_broker.kill()

def test_trouble_is_over_in_the_next_test(amqp_broker, amqp_url):
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    amqp_broker.assert_published("", "q", count=1)
    connection.close()
"""

FAILING = """
import pika

def test_that_fails(amqp_url):
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.queue_declare("jobs")
    for body in (b"first", b"second", b"third"):
        channel.basic_publish("", "jobs", body)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("jobs", lambda *_: None, consumer_tag="stuck")
    connection.process_data_events(0)
    assert channel.queue_declare("jobs", passive=True).method.message_count == 0
"""

# For a broker in this process only.
ASSERTING = FAILING.replace("fails(amqp_url)", "fails(amqp_broker, amqp_url)").replace(
    "assert channel", 'amqp_broker.assert_drained("jobs", within=0.1)\n    assert channel'
)

SETTINGS = """
@pytest.fixture(scope="session")
def amqp_settings():
    return {"channel_max": 5}

def test_settings_of_the_suite(amqp_url):
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    assert connection._impl.params.channel_max == 5
    connection.close()
"""


def run(folder: Path, suite: str, *arguments: str) -> str:
    """What pytest says of a suite in a folder of its own, with nothing of this run's configuration."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_suite.py").write_text(suite)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "RABBITPY"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *arguments, "."]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_fixtures_settings_and_the_report_of_a_failed_test(tmp_path: Path):
    said = run(tmp_path, SUITE + SETTINGS + ASSERTING)
    assert re.search(r"\b1 failed, 7 passed in", said), said
    assert re.search(r"^> +amqp_broker\.assert_drained", said, re.MULTILINE), "the test's own line is shown"
    assert "run_coroutine_threadsafe" not in said, "and nothing of ours"
    left = said.partition("AMQP vhost test-")[2]
    assert "queue 'jobs': 2 ready, 1 unacked, 1 consumer" in left, said
    assert re.search(r"consumer 'stuck' of 127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+ holds 1: first", left), said


def test_workers_of_xdist_have_brokers_of_their_own(tmp_path: Path):
    said = run(tmp_path, "import pika" + SUITE.partition("import pika")[2], "-n", "2")
    assert re.search(r"\b5 passed in", said), said


def test_the_same_suite_on_a_broker_elsewhere(tmp_path: Path):
    """Here it is a broker of ours with its management API; tests that need a broker in the process are skipped."""
    with Broker(management=True) as elsewhere:
        suite = "import pika" + SUITE.partition("import pika")[2]
        options = ("--amqp-url", elsewhere.url, "--amqp-management-url", elsewhere.management_url)
        said = run(tmp_path, suite + FAILING, *options)
        assert re.search(r"\b1 failed, 3 passed, 2 skipped in", said), said
        assert "amqp_broker.trouble needs the broker in this process; --amqp-url names another one" in said
        assert "queue 'jobs': 2 ready, 1 unacked, 1 consumers" in said.partition("AMQP vhost test-")[2], said
        assert list(elsewhere._engine.running().node.vhosts) == ["/"]


def test_a_management_api_that_is_not_there_is_named():
    with Broker() as broker:
        external = ExternalBroker(broker.url, "http://127.0.0.1:1")
        with pytest.raises(ManagementError, match=r"no management API at 127\.0\.0\.1:1"):
            external.add_vhost("v")
    with Broker(management=True) as broker, pytest.raises(ManagementError, match="404"):
        Management(broker.management_url).ask("GET", ["vhosts", "none"])
