"""`rabbitpy-broker check` and `dump` on the directory of a broker that has stopped, was killed, or still runs."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from broker_process import BrokerProcess, broker_command
from support import eventually

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]

SMALL = b"small"
LARGE = bytes(range(256)) * 40  # for the message store, and not UTF-8


def run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [*broker_command(), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=50, check=False)


def check(directory: Path) -> tuple[int, str]:
    result = run("check", directory)
    assert b"Traceback" not in result.stderr, result.stderr
    return result.returncode, (result.stdout + result.stderr).decode()


def dump(directory: Path, *options: str) -> list[dict[str, Any]]:
    result = run("dump", directory, *options)
    assert result.returncode == 0, result
    assert result.stderr == b""
    return [json.loads(line) for line in result.stdout.decode().splitlines()]


def row(text: str, vhost: str = "/") -> list[int]:
    """The numbers of a vhost in the table."""
    (line,) = re.findall(rf"│ {re.escape(vhost)} +│(.*)│\n", text)
    return [int(cell.replace(",", "")) for cell in line.split("│")]


def files(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of change of every file but the lock."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def fill(process: BrokerProcess, connect: Connect) -> None:
    """Queue a: 20 small and 4 large persistent, 3 transient, of which the first 5 are acked. Queue b: the large ones."""
    channel = connect(to=process).channel()
    channel.confirm_delivery()
    for queue in ("a", "b"):
        channel.queue_declare(queue, durable=True)
    channel.queue_bind("b", "amq.fanout")
    channel.queue_bind("a", "amq.fanout")
    persistent = pika.BasicProperties(delivery_mode=2)
    for _ in range(20):
        channel.basic_publish("", "a", SMALL, persistent)
    for number in range(4):
        channel.basic_publish("amq.fanout", f"key {number}", LARGE, persistent)
    for _ in range(3):
        channel.basic_publish("", "a", b"transient")
    for _ in range(5):
        channel.basic_get("a", auto_ack=True)
    channel.queue_purge("b")
    channel.basic_publish("", "b", LARGE, persistent)
    channel.connection.close()


def test_a_stopped_directory_is_sound_and_stays_as_it_is(own_broker: Own, connect: Connect) -> None:
    process = own_broker()
    fill(process, connect)
    process.stop()
    before = files(process.data_dir)
    code, text = check(process.data_dir)
    assert code == 0, text
    queues, messages, size, segments, journal, stored, garbage = row(text)
    assert (queues, messages, size) == (2, 20, 15 * len(SMALL) + 5 * len(LARGE))
    assert stored - garbage == 5
    assert (segments, journal) != (0, 0), "either has them, and the stop has not moved them"
    assert f"{process.data_dir}: sound" in text
    assert len(dump(process.data_dir, "--queue", "a")) == 19
    assert files(process.data_dir) == before


def test_a_killed_brokers_directory_is_sound_and_stays_as_it_is(own_broker: Own, connect: Connect) -> None:
    process = own_broker()
    fill(process, connect)
    process.crash()
    before = files(process.data_dir)
    code, text = check(process.data_dir)
    assert code == 0, text
    queues, messages, _size, _segments, journal, stored, garbage = row(text)
    assert queues == 2
    assert 20 <= messages <= 29, "acks may not have been written"
    assert journal == 1
    assert stored - garbage == 5
    assert len(dump(process.data_dir, "--queue", "b")) >= 1
    assert files(process.data_dir) == before
    process.start()  # and nothing hinders the next start


def test_damage_is_named_with_its_file_and_place(own_broker: Own, connect: Connect) -> None:
    process = own_broker()
    fill(process, connect)
    process.stop()
    (store,) = process.data_dir.glob("vhosts/*/msg_store_persistent/*.store")
    data = bytearray(store.read_bytes())
    data[-100] ^= 1  # in the last message, which is in b
    store.write_bytes(data)
    code, text = check(process.data_dir)
    assert code == 1
    damage = [line for line in text.splitlines() if line.startswith("damage: ")]
    assert re.fullmatch(
        r"damage: \S+\.(segment|journal) at \d+: seq_id 4 is message \w{32}, which .* does not have", damage[0]
    )
    assert f"{process.data_dir}: damaged in {len(damage)} places" in text
    result = run("dump", process.data_dir, "--queue", "b")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"seq_id 4" in result.stderr
    assert len(dump(process.data_dir, "--queue", "a")) == 19


def test_a_directory_in_use_is_refused(own_broker: Own) -> None:
    process = own_broker()
    for arguments in (("check", process.data_dir), ("dump", process.data_dir, "--queue", "a")):
        result = run(*arguments)
        assert result.returncode == 2
        assert b"in use" in result.stderr
        assert result.stdout == b""
    assert process.alive()


def test_what_is_no_data_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        result = run("check", path)
        assert result.returncode == 2
        assert result.stderr.decode() == f"rabbitpy-broker: {path} is no data directory\n"
    assert list(tmp_path.iterdir()) == []


def test_a_newer_format_is_refused(own_broker: Own) -> None:
    process = own_broker()
    process.stop()
    (process.data_dir / "format").write_text("99\n")
    for arguments in (("check", process.data_dir), ("dump", process.data_dir, "--queue", "a")):
        result = run(*arguments)
        assert result.returncode == 2
        assert b"newer rabbitpy-broker: format 99" in result.stderr


@pytest.mark.parametrize("options", [("--queue", "absent"), ("--queue", "a", "--vhost", "absent")])
def test_dump_refuses_what_is_not_there(own_broker: Own, options: tuple[str, ...]) -> None:
    process = own_broker()
    process.stop()
    result = run("dump", process.data_dir, *options)
    assert result.returncode == 2
    assert b"'absent'" in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_dump_prints_messages_in_order_with_all_that_they_have(own_broker: Own, connect: Connect) -> None:
    process = own_broker()
    channel = connect(to=process).channel()
    channel.queue_declare("a", durable=True)
    channel.queue_bind("a", "amq.topic", "#")
    channel.confirm_delivery()
    headers = {"text": "täxt", "number": 7, "flag": True, "list": [1, "two"], "inner": {"nothing": None}}
    full = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", headers=headers, delivery_mode=2, priority=3,
        correlation_id="c", reply_to="r", expiration="60000", message_id="m", timestamp=1_700_000_000, type="t",
        user_id="guest", app_id="p", cluster_id="k",
    )  # fmt: skip
    channel.basic_publish("amq.topic", "first.key", "grüße".encode(), full)
    channel.basic_publish("", "a", LARGE, pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("", "a", b"", pika.BasicProperties(delivery_mode=2))
    channel.basic_get("a")
    channel.connection.close()
    process.stop()
    first, second, third = dump(process.data_dir, "--queue", "a")
    properties = {name: value for name, value in vars(full).items() if value is not None}
    assert first == {
        "seq_id": 0, "exchange": "amq.topic", "routing_key": "first.key", "redelivered": True, "persistent": True,
        "expiry": first["expiry"], "properties": properties, "body_encoding": "utf-8", "body": "grüße",
    }  # fmt: skip
    assert (second["seq_id"], second["redelivered"], second["exchange"]) == (1, False, "")
    assert second["properties"] == {"delivery_mode": 2}
    assert (second["body_encoding"], base64.b64decode(second["body"])) == ("base64", LARGE)
    assert (third["seq_id"], third["body"], third["body_encoding"]) == (2, "", "utf-8")


def test_dump_is_what_the_next_start_delivers(own_broker: Own, connect: Connect) -> None:
    process = own_broker()
    fill(process, connect)
    process.crash()
    dumped = dump(process.data_dir, "--queue", "a")
    process.start()
    channel = connect(to=process).channel()
    for line in dumped:
        method, _, body = channel.basic_get("a")
        assert (method.redelivered, method.routing_key) == (line["redelivered"], line["routing_key"])
        assert body == (
            line["body"].encode() if line["body_encoding"] == "utf-8" else base64.b64decode(line["body"])
        )
    assert channel.basic_get("a") == (None, None, None)


def test_nothing_is_left_of_a_pipe_that_closes(own_broker: Own, connect: Connect) -> None:
    process = own_broker()
    fill(process, connect)
    process.stop()
    command = [*broker_command(), "dump", str(process.data_dir), "--queue", "a"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""


def test_the_table_fits_a_terminal(own_broker: Own) -> None:
    process = own_broker()
    process.stop()
    master, terminal = pty.openpty()
    os.set_inheritable(terminal, True)
    command = [*broker_command(), "check", str(process.data_dir)]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    ):
        os.close(terminal)
        seen = bytearray()

        def ended() -> bool:
            try:
                seen.extend(os.read(master, 4096))
            except OSError:  # everybody has closed it
                return True
            return False

        eventually(ended, 30)
    os.close(master)
    assert b"vhost" in seen
    assert b"sound" in seen


def test_expiry_is_kept_in_the_index(own_broker: Own, connect: Connect) -> None:
    """When a message expires is decided when it is published, and outlives the broker; in the journal and in a segment."""
    process = own_broker()
    channel = connect(to=process).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    before = time.time_ns() // 1_000_000
    channel.basic_publish("", "q", SMALL, pika.BasicProperties(delivery_mode=2, expiration="86400000"))
    channel.basic_publish("", "q", SMALL, pika.BasicProperties(delivery_mode=2))
    after = time.time_ns() // 1_000_000
    process.crash()
    first, second = dump(process.data_dir, "--queue", "q")
    assert before <= first["expiry"] - 86_400_000 <= after + 1  # counted from the next millisecond
    assert second["expiry"] is None or second["expiry"] == 0
    process.start().stop()
    assert [one["expiry"] for one in dump(process.data_dir, "--queue", "q")] == [first["expiry"], second["expiry"]]
