"""The recovery terms: what a clean stop leaves beside the files, so that the next start need not find it out.

A stop writes no queue's segments: what the journal has it keeps, synced as it is. The terms say of each queue how its
segments are to be read, and which of its places are in the journal alone. So a stop syncs an epoch at most and the terms,
however many queues there are, and the next start reads the journal's few files and no segment.

`recovery_terms` is one MessagePack map with its CRC-32C behind it:

  version       2. Version 1 is of brokers that moved the journal to the segments when they stopped: without what is
                marked (2), which is then empty, and the journal is not needed
  queues        queue_id in 16 hexadecimal digits ->
                [next seq_id, seq_id below which all counts as redelivered, segments,
                 (2) highest seq_id that a segment may have alive, places in the journal, those of them that are redelivered]
                segment: [number, live messages, live bytes, publishes with a message in the store, file size,
                 (2) acked places of which the file has no ACK, bytes of their bodies, places with a DELIVER it has not]
  messages      what MessageStore.save_terms gave
  journal_file  the last file number used           epoch   the next epoch
  journal       (2) [file number, where it ends] of each journal file that is needed, the oldest first
  streams       queue_id in 16 hexadecimal digits -> [the offset behind what is in segments, the next offset]; without
                streams it may be missing

Places are ranges: first seq_id, count, first seq_id, count ... in order.

What must stay true: nothing is written after the terms but by the next start, which removes them first; whatever they
speak of was synced before; a file may be longer than they say, and what is too much does not count.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.records import is_sealed, sealed
from rabbitpy_broker.storage.segment import Segment

TERMS: Final = "recovery_terms"
TERMS_VERSION: Final = 2
KNOWN_VERSIONS: Final = (1, 2)


def ranges(seq_ids: list[int]) -> list[int]:
    """First, count, first, count ... of these, which are in order."""
    found: list[int] = []
    first: i64 = 0
    behind: i64 = -1
    for seq_id in seq_ids:
        if i64(seq_id) != behind:
            if behind >= 0:
                found.append(int(first))
                found.append(int(behind - first))
            first = seq_id
        behind = i64(seq_id) + 1
    if behind >= 0:
        found.append(int(first))
        found.append(int(behind - first))
    return found


def expanded(found: list[int]) -> list[int]:
    """The seq_ids that `ranges` was given."""
    seq_ids: list[int] = []
    for at in range(0, len(found), 2):
        seq_ids.extend(range(found[at], found[at] + found[at + 1]))
    return seq_ids


class SegmentTerms:
    """A segment's file: its first `size` bytes count, but for what is `acked`."""

    def __init__(self, one: list[Any]) -> None:
        self.num: i64 = one[0]
        self.live: i64 = one[1]
        self.live_bytes: i64 = one[2]
        self.stored: i64 = one[3]
        self.size: i64 = one[4]
        rest: list[Any] = one[5:] if len(one) > 5 else [[], 0, []]
        self.acked: list[int] = expanded(rest[0])
        self.acked_bytes: i64 = rest[1]
        self.delivered: list[int] = expanded(rest[2])

    def fits(self, entry_count: i64) -> bool:
        """Whether the places that are acked can be in this segment."""
        first = self.num * entry_count
        return not self.acked or (first <= min(self.acked) and max(self.acked) < first + entry_count)

    def segment(self, entry_count: i64) -> Segment:
        """The segment as it was when the broker stopped. It may keep the lists that are here."""
        segment = Segment(self.num, entry_count)
        segment.live = self.live
        segment.live_bytes = self.live_bytes
        segment.stored = self.stored
        segment.size = self.size
        if self.fits(entry_count):
            for seq_id in self.acked:
                segment.mark_acked(seq_id)
        for seq_id in self.acked:
            segment.new_acks.append(seq_id)
        segment.new_acked_bytes = self.acked_bytes
        segment.delivered = set(self.delivered)
        segment.new_delivers = self.delivered
        return segment


class QueueTerms:
    """One queue. Without terms of its own a queue was declared and never written to."""

    def __init__(self, one: list[Any] | None) -> None:
        self.is_known = one is not None
        if one is None:
            one = [0, 0, []]
        self.next_seq_id: i64 = one[0]
        self.redelivered_below: i64 = one[1]
        self.segments = [SegmentTerms(segment) for segment in one[2]]
        rest: list[Any] = one[3:] if len(one) > 3 else [one[0] - 1, [], []]
        self.highest_in_segments: i64 = rest[0]
        self.in_journal: list[int] = expanded(rest[1])
        self.redelivered: list[int] = expanded(rest[2])

    def delta_end(self) -> i64:
        """The seq_id behind the places that are in segments alone: those in the journal mostly come behind them."""
        if not self.in_journal:
            return self.next_seq_id
        return min(self.next_seq_id, max(i64(self.in_journal[0]), self.highest_in_segments + 1))


class Terms:
    """The terms that `read_terms` found. Raises KeyError, IndexError, TypeError or ValueError for what are no terms of ours."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self._queues: dict[str, list[Any]] = raw["queues"]
        self._streams: dict[str, list[int]] = raw.get("streams", {})
        self.messages: object = raw["messages"]
        self.journal_file: int = raw["journal_file"]
        self.epoch: int = raw["epoch"]
        self.journal: dict[int, int] = dict(raw.get("journal", []))  # file number -> where it ends

    def queue(self, queue_id: int) -> QueueTerms:
        return QueueTerms(self._queues.get(f"{queue_id:016x}"))

    def stream(self, queue_id: int) -> list[int]:
        """Without terms of its own a stream was declared and never written to."""
        return self._streams.get(f"{queue_id:016x}", [0, 0])


def read_terms(data: bytes) -> tuple[int, Terms | None]:
    """Version and terms. Version 0 is what is not whole; there are no terms of a version that is not known."""
    if not is_sealed(data):
        return 0, None
    raw: dict[str, Any] = msgspec.msgpack.decode(data[:-4])
    version: int = raw.get("version", 0)
    return version, Terms(raw) if version in KNOWN_VERSIONS else None


class TermsWrite:
    """The job of a thread at the end of a stop."""

    def __init__(self, disk: Disk, folder: str, terms: dict[str, Any]) -> None:
        self.disk = disk
        self.folder = folder
        self.terms = terms

    def run(self) -> None:
        """Raises OSError."""
        new = f"{self.folder}/{TERMS}.new"
        data = sealed(msgspec.msgpack.encode(self.terms))
        self.disk.remove(new)
        file = self.disk.open(new, create=True)
        try:
            file.write_at(0, data)
            file.sync()
        finally:
            file.close()
        self.disk.rename(new, f"{self.folder}/{TERMS}")
        self.disk.sync_dir(self.folder)
