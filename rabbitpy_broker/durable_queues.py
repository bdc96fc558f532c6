"""What the definitions have of a vhost's queues, for whoever opens the vhost, or follows it.

What must stay true: after `change` everything is as if it had been read anew.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rabbitpy_broker.definitions import Change, Definitions
from rabbitpy_broker.policies import Policies
from rabbitpy_broker.queues.delayed_messages import PlainMaker
from rabbitpy_broker.queues.queue_factory import place_makers
from rabbitpy_broker.queues.queue_settings import QUORUM, STREAM, QueueSettings, queue_type
from rabbitpy_broker.queues.stream_queue import stream_settings
from rabbitpy_broker.storage.place import PlaceMaker
from rabbitpy_broker.storage.stream_log import StreamSettings
from rabbitpy_broker.wire.field_table import FieldTable, decode_table

NO_ARGUMENTS: Final = FieldTable()


def arguments_of(raw: bytes) -> FieldTable:
    """The table that definitions keep as bytes."""
    if not raw:
        return NO_ARGUMENTS
    return decode_table(len(raw).to_bytes(4, "big") + raw, 0)[0]


class DurableQueue(NamedTuple):
    """A durable queue, but for its name."""

    auto_delete: bool
    arguments: FieldTable
    queue_id: int


class DurableQueues:
    """`queues` by name; `delay_queues`: the queue_id of a delayed message exchange, by its name. `makers` has the maker of places
    of each index, `streams` the queue_ids of streams, with what arguments and policies say of their logs. `any_quorum`: one of
    the queues is a quorum queue, or was. Raises StartError when a policy cannot be used.
    """

    def __init__(self, definitions: Definitions, vhost: str) -> None:
        self.queues: dict[str, DurableQueue] = {}
        self.delay_queues: dict[str, int] = {}
        self.makers: dict[int, PlaceMaker] = {}
        self.streams: dict[int, StreamSettings] = {}
        self.any_quorum = False
        self._definitions = definitions
        self._vhost = vhost
        self._streams: dict[str, DurableQueue] = {}
        for name, auto_delete, raw, queue_id in definitions.queues(vhost):
            self._add(name, DurableQueue(auto_delete, arguments_of(raw), queue_id))
        for exchange, queue_id in definitions.delay_queues(vhost).items():
            self._add_delay_queue(exchange, queue_id)
        self._set_streams()

    def change(self, changes: list[Change]) -> set[int]:
        """The definitions have changed so. Returns the ids of indexes and streams that have come or gone, perhaps.

        Raises StartError.
        """
        touched: set[int] = set()
        are_streams_due = False
        for table, what in changes:
            if table == "queues":
                are_streams_due |= self._change_queue(what, touched)
            elif table == "delay_queues":
                self._change_delay_queue(what, touched)
            elif table == "policies":
                are_streams_due = True
        if are_streams_due:
            self._set_streams()
        return touched

    def _change_queue(self, what: list[Any] | dict[str, Any], touched: set[int]) -> bool:
        """Returns whether it is about a stream."""
        before = len(self._streams)
        if isinstance(what, dict):
            for name in [what["name"]] if what else list(self.queues):
                self._drop(name, touched)
            return len(self._streams) < before
        _, name, auto_delete, raw, digits = what
        self._drop(name, touched)
        touched.update(self._add(name, DurableQueue(bool(auto_delete), arguments_of(raw), int(digits, 16))))
        return name in self._streams or len(self._streams) < before

    def _change_delay_queue(self, what: list[Any] | dict[str, Any], touched: set[int]) -> None:
        if isinstance(what, dict):
            for exchange in [what["exchange"]] if what else list(self.delay_queues):
                self._drop_delay_queue(exchange, touched)
            return
        _, exchange, digits = what
        self._drop_delay_queue(exchange, touched)
        self._add_delay_queue(exchange, int(digits, 16))
        touched.add(self.delay_queues[exchange])

    def _add(self, name: str, queue: DurableQueue) -> list[int]:
        makers = place_makers(queue.queue_id, queue.arguments)
        self.queues[name] = queue
        self.makers.update(makers)
        kind = queue_type(queue.arguments)
        if kind == STREAM:
            self._streams[name] = queue
        self.any_quorum = self.any_quorum or kind == QUORUM
        return [queue.queue_id, *makers]

    def _drop(self, name: str, touched: set[int]) -> None:
        queue = self.queues.pop(name, None)
        if queue is None:
            return
        self._streams.pop(name, None)
        touched.add(queue.queue_id)
        for index in place_makers(queue.queue_id, queue.arguments):
            del self.makers[index]
            touched.add(index)

    def _add_delay_queue(self, exchange: str, queue_id: int) -> None:
        self.delay_queues[exchange] = queue_id
        self.makers[queue_id] = PlainMaker()

    def _drop_delay_queue(self, exchange: str, touched: set[int]) -> None:
        queue_id = self.delay_queues.pop(exchange, None)
        if queue_id is not None:
            del self.makers[queue_id]
            touched.add(queue_id)

    def _set_streams(self) -> None:
        self.streams = {}
        if self._streams:
            policies = Policies(self._definitions, self._vhost)
            for name, queue in self._streams.items():
                settings = QueueSettings(queue.arguments, policies.effective(name, STREAM))
                self.streams[queue.queue_id] = stream_settings(settings)
