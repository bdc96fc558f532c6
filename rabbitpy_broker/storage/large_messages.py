"""The two message stores of a vhost, as its queues see them: bodies that are too large for the index, by their places.

Persistent messages have one store, paged transient ones another, which is empty after a start.
"""

from __future__ import annotations

from rabbitpy_broker.message import Message
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.place import Place


class LargeMessages:
    """`Place.stored` is set and taken away here alone."""

    def __init__(self, persistent: MessageStore, transient: MessageStore) -> None:
        self.persistent = persistent
        self.transient = transient

    def put(self, place: Place, message: Message, transient: bool) -> None:
        """Has the message written, with the next epoch or the next scatter; once for all queues that have it."""
        store = self.transient if transient else self.persistent
        place.in_transient_store = transient
        place.stored = store.publish(message)

    def find(self, place: Place, msg_id: bytes, transient: bool) -> bool:
        """Looks up a place that was read back; False when the store does not have its message."""
        store = self.transient if transient else self.persistent
        place.in_transient_store = transient
        place.stored = store.lookup(msg_id)
        return place.stored is not None

    def read(self, place: Place) -> Message:
        """The message of a place that has one here. Raises OSError, FormatError, DamagedError."""
        entry = place.stored
        assert entry is not None, "kept by: the caller"
        return self.store_of(place).read(entry)

    def release(self, place: Place) -> None:
        """The store may forget the message as far as this place is concerned."""
        entry = place.stored
        if entry is not None:
            place.stored = None
            self.store_of(place).release(entry)

    def store_of(self, place: Place) -> MessageStore:
        """The store where its message belongs."""
        return self.transient if place.in_transient_store else self.persistent
