"""`rabbitpy-ctl migrate`: a plan first, then definitions, then messages; told by queue, and begun again where it was cut."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pika
import pytest

from broker_process import BrokerProcess, ctl_command
from management.conftest import Http

pytestmark = pytest.mark.own

QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "short": {"x-message-ttl": 3_600_000, "x-dead-letter-exchange": "dead"},
    "urgent": {"x-max-priority": 5},
    "safe": {"x-queue-type": "quorum"},
}


@pytest.fixture
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("source")).start()
    api = Http(broker.management)
    assert api("PUT", "users/mover", {"password": "mover", "tags": "administrator"}).status == 201
    assert api("PUT", "vhosts/there", {}).status == 201
    assert api("PUT", "policies/%2F/limit", {"pattern": "^plain$", "definition": {"max-length": 100_000}}).status == 201
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("dead", "fanout", durable=True)
        for name, arguments in QUEUES.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
            channel.queue_bind(name, "amq.topic", f"{name}.#")
            for number in range(30):
                properties = pika.BasicProperties(delivery_mode=2, priority=number % 3)
                channel.basic_publish("amq.topic", f"{name}.{number}", str(number).encode(), properties)
        channel.queue_declare("passing", durable=False)
        channel.basic_publish("", "passing", b"1")
    with pika.BlockingConnection(broker.parameters(vhost="there")) as connection:
        channel = connection.channel()
        channel.queue_declare("elsewhere", durable=True)
        channel.basic_publish("", "elsewhere", b"1", pika.BasicProperties(delivery_mode=2))
    yield broker
    broker.stop()


@pytest.fixture
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("target")).start()
    yield broker
    broker.stop()


def migrate(source: BrokerProcess, target: BrokerProcess, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*ctl_command(), "migrate", source.url, "--management", f"http://{source.management}"]
    command += ["--to", target.url, "--to-management", f"http://{target.management}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def bodies(broker: BrokerProcess, queue: str, vhost: str = "/") -> list[str]:
    found = []
    with pika.BlockingConnection(broker.parameters(vhost=vhost)) as connection:
        channel = connection.channel()
        for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=0.2):
            if method is None:
                break
            assert method.routing_key in (f"{queue}.{body.decode()}", queue)
            found.append(body.decode())
    return found


def test_everything_moves_and_is_verified(source: BrokerProcess, target: BrokerProcess, tmp_path: Path):
    expected = [str(number) for number in range(30)]
    dry = migrate(source, target, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "6 queues" in dry.stdout and "2 vhosts" in dry.stdout
    assert [row["name"] for row in Http(target.management).get("queues")] == []

    state = tmp_path / "state.json"
    done = migrate(source, target, "--state", str(state))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "122 messages moved, 0 of them perhaps twice" in done.stdout
    assert "NO" not in done.stdout and "the first 10 compared" in done.stdout
    assert json.loads(state.read_text())["%2F/plain"] == {"moved": 30, "doubtful": 0}
    assert bodies(target, "plain") == bodies(target, "safe") == bodies(target, "short") == expected
    assert bodies(target, "urgent") == sorted(expected, key=lambda body: (-(int(body) % 3), int(body)))
    assert bodies(target, "elsewhere", "there") == ["1"]
    api = Http(target.management)
    assert api.get("queues/%2F/short")["arguments"] == QUEUES["short"]
    assert api.get("policies/%2F/limit")["definition"] == {"max-length": 100_000}
    assert api.get("whoami", user="mover")["name"] == "mover"
    assert bodies(target, "passing") == ["1"] and bodies(source, "plain") == []

    again = migrate(source, target, "--state", str(state))
    assert again.returncode == 0 and "122 messages moved, 0 of them perhaps twice" in again.stdout


def test_a_stream_is_copied_and_taken_up_again(source: BrokerProcess, target: BrokerProcess, tmp_path: Path):
    state = tmp_path / "state.json"
    with pika.BlockingConnection(source.parameters()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        for copied, numbers in ((200, range(200)), (10, range(200, 210))):
            for number in numbers:
                channel.basic_publish("", "log", str(number).encode(), pika.BasicProperties(delivery_mode=2))
            done = migrate(source, target, "--state", str(state), "--queue", "log")
            assert done.returncode == 0, done.stdout + done.stderr
            rows = [line.split() for line in done.stdout.splitlines()]
            assert ["/", "log", str(copied), "0", "yes"] in [row[:5] for row in rows], done.stdout
    assert json.loads(state.read_text()) == {"%2F/log": {"moved": 210, "doubtful": 0, "places": [[0, 0]]}}
    with pika.BlockingConnection(target.parameters()) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=300)
        found = channel.consume("log", arguments={"x-stream-offset": "first"}, inactivity_timeout=30)
        assert [next(found)[2] for _ in range(210)] == [str(number).encode() for number in range(210)]


KEYLESS = {"routing_key": "", "arguments": {}}
OTHERWISE = {"auto_delete": False, "internal": False, "arguments": {}}


class Recorded(http.server.BaseHTTPRequestHandler):
    """The HTTP API of a RabbitMQ with a plugin that is not here."""

    ANSWERS: ClassVar[dict[str, Any]] = {
        "overview": {"product_name": "RabbitMQ", "exchange_types": []},
        "queues": [],
        "definitions": {
            "vhosts": [{"name": "/"}],
            "queues": [{"vhost": "/", "name": "q", "durable": True, "auto_delete": False, "arguments": {}}],
            "exchanges": [
                {"vhost": "/", "name": name, "type": kind, "durable": True, **OTHERWISE}
                for name, kind in (("recent", "x-recent-history"), ("good", "topic"), ("near", "x-lvc"))
            ],
            "bindings": [
                {"vhost": "/", "source": name, "destination_type": "queue", "destination": "q", **KEYLESS}
                for name in ("recent", "good")
            ],
        },
    }

    def do_GET(self) -> None:
        body = json.dumps(self.ANSWERS[self.path.removeprefix("/api/").partition("?")[0]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_what_is_not_taken_is_told_before_anything_is_done(target: BrokerProcess):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorded) as rabbitmq:
        threading.Thread(target=rabbitmq.serve_forever).start()
        try:
            command = [*ctl_command(), "migrate", target.url, "--management", f"http://127.0.0.1:{rabbitmq.server_port}"]
            command += ["--to", target.url, "--to-management", f"http://{target.management}"]
            refused = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            assert refused.returncode == 65, refused.stdout + refused.stderr
            lines = [line.split() for line in refused.stdout.splitlines()]
            assert ["exchanges", "/", "recent"] in [line[:3] for line in lines]
            assert ["exchanges", "/", "near"] in [line[:3] for line in lines]
            assert "recent -> q" in refused.stdout and "good" not in refused.stdout and "x-recent-history" in refused.stdout
            assert "Nothing was done" in refused.stdout
            taken = Http(target.management)
            assert taken.get("queues") == []
            done = subprocess.run([*command, "--skip-refused"], capture_output=True, text=True, timeout=30, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        finally:
            rabbitmq.shutdown()
    assert [row["source"] for row in taken.get("queues/%2F/q/bindings")] == ["", "good"]


def test_nobody_at_home_is_a_line(source: BrokerProcess):
    command = [*ctl_command(), "migrate", source.url, "--management", "http://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 69 and done.stderr.startswith("Error: http://127.0.0.1:1 does not answer")
    assert "Traceback" not in done.stderr


def test_a_shovel_is_a_command(source: BrokerProcess, target: BrokerProcess):
    with pika.BlockingConnection(target.parameters()) as connection:
        connection.channel().queue_declare("there", durable=True)
    command = [*ctl_command(), "shovel", source.url, "plain", target.url, "--to-queue", "there", "--until-empty"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "30 messages moved, 0 of them perhaps twice\n"), done.stderr
    with pika.BlockingConnection(target.parameters()) as connection:
        assert connection.channel().queue_declare("there", passive=True).method.message_count == 30
