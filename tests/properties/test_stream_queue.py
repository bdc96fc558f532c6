"""A stream and its consumers against a plain list: any history of publishes, credit, full outputs, consumers that come and
go, epochs, moves to segments and retention.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from mypy_extensions import i64

from content_headers import payload_of
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.consumers import Consumer
from rabbitpy_broker.queues.queue_host import HostedQueue, QueueHost
from rabbitpy_broker.queues.queue_settings import QueueSettings
from rabbitpy_broker.queues.stream_cursor import StreamReceiver
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.queues.stream_start import stream_start
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import field_table
from rabbitpy_broker.wire.stream_encoder import entry_end, message_at
from storage.stream_rig import StreamStore

VALUES = (None, "a", "b")
ARGUMENTS = field_table({"x-queue-type": "stream", "x-max-length-bytes": 2_000, "x-stream-max-segment-size-bytes": 400})


class Host(QueueHost):
    def __init__(self, store: StreamStore) -> None:
        self.store = store
        self.touched: list[HostedQueue] = []

    def clock(self) -> Clock:
        return Clock()

    def now_ms(self) -> i64:
        return i64(self.store.now_ms)

    def from_ms(self) -> i64:
        return i64(self.store.now_ms)

    def touch(self, queue: HostedQueue) -> None:
        assert not queue.touched
        queue.touched = True
        self.touched.append(queue)


class Reader(Consumer, StreamReceiver):
    """A consumer with so much credit; `is_full` is its connection's output."""

    def __init__(self, credit: int, wanted: list[str] | None, match_unfiltered: bool) -> None:
        super().__init__("reader", False, False, 0)
        self.credit = credit
        self.is_full = False
        self.wanted = wanted
        self.match_unfiltered = match_unfiltered
        self.got: list[tuple[int, bytes, str | None]] = []

    def room(self) -> i64:
        return i64(0 if self.is_full else self.credit - self.unacked_count)

    def deliver_entries(self, data: bytes, pos: i64, count: i64) -> tuple[i64, i64]:
        assert self.room() > 0
        done = 0
        while done < count and done < 3:  # as an output that is full soon
            message = message_at(data, pos)
            headers = ContentHeader(message.header_payload()).headers()
            assert headers is not None
            value = headers.get("x-stream-filter-value")
            assert value is None or isinstance(value, str)
            offset = headers["x-stream-offset"]
            assert isinstance(offset, int)
            self.got.append((offset, message.body(), value))
            pos = entry_end(data, pos)
            done += 1
        self.unacked_count += done
        return pos, i64(done)

    def wants(self, value: str | None) -> bool:
        if self.wanted is None:
            return True
        return self.match_unfiltered if value is None else value in self.wanted


class World:
    """`kept_from`: what was before may have been taken by retention."""

    def __init__(self) -> None:
        self.store = StreamStore()
        self.host = Host(self.store)
        settings_ = QueueSettings(ARGUMENTS, {})
        self.queue = StreamQueue(self.host, "/", "s", ARGUMENTS, self.store.log, settings_)
        self.published: list[tuple[bytes, str | None]] = []
        self.readers: list[Reader] = []
        self.starts: dict[Reader, int] = {}
        self.checked: dict[Reader, int] = {}

    def publish(self, size: int, value: str | None) -> None:
        number = len(self.published)
        body = (b"%d " % number).ljust(size, b".")
        headers = {} if value is None else {"x-stream-filter-value": value}
        payload = payload_of(**({"headers": headers} if headers else {}))
        header = len(payload).to_bytes(4, "big") + payload + b"\xce"
        frame = b"\x03\x00\x00" + len(body).to_bytes(4, "big") + body + b"\xce"
        self.queue.publish(Message(b"\x00\x01s", header + frame, len(header), False))
        self.published.append((body, value))

    def attach(self, start: object, credit: int, wanted: list[str] | None, match_unfiltered: bool) -> None:
        arguments: dict[str, object] = {"x-stream-offset": start}
        if wanted is not None:
            arguments |= {"x-stream-filter": wanted, "x-stream-match-unfiltered": match_unfiltered}
        log = self.store.log
        reader = Reader(credit, wanted, match_unfiltered)
        self.queue.attach(reader, reader, stream_start(field_table(arguments), "for it", i64(self.store.now_ms)))
        self.readers.append(reader)
        first = {"first": int(log.first_offset), "next": int(log.next_offset), "last": int(log.last_chunk_offset())}
        self.starts[reader] = start if isinstance(start, int) else first[str(start)]
        self.checked[reader] = 0

    def drain(self, budget: int) -> None:
        queues, self.host.touched = self.host.touched, []
        for queue in queues:
            queue.touched = False
            if queue.drain(i64(budget)):
                self.host.touch(queue)
        self.queue.check()
        self.check_deliveries()

    def check_deliveries(self) -> None:
        log = self.store.log
        for reader in self.readers:
            expected = self.starts[reader]
            if self.checked[reader]:
                expected = reader.got[self.checked[reader] - 1][0] + 1
            for offset, body, value in reader.got[self.checked[reader] :]:
                assert expected <= offset < log.committed, "in order, once, and only what is committed"
                assert (body, value) == self.published[offset]
                assert reader.wants(value)
                for missing in range(expected, offset):
                    assert missing < log.first_offset or not reader.wants(self.published[missing][1]), "nothing is left out"
                expected = offset + 1
            self.checked[reader] = len(reader.got)

    def come_to_rest(self) -> None:
        for reader in self.readers:
            reader.is_full = False
            reader.credit = 1 << 30
            self.queue.wake(reader)
        for _ in range(2_000):
            self.store.end_turn()
            self.drain(50)
            moved = self.store.threads.crank()
            if not moved and not self.host.touched and not self.store.is_due():
                return
        raise AssertionError("it never comes to rest")

    def check_everything_came(self) -> None:
        log = self.store.log
        assert log.committed == len(self.published)
        for reader in self.readers:
            after = reader.got[-1][0] + 1 if reader.got else self.starts[reader]
            left = range(max(after, int(log.first_offset)), len(self.published))
            assert [offset for offset in left if reader.wants(self.published[offset][1])] == []
            cursor = self.queue.cursors[reader]
            assert cursor.lag() == 0 or reader.wanted is not None


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 30), st.integers(10, 60), st.sampled_from(VALUES)),
    st.tuples(
        st.just("attach"),
        st.one_of(st.sampled_from(["first", "last", "next"]), st.integers(0, 80)),
        st.integers(1, 20),
        st.sampled_from([None, None, ["a"], ["a", "b"]]),
        st.booleans(),
    ),
    st.tuples(st.just("credit"), st.integers(0, 3), st.integers(1, 30)),
    st.tuples(st.just("full"), st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.just(0)),
    st.tuples(st.just("crank"), st.integers(1, 4)),
    st.tuples(st.just("turn"), st.integers(1, 200)),
    st.tuples(st.just("idle")),
)


@settings(max_examples=100)
@given(st.lists(STEPS, min_size=20, max_size=80))
def test_every_consumer_gets_everything_from_its_start_once_and_in_order(steps: list[tuple[object, ...]]) -> None:
    world = World()
    for what, *values in steps:
        reader = None
        if what in ("credit", "full", "cancel") and world.readers:
            reader = world.readers[int(str(values[0])) % len(world.readers)]
        if what == "publish":
            count, size, value = values
            for _ in range(int(str(count))):
                world.publish(int(str(size)), None if value is None else str(value))
        elif what == "attach":
            start, credit, wanted, match_unfiltered = values
            assert wanted is None or isinstance(wanted, list)
            world.attach(start, int(str(credit)), wanted, bool(match_unfiltered))
        elif what == "crank":
            for _ in range(int(str(values[0]))):
                world.store.threads.crank()
        elif what == "turn":
            world.drain(int(str(values[0])))
            world.store.end_turn()
        elif what == "idle":
            world.store.now_ms += 1_000
            world.store.store.tick()
        elif reader is not None and what == "credit":
            count = min(int(str(values[1])), int(reader.unacked_count))
            if count:
                world.queue.credit(reader, i64(count))
        elif reader is not None and what == "full":
            reader.is_full = not reader.is_full
            if not reader.is_full:
                world.queue.wake(reader)
        elif reader is not None and what == "cancel" and len(world.readers) > 2:
            world.queue.cancel(reader)
            world.readers.remove(reader)
    world.come_to_rest()
    world.check_everything_came()
