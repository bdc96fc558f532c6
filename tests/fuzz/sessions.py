"""Sessions to throw at a broker: mostly valid ones, with damage done to some of their bytes.

A session is a list of actions, made up front from one random number generator, so that it can be replayed and cut down.
Names come from small pools, so that methods meet: a queue that is consumed is also deleted by somebody else.

  ("data", peer, bytes)      the client sends          ("close_ok", peer, b"")   it answers the closes that it was sent
  ("lose", peer, b"")        its socket breaks         ("full", peer, b"")       it stops reading, ("read", ...) goes on
  ("alarm", peer, b"")       an alarm begins for all   ("calm", peer, b"")       it is over
  ("time", peer, b"")        its timer goes off
"""

from __future__ import annotations

import random
import struct
from typing import Any

from pamqp import commands

from sans_io import BODY, HEADER, METHOD, frame

Action = tuple[str, int, bytes]

LOGIN = b"\x00guest\x00guest\x05en_US"

QUEUES = ("q0", "q1", "q2", "tmp", "excl", "", "amq.no", "ü\r\n")
EXCHANGES = (
    "x0",
    "x1",
    "x2",
    "h",
    "amq.topic",
    "amq.fanout",
    "amq.headers",
    "amq.rabbitmq.trace",
    "",
    "none",
    "amq.no",
)
KEYS = ("q0", "q1", "q2", "tmp", "excl", "a.b", "a.*.#", "#.#.#", "*", "", "x" * 255, ".")
TAGS = ("c0", "c1", "c2", "c3", "")
TYPES = ("direct", "fanout", "topic", "headers", "headers", "x-none")
ARGUMENT_KEYS = (
    "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-overflow", "x-queue-mode",
    "x-queue-type", "x-queue-version", "x-single-active-consumer", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-confirm-mode", "x-priority", "x-match", "alternate-exchange", "a", "b", "",
)  # fmt: skip
ARGUMENT_TEXTS = (
    b"classic", b"quorum", b"lazy", b"drop-head", b"consumer-ack", b"all", b"any", b"any-with-x", b"h", b"x0", b"\xff",
)  # fmt: skip
POOLS: dict[str, tuple[str, ...]] = {
    "queue": QUEUES,
    "exchange": EXCHANGES,
    "source": EXCHANGES,
    "destination": EXCHANGES,
    "routing_key": KEYS,
    "consumer_tag": TAGS,
    "exchange_type": TYPES,
}
COMMANDS: tuple[Any, ...] = tuple(commands.INDEX_MAPPING.values())
FREQUENT: tuple[Any, ...] = (
    commands.Queue.Declare, commands.Queue.Declare, commands.Queue.Bind, commands.Queue.Unbind, commands.Queue.Delete,
    commands.Queue.Purge, commands.Exchange.Declare, commands.Exchange.Bind, commands.Exchange.Unbind,
    commands.Exchange.Delete, commands.Basic.Consume, commands.Basic.Consume, commands.Basic.Cancel, commands.Basic.Get,
    commands.Basic.Get, commands.Basic.Ack, commands.Basic.Ack, commands.Basic.Nack, commands.Basic.Reject,
    commands.Basic.Recover, commands.Basic.Qos, commands.Confirm.Select, commands.Tx.Select, commands.Tx.Commit,
    commands.Tx.Rollback, commands.Channel.Open, commands.Channel.Close,
)  # fmt: skip


def random_value(rng: random.Random, depth: int) -> bytes:
    """A field value with its type letter; sometimes of no known type."""
    letter = rng.choice("tbBsuIilLfdTDSSSSIxVFA" if rng.random() < 0.99 else "Qz\x00")
    sizes = {
        "t": 1,
        "b": 1,
        "B": 1,
        "s": 2,
        "u": 2,
        "I": 4,
        "i": 4,
        "l": 8,
        "L": 8,
        "f": 4,
        "d": 8,
        "T": 8,
        "D": 5,
    }
    head = letter.encode("latin-1")
    if letter in sizes:
        small = rng.choice((0, 1, 1, 2, 5, 255))
        raw = small.to_bytes(8, "big")[-sizes[letter] :].rjust(sizes[letter], b"\0")
        return head + (raw if rng.random() < 0.7 else rng.randbytes(sizes[letter]))
    if letter in "Sx":
        text = rng.choice(ARGUMENT_TEXTS)
        return head + struct.pack(">I", len(text)) + text
    if letter == "F":
        return head + random_table(rng, depth + 1)
    if letter == "A":
        items = b"".join([random_value(rng, depth + 1) for _ in range(rng.randrange(3) if depth < 4 else 0)])
        return head + struct.pack(">I", len(items)) + items
    return head


def random_table(rng: random.Random, depth: int = 0) -> bytes:
    """A field table with its length."""
    if depth == 0 and rng.random() < 0.02:
        return deep_table(rng)
    count = rng.choice((0, 0, 0, 1, 1, 2, 3)) if depth < 4 else 0
    parts = []
    for _ in range(count):
        key = rng.choice(ARGUMENT_KEYS).encode()
        parts.append(bytes([len(key)]) + key + random_value(rng, depth))
    body = b"".join(parts)
    return struct.pack(">I", len(body)) + body


def deep_table(rng: random.Random) -> bytes:
    """Tables in tables or arrays in arrays, around the greatest depth that is taken and far beyond it."""
    depth = rng.choice((10, 62, 63, 64, 65, 66, 300, 4000))
    kind = rng.choice((b"F", b"A"))
    value = b"V"
    for _ in range(depth):
        inner = b"\x01k" + value if kind == b"F" else value
        value = kind + struct.pack(">I", len(inner)) + inner
    body = b"\x01k" + value
    return struct.pack(">I", len(body)) + body


def random_arguments(rng: random.Random, cls: Any) -> bytes:
    """The payload of a method frame, with arguments of the right types."""
    parts = [struct.pack(">I", cls.index)]
    bits, bit = 0, 0
    for name in cls.attributes():
        kind = cls.amqp_type(name)
        if kind == "bit":
            bits |= (rng.random() < (0.08 if name in ("passive", "internal", "immediate") else 0.3)) << bit
            bit += 1
            continue
        if bit:
            parts.append(bytes([bits]))
            bits, bit = 0, 0
        parts.append(_random_argument(rng, name, kind))
    if bit:
        parts.append(bytes([bits]))
    return b"".join(parts)


def _random_argument(rng: random.Random, name: str, kind: str) -> bytes:
    if kind == "shortstr":
        pool = POOLS.get(name)
        text = rng.choice(pool).encode() if pool else rng.choice((b"", b"/", b"PLAIN", b"\xff"))
        if rng.random() < 0.01:
            text = rng.randbytes(rng.randrange(256))
        return bytes([len(text)]) + text
    if kind == "longstr":
        text = rng.choice((b"", b"\0guest\0guest", rng.randbytes(9)))
        return struct.pack(">I", len(text)) + text
    if kind == "table":
        return random_table(rng)
    width = {"octet": 1, "short": 2, "long": 4, "longlong": 8}[kind]
    if name == "prefetch_size":
        return struct.pack(">I", 0 if rng.random() < 0.98 else 1)
    value = rng.choice((0, 1, 1, 2, 2, 3, 4, 5, 7)) if rng.random() < 0.97 else rng.getrandbits(8 * width)
    return value.to_bytes(width, "big")


def random_publish(rng: random.Random, channel: int) -> list[bytes]:
    """The frames of a publish."""
    body = rng.choice((b"", b"x", b"hello", b"y" * 300, b"z" * 9000))
    exchange = rng.choice(EXCHANGES if rng.random() < 0.5 else ("", "x0")).encode()
    key = rng.choice(KEYS).encode()
    flags = rng.choice((0, 0, 0, 1, 1)) if rng.random() < 0.99 else rng.randrange(256)
    address = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    frames = [frame(METHOD, channel, struct.pack(">IH", 0x003C0028, 0) + address + bytes([flags]))]
    frames.append(frame(HEADER, channel, struct.pack(">HHQ", 60, 0, len(body)) + random_properties(rng)))
    at = 0
    while at < len(body):
        step = rng.choice((len(body), 1, 100, 4088))
        frames.append(frame(BODY, channel, body[at : at + step]))
        at += step
    return frames


def random_properties(rng: random.Random) -> bytes:
    """Flags and properties of a content header."""
    kind = rng.random()
    if kind < 0.4:
        return b"\x00\x00"
    if kind < 0.7:
        return b"\x10\x00" + rng.choice((b"\x01", b"\x02", b"\x09"))
    flags = rng.getrandbits(16) & rng.choice((0xFFFC, 0xFFFC, 0x2000, 0x3000, 0xFFFF))
    parts = [struct.pack(">H", flags)]
    for bit in range(15, 1, -1):
        if not flags >> bit & 1:
            continue
        if bit == 13:
            parts.append(random_table(rng))
        elif bit in (12, 11):
            parts.append(bytes([rng.choice((0, 1, 2, 9))]))
        elif bit == 6:
            parts.append(rng.randbytes(8))
        else:
            text = rng.choice((b"", b"text/plain", b"guest", b"\xff\xfe"))
            parts.append(bytes([len(text)]) + text)
    return b"".join(parts)


def looping_sizes(rng: random.Random, channel: int) -> bytes:
    """A publish whose body has the same negative size in header and frame, behind something that ends like a frame."""
    size = -rng.randrange(1, 200)
    method = frame(METHOD, channel, struct.pack(">IH", 0x003C0028, 0) + b"\x00\x02q0\x00")
    header = frame(HEADER, channel, struct.pack(">HHqH", 60, 0, size, 0))
    body = struct.pack(">BHi", BODY, channel, size) + b"\xce" * rng.randrange(1, 60)
    return b"\xce" * rng.choice((0, 0, 1, 9)) + method + header + body


def random_command(rng: random.Random, channel: int) -> list[bytes]:
    """The frames of one command."""
    kind = rng.random()
    if kind < 0.3:
        return random_publish(rng, channel)
    if kind < 0.97:
        return [frame(METHOD, channel, random_arguments(rng, rng.choice(FREQUENT)))]
    if kind < 0.985:
        return [frame(METHOD, rng.choice((0, channel)), random_arguments(rng, rng.choice(COMMANDS)))]
    if kind < 0.995:
        payload = rng.randbytes(rng.randrange(20))
        return [frame(rng.choice((1, 2, 3, 8, 0, 4, 255)), rng.choice((0, channel, 65535)), payload)]
    return [looping_sizes(rng, channel)]


def damage(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    """One thing goes wrong: with the order of frames, with a size, or with some bytes."""
    frames = list(frames)
    at = rng.randrange(len(frames))
    victim = bytearray(frames[at])
    kind = rng.randrange(9)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 2, 8))):
            victim[rng.randrange(len(victim))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del victim[rng.randrange(len(victim)) :]
    elif kind == 2:
        frames.insert(rng.randrange(len(frames) + 1), bytes(victim))
    elif kind == 3:
        other = rng.randrange(len(frames))
        frames[at], frames[other] = frames[other], frames[at]
        return frames
    elif kind == 4:
        size = rng.choice(
            (0, 1, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 131065, len(victim), rng.getrandbits(32))
        )
        victim[3:7] = struct.pack(">I", size)
    elif kind == 5:
        del frames[at]
        return frames
    elif kind == 6 and len(victim) >= 19:
        size = rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, 134217729, rng.getrandbits(64)))
        victim[11:19] = struct.pack(">Q", size)
    elif kind == 7:
        # The payload is cut or grown, and the envelope fits it: what is inside is wrong.
        payload = bytes(victim[7:-1])
        cut = rng.randrange(len(payload) + 1)
        payload = payload[:cut] + (rng.randbytes(rng.randrange(9)) if rng.random() < 0.5 else b"")
        victim = bytearray(frame(victim[0], int.from_bytes(victim[1:3], "big"), payload))
    else:
        if len(victim) > 8:
            spot = rng.randrange(7, len(victim) - 1)
            victim[spot] = rng.choice((0, 1, 127, 128, 255))
    frames[at] = bytes(victim)
    return frames


def chunks(rng: random.Random, data: bytes) -> list[bytes]:
    """The bytes as a socket may give them."""
    parts = []
    style = rng.random()
    while data:
        step = len(data) if style < 0.5 else rng.choice((1, 2, 7, 8, 20, 100, len(data)))
        parts.append(data[:step])
        data = data[step:]
    return parts


def random_session(rng: random.Random, peers: int = 2) -> list[Action]:
    """What some clients do, interleaved."""
    actions: list[Action] = []
    for peer in range(peers):
        opened = b"".join([frame(METHOD, channel, b"\x00\x14\x00\x0a\x00") for channel in (1, 2)])
        actions.append(("data", peer, opened))
    wild = rng.choice((0.0, 0.02, 0.1))
    for _ in range(rng.randrange(5, 60)):
        peer = rng.randrange(peers)
        frames: list[bytes] = []
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            frames += random_command(rng, rng.choice((1, 1, 1, 2, 2, 3)))
        if rng.random() < wild:
            frames = damage(rng, frames)
        actions += [("data", peer, part) for part in chunks(rng, b"".join(frames))]
        if rng.random() < 0.6:
            actions.append(("close_ok", peer, b""))
        if rng.random() < 0.05:
            actions.append((rng.choice(("full", "read", "read", "lose")), peer, b""))
        if rng.random() < 0.1:
            actions.append((rng.choice(("alarm", "calm", "time")), peer, b""))
    return actions


def random_handshake(rng: random.Random) -> list[Action]:
    """A connection that has not come so far."""
    steps = [
        [b"AMQP\x00\x00\x09\x01"],
        [
            frame(
                METHOD,
                0,
                struct.pack(">I", 0x000A000B) + random_table(rng) + b"\x05PLAIN\x00\x00\x00\x0c" + LOGIN,
            )
        ],
        [frame(METHOD, 0, struct.pack(">IHIH", 0x000A001F, 2047, 131072, 0))],
        [frame(METHOD, 0, struct.pack(">I", 0x000A0028) + b"\x01/\x00\x00")],
        [frame(METHOD, 1, b"\x00\x14\x00\x0a\x00")],
    ]
    at = rng.randrange(len(steps))
    kind = rng.random()
    if kind < 0.4:
        steps[at] = damage(rng, steps[at])
    elif kind < 0.7:
        steps.insert(at, [frame(METHOD, 0, random_arguments(rng, rng.choice(COMMANDS)))])
    elif kind < 0.9:
        steps.insert(at, random_command(rng, 1))
    return [("data", 0, part) for step in steps for part in chunks(rng, b"".join(step))]
