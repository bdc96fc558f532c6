"""/events of the whole daemon: the event streams of all workers as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

from rabbitpy_broker.management.api.asking import Reply
from rabbitpy_broker.management.api.events import topic_of
from rabbitpy_broker.management.api.merged_events import Begun, BegunReply, Merged, Sources
from rabbitpy_broker.management.api.merging import added_up, line_id, one_alarms, one_overview
from rabbitpy_broker.management.api.request import Row, Stream
from rabbitpy_broker.workers.gateway_front import Asked, Front, kept_headers


class Workers(Sources[int]):
    """By number."""

    objects: Mapping[str, Callable[[Sequence[Row]], Row]] = {"overview": one_overview, "alarms": one_alarms, "nodes": added_up}

    def __init__(self, front: Front, asked: Asked) -> None:
        self._front = front
        self._asked = asked
        self.topics = [topic_of(text) for text in asked.query.get("topics", "").split(",") if text]

    def running(self) -> list[int]:
        return [member.number for member in self._front.fleet.members() if member.ready]

    def topics_for(self, source: int) -> list[str]:
        """A queue is asked of the worker only that has its vhost."""
        placed = self._front.fleet.placed()
        first = min(self.running(), default=-1)
        return [
            topic.name
            for topic in self.topics
            if topic.kind != "queue" or placed.get(topic.of[0] if topic.of else "", first) == source
        ]

    def places(self) -> object:
        placed = self._front.fleet.placed()
        return [placed.get(topic.of[0]) for topic in self.topics if topic.kind == "queue" and topic.of]

    async def open(self, source: int, topics: str) -> Begun | Reply:
        member = self._front.member(source, "")
        response = await self._front.open(self._asked, member, f"events?topics={quote(topics, safe='')}")
        if response.status != 200:
            return Reply(response.status, response.headers, [await response.read()])
        self._asked.base = kept_headers(response.headers)
        return BegunReply(response)

    def line_id(self, source: int, line: Row) -> int:
        return line_id(source, line)


async def subscribe(front: Front, asked: Asked) -> Stream | Reply:
    """The stream of what a reader's topics are, of all workers. Raises ApiError 503 and NoAnswer."""
    front.ready()
    workers = Workers(front, asked)
    merged = Merged(workers, workers.topics)
    refused = await merged.begin()
    if refused is not None:
        return refused
    return Stream("text/event-stream", merged.stream(), dict(asked.base))
