"""The rows of live tables, and the cells of a queue that change while it is there.

Compiled, as all that is asked of each queue for tables is: a tick makes the cells of every queue that has changed. What must
stay true: QUEUES names the cells in their order, those that were declared first; the cells of a row that is there change in
their place, so that whoever keeps them for later than the next tick copies them.
"""

from __future__ import annotations

from typing import Any, Final

from rabbitpy_broker.management.api.queue_series import QueueSeries
from rabbitpy_broker.management.api.rates import QUEUE, Names, Series, idle_since, queue_values
from rabbitpy_broker.queues.activity import ALWAYS, activity, shown_activity
from rabbitpy_broker.queues.backing_queue import Figures
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES

Cells = list[Any]
Changed = tuple[Cells, list[int]]  # a row, and the numbers of the columns that changed

QUEUES: Final[Names] = (
    "vhost", "name", "type", "durable", "auto_delete", "exclusive", "state", "policy", "operator_policy", "arguments", "messages",
    "messages_ready", "messages_unacknowledged", "message_bytes", "messages_persistent", "messages_ram", "messages_paged_out",
    "consumers", "publish_rate", "deliver_rate", "ack_rate", "redeliver_rate", "idle_since", "head_message_timestamp",
    "confirm_mode", "publishes_waiting", "dead_letter_exchange",
)  # fmt: skip
DECLARED: Final = QUEUES.index("messages")  # what comes before it is as it was declared, or follows from policies
_RATES_AT: Final = QUEUES.index("publish_rate")


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
        columns = self._columns
        if series is None or series.values is series.previous:
            return [0.0] * len(columns)
        return [int(rate * 100.0 + 0.5) / 100.0 if rate else 0.0 for rate in series.latest_rates(columns)]


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
        int(in_ram), values[0] - int(in_ram), int(queue.consumer_count), *QUEUE_RATES.of(series),
        ms(idle_since(series, values, started)), None, CONFIRM_MODES[int(queue.settings.confirm_mode)],
        int(backing.publishes_waiting()), queue.settings.dead_letter_exchange,
    ]  # fmt: skip


def mark_of(queue: Queue) -> int | None:
    """What the cells of a queue follow from, but for its rates and policies; None where that is unknown."""
    mark = shown_activity(queue)
    return None if mark == ALWAYS else mark


def changed_rows(
    queues: list[Queue], rows: dict[object, LiveRow], series: QueueSeries, started: float, tick: int
) -> list[Changed]:
    """Has the rows of these queues say what is now, with the policies that they had when they were made; those that changed."""
    found: list[Changed] = []
    for queue in queues:
        row = rows.get(queue)
        if row is None or queue.deleted:
            continue
        of_queue, mark = series.of(queue), mark_of(queue)
        if mark is not None and row.mark == mark and activity(queue) == queue.looked_at:
            columns = _take_from(row, _RATES_AT, _moving_cells(of_queue), tick)
        else:
            row.mark = mark
            columns = _take_from(row, DECLARED, live_cells(queue, of_queue, started), tick)
        if columns:
            found.append((row.cells, columns))
    return found


def _moving_cells(series: Series | None) -> Cells:
    """Those from _RATES_AT on that change by themselves, of a queue of which nothing else has changed since its cells were made
    and since the last look.
    """
    idle_at = None if series is None or series.changed >= series.checked else series.changed
    cells: Cells = list(QUEUE_RATES.of(series))
    cells.append(ms(idle_at))
    return cells


def stale_queues(queues: list[Queue], rows: dict[object, LiveRow]) -> list[Queue]:
    """Those of the queues whose rows do not follow from what they are now."""
    found: list[Queue] = []
    for queue in queues:
        row = rows.get(queue)
        if row is not None and row.mark != shown_activity(queue):
            found.append(queue)
    return found


def take(row: LiveRow, cells: Cells, tick: int) -> list[int]:
    """Gives the row other cells; the numbers of the columns in which they differ."""
    return _take_from(row, 0, cells, tick)


def _take_from(row: LiveRow, first: int, cells: Cells, tick: int) -> list[int]:
    """The same with the cells from a column on."""
    before, column = row.cells, first
    columns: list[int] = []
    for value in cells:
        old = before[column]
        if value is not old and value != old:
            columns.append(column)
            before[column] = value
        column += 1
    if columns:
        row.tick = tick
    return columns


def changed_values(
    changed: list[Changed], names: Names, key: list[int], shown: frozenset[int], vhosts: frozenset[str] | None
) -> list[tuple[Cells, dict[str, Any]]]:
    """The key of each row, and by name what has changed of what is shown; without rows of which that is nothing, and of those of
    other `vhosts`, unless that is None.
    """
    found: list[tuple[Cells, dict[str, Any]]] = []
    vhost_at = names.index("vhost") if vhosts is not None else 0
    for cells, columns in changed:
        if vhosts is not None and cells[vhost_at] not in vhosts:
            continue
        values: dict[str, Any] = {}
        for column in columns:
            if column in shown:
                values[names[column]] = cells[column]
        if values:
            found.append(([cells[column] for column in key], values))
    return found
