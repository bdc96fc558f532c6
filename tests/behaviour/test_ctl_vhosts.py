"""Vhosts made and deleted while the broker runs, and their limits."""

from __future__ import annotations

import json
import sqlite3
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pika
import pika.exceptions
import pytest

from broker_process import BrokerAddress, BrokerProcess, CtlFailed
from support import assert_closed, eventually, unique

Ctl = Callable[..., str]


def vhosts(ctl: Ctl) -> list[str]:
    return ctl("-q", "list_vhosts", "--no-table-headers").splitlines()


def test_a_vhost_can_be_used_as_soon_as_it_is_added(ctl: Ctl, make_vhost: Callable[..., str], broker: BrokerAddress):
    vhost = make_vhost()
    connection = pika.BlockingConnection(broker.parameters(vhost=vhost))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("durable", durable=True)
    channel.basic_publish("", "durable", b"body", pika.BasicProperties(delivery_mode=2))
    assert channel.basic_get("durable", auto_ack=True)[2] == b"body"
    connection.close()


def test_adding_a_vhost_twice_changes_nothing(ctl: Ctl, make_vhost: Callable[..., str]):
    vhost = make_vhost()
    assert ctl("add_vhost", vhost) == f'Adding vhost "{vhost}" ...\n'
    assert vhosts(ctl).count(vhost) == 1


def test_description_and_tags_are_kept(ctl: Ctl, broker: BrokerAddress):
    vhost = unique("vhost")
    ctl("add_vhost", vhost, "--description", "of mine", "--tags", "a,b")
    try:
        rows = json.loads(ctl("list_vhosts", "name", "description", "tracing", "--formatter", "json"))
        assert {"name": vhost, "description": "of mine", "tracing": False} in rows
    finally:
        ctl("delete_vhost", vhost)


def test_deleting_a_vhost_closes_its_connections_and_forgets_all_that_was_in_it(
    ctl: Ctl, make_vhost: Callable[..., str], broker: BrokerAddress
):
    vhost = make_vhost()
    connection = pika.BlockingConnection(broker.parameters(vhost=vhost))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("durable", durable=True)
    for _ in range(100):
        channel.basic_publish("", "durable", b"x" * 5000, pika.BasicProperties(delivery_mode=2))
    assert ctl("delete_vhost", vhost) == f'Deleting vhost "{vhost}" ...\n'
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.process_data_events(5)
    assert_closed(caught.value, 320, f"vhost '{vhost}' is deleted")
    assert vhost not in vhosts(ctl)
    assert vhost not in ctl("-q", "list_user_permissions", "guest")
    ctl("add_vhost", vhost)
    assert ctl("-q", "list_queues", "-p", vhost) == ""


def test_an_absent_vhost_cannot_be_deleted(ctl: Ctl, broker: BrokerAddress):
    vhost = unique("missing")
    with pytest.raises(CtlFailed) as caught:
        ctl("delete_vhost", vhost)
    assert caught.value.code == 65
    assert f"Virtual host '{vhost}' does not exist" in caught.value.stderr


def test_vhost_limits_are_set_listed_and_cleared(ctl: Ctl, make_vhost: Callable[..., str], broker: BrokerAddress):
    vhost = make_vhost()
    ctl("set_vhost_limits", "-p", vhost, '{"max-queues": 1, "max-connections": 10}')
    assert ctl("-q", "list_vhost_limits", "-p", vhost) == '{"max-connections":10,"max-queues":1}\n'
    assert f'{vhost}\t{{"max-connections":10,"max-queues":1}}' in ctl("-q", "list_vhost_limits", "--global")
    connection = pika.BlockingConnection(broker.parameters(vhost=vhost))
    connection.channel().queue_declare("one")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_declare("two")
    assert_closed(caught.value, 406, f"cannot declare queue 'two': queue limit in vhost '{vhost}' (1) is reached")
    ctl("clear_vhost_limits", "-p", vhost)
    connection.channel().queue_declare("two")
    connection.close()


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [('{"max-foo": 1}', 'Unrecognised terms [{<<"max-foo">>,1}] in limits'), ("{bad", "JSON decoding error")],
)
def test_bad_limits_are_refused(ctl: Ctl, make_vhost: Callable[..., str], limits: str, complaint: str):
    vhost = make_vhost()
    with pytest.raises(CtlFailed) as caught:
        ctl("set_vhost_limits", "-p", vhost, limits)
    assert complaint in caught.value.stderr
    assert caught.value.code == 69


def test_tracing_is_switched_and_listed(ctl: Ctl, make_vhost: Callable[..., str]):
    vhost = make_vhost()
    assert ctl("trace_on", "-p", vhost).splitlines() == [
        f'Starting tracing for vhost "{vhost}" ...',
        f"Trace enabled for vhost {vhost}",
    ]
    assert f"{vhost}\ttrue" in ctl("-q", "list_vhosts", "name", "tracing")
    assert ctl("-q", "trace_off", "-p", vhost) == f"Trace disabled for vhost {vhost}\n"
    assert f"{vhost}\tfalse" in ctl("-q", "list_vhosts", "name", "tracing")


# -- our own daemon -------------------------------------------------------------------------------------------------------


def folders(broker: BrokerProcess) -> set[str]:
    return {folder.name for folder in (broker.data_dir / "vhosts").iterdir()}


@pytest.mark.own
def test_vhosts_outlive_a_restart_and_deleted_ones_do_not(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    for vhost in ("kept", "gone"):
        broker.ctl("add_vhost", vhost)
        broker.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    connection = pika.BlockingConnection(broker.parameters(vhost="kept"))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("durable", durable=True)
    channel.basic_publish("", "durable", b"body", pika.BasicProperties(delivery_mode=2))
    connection.close()
    broker.ctl("delete_vhost", "gone")
    assert folders(broker) == {"%2F", "kept"}
    broker.crash()
    broker.start()
    assert sorted(vhosts(broker.ctl)) == ["/", "kept"]
    assert broker.ctl("-q", "-s", "list_queues", "-p", "kept") == "durable\t1\n"


@pytest.mark.own
def test_counters_do_not_fall_with_a_deleted_vhost(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    broker.ctl("add_vhost", "busy")
    broker.ctl("set_permissions", "-p", "busy", "guest", ".*", ".*", ".*")
    connection = pika.BlockingConnection(broker.parameters(vhost="busy"))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("durable", durable=True)
    for _ in range(10):
        channel.basic_publish("", "durable", b"body", pika.BasicProperties(delivery_mode=2))
    before = counters(broker)
    broker.ctl("delete_vhost", "busy")
    after = counters(broker)
    assert before["rabbitpy_store_epochs_total"] >= 1
    assert before["rabbitmq_queues_created_total"] == 1
    assert {name: value for name, value in before.items() if after[name] < value} == {}
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.process_data_events(5)


def counters(broker: BrokerProcess) -> dict[str, float]:
    """Every counter of /metrics."""
    with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#") and line.partition("{")[0].partition(" ")[0].endswith("_total")
    }


@pytest.mark.own
def test_what_a_crash_leaves_of_a_deleted_vhost_is_removed_at_the_next_start(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()

    def leave_a_folder(data_dir: Path) -> None:
        (data_dir / "vhosts" / "gone" / "queues").mkdir(parents=True)
        (data_dir / "vhosts" / "gone" / "queues" / "some.segment").write_bytes(b"old")

    broker.restart(leave_a_folder)
    assert folders(broker) == {"%2F"}
    assert [event["path"] for event in broker.events("deleted vhost removed")] == [str(broker.data_dir / "vhosts" / "gone")]


@pytest.mark.own
def test_a_vhost_that_could_not_be_written_down_is_not_there_after_a_restart(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    shell = sqlite3.connect(broker.data_dir / "definitions.sqlite", isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(CtlFailed, match="vhost 'new' cannot be added: definitions could not be written"):
        broker.ctl("add_vhost", "new")
    shell.execute("ROLLBACK")
    shell.close()
    assert vhosts(broker.ctl) == ["/"]
    broker.restart()
    assert vhosts(broker.ctl) == ["/"]


@pytest.mark.own
def test_a_vhost_is_deleted_under_load_and_made_again(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    for round_number in range(3):
        broker.ctl("add_vhost", "busy")
        broker.ctl("set_permissions", "-p", "busy", "guest", ".*", ".*", ".*")
        connection = pika.BlockingConnection(broker.parameters(vhost="busy"))
        channel = connection.channel()
        channel.queue_declare("durable", durable=True)
        for _ in range(2000):
            channel.basic_publish("", "durable", b"x" * 8000, pika.BasicProperties(delivery_mode=2))
        eventually(lambda: "durable" in broker.ctl("-q", "list_queues", "-p", "busy"))
        broker.ctl("delete_vhost", "busy")
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(5)
            connection.process_data_events(5)
        assert folders(broker) == {"%2F"}, round_number
    broker.assert_clean_log()
