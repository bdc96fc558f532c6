"""A publisher that keeps an account of its confirms, for the tests of the confirm modes."""

from __future__ import annotations

import pamqp.commands as amqp

from behaviour.helpers import settle
from wire_client import WireClient

CONSUMER_ACK = "consumer-ack"
LIGHT = "consumer-ack-light"
BOTH = (CONSUMER_ACK, LIGHT)


def in_mode(mode: str, **others: object) -> dict[str, object]:
    """The arguments of a queue in this confirm mode; `message_ttl=1` stands for x-message-ttl."""
    return {"x-confirm-mode": mode} | {"x-" + key.replace("_", "-"): value for key, value in others.items()}


class Producer:
    """Channel 1 of a raw client, in confirm mode. `told` has what each publish has become, by its number from 1."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.count = 0
        self.told: dict[int, str] = {}
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)

    def publish(
        self, queue: str = "", exchange: str = "", count: int = 1, body: bytes = b"x", expiration: str = ""
    ) -> None:
        """Persistent messages."""
        for _ in range(count):
            self.count += 1
            self.client.method(1, amqp.Basic.Publish(exchange=exchange, routing_key=queue))
            flags, values = b"\x10\x00", b"\x02"
            if expiration:
                flags, values = b"\x11\x00", b"\x02" + bytes([len(expiration)]) + expiration.encode()
            self.client.header(1, len(body), flags + values)
            if body:
                self.client.body(1, body)

    def waits(self) -> None:
        """The broker has read what was published, and says nothing about it."""
        self.client.expect_silence(1)

    def next(self, count: int = 1) -> dict[int, str]:
        """What the next `count` publishes that are told have become; fails when one is told twice."""
        before = dict(self.told)
        while len(self.told) < len(before) + count:
            answer = self.client.read_command()[1]
            assert isinstance(answer, amqp.Basic.Ack | amqp.Basic.Nack), f"{answer.name} came"
            settle(self.told, answer)
        return {number: outcome for number, outcome in self.told.items() if number not in before}

    def ends_with(self, outcome: str) -> None:
        """The one publish that is left is told this, and nothing else comes."""
        assert list(self.next().values()) == [outcome]
        self.waits()
