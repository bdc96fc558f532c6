"""Turns a plan into the bytes that engine.py repeats: batches of basic.publish, cut where the timestamp belongs."""

from __future__ import annotations

from pamqp import commands, frame
from pamqp.header import ContentHeader

from perf.load.plan import STAMP_BYTES, Plan

FRAME_OVERHEAD = 8


def body_frames(size: int, channel: int, frame_max: int) -> list[bytes]:
    """A body of zeros in as many frames as it takes."""
    frames = []
    while size > 0:
        part = min(size, frame_max - FRAME_OVERHEAD)
        frames.append(b"\x03" + channel.to_bytes(2, "big") + part.to_bytes(4, "big") + bytes(part) + b"\xce")
        size -= part
    return frames


def publish(plan: Plan, channel: int, routing_key: str, size: int, frame_max: int) -> tuple[bytes, bytes]:
    """One message, as what precedes the stamp and what follows it; without a stamp the second part is empty."""
    method = commands.Basic.Publish(0, plan.exchange, routing_key, plan.mandatory)
    properties = commands.Basic.Properties(delivery_mode=2 if plan.persistent else 1)
    head = frame.marshal(method, channel) + frame.marshal(ContentHeader(0, size, properties), channel)
    body = b"".join(body_frames(size, channel, frame_max))
    if not plan.is_stamped:
        return head + body, b""
    at = 7  # the stamp is the start of the first body frame's payload
    return head + body[:at], body[at + STAMP_BYTES :]


def batch(plan: Plan, channel: int, routing_key: str, count: int, frame_max: int) -> list[bytes]:
    """`count` messages as pieces: joined by a stamp, they are what goes to the socket."""
    pieces = [b""]
    for number in range(count):
        before, after = publish(plan, channel, routing_key, plan.sizes[number % len(plan.sizes)], frame_max)
        pieces[-1] += before
        if plan.is_stamped:
            pieces.append(after)
    return pieces


def ack_head(channel: int) -> bytes:
    """A basic.ack up to its delivery tag."""
    return frame.marshal(commands.Basic.Ack(0, False), channel)[:11]
