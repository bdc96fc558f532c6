"""No promise before the disk has it: the system calls of the daemon, in the order in which they were made.

The daemon runs under strace. Between the `read` that brings a persistent publish and the `write` that confirms it there must
be a write of the message into a file of the store, and after that a sync of the same file that begins and ends there, or a
write that is a sync itself.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pamqp.commands as amqp
import pytest

from broker_process import BrokerProcess, broker_command
from support import eventually, unique
from wire_client import FRAME_END, WireClient, method_payload

pytestmark = pytest.mark.own

ARRIVALS = ("read", "recvfrom", "recvmsg")
SENDS = ("write", "writev", "sendto", "sendmsg")
FILE_WRITES = ("pwrite64", "pwritev", "pwritev2")
SYNCS = ("fdatasync", "fsync", "syncfs")
# Enough of a buffer to see a marker at the beginning of a message, behind the headers of a file or a frame.
SHOWN_OCTETS = 512

CALL = re.compile(r"^(?P<thread>\d+) +(?P<name>\w+)\((?P<text>.*)$")
RESUMED = re.compile(r"^(?P<thread>\d+) +<\.\.\. (?P<name>\w+) resumed>(?P<text>.*)$")
UNFINISHED = "<unfinished ...>"
OCTET = re.compile(rb"\\x([0-9a-f]{2})")


class Call(NamedTuple):
    """A system call: the lines of the trace where it began and ended, and what it was called with and returned."""

    name: str
    began: int
    ended: int
    text: bytes  # \xNN already turned into octets

    @property
    def file(self) -> bytes:
        """The path that strace knows of the first argument, a file descriptor."""
        return self.text.partition(b"<")[2].partition(b">")[0]

    @property
    def is_sync(self) -> bool:
        """A call that returns when something is on the disk; a write may be one too."""
        return self.name in SYNCS or (self.name == "pwritev2" and b"RWF_DSYNC" in self.text)


class Trace:
    """The calls that have ended, in the order in which they ended; strace is still writing the file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.calls: list[Call] = []
        self._begun: dict[str, tuple[int, str]] = {}
        self._read = 0
        self._lines = 0

    def read_on(self) -> list[Call]:
        with self.file.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            self._take(line)
            self._lines += 1
        return self.calls

    def _take(self, line: str) -> None:
        resumed = RESUMED.match(line)
        if resumed:
            began, text = self._begun.pop(resumed["thread"])
            self._add(resumed["name"], began, text + resumed["text"])
            return
        match = CALL.match(line)
        if not match:
            return  # signals and ends of threads
        if match["text"].endswith(UNFINISHED):
            self._begun[match["thread"]] = self._lines, match["text"].removesuffix(UNFINISHED)
        else:
            self._add(match["name"], self._lines, match["text"])

    def _add(self, name: str, began: int, text: str) -> None:
        octets = OCTET.sub(lambda octet: bytes([int(octet[1], 16)]), text.encode())
        self.calls.append(Call(name, began, self._lines, octets))


class TracedBroker:
    def __init__(self, process: BrokerProcess, trace: Trace) -> None:
        self.process = process
        self.trace = trace

    def first(self, names: tuple[str, ...], octets: bytes, after: int = -1) -> Call:
        """The first call of these names that has `octets` and began after a line of the trace; waits for it to be there."""

        def look() -> Call | None:
            found = (each for each in self.trace.read_on() if each.name in names)
            return next((each for each in found if octets in each.text and each.began > after), None)

        return eventually(look, timeout=10.0)

    def between(self, start: Call, end: Call, names: tuple[str, ...]) -> list[Call]:
        """The calls of these names that began and ended between two others."""
        return [
            each
            for each in self.trace.calls
            if each.name in names and start.ended < each.began and each.ended < end.began
        ]

    def stored_between(self, start: Call, end: Call, marker: bytes) -> list[bytes]:
        """Files that `marker` was written to and that were synced after that, all between the two calls."""
        found = []
        for write in self.between(start, end, FILE_WRITES):
            if marker not in write.text:
                continue
            synced = self.between(write, end, SYNCS)
            if write.is_sync or any(sync.file == write.file or sync.name == "syncfs" for sync in synced):
                found.append(write.file)
        return found

    def store_syncs(self, start: Call, end: Call) -> list[Call]:
        """Syncs of the vhosts' files; those of the definitions do not count."""
        calls = self.between(start, end, (*SYNCS, *FILE_WRITES))
        return [call for call in calls if call.is_sync and b"/vhosts/" in call.file]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedBroker]:
    """One daemon under strace, which follows it from aside: process id, signals and exit code are the daemon's own."""
    folder = tmp_path_factory.mktemp("traced_broker")
    trace_file = folder / "trace"
    names = ",".join((*ARRIVALS, *SENDS, *FILE_WRITES, *SYNCS))
    strace = ["strace", "-D", "-f", "-y", "-xx", "-s", str(SHOWN_OCTETS), "-e", f"trace={names}", "-o", str(trace_file)]
    process = BrokerProcess(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RABBITPY_BROKER_COMMAND", shlex.join([*strace, *broker_command()]))
        process.start()
    yield TracedBroker(process, Trace(trace_file))
    process.stop()


@pytest.fixture
def client(traced: TracedBroker) -> Iterator[WireClient]:
    """Channel 1 is in confirm mode; "durable" and "transient" are queues."""
    client = traced.process.wire(timeout=20).open()
    client.open_channel(1)
    client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    client.call(1, amqp.Queue.Declare(queue="durable", durable=True), amqp.Queue.DeclareOk)
    client.call(1, amqp.Queue.Declare(queue="transient"), amqp.Queue.DeclareOk)
    yield client
    client.close()


def publish(client: WireClient, queue: str, body: bytes, delivery_mode: int) -> None:
    client.method(1, amqp.Basic.Publish(routing_key=queue))
    client.header(1, len(body), b"\x10\x00" + bytes([delivery_mode]))
    client.body(1, body)


def new_marker() -> bytes:
    return unique("marker").encode()


def ack_frame(tag: int) -> bytes:
    return frame_of(amqp.Basic.Ack(delivery_tag=tag))


def frame_of(method: amqp.Frame) -> bytes:
    payload = method_payload(method)
    return b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + FRAME_END


def confirmed(traced: TracedBroker, client: WireClient, marker: bytes, tag: int = 1) -> tuple[Call, Call]:
    """The calls that brought the publish with this marker and sent its confirm, which the client has read."""
    assert client.expect(1, amqp.Basic.Ack).delivery_tag == tag
    arrival = traced.first(ARRIVALS, marker)
    return arrival, traced.first(SENDS, ack_frame(tag), after=arrival.ended)


# First, while the broker has nothing that it could sync for another reason.
@pytest.mark.parametrize(
    "queue, delivery_mode",
    [("durable", 1), ("transient", 2), ("transient", 1)],
    ids=["transient to durable", "persistent to transient", "transient to transient"],
)
def test_message_that_need_not_survive_causes_no_sync(
    traced: TracedBroker, client: WireClient, queue: str, delivery_mode: int
) -> None:
    markers = [new_marker() for _ in range(5)]
    ends = []
    for tag, marker in enumerate(markers, start=1):
        publish(client, queue, marker, delivery_mode)
        ends.append(confirmed(traced, client, marker, tag))
    assert traced.store_syncs(ends[0][0], ends[-1][1]) == []


def test_persistent_message_is_synced_before_its_confirm(traced: TracedBroker, client: WireClient) -> None:
    for tag in range(1, 4):
        marker = new_marker()
        publish(client, "durable", marker, delivery_mode=2)
        arrival, confirm = confirmed(traced, client, marker, tag)
        (file,) = traced.stored_between(arrival, confirm, marker)
        assert os.fsencode(traced.process.data_dir) in file
        assert b"/journal/" in file


def test_large_message_and_its_place_are_synced_before_its_confirm(traced: TracedBroker, client: WireClient) -> None:
    marker = new_marker()
    publish(client, "durable", marker + b"x" * 10_000, delivery_mode=2)
    arrival, confirm = confirmed(traced, client, marker)
    (file,) = traced.stored_between(arrival, confirm, marker)
    assert b"/msg_store_persistent/" in file
    message_synced = next(sync for sync in traced.store_syncs(arrival, confirm) if sync.file == file)
    written = [
        each for each in traced.between(arrival, confirm, FILE_WRITES) if b"/journal/" in each.file
    ]
    assert written
    assert written[-1].is_sync or any(
        b"/journal/" in sync.file or sync.name == "syncfs"
        for sync in traced.between(written[-1], confirm, SYNCS)
    )
    # a place never points to a message that a power cut could still take away
    assert message_synced.ended < confirm.began


def test_fanout_waits_for_every_queue(traced: TracedBroker, client: WireClient) -> None:
    queues = [unique("queue") for _ in range(3)]
    for queue in queues:
        client.call(1, amqp.Queue.Declare(queue=queue, durable=True), amqp.Queue.DeclareOk)
        client.call(1, amqp.Queue.Bind(queue=queue, exchange="amq.direct", routing_key=queues[0]), amqp.Queue.BindOk)
    marker = new_marker()
    client.method(1, amqp.Basic.Publish(exchange="amq.direct", routing_key=queues[0]))
    client.header(1, len(marker), b"\x10\x00\x02")
    client.body(1, marker)
    arrival, confirm = confirmed(traced, client, marker)
    written = [each.text for each in traced.between(arrival, confirm, FILE_WRITES) if b"/journal/" in each.file]
    assert b"".join(written).count(marker) == 3
    assert traced.stored_between(arrival, confirm, marker)


def test_commit_is_synced_before_its_answer(traced: TracedBroker, client: WireClient) -> None:
    client.open_channel(2)
    client.call(2, amqp.Tx.Select(), amqp.Tx.SelectOk)
    marker = new_marker()
    client.method(2, amqp.Basic.Publish(routing_key="durable"))
    client.header(2, len(marker), b"\x10\x00\x02")
    client.body(2, marker)
    client.call(2, amqp.Tx.Commit(), amqp.Tx.CommitOk)
    arrival = traced.first(ARRIVALS, marker)
    answer = traced.first(SENDS, method_payload(amqp.Tx.CommitOk()) + FRAME_END, after=arrival.ended)
    assert traced.stored_between(arrival, answer, marker)


def test_definition_is_synced_before_its_answer(traced: TracedBroker, client: WireClient) -> None:
    name = unique("queue")
    client.call(1, amqp.Queue.Declare(queue=name, durable=True), amqp.Queue.DeclareOk)
    arrival = traced.first(ARRIVALS, name.encode())
    answer = traced.first(SENDS, method_payload(amqp.Queue.DeclareOk(name, 0, 0)), after=arrival.ended)
    written = [each for each in traced.between(arrival, answer, FILE_WRITES) if b"definitions" in each.file]
    assert written
    assert any(sync.file == written[-1].file for sync in traced.between(written[-1], answer, SYNCS))
