"""What the command line does to queues, connections, policies and alarms of a running broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from broker_process import BrokerAddress, BrokerProcess, CtlFailed
from rabbitpy_broker import process_memory
from support import assert_closed, eventually

Ctl = Callable[..., str]


@pytest.fixture
def vhost(make_vhost: Callable[..., str]) -> str:
    return make_vhost()


@pytest.fixture
def client(vhost: str, broker: BrokerAddress) -> Iterator[pika.BlockingConnection]:
    connection = pika.BlockingConnection(broker.parameters(vhost=vhost))
    yield connection
    if connection.is_open:
        connection.close()


def fails(ctl: Ctl, code: int, *arguments: str) -> str:
    with pytest.raises(CtlFailed) as caught:
        ctl(*arguments)
    assert caught.value.code == code, caught.value
    return caught.value.stderr


# -- queues ---------------------------------------------------------------------------------------------------------------


def test_purge_drops_what_is_ready_and_keeps_what_is_unacked(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    channel = client.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders")
    for _ in range(3):
        channel.basic_publish("", "orders", b"body")
    channel.basic_get("orders")
    assert ctl("purge_queue", "-p", vhost, "orders") == f"Purging queue 'orders' in vhost '{vhost}' ...\n"
    assert ctl("-s", "list_queues", "-p", vhost, "messages_ready", "messages_unacknowledged") == "0\t1\n"


def test_an_absent_queue_cannot_be_purged_or_deleted(ctl: Ctl, vhost: str):
    assert fails(ctl, 69, "purge_queue", "-p", vhost, "missing") == "Error:\nnot_found\n"
    assert fails(ctl, 64, "delete_queue", "-p", vhost, "missing") == "Error:\nQueue not found\n"


def test_a_queue_is_deleted_and_its_consumers_are_told(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    channel = client.channel()
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.queue_declare("orders", durable=True)
    channel.basic_consume("orders", lambda *_: None, consumer_tag="mine")
    channel.queue_declare("other", exclusive=True)
    assert "Queue was successfully deleted with 0 ready messages" in ctl("delete_queue", "-p", vhost, "orders")
    ctl("delete_queue", "-p", vhost, "other")
    client.process_data_events(1)
    assert cancelled == ["mine"]
    assert ctl("-q", "list_queues", "-p", vhost) == ""


def test_a_queue_in_use_or_with_messages_is_kept_if_asked(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    channel = client.channel()
    channel.confirm_delivery()
    channel.queue_declare("full")
    channel.basic_publish("", "full", b"body")
    channel.queue_declare("used")
    channel.basic_consume("used", lambda *_: None)
    assert fails(ctl, 64, "delete_queue", "-p", vhost, "full", "--if-empty") == "Error:\nQueue is not empty\n"
    assert fails(ctl, 64, "delete_queue", "-p", vhost, "used", "--if-unused") == "Error:\nQueue is in use\n"
    ctl("delete_queue", "-p", vhost, "used", "--if-empty")
    assert "with 1 ready messages" in ctl("delete_queue", "-p", vhost, "full", "--if-unused")


# -- connections ----------------------------------------------------------------------------------------------------------


def test_a_connection_is_closed_by_its_pid(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    client.channel()
    by_vhost = dict(line.split("\t")[::-1] for line in ctl("-s", "list_connections", "pid", "vhost").splitlines())
    pid = by_vhost[vhost]
    assert ctl("close_connection", pid, "go away") == f"Closing connection {pid}, reason: go away...\n"
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        client.process_data_events(5)
    assert_closed(caught.value, 320, "go away")
    ctl("close_connection", pid, "again")  # one that is gone is no error


def test_what_is_no_pid_is_refused(ctl: Ctl, broker: BrokerAddress):
    assert "invalid_pid_syntax" in fails(ctl, 69, "close_connection", "nonsense", "why")


def test_all_connections_of_a_vhost_are_closed(ctl: Ctl, vhost: str, client: pika.BlockingConnection, connection: Any):
    assert "Closed 1 connections" in ctl("close_all_connections", "--vhost", vhost, "all out")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        client.process_data_events(5)
    assert_closed(caught.value, 320, "all out")
    connection.process_data_events(0)
    assert connection.is_open


def test_all_connections_of_a_user_are_closed(
    ctl: Ctl, vhost: str, client: pika.BlockingConnection, broker: BrokerAddress, make_user: Callable[..., str]
):
    name = make_user(f"user-{vhost}", "secret", vhost=vhost)
    theirs = pika.BlockingConnection(broker.parameters(user=name, password="secret", vhost=vhost))
    ctl("close_all_user_connections", name, "bye")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        theirs.process_data_events(5)
    assert_closed(caught.value, 320, "bye")
    client.process_data_events(0)
    assert client.is_open


# -- policies -------------------------------------------------------------------------------------------------------------


def test_a_policy_is_set_listed_applied_and_cleared(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    channel = client.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders")
    shown = ctl(
        "set_policy", "-p", vhost, "short", "^ord", '{"max-length":2}', "--priority", "3", "--apply-to", "queues"
    )
    asked = 'Setting policy "short" for pattern "^ord" to "{"max-length":2}" with priority "3"'
    assert shown == f'{asked} for vhost "{vhost}" ...\n'
    assert ctl("-q", "list_policies", "-p", vhost).splitlines() == [
        "vhost\tname\tpattern\tapply-to\tdefinition\tpriority",
        f'{vhost}\tshort\t^ord\tqueues\t{{"max-length":2}}\t3',
    ]
    for _ in range(5):
        channel.basic_publish("", "orders", b"body")
    eventually(lambda: ctl("-s", "list_queues", "-p", vhost, "messages", "policy") == "2\tshort\n")
    ctl("clear_policy", "-p", vhost, "short")
    assert ctl("-q", "list_policies", "-p", vhost) == ""
    assert ctl("-s", "list_queues", "-p", vhost, "name", "policy") == "orders\t\n"


def test_an_operator_policy_is_set_listed_and_cleared(ctl: Ctl, vhost: str):
    ctl("set_operator_policy", "-p", vhost, "cap", "", '{"expires":3600000,"max-length":5}', "--apply-to", "queues")
    (row,) = json.loads(ctl("list_operator_policies", "-p", vhost, "--formatter", "json"))
    assert row == {
        "vhost": vhost,
        "name": "cap",
        "pattern": "",
        "apply-to": "queues",
        "definition": '{"expires":3600000,"max-length":5}',
        "priority": 0,
    }
    assert '"max-length":5' in ctl("list_parameters", "-p", vhost)
    ctl("clear_operator_policy", "-p", vhost, "cap")
    assert ctl("-q", "list_operator_policies", "-p", vhost) == ""


@pytest.mark.parametrize(
    ("pattern", "definition", "complaint"),
    [
        ("^q", '{"max-lengthx":5}', '[{<<"max-lengthx">>,5}] are not recognised policy settings'),
        ("(", '{"max-length":5}', "pattern should be regular expression but is invalid: "),
        ("^q", "{bad", "JSON decoding error. Reason: "),
        ("^q", "{}", "no policy provided"),
    ],
)
def test_a_bad_policy_is_refused(ctl: Ctl, vhost: str, pattern: str, definition: str, complaint: str):
    assert complaint in fails(ctl, 69, "set_policy", "-p", vhost, "bad", pattern, definition)
    assert ctl("-q", "list_policies", "-p", vhost) == ""


@pytest.mark.parametrize("command", ["clear_policy", "clear_operator_policy"])
def test_an_absent_policy_cannot_be_cleared(ctl: Ctl, vhost: str, command: str):
    assert "Parameter does not exist" in fails(ctl, 69, command, "-p", vhost, "missing")


def test_global_parameters_are_kept(ctl: Ctl, vhost: str):
    ctl("set_global_parameter", vhost, '{"a":[1,true]}')
    assert f'{vhost}\t{{"a":[1,true]}}' in ctl("list_global_parameters")
    ctl("clear_global_parameter", vhost)
    assert vhost not in ctl("list_global_parameters")


# -- alarms ---------------------------------------------------------------------------------------------------------------


@pytest.mark.own
def test_the_memory_limit_is_set_at_run_time(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    connection = pika.BlockingConnection(broker.parameters())
    connection.channel()
    broker.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    assert broker.events("alarm set")[0]["resource"] == "memory"
    status = json.loads(broker.ctl("status", "--formatter", "json"))
    assert (status["alarms"], status["memory_limit"]) == (["memory"], 1_000_000)
    broker.ctl("set_vm_memory_high_watermark", "0.9")
    assert json.loads(broker.ctl("status", "--formatter", "json"))["alarms"] == []
    broker.ctl("set_disk_free_limit", "1000TB")
    assert json.loads(broker.ctl("status", "--formatter", "json"))["alarms"] == ["disk"]
    connection.close()


# That the limits are as with rabbitmqctl was seen there: an alarm would stop whoever else uses a shared RabbitMQ.
@pytest.mark.own
@pytest.mark.parametrize(
    ("mark", "setting", "alarms"),
    [
        (("absolute", "0"), {"absolute": 0}, ["memory"]),
        (("absolute", "1"), {"absolute": 1}, ["memory"]),
        (("absolute", "2"), {"absolute": 2}, ["memory"]),
        (("absolute", "+1"), {"absolute": 1}, ["memory"]),
        (("absolute", "1k"), {"absolute": 1024}, ["memory"]),
        (("absolute", "1GB"), {"absolute": 1_000_000_000}, []),
        (("absolute", "1GiB"), {"absolute": 2**30}, []),
        (("absolute", "1000TB"), {"absolute": 10**15}, []),
        (("0",), {"relative": 0.0}, ["memory"]),
        (("0.4",), {"relative": 0.4}, []),
        (("1",), {"relative": 1.0}, []),
        (("1.0",), {"relative": 1.0}, []),
        (("1e-9",), {"relative": 1e-9}, ["memory"]),
    ],
)
def test_a_memory_limit_is_a_fraction_or_bytes_by_how_it_is_given_not_by_its_size(
    ctl: Ctl, mark: tuple[str, ...], setting: dict[str, float], alarms: list[str]
):
    try:
        shown = mark[0] if len(mark) == 1 else f"{mark[1]} bytes"
        assert ctl("set_vm_memory_high_watermark", *mark) == f"Setting memory threshold to {shown} ...\n"
        status = json.loads(ctl("status", "--formatter", "json"))
        assert (status["vm_memory_high_watermark_setting"], status["alarms"]) == (setting, alarms)
        available = process_memory.available()
        limit = setting.get("absolute", setting.get("relative", 0) * available)
        assert status["memory_limit"] == min(int(limit), available)  # as in RabbitMQ: never more than there is
    finally:
        ctl("set_vm_memory_high_watermark", "0.4")


@pytest.mark.own
@pytest.mark.parametrize(
    ("limit", "limit_bytes"),
    [
        (("0",), 0),
        (("1",), 1),
        (("-1",), -1),
        (("1GiB",), 2**30),
        (("99999999999999GB",), 2**63 - 1),
        (("mem_relative", "1e300"), 2**63 - 1),
        (("mem_relative", "0"), 0),
        (("mem_relative", "1"), 1.0),
        (("mem_relative", "1.0"), 1.0),
        (("mem_relative", "2.5"), 2.5),
    ],
)
def test_a_disk_limit_is_bytes_or_a_multiple_of_the_memory(ctl: Ctl, limit: tuple[str, ...], limit_bytes: float):
    try:
        shown = f"{limit[0]} bytes" if len(limit) == 1 else f"{limit[1]} times the total RAM"
        assert ctl("set_disk_free_limit", *limit) == f"Setting disk free limit to {shown} ...\n"
        status = json.loads(ctl("status", "--formatter", "json"))
        expected = limit_bytes * process_memory.available() if isinstance(limit_bytes, float) else limit_bytes
        assert status["disk_free_limit"] == int(expected)
    finally:
        ctl("set_disk_free_limit", "50MB")


@pytest.mark.parametrize(
    ("command", "arguments", "code", "complaint"),
    [
        ("set_vm_memory_high_watermark", ("1.5",), 65, "Bad argument: The threshold should be a fraction between 0.0 and 1.0"),
        ("set_vm_memory_high_watermark", ("2",), 65, "Bad argument: The threshold should be a fraction between 0.0 and 1.0"),
        ("set_vm_memory_high_watermark", ("-0.1",), 65, "Bad argument: The threshold should be a fraction between 0.0 and 1.0"),
        ("set_vm_memory_high_watermark", ("abc",), 65, "Bad argument."),
        ("set_vm_memory_high_watermark", ("nan",), 65, "Bad argument."),
        ("set_vm_memory_high_watermark", ("1GB",), 65, "Bad argument."),
        ("set_vm_memory_high_watermark", ("0.4x",), 65, "Bad argument."),
        ("set_vm_memory_high_watermark", (".5",), 65, "Bad argument."),
        ("set_vm_memory_high_watermark", ("absolute", "many"), 65, "Bad argument."),
        ("set_vm_memory_high_watermark", ("absolute", "0.4"), 65, "Bad argument: The threshold should be an integer."),
        ("set_vm_memory_high_watermark", ("absolute", "1.5GB"), 65, "Bad argument: The threshold should be an integer."),
        ("set_vm_memory_high_watermark", ("absolute", "1parsec"), 65, "Bad argument: Invalid units."),
        ("set_vm_memory_high_watermark", ("absolute",), 64, "not enough arguments."),
        ("set_vm_memory_high_watermark", ("relative", "1GB"), 64, "too many arguments."),
        ("set_disk_free_limit", ("1.5",), 65, "Bad argument."),
        ("set_disk_free_limit", ("1e3",), 65, "Bad argument."),
        ("set_disk_free_limit", ("much",), 65, "Bad argument."),
        ("set_disk_free_limit", ("1parsec",), 65, "Bad argument."),
        ("set_disk_free_limit", ("mem_relative", "-1"), 65, "Bad argument."),
        ("set_disk_free_limit", ("mem_relative", "much"), 65, "Bad argument."),
        ("set_disk_free_limit", ("mem_relative", "1GB"), 65, "Bad argument."),
        ("set_disk_free_limit", ("mem_relative",), 64, "not enough arguments."),
        ("set_disk_free_limit", ("absolute", "1GB"), 64, "too many arguments."),
    ],
)
def test_a_bad_limit_is_refused_before_anything_is_said_or_set(
    ctl: Ctl, command: str, arguments: tuple[str, ...], code: int, complaint: str
):
    with pytest.raises(CtlFailed) as caught:
        ctl(command, *arguments)
    assert (caught.value.code, caught.value.stdout) == (code, "")
    assert caught.value.stderr.splitlines()[0] == f"Error (argument validation): {complaint}"


@pytest.mark.own
def test_a_negative_size_of_memory_is_refused(ctl: Ctl):
    """rabbitmqctl falls over it."""
    assert "Bad argument." in fails(ctl, 65, "set_vm_memory_high_watermark", "absolute", "-1")


@pytest.mark.own
@pytest.mark.parametrize(
    ("settings", "memory", "disk"),
    [
        ({"vm_memory_high_watermark": {"absolute": 1}}, {"absolute": 1}, 50_000_000),
        ({"vm_memory_high_watermark": {"absolute": "1MiB"}}, {"absolute": 2**20}, 50_000_000),
        ({"vm_memory_high_watermark": {"relative": 1}}, {"relative": 1.0}, 50_000_000),
        ({"disk_free_limit": {"absolute": 1}}, {"relative": 0.4}, 1),
        ({"disk_free_limit": {"relative": 1}}, {"relative": 0.4}, process_memory.available()),
    ],
)
def test_the_file_says_which_it_is(
    own_broker: Callable[..., BrokerProcess], settings: dict[str, Any], memory: dict[str, float], disk: int
):
    status = json.loads(own_broker(config=settings).ctl("status", "--formatter", "json"))
    assert (status["vm_memory_high_watermark_setting"], status["disk_free_limit"]) == (memory, disk)
    assert ("memory" in status["alarms"]) == ("absolute" in memory)
