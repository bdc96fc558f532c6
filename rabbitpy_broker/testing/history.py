"""What has happened in a broker under test: published, settled, dead-lettered. For assertions and for reports.

Publishes and settlements are noted by who watches the connections (watched_client.py), dead letters by the event journal's
records, which end here in place of a file.

What must stay true: a publish is noted when the broker has taken it, not when it was sent; only the latest KEPT of each kind
are kept.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rabbitpy_broker.events.journal import EventSink
from rabbitpy_broker.events.layout import DEAD_LETTER, REASON_NAMES, RECORD_FORMAT, RECORD_SIZE
from rabbitpy_broker.wire.content_header import ContentHeader

KEPT: Final = 10_000
SHOWN_BODY: Final = 120  # characters
_RECORD: Final = struct.Struct(RECORD_FORMAT)


def shown(body: bytes) -> str:
    """The beginning of a body, for people."""
    text = repr(body)[1:] if not _is_text(body) else body.decode("utf-8")
    return text if len(text) <= SHOWN_BODY else f"{text[:SHOWN_BODY]}... ({len(body)} bytes)"


def _is_text(body: bytes) -> bool:
    try:
        return body.decode("utf-8").isprintable()
    except UnicodeDecodeError:
        return False


@dataclass(frozen=True)
class Published:
    """A message that a client has published. `at` is of `time.monotonic`."""

    vhost: str
    exchange: str
    routing_key: str
    body: bytes
    mandatory: bool
    connection: str
    header: bytes = field(repr=False)
    at: float = field(default_factory=time.monotonic, repr=False)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers table."""
        return dict(ContentHeader(self.header).headers() or {})

    def __str__(self) -> str:
        return f"exchange {self.exchange!r}, routing key {self.routing_key!r}: {shown(self.body)}"


@dataclass(frozen=True)
class Settled:
    """A delivery that a client has settled; `how` is "ack", "nack", "reject" or "requeue". The body is None when only the disk
    has it.
    """

    vhost: str
    queue: str
    how: str
    body: bytes | None
    connection: str
    at: float = field(default_factory=time.monotonic, repr=False)

    def __str__(self) -> str:
        return f"{self.how} in {self.queue!r}: {shown(self.body) if self.body is not None else '(on disk)'}"


@dataclass(frozen=True)
class DeadLettered:
    """A message that a queue has handed to its dead-letter exchange; `reason` as in x-death."""

    vhost: str
    queue: str
    reason: str
    at: float = field(default_factory=time.monotonic, repr=False)

    def __str__(self) -> str:
        return f"from {self.queue!r}: {self.reason}"


class History:
    """All vhosts'. `published`, `settled` and `dead_lettered` are oldest first."""

    def __init__(self) -> None:
        self.published: deque[Published] = deque(maxlen=KEPT)
        self.settled: deque[Settled] = deque(maxlen=KEPT)
        self.dead_lettered: deque[DeadLettered] = deque(maxlen=KEPT)

    def clear(self) -> None:
        """Forgets everything."""
        for kept in (self.published, self.settled, self.dead_lettered):
            kept.clear()


class DeathRecords(EventSink):
    """The end of the event journal: notes dead letters in the history, and lets all else go."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._queues: dict[int, tuple[str, str]] = {}

    def name(self, number: int, kind: str, vhost: str, name: str, more: dict[str, object]) -> None:
        if kind == "queue":
            self._queues[number] = (vhost, name)

    def forget(self, number: int) -> None:
        pass  # the records of a queue that is gone may still come; a broker under test is not for ever

    def write(self, records: bytes) -> None:
        for at in range(0, len(records), RECORD_SIZE):
            record = _RECORD.unpack_from(records, at)
            if record[7] == DEAD_LETTER and record[3] in self._queues:
                vhost, queue = self._queues[record[3]]
                self._history.dead_lettered.append(DeadLettered(vhost, queue, REASON_NAMES.get(record[10], "")))


def listed(found: Iterable[object], nothing: str, at_most: int = 10) -> str:
    """The last of what there is, one a line, for the text of a failed assertion."""
    lines = [f"  {one}" for one in found]
    if not lines:
        return f"  {nothing}"
    more = [f"  ... and {len(lines) - at_most} before"] if len(lines) > at_most else []
    return "\n".join(more + lines[-at_most:])
