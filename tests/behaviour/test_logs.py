"""The log: who came, who went and why, and nothing of what they said.

That passwords stay out of it is also shown, with the environment and the command line, in test_command_line.py.
"""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest

from behaviour.helpers import confirming
from broker_process import BrokerProcess, broker_command
from support import closes_channel, eventually
from wire_client import WireClient, longstr, shortstr

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., WireClient]


@pytest.fixture
def own(own_broker: Own) -> BrokerProcess:
    return own_broker(args=["--log-level", "debug"])


def event(own: BrokerProcess, name: str) -> dict[str, object]:
    """The one event of this name, once it is there."""
    (found,) = eventually(lambda: own.events(name))
    return found


def test_start_says_where_it_listens_and_what_runs(own: BrokerProcess) -> None:
    started = event(own, "broker started")
    assert started["listeners"] == [f"127.0.0.1:{own.port}"]
    assert started["metrics"] == own.metrics
    assert started["data_dir"] == str(own.data_dir)
    assert started["build"] in {"compiled", "interpreted"}
    version = subprocess.run([*broker_command(), "--version"], capture_output=True, text=True, check=True).stdout
    assert version == f"rabbitpy-broker {started['version']} ({started['build']}, {started['python']})\n"
    assert f"Version: {started['version']} ({started['build']}, {started['python']})" in own.ctl("status")
    scraped = urllib.request.urlopen(f"http://{own.metrics}/metrics", timeout=30).read().decode()
    assert f'build="{started["build"]}",python="{started["python"]}"' in scraped
    assert started["version"]


def test_stop_is_the_last_line(own: BrokerProcess) -> None:
    own.stop()
    assert own.events()[-1]["event"] == "broker stopped"


def test_every_line_has_a_time_a_level_and_an_event(own: BrokerProcess, connect: Connect) -> None:
    connect(to=own).channel().queue_declare("q")
    own.stop()
    lines = own.log_text().splitlines()
    assert len(lines) == len(own.events()) >= 4
    for entry in own.events():
        assert {"event", "level", "timestamp"} <= entry.keys()
        assert str(entry["timestamp"]).endswith("Z")


def test_open_and_close_of_a_connection_carry_its_name(own: BrokerProcess, connect: Connect) -> None:
    connection = connect(to=own, client_properties={"connection_name": "a visitor"})
    opened = event(own, "connection opened")
    assert (opened["user"], opened["vhost"], opened["client_name"]) == ("guest", "/", "a visitor")
    connection.close(reply_code=200, reply_text="enough for today")
    closed = event(own, "connection closed")
    assert closed["connection"] == opened["connection"]
    assert "enough for today" in str(closed["reason"])
    assert str(opened["connection"]).endswith(f" -> 127.0.0.1:{own.port}")


def test_connection_that_vanishes_is_closed_with_another_reason(own: BrokerProcess, raw: Raw) -> None:
    raw(to=own).open().close()
    closed = event(own, "connection closed")
    assert closed["reason"]
    assert "closed by client" not in str(closed["reason"])


def test_open_and_close_of_a_channel_carry_its_number(own: BrokerProcess, connect: Connect) -> None:
    channel = connect(to=own).channel(7)
    opened = event(own, "channel opened")
    assert opened["channel"] == 7
    channel.close(reply_code=200, reply_text="done with it")
    closed = event(own, "channel closed")
    assert (closed["channel"], closed["connection"]) == (7, opened["connection"])
    assert "done with it" in str(closed["reason"])


def test_channel_error_is_logged_with_its_text(own: BrokerProcess, connect: Connect) -> None:
    with closes_channel(404, "no queue 'absent' in vhost '/'"):
        connect(to=own).channel().queue_declare("absent", passive=True)
    closed = event(own, "channel closed")
    assert closed["reason"] == "NOT_FOUND - no queue 'absent' in vhost '/'"
    assert closed["level"] == "warning"


def test_connection_error_is_logged_with_its_text(own: BrokerProcess, raw: Raw) -> None:
    client = raw(to=own).open()
    client.open_channel(1)
    client.method(1, amqp.Basic.Qos(prefetch_size=1000))
    client.expect_close(540, "prefetch_size!=0 (1000)", 60, 10)
    error = event(own, "connection error")
    assert error["reason"] == "NOT_IMPLEMENTED - prefetch_size!=0 (1000)"
    assert error["level"] == "warning"


def test_refused_login_is_logged_with_the_user(own: BrokerProcess, connect: Connect) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(to=own, user="mallory", password="open-sesame")
    failed = event(own, "auth.login_failed")
    assert (failed["user"], failed["mechanism"]) == ("mallory", "PLAIN")
    assert own.events("connection opened") == []


def test_client_that_speaks_something_else_is_logged(own: BrokerProcess, raw: Raw) -> None:
    client = raw(to=own)
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    assert event(own, "bad protocol header")["level"] == "warning"


def test_quiet_level_keeps_to_what_went_wrong(own_broker: Own, connect: Connect) -> None:
    own = own_broker()
    connection = connect(to=own)
    connection.channel().close()
    connection.close()
    own.stop()
    assert {entry["event"] for entry in own.events()} >= {"connection opened", "connection closed"}
    assert own.events("channel opened") == []


def test_no_secret_and_no_payload_is_in_any_line(own: BrokerProcess, connect: Connect, raw: Raw) -> None:
    """Whatever a client says in confidence: passwords good and bad, renewed secrets, bodies, headers, broken frames."""
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(to=own, password="wrong-password")
    channel = confirming(connect(to=own))
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"confidential-body", pika.BasicProperties(headers={"key": "confidential-header"}))
    channel.basic_get("q")
    with closes_channel(404, "no exchange 'absent' in vhost '/'"):
        channel.basic_publish("absent", "q", b"confidential-body")
    client = raw(to=own).open()
    client.open_channel(1)
    client.method(0, (10, 70, longstr("renewed-secret") + shortstr("expired")))
    client.read_frame()
    client.method(1, amqp.Basic.Publish(exchange="", routing_key="q"))
    client.frame(3, 1, b"confidential-body")
    client.expect_close(505, "expected content header for class 60, got non content header frame instead", 60, 40)
    amqplain = raw(to=own)
    amqplain.start()
    response = shortstr("LOGIN") + b"S" + longstr("guest") + shortstr("PASSWORD") + b"S" + longstr("wrong-password")
    amqplain.login(mechanism="AMQPLAIN", response=response)
    amqplain.expect_end(403)
    own.stop()
    log = own.log_text()
    for secret in ("wrong-password", "confidential", "renewed-secret"):
        assert secret not in log


def test_client_cannot_forge_a_line(own: BrokerProcess, connect: Connect) -> None:
    name = 'x"}\n{"event": "forged"}\n\x1b[31m'
    connection = connect(to=own, client_properties={"connection_name": name})
    connection.close(reply_code=200, reply_text=name)
    assert event(own, "connection opened")["client_name"] == name
    own.stop()
    assert own.events("forged") == []
    assert len(own.log_text().splitlines()) == len(own.events())


def test_alarm_is_logged(own_broker: Own) -> None:
    own = own_broker(config={"disk_free_limit": 2**60})
    alarm = event(own, "alarm set")
    assert (alarm["resource"], alarm["level"]) == ("disk", "warning")
