"""What all handlers share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rabbitpy_broker.config import ManagementConfig
from rabbitpy_broker.management.admin import Admin
from rabbitpy_broker.management.api.rates import Sampler
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.vhost import VHost


@dataclass(frozen=True)
class Listener:
    """A port that somebody may connect to."""

    protocol: str
    address: str
    port: int


@dataclass
class Api:
    """Of one broker. `http` are the listeners of the API itself; `certificates` the files of its own."""

    broker: ManagedBroker
    admin: Admin
    config: ManagementConfig
    sampler: Sampler
    http: list[Listener] = field(default_factory=list)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by whatever changes definitions in slices

    @property
    def node_name(self) -> str:
        return self.admin.pid.node

    @property
    def vhosts(self) -> dict[str, VHost]:
        return self.broker.node.vhosts

    def listeners(self) -> list[Listener]:
        """All of the broker's."""
        found = [_listener("amqp", address) for address in self.broker.addresses]
        found += [_listener("amqp/ssl", address) for address in self.broker.tls_addresses]
        if self.broker.metrics_address:
            found.append(_listener("http/prometheus", self.broker.metrics_address))
        return found + self.http


def _listener(protocol: str, address: str) -> Listener:
    host, _, port = address.rpartition(":")
    return Listener(protocol, host.strip("[]"), int(port))


