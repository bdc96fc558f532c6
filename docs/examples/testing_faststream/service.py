"""A FastStream service: it is told of temperatures, and tells when one is too high."""

from __future__ import annotations

from faststream.rabbit import RabbitBroker, RabbitQueue

TEMPERATURES = RabbitQueue("temperatures", durable=True)
ALARMS = RabbitQueue("alarms", durable=True)
TOO_HIGH = 80.0


def make_broker(url: str) -> RabbitBroker:
    """The service on the broker at `url`."""
    broker = RabbitBroker(url)

    @broker.subscriber(TEMPERATURES)
    @broker.publisher(ALARMS)
    async def watch(degrees: float) -> str:
        return f"too hot: {degrees}" if degrees > TOO_HIGH else "fine"

    return broker
