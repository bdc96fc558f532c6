"""Turns a plan into the bytes that engine.py repeats: batches of basic.publish, cut where the timestamp belongs.

Bodies are zeros, or for whoever compresses them: random, or texts, JSON like that of many applications, each another one.
"""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections.abc import Iterator

from pamqp import commands, frame
from pamqp.header import ContentHeader

from perf.load.plan import STAMP_BYTES, Plan

FRAME_OVERHEAD = 8
BODIES = 8192  # different ones of a connection: more than a broker would compress together
MAX_BYTES = 64 << 20  # of all of them


def texts(seed: int) -> Iterator[bytes]:
    """JSON without end: orders of customers, with numbers, names, addresses and notes that differ."""
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("aeioubcdfghklmnprstvw", k=chosen.randrange(3, 10))) for _ in range(2_000)]
    while True:
        order = {
            "id": str(uuid.UUID(int=chosen.getrandbits(128))),
            "created": 1_700_000_000 + chosen.random() * 1e7,
            "customer": {"id": chosen.randrange(10**9), "name": " ".join(chosen.choices(words, k=2)).title()},
            "address": " ".join(chosen.choices(words, k=4)).title(),
            "lines": [
                {
                    "sku": f"{chosen.getrandbits(48):012x}",
                    "title": " ".join(chosen.choices(words, k=5)),
                    "quantity": chosen.randrange(1, 10),
                    "price": round(chosen.random() * 100, 2),
                }
                for _ in range(chosen.randrange(1, 8))
            ],
            "signature": f"{chosen.getrandbits(256):064x}",
        }
        yield json.dumps(order).encode()


def bodies(kind: str, size: int, seed: int) -> Iterator[bytes]:
    """Bodies of `size` bytes, without end: `zeros`, `text` or `random`, which are others with another seed."""
    if kind == "zeros":
        return itertools.repeat(bytes(size))
    chosen, source = random.Random(seed), texts(seed)
    return iter(lambda: chosen.randbytes(size) if kind == "random" else _cut(source, size), None)


def _cut(source: Iterator[bytes], size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += next(source)
    return found[:size]


def body_frames(body: bytes, channel: int, frame_max: int) -> list[bytes]:
    """A body in as many frames as it takes."""
    frames = []
    step = frame_max - FRAME_OVERHEAD
    for at in range(0, len(body), step):
        part = body[at : at + step]
        frames.append(b"\x03" + channel.to_bytes(2, "big") + len(part).to_bytes(4, "big") + part + b"\xce")
    return frames


def publish(plan: Plan, channel: int, routing_key: str, content: bytes, frame_max: int) -> tuple[bytes, bytes]:
    """One message, as what precedes the stamp and what follows it; without a stamp the second part is empty."""
    method = commands.Basic.Publish(0, plan.exchange, routing_key, plan.mandatory)
    properties = commands.Basic.Properties(delivery_mode=2 if plan.persistent else 1)
    head = frame.marshal(method, channel) + frame.marshal(ContentHeader(0, len(content), properties), channel)
    body = b"".join(body_frames(content, channel, frame_max))
    if not plan.is_stamped:
        return head + body, b""
    at = 7  # the stamp is the start of the first body frame's payload
    return head + body[:at], body[at + STAMP_BYTES :]


def batches(plan: Plan, channel: int, routing_key: str, count: int, frame_max: int, connection: int = 0) -> list[list[bytes]]:
    """Batches of `count` messages as pieces: joined by a stamp, they are what goes to the socket. One of zeros, and else as many
    as have BODIES different bodies in all channels of a connection; those of others are others.
    """
    sources = [bodies(plan.bodies, size, (connection << 16 | channel) << 8 | number) for number, size in enumerate(plan.sizes)]
    different = 1
    if plan.bodies != "zeros":
        different = max(1, min(BODIES, MAX_BYTES // max(1, *plan.sizes)) // plan.producer_channels)
    found: list[list[bytes]] = []
    while len(found) * count < different:
        pieces = [b""]
        for number in range(count):
            before, after = publish(plan, channel, routing_key, next(sources[number % len(sources)]), frame_max)
            pieces[-1] += before
            if plan.is_stamped:
                pieces.append(after)
        found.append(pieces)
    return found


def ack_head(channel: int) -> bytes:
    """A basic.ack up to its delivery tag."""
    return frame.marshal(commands.Basic.Ack(0, False), channel)[:11]
