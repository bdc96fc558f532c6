"""Event journals for tests: scripted with the broker's own writer, or a broker's, with faults put in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from event_records import Record, decode
from rabbitpy_broker.events import layout
from rabbitpy_broker.events.files import EventFiles
from rabbitpy_broker.events.journal import EventJournal, Origin, QueueEvents
from rabbitpy_broker.message import Message


class Log:
    """What EventFiles tells, for the tests that expect nothing of it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **_: Any) -> None:
        self.said.append(event)

    error = warning = info


def message(size: int = 10, persistent: bool = True) -> Message:
    body = b"\x03\x00\x01" + size.to_bytes(4, "big") + bytes(size) + b"\xce"
    header = (14).to_bytes(4, "big") + bytes(14) + b"\xce"
    return Message(b"\x00\x01q", header + body, len(header), persistent)


class Boot:
    """One boot of a broker that writes by a script; messages of a queue have the seq_ids 0, 1, 2 ..."""

    def __init__(self, folder: Path, segment_size: int = 1 << 26, max_size: int = 0) -> None:
        self.files = EventFiles(folder, segment_size, max_size, 0, Log())
        self.files.open()
        self.journal = EventJournal(self.files)
        self.origin = Origin(self.journal, self.journal.connection("/", "client", "guest"), 1, 1)
        self.exchange = self.journal.exchange("/", "")
        self.seqno = 0

    def queue(self, name: str, store: int = 1) -> QueueEvents:
        return self.journal.queue("/", name, True, store)

    def publish(self, queue: QueueEvents, *seq_ids: int, confirm: bool = True) -> None:
        for seq_id in seq_ids:
            self.seqno += 1
            self.origin.publish(self.exchange, message(), False, self.seqno)
            queue.route(seq_id, 0, 10, True, True)
            if confirm:
                self.origin.confirm(self.seqno, self.seqno, True)

    def deliver(self, queue: QueueEvents, *seq_ids: int, redelivered: bool = False) -> None:
        for seq_id in seq_ids:
            queue.deliver(self.origin, seq_id, 0, 10, redelivered, 0)

    def settle(self, queue: QueueEvents, event: int, *seq_ids: int) -> None:
        for seq_id in seq_ids:
            queue.settle(event, seq_id, 0, 0, 0)

    def ack(self, queue: QueueEvents, *seq_ids: int) -> None:
        self.settle(queue, layout.ACK, *seq_ids)

    def stop(self, clean: bool = True) -> None:
        self.journal.flush()
        if clean:
            self.files.close()


def change(folder: Path, number: int, edit: Callable[[list[tuple[Record, bytes]]], list[bytes]]) -> None:
    """Writes a segment anew with the records that `edit` makes of those it has."""
    path = folder / layout.segment_name(number)
    data = path.read_bytes()
    size = layout.RECORD_SIZE
    raw = [data[at : at + size] for at in range(layout.HEADER_SIZE, len(data) - size + 1, size)]
    pairs = list(zip(decode(b"".join(raw)), raw, strict=True))
    path.write_bytes(data[: layout.HEADER_SIZE] + b"".join(edit(pairs)))
