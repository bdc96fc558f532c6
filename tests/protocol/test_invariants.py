"""A broker that is wrong somewhere is found to be: each count, list and route that could be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pamqp.commands import Basic, Confirm, Exchange, Queue

from rabbitpy_broker.broker import BROKEN_EXIT_CODE
from rabbitpy_broker.invariants import check_invariants
from sans_io import SansIOBroker, method, publish


@pytest.fixture
def busy() -> SansIOBroker:
    """Messages ready, unacked, delayed by a prefetch, waiting for an ack; bindings and routes."""
    broker = SansIOBroker()
    peer = broker.connect()
    peer.open_channel(1)
    for name, arguments in (("q", {}), ("owing", {"x-confirm-mode": "consumer-ack"}), ("lanes", {"x-max-priority": 3})):
        peer.call(1, Queue.Declare(queue=name, arguments=arguments))
    peer.call(1, Exchange.Declare(exchange="x", exchange_type="topic"))
    peer.call(1, Queue.Bind(queue="q", exchange="x", routing_key="a.#"))
    peer.call(1, Confirm.Select())
    peer.call(1, Basic.Qos(prefetch_count=2))
    peer.feed(method(1, Basic.Consume(queue="q", consumer_tag="c")))
    for _ in range(5):
        peer.feed(publish(1, "x", "a.b", b"body") + publish(1, "", "owing", b"body") + publish(1, "", "lanes", b"body"))
    return broker


def look(broker: SansIOBroker) -> None:
    check_invariants([broker.vhost], broker.connections)


def test_a_sound_broker_is_found_sound(busy: SansIOBroker) -> None:
    look(busy)
    assert busy.vhost.queues["q"].backing.unacked == 2
    assert busy.vhost.queues["owing"].backing.publishes_waiting() == 5


def consumer(broker: SansIOBroker):
    return next(iter(broker.vhost.queues["q"].consumers.members))


def _forget_connection(broker: SansIOBroker) -> None:
    broker.connections.clear()


def _count_ready(broker: SansIOBroker) -> None:
    broker.vhost.queues["q"].backing.len += 1


def _count_unacked(broker: SansIOBroker) -> None:
    broker.vhost.queues["q"].backing.unacked -= 1


def _count_lane(broker: SansIOBroker) -> None:
    broker.vhost.queues["lanes"].backing.lanes()[0].ram_bytes += 1


def _count_waiting(broker: SansIOBroker) -> None:
    broker.vhost.queues["owing"].backing.owed.waiting += 1


def _count_prefetch(broker: SansIOBroker) -> None:
    consumer(broker).deliveries.prefetch_used += 1


def _count_held(broker: SansIOBroker) -> None:
    consumer(broker).unacked_count -= 1


def _lose_delivery(broker: SansIOBroker) -> None:
    consumer(broker).deliveries.unacked.take(1)


def _free_prefetch(broker: SansIOBroker) -> None:
    consumer(broker).prefetch_limit = 10


def _unpark(broker: SansIOBroker) -> None:
    consumer(broker).parked = False


def _lose_consumer(broker: SansIOBroker) -> None:
    consumer(broker).deliveries.consumers.clear()


def _rename(broker: SansIOBroker) -> None:
    broker.vhost.queues["other"] = broker.vhost.queues.pop("q")


def _delete_silently(broker: SansIOBroker) -> None:
    broker.vhost.queues["q"].deleted = True


def _keep_stale_route(broker: SansIOBroker) -> None:
    broker.vhost.routes.find(b"\x01x\x03a.b").queues = []


def _keep_dead_binding(broker: SansIOBroker) -> None:
    del broker.vhost.exchanges["x"]


@pytest.mark.parametrize(
    "spoil",
    [
        _forget_connection, _count_ready, _count_unacked, _count_lane, _count_waiting, _count_prefetch, _count_held,
        _lose_delivery, _free_prefetch, _unpark, _lose_consumer, _rename, _delete_silently, _keep_stale_route,
        _keep_dead_binding,
    ],
)  # fmt: skip
def test_what_is_spoiled_is_found(busy: SansIOBroker, spoil: Callable[[SansIOBroker], None]) -> None:
    spoil(busy)
    with pytest.raises(AssertionError):
        look(busy)


BROKEN = """
import asyncio, sys
import structlog
from pathlib import Path
from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import load_config
from rabbitpy_broker.wire.field_table import FieldTable

async def main():
    given = {"data_dir": sys.argv[1], "listeners": ("127.0.0.1:0",), "metrics_listen": "", "check_invariants": True}
    broker = Broker(load_config(None, {}, given), structlog.get_logger())
    await broker.start()
    vhost = broker.node.vhosts["/"]
    queue = vhost.declare_queue("q", False, False, False, FieldTable(), None)
    broker.node.turn.run()
    print("sound", flush=True)
    queue.backing.len += 1
    broker.node.turn.run()

asyncio.run(main())
"""


def test_a_broker_that_looks_at_itself_ends_when_it_is_wrong(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", BROKEN, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "sound" in done.stdout) == (BROKEN_EXIT_CODE, True), done.stderr
    assert "invariant broken" in done.stdout + done.stderr
