"""The layout of the event journal: what the broker writes and the pipeline reads. All integers are little-endian.

A folder holds segments, `00000001.events` and so on, each with a sidecar `00000001.names`. A segment is a header of 96
bytes and records of 48; what is left over at its end is a record that was being written when the process ended.

  header   0 8 "RPEVENTS"         8 4 version         12 4 bytes of a record        16 8 number of the segment
          24 8 number of the first segment of this boot                             32 8 made at, ns since 1970
          40 16 boot id           56 16 boot id of the machine                      72 4 flags    76 16 zero
          92 4 CRC-32C of the bytes before

  record   0 8 time, ns since 1970    8 8 seq_id    16 8 aux    24 4 queue    28 4 connection    32 4 size, bytes of body
          36 2 channel    38 1 event    39 1 flags    40 1 state    41 1 reason    42 1 priority    43 1 zero    44 4 opening

`queue` and `connection` are ids of names; 0 is none. The sidecar has a line of JSON for each name that a record of its
segment may have: {"id", "kind": "queue" | "exchange" | "connection", "vhost", "name"} and, for queues, "durable" and
"store" (the queue's id in the message store, in hexadecimal: the same after a restart), for connections "user". An id
means the same in all segments of one boot. `opening` counts the channels that the connection opened before this one.

  event            seq_id                     aux                           besides
  PUBLISH          publish number             publish_seqno, 0: no confirms queue: the exchange; connection 0: the broker's own
  ROUTE            of the message             publish number                the message has a place in this queue
  CONFIRM          first publish_seqno        last publish_seqno            reason REFUSED: basic.nack
  DELIVER          of the message; AT_ONCE without acks: -1                 AT_ONCE: aux is the publish number, and there is no
                                                                            ROUTE; else 0
  ACK, REQUEUE     of the message             0                             without acks the DELIVER stands for the ACK
  NACK, EXPIRE     of the message             1: a DEAD_LETTER follows,     reason of a DROP; queue 0: it was routed to none
  DROP             of the message; -1: it     as NACK; the publish number
                   never had a place          when -1; DAMAGED: how many
  DEAD_LETTER      of the message; -1: the    publish number of its copy,   reason: why it left the queue
                   queue never took it        0: nobody took it
  PURGE            -1                         how many                      all that are ready in this queue; reason DELETED: it
                                                                            is deleted with them
  RETURN           -1                         publish number
  STATE            of the message             0                             state
  RECOVER          of the first message       how many, side by side        state; at the start of a boot

A publish number counts the publishes of a boot. seq_ids belong to one queue and priority.

What must stay true: when the store has something on disk, its events are written; a segment whose header says CLOSED has
no more records to come; only the last segment of a boot may be without it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c
from mypy_extensions import i64

MAGIC: Final = b"RPEVENTS"
VERSION: Final = 1
HEADER_SIZE: Final = 96
RECORD_SIZE: Final = 48
SUFFIX: Final = ".events"
NAMES_SUFFIX: Final = ".names"

# Flags of a header.
CLOSED: Final = 1  # no more records come
CLEAN: Final = 2  # and the broker was stopped in order
AFTER_GAP: Final = 4  # events before this segment could not be written

# Events.
PUBLISH: Final[i64] = 1
ROUTE: Final[i64] = 2
CONFIRM: Final[i64] = 3
DELIVER: Final[i64] = 4
ACK: Final[i64] = 5
NACK: Final[i64] = 6
REQUEUE: Final[i64] = 7
DEAD_LETTER: Final[i64] = 8
EXPIRE: Final[i64] = 9
DROP: Final[i64] = 10
PURGE: Final[i64] = 11
RETURN: Final[i64] = 12
STATE: Final[i64] = 13
RECOVER: Final[i64] = 14

# Flags of a record.
REDELIVERED: Final[i64] = 0x01
PERSISTENT: Final[i64] = 0x02
MANDATORY: Final[i64] = 0x04
NO_ACK: Final[i64] = 0x08
AT_ONCE: Final[i64] = 0x10
KEPT: Final[i64] = 0x20  # outlives the broker
GET: Final[i64] = 0x40

# States of a message in a queue (variable_queue.py).
ALPHA: Final[i64] = 0
BETA: Final[i64] = 1
GAMMA: Final[i64] = 2
DELTA: Final[i64] = 3

# Reasons.
NO_REASON: Final[i64] = 0
REJECTED: Final[i64] = 1
EXPIRED: Final[i64] = 2
MAXLEN: Final[i64] = 3
DELIVERY_LIMIT: Final[i64] = 4
DELETED: Final[i64] = 5
UNROUTABLE: Final[i64] = 6
DUPLICATE: Final[i64] = 7
REFUSED: Final[i64] = 8
DAMAGED: Final[i64] = 9
NOT_KEPT: Final[i64] = 10  # handed out in the mode consumer-ack-light, and given back
DELAY_OVER: Final[i64] = 11
STREAM: Final[i64] = 12  # it is in a stream, and is followed no further

EVENT_NAMES: Final = {
    int(PUBLISH): "publish",
    int(ROUTE): "route",
    int(CONFIRM): "confirm",
    int(DELIVER): "deliver",
    int(ACK): "ack",
    int(NACK): "nack",
    int(REQUEUE): "requeue",
    int(DEAD_LETTER): "dead-letter",
    int(EXPIRE): "expire",
    int(DROP): "drop",
    int(PURGE): "purge",
    int(RETURN): "return",
    int(STATE): "state",
    int(RECOVER): "recover",
}
STATE_NAMES: Final = {int(ALPHA): "alpha", int(BETA): "beta", int(GAMMA): "gamma", int(DELTA): "delta"}
REASON_NAMES: Final = {
    int(REJECTED): "rejected",
    int(EXPIRED): "expired",
    int(MAXLEN): "maxlen",
    int(DELIVERY_LIMIT): "delivery_limit",
    int(DELETED): "deleted",
    int(UNROUTABLE): "unroutable",
    int(DUPLICATE): "duplicate",
    int(REFUSED): "refused",
    int(DAMAGED): "damaged",
    int(NOT_KEPT): "not_kept",
    int(DELAY_OVER): "delay_over",
    int(STREAM): "stream",
}

REASONS: Final = {name: i64(number) for number, name in REASON_NAMES.items()}

RECORD_FORMAT: Final = "<qqqiiiHBBBBBxI"
_HEADER_FORMAT: Final = "<8sIIQQq16s16sI16x"


class Header(NamedTuple):
    """The header of a segment; `boot` is the number of the first segment of its boot."""

    segment: int
    boot: int
    made_at_ns: int
    boot_id: bytes
    machine_boot_id: bytes
    flags: int


def pack_header(header: Header) -> bytes:
    """The 96 bytes of a header."""
    head = struct.pack(
        _HEADER_FORMAT,
        MAGIC,
        VERSION,
        RECORD_SIZE,
        header.segment,
        header.boot,
        header.made_at_ns,
        header.boot_id,
        header.machine_boot_id,
        header.flags,
    )
    return head + int(crc32c(head)).to_bytes(4, "little")


def unpack_header(data: bytes) -> Header:
    """Reads the first 96 bytes of a segment. Raises ValueError with the fault."""
    if len(data) < HEADER_SIZE:
        raise ValueError("no header: the file is too short")
    if data[:8] != MAGIC:
        raise ValueError("no segment of an event journal")
    if int(crc32c(data[: HEADER_SIZE - 4])) != int.from_bytes(data[HEADER_SIZE - 4 : HEADER_SIZE], "little"):
        raise ValueError("a damaged header")
    _, version, record_size, segment, boot, made_at_ns, boot_id, machine, flags = struct.unpack(
        _HEADER_FORMAT, data[: HEADER_SIZE - 4]
    )
    if version != VERSION or record_size != RECORD_SIZE:
        raise ValueError(f"version {version} of the event journal; this is for version {VERSION}")
    return Header(segment, boot, made_at_ns, boot_id, machine, flags)


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"{number:08d}{SUFFIX}"


def names_name(number: int) -> str:
    """The file name of a segment's sidecar."""
    return f"{number:08d}{NAMES_SUFFIX}"
