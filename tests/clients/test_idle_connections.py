"""No client loses its connection, and the broker no client, for 30 intervals of heartbeats: idle, busy, or blocked by an alarm.

All connections are waited for together: the idle and the blocked ones for 30 intervals of two seconds, those under full load
for a shorter time. `python -m perf.idle` does the same for other heartbeats, and for longer.

A machine that keeps everybody waiting for half a second shows nothing about heartbeats of one: what was lost then is tried again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from external import require_tools
from idle_clients import CLIENTS, Place, Row, Witness, flooded, held, missing

from broker_process import BrokerAddress, BrokerProcess

pytestmark = pytest.mark.timeout(700)  # the first run fetches and builds

NO_MEMORY = {"vm_memory_high_watermark": 1024 * 1024}  # the alarm is on from the beginning
LONGEST_WAIT_S = 0.25
TRIES = 3

INTERVALS = 30
IDLE = [Place(client, heartbeat) for client in CLIENTS for heartbeat in (1, 2)]
BLOCKED = [Place(client, heartbeat, "blocked") for client in CLIENTS for heartbeat in (1, 2)]

LOADED_INTERVALS = 4
BUSY = ("pika-blocking", "java-netty", "amqplib", "amqp091-go")
LOADED = [Place(client, 5) for client in CLIENTS]
LOADED += [Place(client, 5, role) for client in BUSY for role in ("publisher", "consumer")]

Rows = dict[Place, Row]


def here(places: list[Place]) -> list[Place]:
    return [place for place in places if not missing(place.client)]


def kept(row: Row) -> bool:
    return row.kept


def kept_and_spoken_to(row: Row) -> bool:
    """Within every interval the broker said something: some clients hang up after one of silence."""
    return row.kept and row.silence_s["broker"] < row.place.heartbeat


def seen(rows_of: Callable[[], list[Row]], fine: Callable[[Row], bool]) -> Rows:
    """What `rows_of` sees while the machine lets everybody run."""
    for _ in range(TRIES):
        with Witness() as witness:
            rows = rows_of()
        if witness.waited_s < LONGEST_WAIT_S or all(map(fine, rows)):
            break
    return {row.place: row for row in rows}


@pytest.fixture(scope="module")
def quiet(shared_broker: BrokerAddress, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What became of the idle connections and, with a broker of our own, of the blocked ones."""

    def rows_of() -> list[Row]:
        with contextlib.ExitStack() as stack:
            holding = [stack.enter_context(held(here(IDLE), shared_broker.url))]
            if isinstance(shared_broker, BrokerProcess):
                blocking = BrokerProcess(tmp_path_factory.mktemp("blocking"), NO_MEMORY)
                stack.callback(blocking.stop)
                holding.append(stack.enter_context(held(here(BLOCKED), blocking.start().url)))
            time.sleep(INTERVALS * 2)
            return [row for one in holding for row in one.rows()]

    return seen(rows_of, kept_and_spoken_to)


@pytest.fixture(scope="module")
def loaded(shared_broker: BrokerAddress, quiet: object) -> Rows:
    """What became of connections while publishers and consumers, and two more, kept the broker as busy as they could."""

    def rows_of() -> list[Row]:
        with held(here(LOADED), shared_broker.url) as holding, flooded(shared_broker.url, holding.queues):
            time.sleep(LOADED_INTERVALS * 5)
            return holding.rows()

    return seen(rows_of, kept)


def row_of(rows: Rows, place: Place) -> Row:
    require_tools(*CLIENTS[place.client].tools)
    return rows[place]


@pytest.mark.parametrize("place", IDLE, ids=str)
def test_idle_connection_is_kept(quiet: Rows, place: Place) -> None:
    row = row_of(quiet, place)
    assert kept_and_spoken_to(row), row


@pytest.mark.own
@pytest.mark.parametrize("place", BLOCKED, ids=str)
def test_blocked_publisher_is_kept(quiet: Rows, place: Place) -> None:
    """It is not read from, so its heartbeats are not either; those of the broker go on."""
    row = row_of(quiet, place)
    assert kept_and_spoken_to(row), row


@pytest.mark.parametrize("place", LOADED, ids=str)
def test_connection_is_kept_under_full_load(loaded: Rows, place: Place) -> None:
    row = row_of(loaded, place)
    assert kept(row), row
