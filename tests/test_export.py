"""An export of definitions fits together though it is a walk, in which things come and go between two steps."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import load_config
from rabbitpy_broker.management.admin import Admin
from rabbitpy_broker.management.definitions_json import entries
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.field_table import FieldTable

NONE = FieldTable()
STAYING = [f"stays{number}" for number in range(20)]


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    settings = {"data_dir": str(tmp_path), "listeners": ("127.0.0.1:0",), "metrics_listen": "", "management_listen": ""}
    broker = Broker(load_config(overrides=settings), structlog.get_logger())
    await broker.start()
    yield Admin(broker)
    await broker.stop()


class Comings:
    """Queues, exchanges, bindings and users that come and go, by chance; `STAYING` stay."""

    def __init__(self, admin: Admin, seed: int) -> None:
        self.admin = admin
        self.chance = random.Random(seed)
        self.count = 0
        for name in STAYING:
            self.declare(name)

    @property
    def vhost(self) -> VHost:
        return self.admin.node.vhosts["/"]

    def declare(self, name: str) -> None:
        """A queue and an exchange of that name, bound to each other, and the exchange to another one."""
        vhost = self.vhost
        vhost.declare_exchange(name, "direct", True, False, False, NONE)
        queue = vhost.declare_queue(name, True, False, False, NONE, None)
        vhost.bind(vhost.exchanges[name], queue, "k", NONE)
        vhost.bind(vhost.exchanges["amq.fanout"], vhost.exchanges[name], "", NONE)

    def change(self) -> None:
        for _ in range(2):
            self.count += 1
            self.declare(f"new{self.count}")
        others = sorted(set(self.vhost.queues) - set(STAYING))
        self.vhost.delete_queue(self.vhost.queues[self.chance.choice(others)])
        others = sorted(name for name in self.vhost.exchanges if name.startswith("new"))
        self.vhost.delete_exchange(self.chance.choice(others), False)
        if self.count % 10 == 0:
            self.admin.add_vhost(f"vhost{self.count}")
            self.admin.set_permissions("guest", "", "", "", vhost=f"vhost{self.count}")


@pytest.mark.parametrize("seed", range(3))
async def test_what_an_entry_names_is_an_entry(admin: Admin, seed: int) -> None:
    world = Comings(admin, seed)
    found: dict[str, list[Any]] = {}
    for piece in entries(admin):
        if piece is not None and isinstance(piece[1], dict):
            found.setdefault(piece[0], []).append(piece[1])
        world.change()
    vhosts = {entry["name"] for entry in found["vhosts"]}
    queues = [entry["name"] for entry in found["queues"]]
    exchanges = [entry["name"] for entry in found["exchanges"]]
    assert len(queues) == len(set(queues))
    assert len(exchanges) == len(set(exchanges))
    assert set(STAYING) <= set(queues)
    assert set(STAYING) <= set(exchanges)
    assert {entry["vhost"] for entry in found["permissions"]} <= vhosts
    for binding in found["bindings"]:
        assert binding["source"] in exchanges or binding["source"].startswith("amq.")
        assert binding["destination"] in (queues if binding["destination_type"] == "queue" else exchanges)
    bound = {(entry["source"], entry["destination"]) for entry in found["bindings"]}
    assert {(name, name) for name in STAYING} | {("amq.fanout", name) for name in STAYING} <= bound
