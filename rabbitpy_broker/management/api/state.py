"""What all handlers share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from rabbitpy_broker.config import ManagementConfig
from rabbitpy_broker.management.admin import Admin
from rabbitpy_broker.management.api.browser import Browser
from rabbitpy_broker.management.api.request import Request, Stream
from rabbitpy_broker.management.api.sampler import Sampler
from rabbitpy_broker.management.api.sessions import Sessions
from rabbitpy_broker.management.api.shared_lists import SharedLists
from rabbitpy_broker.management.api.throttle import Throttle
from rabbitpy_broker.management.managed import ManagedBroker
from rabbitpy_broker.vhost import VHost


class Events:
    """Where pages are told what has changed (`events.py`)."""

    def subscribe(self, request: Request) -> Stream:
        """The stream of what a request's topics are. Raises ApiError."""
        raise NotImplementedError


class Kept:
    """What the node and its vhosts have counted in the last day (`history.py`)."""

    def scope(self, name: str) -> Any:
        """The history of "node" or of "vhost:NAME"; None without one."""
        raise NotImplementedError


class Jobs:
    """Backups and restores that were begun (`backups.py`)."""

    async def stop(self) -> None:
        """Ends those that run."""
        raise NotImplementedError


@dataclass
class Api:
    """Of one broker."""

    broker: ManagedBroker
    admin: Admin
    config: ManagementConfig
    sampler: Sampler
    sessions: Sessions
    browser: Browser
    lists: SharedLists
    events: Events = field(default_factory=Events)
    kept: Kept = field(default_factory=Kept)
    jobs: Jobs = field(default_factory=Jobs)
    throttle: Throttle = field(default_factory=Throttle)
    log_ins_before: dict[str, tuple[int, int]] = field(default_factory=dict)  # by protocol, when they were forgotten
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by whatever changes definitions in slices

    def is_plain(self, request: Request) -> bool:
        """Whether only what was declared is to be told, and no figures."""
        return self.config.disable_stats or request.is_true("disable_stats")

    @property
    def node_name(self) -> str:
        return self.admin.pid.node

    @property
    def vhosts(self) -> dict[str, VHost]:
        return self.broker.node.vhosts


