"""/topology: exchanges and queues as a graph: bindings, dead letters, alternate exchanges.

Every queue is bound to the default exchange by its name; those edges are left out. An exchange or a queue that something leads
to and that is not there is a node of its own kind, since that is what one looks for.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from rabbitpy_broker.destination import EXCHANGE, QUEUE
from rabbitpy_broker.management.api.auth import own_vhosts
from rabbitpy_broker.management.api.errors import bad_request
from rabbitpy_broker.management.api.live_cells import QUEUE_RATES
from rabbitpy_broker.management.api.request import Made, Request, Row, vhost_or_404, whole
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.api.tables import EXCHANGE_RATES
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import queue_type
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.slices import in_slices
from rabbitpy_broker.vhost import VHost

NODES_MAX: Final = 2_000
DEPTH: Final = 2
KEYS_SHOWN: Final = 5

Node = tuple[str, str, str]  # kind, vhost, name


class Graph:
    """Made by walking over vhosts; nodes by kind, vhost and name, edges by both ends and kind."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.nodes: dict[Node, Row] = {}
        self.edges: dict[tuple[Node, Node, str], Row] = {}

    def steps(self, vhosts: list[VHost]) -> Iterator[None]:
        """Builds it, a little at each step."""
        for vhost in vhosts:
            for queue in vhost.each_queue():
                self._queue(vhost, queue)
                yield
            for exchange in vhost.each_exchange():
                self._exchange(vhost, exchange)
                for binding in exchange.each_binding():
                    self._binding(vhost, exchange, binding)
                    yield
                yield
        yield from self._missing()

    def _queue(self, vhost: VHost, queue: Queue) -> None:
        node = (QUEUE, vhost.name, queue.name)
        rates = QUEUE_RATES.of(self._api.sampler.of(queue))
        self.nodes[node] = {
            "type": queue_type(queue.arguments),
            "messages": int(queue.ready_count() + queue.backing.unacked),
            "consumers": int(queue.consumer_count),
            "publish_rate": rates[0],
            "deliver_rate": rates[1],
        }
        exchange, key = queue.settings.dead_letter_exchange, queue.settings.dead_letter_routing_key
        if exchange is None:
            return
        by = "argument" if "x-dead-letter-exchange" in queue.arguments else "policy"
        if exchange:
            self._edge(node, (EXCHANGE, vhost.name, exchange), "dead_letter", key or "", by)
        elif key is not None:
            self._edge(node, (QUEUE, vhost.name, key), "dead_letter", key, by)

    def _exchange(self, vhost: VHost, exchange: Exchange) -> None:
        node = (EXCHANGE, vhost.name, exchange.name)
        if exchange.alternate:
            by = "argument" if "alternate-exchange" in exchange.arguments else "policy"
            self._edge(node, (EXCHANGE, vhost.name, exchange.alternate), "alternate", "", by)
        rates = EXCHANGE_RATES.of(self._api.sampler.of(exchange.routed))
        self.nodes[node] = {
            "type": exchange.type, "internal": exchange.internal, "in_rate": rates[0], "out_rate": rates[1],
        }  # fmt: skip

    def _binding(self, vhost: VHost, exchange: Exchange, binding: Any) -> None:
        assert isinstance(binding, Binding), "kept by: Exchange.bind"
        target = binding.destination
        if isinstance(target, Queue) and target.name in vhost.reply_queues:  # somebody watches the exchange
            return
        source = (EXCHANGE, vhost.name, exchange.name)
        self._edge(source, (target.kind, vhost.name, target.name), "binding", binding.binding_key, "")

    def _edge(self, source: Node, target: Node, kind: str, key: str, by: str) -> None:
        edge = self.edges.setdefault((source, target, kind), {"keys": [], "count": 0, **({"by": by} if by else {})})
        edge["count"] += 1
        if len(edge["keys"]) < KEYS_SHOWN and key not in edge["keys"]:
            edge["keys"].append(key)

    def _missing(self) -> Iterator[None]:
        """What edges lead to and is not there; exchanges of every vhost that nothing leads to or from are not shown."""
        linked = set()
        for source, target, _ in self.edges:
            linked |= {source, target}
            yield
        for node in linked - self.nodes.keys():
            self.nodes[node] = {"missing": True}
            yield
        for node in [node for node in self.nodes if node[0] == EXCHANGE and node[2].startswith("amq.") and node not in linked]:
            del self.nodes[node]
            yield

    def around(self, start: Node, depth: int) -> Iterator[None]:
        """Keeps what is within so many edges of a node, in either direction."""
        neighbours: dict[Node, set[Node]] = {}
        for source, target, _ in self.edges:
            neighbours.setdefault(source, set()).add(target)
            neighbours.setdefault(target, set()).add(source)
            yield
        kept, border = {start}, {start}
        for _ in range(depth):
            border = {other for node in border for other in neighbours.get(node, ())} - kept
            kept |= border
            yield
        self.nodes = {node: row for node, row in self.nodes.items() if node in kept}

    def parts(self, limit: int) -> Iterator[bytes]:
        """The JSON: nodes with edges first, if there are too many."""
        linked = {node for source, target, _ in self.edges for node in (source, target)}
        chosen = sorted(self.nodes, key=lambda node: node not in linked)[:limit]
        ids = {node: number for number, node in enumerate(chosen)}
        head = {"as_of": int(time.time() * 1000), "truncated": len(chosen) < len(self.nodes)}
        yield msgspec.json.encode(head)[:-1] + b',"nodes":['
        for number, (kind, vhost, name) in enumerate(chosen):
            row = self.nodes[kind, vhost, name]
            shown = f"missing_{kind}" if row.get("missing") else kind
            found = {"id": number, "kind": shown, "vhost": vhost, "name": name, **row}
            yield (b"," if number else b"") + msgspec.json.encode(found)
        yield b'],"edges":['
        begun = False
        for (source, target, kind), row in self.edges.items():
            if source in ids and target in ids:
                edge = {"from": ids[source], "to": ids[target], "kind": kind, **row}
                yield (b"," if begun else b"") + msgspec.json.encode(edge)
                begun = True
        yield b"]}"


def of_all(api: Api, request: Request) -> Made:
    return Made(_made(api, request, own_vhosts(api, request)))


def of_vhost(api: Api, request: Request) -> Made:
    return Made(_made(api, request, [vhost_or_404(api.vhosts, request.names["vhost"])]))


async def _made(api: Api, request: Request, vhosts: list[VHost]) -> AsyncIterator[bytes]:
    limit, depth = _number(request, "limit", NODES_MAX), _number(request, "depth", DEPTH)
    graph = Graph(api)
    await in_slices(graph.steps(vhosts))
    around = request.query.get("around")
    if around is not None:
        await in_slices(graph.around(_start(around, vhosts), depth))
    parts: list[bytes] = []

    def collecting() -> Iterator[None]:
        for part in graph.parts(limit):
            parts.append(part)
            yield

    await in_slices(collecting())
    yield b"".join(parts)


def _start(text: str, vhosts: list[VHost]) -> Node:
    """`queue/NAME` or `exchange/NAME` of the only vhost, or `queue/VHOST/NAME`."""
    kind, *rest = [unquote(part) for part in text.split("/")]
    if kind not in (QUEUE, EXCHANGE) or len(rest) not in (1, 2) or (len(rest) == 1 and len(vhosts) != 1):
        raise bad_request("around is queue/NAME or exchange/NAME, or with the vhost between")
    return kind, rest[0] if len(rest) == 2 else vhosts[0].name, rest[-1]


def _number(request: Request, name: str, most: int) -> int:
    number = whole(request.query.get(name, str(most)))
    if not number:
        raise bad_request(f"{name} must be a number, and not 0")
    return min(number, NODES_MAX)
