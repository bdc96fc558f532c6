"""The event journal as tests read it: records with names, and what of a queue they say is left."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rabbitpy_broker.events import layout
from rabbitpy_broker.events.journal import EventSink


class Record(NamedTuple):
    time_ns: int
    seq_id: int
    aux: int
    queue: int
    connection: int
    size: int
    channel: int
    event: int
    flags: int
    state: int
    reason: int
    priority: int
    opening: int

    @property
    def what(self) -> str:
        return layout.EVENT_NAMES[self.event]

    @property
    def why(self) -> str:
        return layout.REASON_NAMES.get(self.reason, "")

    def has(self, *flags: int) -> bool:
        return all(self.flags & int(flag) for flag in flags)


def decode(data: bytes) -> list[Record]:
    whole = len(data) - len(data) % layout.RECORD_SIZE
    return [Record(*fields) for fields in struct.iter_unpack(layout.RECORD_FORMAT, data[:whole])]


class MemorySink(EventSink):
    """Keeps everything in memory."""

    def __init__(self) -> None:
        self.names: dict[int, dict[str, Any]] = {}
        self.alive: set[int] = set()
        self.data = bytearray()

    def name(self, number: int, kind: str, vhost: str, name: str, more: dict[str, object]) -> None:
        self.names[number] = {"id": number, "kind": kind, "vhost": vhost, "name": name, **more}
        self.alive.add(number)

    def forget(self, number: int) -> None:
        self.alive.discard(number)

    def write(self, records: bytes) -> None:
        assert len(records) % layout.RECORD_SIZE == 0, "whole records"
        self.data += records

    def records(self) -> list[Record]:
        return decode(bytes(self.data))


class Segment(NamedTuple):
    header: layout.Header
    names: dict[int, dict[str, Any]]
    records: list[Record]


def segments(folder: Path) -> list[Segment]:
    found = []
    for file in sorted(folder.glob("*.events")):
        data = file.read_bytes()
        lines = file.with_suffix(".names").read_text(encoding="utf-8").splitlines()
        names = {line["id"]: line for line in map(json.loads, lines)}
        found.append(Segment(layout.unpack_header(data), names, decode(data[layout.HEADER_SIZE :])))
    return found


Places = set[tuple[int, int]]
Left = tuple[Places, Places]


def left_over(records: Iterable[Record]) -> dict[int, Left]:
    """By queue id: the (priority, seq_id) of what is ready, and of what is unacked, as the records of one boot say."""
    left: dict[int, Left] = {}
    for record in records:
        if record.queue == 0 or record.what in {"publish", "confirm", "state"}:
            continue
        ready, unacked = left.setdefault(record.queue, (set(), set()))
        place = record.priority, record.seq_id
        if record.what == "recover":
            ready.update((record.priority, record.seq_id + at) for at in range(record.aux))
        elif record.what == "route":
            assert place not in ready | unacked, record
            ready.add(place)
        elif record.what == "deliver":
            if record.has(layout.AT_ONCE):
                assert place not in ready | unacked, record
            else:
                ready.remove(place)
            if not record.has(layout.NO_ACK):
                unacked.add(place)
        elif record.what == "requeue":
            unacked.remove(place)
            ready.add(place)
        elif record.what == "purge":
            assert record.aux == len(ready), record
            ready.clear()
        elif record.what in {"ack", "nack"}:
            unacked.remove(place)
            if record.aux:  # its dead letter is on its way
                unacked.add(place)
        elif record.what in {"dead-letter", "expire", "drop"} and record.seq_id >= 0:
            (ready if place in ready else unacked).remove(place)
            if record.aux and record.what != "dead-letter":
                unacked.add(place)
    return left
