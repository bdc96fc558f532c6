"""The rows of live tables, and the cells of a queue that change while it is there.

Compiled, as all that is asked of each queue for tables is: a tick makes the cells of every queue that has changed. What must
stay true: QUEUES names the cells in their order, those that were declared first.
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
            columns = _take_rates(row, of_queue, tick)
        else:
            row.mark = mark
            columns = take(row, row.cells[:DECLARED] + live_cells(queue, of_queue, started), tick)
        if columns:
            found.append((row.cells, columns))
    return found


def _take_rates(row: LiveRow, series: Series | None, tick: int) -> list[int]:
    """As `take`, for a queue of which nothing has changed since its cells were made and since the last look, but its rates."""
    idle_at = None if series is None or series.changed >= series.checked else series.changed
    before, columns = row.cells, list[int]()
    now = [*QUEUE_RATES.of(series), ms(idle_at)]
    for column, value in enumerate(now, _RATES_AT):
        if value != before[column]:
            columns.append(column)
    if columns:
        row.cells, row.tick = [*before[:_RATES_AT], *now, *before[_AFTER_RATES:]], tick
    return columns


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
    before = row.cells
    columns: list[int] = []
    for column, value in enumerate(cells):
        old = before[column]
        if value is not old and value != old:
            columns.append(column)
    if columns:
        row.cells, row.tick = cells, tick
    return columns


def changed_values(
    changed: list[Changed], names: Names, key: list[int], shown: frozenset[int]
) -> list[tuple[Cells, dict[str, Any]]]:
    """The key of each row, and by name what has changed of what is shown; without rows of which that is nothing."""
    found: list[tuple[Cells, dict[str, Any]]] = []
    for cells, columns in changed:
        values: dict[str, Any] = {}
        for column in columns:
            if column in shown:
                values[names[column]] = cells[column]
        if values:
            found.append(([cells[column] for column in key], values))
    return found
