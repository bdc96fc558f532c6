"""A stream is browsed by offset, from memory and from disk, and nothing changes by it."""

from __future__ import annotations

from browse_model import everything, run
from rabbitpy_broker.queues.browse import Peeks, Seen
from rabbitpy_broker.queues.stream_browse import browsing
from rabbitpy_broker.queues.stream_queue import StreamQueue
from sans_io import SansIOBroker
from small_client import SmallClient

COUNT = 60


def stream(broker: SansIOBroker) -> StreamQueue:
    client = SmallClient(broker)
    client.declare("s", {"x-queue-type": "stream"})
    queue = broker.vhost.queues["s"]
    assert isinstance(queue, StreamQueue)
    for number in range(COUNT):
        assert client.publish("s", b"%02d" % number)
        if number == COUNT // 2:
            for _ in range(3):
                broker.vhost.tick(0.0)
                broker.run()
            assert not queue.log.memory.chunks
    return queue


def pages(queue: StreamQueue, limit: int, forward: bool) -> list[Seen]:
    found: list[Seen] = []
    start = None
    while True:
        browse = browsing(queue, Peeks(), start, forward, limit, cut=100)
        found += run(browse)
        if not browse.more:
            return found
        start = (0, int(browse.found[-1].seq_id))


def test_a_stream_is_browsed_from_disk_and_from_memory(broker: SansIOBroker) -> None:
    queue = stream(broker)
    expected = [b"%02d" % number for number in range(COUNT)]
    before = everything(queue)
    for limit in (1, 7, 500):
        for forward in (True, False):
            found = pages(queue, limit, forward)
            assert [seen.content.body for seen in found if seen.content is not None] == (expected if forward else expected[::-1])
            assert [int(seen.position) for seen in found] == [int(seen.seq_id) for seen in found]
    assert everything(queue) == before


def test_a_damaged_chunk_is_shown_as_such_and_reported_nowhere(broker: SansIOBroker) -> None:
    queue = stream(broker)
    (segment,) = queue.log.segments.segments
    path = queue.log.segments.stem(segment) + ".stream"
    file = broker.disk.open(path)
    file.write_at(int(segment.size) - 1, b"\xff")
    file.close()
    found = pages(queue, 500, True)
    assert found[0].damaged
    assert [seen.content.body for seen in found if seen.content is not None] == [
        b"%02d" % number for number in range(COUNT // 2 + 1, COUNT)
    ]
    assert not segment.has_bad_index
    queue.check()
