"""What the broker has, as the command line lists it: rabbitmqctl's columns, in lines with tabs, as JSON and as tables."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from broker_process import BrokerAddress, BrokerProcess, CtlFailed, ctl_command
from support import eventually, unique

Ctl = Callable[..., str]


def lines(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def rows(ctl: Ctl, *arguments: str) -> list[dict[str, Any]]:
    return json.loads(ctl(*arguments, "--formatter", "json"))


@pytest.fixture
def vhost(make_vhost: Callable[..., str]) -> str:
    return make_vhost()


@pytest.fixture
def client(vhost: str, broker: BrokerAddress) -> Iterator[pika.BlockingConnection]:
    """A connection to the vhost, known by its name."""
    properties = {"connection_name": unique("client")}
    connection = pika.BlockingConnection(broker.parameters(vhost=vhost, client_properties=properties))
    yield connection
    if connection.is_open:
        connection.close()


def test_queues_are_listed_by_name_and_messages(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    channel = client.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", b"one")
    assert ctl("list_queues", "-p", vhost).splitlines()[-3:] == [
        f"Listing queues for vhost {vhost} ...",
        "name\tmessages",
        "orders\t1",
    ]
    assert ctl("-q", "list_queues", "-p", vhost, "--no-table-headers") == "orders\t1\n"
    assert ctl("-s", "list_queues", "-p", vhost) == "orders\t1\n"


def test_the_columns_of_queues(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    channel = client.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True, arguments={"x-max-length": 10, "x-overflow": "drop-head"})
    for body in (b"one", b"three", b"thirteen"):
        channel.basic_publish("", "orders", body)
    channel.basic_get("orders")
    channel.basic_consume("orders", lambda *_: None, auto_ack=False, exclusive=True, consumer_tag="mine")
    channel.basic_cancel("mine")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("orders", lambda *_: None, exclusive=True, consumer_tag="mine")
    columns = [
        "name", "durable", "auto_delete", "exclusive", "messages", "messages_ready", "messages_unacknowledged",
        "message_bytes", "consumers", "exclusive_consumer_tag", "state", "type", "policy", "arguments",
    ]  # fmt: skip
    (row,) = rows(ctl, "list_queues", "-p", vhost, *columns)
    unacked = row["messages_unacknowledged"]
    assert row == {
        "name": "orders",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "messages": 3,
        "messages_ready": 3 - unacked,
        "messages_unacknowledged": unacked,
        "message_bytes": 16,
        "consumers": 1,
        "exclusive_consumer_tag": "mine",
        "state": "running",
        "type": "classic",
        "policy": "",
        "arguments": [["x-max-length", "signedint", 10], ["x-overflow", "longstr", "drop-head"]],
    }
    assert list(row) == columns
    assert ctl("-s", "list_queues", "-p", vhost, "name", "durable", "arguments") == (
        'orders\ttrue\t[{"x-max-length",10},{"x-overflow","drop-head"}]\n'
    )


def test_an_unknown_column_is_exit_code_64(ctl: Ctl, vhost: str):
    with pytest.raises(CtlFailed) as caught:
        ctl("list_queues", "-p", vhost, "name", "colour", "size")
    assert caught.value.code == 64
    assert "Info key(s) colour,size are not supported" in caught.value.stderr


def test_the_queues_of_an_absent_vhost_are_none(ctl: Ctl, broker: BrokerAddress):
    assert ctl("-q", "list_queues", "-p", unique("missing")) == ""


def test_exchanges_are_listed_with_the_default_one(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    channel = client.channel()
    channel.exchange_declare("all", "topic", durable=True, internal=True, arguments={"alternate-exchange": "other"})
    listed = lines(ctl("-q", "list_exchanges", "-p", vhost))
    assert listed[0] == ["name", "type"]
    assert sorted(listed[1:]) == [
        ["", "direct"],
        ["all", "topic"],
        ["amq.direct", "direct"],
        ["amq.fanout", "fanout"],
        ["amq.headers", "headers"],
        ["amq.match", "headers"],
        ["amq.rabbitmq.trace", "topic"],
        ["amq.topic", "topic"],
    ]
    columns = ["name", "type", "durable", "auto_delete", "internal", "arguments", "policy"]
    by_name = {row["name"]: row for row in rows(ctl, "list_exchanges", "-p", vhost, *columns)}
    assert by_name["all"] == {
        "name": "all",
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": True,
        "arguments": [["alternate-exchange", "longstr", "other"]],
        "policy": "",
    }
    assert by_name["amq.rabbitmq.trace"]["internal"] is True


def test_bindings_are_listed_with_those_of_the_default_exchange(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    channel = client.channel()
    channel.queue_declare("orders")
    channel.queue_bind("orders", "amq.headers", "key", arguments={"x-match": "any", "n": 5})
    channel.exchange_bind("amq.fanout", "amq.topic", "a.#")
    header, *listed = lines(ctl("-q", "list_bindings", "-p", vhost))
    assert header == ["source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments"]
    assert sorted(listed) == [
        ["", "exchange", "orders", "queue", "orders", "[]"],
        ["amq.headers", "exchange", "orders", "queue", "key", '[{"n",5},{"x-match","any"}]'],
        ["amq.topic", "exchange", "amq.fanout", "exchange", "a.#", "[]"],
    ]


def test_connections_are_listed(ctl: Ctl, vhost: str, client: pika.BlockingConnection, broker: BrokerAddress):
    columns = [
        "name", "user", "vhost", "peer_host", "peer_port", "port", "state", "channels", "protocol", "auth_mechanism",
        "timeout", "frame_max", "ssl",
    ]  # fmt: skip
    client.channel()
    name = client._impl.params.client_properties["connection_name"]
    found = eventually(
        lambda: [line for line in lines(ctl("-q", "list_connections", *columns, "client_properties")) if name in line[-1]]
    )
    (row,) = found
    local_port = client._impl._transport._sock.getsockname()[1]
    assert row[:-1] == [
        f"127.0.0.1:{local_port} -> 127.0.0.1:{broker.port}", "guest", vhost, "127.0.0.1", str(local_port), str(broker.port),
        "running", "1", "{0,9,1}", "PLAIN", "60", "131072", "false",
    ]  # fmt: skip
    assert f'{{"connection_name","{name}"}}' in row[-1]
    assert '{"product","Pika Python Client Library"}' in row[-1]
    assert lines(ctl("list_connections"))[1] == ["user", "peer_host", "peer_port", "state"]


def test_channels_and_consumers_are_listed(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    first, second, third = client.channel(), client.channel(), client.channel()
    first.queue_declare("orders")
    first.basic_publish("", "orders", b"one")
    first.basic_qos(prefetch_count=7)
    first.basic_consume("orders", lambda *_: None, consumer_tag="first", arguments={"x-priority": 5})
    second.tx_select()
    second.basic_consume("orders", lambda *_: None, consumer_tag="second", auto_ack=True)
    third.confirm_delivery()
    client.process_data_events(0)
    columns = [
        "number", "user", "vhost", "consumer_count", "messages_unacknowledged", "prefetch_count", "transactional", "confirm"
    ]  # fmt: skip

    def mine() -> list[dict[str, Any]]:
        found = [row for row in rows(ctl, "list_channels", *columns) if row["vhost"] == vhost]
        return found if [row["messages_unacknowledged"] for row in found] == [1, 0, 0] else []

    assert [list(row.values()) for row in eventually(mine)] == [
        [1, "guest", vhost, 1, 1, 7, False, False],
        [2, "guest", vhost, 1, 0, 0, True, False],
        [3, "guest", vhost, 0, 0, 0, False, True],
    ]
    consumers = lines(ctl("-q", "list_consumers", "-p", vhost))
    header = ["queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"]
    assert consumers[0] == header
    pids = [line.pop(1) for line in consumers[1:]]
    assert sorted(consumers[1:]) == [
        ["orders", "first", "true", "7", "true", '[{"x-priority",5}]'],
        ["orders", "second", "false", "0", "true", "[]"],
    ]
    channel_pids = [line[0] for line in lines(ctl("-s", "list_channels", "pid"))]
    assert set(pids) <= set(channel_pids)


def test_only_one_consumer_of_a_single_active_queue_is_active(ctl: Ctl, vhost: str, client: pika.BlockingConnection):
    channel = client.channel()
    channel.queue_declare("orders", arguments={"x-single-active-consumer": True})
    for tag in ("first", "second"):
        channel.basic_consume("orders", lambda *_: None, consumer_tag=tag)
    listed = lines(ctl("-s", "list_consumers", "-p", vhost, "consumer_tag", "active", "activity_status"))
    assert sorted(listed) == [["first", "true", "single_active"], ["second", "false", "waiting"]]


@pytest.mark.own
def test_tables_fit_the_terminal(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    connection = pika.BlockingConnection(broker.parameters())
    channel = connection.channel()
    channel.queue_declare("a-queue-with-a-rather-long-name-" + "x" * 60, arguments={"x-expires": 60_000})
    connection.close()
    command = [*ctl_command(), "--data-dir", str(broker.data_dir), "list_queues", "--formatter", "table"]
    for columns in (40, 80):
        shown = subprocess.run(
            [*command, "name", "arguments", "messages"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": str(columns)},
        ).stdout
        table = shown.splitlines()[1:]
        assert max(len(line) for line in table) <= columns
        assert "messages" in shown
        assert "x-expires" in "".join("".join(shown.split()))


@pytest.mark.own
def test_a_list_of_thousands_does_not_hold_up_other_clients(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    connection = pika.BlockingConnection(broker.parameters())
    channel = connection.channel()
    for number in range(3000):
        channel.queue_declare(f"queue-{number}")
    listed = json.loads(broker.ctl("list_queues", "name", "messages", "policy", "--formatter", "json"))
    assert {row["name"] for row in listed} == {f"queue-{number}" for number in range(3000)}
    connection.close()


def test_status_tells_versions_and_counts(ctl: Ctl, vhost: str):
    status = ctl("status")
    assert "RabbitMQ version: 3.10.8" in status
    assert "Virtual host count:" in status
    assert "Total memory used:" in status
    assert "(none)" in status


@pytest.mark.parametrize("command", ["list_queues", "set_policy", "trace_on", "close_connection", "import_definitions"])
def test_help_of_a_command_is_exit_code_0(ctl: Ctl, broker: BrokerAddress, command: str):
    assert command in ctl(command, "--help")


@pytest.mark.parametrize("arguments", [("frobnicate",), ("set_permissions", "user"), ("list_queues", "--colour")])
def test_wrong_usage_is_exit_code_64(ctl: Ctl, broker: BrokerAddress, arguments: tuple[str, ...]):
    with pytest.raises(CtlFailed) as caught:
        ctl(*arguments)
    assert caught.value.code == 64
