"""The rows of live tables, and the cells of a queue that change while it is there.

Compiled, as all that is asked of each queue for tables is: a tick makes the cells of every queue that has changed. What must
stay true: QUEUES names the cells in their order, those that were declared first.
"""

from __future__ import annotations

from typing import Any, Final

from rabbitpy_broker.management.api.rates import QUEUE, Names, Series, idle_since, queue_values
from rabbitpy_broker.queues.activity import ALWAYS, activity, shown_activity
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES

Cells = list[Any]

QUEUES: Final[Names] = (
    "vhost", "name", "type", "durable", "auto_delete", "exclusive", "state", "policy", "operator_policy", "arguments", "messages",
    "messages_ready", "messages_unacknowledged", "message_bytes", "messages_persistent", "messages_ram", "messages_paged_out",
    "consumers", "publish_rate", "deliver_rate", "ack_rate", "redeliver_rate", "idle_since", "head_message_timestamp",
    "confirm_mode", "publishes_waiting", "dead_letter_exchange",
)  # fmt: skip
DECLARED: Final = QUEUES.index("messages")  # what comes before it is as it was declared, or follows from policies
_RATES_AT: Final = QUEUES.index("publish_rate")
_AFTER_RATES: Final = QUEUES.index("idle_since") + 1


class LiveRow:
    """One row; `tick` is when its cells last changed. `mark`: what those of a queue follow from, None for an unknown one."""

    def __init__(self, cells: Cells, tick: int) -> None:
        self.cells = cells
        self.tick = tick
        self.mark: int | None = None


class Rates:
    """The columns of a series that tables have as rates."""

    def __init__(self, names: Names, *wanted: str) -> None:
        self._columns = [names.index(name) for name in wanted]

    def of(self, series: Series | None) -> list[float]:
        if series is None or series.values is series.previous:
            return [0.0] * len(self._columns)
        return [round(rate, 2) if rate else 0.0 for rate in series.latest_rates(self._columns)]


QUEUE_RATES: Final = Rates(QUEUE, "publish", "deliver_get", "ack", "redeliver")


def ms(seconds: float | None) -> int | None:
    """Of a time, or of None."""
    return None if seconds is None else int(seconds * 1000)


def live_cells(queue: Queue, series: Series | None, started: float) -> Cells:
    """Those from DECLARED on. `started` is when the sampler began."""
    backing, figures = queue.backing, Figures()
    backing.add_figures(figures)
    values = queue_values(queue, figures)
    in_ram = figures.ready_ram + figures.unacked_ram
    return [
        values[0], values[1], values[2], int(backing.ready_bytes + backing.unacked_bytes), int(figures.persistent),
        int(in_ram), values[0] - int(in_ram), len(queue.consumers.members), *QUEUE_RATES.of(series),
        ms(idle_since(series, values, started)), None, CONFIRM_MODES[int(queue.settings.confirm_mode)],
        int(backing.publishes_waiting()), queue.settings.dead_letter_exchange,
    ]  # fmt: skip


def cells_at_rest(series: Series | None, cells: Cells) -> Cells:
    """Those of a queue of which nothing has changed since they were made and since the last look, but its rates."""
    idle_at = None if series is None or series.changed >= series.checked else series.changed
    return [*cells[:_RATES_AT], *QUEUE_RATES.of(series), ms(idle_at), *cells[_AFTER_RATES:]]


def mark_of(queue: Queue) -> int | None:
    """What the cells of a queue follow from, but for its rates and policies; None where that is unknown."""
    mark = shown_activity(queue)
    return None if mark == ALWAYS else mark


def cells_now(row: LiveRow, queue: Queue, series: Series | None, started: float) -> Cells:
    """The cells of a queue with the policies that it had when the row was made; notes their mark in the row."""
    mark = mark_of(queue)
    if mark is not None and row.mark == mark and activity(queue) == queue.looked_at:
        return cells_at_rest(series, row.cells)
    row.mark = mark
    return row.cells[:DECLARED] + live_cells(queue, series, started)


def take(row: LiveRow, cells: Cells, tick: int) -> list[int]:
    """Gives the row other cells; the numbers of the columns in which they differ."""
    before = row.cells
    if cells == before:
        return []
    row.cells, row.tick = cells, tick
    return [column for column, value in enumerate(cells) if value != before[column]]


def values_of(names: Names, cells: Cells, columns: list[int]) -> dict[str, Any]:
    """Of some columns, by name."""
    return {names[column]: cells[column] for column in columns}
