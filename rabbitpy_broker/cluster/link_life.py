"""Ends links between nodes whose other end answers no longer although nobody has closed them: behind a cut, without power.

TCP gives up after a quarter of an hour, and heartbeats are the client's choice: until then an owner would keep what it has
delivered to a client behind the cut. A link with nothing under way is asked by the system (keepalive). For one with data
under way the acknowledgements of the other *system* count. They also come when the process there reads nothing, because a client
of it does not, or a publisher is held: TCP_USER_TIMEOUT would end those, too.

What must stay true: a link whose other machine answers is not ended here, however long it takes no data.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final

SPARE_S: Final = 3.0  # beyond a lease: until then another node has taken over what the one behind the cut owned
LOOK_S: Final = 2.0
SLICE: Final = 500  # links that are looked at without a pause
PROBES: Final = 2  # of a window that is closed, without an answer
TCP_INFO: Final = struct.Struct("=3x B 20x I 28x I")  # probes; segments not acknowledged; since the last acknowledgement, ms


def is_unheard(info: bytes, within_s: float) -> bool:
    """Whether the other system has left what was sent without an answer for so long; `info` is how Linux' TCP_INFO begins."""
    probes, unacked, silent_ms = TCP_INFO.unpack_from(info)
    return bool((unacked > 0 or probes >= PROBES) and silent_ms > within_s * 1000)


class LinkLife:
    """Watches the links of a node, of which each ends when nothing was heard for a lease and some seconds."""

    def __init__(self, lease_s: float, log: Any) -> None:
        self._within_s = lease_s + SPARE_S
        self._links: set[asyncio.Transport] = set()
        self.log = log

    def add(self, link: asyncio.Transport) -> None:
        """Watches one until it closes."""
        raw = link.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(int(self._within_s - SPARE_S), 1))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, int(SPARE_S))
        self._links.add(link)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for number, link in enumerate(list(self._links), 1):
                self._look(link)
                if number % SLICE == 0:
                    await asyncio.sleep(0)

    def _look(self, link: asyncio.Transport) -> None:
        if link.is_closing():
            self._links.discard(link)
            return
        info = link.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        if is_unheard(info, self._within_s):
            self.log.warning("link to a node ended, which does not answer", peer=link.get_extra_info("peername"))
            link.abort()
