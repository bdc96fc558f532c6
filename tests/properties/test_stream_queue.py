"""A stream and its consumers against a plain list: any history of publishes, acks, full outputs, consumers that come and go,
epochs, moves to segments and retention, frame by frame.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic, Queue

from content_headers import payload_of
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.storage.vhost_store import StoreSettings
from sans_io import HEADER, SansIOBroker, content, frame, method
from small_client import contents

VALUES = (None, "a", "b")
ARGUMENTS = {"x-queue-type": "stream", "x-max-length-bytes": 2_000, "x-stream-max-segment-size-bytes": 400}
READERS = 4


def small_settings() -> StoreSettings:
    """Segments of some chunks, chunks of some messages, journal files of some blocks."""
    made = StoreSettings()
    made.journal_file_size_limit = 4 * 4096
    sizes = made.streams
    sizes.chunk_bytes, sizes.move_bytes, sizes.move_chunks = 200, 900, 16
    sizes.batch_bytes, sizes.kept_bytes, sizes.read_bytes, sizes.small_bytes = 2_000, 300, 500, 300
    return made


class Reader:
    """A connection that may have a consumer. `expected` is the offset that comes next."""

    def __init__(self, broker: SansIOBroker) -> None:
        self.peer = broker.connect(frame_max=4096)
        self.peer.open_channel(1)
        self.is_consuming = False
        self.is_paused = False
        self.consumers = 0
        self.expected = 0
        self.wanted: list[str] | None = None
        self.match_unfiltered = False
        self.unacked: list[int] = []

    def send(self, command: Any) -> None:
        self.peer.connection.receive_data(method(1, command))

    def wants(self, value: str | None) -> bool:
        if self.wanted is None:
            return True
        return self.match_unfiltered if value is None else value in self.wanted


class World:
    def __init__(self) -> None:
        self.broker = SansIOBroker(settings=small_settings())
        self.publisher = self.broker.connect()
        self.publisher.open_channel(1)
        self.publisher.call(1, Queue.Declare(queue="s", durable=True, arguments=ARGUMENTS))
        self.published: list[tuple[bytes, str | None]] = []
        self.readers = [Reader(self.broker) for _ in range(READERS)]
        queue = self.broker.vhost.queues["s"]
        assert isinstance(queue, StreamQueue)
        self.queue = queue
        self.log = queue.log
        self.seconds = 0.0

    def publish(self, size: int, value: str | None) -> None:
        body = (b"%d " % len(self.published)).ljust(size, b".")
        header = payload_of(**({} if value is None else {"headers": {"x-stream-filter-value": value}}))
        parts = content(1, body)
        parts = frame(HEADER, 1, header[:4] + len(body).to_bytes(8, "big") + header[12:]) + parts[22:]
        self.publisher.connection.receive_data(method(1, Basic.Publish(routing_key="s")) + parts)
        self.published.append((body, value))

    def attach(
        self, reader: Reader, start: int | str, prefetch: int, wanted: list[str] | None, match_unfiltered: bool
    ) -> None:
        log = self.log
        first = {"first": int(log.first_offset), "next": int(log.next_offset), "last": int(log.last_chunk_offset())}
        self.check()
        reader.expected = start if isinstance(start, int) else first[start]
        reader.wanted, reader.match_unfiltered = wanted, match_unfiltered
        arguments: dict[str, Any] = {"x-stream-offset": start}
        if wanted is not None:
            arguments |= {"x-stream-filter": wanted, "x-stream-match-unfiltered": match_unfiltered}
        reader.send(Basic.Qos(prefetch_count=prefetch))
        reader.consumers += 1
        reader.send(Basic.Consume(queue="s", consumer_tag=f"c{reader.consumers}", arguments=arguments))
        reader.is_consuming = True

    def cancel(self, reader: Reader) -> None:
        reader.send(Basic.Cancel(consumer_tag=f"c{reader.consumers}"))
        self.turn()  # what it had got is told before the cancel-ok
        self.check()
        reader.is_consuming = False

    def pause(self, reader: Reader) -> None:
        reader.is_paused = not reader.is_paused
        if reader.is_paused:
            reader.peer.connection.writing_paused()
        else:
            reader.peer.connection.writing_resumed()

    def ack(self, reader: Reader, count: int) -> None:
        if reader.unacked:
            taken, reader.unacked = reader.unacked[:count], reader.unacked[count:]
            reader.send(Basic.Ack(delivery_tag=taken[-1], multiple=True))

    def turn(self) -> None:
        if self.broker.due:
            self.broker.due = False
            self.broker.turn.run()

    def idle(self) -> None:
        self.seconds += 1
        self.broker.vhost.tick(self.seconds)

    def check(self) -> int:
        """Takes what has come to the consumers, and looks at each delivery; returns how many there were."""
        found = 0
        for reader in self.readers:
            for got in contents(reader.peer.output()):
                offset = got.properties.headers["x-stream-offset"]
                value = got.properties.headers.get("x-stream-filter-value")
                assert reader.expected <= offset < self.log.committed, "in order, once, and only what is committed"
                assert (got.body, value) == self.published[offset]
                assert reader.wants(value)
                for missing in range(reader.expected, offset):
                    gone = missing < self.log.first_offset
                    assert gone or not reader.wants(self.published[missing][1]), "nothing is left out"
                reader.expected = offset + 1
                reader.unacked.append(got.tag)
                found += 1
        return found

    def come_to_rest(self) -> None:
        for reader in self.readers:
            if reader.is_paused:
                self.pause(reader)
        self.broker.run()
        self.check()
        while any(reader.unacked for reader in self.readers):
            for reader in self.readers:
                self.ack(reader, len(reader.unacked))
            self.broker.run()
            self.check()
        self.broker.audit()
        assert self.log.committed == len(self.published)
        for reader in self.readers:
            left = range(max(reader.expected, int(self.log.first_offset)), len(self.published))
            if reader.is_consuming:
                assert [offset for offset in left if reader.wants(self.published[offset][1])] == []


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 30), st.integers(10, 60), st.sampled_from(VALUES)),
    st.tuples(
        st.just("attach"),
        st.integers(0, READERS - 1),
        st.one_of(st.sampled_from(["first", "last", "next"]), st.integers(0, 80)),
        st.integers(1, 20),
        st.sampled_from([None, None, ["a"], ["a", "b"]]),
        st.booleans(),
    ),
    st.tuples(st.just("ack"), st.integers(0, READERS - 1), st.integers(1, 30)),
    st.tuples(st.just("pause"), st.integers(0, READERS - 1)),
    st.tuples(st.just("cancel"), st.just(0)),
    st.tuples(st.just("crank"), st.integers(1, 4)),
    st.tuples(st.just("turn")),
    st.tuples(st.just("idle")),
)


@settings(max_examples=40)
@given(st.lists(STEPS, min_size=20, max_size=60))
def test_every_consumer_gets_everything_from_its_start_once_and_in_order(steps: list[tuple[Any, ...]]) -> None:
    world = World()
    for what, *values in steps:
        if what == "publish":
            count, size, value = values
            for _ in range(count):
                world.publish(size, value)
        elif what == "attach":
            reader = world.readers[values[0]]
            if not reader.is_consuming:
                world.attach(reader, *values[1:])
        elif what == "ack":
            world.ack(world.readers[values[0]], values[1])
        elif what == "pause":
            world.pause(world.readers[values[0]])
        elif what == "cancel":
            if world.readers[values[0]].is_consuming:
                world.cancel(world.readers[values[0]])
        elif what == "crank":
            for _ in range(values[0]):
                world.broker.threads.crank()
        elif what == "turn":
            world.turn()
        else:
            world.idle()
        world.check()
    world.come_to_rest()
