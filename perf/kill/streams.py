"""Streams under kill -9: consumers that begin anywhere and hold each offset against the ledger."""

from __future__ import annotations

import random
import zlib

from pamqp import commands

from perf.driver import BASIC_DELIVER
from perf.kill.ledger import Ledger, Violation
from perf.kill.traffic import COUNTED_FLAGS, TrafficPeer, settling
from perf.load.client import Address, Client

OFFSET_HEADER = b"\x0fx-stream-offsetl"
# Retention and segments so small that both are met in each round.
ARGUMENTS = {
    "stream": {"x-queue-type": "stream"},
    "stream-short": {
        "x-queue-type": "stream",
        "x-max-length-bytes": 8_000_000,
        "x-stream-max-segment-size-bytes": 1_000_000,
    },
}
STREAMS = tuple(ARGUMENTS)


def starts(rng: random.Random, top: int) -> str | int:
    """Where a consumer begins."""
    return rng.choice(("first", "last", "next", rng.randrange(top + 1), max(0, top - 10)))


class StreamConsumer(TrafficPeer):
    """Reads a stream from `start` on, and acks what it gets, since acks are its credit."""

    def __init__(self, address: Address, stream: str, ledger: Ledger, start: str | int, prefetch: int) -> None:
        client = Client(address, f"kill {stream}")
        client.open_channel(1)
        client.call(1, commands.Basic.Qos(prefetch_count=prefetch), commands.Basic.QosOk)
        consume = commands.Basic.Consume(queue=stream, arguments={"x-stream-offset": start})
        client.call(1, consume, commands.Basic.ConsumeOk)
        self.track = ledger.streams[stream]
        self.ledger = ledger
        self.next_offset = start if isinstance(start, int) else -1
        self.is_first = True
        self.prefetch = prefetch
        self._unacked = 0
        super().__init__(client)
        self.take_in(b"")  # what came with the answer to basic.consume

    def method(self, method_id: int, payload: bytes) -> None:
        if method_id == BASIC_DELIVER:
            at = 5 + payload[4]
            self._tag = int.from_bytes(payload[at : at + 8], "big")
            if payload[at + 8] & 1:
                raise Violation(f"{self.track.name} delivered with redelivered set")

    def content(self, header: bytes, body: bytes) -> None:
        if header[12:14] != COUNTED_FLAGS or header[18 : 18 + len(OFFSET_HEADER)] != OFFSET_HEADER:
            raise Violation(f"changed in {self.track.name}: properties {header[12:]!r}")
        at = 18 + len(OFFSET_HEADER)
        offset = int.from_bytes(header[at : at + 8], "big")
        message_id = header[at + 8 + 2 :].decode(errors="replace")
        self._come_to(offset)
        self.ledger.delivered += 1
        self.track.deliver(offset, message_id, len(body), zlib.crc32(body), self.ledger)
        self._unacked += 1

    def _come_to(self, offset: int) -> None:
        if self.is_first and self.next_offset < 0:
            self.next_offset = offset
        self.is_first = False
        if offset < self.next_offset:
            raise Violation(f"{self.track.name}: offset {offset} came behind {self.next_offset - 1}")
        if offset > self.next_offset:
            if "short" not in self.track.name:
                raise Violation(f"{self.track.name}: offsets {self.next_offset} to {offset - 1} were left out")
            self.track.skipped(self.next_offset, offset, self.ledger)
        self.next_offset = offset + 1

    def refill(self) -> None:
        """Acks when half of the credit is used."""
        if self._unacked > self.prefetch // 2:
            self.out += settling(0x0050, self._tag, 1)
            self._unacked = 0
