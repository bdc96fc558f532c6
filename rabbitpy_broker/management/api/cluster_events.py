"""/events of a whole cluster: the event streams of all nodes as one.

    tables       rows of all nodes, with a column more, which says whose they are
    overview     totals and rates of all; memory, disk and alarms are this node's
    queue:V/Q    from the node that has the vhost
    all else     this node's

What must stay true: a node that does not answer keeps no reader waiting for longer than its lease; a reader comes back when a
queue that it watches is at another node.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import quote

from rabbitpy_broker.management.api.asking import NoAnswer, Reply, path_to
from rabbitpy_broker.management.api.events import Topic, topic_of
from rabbitpy_broker.management.api.merged_events import Begun, BegunReply, Merged, Sources
from rabbitpy_broker.management.api.merging import one_overview, with_node
from rabbitpy_broker.management.api.node_links import FOR_ALL_S, NodeLinks
from rabbitpy_broker.management.api.request import Request, Row, Stream
from rabbitpy_broker.management.api.state import Api

OF_ALL = ("table", "overview")


class _Own(Begun):
    """This node's."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def parts(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._stream.parts) as parts:
            async for part in parts:
                if part:
                    yield part

    def close(self) -> None:
        """A stream of which nothing was taken has not begun, and any other ends with `parts`."""


class Nodes(Sources[str]):
    """By name. `headers_for` has the headers by which another node is asked something, perhaps about a vhost."""

    objects: Mapping[str, Callable[[Sequence[Row]], Row]] = {"overview": one_overview}

    def __init__(
        self, api: Api, links: NodeLinks, request: Request, headers_for: Callable[[str | None], dict[str, str]]
    ) -> None:
        self._api = api
        self._links = links
        self._request = request
        self._headers_for = headers_for
        self.topics = [topic_of(text) for text in request.query.get("topics", "").split(",") if text]
        self._found: dict[str, str] = {}  # queues of vhosts that are not replicated, by topic, and the nodes that have them

    async def find(self) -> None:
        """Looks for the queues that are wanted and may be anywhere."""
        for topic in self.topics:
            if topic.kind == "queue" and len(topic.of) == 2 and self._place(topic) is None:
                path = f"/api/{path_to('queues', *topic.of, query={'columns': 'name'})}"
                for node in self._links.others():
                    reply = await self._links.ask(node, "GET", path, self._headers_for(topic.of[0]))
                    if reply is not None and reply.status == 200:
                        self._found[topic.name] = node

    def _place(self, topic: Topic) -> str | None:
        """The node of a queue; "" while nobody has its vhost, None where that is not known."""
        vhost = topic.of[0] if topic.of else ""
        return self._api.node_name if vhost in self._api.vhosts else self._links.owner_of(vhost)

    def running(self) -> list[str]:
        return [self._api.node_name, *self._links.others()]

    def topics_for(self, source: str) -> list[str]:
        here = self._api.node_name
        found = []
        for topic in self.topics:
            place = here
            if topic.kind == "queue":
                place = self._place(topic) or self._found.get(topic.name, here)
            if source == place or (source != here and topic.kind in OF_ALL):
                found.append(topic.name)
        return found

    def places(self) -> object:
        return [self._place(topic) for topic in self.topics if topic.kind == "queue"]

    async def open(self, source: str, topics: str) -> Begun | Reply:
        if source == self._api.node_name:
            dropped = {key: value for key, value in self._request.headers.items() if key != "last-event-id"}
            return _Own(self._api.events.subscribe(dataclasses.replace(self._request, query={"topics": topics}, headers=dropped)))
        headers = {key: value for key, value in self._headers_for(None).items() if key != "last-event-id"}
        try:
            async with asyncio.timeout(FOR_ALL_S):
                response = await self._links.open(source, "GET", f"/api/events?topics={quote(topics, safe='')}", headers)
        except TimeoutError:
            raise NoAnswer(f"it has not answered within {FOR_ALL_S} s") from None
        if response.status == 200:
            return BegunReply(response)
        async with response:
            return Reply(response.status, response.headers, [await response.read()])

    def told(self, source: str, topic: Topic, kind: str, value: Row) -> Row:
        if topic.kind == "overview":
            if source != self._api.node_name:
                value["value"] |= {"node": None, "alarms": [], "blocked": ""}
            return value
        if "columns" in dict(topic.choices):
            return value
        if kind == "snapshot":
            return with_node(value, source)
        return {
            **value,
            "gone": [[*key, source] for key in value["gone"]],
            "added": [[*row, source] for row in value["added"]],
            "changed": [[[*key, source], cells] for key, cells in value["changed"]],
        }


async def subscribe(nodes: Nodes) -> Stream:
    """The stream of what a reader's topics are, of all nodes. Raises ApiError."""
    await nodes.find()
    merged = Merged(nodes, nodes.topics)
    refused = await merged.begin(lenient=True)
    assert refused is None, "kept by: this node, which is the first, refuses by raising"
    return Stream("text/event-stream", merged.stream())
