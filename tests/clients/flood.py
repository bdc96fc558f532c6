"""Publishes small messages to the named queues, in turn, as fast as the broker takes them, until it is killed."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pamqp.commands as amqp

from wire_client import BODY, FRAME_END, HEADER, METHOD, WireClient, method_payload

SIZE = 100
BATCH = 400


def framed(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + FRAME_END


def main(host: str, port: str, *queues: str) -> None:
    client = WireClient(host, int(port), timeout=60).open(client_properties={"connection_name": "flood"})
    client.socket.settimeout(None)
    client.open_channel(1)
    content = framed(HEADER, struct.pack(">HHQ", 60, 0, SIZE) + b"\x00\x00") + framed(BODY, bytes(SIZE))
    publishes = [framed(METHOD, method_payload(amqp.Basic.Publish(routing_key=queue))) + content for queue in queues]
    batch = b"".join(publishes) * (BATCH // len(queues) + 1)
    print("ready", flush=True)
    while True:
        client.send(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
