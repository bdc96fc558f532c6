"""Makes the queues of one vhost, new and recovered ones: their backing queues, of one lane or many, and the queues around
them.
"""

from __future__ import annotations

from mypy_extensions import u8

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.errors import INTERNAL_ERROR, ConnectionClosed, StartError
from rabbitpy_broker.queues.arguments import highest_lane, max_priority
from rabbitpy_broker.queues.backing_queue import BackingQueue
from rabbitpy_broker.queues.delay_queue import DelayQueue
from rabbitpy_broker.queues.delayed_messages import DelayedMessages, PlainMaker
from rabbitpy_broker.queues.msg_status import StatusMaker
from rabbitpy_broker.queues.priority_queue import LaneMaker, PriorityQueue, lane_id
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_host import QueueHost
from rabbitpy_broker.queues.queue_settings import PERSIST, STREAM, QueueDefaults, QueueSettings, queue_type
from rabbitpy_broker.queues.quorum_queue import NORMAL, QuorumQueue
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.storage.place import PlaceMaker
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.vhost_recovery import RecoveredQueue
from rabbitpy_broker.storage.vhost_store import VHostStore
from rabbitpy_broker.wire.field_table import FieldTable


def place_makers(queue_id: int, arguments: FieldTable) -> dict[int, PlaceMaker]:
    """The makers of places for a queue, and for each of its priorities, with which the store reads them back; a stream has
    none.
    """
    if queue_type(arguments) == STREAM:
        return {}
    priorities = range(highest_lane(arguments) + 1)
    return {lane_id(queue_id, priority): StatusMaker(u8(priority)) for priority in priorities}


class QueueFactory:
    """The queues of the vhost of that name. The id of a queue is that of its index in the store; the ids of its priorities
    are made from it.
    """

    def __init__(self, host: QueueHost, vhost: str, store: VHostStore, defaults: QueueDefaults) -> None:
        self._host = host
        self._vhost = vhost
        self._store = store
        self._defaults = defaults
        self._maker = StatusMaker()

    # -- new ------------------------------------------------------------------------------------------------------

    def make(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: FieldTable,
        settings: QueueSettings,
        queue_id: int,
    ) -> Queue:
        """An empty queue. Raises 541 when the data directory cannot be made fit for it."""
        if settings.stream:
            try:
                log = self._store.new_stream(queue_id)
            except OSError as error:
                raise ConnectionClosed(INTERNAL_ERROR, f"queue '{name}' cannot be made: {error}") from None
            return StreamQueue(self._host, self._vhost, name, arguments, log, settings)
        highest = max_priority(arguments)
        backing: BackingQueue
        if settings.quorum:
            try:
                self._store.quorum_queue_due()
            except OSError as error:
                raise ConnectionClosed(INTERNAL_ERROR, f"queue '{name}' cannot be made: {error}") from None
            quorum = self._quorum_queue(queue_id)
            quorum.add_lane(NORMAL, quorum.maker.make_lane(u8(0)))
            backing = quorum
        elif highest > 0:
            lanes = PriorityQueue(highest, Lanes(self, queue_id, durable))
            lanes.add_lane(0, lanes.maker.make_lane(0))
            backing = lanes
        else:
            backing = self.variable_queue(self._store.new_index(queue_id, durable, self._maker), 0)
        return Queue(self._host, self._vhost, name, durable, auto_delete, owner, arguments, backing, settings)

    def _quorum_queue(self, queue_id: int) -> QuorumQueue:
        return QuorumQueue(Lanes(self, queue_id, True), self._defaults.quorum_priorities)

    def new_lane(self, queue_id: int, durable: bool, priority: u8) -> VariableQueue:
        """The backing queue of another priority of a queue, without messages."""
        index = self._store.new_index(lane_id(queue_id, int(priority)), durable, StatusMaker(priority))
        return self.variable_queue(index, priority)

    def variable_queue(self, index: QueueIndex, priority: u8) -> VariableQueue:
        """The backing queue around this index, for a queue or one of its priorities."""
        embed_below = self._store.settings.queue_index_embed_msgs_below
        return VariableQueue(index, PERSIST, False, embed_below, self._host.clock(), priority)

    def make_delay_queue(self, exchange: Destination, durable: bool, queue_id: int) -> DelayQueue:
        """An empty delay queue for a delayed message exchange."""
        return self._delay_queue(exchange, self._store.new_index(queue_id, durable, PlainMaker()))

    def _delay_queue(self, exchange: Destination, index: QueueIndex) -> DelayQueue:
        embed_below = self._store.settings.queue_index_embed_msgs_below
        messages = DelayedMessages(index, embed_below, self._host.clock())
        return DelayQueue(self._host, self._vhost, exchange, messages)

    # -- recovered ------------------------------------------------------------------------------------------------

    def recover(
        self,
        name: str,
        auto_delete: bool,
        arguments: FieldTable,
        settings: QueueSettings,
        queue_id: int,
        recovered: dict[int, RecoveredQueue],
    ) -> Queue:
        """A durable queue with the messages that the store has recovered. Priorities that never had any are forgotten."""
        if settings.stream:
            return StreamQueue(self._host, self._vhost, name, arguments, self._store.streams[queue_id], settings)
        highest = highest_lane(arguments)
        lanes: dict[int, VariableQueue] = {}
        for priority in range(highest + 1):
            found = recovered[lane_id(queue_id, priority)]
            if priority > 0 and found.next_seq_id == 0:
                self._store.forget(found.index)
                continue
            lane = self.variable_queue(found.index, u8(priority))
            lane.recovered(found.next_seq_id, found.delta_end, found.places)
            lanes[priority] = lane
        backing: BackingQueue = lanes[0]
        if highest > 0:
            makers = Lanes(self, queue_id, True)
            prioritized = self._quorum_queue(queue_id) if settings.quorum else PriorityQueue(highest, makers)
            for priority, lane in lanes.items():
                prioritized.add_lane(priority, lane)
            backing = prioritized
        return Queue(self._host, self._vhost, name, True, auto_delete, None, arguments, backing, settings)

    def recover_delay_queue(self, exchange: Destination, found: RecoveredQueue) -> DelayQueue:
        """The delay queue of an exchange with the messages that are still to come. Raises StartError."""
        queue = self._delay_queue(exchange, found.index)
        try:
            queue.messages.recovered(found.next_seq_id, found.places)
        except OSError as error:
            raise StartError(f"cannot read what {exchange.name} has delayed: {error}") from None
        return queue


class Lanes(LaneMaker):
    """Makes the lanes of one queue with priorities."""

    def __init__(self, factory: QueueFactory, queue_id: int, durable: bool) -> None:
        self._factory = factory
        self._queue_id = queue_id
        self._durable = durable

    def make_lane(self, priority: u8) -> BackingQueue:
        return self._factory.new_lane(self._queue_id, self._durable, priority)
