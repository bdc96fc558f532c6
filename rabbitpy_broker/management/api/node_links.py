"""The other nodes of a cluster, as the management API of this one asks theirs: HTTP over the nodes' links.

    this node --> link (`cluster/link.py`) --> X-Rabbitpy-Forwarded: {"peer", "user", ...} --> the API of the other node

A user that all nodes have alike has shown its password here, and the other node believes so; anybody else shows it there again.
What must stay true: a node that has not answered is asked no more for AGAIN_S by whoever asks all, so that no list waits for it
again and again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from rabbitpy_broker.cluster.status import all_nodes
from rabbitpy_broker.management.api.asking import NoAnswer, Reply, opened, session_of, whole
from rabbitpy_broker.management.managed import ManagedBroker

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

CONNECT_S: Final = 5.0
FOR_ALL_S: Final = 2.0  # for a node to answer what all are asked
AGAIN_S: Final = 5.0  # until one that has not is asked again
LOOK_S: Final = 0.2  # at whether a node that is asked still runs


class _Connector(aiohttp.BaseConnector):
    """Connections to one node."""

    def __init__(self, links: NodeLinks, node: str) -> None:
        super().__init__(limit=0)
        self._links = links
        self._node = node

    async def _create_connection(self, *_: Any) -> ResponseHandler:
        transport = await self._links.connect(self._node)
        protocol = self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.resume_reading()
        return protocol


class NodeLinks:
    """Those of one broker that is in a cluster; `close` when they are not needed any more."""

    def __init__(self, broker: ManagedBroker, log: Any) -> None:
        self._broker = broker
        self._log = log
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._silent: dict[str, float] = {}  # nodes that have not answered, and when

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    def others(self) -> list[str]:
        """The other nodes that run, by name."""
        view, here = self._broker.view, self._broker.config.node_name()
        return [] if view is None else sorted(node for node in view.nodes if node != here)

    def known(self) -> set[str]:
        """Those that run, and those that have or had something."""
        view = self._broker.view
        return set() if view is None else {*all_nodes(view)} - {self._broker.config.node_name()}

    def owner_of(self, vhost: str) -> str | None:
        """The node that owns a replicated vhost, "" for nobody who runs; None for a vhost that is not replicated."""
        view = self._broker.view
        owner = None if view is None else view.owner_of(vhost)
        return "" if owner and view is not None and owner not in view.nodes else owner

    async def connect(self, node: str) -> asyncio.Transport:
        """Raises OSError."""
        view, server = self._broker.view, self._broker.link_server
        info = None if view is None else view.nodes.get(node)
        if server is None or info is None or not info.link:
            raise ConnectionRefusedError(f"node '{node}' does not run")
        if not info.answers:
            raise ConnectionRefusedError(f"node '{node}' has no management API that other nodes may ask")
        return await server.ask(self._broker.config.node_name(), info.link)

    def _session(self, node: str) -> aiohttp.ClientSession:
        session = self._sessions.get(node)
        if session is None:
            session = self._sessions[node] = session_of(_Connector(self, node), CONNECT_S)
        return session

    async def ask(self, node: str, method: str, path: str, headers: Mapping[str, str], body: Any = None) -> Reply | None:
        """What one of all that are asked answers; None when it does not, or has not lately."""
        now = time.monotonic()
        if now - self._silent.get(node, -AGAIN_S) < AGAIN_S:
            return None
        try:
            reply = await whole(self._session(node), method, path, headers, body, within_s=FOR_ALL_S)
        except NoAnswer as error:
            self._silent[node] = time.monotonic()
            self._log.warning("node not asked", node=node, reason=str(error))
            return None
        self._silent.pop(node, None)
        return reply

    async def ask_all(self, method: str, path: str, body: bytes) -> tuple[list[bytes], list[str]]:
        """What the other nodes that run answer with 200, and the names of those of which nothing is known."""
        nodes = self.others()
        replies = await asyncio.gather(*(self.ask(node, method, path, {}, body) for node in nodes))
        found = {node: reply.body for node, reply in zip(nodes, replies, strict=True) if reply and reply.status == 200}
        return list(found.values()), sorted(self.known() - found.keys())

    async def open(
        self, node: str, method: str, path: str, headers: Mapping[str, str], body: Any = None
    ) -> aiohttp.ClientResponse:
        """The beginning of a node's answer, for which it may take its time as long as it runs. Raises NoAnswer."""
        asking = asyncio.ensure_future(
            opened(self._session(node), method, path, {**headers, "Accept-Encoding": "identity"}, body)
        )
        try:
            while not (await asyncio.wait((asking,), timeout=LOOK_S))[0]:
                if node not in self.others():
                    raise NoAnswer("it does not run any more")
            return asking.result()
        finally:
            asking.cancel()
