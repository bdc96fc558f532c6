"""What all handlers share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rabbitpy_broker.config import ManagementConfig
from rabbitpy_broker.management.admin import Admin
from rabbitpy_broker.management.api.browser import Browser
from rabbitpy_broker.management.api.rates import Sampler
from rabbitpy_broker.management.api.sessions import Sessions
from rabbitpy_broker.management.api.throttle import Throttle
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.vhost import VHost


@dataclass
class Api:
    """Of one broker."""

    broker: ManagedBroker
    admin: Admin
    config: ManagementConfig
    sampler: Sampler
    sessions: Sessions
    browser: Browser
    throttle: Throttle = field(default_factory=Throttle)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by whatever changes definitions in slices

    @property
    def node_name(self) -> str:
        return self.admin.pid.node

    @property
    def vhosts(self) -> dict[str, VHost]:
        return self.broker.node.vhosts


