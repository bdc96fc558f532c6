"""rabbitmq-diagnostics' questions, which probes and scripts ask: the texts, the JSON, the exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from broker_process import BrokerProcess, CtlFailed
from support import eventually

pytestmark = pytest.mark.own  # the reference has these in another program

Ctl = Callable[..., str]


@pytest.fixture
def own(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return own_broker()


@pytest.fixture
def alarmed(own: BrokerProcess) -> Iterator[BrokerProcess]:
    own.ctl("set_vm_memory_high_watermark", "0.000001")
    yield own
    own.ctl("set_vm_memory_high_watermark", "0.4")


def node_of(process: BrokerProcess) -> str:
    return str(json.loads(process.ctl("status", "--formatter", "json"))["node_name"])


def fails(process: BrokerProcess, code: int, *arguments: str) -> tuple[str, str]:
    with pytest.raises(CtlFailed) as caught:
        process.ctl(*arguments)
    assert caught.value.code == code, caught.value
    return caught.value.stdout, caught.value.stderr


def test_a_running_broker_says_so(own: BrokerProcess):
    text = f"RabbitMQ on node {node_of(own)} is fully booted and running"
    assert own.ctl("check_running") == f"Checking if RabbitMQ is running on node {node_of(own)} ...\n{text}\n"
    assert own.ctl("-q", "check_running") == own.ctl("-q", "is_running") == text + "\n"
    assert json.loads(own.ctl("is_running", "--formatter", "json")) == {"message": text, "result": True}
    assert json.loads(own.ctl("is_booting", "--formatter", "json"))["result"] is False
    assert own.ctl("-q", "server_version") == "3.10.8\n"
    assert json.loads(own.ctl("server_version", "--formatter", "json")) == {"result": "ok", "value": "3.10.8"}


def test_the_log_says_what_containers_wait_for(own: BrokerProcess):
    eventually(lambda: re.search(r".*Server startup complete.*", own.log_text()))


@pytest.mark.parametrize(
    "command, text",
    [
        ("alarms", "Node {node} reported no alarms, local or clusterwide\n"),
        ("check_alarms", "Node {node} reported no alarms, local or clusterwide\n"),
        ("check_local_alarms", "Node {node} reported no local alarms\n"),
        ("check_virtual_hosts", "Node {node} reported all vhosts as running\n"),
    ],
)
def test_nothing_is_wrong(own: BrokerProcess, command: str, text: str):
    assert own.ctl("-q", command) == text.format(node=node_of(own))
    assert json.loads(own.ctl(command, "--formatter", "json"))["result"] == "ok"


def test_an_alarm_is_told_and_fails_the_checks(alarmed: BrokerProcess):
    text = f"Memory alarm on node {node_of(alarmed)}"
    assert alarmed.ctl("-q", "alarms") == text + "\n"
    assert fails(alarmed, 69, "-q", "check_alarms") == (text + "\n", "")
    assert fails(alarmed, 69, "-q", "check_local_alarms") == ("", f"Error:\n{text}\n")
    out, _ = fails(alarmed, 69, "check_alarms", "--formatter", "json")
    assert json.loads(out) == {
        "result": "error",
        "local": [text],
        "global": [],
        "message": f"Node {node_of(alarmed)} reported alarms",
    }


def test_listeners(own: BrokerProcess):
    port = str(own.port)
    found = json.loads(own.ctl("listeners", "--formatter", "json"))["listeners"]
    by_protocol = {one["protocol"]: one for one in found}
    assert set(by_protocol) >= {"amqp", "http/prometheus"}
    assert by_protocol["amqp"] == {
        "node": node_of(own),
        "interface": "127.0.0.1",
        "port": own.port,
        "protocol": "amqp",
        "purpose": "AMQP 0-9-1",
    }
    assert f"Interface: 127.0.0.1, port: {port}, protocol: amqp, purpose: AMQP 0-9-1\n" in own.ctl("listeners")
    assert own.ctl("-q", "check_port_listener", port) == f"A listener for port {port} is running on node {node_of(own)}.\n"
    assert own.ctl("-q", "check_protocol_listener", "amqp").startswith("A listener for protocol amqp is running on node ")
    out, _ = fails(own, 69, "-q", "check_port_listener", "1")
    missing = f"No listener for port 1 is active on node {node_of(own)}. Found listeners that use the following ports: "
    assert out.startswith(missing)
    assert port in out
    _, err = fails(own, 69, "-q", "check_protocol_listener", "mqtt")
    assert err.endswith(f"Found listeners for the following protocols: {', '.join(sorted(by_protocol))}\n")
    ports = ", ".join(str(number) for number in sorted(one["port"] for one in found))
    assert own.ctl("-q", "check_port_connectivity") == f"Successfully connected to ports {ports} on node {node_of(own)}.\n"


def test_what_is_no_port_or_unit_is_refused(own: BrokerProcess):
    _, err = fails(own, 65, "check_port_listener", "abc")
    assert err == "Error (argument validation): Bad argument: Argument must be a positive integer\n"
    _, err = fails(own, 65, "memory_breakdown", "--unit", "xx")
    assert err == "Error (argument validation): unit 'xx' is not supported. Please use one of: bytes, mb, gb\n"


def test_memory_is_told_by_category(own: BrokerProcess, connect: Callable[..., object]):
    channel = connect(to=own).channel()
    channel.queue_declare("big")
    for _ in range(50):
        channel.basic_publish("", "big", b"x" * 100_000)
    found = eventually(lambda: sizes if (sizes := breakdown(own))["binary"]["bytes"] == 5_000_000 else None)
    assert found["other_proc"]["bytes"] > 0 and found["queue_procs"]["bytes"] == 0
    assert sum(one["percentage"] for one in found.values()) == pytest.approx(100, abs=1)
    lines = own.ctl("-q", "memory_breakdown", "--unit", "mb").splitlines()
    assert re.fullmatch(r"binary: 5 mb \(\d+\.\d+%\)", next(line for line in lines if line.startswith("binary")))
    sizes = [float(line.split()[1]) for line in lines]
    assert sizes == sorted(sizes, reverse=True)


def breakdown(process: BrokerProcess) -> dict[str, dict[str, float]]:
    return json.loads(process.ctl("memory_breakdown", "--formatter", "json"))
