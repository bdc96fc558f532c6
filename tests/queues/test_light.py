"""A queue in the mode consumer-ack-light forgets what it hands out, also what it had handed out and got back before."""

from __future__ import annotations

from sans_io import SansIOBroker, publish
from small_client import SmallClient


def test_message_that_was_unacked_before_is_forgotten_too(client: SmallClient, broker: SansIOBroker) -> None:
    name = client.declare("q", {"x-message-ttl": 60_000})
    policies = broker.policies
    policies.set("mode", "^q$", "queues", 0, {"confirm-mode": "consumer-ack"})
    client.feed(publish(1, "", name, b"x"))
    first = client.get(name)
    assert first is not None
    client.reject(first, requeue=True)
    policies.set("mode", "^q$", "queues", 0, {"confirm-mode": "consumer-ack-light"})
    again = client.get(name)
    assert again is not None
    backing = broker.vhost.queues[name].backing
    assert (backing.len, backing.unacked, backing.publishes_waiting()) == (0, 0, 1)
    broker.audit()
    client.ack(again)
    assert backing.publishes_waiting() == 0
