"""The cells of a queue in the table of queues that change while it is there, and which of two rows' cells differ.

Compiled, as all that is asked of each queue for tables is: a tick makes the cells of every queue that has changed. What must
stay true: QUEUES names the cells in their order, those that were declared first.
"""

from __future__ import annotations

from typing import Any, Final

from rabbitpy_broker.management.api.rates import QUEUE, Names, Series, idle_since, queue_values
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


def different(cells: Cells, before: Cells) -> list[int]:
    """The numbers of the columns in which two rows differ."""
    return [column for column, value in enumerate(cells) if value != before[column]]
